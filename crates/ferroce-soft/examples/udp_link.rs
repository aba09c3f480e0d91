//! Measures the UDP link beside plain sockets, over the loopback interface.
//!
//! ```text
//! cargo run --release -p ferroce-soft --example udp_link [SECONDS]
//! ```
//!
//! Each row of the link stands beside the least that the kernel asks for the same work: half round trip of a
//! 24-byte packet, both ends polling; bandwidth of 4 KiB packets in batches, ICRC computed and checked; rate of
//! 24-byte packets in batches of 64. Then the same with one thread that sends and receives in turn, in processor
//! time, the best of many samples: that is to be trusted on a busy machine too.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferroce_soft::link::udp::{Received, RxBuffers, UdpConfig, UdpDst, UdpPort};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// A BTH and an AETH or 8 bytes of payload.
const SMALL: usize = 20;
/// A middle packet: BTH and a full MTU.
const LARGE: usize = 12 + 4096;

fn main() {
    let seconds = std::env::args().nth(1).map_or(1.0, |s| s.parse().expect("seconds"));
    let time = Duration::from_secs_f64(seconds);
    let row = |what: &str, value: f64, unit: &str| println!("{what:<44} {value:>8.2} {unit}");
    row("half round trip, raw sockets", raw_ping_pong(time), "µs");
    row("half round trip, link", link_ping_pong(time), "µs");
    row("4 KiB packets, raw GSO and GRO", raw_stream(time, LARGE + 4, 15), "GB/s");
    row("4 KiB packets, link", link_stream(time, LARGE, 15).1, "GB/s");
    let raw = raw_stream(time, SMALL + 4, 64) * 1e3 / (SMALL + 4) as f64;
    row("24-byte packets in 64s, raw GSO and GRO", raw, "M/s");
    row("24-byte packets in 64s, link", link_stream(time, SMALL, 64).0 / 1e6, "M/s");
    println!("one thread, processor time:");
    for (what, len, count) in
        [("24-byte packet", SMALL, 1), ("64 24-byte packets", SMALL, 64), ("15 4 KiB packets", LARGE, 15)]
    {
        let (raw, link) = (raw_round(time, len + 4, count), link_round(time, len, count));
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

/// Sending and receiving a batch of `count` packets, plain sockets.
fn raw_round(time: Duration, len: usize, count: usize) -> f64 {
    let (a, b) = (raw_socket(), raw_socket());
    if count > 1 {
        set_udp(&a, UDP_SEGMENT, len as libc::c_int);
        set_udp(&b, UDP_GRO, 1);
    }
    let to_b = b.local_addr().expect("addr");
    let payload = vec![4; len * count];
    let mut buf = vec![0; 65_536];
    processor_time(time, || {
        a.send_to(&payload, to_b).expect("send");
        let (n, _) = b.recv_from(&mut buf).expect("receive");
        assert_eq!(n, payload.len());
    })
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

fn raw_socket() -> UdpSocket {
    let socket = UdpSocket::bind((LOCAL, 0)).expect("bind");
    socket.set_nonblocking(true).expect("nonblocking");
    let s = socket2::SockRef::from(&socket);
    s.set_recv_buffer_size(16 << 20).expect("buffer");
    s.set_send_buffer_size(16 << 20).expect("buffer");
    socket
}

fn raw_ping_pong(time: Duration) -> f64 {
    let (a, b) = (raw_socket(), raw_socket());
    let (to_a, to_b) = (a.local_addr().expect("addr"), b.local_addr().expect("addr"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buf = [0; 64];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((n, _)) = b.recv_from(&mut buf) {
                    b.send_to(&buf[..n], to_a).expect("send");
                }
            }
        });
        let mut buf = [0; 64];
        let start = Instant::now();
        let mut rounds = 0u32;
        while start.elapsed() < time {
            a.send_to(&[4; SMALL + 4], to_b).expect("send");
            while a.recv_from(&mut buf).is_err() {}
            rounds += 1;
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        took.as_secs_f64() * 1e6 / f64::from(rounds) / 2.0
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

const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

fn set_udp(socket: &UdpSocket, name: libc::c_int, value: libc::c_int) {
    // SAFETY: the option value is a live c_int and its size is what is said.
    let result = unsafe {
        let size = size_of_val(&value) as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, name, (&raw const value).cast(), size)
    };
    assert_eq!(result, 0);
}

/// GB/s received. The receiver tells the sender how far it is, so that little is lost.
fn raw_stream(time: Duration, len: usize, batch: usize) -> f64 {
    let (a, b) = (raw_socket(), raw_socket());
    set_udp(&a, UDP_SEGMENT, len as libc::c_int);
    set_udp(&b, UDP_GRO, 1);
    let to_b = b.local_addr().expect("addr");
    let payload = vec![4; len * batch];
    let stop = AtomicBool::new(false);
    let window = Window::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                if window.open(sent) {
                    sent += a.send_to(&payload, to_b).unwrap_or(0) as u64;
                }
            }
        });
        let mut buf = vec![0; 65_536];
        let start = Instant::now();
        let mut received = 0;
        while start.elapsed() < time {
            if let Ok((n, _)) = b.recv_from(&mut buf) {
                received += n as u64;
                window.move_to(received);
            }
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        received as f64 / took.as_secs_f64() / 1e9
    })
}

/// Packets per second and GB/s received.
fn link_stream(time: Duration, len: usize, count: usize) -> (f64, f64) {
    let (a, b) = (open(), open());
    let to_b = way(&b);
    let stop = AtomicBool::new(false);
    let window = Window::default();
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

/// How far the receiver is: a stand-in for the acknowledgements of the protocol above.
#[derive(Default)]
struct Window(std::sync::atomic::AtomicU64);

impl Window {
    /// Bytes that may be under way.
    const SIZE: u64 = 512 * 1024;

    fn open(&self, sent: u64) -> bool {
        sent < self.0.load(Ordering::Relaxed) + Self::SIZE
    }

    fn move_to(&self, received: u64) {
        self.0.store(received, Ordering::Relaxed);
    }
}
