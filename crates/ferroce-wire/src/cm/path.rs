//! A path between two ports, as REQ and LAP describe it.

use super::fields::{Reader, Writer};

/// The local identifier that RoCE, which has none, writes: the permissive one.
pub const PERMISSIVE_LID: u16 = 0xffff;

/// A path from the sender of the message ("local") to its receiver ("remote").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// LID of the sender's port; [`PERMISSIVE_LID`] on RoCE. 0 means that there is no such path.
    pub local_lid: u16,
    /// LID of the receiver's port; [`PERMISSIVE_LID`] on RoCE.
    pub remote_lid: u16,
    /// GID of the sender's port.
    pub local_gid: [u8; 16],
    /// GID of the receiver's port.
    pub remote_gid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Packet rate, a 6-bit code; 0 on RoCE.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit. More than 1 with `subnet_local` clear on RoCEv2.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// The path stays within the subnet; 0 on RoCEv2, which is routed.
    pub subnet_local: bool,
    /// How long to wait for an acknowledgement, a 5-bit exponent: see [`super::time`].
    pub local_ack_timeout: u8,
}

/// Where the last seven fields are, counted from the flow label: REQ and LAP differ.
struct Tail {
    packet_rate: usize,
    traffic_class: usize,
    hop_limit: usize,
}

/// Where the path begins and how its tail is ordered.
pub(super) struct Layout {
    at: usize,
    tail: Tail,
}

impl Layout {
    /// As in a REQ, at `at`: the rate shares the word of the flow label.
    pub(super) const fn req(at: usize) -> Self {
        let tail = Tail { packet_rate: 3, traffic_class: 4, hop_limit: 5 };
        Self { at, tail }
    }

    /// As in a LAP, at `at`: the traffic class shares the word of the flow label.
    pub(super) const fn lap(at: usize) -> Self {
        let tail = Tail { packet_rate: 5, traffic_class: 3, hop_limit: 4 };
        Self { at, tail }
    }
}

impl Path {
    pub(super) fn parse(b: Reader<'_>, layout: &Layout) -> Self {
        let (at, tail) = (layout.at, &layout.tail);
        let flow = at + 36;
        Self {
            local_lid: b.u16(at),
            remote_lid: b.u16(at + 2),
            local_gid: b.bytes(at + 4),
            remote_gid: b.bytes(at + 20),
            flow_label: b.u24(flow) >> 4,
            packet_rate: b.bits(flow + tail.packet_rate, 2, 6),
            traffic_class: b.u8(flow + tail.traffic_class),
            hop_limit: b.u8(flow + tail.hop_limit),
            sl: b.bits(flow + 6, 0, 4),
            subnet_local: b.bit(flow + 6, 4),
            local_ack_timeout: b.bits(flow + 7, 0, 5),
        }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>, layout: &Layout) {
        let (at, tail) = (layout.at, &layout.tail);
        let flow = at + 36;
        b.u16(at, self.local_lid);
        b.u16(at + 2, self.remote_lid);
        b.bytes(at + 4, self.local_gid);
        b.bytes(at + 20, self.remote_gid);
        b.u24(flow, self.flow_label << 4);
        b.bits(flow + tail.packet_rate, 2, 6, self.packet_rate);
        b.u8(flow + tail.traffic_class, self.traffic_class);
        b.u8(flow + tail.hop_limit, self.hop_limit);
        b.bits(flow + 6, 0, 4, self.sl);
        b.bit(flow + 6, 4, self.subnet_local);
        b.bits(flow + 7, 0, 5, self.local_ack_timeout);
    }
}
