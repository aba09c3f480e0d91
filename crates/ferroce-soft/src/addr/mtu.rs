//! The RoCE MTU of an interface.

/// Bytes around the payload of the longest packet: IPv6 (40), UDP (8), BTH (12), RETH and immediate (20), ICRC (4).
pub const ROCE_OVERHEAD: u32 = 84;

/// The active MTU of a RoCE port, in bytes of payload, on an interface that carries IP packets of `netdev_mtu` bytes: the
/// largest of 256, 512, 1024, 2048 and 4096 (IBTA 3.5.2) that fits with all headers. `None` if none does.
///
/// Soft-RoCE's rule (`eth_mtu_int_to_enum` in the kernel's `rxe_param.h`) allows 80 bytes for headers, which an RDMA write with
/// immediate over IPv6 exceeds; for all MTUs in use the results are the same.
#[must_use]
pub fn ib_mtu(netdev_mtu: u32) -> Option<u16> {
    let room = netdev_mtu.checked_sub(ROCE_OVERHEAD)?;
    [4096, 2048, 1024, 512, 256].into_iter().find(|&mtu| u32::from(mtu) <= room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_interfaces() {
        for (netdev, roce) in [
            (65_536, Some(4096)),
            (9000, Some(4096)),
            (4200, Some(4096)),
            (4180, Some(4096)),
            (4179, Some(2048)),
            (2200, Some(2048)),
            (1500, Some(1024)),
            (1400, Some(1024)),
            (1280, Some(1024)),
            (600, Some(512)),
            (576, Some(256)),
            (340, Some(256)),
            (339, None),
            (0, None),
            (u32::MAX, Some(4096)),
        ] {
            assert_eq!(ib_mtu(netdev), roce, "{netdev}");
        }
    }
}
