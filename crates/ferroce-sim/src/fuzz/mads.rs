//! Management datagrams that nobody on the network sent.

use super::connections::{World, ip};
use super::input::Input;
use ferroce_soft::memory::TraceEvent;
use ferroce_wire::cm::CM_CLASS;
use ferroce_wire::{
    Bth, Deth, Ext, GSI_QKEY, GSI_QPN, Headers, ICRC_LEN, MAD_HEADER_LEN, MAD_LEN, MAX_HEADERS_LEN, Opcode,
};
use std::net::IpAddr;
use std::sync::PoisonError;

const REMEMBERED: usize = 16;

/// The last datagrams, as a hostile neighbour would know them.
#[derive(Default)]
pub(super) struct Seen {
    mads: Vec<(IpAddr, IpAddr, [u8; MAD_LEN])>,
    next: usize,
}

impl Seen {
    pub(super) fn note(&mut self, event: &TraceEvent<'_>) {
        let body = &event.packet[..event.packet.len().saturating_sub(ICRC_LEN)];
        let Some(mad) = body.last_chunk::<MAD_LEN>().filter(|_| body.get(5..8) == Some(&[0, 0, 1])) else { return };
        let entry = (event.src, event.dst, *mad);
        match self.mads.get_mut(self.next) {
            Some(old) => *old = entry,
            None => self.mads.push(entry),
        }
        self.next = (self.next + 1) % REMEMBERED;
    }
}

/// The packet that carries a datagram to queue pair 1.
pub(super) fn packet(mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let bth = Bth { opcode: Opcode::UdSendOnly, dest_qpn: GSI_QPN, ..Bth::default() };
    let ext = Ext::Deth(Deth { qkey: GSI_QKEY, src_qpn: GSI_QPN });
    let mut packet = vec![0; MAX_HEADERS_LEN];
    let len = Headers { bth, ext }.emit(&mut packet);
    packet.truncate(len);
    packet.extend_from_slice(mad);
    packet
}

/// The addresses of an injected datagram: from the other host, a stranger, or the host itself.
fn route(input: &mut Input<'_>) -> (IpAddr, IpAddr) {
    let choice = input.u8();
    let to = usize::from(choice & 1);
    let src = match choice >> 1 & 7 {
        0 => IpAddr::from([10, 0, 0, 99]),
        1 => ip(to),
        _ => ip(1 - to),
    };
    (src, ip(to))
}

impl World {
    /// Any message.
    pub(super) fn inject_any(&self, input: &mut Input<'_>) {
        let (src, dst) = route(input);
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&[1, CM_CLASS, 2, 3]);
        mad[17] = 0x0f + input.u8() % 13;
        let len = body_len(input);
        let body = input.bytes(len);
        let at = if body.len() > MAD_LEN - MAD_HEADER_LEN { 0 } else { MAD_HEADER_LEN };
        mad[at..at + body.len()].copy_from_slice(body);
        self.inject(src, dst, &mad);
    }

    /// A message that was sent, once more, with a few bytes changed, perhaps from somebody else.
    pub(super) fn inject_again(&self, input: &mut Input<'_>) {
        let (which, changes) = (usize::from(input.u8()), input.u8());
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = which.checked_rem(seen.mads.len()) else { return };
        let (mut src, dst, mut mad) = seen.mads[at];
        drop(seen);
        if changes & 0x80 != 0 {
            src = IpAddr::from([10, 0, 0, 99]);
        }
        for _ in 0..changes % 4 {
            let (at, with) = (usize::from(input.u8()), input.u8());
            mad[at] ^= with;
        }
        self.inject(src, dst, &mad);
    }

    /// A message whose ids are those of one that was sent, in the direction that suits it.
    pub(super) fn inject_built(&self, input: &mut Input<'_>) {
        let (which, back) = (usize::from(input.u8()), input.u8() & 1 != 0);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = which.checked_rem(seen.mads.len()) else { return };
        let (src, dst, old) = seen.mads[at];
        drop(seen);
        let (src, dst) = if back { (dst, src) } else { (src, dst) };
        let mut mad = old;
        mad[17] = 0x10 + input.u8() % 11;
        let field = |at: usize| old[MAD_HEADER_LEN + at..MAD_HEADER_LEN + at + 4].to_vec();
        let ids = if back { [field(4), field(0)] } else { [field(0), field(4)] };
        for (at, id) in [(0, &ids[0]), (4, &ids[1])] {
            mad[MAD_HEADER_LEN + at..MAD_HEADER_LEN + at + 4].copy_from_slice(id);
        }
        if matches!(mad[17], 0x10 | 0x17) {
            mad[MAD_HEADER_LEN + 8..MAD_HEADER_LEN + 16].copy_from_slice(&Self::service(input).to_be_bytes());
        }
        let mut flags = input.flags();
        if flags() {
            // Another request.
            mad[8..16].copy_from_slice(&input.u64().to_be_bytes());
        }
        if flags() {
            let body = input.bytes(4);
            mad[MAD_HEADER_LEN..MAD_HEADER_LEN + body.len()].copy_from_slice(body);
        }
        for _ in 0..input.u8() % 4 {
            let (at, with) = (usize::from(input.u8()), input.u8());
            mad[at] = with;
        }
        self.inject(src, dst, &mad);
    }
}

/// Mostly a message's body, now and then a whole message.
fn body_len(input: &mut Input<'_>) -> usize {
    match usize::from(input.u8()) {
        255 => MAD_LEN,
        len => len.min(MAD_LEN - MAD_HEADER_LEN),
    }
}
