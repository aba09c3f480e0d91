//! Plain sockets doing the same work and nothing else: the least that the kernel asks for.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{LARGE, LOCAL, SMALL, processor_time};

/// The ICRC, which the link adds and plain sockets must be given.
const ICRC: usize = 4;

/// The argument that makes this program the other end of a ping-pong.
pub(crate) const ECHO: &str = "echo";

/// How long the other end waits for more.
const IDLE: Duration = Duration::from_secs(5);

/// `udp_link limit WHAT SECONDS`: one figure, as JSON.
pub(crate) fn limit(what: &str, time: Duration) {
    let (value, unit) = match what {
        "latency" => (ping_pong(time), "us"),
        "bandwidth" => (stream(time, LARGE, 15) * LARGE as f64 / 1e9, "GB/s"),
        "rate" => (stream(time, SMALL, 64) / 1e6, "M/s"),
        _ => panic!("there is no limit {what:?}: it is one of latency, bandwidth, rate"),
    };
    println!("{{\"what\":\"{what}\",\"value\":{value},\"unit\":\"{unit}\"}}");
}

/// Sending and receiving a batch of `count` packets: processor time in µs.
pub(crate) fn round(time: Duration, len: usize, count: usize) -> f64 {
    let (a, b) = (socket(), socket());
    let len = len + ICRC;
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

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((LOCAL, 0)).expect("bind");
    socket.set_nonblocking(true).expect("nonblocking");
    let s = socket2::SockRef::from(&socket);
    s.set_recv_buffer_size(16 << 20).expect("buffer");
    s.set_send_buffer_size(16 << 20).expect("buffer");
    socket
}

/// Half a round trip between two processes in µs, the median. Both poll.
pub(crate) fn ping_pong(time: Duration) -> f64 {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program).arg(ECHO).stdout(Stdio::piped()).spawn().expect("the other end");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("its address");
    let to: SocketAddr = line.trim().parse().expect("its address");
    let socket = socket();
    let mut buf = [0; 64];
    let mut took = Vec::with_capacity(1 << 20);
    let start = Instant::now();
    let mut last = start;
    while last - start < time {
        socket.send_to(&[4; SMALL + ICRC], to).expect("send");
        while socket.recv_from(&mut buf).is_err() {
            assert!(last.elapsed() < IDLE, "the other end does not answer");
        }
        let now = Instant::now();
        took.push((now - last).as_nanos() as u64);
        last = now;
    }
    child.kill().expect("kill");
    child.wait().expect("wait");
    took.sort_unstable();
    took[took.len() / 2] as f64 / 1e3 / 2.0
}

/// The other end: sends back what comes until nothing comes any more.
pub(crate) fn echo() {
    let socket = socket();
    println!("{}", socket.local_addr().expect("addr"));
    let mut buf = [0; 64];
    let (mut last, mut empty) = (Instant::now(), 0u32);
    loop {
        match socket.recv_from(&mut buf) {
            Ok((n, from)) => {
                socket.send_to(&buf[..n], from).expect("send");
                empty = 0;
            }
            Err(_) => {
                empty = empty.wrapping_add(1);
                if empty == 1 {
                    last = Instant::now();
                } else if empty.is_multiple_of(1 << 16) && last.elapsed() > IDLE {
                    return;
                }
            }
        }
    }
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

/// Packets of `len` bytes received per second, sent `count` in a call.
pub(crate) fn stream(time: Duration, len: usize, count: usize) -> f64 {
    let len = len + ICRC;
    let (a, b) = (socket(), socket());
    set_udp(&a, UDP_SEGMENT, len as libc::c_int);
    set_udp(&b, UDP_GRO, 1);
    let to_b = b.local_addr().expect("addr");
    let payload = vec![4; len * count];
    let stop = AtomicBool::new(false);
    let window = Window::new(socket2::SockRef::from(&b).recv_buffer_size().expect("buffer"));
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
        received as f64 / len as f64 / took.as_secs_f64()
    })
}

/// How far the receiver is: a stand-in for the acknowledgements of a protocol.
pub(crate) struct Window {
    received: AtomicU64,
    /// Bytes that may be under way.
    size: u64,
}

impl Window {
    /// For a receive buffer of that many bytes, of which the kernel counts several for a byte of a small packet: nothing
    /// must be lost, as nothing is sent again.
    pub(crate) fn new(receive_buffer: usize) -> Self {
        Self { received: AtomicU64::new(0), size: (receive_buffer as u64 / 4).min(512 * 1024) }
    }

    pub(crate) fn open(&self, sent: u64) -> bool {
        sent < self.received.load(Ordering::Relaxed) + self.size
    }

    pub(crate) fn move_to(&self, received: u64) {
        self.received.store(received, Ordering::Relaxed);
    }
}
