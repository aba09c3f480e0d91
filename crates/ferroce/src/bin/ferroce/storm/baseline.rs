//! The same churn over kernel TCP sockets: an event thread that sees connections come about, IO threads that exchange one message
//! each way and close, the same queues between them, and as many connections at a time.

use super::inbox::{Inbox, LOOKS};
use super::message::{LEN, Way, message, serial_of};
use super::plan::Plan;
use super::score::Score;
use super::trouble::Troubles;
use crate::failure::{Failure, Result};
use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::Instant;

/// Ports that the server listens at: the kernel remembers closed connections for a minute, and one port has no more than some 28 000
/// of them.
const PORTS: usize = 8;
/// Events that are taken at a time.
const BATCH: usize = 32;
/// The bell of an inbox, among the numbers of connections and listeners.
const BELL: u64 = u64::MAX;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

fn os(what: &str) -> impl FnOnce(Errno) -> Failure {
    move |error| Failure::environment(format!("kernel TCP: {what}: {}", io::Error::from(error)))
}

/// A connection's socket.
struct Sock {
    fd: OwnedFd,
    serial: u64,
    begun: Instant,
    buffer: [u8; LEN],
    filled: usize,
}

impl Sock {
    fn new(fd: OwnedFd, serial: u64) -> Self {
        Self { fd, serial, begun: Instant::now(), buffer: [0; LEN], filled: 0 }
    }

    /// Reads what there is; whether the message is complete.
    fn read(&mut self) -> Result<bool, String> {
        match rustix::io::read(&self.fd, &mut self.buffer[self.filled..]) {
            Ok(0) => Err("the peer closed it".into()),
            Ok(read) => {
                self.filled += read;
                Ok(self.filled == LEN)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(io::Error::from(error).to_string()),
        }
    }

    fn send(&self, way: Way) -> Result<(), String> {
        // An empty socket has room for it.
        match rustix::io::write(&self.fd, &message(self.serial, way)) {
            Ok(LEN) => Ok(()),
            Ok(_) => Err("a part of the message was sent".into()),
            Err(error) => Err(io::Error::from(error).to_string()),
        }
    }

    fn check(&self, way: Way) -> Result<(), String> {
        let serial = serial_of(&self.buffer);
        let right = self.buffer == message(serial, way) && (way == Way::ToServer || serial == self.serial);
        if right { Ok(()) } else { Err(format!("a message that says it is of {serial} is damaged")) }
    }
}

/// A thread's epoll and its queue.
struct Poller<T> {
    inbox: Inbox<T>,
    epoll: OwnedFd,
}

impl<T> Poller<T> {
    fn new() -> Result<Self> {
        let poller = Self {
            inbox: Inbox::new()?,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("making an epoll"))?,
        };
        poller.add(poller.inbox.bell(), BELL, epoll::EventFlags::IN).map_err(os("watching an eventfd"))?;
        Ok(poller)
    }

    fn add(&self, fd: impl AsFd, data: u64, flags: epoll::EventFlags) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(data), flags)
    }

    /// Waits for events, unless there is work; those of the bell are left out.
    fn wait(&self, mut ready: impl FnMut(u64)) {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; BATCH];
        let mut look = |timeout: Option<&Timespec>| epoll::wait(&self.epoll, &mut events[..], timeout).unwrap_or(0);
        let mut count = look(Some(&NOW));
        for _ in 0..LOOKS {
            if count != 0 || !self.inbox.is_empty() {
                break;
            }
            std::thread::yield_now();
            count = look(Some(&NOW));
        }
        if count == 0 {
            count = look(if self.inbox.going_to_sleep() { None } else { Some(&NOW) });
        }
        let events = events[..count].iter().map(|event| event.data.u64());
        self.inbox.awake(events.clone().any(|data| data == BELL));
        events.filter(|data| *data != BELL).for_each(&mut ready);
    }
}

/// What the ends have in common.
pub(super) struct Ends {
    events: Poller<()>,
    lanes: Vec<Poller<Sock>>,
    pub(super) troubles: Troubles,
    exchanged: AtomicU64,
    stopping: AtomicBool,
}

impl Ends {
    fn new(plan: &Plan) -> Result<Self> {
        Ok(Self {
            events: Poller::new()?,
            lanes: (0..plan.io_threads).map(|_| Poller::new()).collect::<Result<_>>()?,
            troubles: Troubles::default(),
            exchanged: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        })
    }

