use std::fmt;

/// A path MTU: the most payload bytes that one packet carries (IBTA 9.7.2, `ibv_mtu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        128 << (self as u32)
    }

    /// log2 of the size in bytes.
    pub const fn shift(self) -> u32 {
        7 + self as u32
    }

    /// The MTU of exactly `bytes` bytes.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest MTU (IBTA 3.5.2) whose packets fit a network device that carries `netdev_mtu` bytes of IP packet, with all
    /// headers. `None` if none does.
    ///
    /// Soft-RoCE's rule (`eth_mtu_int_to_enum` in the kernel's `rxe_param.h`) allows 80 bytes for headers, which an RDMA write
    /// with immediate over IPv6 exceeds; for all MTUs in use the results are the same.
    pub fn fitting(netdev_mtu: u32) -> Option<Self> {
        // Around the payload of the longest packet: IPv6 (40), UDP (8), BTH (12), RETH and immediate (20), ICRC (4).
        const HEADERS: u32 = 84;
        let room = netdev_mtu.saturating_sub(HEADERS);
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::Mtu;

    #[test]
    fn fits_what_ethernet_carries() {
        for (netdev, roce) in [
            (65_536, Some(4096)),
            (9000, Some(4096)),
            (4180, Some(4096)),
            (4179, Some(2048)),
            (2200, Some(2048)),
            (1500, Some(1024)),
            (1280, Some(1024)),
            (600, Some(512)),
            (576, Some(256)),
            (340, Some(256)),
            (339, None),
            (0, None),
            (u32::MAX, Some(4096)),
        ] {
            assert_eq!(Mtu::fitting(netdev).map(Mtu::bytes), roce, "{netdev}");
        }
        assert_eq!(Mtu::from_bytes(2048), Some(Mtu::Mtu2048));
        assert_eq!(Mtu::from_bytes(2049), None);
    }
}
