use std::net::IpAddr;

/// Why an interface cannot reach a peer (`uct_iface_is_reachable_v2`).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// The bytes are no address.
    #[error("these {len} bytes are no address of a {transport} interface or endpoint: {why}")]
    Malformed {
        /// Which transport looked.
        transport: &'static str,
        /// How many there are.
        len: usize,
        /// What is wrong with them.
        why: &'static str,
    },
    /// One has an IPv4 address, the other IPv6.
    #[error(
        "{peer} cannot be reached from {local}: one is IPv4, the other IPv6; open an interface on an address of the other family"
    )]
    Family {
        /// The interface's.
        local: IpAddr,
        /// The peer's.
        peer: IpAddr,
    },
    /// The peer's address works only within a machine, and the interface's does not.
    #[error(
        "{peer} cannot be reached from {local}: a loopback address is reached only from one; have the peer open an interface on an address of the network"
    )]
    Loopback {
        /// The interface's.
        local: IpAddr,
        /// The peer's.
        peer: IpAddr,
    },
    /// The device does not find the way.
    #[error("the device finds no way to {peer}: {why}")]
    NoRoute {
        /// The peer's.
        peer: IpAddr,
        /// What the device says.
        why: String,
    },
}

/// What addresses alone say about the way between them.
pub(crate) fn check_addresses(local: IpAddr, peer: IpAddr) -> Result<(), Unreachable> {
    if local.is_ipv4() != peer.is_ipv4() {
        return Err(Unreachable::Family { local, peer });
    }
    // From a loopback address this machine's other addresses are reached.
    if peer.is_loopback() && !local.is_loopback() {
        return Err(Unreachable::Loopback { local, peer });
    }
    Ok(())
}
