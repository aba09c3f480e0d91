use super::ending;
use super::port::{Port, Who};
use super::steering;
use crate::engine::Engine;
use ferroce_verbs::{AddressChange, EventType};
use rustix::event::Timespec;
use rustix::event::epoll;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// How often the thread looks in while the program polls.
const TICK: Duration = Duration::from_millis(1);
/// How long it waits for a link that has no room: a peer that would say when it has may have died.
pub(super) const LINK_PATIENCE: Duration = Duration::from_millis(1);
/// How long it sleeps at most, so that dead neighbours are noticed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

const WAKE: u64 = 0;
const KICK: u64 = 1;
const UDP: u64 = 2;
const ADDR: u64 = 3;
const NEIGHBOURS: u64 = 4;

struct Driver {
    port: Arc<Port>,
    engine: Arc<Engine>,
    epoll: OwnedFd,
    /// The socket is armed in epoll.
    udp_armed: bool,
    /// Somebody wants to know of neighbours.
    watches_neighbours: bool,
    steering: steering::Steering,
    last_housekeeping: u64,
}

/// Starts the thread that makes progress while nobody polls. It ends by itself after [`super::port::Kick::stop`].
pub(crate) fn start(port: Arc<Port>, engine: Arc<Engine>) -> std::io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let add = |fd, data, flags| epoll::add(&epoll, fd, epoll::EventData::new_u64(data), flags);
    add(port.membership.wake_fd(), WAKE, epoll::EventFlags::IN)?;
    add(port.kick.fd(), KICK, epoll::EventFlags::IN)?;
    add(port.udp.as_fd(), UDP, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)?;
    add(port.gids.watch_fd(), ADDR, epoll::EventFlags::IN)?;
    let steering = steering::Steering::confirm(&port, || {
        port.rx.lock().round(&port, &engine, Who::Driver);
    });
    ending::settles(&port);
    let driver =
        Driver { port, engine, epoll, udp_armed: true, watches_neighbours: false, steering, last_housekeeping: 0 };
    std::thread::Builder::new().name("ferroce".into()).spawn(move || driver.run())?;
    Ok(())
}

impl Driver {
    fn run(mut self) {
        while !self.port.kick.stop.load(Ordering::Acquire) {
            if self.port.kick.is_polled() {
                self.tick();
            } else {
                self.sleep();
            }
            self.housekeeping();
            self.watch_neighbours();
        }
        self.port.leave(&self.engine);
    }

