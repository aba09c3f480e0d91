//! What programs do when they read an event.

use super::act::{Act, qp_of, tag};
use super::world::{Fate, SideNumber, World};
use crate::failure::{Checked, Failure, ensure};
use ferroce_cm::{Event, EventKind, Id, UdParam};
use std::time::Duration;

const S: Duration = Duration::from_secs(1);

impl World {
    /// A program reads all events and completions that it has.
    pub(super) fn read(&mut self, place: usize) -> Checked {
        let Some(program) = &mut self.programs[place] else { return Ok(()) };
        program.reading = false;
        for channel in program.channels.clone() {
            while let Some(event) = channel.try_next()? {
                self.on_event(place, event)?;
            }
        }
        let program = self.programs[place].as_mut();
        let completes = program.is_some_and(|program| std::mem::take(&mut program.completes));
        if completes { self.poll(place) } else { Ok(()) }
    }

    fn on_event(&mut self, place: usize, event: Event) -> Checked {
        let text = format!("{:?}", event.kind());
        if let EventKind::ConnectRequest { id, .. } = event.kind() {
            return self.on_request(place, id.clone(), event.private_data());
        }
        let Some(number) = event.id().context::<SideNumber>().map(|number| number.0) else {
            return Err(Failure::new(format!("place {place} reads {text} of an id that is destroyed")));
        };
        let side = &self.sides[number];
        let (active, attempt) = (side.active, side.attempt);
        let of = format!("side {number}, active: {active}, of attempt {attempt}");
        ensure!(!side.destroyed && side.id.is_some() && side.place == place, "{text} after the end of {of}");
        match event.kind() {
            EventKind::AddrResolved | EventKind::RouteResolved => Ok(()),
            EventKind::ConnectResponse(_) => {
                ensure!(active && !side.established && side.ended.is_none(), "{text} out of turn for {of}");
                let patience = self.patience();
                match self.random.below(10) {
                    0 => self.after(patience, Act::Reject(number)),
                    1 => self.after(patience, Act::Destroy(number)),
                    // Not at all: the deadline ends it.
                    2 => {}
                    _ => self.after(patience, Act::Establish(number)),
                }
                Ok(())
            }
            EventKind::Established => {
                ensure!(!side.established && side.ended.is_none(), "{text} out of turn for {of}");
                ensure!(!active || event.private_data() == tag(attempt), "another one's private data for {of}");
                self.established(number, event.ud_param())
            }
            EventKind::Rejected { .. } => self.ended(number, "rejected", Fate::Rejected),
            EventKind::Unreachable { .. } => self.ended(number, "unreachable", Fate::TimedOut),
            EventKind::Disconnected(_) => self.ended(number, "disconnected", Fate::Rejected),
            EventKind::TimewaitExit => {
                ensure!(side.ended.is_some(), "{text} of {of}, which has not ended");
                Ok(())
            }
            _ => Err(Failure::new(format!("{text} for {of}"))),
        }
    }

    /// A side is established: now the other one is to hear something.
    pub(super) fn established(&mut self, number: usize, ud: Option<&UdParam>) -> Checked {
        let side = &mut self.sides[number];
        side.established = true;
        let (active, attempt) = (side.active, side.attempt);
        if active {
            self.decide(attempt, Fate::Established)?;
        }
        if self.attempts[attempt].datagram {
            let qp_num = ud.map(|ud| ud.qp_num);
            ensure!(qp_num == Some(qp_of(attempt)), "attempt {attempt} is answered with queue pair {qp_num:?}");
            self.sides[number].ended = Some("answered");
            self.after(S, Act::Destroy(number));
            return Ok(());
        }
        if active {
            self.send(number)?;
        }
        if self.random.chance(0.1) {
            self.after(S, Act::Migrate(number));
        }
        if !self.random.chance(self.plan.stay) {
            let patience = self.patience();
            let act = if self.random.chance(0.5) { Act::Disconnect(number) } else { Act::Destroy(number) };
            // Perhaps while what established it is still on its way a second time.
            let at_least = if self.random.chance(0.5) { S } else { Duration::ZERO };
            self.after(patience + at_least, act);
        }
        Ok(())
    }

    /// A side has come to its end: exactly one.
    fn ended(&mut self, number: usize, how: &'static str, fate: Fate) -> Checked {
        let side = &mut self.sides[number];
        let old = side.ended.replace(how);
        ensure!(old.is_none(), "side {number} is {how} after it was {old:?}");
        if side.active && !side.established {
            let attempt = side.attempt;
            self.decide(attempt, fate)?;
        }
        let patience = self.patience();
        if self.random.chance(0.5) {
            self.after(patience, Act::Disconnect(number));
        }
        self.after(patience + S, Act::Destroy(number));
        Ok(())
    }

    fn on_request(&mut self, place: usize, id: Id, private_data: &[u8]) -> Checked {
        let attempt = match private_data.try_into() {
            Ok(tag) => u32::from_be_bytes(tag) as usize,
            Err(_) => return Err(Failure::new(format!("a request says {private_data:02x?}"))),
        };
        let Some(asked) = self.attempts.get(attempt) else {
            return Err(Failure::new(format!("nobody made attempt {attempt}")));
        };
        ensure!(asked.to == place, "a request to place {} came to {place}", asked.to);
        if !asked.orphaned && !asked.datagram {
            ensure!(asked.fate != Some(Fate::Established), "a ghost of attempt {attempt}, which is established");
            let twice = self.sides.iter().any(|side| side.attempt == attempt && !side.active && side.established);
            ensure!(!twice, "attempt {attempt} comes twice");
        }
        let number = self.add_side(place, attempt, false, id)?;
        let patience = self.patience();
        match self.random.below(16) {
            0 => self.after(patience, Act::Reject(number)),
            1 => self.after(patience, Act::Destroy(number)),
            // Not at all: the request waits, until the peer gives up or is given up.
            2 => {}
            3 => {
                self.after(patience, Act::Accept(number));
                self.after(2 * patience, Act::Destroy(number));
            }
            4 => {
                self.after(patience, Act::Accept(number));
                self.after(2 * patience, Act::Disconnect(number));
            }
            5 => {
                self.after(S, Act::Migrate(number));
                self.after(patience, Act::Accept(number));
            }
            _ => self.act(Act::Accept(number))?,
        }
        Ok(())
    }
}
