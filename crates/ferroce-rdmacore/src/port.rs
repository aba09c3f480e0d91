//! What a port is, and which addresses it has.

use crate::context::RdmaContext;
use crate::convert;
use crate::sys::RawContext;
use ferroce_abi::types::{ibv_gid_entry, ibv_port_attr, value};
use ferroce_verbs::{Error, Gid, GidEntry, Mtu, PortAttr, Result};
use std::path::{Path, PathBuf};

impl RdmaContext {
    pub(crate) fn check_port(&self, port: u8) -> Result<()> {
        let ports = self.attr.phys_port_cnt;
        if !(1..=ports).contains(&port) {
            let hint = format!("the device has ports 1 to {ports}");
            return Err(Error::NotFound { what: "port", name: port.to_string(), hint });
        }
        Ok(())
    }

    pub(crate) fn raw_port(&self, port: u8) -> Result<ibv_port_attr> {
        self.check_port(port)?;
        self.raw.query_port(port)
    }

    pub(crate) fn port_attr(&self, port: u8) -> Result<PortAttr> {
        let attr = self.raw_port(port)?;
        let max_mtu = convert::mtu(attr.max_mtu).unwrap_or(Mtu::Mtu4096);
        Ok(PortAttr {
            state: convert::port_state(attr.state),
            max_mtu,
            active_mtu: convert::mtu(attr.active_mtu).unwrap_or(max_mtu),
            gid_tbl_len: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            pkey_tbl_len: attr.pkey_tbl_len,
            max_msg_sz: attr.max_msg_sz,
            lid: attr.lid,
            ethernet: is_ethernet(&attr),
        })
    }

    pub(crate) fn read_gid_table(&self, port: u8) -> Result<Vec<GidEntry>> {
        self.check_port(port)?;
        gid_table(&self.raw, self.attr.phys_port_cnt, port)
    }
}

/// The entries that can be sent from: on Ethernet those of RoCEv2, as those of RoCEv1 have the same addresses and reach nobody who speaks
/// IP.
pub(crate) fn gid_table(raw: &RawContext, ports: u8, port: u8) -> Result<Vec<GidEntry>> {
    let attr = raw.query_port(port)?;
    let active_mtu = convert::mtu(attr.active_mtu).unwrap_or(Mtu::Mtu4096);
    // The kernel gives all ports' entries or, if there is not room for all, none.
    let mut room = 0;
    for other in 1..=ports {
        let attr = if other == port { attr } else { raw.query_port(other)? };
        room += usize::try_from(attr.gid_tbl_len).unwrap_or(0);
    }
    let wanted = |entry: &ibv_gid_entry| {
        entry.port_num == u32::from(port)
            && entry.gid.raw != [0; 16]
            && (!is_ethernet(&attr) || entry.gid_type == value::IBV_GID_TYPE_ROCE_V2)
    };
    let entries = raw.gid_table(room.max(1))?;
    let mut table: Vec<GidEntry> = entries
        .iter()
        .filter(|entry| wanted(entry))
        .map(|entry| {
            let netdev = Netdev::of(entry.ndev_ifindex);
            GidEntry {
                index: entry.gid_index,
                gid: Gid::from_bytes(entry.gid.raw),
                ifindex: entry.ndev_ifindex,
                mtu: netdev.mtu().map_or(active_mtu, |mtu| mtu.min(active_mtu)),
                loopback: netdev.is_loopback(),
                netdev: netdev.name,
            }
        })
        .collect();
    table.sort_unstable_by_key(|entry| entry.index);
    Ok(table)
}

pub(crate) fn is_ethernet(attr: &ibv_port_attr) -> bool {
    u32::from(attr.link_layer) == value::IBV_LINK_LAYER_ETHERNET
}

/// The network device that has an address, as this network namespace sees it.
struct Netdev {
    name: String,
}

impl Netdev {
    fn of(ifindex: u32) -> Self {
        let name = (ifindex != 0)
            .then(|| rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).ok())
            .flatten()
            .and_then(|socket| rustix::net::netdevice::index_to_name(socket, ifindex).ok());
        Self { name: name.unwrap_or_default() }
    }

    fn attribute(&self, name: &str) -> Option<String> {
        // A name with a slash does not exist, and none at all would be another file.
        if self.name.is_empty() {
            return None;
        }
        let path: PathBuf = Path::new("/sys/class/net").join(&self.name).join(name);
        Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
    }

    fn mtu(&self) -> Option<Mtu> {
        Mtu::fitting(self.attribute("mtu")?.parse().ok()?)
    }

    fn is_loopback(&self) -> bool {
        let flags = self.attribute("flags");
        let flags = flags.as_deref().and_then(|text| text.strip_prefix("0x"));
        flags
            .and_then(|text| u32::from_str_radix(text, 16).ok())
            .is_some_and(|flags| flags & libc::IFF_LOOPBACK as u32 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_known() {
        let lo = Netdev { name: "lo".into() };
        assert!(lo.is_loopback());
        assert_eq!(lo.mtu(), Some(Mtu::Mtu4096));
        let none = Netdev::of(0);
        assert!(!none.is_loopback() && none.mtu().is_none() && none.name.is_empty());
    }
}
