use super::port::Port;
use crate::link::udp::steering_program;
use std::time::Duration;

/// Teaches the kernel which context each packet to the shared port is for.
///
/// All contexts of one user hold a socket of one group. The kernel asks a small program for the index of the socket in the
/// group, which only probing tells: see [`crate::link::udp`]. Until it is known, and whenever it is wrong, packets come
/// to some context of the group, which passes them on. So whoever joins calibrates, and whoever finds that others have
/// died, or gets what is not its own.
#[derive(Debug)]
pub(super) struct Steering {
    wanted: bool,
    strays: u64,
    due: u64,
    probed: bool,
}

/// At most one calibration in about this time.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long the others have to receive their probes.
const ANSWER: Duration = Duration::from_millis(5);

impl Steering {
    pub(super) fn new() -> Self {
        Self { wanted: true, strays: 0, due: 0, probed: false }
    }

    /// Calibrates before the context has any queue pair, so that nothing for it goes astray. `receive` looks at the socket.
    pub(super) fn calibrate(&mut self, port: &Port, mut receive: impl FnMut()) {
        self.run(port, port.refresh_now());
        let patience = port.refresh_now() + ANSWER.as_nanos() as u64;
        while index_of(port, port.membership.slot()).is_none() && port.refresh_now() < patience {
            receive();
        }
        self.due = 0;
        self.run(port, port.refresh_now());
    }

    /// Something changed.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// When [`Steering::run`] has something to do, if it has.
    pub(super) fn deadline(&self) -> Option<u64> {
        (self.wanted || self.probed).then_some(self.due)
    }

    /// Takes the next step if it is time.
    pub(super) fn run(&mut self, port: &Port, now: u64) {
        let strays = port.strays();
        self.wanted |= strays != self.strays;
        self.strays = strays;
        if now < self.due || !(self.wanted || self.probed) {
            return;
        }
        let live = port.membership.live_slots();
        let mut table: Vec<(u8, u16)> =
            live.iter().filter_map(|info| Some((info.slot, index_of(port, info.slot)?))).collect();
        table.sort_unstable();
        // Others may calibrate at the same time; all come to the same result.
        let attached = port.udp.attach_steering(&steering_program(&table)).is_ok();
        if self.probed {
            self.probed = false;
            self.due = now + INTERVAL.as_nanos() as u64 + u64::from(rand::random::<u16>()) * 1000;
            return;
        }
        self.wanted = false;
        if attached {
            for index in 0..live.len() {
                let _ = port.udp.send_probe(index as u16, port.membership.nonce());
            }
            self.probed = true;
            self.due = now + ANSWER.as_nanos() as u64;
        }
    }
}

/// The socket index that the context in `slot` learnt. 0 in the registry means that it does not know.
fn index_of(port: &Port, slot: u8) -> Option<u16> {
    u16::try_from(port.membership.udp_index(slot)?.checked_sub(1)?).ok()
}
