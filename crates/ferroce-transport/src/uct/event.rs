use super::Arm;
use super::handshake::Handshake;
use ferroce_verbs::{CompChannel, Error, Result};
use rustix::event::{Timespec, epoll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The one descriptor of an interface: completions, timers, whatever else wakes it (reports UCX 7527, 7531, 7864: timers that wake nobody, and
/// one that nobody stops).
///
/// Only [`Self::arm`] makes it unreadable. Progress does not: it may be another thread's than the one that sleeps on the descriptor, and would take its
/// event away.
#[derive(Debug)]
pub(crate) struct Wakeup {
    epoll: OwnedFd,
    channel: CompChannel,
    timer: OwnedFd,
    sleepers: Handshake<AtomicBool>,
    /// It was armed, and no progress was made since.
    slept: AtomicBool,
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
        Ok(Self { epoll, channel, timer, sleepers: Handshake::default(), slept: AtomicBool::new(false) })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Takes away what made the descriptor readable; from now on, or at `timeout`, it may be readable again. To be called before completion queues are
    /// armed, and before the look whether there is work; if there is, the descriptor is to be made readable for others who sleep on it: [`Self::rouse`].
    pub(crate) fn arm(&self, timeout: Option<Duration>) -> Result<()> {
        while self.channel.try_event()?.is_some() {}
        // Setting a timer takes back that it expired, too.
        self.set_timer(timeout.map(|timeout| timeout.max(Duration::from_nanos(1))))?;
        self.slept.store(true, Ordering::Relaxed);
        self.sleepers.arm();
        Ok(())
    }

    /// Has the descriptor become readable now, if somebody may sleep: there is something to be done, or a timer that is due earlier. To be called
    /// after what it tells of is there to be found.
    pub(crate) fn wake(&self) -> Result<()> {
        if self.sleepers.disarm() { self.set_timer(Some(Duration::from_nanos(1))) } else { Ok(()) }
    }

    /// The same, cheaper, under the lock under which sleepers arm and look.
    #[inline]
    pub(crate) fn wake_under_lock(&self) -> Result<()> {
        if self.sleepers.disarm_ordered() { self.set_timer(Some(Duration::from_nanos(1))) } else { Ok(()) }
    }

    /// The answer of an interface that was armed and has looked whether there is work. Unless all may sleep now, others who sleep already are
    /// woken: what told them was taken away by the arming.
    pub(crate) fn armed(&self, has_work: Result<bool>) -> Result<Arm> {
        if !matches!(has_work, Ok(false)) {
            self.rouse()?;
        }
        has_work.map(|busy| if busy { Arm::Busy } else { Arm::Armed })
    }

    /// Has it become readable now, and leaves it armed.
    pub(crate) fn rouse(&self) -> Result<()> {
        self.set_timer(Some(Duration::from_nanos(1)))
    }

    /// Whether somebody may sleep. To be asked under the lock under which sleepers arm.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.sleepers.is_armed()
    }

    /// Whether it was armed since the last progress: somebody may have slept, and does not know how long.
    #[inline]
    pub(crate) fn has_slept(&self) -> bool {
        self.slept.load(Ordering::Relaxed) && self.slept.swap(false, Ordering::Relaxed)
    }

    #[cold]
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
