use super::port::OpenError;
use arc_swap::ArcSwap;
use ferroce_verbs::{Gid, GidEntry, Mtu};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The GID table: one entry for each local address.
pub(crate) struct Gids {
    table: ArcSwap<Vec<GidEntry>>,
}

impl Gids {
    pub(super) fn open() -> Result<Self, OpenError> {
        Ok(Self { table: ArcSwap::from_pointee(read_table()) })
    }

    /// A descriptor that is readable when addresses changed.
    pub(super) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reads the addresses again.
    pub(super) fn refresh(&self) {
        self.table.store(Arc::new(read_table()));
    }

    /// The entries, in order of index.
    pub(crate) fn table(&self) -> Arc<Vec<GidEntry>> {
        self.table.load_full()
    }

    /// The entry at `index`.
    pub(crate) fn get(&self, index: u32) -> Option<GidEntry> {
        self.table.load().iter().find(|entry| entry.index == index).cloned()
    }

    /// Whether `ip` is an address of this machine.
    pub(crate) fn is_local(&self, ip: IpAddr) -> bool {
        self.table.load().iter().any(|entry| entry.ip() == ip)
    }
}

fn read_table() -> Vec<GidEntry> {
    let mut entries = Vec::new();
    for ifaddr in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        let Some(address) = ifaddr.address else { continue };
        let ip = if let Some(v4) = address.as_sockaddr_in() {
            IpAddr::V4(v4.ip())
        } else if let Some(v6) = address.as_sockaddr_in6() {
            IpAddr::V6(v6.ip())
        } else {
            continue;
        };
        let mtu = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", ifaddr.interface_name))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(1500);
        let ifindex = nix::net::if_::if_nametoindex(ifaddr.interface_name.as_str()).unwrap_or(0);
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let rank = (ip.is_loopback(), link_local, ip.is_ipv6());
        entries.push((
            rank,
            GidEntry {
                index: 0,
                gid: Gid::from(ip),
                netdev: ifaddr.interface_name,
                ifindex,
                mtu: Mtu::fitting(mtu).unwrap_or(Mtu::Mtu256),
                loopback: ip.is_loopback(),
            },
        ));
    }
    entries.sort_by_key(|(rank, _)| *rank);
    entries.into_iter().enumerate().map(|(index, (_, entry))| GidEntry { index: index as u32, ..entry }).collect()
}
