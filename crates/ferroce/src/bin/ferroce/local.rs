//! This end's device: opened as the command line says, and the local address that reaches the peer.

use crate::args::{Common, GidChoice, Link};
use crate::failure::{Failure, Result};
use ferroce::cm::ConnectionManager;
use ferroce::{Context, Gid, GidEntry, environment};
use std::net::IpAddr;

/// The link that is asked for: by the command line, else by the environment, else `auto`.
pub(crate) fn link(common: &Common) -> Result<Link> {
    match common.link {
        Some(link) => Ok(link),
        None => Ok(Link::from_mode(environment::soft_config()?.link)),
    }
}

/// Opens the device that `common` names, sending on `link`.
pub(crate) fn open(common: &Common, link: Link) -> Result<Context> {
    let mut config = environment::soft_config()?;
    config.link = link.mode();
    let context = ferroce::open_with(common.device.as_deref(), config)?;
    tracing::debug!(device = context.info().name, %link, "open");
    Ok(context)
}

/// The connection manager of the device that `common` names.
pub(crate) fn manager(common: &Common) -> Result<ConnectionManager> {
    Ok(ConnectionManager::new(&open(common, link(common)?)?)?)
}

/// Whether there is a device and an address to send from, as the command line names them.
pub(crate) fn check(common: &Common) -> Result<()> {
    let context = open(common, link(common)?)?;
    pick_gid(&context, 1, common.gid_index, None).map(|_| ())
}

/// The local GID to use on port `port`: the one that `choice` names, else the one whose address is `reached_from`, the
/// local end of the TCP connection to the peer, else the first of the same family that is not a loopback address.
pub(crate) fn pick_gid(
    context: &Context,
    port: u8,
    choice: Option<GidChoice>,
    reached_from: Option<IpAddr>,
) -> Result<GidEntry> {
    match choice {
        Some(GidChoice::Index(index)) => return Ok(context.query_gid(port, index)?),
        Some(GidChoice::Address(ip)) => return Ok(context.find_gid(port, ip)?),
        None => {}
    }
    let table = context.gid_table(port)?;
    choose(&table, reached_from.map(|ip| ip.to_canonical())).cloned().ok_or_else(|| {
        Failure::environment(format!("port {port} of {} has no address to send from", context.info().name)).hint(
            "bring a network interface up (ip link set dev eth0 up) or give it an address; `ferroce info` lists them",
        )
    })
}

fn choose(table: &[GidEntry], reached_from: Option<IpAddr>) -> Option<&GidEntry> {
    let exact = reached_from.and_then(|ip| table.iter().find(|entry| entry.ip() == ip));
    let family = |entry: &&GidEntry| reached_from.is_none_or(|ip| ip.is_ipv4() == entry.ip().is_ipv4());
    exact
        .or_else(|| table.iter().filter(family).find(|entry| !entry.loopback))
        .or_else(|| table.iter().find(family))
        .or_else(|| table.iter().find(|entry| !entry.loopback))
        .or_else(|| table.first())
}

/// The link that carries what goes to `peer` when `asked_for` is configured: with `auto` it is shared memory to this
/// machine's own addresses. Only the software device has a choice.
pub(crate) fn link_to(context: &Context, port: u8, asked_for: Link, peer: Gid) -> Link {
    match asked_for {
        _ if context.info().provider != "soft" => Link::Device,
        Link::Auto if context.find_gid(port, peer.ip()).is_ok() => Link::Shm,
        Link::Auto => Link::Udp,
        link => link,
    }
}

/// Checks that the peer's GID can be reached from the local one at all.
pub(crate) fn check_families(local: &GidEntry, peer: Gid) -> Result<()> {
    if peer.is_zero() {
        return Err(
            Failure::run("the peer sent no GID, and RoCE needs one").hint("start the peer with -g and a GID index")
        );
    }
    if local.ip().is_ipv4() != peer.ip().is_ipv4() {
        return Err(Failure::run(format!(
            "the local GID {} and the peer's GID {peer} are of different families",
            local.gid
        ))
        .hint("choose an IPv4 GID at both ends, or an IPv6 GID at both ends, with -g"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce::Mtu;

    fn entry(index: u32, ip: &str, loopback: bool) -> GidEntry {
        GidEntry {
            index,
            gid: Gid::from(ip.parse::<IpAddr>().unwrap()),
            netdev: "eth0".into(),
            ifindex: 1,
            mtu: Mtu::Mtu1024,
            loopback,
        }
    }

    #[test]
    fn the_gid_that_the_peer_is_reached_from_is_preferred() {
        let table = [
            entry(0, "127.0.0.1", true),
            entry(1, "::1", true),
            entry(2, "192.0.2.2", false),
            entry(3, "fd00::2", false),
        ];
        let pick = |ip: &str| choose(&table, Some(ip.parse().unwrap())).unwrap().index;
        assert_eq!(pick("192.0.2.2"), 2);
        assert_eq!(pick("127.0.0.1"), 0);
        assert_eq!(pick("203.0.113.9"), 2, "same family, not loopback");
        assert_eq!(pick("fe80::1"), 3);
        assert_eq!(choose(&table, None).unwrap().index, 2);
        assert_eq!(choose(&table[..2], None).unwrap().index, 0);
        assert!(choose(&[], None).is_none());
    }

    #[test]
    fn families_must_agree() {
        let four = entry(0, "192.0.2.2", false);
        assert!(check_families(&four, Gid::from("192.0.2.3".parse::<IpAddr>().unwrap())).is_ok());
        let error = check_families(&four, Gid::from("fd00::3".parse::<IpAddr>().unwrap())).unwrap_err();
        assert!(error.message.contains("families"));
        let error = check_families(&four, Gid::default()).unwrap_err();
        assert!(error.hint.unwrap().contains("-g"));
    }
}
