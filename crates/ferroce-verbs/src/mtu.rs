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

    /// The largest MTU whose packets fit a network device that carries `netdev_mtu` bytes of IP packet.
    ///
    /// Room is left for IPv6, UDP, the longest chain of RoCE headers and the ICRC, as the kernel's rxe does
    /// (`rxe_mtu_int_to_enum`), so that both ends of a link come to the same answer.
    pub fn fitting(netdev_mtu: u32) -> Option<Self> {
        // rxe's RXE_MAX_HDR_LENGTH: what it subtracts from the netdev's MTU.
        const MAX_HEADERS: u32 = 80;
        let room = netdev_mtu.saturating_sub(MAX_HEADERS);
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
        assert_eq!(Mtu::fitting(1500), Some(Mtu::Mtu1024));
        assert_eq!(Mtu::fitting(9000), Some(Mtu::Mtu4096));
        assert_eq!(Mtu::fitting(65536), Some(Mtu::Mtu4096));
        assert_eq!(Mtu::fitting(300), None);
        assert_eq!(Mtu::from_bytes(2048), Some(Mtu::Mtu2048));
        assert_eq!(Mtu::from_bytes(2049), None);
    }
}
