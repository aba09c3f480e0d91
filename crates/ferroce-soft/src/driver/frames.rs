//! Packets that go through shared memory as a capture shows them: on the wire that they would have taken.

use super::tx::{TAG_BARE, parse_prefix, prefix_of};
use crate::engine::{Engine, To};
use crate::link::capture::{Capture, CaptureMeta, Direction};
use ferroce_wire::{Flow, FlowIcrc, IpPair, ROCE_UDP_PORT};
use std::net::{IpAddr, Ipv4Addr};

/// The addresses of a packet.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) tos: u8,
    pub(super) ttl: u8,
}

impl Path {
    /// That of a packet to be sent.
    pub(super) fn to(to: &To<'_>) -> Self {
        Self { src: to.av.local, dst: to.av.remote, tos: to.av.tos, ttl: to.av.ttl }
    }

    /// That of a frame that came: what the frame says, else what its queue pair was told.
    fn of(engine: &Engine, tag: u32, frame: &[u8]) -> Self {
        if tag != TAG_BARE {
            return parse_prefix(frame);
        }
        match engine.av_of(frame) {
            Some(av) => Self { src: av.remote, dst: av.local, tos: av.tos, ttl: av.ttl },
            None => {
                let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                Self { src: nobody, dst: nobody, tos: 0, ttl: 0 }
            }
        }
    }
}

/// Records a packet that is sent.
pub(super) fn sent(capture: &Capture, path: Path, packet: &[u8]) {
    record(capture, Direction::Tx, path, packet);
}

/// Records a frame that came, unless it is too short to be one.
pub(super) fn received(capture: &Capture, engine: &Engine, tag: u32, frame: &[u8]) {
    let prefix = prefix_of(tag);
    if frame.len() > prefix {
        record(capture, Direction::Rx, Path::of(engine, tag, frame), &frame[prefix..]);
    }
}

fn record(capture: &Capture, direction: Direction, path: Path, packet: &[u8]) {
    let Some(ip) = IpPair::new(path.src, path.dst) else { return };
    let flow = Flow { ip, src_port: ROCE_UDP_PORT, dst_port: ROCE_UDP_PORT };
    let icrc = FlowIcrc::new(&flow).icrc(0, packet);
    let meta = CaptureMeta { direction, tos: path.tos, ttl: path.ttl, ip_id: 0 };
    capture.record(&flow, &meta, &[packet, &icrc.to_le_bytes()].concat());
}