    pub(super) fn exchanged(&self) -> u64 {
        self.exchanged.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.events.inbox.ring();
        for lane in &self.lanes {
            lane.inbox.ring();
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// An IO thread: `open` is done with what it is handed, `ready` with what has something to read; it returns whether the
    /// connection is over.
    fn io_thread(
        &self,
        lane: usize,
        open: impl Fn(&Sock) -> Result<(), String>,
        ready: impl Fn(&mut Sock) -> Result<bool, String>,
        closed: impl Fn(),
    ) {
        let lane = &self.lanes[lane];
        let mut socks: HashMap<u64, Sock> = HashMap::new();
        let mut handed = Vec::new();
        let mut number = 0;
        while !self.is_stopping() {
            lane.inbox.take(&mut handed);
            for sock in handed.drain(..) {
                let watched = open(&sock).and_then(|()| {
                    number += 1;
                    lane.add(&sock.fd, number, epoll::EventFlags::IN)
                        .map_err(|error| io::Error::from(error).to_string())
                });
                match watched {
                    Ok(()) => {
                        socks.insert(number, sock);
                    }
                    Err(why) => {
                        self.troubles.note(format!("kernel TCP: connection {}: {why}", sock.serial));
                        drop(sock);
                        closed();
                    }
                }
            }
            lane.wait(|number| {
                let Some(sock) = socks.get_mut(&number) else { return };
                let outcome = ready(sock);
                if let Err(why) = &outcome {
                    self.troubles.note(format!("kernel TCP: connection {}: {why}", sock.serial));
                }
                if !matches!(outcome, Ok(false)) {
                    socks.remove(&number);
                    closed();
                }
            });
        }
    }
}

pub(super) struct TcpServer {
    pub(super) ends: Ends,
    listeners: Vec<TcpListener>,
}

impl TcpServer {
    pub(super) fn new(plan: &Plan, local: IpAddr) -> Result<Self> {
        let ends = Ends::new(plan)?;
        let listeners: Vec<TcpListener> = (0..PORTS)
            .map(|_| {
                TcpListener::bind((local, 0)).and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            })
            .collect::<io::Result<_>>()
            .map_err(|error| Failure::environment(format!("kernel TCP: listening: {error}")))?;
        for (number, listener) in listeners.iter().enumerate() {
            // As many may wait as RDMA requests.
            rustix::net::listen(listener, 1024).map_err(os("listening"))?;
            ends.events.add(listener, number as u64, epoll::EventFlags::IN).map_err(os("watching a listener"))?;
        }
        Ok(Self { ends, listeners })
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    pub(super) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        scope.spawn(|| self.accept());
        for lane in 0..self.ends.lanes.len() {
            scope.spawn(move || {
                self.ends.io_thread(lane, |_| Ok(()), |sock| self.serve(sock), || {});
            });
        }
    }

    fn accept(&self) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let mut next = 0;
        while !self.ends.is_stopping() {
            self.ends.events.wait(|listener| {
                loop {
                    match rustix::net::accept_with(&self.listeners[listener as usize], flags) {
                        Ok(fd) => {
                            self.ends.lanes[next].inbox.push(Sock::new(fd, 0));
                            next = (next + 1) % self.ends.lanes.len();
                        }
                        Err(Errno::AGAIN) => return,
                        Err(Errno::INTR | Errno::CONNABORTED) => {}
                        Err(error) => {
                            self.ends.troubles.note(format!("kernel TCP: accepting: {}", io::Error::from(error)));
                            return;
                        }
                    }
                }
            });
        }
    }

    fn serve(&self, sock: &mut Sock) -> Result<bool, String> {
        if !sock.read()? {
            return Ok(false);
        }
        sock.check(Way::ToServer)?;
        sock.serial = serial_of(&sock.buffer);
        sock.send(Way::ToClient)?;
        self.ends.exchanged.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}

pub(super) struct TcpClient {
    pub(super) ends: Ends,
    pub(super) score: Score,
    peers: Vec<SocketAddr>,
    /// Connections that are being set up.
    connecting: Mutex<HashMap<u64, Sock>>,
}

impl TcpClient {
    pub(super) fn new(plan: &Plan, peers: Vec<SocketAddr>) -> Result<Self> {
        if peers.is_empty() {
            return Err(Failure::run("the server named no address for kernel TCP"));
        }
        let score = Score::new(plan.connections, 0);
        Ok(Self { ends: Ends::new(plan)?, score, peers, connecting: Mutex::default() })
    }

    pub(super) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        scope.spawn(|| self.established());
        for lane in 0..self.ends.lanes.len() {
            scope.spawn(move || {
                let closed = || self.ended();
                self.ends.io_thread(lane, |sock| sock.send(Way::ToServer), |sock| self.answered(sock), closed);
            });
        }
    }

    /// Begins the next connection, if there is to be one.
    pub(super) fn begin(&self) {
        while let Some(serial) = self.score.start() {
            match self.begin_one(serial) {
                Ok(()) => return,
                Err(error) => {
                    self.trouble(error);
                    self.score.ended();
                }
            }
        }
    }

    fn begin_one(&self, serial: u64) -> rustix::io::Result<()> {
        let begun = Instant::now();
        let peer = self.peers[(serial % self.peers.len() as u64) as usize];
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match rustix::net::connect(&fd, &peer) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        // Locked until it is watched, so that the event finds it.
        let mut connecting = self.connecting.lock();
        self.ends.events.add(&fd, serial, epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT)?;
        connecting.insert(serial, Sock { begun, ..Sock::new(fd, serial) });
        Ok(())
    }

    /// A connection did not come about.
    fn trouble(&self, error: Errno) {
        if self.ends.troubles.note(format!("kernel TCP: connecting: {}", io::Error::from(error))) {
            self.score.give_up();
        }
    }

    /// The event thread.
    fn established(&self) {
        while !self.ends.is_stopping() {
            self.ends.events.wait(|serial| {
                let Some(sock) = self.connecting.lock().remove(&serial) else { return };
                match sockopt::socket_error(&sock.fd) {
                    Ok(Ok(())) => {
                        self.score.established(sock.begun.elapsed());
                        let lane = (serial % self.ends.lanes.len() as u64) as usize;
                        self.ends.lanes[lane].inbox.push(sock);
                    }
                    Ok(Err(error)) | Err(error) => {
                        self.trouble(error);
                        self.ended();
                    }
                }
            });
        }
    }

    fn answered(&self, sock: &mut Sock) -> Result<bool, String> {
        if !sock.read()? {
            return Ok(false);
        }
        sock.check(Way::ToClient)?;
        self.ends.exchanged.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn ended(&self) {
        self.score.ended();
        self.begin();
    }
}
