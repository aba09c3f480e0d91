//! The message that each connection carries each way.

/// Its length in bytes.
pub(super) const LEN: usize = 64;

/// Which way it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToServer = 0x5a,
    ToClient = 0xa5,
}

/// The message of connection `serial`: no byte is that of another connection's, or of the other way, by more than chance.
pub(super) fn message(serial: u64, way: Way) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let mut state = serial ^ u64::from(way as u8) << 56;
    for (at, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        // The finalizer of splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        chunk.copy_from_slice(&if at == 0 { serial } else { word }.to_be_bytes());
    }
    bytes
}

/// The connection that a message says it is of.
pub(super) fn serial_of(bytes: &[u8; LEN]) -> u64 {
    let mut serial = [0; 8];
    serial.copy_from_slice(&bytes[..8]);
    u64::from_be_bytes(serial)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_differ() {
        let some = message(7, Way::ToServer);
        assert_eq!(serial_of(&some), 7);
        assert_eq!(some, message(7, Way::ToServer));
        assert_ne!(some, message(7, Way::ToClient));
        assert_ne!(some[8..], message(8, Way::ToServer)[8..]);
    }
}