    /// Looks at neighbours too, from the moment that somebody asks for it.
    fn watch_neighbours(&mut self) {
        if self.watches_neighbours {
            return;
        }
        if let Some(fd) = self.port.watched.fd() {
            let data = epoll::EventData::new_u64(NEIGHBOURS);
            self.watches_neighbours = epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).is_ok();
        }
    }

    /// The program polls: look in now and then.
    fn tick(&mut self) {
        self.port.kick.set_ticks(true);
        let before = self.port.kick.streak();
        let now = self.port.refresh_now();
        let cold = self.port.udp_cold.load(Ordering::Acquire);
        if cold {
            self.arm_udp();
        }
        let until = now + TICK.as_nanos() as u64;
        self.port.kick.asleep(until);
        self.wait(TICK);
        // Whoever polls sees to timers as well. To take part in it is to make it wait: with few processors, for as long as it
        // runs in the place of this thread.
        let late = self.port.refresh_now().saturating_sub(TICK.as_nanos() as u64);
        let overdue = self.engine.next_deadline().is_some_and(|deadline| deadline <= late);
        let stalled = self.port.kick.streak() == before;
        if !self.udp_armed && cold || overdue || stalled {
            self.round();
        }
        if stalled && self.port.kick.is_polled() && now + TICK.as_nanos() as u64 <= self.port.refresh_now() {
            self.port.kick.end_streak();
        }
        if !self.port.kick.is_polled() {
            self.port.kick.set_ticks(false);
        }
    }

    /// Nobody polls: make progress until there is nothing to do, then sleep until something comes.
    fn sleep(&mut self) {
        self.port.kick.set_ticks(false);
        while self.round() {
            if self.port.kick.stop.load(Ordering::Acquire) {
                return;
            }
        }
        self.arm_udp();
        let now = self.port.refresh_now();
        let mut until = now + HOUSEKEEPING.as_nanos() as u64;
        let blocked = self.port.udp_tx.is_blocked();
        if self.engine.has_ready() || blocked || self.port.shm_faults.is_some() {
            until = now + LINK_PATIENCE.as_nanos() as u64;
        }
        for deadline in [self.engine.next_deadline(), self.steering.deadline()].into_iter().flatten() {
            until = until.min(deadline.max(now));
        }
        self.port.kick.asleep(until);
        let ready = {
            let rx = self.port.rx.lock();
            !rx.shm.prepare_sleep()
        };
        // What was scheduled, or became due, before `asleep` was seen by others did not wake us.
        let due = self.engine.next_deadline().is_some_and(|deadline| deadline < until);
        fence(Ordering::SeqCst);
        let blocked_since = !blocked && self.port.udp_tx.is_blocked();
        if !(ready || due || blocked_since || self.engine.can_send_now()) {
            self.wait(Duration::from_nanos(until - now));
        }
        self.port.rx.lock().shm.cancel_sleep();
        self.port.kick.awake();
    }

    fn round(&mut self) -> bool {
        self.port.kick.awake();
        let Some(mut rx) = self.port.rx.try_lock() else {
            // Whoever holds it makes the progress.
            std::thread::yield_now();
            return false;
        };
        rx.round(&self.port, &self.engine, Who::Driver)
    }

    /// Has epoll say when something comes by UDP and, if something waits for room in the socket, when there is.
    fn arm_udp(&mut self) {
        let blocked = self.port.udp_tx.is_blocked();
        if !self.udp_armed || blocked {
            let mut flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            flags.set(epoll::EventFlags::OUT, blocked);
            let armed = epoll::modify(&self.epoll, self.port.udp.as_fd(), epoll::EventData::new_u64(UDP), flags);
            self.udp_armed = armed.is_ok();
        }
    }

    fn wait(&mut self, timeout: Duration) {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 4];
        let Ok(count) = epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) else { return };
        for event in &events[..count] {
            match event.data.u64() {
                UDP => {
                    self.udp_armed = false;
                    self.port.udp_pending.store(true, Ordering::Release);
                }
                WAKE => {
                    self.port.membership.drain_wake();
                }
                KICK => self.port.kick.awake(),
                NEIGHBOURS => self.port.watched.neighbours(),
                _ => self.addresses_changed(),
            }
        }
    }

    fn addresses_changed(&self) {
        let active = || !self.port.gids.table().is_empty();
        let before = active();
        let changes = self.port.gids.refresh();
        if changes.is_empty() {
            return;
        }
        self.port.groups.refresh(&self.port.udp, &self.port.gids);
        self.engine.sink.port(EventType::GidChange);
        for (index, gid) in changes {
            self.port.watched.tell(&AddressChange::Gid { port: 1, index, gid });
        }
        let now = active();
        if before != now {
            self.engine.sink.port(if now { EventType::PortActive } else { EventType::PortErr });
            self.port.watched.tell(&AddressChange::Port { port: 1 });
        }
    }

    fn housekeeping(&mut self) {
        let now = self.port.now();
        self.steering.run(&self.port, now);
        if now.saturating_sub(self.last_housekeeping) < HOUSEKEEPING.as_nanos() as u64 {
            return;
        }
        self.last_housekeeping = now;
        if self.port.gids.is_stale() {
            self.addresses_changed();
        }
        if self.port.membership.reap().is_ok_and(|dead| !dead.is_empty()) {
            self.steering.want();
        }
        // Who has left, and who was found dead by others, too.
        self.port.shm_tx.detach_dead();
        if let Some(mut rx) = self.port.rx.try_lock() {
            rx.shm.retire_dead();
        }
    }
}
