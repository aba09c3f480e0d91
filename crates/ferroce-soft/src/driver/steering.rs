use super::port::Port;
use crate::host::Membership;
use crate::link::udp::{UdpPort, steering_program};
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
}

/// At most one round of probes in about this time.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long a context that opens waits for its own probe.
const ANSWER: Duration = Duration::from_millis(5);
/// Sockets beyond those accounted for that probes look for: of processes that are just being killed.
const BEYOND: u16 = 4;

/// Attaches the program for the sockets as they are accounted for now.
pub(super) fn attach(membership: &Membership, udp: &UdpPort) {
    loop {
        let steering = membership.steering();
        if let Err(error) = udp.attach_steering(&steering_program(&membership.sockets())) {
            tracing::debug!(%error, "packets are not steered, but passed on");
            return;
        }
        // Another context may have attached what is newer before this one attached what is older.
        if membership.steered(steering) {
            return;
        }
    }
}

/// Takes in a probe.
#[cold]
pub(super) fn probed(port: &Port, index: u16, mark: u64) {
    if port.membership.probed(index, mark) {
        port.confirmed.store(true, Ordering::Release);
        if port.membership.wants_steering() {
            attach(&port.membership, &port.udp);
        }
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
        Self { wanted, strays: port.strays(), due: 0 }
    }

    /// Somebody was killed.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// When [`Steering::run`] has something to do, if it has.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.wanted.then_some(self.due)
    }

    /// Takes the next step if it is time.
    pub(super) fn run(&mut self, port: &Port, now: u64) {
        let membership = &port.membership;
        if membership.wants_steering() {
            attach(membership, &port.udp);
        }
        let strays = port.strays();
        self.wanted |= strays != self.strays;
        self.strays = strays;
        if !self.wanted || now < self.due {
            return;
        }
        self.wanted = false;
        self.due = now + INTERVAL.as_nanos() as u64 + u64::from(rand::random::<u16>()) * 1000;
        // Whatever the others believe: somebody may have been killed between attaching and saying so.
        attach(membership, &port.udp);
        let mark = membership.probe_mark();
        for index in 0..membership.sockets().len() as u16 + BEYOND {
            let _ = port.udp.send_probe(index, mark);
        }
    }
}
