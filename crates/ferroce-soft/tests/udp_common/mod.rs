//! What the tests of the UDP link share.
#![allow(dead_code, unreachable_pub, reason = "not every test needs all of it")]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ferroce_soft::link::udp::{Received, RxBuffers, UdpConfig, UdpDst, UdpPort};

/// A packet as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub src: SocketAddr,
    pub dst: IpAddr,
    pub tos: u8,
    pub ttl: u8,
    pub bytes: Vec<u8>,
}

/// A port of its own, whatever the kernel has to spare.
pub fn ephemeral() -> UdpPort {
    UdpPort::open(&config()).expect("open")
}

pub fn config() -> UdpConfig {
    UdpConfig { port: 0, ..UdpConfig::default() }
}

/// The way to `port` at `ip` of this host.
pub fn to(ip: IpAddr, port: &UdpPort) -> UdpDst {
    UdpDst { remote: SocketAddr::new(ip, port.local_port()), local: ip, tos: 0, ttl: 0 }
}

/// A packet of `len` bytes that no other `seed` gives. The opcode is not that of a probe.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..len).map(|i| (seed.wrapping_mul(0x9e37_79b1) >> 7).wrapping_add(i * 31) as u8).collect();
    bytes[0] = 4;
    bytes[5] = 0;
    bytes[8..12].copy_from_slice(&(seed as u32).to_be_bytes());
    bytes
}

/// Receives until `count` packets came or nothing came for a long time.
pub fn receive(port: &UdpPort, count: usize) -> Vec<Packet> {
    let mut bufs = RxBuffers::default();
    let mut packets = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(10);
    while packets.len() < count && Instant::now() < deadline {
        let seen = port
            .recv(&mut bufs, 16, &mut |received| {
                if let Received::Packet { src, dst, tos, ttl, packet, .. } = received {
                    packets.push(Packet { src, dst, tos, ttl, bytes: packet.to_vec() });
                }
            })
            .expect("recv");
        if seen == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    packets
}

/// Receives whatever is waiting now.
pub fn drain(port: &UdpPort) -> Vec<Packet> {
    let mut bufs = RxBuffers::default();
    let mut packets = Vec::new();
    loop {
        let seen = port
            .recv(&mut bufs, 16, &mut |received| {
                if let Received::Packet { src, dst, tos, ttl, packet, .. } = received {
                    packets.push(Packet { src, dst, tos, ttl, bytes: packet.to_vec() });
                }
            })
            .expect("recv");
        if seen == 0 {
            return packets;
        }
    }
}
