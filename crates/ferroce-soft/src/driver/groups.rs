use super::gids::Gids;
use crate::link::udp::UdpPort;
use ferroce_verbs::{Error, Gid};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::io;

/// The multicast groups of a socket. A group is joined on every interface that has an address of its family, those that come
/// later too; what was joined is noted, because it has to be left even where the address has gone meanwhile.
#[derive(Default)]
pub(super) struct Groups {
    joined: Mutex<HashMap<Gid, BTreeSet<u32>>>,
}

impl Groups {
    pub(super) fn join(&self, udp: &UdpPort, gids: &Gids, gid: Gid) -> Result<(), Error> {
        let mut joined = self.joined.lock();
        let interfaces = joined.entry(gid).or_default();
        let result = extend(udp, gids, gid, interfaces);
        // One interface is enough; the others may not do multicast.
        if !interfaces.is_empty() {
            return Ok(());
        }
        joined.remove(&gid);
        match result {
            Ok(()) => Err(Error::invalid("gid", "no interface has an address of the group's family")),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                let limit = if gid.ip().is_ipv4() { "net.ipv4.igmp_max_memberships" } else { "net.core.optmem_max" };
                Err(Error::os(format!("joining {}, for which the kernel's limit {limit} is too low", gid.ip()), error))
            }
            Err(error) => Err(Error::os(format!("joining {}", gid.ip()), error)),
        }
    }

    pub(super) fn leave(&self, udp: &UdpPort, gid: Gid) {
        for ifindex in self.joined.lock().remove(&gid).unwrap_or_default() {
            // If the interface is gone, nothing is left to leave.
            let _ = udp.leave_multicast(gid.ip(), ifindex);
        }
    }

    /// The interfaces changed.
    pub(super) fn refresh(&self, udp: &UdpPort, gids: &Gids) {
        for (gid, interfaces) in self.joined.lock().iter_mut() {
            if let Err(error) = extend(udp, gids, *gid, interfaces) {
                tracing::debug!(%error, group = %gid.ip(), "not joined on a new interface");
            }
        }
    }
}

/// Joins on the interfaces that are not in `interfaces` yet; returns the first error.
fn extend(udp: &UdpPort, gids: &Gids, gid: Gid, interfaces: &mut BTreeSet<u32>) -> io::Result<()> {
    let v4 = gid.ip().is_ipv4();
    let mut result = Ok(());
    for entry in gids.table().iter().filter(|entry| entry.ip().is_ipv4() == v4) {
        if interfaces.contains(&entry.ifindex) {
            continue;
        }
        match udp.join_multicast(gid.ip(), entry.ifindex) {
            Ok(()) => {
                interfaces.insert(entry.ifindex);
            }
            Err(error) => result = result.and(Err(error)),
        }
    }
    result
}
