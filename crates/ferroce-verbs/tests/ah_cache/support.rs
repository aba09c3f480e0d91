//! A clock that stands still, resolvers that take as long as a test says, and a way to wait for a future.

use ferroce_verbs::ah_cache::{AhResolver, Clock, Resolution};
use ferroce_verbs::{Ah, AhAttr, Pd, Result};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// Stands still until it is told otherwise.
#[derive(Clone, Default)]
pub(crate) struct StillClock(Arc<ClockState>);

#[derive(Default)]
struct ClockState {
    now: AtomicU64,
    reads: AtomicUsize,
}

impl StillClock {
    pub(crate) fn advance(&self, time: Duration) {
        self.0.now.fetch_add(time.as_nanos() as u64, SeqCst);
    }

    /// How often it was looked at.
    pub(crate) fn reads(&self) -> usize {
        self.0.reads.load(SeqCst)
    }
}

impl Clock for StillClock {
    fn now(&self) -> u64 {
        self.0.reads.fetch_add(1, SeqCst);
        self.0.now.load(SeqCst)
    }
}

/// That clock, which when read in the cheap way goes in steps.
pub(crate) struct Steps(pub(crate) StillClock, pub(crate) Duration);

impl Clock for Steps {
    fn now(&self) -> u64 {
        self.0.now()
    }

    fn coarse(&self) -> u64 {
        let now = self.0.now();
        now - now % self.1.as_nanos() as u64
    }

    fn coarseness(&self) -> Duration {
        self.1
    }
}

/// Takes three seconds of the clock for each address, without blocking anybody.
#[derive(Clone)]
pub(crate) struct ThreeSeconds {
    clock: StillClock,
    waiting: Arc<Mutex<Vec<(u64, Resolution)>>>,
    begun: Arc<AtomicUsize>,
}

impl ThreeSeconds {
    pub(crate) fn new(clock: &StillClock) -> Self {
        Self { clock: clock.clone(), waiting: Arc::default(), begun: Arc::default() }
    }

    /// How many it has begun.
    pub(crate) fn begun(&self) -> usize {
        self.begun.load(SeqCst)
    }

    /// Ends those whose time has come.
    pub(crate) fn progress(&self) {
        let now = self.clock.now();
        let due: Vec<_> = self.waiting.lock().unwrap().extract_if(.., |(due, _)| *due <= now).collect();
        for (_, resolution) in due {
            let ah = resolution.pd().create_ah(resolution.attr());
            resolution.finish(ah);
        }
    }

    /// Forgets what it was asked for.
    pub(crate) fn give_up(&self) {
        self.waiting.lock().unwrap().clear();
    }
}

impl AhResolver for ThreeSeconds {
    fn resolve(&self, _: &Pd, _: &AhAttr) -> Result<Ah> {
        unreachable!("this one does not block")
    }

    fn start(&self, resolution: Resolution) {
        self.begun.fetch_add(1, SeqCst);
        self.waiting.lock().unwrap().push((self.clock.now() + 3_000_000_000, resolution));
    }
}

/// Blocks for one address until it is let go; all others take no time.
#[derive(Clone)]
pub(crate) struct Stuck(Arc<StuckState>);

struct StuckState {
    address: AhAttr,
    is_open: Mutex<bool>,
    opened: Condvar,
    inside: AtomicUsize,
    begun: AtomicUsize,
}

impl Stuck {
    pub(crate) fn on(address: AhAttr) -> Self {
        Self(Arc::new(StuckState {
            address,
            is_open: Mutex::new(false),
            opened: Condvar::new(),
            inside: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn let_go(&self) {
        *self.0.is_open.lock().unwrap() = true;
        self.0.opened.notify_all();
    }

    /// Waits until somebody is stuck.
    pub(crate) fn wait_until_inside(&self) {
        while self.0.inside.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
    }

    /// How often the address was to be resolved.
    pub(crate) fn begun(&self) -> usize {
        self.0.begun.load(SeqCst)
    }
}

impl AhResolver for Stuck {
    fn resolve(&self, pd: &Pd, attr: &AhAttr) -> Result<Ah> {
        if *attr != self.0.address {
            return pd.create_ah(attr);
        }
        self.0.begun.fetch_add(1, SeqCst);
        // As with a real one, what comes out is as old as the beginning.
        let ah = pd.create_ah(attr);
        self.0.inside.fetch_add(1, SeqCst);
        let mut is_open = self.0.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.0.opened.wait(is_open).unwrap();
        }
        self.0.inside.fetch_sub(1, SeqCst);
        ah
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future in this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
