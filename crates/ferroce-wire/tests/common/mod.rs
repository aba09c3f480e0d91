//! Packets for the tests: every opcode, with fields that differ from each other and from zero.

// Each test binary uses a part of it.
#![allow(dead_code, unreachable_pub)]

pub mod pcap;

use ferroce_wire::{
    Aeth, AtomicEth, Bth, Deth, Ext, Flow, Headers, ICRC_LEN, IpPair, Opcode, ROCE_UDP_PORT, Reth, Syndrome, icrc,
    pad_len,
};

/// A small generator (splitmix64) for tests that need many reproducible bits.
pub struct Bits(pub u64);

impl Bits {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.word() as u8).collect()
    }
}

/// The extension headers that `opcode` calls for, told from its `has_*` answers.
pub fn ext(opcode: Opcode, bits: &mut Bits) -> Ext {
    let reth = Reth { va: bits.word(), rkey: bits.word() as u32, len: bits.word() as u32 };
    let aeth = Aeth { syndrome: Syndrome::from_u8(bits.word() as u8), msn: bits.word() as u32 >> 8 };
    let deth = Deth { qkey: bits.word() as u32, src_qpn: bits.word() as u32 >> 8 };
    let imm = bits.word() as u32;
    if opcode.has_reth() {
        if opcode.has_imm() { Ext::RethImm(reth, imm) } else { Ext::Reth(reth) }
    } else if opcode.has_atomic_eth() {
        Ext::Atomic(AtomicEth {
            va: bits.word(),
            rkey: bits.word() as u32,
            swap_or_add: bits.word(),
            compare: bits.word(),
        })
    } else if opcode.has_atomic_ack_eth() {
        Ext::AtomicAck(aeth, bits.word())
    } else if opcode.has_aeth() {
        Ext::Aeth(aeth)
    } else if opcode.has_deth() {
        if opcode.has_imm() { Ext::DethImm(deth, imm) } else { Ext::Deth(deth) }
    } else if opcode.has_inv() {
        Ext::Inv(imm)
    } else if opcode.has_imm() {
        Ext::Imm(imm)
    } else {
        Ext::None
    }
}

/// Random headers for `opcode` before `payload_len` bytes.
pub fn headers(opcode: Opcode, payload_len: usize, bits: &mut Bits) -> Headers {
    let flags = bits.word();
    Headers {
        bth: Bth {
            opcode,
            solicited: flags & 1 != 0,
            migrated: flags & 2 != 0,
            pad: pad_len(payload_len),
            pkey: bits.word() as u16,
            dest_qpn: bits.word() as u32 >> 8,
            ack_request: flags & 4 != 0,
            psn: bits.word() as u32 >> 8,
        },
        ext: ext(opcode, bits),
    }
}

/// Headers, payload and pad as one packet without ICRC.
pub fn packet(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; headers.len()];
    assert_eq!(headers.emit(&mut out), out.len());
    out.extend_from_slice(payload);
    out.resize(out.len() + usize::from(pad_len(payload.len())), 0);
    out
}

/// `packet` with its ICRC behind it.
pub fn seal(flow: &Flow, ip_id: u16, packet: &[u8]) -> Vec<u8> {
    let mut out = packet.to_vec();
    out.extend_from_slice(&icrc(flow, ip_id, packet).to_le_bytes());
    assert_eq!(out.len(), packet.len() + ICRC_LEN);
    out
}

pub fn flow_v4() -> Flow {
    Flow {
        ip: IpPair::V4 { src: [192, 0, 2, 1].into(), dst: [192, 0, 2, 2].into() },
        src_port: 0xc123,
        dst_port: ROCE_UDP_PORT,
    }
}

pub fn flow_v6() -> Flow {
    Flow {
        ip: IpPair::V6 { src: "2001:db8::1".parse().unwrap(), dst: "2001:db8:0:7::2".parse().unwrap() },
        src_port: 0xc123,
        dst_port: ROCE_UDP_PORT,
    }
}
