use ferroce_verbs::{CompChannel, Error, Result};
use rustix::event::{Timespec, epoll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The one descriptor of an interface: completions, timers, whatever else wakes it (reports UCX 7527, 7531, 7864: timers that wake nobody, and
/// one that nobody stops).
#[derive(Debug)]
pub(crate) struct Wakeup {
    epoll: OwnedFd,
    channel: CompChannel,
    timer: OwnedFd,
    /// Set by whoever arms, taken back by the progress that drains.
    armed: AtomicBool,
}

impl Wakeup {
    /// `more` are further descriptors, drained by their owner.
    pub(crate) fn new(channel: CompChannel, more: &[BorrowedFd<'_>]) -> Result<Self> {
        let failed = |error| Error::os("creating an event descriptor", error);
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .map_err(failed)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        for fd in [channel.as_fd(), timer.as_fd()].into_iter().chain(more.iter().copied()) {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Self { epoll, channel, timer, armed: AtomicBool::new(false) })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// From now on, or at `timeout`, the descriptor may be readable: [`Self::drain`] looks.
    pub(crate) fn arm(&self, timeout: Option<Duration>) -> Result<()> {
        self.armed.store(true, Ordering::Release);
        self.set_timer(timeout.map(|timeout| timeout.max(Duration::from_nanos(1))))
    }

    /// Whether somebody may sleep.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }

    /// Has the descriptor become readable now, if somebody may sleep.
    pub(crate) fn wake(&self) -> Result<()> {
        if self.is_armed() { self.set_timer(Some(Duration::from_nanos(1))) } else { Ok(()) }
    }

    /// Takes away what made the descriptor readable; whether it was armed. Costs next to nothing unless it was.
    #[inline]
    pub(crate) fn drain(&self) -> Result<bool> {
        if !self.is_armed() || !self.armed.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        while self.channel.try_event()?.is_some() {}
        // Setting a timer takes back that it expired, too.
        self.set_timer(None)?;
        Ok(true)
    }

    fn set_timer(&self, timeout: Option<Duration>) -> Result<()> {
        let timeout = timeout.unwrap_or_default();
        let value = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)
            .map(|_| ())
            .map_err(|error| Error::os("setting the timer of an event descriptor", error))
    }
}
