//! A device that takes less than a program sends: what has no room waits, in order.

mod udp_common;

use ferroce_soft::link::udp::{Received, RxBuffers, UdpConfig, UdpPort};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;
use std::time::{Duration, Instant};
use udp_common::{config, pattern, to};

/// Packets of 1 KiB: many times what the send buffer holds.
const PACKETS: usize = 1500;

/// Makes the loopback device as slow as a line of 20 Mbit/s.
fn slow_loopback() {
    let tc = Command::new("tc")
        .args("qdisc add dev lo root tbf rate 20mbit burst 64kb limit 64mb".split(' '))
        .output()
        .expect("tc, from the package iproute2");
    assert!(tc.status.success(), "{}", String::from_utf8_lossy(&tc.stderr));
}

/// Keeps the thread, and the timer by which the slow device goes on, on one processor: what two take out of the device at a time the kernel
/// may take in in another order.
fn stay_on_one_processor() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).unwrap();
}

#[test]
fn nothing_is_lost_for_want_of_room_in_the_socket() {
    ferroce_testing::isolate();
    stay_on_one_processor();
    slow_loopback();
    let (a, b) = (UdpConfig { socket_buffer: 64 << 10, ..config() }, config());
    let (a, b) = (UdpPort::open(&a).unwrap(), UdpPort::open(&b).unwrap());
    let tx = a.sender();
    let dst = to(IpAddr::V6(Ipv6Addr::LOCALHOST), &b);
    let mut bufs = RxBuffers::default();
    let mut got = Vec::new();
    let (mut sent, mut blocked) = (0, 0);
    let give_up = Instant::now() + Duration::from_secs(60);
    while got.len() + (b.receive_drops().unwrap() as usize) < PACKETS {
        assert!(Instant::now() < give_up, "{} of {PACKETS} packets came", got.len());
        let mut batch = tx.batch();
        let turn = if tx.is_blocked() {
            blocked += 1;
            batch.drain();
            // Those who cannot wait go to the end of the queue.
            usize::from(blocked % 16 == 0)
        } else {
            // A turn of a queue pair, which it finishes though the socket may fill up meanwhile.
            64
        };
        if turn != 0 && sent < PACKETS {
            let end = PACKETS.min(sent + turn);
            for seed in sent..end {
                batch.reserve(&dst, 1024).copy_from_slice(&pattern(seed, 1024));
                batch.commit();
            }
            sent = end;
            assert_eq!(batch.flush().lost(), 0);
        }
        let mut take = |received: Received<'_>| {
            if let Received::Packet { packet, .. } = received {
                got.push(packet.to_vec());
            }
        };
        b.recv(&mut bufs, 16, &mut take).unwrap();
    }
    assert!(blocked > 0, "the socket was never full");
    assert!(!tx.is_blocked());
    let statistics = a.counters().read();
    assert_eq!((statistics.sent_pkts, statistics.tx_would_block), (PACKETS as u64, 0));
    assert!(statistics.tx_waited > 0);
    // A receiver that did not run loses packets, and that is its own affair; what came is in order.
    let seeds: Vec<usize> =
        got.iter().map(|packet| u32::from_be_bytes(packet[8..12].try_into().unwrap()) as usize).collect();
    assert!(seeds.is_sorted_by(|before, after| before < after), "{seeds:?}");
    assert!(seeds.iter().zip(&got).all(|(&seed, packet)| *packet == pattern(seed, 1024)));
}
