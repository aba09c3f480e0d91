use super::gids::Gids;
use super::groups::Groups;
use super::rx::Rx;
use super::steering;
use super::thread::LINK_PATIENCE;
use super::tx::HostTx;
use super::watched::Watched;
use crate::config::{FaultConfig, LinkMode, SoftConfig};
use crate::engine::{Engine, Nanos, PacketTx};
use crate::host::{JoinError, JoinOptions, LockError, Membership, Registry};
use crate::link::capture::Capture;
use crate::link::fault::FaultInjector;
use crate::link::shm::{InUse, ShmReceiver, ShmSender};
use crate::link::udp::{self, UdpConfig, UdpOpenError, UdpPort, UdpTx};
use ferroce_verbs::{Error, Gid};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Udp(#[from] UdpOpenError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(
        "UDP port {port} is already shared by a context that is not of the registry {}: {owner}. One network namespace has \
         one registry: give all its programs the same FERROCE_RUNTIME_DIR, or run in a network namespace of your own",
        registry.display()
    )]
    OtherRegistry { port: u16, registry: PathBuf, owner: String },
    #[error(transparent)]
    InUse(#[from] InUse),
    #[error("cannot write the capture {}: {source}", path.display())]
    Capture {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{what}: {source}")]
    Os {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
}

/// Who makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// A thread of the program, in passing.
    Poller,
    /// The driver's own thread.
    Driver,
}

/// The links of one context and what its threads share.
pub(crate) struct Port {
    /// Who opened it.
    process: u32,
    pub(super) link: LinkMode,
    pub(super) membership: Arc<Membership>,
    pub(super) shm_tx: ShmSender,
    pub(super) udp: UdpPort,
    pub(super) udp_tx: UdpTx,
    pub(super) rx: Mutex<Rx>,
    pub(crate) gids: Gids,
    pub(super) groups: Groups,
    /// Who is told of changes of addresses.
    pub(crate) watched: Watched,
    /// Faults for what goes through shared memory; UDP has its own.
    pub(super) shm_faults: Option<Mutex<FaultInjector>>,
    pub(super) capture: Option<Capture>,
    /// Neither faults nor a capture: what the fast path asks.
    pub(super) plain: bool,
    pub(super) strays: AtomicU64,
    /// Packets for which there was no way.
    pub(super) discards: AtomicU64,
    /// How often a poller found another thread at it.
    turned_away: AtomicU32,
    /// A probe came back: the account of who has which socket is right for this one.
    pub(super) confirmed: AtomicBool,
    /// Those who poll do not look at the socket: epoll has to.
    pub(super) udp_cold: AtomicBool,
    /// Epoll saw something in the socket: whoever makes the next round takes it.
    pub(super) udp_pending: AtomicBool,
    pub(crate) kick: Arc<Kick>,
    epoch: Instant,
    now: AtomicU64,
}

/// Wakes the driver's thread, when it sleeps and has to know.
pub(crate) struct Kick {
    event: OwnedFd,
    /// The thread was told and did not look yet.
    pending: AtomicBool,
    /// Until when the thread sleeps at the latest.
    until: AtomicU64,
    /// The thread only looks in now and then, as the program polls.
    ticks: AtomicBool,
    /// Rounds that the program made since it last armed a completion queue.
    streak: AtomicU32,
    pub(super) stop: AtomicBool,
}

/// Bytes of packets that wait to be written to a capture; beyond that they are counted and left out.
const CAPTURE_BUFFER: usize = 64 << 20;

/// After this many rounds without arming a completion queue the program counts as polling.
const STREAK: u32 = 64;

impl Kick {
    fn new() -> Result<Self, OpenError> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| OpenError::Os { what: "creating an eventfd", source: error.into() })?;
        Ok(Self {
            event,
            pending: AtomicBool::new(false),
            until: AtomicU64::new(0),
            ticks: AtomicBool::new(false),
            streak: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow, as it is read before the next write.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Wakes the thread if it would sleep beyond `deadline`.
    pub(crate) fn wake_at(&self, deadline: Nanos) {
        if deadline < self.until.load(Ordering::Acquire) {
            self.wake();
        }
    }

    /// Wakes the thread unless the program polls, and so will see to it.
    pub(crate) fn wake_unless_polled(&self) {
        if !self.ticks.load(Ordering::Acquire) {
            self.wake();
        }
    }

    /// Wakes the thread if nobody else will look in time whether the socket, which is full, has room again.
    #[cold]
    pub(super) fn wake_for_socket(&self, now: Nanos) {
        if !self.ticks.load(Ordering::Acquire) {
            // It says that it sleeps before it looks whether the socket is full, and this caller has found it full before it looks whether
            // the thread sleeps.
            fence(Ordering::SeqCst);
            self.wake_at(now + LINK_PATIENCE.as_nanos() as Nanos);
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// The thread is awake and looks at everything from now on.
    pub(super) fn awake(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        self.pending.store(false, Ordering::Release);
        self.until.store(0, Ordering::Release);
    }

    /// The thread sleeps until `until`; it looks at everything once more after this.
    pub(super) fn asleep(&self, until: Nanos) {
        self.until.store(until, Ordering::SeqCst);
    }

    pub(super) fn set_ticks(&self, ticks: bool) {
        self.ticks.store(ticks, Ordering::SeqCst);
    }

    pub(super) fn streak(&self) -> u32 {
        self.streak.load(Ordering::Relaxed)
    }

    pub(super) fn is_polled(&self) -> bool {
        self.streak() >= STREAK
    }

    /// The program stopped polling.
    pub(super) fn end_streak(&self) {
        self.streak.store(0, Ordering::Relaxed);
    }
}

/// Rounds in which a context that leaves passes on what came astray.
const LEAVE_ROUNDS: usize = 256;
/// How long to wait for the registry's lock.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// How long the socket of a process that was killed may outlive its slot.
const DYING: Duration = Duration::from_millis(500);

/// How long a context that is closed, or a process that ends, waits for a network interface that takes nothing.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// What is said then.
pub(super) const LATE: &str = "the network interface has not taken them in time";

/// How long to wait for the end of a copy of the socket that is to be closed.
const COPIED: Duration = Duration::from_secs(2);

/// Opens this context's socket, the last of the group that shares the port, and lets the kernel know what is for it.
fn join_port(membership: &Membership, config: &UdpConfig) -> Result<UdpPort, OpenError> {
    membership.with_admin_lock(LOCK_PATIENCE, |admin| {
        let os = |source| OpenError::Os { what: "examining the UDP socket", source };
        let udp = UdpPort::open(config)?;
        let inode = udp.inode().map_err(os)?;
        let start = Instant::now();
        loop {
            let known = admin.inodes();
            let stranger =
                udp::sockets_of(udp.local_port()).into_iter().find(|other| *other != inode && !known.contains(other));
            let Some(stranger) = stranger else { break };
            if start.elapsed() >= DYING {
                let owner = udp::holder_of(stranger).unwrap_or_else(|| "its process cannot be seen".into());
                let registry = membership.directory().into();
                return Err(OpenError::OtherRegistry { port: udp.local_port(), registry, owner });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        admin.add_socket(inode);
        steering::attach(admin, &udp);
        Ok(udp)
    })?
}

impl Port {
    pub(crate) fn open(config: &SoftConfig) -> Result<Self, OpenError> {
        let mut join = JoinOptions { directory: config.runtime_dir.clone(), ..JoinOptions::default() };
        if join.name.is_empty() {
            join.name = "ferroce".into();
        }
        let membership = Arc::new(Registry::join(&join)?);
        let capture = match &config.capture {
            Some(path) => Some(
                Capture::create(path, CAPTURE_BUFFER)
                    .map_err(|source| OpenError::Capture { path: path.clone(), source })?,
            ),
            None => None,
        };
        let plan = config.fault.as_ref().map(FaultConfig::plan);
        let udp = join_port(
            &membership,
            &UdpConfig { faults: plan.clone(), capture: capture.clone(), ..UdpConfig::default() },
        )?;
        let gids = Gids::open()?;
        let shm_tx = ShmSender::new(membership.clone())?;
        let mut receiver = ShmReceiver::new(membership.clone())?;
        if config.cma && capture.is_none() {
            receiver.allow_cma();
        }
        let rx = Mutex::new(Rx::new(receiver));
        let udp_tx = udp.sender();
        Ok(Self {
            process: std::process::id(),
            link: config.link,
            membership,
            shm_tx,
            udp,
            udp_tx,
            rx,
            gids,
            groups: Groups::default(),
            watched: Watched::default(),
            plain: plan.is_none() && capture.is_none(),
            capture,
            shm_faults: plan.map(|plan| Mutex::new(FaultInjector::new(plan))),
            strays: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            turned_away: AtomicU32::new(0),
            confirmed: AtomicBool::new(false),
            udp_cold: AtomicBool::new(true),
            udp_pending: AtomicBool::new(false),
            kick: Arc::new(Kick::new()?),
            epoch: Instant::now(),
            now: AtomicU64::new(0),
        })
    }

    pub(crate) fn slot(&self) -> u8 {
        self.membership.slot()
    }

    pub(crate) fn node_guid(&self) -> u64 {
        self.membership.node_guid()
    }

    /// Whether contexts of this machine are reached through shared memory.
    pub(crate) fn uses_shm(&self) -> bool {
        self.link != LinkMode::Udp
    }

    /// Receives what is sent to a multicast group, on every interface that has an address of its family.
    pub(crate) fn join_group(&self, gid: Gid) -> Result<(), Error> {
        self.groups.join(&self.udp, &self.gids, gid)
    }

    pub(crate) fn leave_group(&self, gid: Gid) {
        self.groups.leave(&self.udp, gid);
    }

    /// Gives the socket up while all others of the registry hold still, so that no packet for any of them is lost: what came
    /// astray is passed on, and the context whose socket takes the place of this one is told.
    ///
    /// Waits for the registry's lock. If it cannot be had the socket closes all the same, and the others find out.
    pub(super) fn leave(&self, engine: &Engine) {
        let moved = self.membership.with_admin_lock(LOCK_PATIENCE, |admin| {
            let mut rx = self.rx.lock();
            // Bounded, as the peers may go on sending.
            for _ in 0..LEAVE_ROUNDS {
                self.udp_pending.store(true, Ordering::Relaxed);
                if !rx.round(self, engine, Who::Driver) {
                    break;
                }
            }
            self.close_socket().ok().and_then(|()| admin.remove_socket())
        });
        match moved {
            Ok(Some(slot)) => self.membership.wake_peer(slot),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "leaving the RoCEv2 port without a word to the others"),
        }
    }

    /// Closes the socket, and waits until the kernel has taken it out of the group. A process that this one is just starting has a
    /// copy of it until it executes its program, and what comes to that is lost.
    fn close_socket(&self) -> std::io::Result<()> {
        let inode = self.udp.inode()?;
        self.udp.close()?;
        let start = Instant::now();
        while udp::sockets_of(self.udp.local_port()).contains(&inode) {
            if start.elapsed() >= COPIED {
                tracing::warn!(
                    "a child process holds a copy of a closed context's socket, and swallows packets for others"
                );
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let discards = self.discards.load(Ordering::Relaxed);
        let mut counters = vec![("strays", self.strays()), ("port_xmit_discards", discards)];
        counters.extend(self.udp.counters().read().named());
        if let Ok(drops) = self.udp.receive_drops() {
            counters.push(("udp_rcvd_drops", drops.into()));
        }
        counters.extend(self.rx.lock().shm.counters().named());
        if let Some(capture) = &self.capture {
            counters.push(("capture_missed", capture.missed()));
        }
        counters
    }

    /// The context is closed, and the process may end before the thread does anything more: sends what waits for room in the socket, and writes
    /// what was captured, and no more. Whose work request is complete has been told that it left, and there is nobody else who could send it
    /// (UC and UD).
    ///
    /// Blocks until the socket has taken everything, for [`SETTLE`] at most, and as the capture's file does.
    pub(crate) fn settle(&self) {
        if self.is_inherited() {
            return;
        }
        if !self.send_waiting(Instant::now() + SETTLE) {
            tracing::warn!("packets that were sent are lost: {LATE}");
        }
        if let Some(capture) = &self.capture
            && let Err(error) = capture.finish()
        {
            tracing::warn!(%error, "the capture is incomplete");
        }
    }

    /// A copy that `fork` has made: all of it is the parent's to send and to write.
    pub(super) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    /// Waits until nobody makes progress: who does has told of completions before their packets left.
    pub(super) fn await_round(&self, until: Instant) {
        drop(self.rx.try_lock_until(until));
    }

    /// Sends what waits for room in the socket; false if it has not had enough of that until `until`.
    pub(super) fn send_waiting(&self, until: Instant) -> bool {
        loop {
            self.udp_tx.batch().drain_until(until);
            if !self.udp_tx.is_blocked() {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            // Interrupted, or not: it is tried again.
            let _ = poll(&mut [PollFd::new(&self.udp.as_fd(), PollFlags::OUT)], Some(&timeout));
        }
    }

    pub(crate) fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    /// The time when somebody last looked at the clock. It is behind by as long as nobody made progress.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.now.load(Ordering::Relaxed)
    }

    /// The time.
    #[inline]
    pub(crate) fn refresh_now(&self) -> Nanos {
        let now = self.epoch.elapsed().as_nanos() as Nanos;
        self.now.store(now, Ordering::Relaxed);
        now
    }

    /// Calls `f` with a way to send; what it sends leaves before this returns.
    #[inline]
    pub(crate) fn send<R>(&self, f: impl FnOnce(&mut dyn PacketTx) -> R) -> R {
        f(&mut HostTx::new(self))
    }

    /// Whether the driver's thread relies on the program to poll.
    #[inline]
    pub(super) fn driver_ticks(&self) -> bool {
        self.kick.ticks.load(Ordering::Relaxed)
    }

    /// Makes progress in the calling thread, unless another one is at it.
    #[inline]
    pub(crate) fn progress(&self, engine: &Engine) {
        let Some(mut rx) = self.rx.try_lock() else { return self.busy() };
        rx.round(self, engine, Who::Poller);
        drop(rx);
        let streak = self.kick.streak.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.kick.streak.store(streak, Ordering::Relaxed);
        if streak == STREAK {
            self.kick.wake();
        }
    }

    /// Another thread makes progress. Lets it have the processor now and then: it may be waiting for this one's.
    #[cold]
    fn busy(&self) {
        /// Looks between two offers of the processor.
        const LOOKS: u32 = 32;
        if self.turned_away.fetch_add(1, Ordering::Relaxed) % LOOKS == LOOKS - 1 {
            std::thread::yield_now();
        }
    }

    /// The program is about to wait for a completion: the driver's thread takes over.
    pub(crate) fn armed(&self) {
        self.kick.end_streak();
        if self.driver_ticks() {
            self.kick.wake();
        }
    }
}
