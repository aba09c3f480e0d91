//! Packets that nobody on the network sent.

use super::engine::{AREA_LEN, QKEY, World};
use super::input::Input;
use ferroce_soft::memory::TraceEvent;
use ferroce_wire::{Bth, Ext, Headers, ICRC_LEN, MAX_HEADERS_LEN, Opcode, Packet, pad_len, psn_add};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::PoisonError;

/// What was sent so far, as a hostile neighbour would know it.
#[derive(Default)]
pub(super) struct Seen {
    /// The last PSN to each queue pair, of requests and of responses.
    psns: HashMap<(IpAddr, u32, bool), u32>,
    /// The last packets.
    packets: Vec<(IpAddr, IpAddr, Vec<u8>)>,
    next: usize,
}

const REMEMBERED: usize = 16;

fn is_response(opcode: Opcode) -> bool {
    opcode.has_aeth() || opcode == Opcode::RcReadResponseMiddle
}

impl Seen {
    pub(super) fn note(&mut self, event: &TraceEvent<'_>) {
        let body = &event.packet[..event.packet.len().saturating_sub(ICRC_LEN)];
        let Ok(packet) = Packet::parse(body) else { return };
        let bth = packet.headers.bth;
        self.psns.insert((event.dst, bth.dest_qpn, is_response(bth.opcode)), bth.psn);
        let entry = (event.src, event.dst, body.to_vec());
        match self.packets.get_mut(self.next) {
            Some(old) => *old = entry,
            None => self.packets.push(entry),
        }
        self.next = (self.next + 1) % REMEMBERED;
    }
}

impl World {
    /// The addresses of an injected packet, and the host that gets it.
    fn route(&self, input: &mut Input<'_>) -> (IpAddr, IpAddr, usize) {
        let choice = input.u8();
        let to = usize::from(choice & 1);
        let src = match choice >> 1 & 7 {
            0 => IpAddr::from([10, 0, 0, 99]),
            1 => self.hosts[to].ip,
            _ => self.hosts[1 - to].ip,
        };
        (src, self.hosts[to].ip, to)
    }

    /// Any bytes, with a right ICRC or as they are.
    pub(super) fn inject_bytes(&self, input: &mut Input<'_>) {
        let (src, dst, _) = self.route(input);
        let len = input.u8();
        let packet = input.bytes(usize::from(len & 0x7f));
        if len & 0x80 == 0 {
            self.network.inject(src, dst, packet);
        } else {
            self.network.inject_raw(src, dst, packet.to_vec());
        }
    }

    /// A packet that was sent, once more, with a few bytes changed.
    pub(super) fn inject_again(&self, input: &mut Input<'_>) {
        let (which, changes) = (usize::from(input.u8()), input.u8() % 4);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = which.checked_rem(seen.packets.len()) else { return };
        let (src, dst, mut packet) = seen.packets[at].clone();
        drop(seen);
        for _ in 0..changes {
            let (at, with) = (usize::from(input.u8()), input.u8());
            if let Some(byte) = packet.get_mut(at) {
                *byte ^= with;
            }
        }
        self.network.inject(src, dst, &packet);
    }

    /// A packet that makes some sense.
    pub(super) fn inject_built(&self, input: &mut Input<'_>) {
        let (src, dst, to) = self.route(input);
        let opcode = input.pick(Opcode::ALL);
        let mut flag = input.flags();
        let qps = &self.hosts[to].qps;
        let index = usize::from(input.u8());
        let dest_qpn = if flag() && flag() { input.u32() } else { qps[index % qps.len()].qp_num() };
        let psn = if flag() && flag() {
            input.u32()
        } else {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            // Before anything was sent, a queue pair expects what `connect` says.
            let first = 0xff_ffef + (1 - to) as u32;
            let last = seen.psns.get(&(dst, dest_qpn, is_response(opcode))).copied().unwrap_or(first);
            // 1 is the next one.
            psn_add(last, i32::from(input.u8() as i8).rem_euclid(1 << 24) as u32)
        };
        let payload_len = if opcode.has_payload() || flag() {
            match input.u8() {
                0 => 0,
                1..0x60 => self.mtu.bytes() as usize,
                0x60..0x70 => usize::from(input.u16()) % 5000,
                len => usize::from(len & 0x3f),
            }
        } else {
            0
        };
        let pad = if flag() && flag() { input.u8() } else { pad_len(payload_len) };
        let bth = Bth { opcode, dest_qpn, psn, pad, ack_request: flag(), ..Bth::default() };
        let mut packet = vec![0; MAX_HEADERS_LEN];
        let ext_at = Headers { bth, ext: Ext::None }.emit(&mut packet);
        packet.truncate(opcode.headers_len());
        self.extension(input, to, &mut packet[ext_at..]);
        let fill = input.u8();
        packet.resize(opcode.headers_len() + payload_len + usize::from(pad & 3), fill);
        self.network.inject(src, dst, &packet);
    }

    fn extension(&self, input: &mut Input<'_>, to: usize, out: &mut [u8]) {
        match out.len() {
            // RETH and AtomicETH begin with the remote memory.
            16.. => {
                let (addr, key) = self.memory(input, to);
                let words = input.u16();
                let len = if words & 0x8000 == 0 { u32::from(words) % (AREA_LEN as u32 + 64) } else { input.u32() };
                out[..8].copy_from_slice(&addr.to_be_bytes());
                out[8..12].copy_from_slice(&key.to_be_bytes());
                out[12..16].copy_from_slice(&len.to_be_bytes());
                let rest = input.bytes(out.len() - 16);
                out[16..16 + rest.len()].copy_from_slice(rest);
            }
            // DETH, or the acknowledgement of an atomic.
            8.. => {
                let rest = input.bytes(out.len());
                out[..rest.len()].copy_from_slice(rest);
                if out[0] & 1 == 0 {
                    out[..4].copy_from_slice(&QKEY.to_be_bytes());
                }
            }
            _ => {
                let rest = input.bytes(out.len());
                out[..rest.len()].copy_from_slice(rest);
                // Half of what could be an rkey to invalidate is one.
                if out.first().is_some_and(|byte| byte & 1 != 0) {
                    out.copy_from_slice(&self.hosts[to].areas[0].key().to_be_bytes());
                }
            }
        }
    }
}
