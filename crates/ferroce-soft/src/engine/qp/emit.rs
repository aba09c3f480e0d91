use super::Cx;
use crate::engine::tx::{PacketTx, To};
use ferroce_wire::{Bth, Ext, Headers, Opcode, pad_len};

/// What became of a packet that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emitted {
    /// It is in the link.
    Yes,
    /// The link has no room at the moment.
    LinkFull,
    /// Its payload could not be read.
    Unreadable,
}

/// The header fields of a packet that are not its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) opcode: Opcode,
    pub(super) psn: u32,
    pub(super) ack_request: bool,
    pub(super) solicited: bool,
    pub(super) ext: Ext,
}

impl Header {
    pub(super) fn new(opcode: Opcode, psn: u32, ext: Ext) -> Self {
        Self { opcode, psn, ack_request: false, solicited: false, ext }
    }

    /// The headers of a packet to `to` with `pad` bytes of pad.
    #[inline]
    pub(super) fn to_packet(self, to: &To<'_>, pad: u8) -> Headers {
        let bth = Bth {
            opcode: self.opcode,
            solicited: self.solicited,
            pad,
            dest_qpn: to.dest_qpn,
            ack_request: self.ack_request,
            psn: self.psn,
            ..Bth::default()
        };
        Headers { bth, ext: self.ext }
    }
}

/// Builds one packet of `len` payload bytes, which `fill` writes, straight into the link.
#[inline]
pub(super) fn emit(
    tx: &mut dyn PacketTx,
    to: To<'_>,
    header: Header,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> bool,
) -> Emitted {
    let pad = pad_len(len);
    let headers = header.to_packet(&to, pad);
    let at = headers.len();
    let end = at + len;
    let Some(out) = tx.reserve(&to, end + usize::from(pad)) else { return Emitted::LinkFull };
    headers.emit(out);
    if len != 0 && !fill(&mut out[at..end]) {
        return Emitted::Unreadable;
    }
    out[end..].fill(0);
    tx.commit();
    Emitted::Yes
}

/// Sends a packet without payload to the connected peer.
pub(super) fn emit_bare(cx: &Cx<'_>, tx: &mut dyn PacketTx, header: Header) -> Emitted {
    match cx.conn.peer() {
        Some(to) => emit(tx, to, header, 0, |_| true),
        // A queue pair without an address has nothing to answer; it cannot have received anything either.
        None => Emitted::Yes,
    }
}
