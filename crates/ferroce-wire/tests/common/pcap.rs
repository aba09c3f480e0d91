//! Reads the capture of a kernel in `tests/data`.

use ferroce_wire::{Flow, FrameMeta, GRH_LEN, IpPair};

/// One frame, taken apart as far as Ethernet, IP and UDP go.
pub struct Frame {
    pub bytes: Vec<u8>,
    pub flow: Flow,
    pub meta: FrameMeta,
    /// The IP header as a datagram receive shows it.
    pub grh: [u8; GRH_LEN],
    /// BTH to ICRC.
    pub packet_with_icrc: Vec<u8>,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

fn frame(bytes: &[u8]) -> Frame {
    let mut grh = [0; GRH_LEN];
    let (ip, ttl, tos, ip_id, udp) = match word(bytes, 12) {
        0x0800 => {
            grh[20..].copy_from_slice(&bytes[14..34]);
            let src = array::<4>(bytes, 26).into();
            let dst = array::<4>(bytes, 30).into();
            let ip = IpPair::V4 { src, dst };
            (ip, bytes[22], bytes[15], word(bytes, 18), 34)
        }
        0x86dd => {
            grh.copy_from_slice(&bytes[14..54]);
            let src = array::<16>(bytes, 22).into();
            let dst = array::<16>(bytes, 38).into();
            let tos = bytes[14] << 4 | bytes[15] >> 4;
            (IpPair::V6 { src, dst }, bytes[21], tos, 0, 54)
        }
        ethertype => panic!("EtherType {ethertype:#x}"),
    };
    Frame {
        bytes: bytes.to_vec(),
        flow: Flow { ip, src_port: word(bytes, udp), dst_port: word(bytes, udp + 2) },
        meta: FrameMeta { src_mac: array(bytes, 6), dst_mac: array(bytes, 0), ttl, tos, ip_id },
        grh,
        packet_with_icrc: bytes[udp + 8..].to_vec(),
    }
}

/// The frames of `tests/data/linux-6.1-rxe.pcap`; its README says what they are.
pub fn kernel() -> Vec<Frame> {
    let file: &[u8] = include_bytes!("../data/linux-6.1-rxe.pcap");
    let (header, mut rest) = file.split_at(24);
    assert_eq!(header[..4], [0xd4, 0xc3, 0xb2, 0xa1], "little-endian pcap");
    let mut frames = Vec::new();
    while let Some((record, after)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes(array(record, 8)) as usize;
        frames.push(frame(&after[..len]));
        rest = &after[len..];
    }
    assert_eq!((frames.len(), rest.len()), (56, 0));
    frames
}
