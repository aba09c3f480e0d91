//! Measures the UDP link beside plain sockets, over the loopback interface.
//!
//! ```text
//! cargo run --release -p ferroce-soft --example udp_link [SECONDS]
//! cargo run --release -p ferroce-soft --example udp_link limit latency|bandwidth|rate SECONDS
//! ```
//!
//! Each row of the link stands beside the least that the kernel asks for the same work: half round trip of a
//! 24-byte packet, both ends polling; bandwidth of 4 KiB packets in batches, ICRC computed and checked; rate of
//! 24-byte packets in batches of 64. Then the same with one thread that sends and receives in turn, in processor
//! time, the best of many samples: that is to be trusted on a busy machine too. `limit` measures the sockets alone.

mod raw;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferroce_soft::link::udp::{Received, RxBuffers, UdpConfig, UdpDst, UdpPort};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// A BTH and an AETH or 8 bytes of payload.
const SMALL: usize = 20;
/// A middle packet: BTH and a full MTU.
const LARGE: usize = 12 + 4096;

fn main() {
    let seconds = |text: &String| Duration::from_secs_f64(text.parse().expect("seconds"));
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [raw::ECHO] => raw::echo(),
        ["limit", what, _] => raw::limit(what, seconds(&args[2])),
        [] => compare(Duration::from_secs(1)),
        _ => compare(seconds(&args[0])),
    }
}

fn compare(time: Duration) {
    let row = |what: &str, value: f64, unit: &str| println!("{what:<44} {value:>8.2} {unit}");
    row("half round trip, raw sockets", raw::ping_pong(time), "µs");
    row("half round trip, link", link_ping_pong(time), "µs");
    row("4 KiB packets, raw GSO and GRO", raw::stream(time, LARGE, 15) * LARGE as f64 / 1e9, "GB/s");
    row("4 KiB packets, link", link_stream(time, LARGE, 15).1, "GB/s");
    row("24-byte packets in 64s, raw GSO and GRO", raw::stream(time, SMALL, 64) / 1e6, "M/s");
    row("24-byte packets in 64s, link", link_stream(time, SMALL, 64).0 / 1e6, "M/s");
    println!("one thread, processor time:");
    for (what, len, count) in
        [("24-byte packet", SMALL, 1), ("64 24-byte packets", SMALL, 64), ("15 4 KiB packets", LARGE, 15)]
    {
        let (raw, link) = (raw::round(time, len, count), link_round(time, len, count));
        row(&format!("{what}, raw"), raw, "µs");
        row(&format!("{what}, link"), link, "µs");
    }
}

/// Processor time of `round` in µs, the best of many samples within `time`.
fn processor_time(time: Duration, mut round: impl FnMut()) -> f64 {
    const ROUNDS: u32 = 200;
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
    };
    let end = Instant::now() + time;
    let mut best = f64::INFINITY;
    while Instant::now() < end {
        let start = now();
        for _ in 0..ROUNDS {
            round();
        }
        best = best.min((now() - start) / f64::from(ROUNDS));
    }
    best
}

/// The same through the link.
fn link_round(time: Duration, len: usize, count: usize) -> f64 {
    let (a, b) = (open(), open());
    let to_b = way(&b);
    let mut batch = a.sender().batch();
    let mut bufs = RxBuffers::default();
    processor_time(time, || {
        for _ in 0..count {
            batch.reserve(&to_b, len)[..12].fill(4);
            batch.commit();
        }
        batch.flush();
        let mut seen = 0;
        b.recv(&mut bufs, 16, &mut |_| seen += 1).expect("receive");
        assert_eq!(seen, count);
    })
}

fn open() -> UdpPort {
    UdpPort::open(&UdpConfig { port: 0, ..UdpConfig::default() }).expect("open")
}

fn way(port: &UdpPort) -> UdpDst {
    UdpDst { remote: SocketAddr::new(LOCAL, port.local_port()), local: LOCAL, tos: 0, ttl: 64 }
}

fn link_ping_pong(time: Duration) -> f64 {
    let (a, b) = (open(), open());
    let (to_a, to_b) = (way(&a), way(&b));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut batch = b.sender().batch();
            let mut bufs = RxBuffers::default();
            while !stop.load(Ordering::Relaxed) {
                b.recv(&mut bufs, 16, &mut |received| {
                    if let Received::Packet { packet, .. } = received {
                        batch.reserve(&to_a, packet.len()).copy_from_slice(packet);
                        batch.commit();
                    }
                })
                .expect("recv");
                if !batch.is_empty() {
                    batch.flush();
                }
            }
        });
        let mut batch = a.sender().batch();
        let mut bufs = RxBuffers::default();
        let start = Instant::now();
        let mut rounds = 0u32;
        while start.elapsed() < time {
            batch.reserve(&to_b, SMALL).fill(4);
            batch.commit();
            batch.flush();
            let mut back = false;
            while !back {
                a.recv(&mut bufs, 16, &mut |_| back = true).expect("recv");
            }
            rounds += 1;
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        took.as_secs_f64() * 1e6 / f64::from(rounds) / 2.0
    })
}

/// Packets per second and GB/s received.
fn link_stream(time: Duration, len: usize, count: usize) -> (f64, f64) {
    let (a, b) = (open(), open());
    let to_b = way(&b);
    let stop = AtomicBool::new(false);
    let window = raw::Window::new(b.receive_buffer().expect("buffer"));
    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut batch = a.sender().batch();
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                if window.open(sent) {
                    for _ in 0..count {
                        let space = batch.reserve(&to_b, len);
                        space[..12].fill(4);
                        batch.commit();
                    }
                    batch.flush();
                    sent += (count * len) as u64;
                }
            }
        });
        let mut bufs = RxBuffers::default();
        let start = Instant::now();
        let (mut packets, mut bytes) = (0u64, 0u64);
        while start.elapsed() < time {
            b.recv(&mut bufs, 16, &mut |received| {
                if let Received::Packet { packet, .. } = received {
                    packets += 1;
                    bytes += packet.len() as u64;
                }
            })
            .expect("recv");
            window.move_to(bytes);
        }
        let took = start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        (packets as f64 / took, bytes as f64 / took / 1e9)
    });
    let (rx, tx) = (b.counters().read(), a.counters().read());
    eprintln!(
        "    sent {} in {} calls, received {} in {} datagrams and {} calls, {} bad, dropped {}",
        tx.sent_pkts,
        tx.sent_calls,
        rx.rcvd_pkts,
        rx.rcvd_datagrams,
        rx.rcvd_calls,
        rx.rx_icrc_encapsulated,
        b.receive_drops().expect("drops"),
    );
    received
}
