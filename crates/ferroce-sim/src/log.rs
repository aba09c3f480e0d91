//! Events of a run as text.

use ferroce_soft::memory::{TraceEvent, TraceKind};
use ferroce_wire::{Ext, Headers, Packet};

/// One line that says what happened to which packet.
#[must_use]
pub fn line(event: &TraceEvent<'_>) -> String {
    let head = format!("{:>14.3} us {:10}", event.at.as_nanos() as f64 / 1000.0, format!("{:?}", event.kind));
    if event.kind == TraceKind::Timer {
        return format!("{head} {}", event.dst);
    }
    let place = format!("{} > {}", event.src, event.dst);
    if event.kind == TraceKind::Rejected {
        // Its headers may be damaged: a piece of an address, which differs from run to run, looks like something else.
        return format!("{head} {place} {} bytes", event.packet.len());
    }
    let body = event.packet.len().checked_sub(4).map(|len| &event.packet[..len]);
    match body.map(Packet::parse) {
        Some(Ok(packet)) => format!("{head} {place} {}", describe(&packet.headers, packet.payload.len())),
        _ => format!("{head} {place} {} bytes that do not parse", event.packet.len()),
    }
}

fn describe(headers: &Headers, payload: usize) -> String {
    let bth = headers.bth;
    let ext = match headers.ext {
        Ext::None => String::new(),
        Ext::Reth(reth) | Ext::RethImm(reth, _) => format!(" of {} bytes", reth.len),
        Ext::Imm(imm) => format!(" imm {imm:#x}"),
        Ext::Inv(rkey) => format!(" inv {rkey:#x}"),
        Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => format!(" {:?} msn {}", aeth.syndrome, aeth.msn),
        Ext::Atomic(_) => String::new(),
        Ext::Deth(deth) | Ext::DethImm(deth, _) => format!(" from {:#08x}", deth.src_qpn),
    };
    let ask = if bth.ack_request { " ack?" } else { "" };
    format!("{:#08x} psn {:#08x} {}{ext}, {payload} bytes{ask}", bth.dest_qpn, bth.psn, bth.opcode.name())
}
