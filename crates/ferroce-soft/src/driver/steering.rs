use super::port::Port;
use crate::host::{Admin, LockError};
use crate::link::udp::{UdpPort, sockets_of, steering_program};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Sees to it that the kernel knows which context each packet to the shared port is for.
///
/// All contexts of one user hold a socket of one group, and the registry accounts for who has which. The kernel asks a small
/// program for the index of the socket in the group: whoever joins, or learns that the account has changed, attaches the
/// program that follows from it. After a process was killed the account may be wrong. Then, and whenever something comes
/// that is for others, probes are sent, one to each index, and whoever gets one corrects the account. Until then packets
/// come to some context of the group, which passes them on.
#[derive(Debug)]
pub(super) struct Steering {
    wanted: bool,
    strays: u64,
    due: u64,
    /// When to try again what failed because somebody had the registry's lock.
    retry: Option<u64>,
}

/// At most one round of probes in about this time.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long to let somebody else have the registry's lock.
const PAUSE: Duration = Duration::from_millis(1);
/// How long a context that opens waits for its own probe.
const ANSWER: Duration = Duration::from_millis(5);

/// Attaches the program for the sockets as they are accounted for now. Under the registry's lock, so that nobody puts what is
/// older in the place of what is newer.
pub(super) fn attach(admin: &Admin<'_>, udp: &UdpPort) {
    let membership = admin.membership();
    loop {
        let steering = membership.steering();
        if let Err(error) = udp.attach_steering(&steering_program(&membership.sockets())) {
            tracing::debug!(%error, "packets are not steered, but passed on");
            return;
        }
        // A probe may have corrected the account meanwhile: that takes no lock.
        if membership.steered(steering) {
            return;
        }
    }
}

/// Attaches the program unless somebody has the registry's lock just now, or it cannot be had at all.
fn try_attach(port: &Port) -> Result<(), LockError> {
    port.membership.with_admin_lock(Duration::ZERO, |admin| attach(admin, &port.udp))
}

/// Takes in a probe.
#[cold]
pub(super) fn probed(port: &Port, index: u16, mark: u64) {
    // For an index that no socket has the kernel chooses by hash, and the probe says nothing of where it came to. That happens
    // when a socket closes while probes are under way.
    if usize::from(index) >= group_size(port) {
        return;
    }
    if port.membership.probed(index, mark) {
        port.confirmed.store(true, Ordering::Release);
        if port.membership.wants_steering() && try_attach(port).is_err() {
            // The thread does it.
            port.kick.wake();
        }
    }
}

/// How many sockets share the port, those of processes that are just being killed included. Reads `/proc`; if that does not
/// tell, as many as are accounted for.
fn group_size(port: &Port) -> usize {
    match sockets_of(port.udp.local_port()).len() {
        0 => port.membership.sockets().len(),
        size => size,
    }
}

impl Steering {
    /// Asks the kernel whether the account of this context's socket is right, before there is any queue pair. `receive` looks
    /// at the socket.
    pub(super) fn confirm(port: &Port, mut receive: impl FnMut()) -> Self {
        let own = port.membership.sockets().into_iter().find(|(slot, _)| *slot == port.membership.slot());
        if let Some((_, index)) = own {
            let _ = port.udp.send_probe(index, port.membership.probe_mark());
        }
        let patience = port.refresh_now() + ANSWER.as_nanos() as u64;
        while !port.confirmed.load(Ordering::Acquire) && port.refresh_now() < patience {
            receive();
        }
        let wanted = port.membership.found_dead() || !port.confirmed.load(Ordering::Acquire);
        Self { wanted, strays: port.strays(), due: 0, retry: None }
    }

    /// Somebody was killed.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// When [`Steering::run`] has something to do, if it has.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.retry.or(self.wanted.then_some(self.due))
    }

    /// Takes the next step if it is time.
    pub(super) fn run(&mut self, port: &Port, now: u64) {
        let membership = &port.membership;
        let strays = port.strays();
        self.wanted |= strays != self.strays;
        self.strays = strays;
        let probes = self.wanted && now >= self.due;
        self.retry = None;
        // Before probing it is attached whatever is believed: somebody may have been killed between attaching and saying so.
        if !probes && !membership.wants_steering() {
            return;
        }
        if let Err(error) = try_attach(port) {
            let pause = if matches!(error, LockError::Busy { .. }) { PAUSE } else { INTERVAL };
            self.retry = Some(now + pause.as_nanos() as u64);
            return;
        }
        if probes {
            self.wanted = false;
            self.due = now + INTERVAL.as_nanos() as u64 + u64::from(rand::random::<u16>()) * 1000;
            let mark = membership.probe_mark();
            for index in 0..group_size(port) as u16 {
                let _ = port.udp.send_probe(index, mark);
            }
        }
    }
}
