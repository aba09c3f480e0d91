use crate::Gid;
use std::net::{IpAddr, Ipv4Addr};

/// What an address handle's packets have on the link layer (Ethernet).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkLayer {
    /// The kernel's index of the network device that they leave by.
    pub ifindex: u32,
    /// The neighbour that they go to: the peer itself, or a router. Of [`Self::UNKNOWN`] the
    /// unspecified address.
    pub next_hop: IpAddr,
    /// The neighbour's MAC, as resolved when the handle was made; `None` if the device leaves it to the kernel to find one
    /// for each packet.
    pub mac: Option<[u8; 6]>,
}

impl LinkLayer {
    /// Where the device could not find out how its packets leave, although they leave by Ethernet: whatever neighbour changes may be
    /// the one that they go to.
    pub const UNKNOWN: Self = Self { ifindex: 0, next_hop: IpAddr::V4(Ipv4Addr::UNSPECIFIED), mac: None };

    /// Whether it is [`Self::UNKNOWN`].
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.next_hop.is_unspecified()
    }
}

/// Something changed that resolved addresses depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressChange {
    /// A neighbour has another MAC, or none any more.
    Neighbour {
        /// The kernel's index of the network device that the neighbour is on.
        ifindex: u32,
        /// The neighbour.
        ip: IpAddr,
        /// Its MAC from now on; `None` if it is unknown or the neighbour does not answer.
        mac: Option<[u8; 6]>,
    },
    /// An entry of a GID table came, went, or belongs to a network device that changed.
    Gid {
        /// The port, from 1.
        port: u8,
        /// Index of the entry.
        index: u32,
        /// The GID that came, went or is there.
        gid: Gid,
    },
    /// A port went down or came up, or something else about all that it sends is different.
    Port {
        /// The port, from 1.
        port: u8,
    },
    /// The way to the addresses of a prefix is another: by another router, another network device, or none.
    Route {
        /// The addresses that begin like this one.
        prefix: IpAddr,
        /// How many bits of it count.
        prefix_len: u8,
    },
    /// Changes were missed, as there were too many at once: anything may be different.
    Unknown,
}

/// Learns of changes of addresses: see [`crate::provider::ContextOps::watch_addresses`].
pub trait AddressWatcher: Send + Sync {
    /// Something changed. Called from a thread of the device, in the order in which things happened; it must not block.
    fn changed(&self, change: &AddressChange);
}
