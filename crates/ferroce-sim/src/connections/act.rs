//! What programs, and those who pull plugs, do.

use super::program::PORT_SPACES;
use super::world::{Attempt, Fate, Side, SideNumber, World};
use crate::failure::{Checked, Failure, ensure};
use ferroce_cm::{ConnParam, Error, Id, Phase, PortSpace, SetupIn};
use ferroce_verbs::{Access, QpInitAttr, QpType, RecvWr};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// Something that is going to happen, to a place or to a side.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Connect {
        from: usize,
        to: usize,
    },
    /// A program reads its events and completions.
    Read(usize),
    Accept(usize),
    Reject(usize),
    Establish(usize),
    Disconnect(usize),
    Destroy(usize),
    Migrate(usize),
    /// The deadline has passed, and the program has had the time to read of it.
    CheckDeadline(usize),
    /// A host loses power.
    PowerOff(usize),
    /// One program is killed.
    Kill(usize),
    Restart(usize),
    /// A host is cut off, or a way from one to another.
    Cut(usize, Option<usize>),
    Mend(usize, Option<usize>),
    Close(usize, usize),
}

/// Bytes of a message.
pub(super) const MESSAGE: usize = 16;

impl World {
    pub(super) fn plan_acts(&mut self) {
        let all = self.places.len() as u64;
        for _ in 0..self.plan.attempts {
            let from = self.random.below(all) as usize;
            let to = self.random.below(self.plan.servers as u64) as usize;
            self.after(self.plan.within, Act::Connect { from, to });
        }
        for _ in 0..self.plan.crashes {
            let place = self.random.below(all) as usize;
            let act = if self.random.chance(0.5) { Act::PowerOff(place) } else { Act::Kill(place) };
            self.after(10 * S, act);
        }
        for _ in 0..self.plan.partitions {
            let from = self.random.below(all) as usize;
            let to = self.random.chance(0.5).then(|| self.random.below(all) as usize);
            self.after(5 * S, Act::Cut(from, to));
        }
        for _ in 0..self.plan.closes {
            let place = self.random.below(self.plan.servers as u64) as usize;
            let which = self.random.below(PORT_SPACES.len() as u64) as usize;
            self.after(5 * S, Act::Close(place, which));
        }
    }

    /// Short or long.
    pub(super) fn patience(&mut self) -> Duration {
        *self.random.pick(&[Duration::ZERO, MS, 50 * MS, S, 3 * S])
    }

    pub(super) fn act(&mut self, act: Act) -> Checked {
        match act {
            Act::Connect { from, to } => return self.connect(from, to),
            Act::Read(place) => return self.read(place),
            Act::PowerOff(place) => return self.power_off(place),
            Act::Kill(place) => return self.kill(place),
            Act::Restart(place) => {
                if self.programs[place].is_none() {
                    self.watch.note(&format!("place {place} begins anew"));
                    self.start(place)?;
                }
                return Ok(());
            }
            Act::Cut(from, to) => return self.cut(from, to, true),
            Act::Mend(from, to) => return self.cut(from, to, false),
            Act::Close(place, which) => return self.close(place, which),
            Act::CheckDeadline(attempt) => {
                let Attempt { fate, deadline, .. } = self.attempts[attempt];
                ensure!(fate.is_some(), "attempt {attempt} is not decided, and its deadline was {deadline:?}");
                return Ok(());
            }
            _ => {}
        }
        let (Act::Accept(number)
        | Act::Reject(number)
        | Act::Establish(number)
        | Act::Disconnect(number)
        | Act::Destroy(number)
        | Act::Migrate(number)) = act
        else {
            return Ok(());
        };
        let Some(id) = self.sides[number].id.clone() else { return Ok(()) };
        let result = match act {
            Act::Accept(_) => self.accept(number, &id)?,
            Act::Reject(_) => id.reject(&tag(self.sides[number].attempt)).inspect(|()| {
                self.sides[number].ended = Some("own reject");
            }),
            Act::Establish(_) => match id.establish() {
                Ok(()) => {
                    self.established(number, None)?;
                    Ok(())
                }
                other => other,
            },
            Act::Disconnect(_) => id.disconnect(),
            Act::Migrate(_) => {
                let to = self.random.below(2) as usize;
                let place = self.sides[number].place;
                let channel = self.programs[place].as_ref().map(|program| program.channels[to].clone());
                channel.map_or(Ok(()), |channel| id.migrate(&channel))
            }
            _ => {
                self.destroy(number, &id)?;
                Ok(())
            }
        };
        if matches!(act, Act::Reject(_)) && result.is_ok() {
            if self.sides[number].active {
                self.decide(self.sides[number].attempt, Fate::Cancelled)?;
            }
            self.after(S, Act::Destroy(number));
        }
        self.touch(self.sides[number].place);
        // Programs do not look whether it makes sense at the moment: that is what errors are for.
        match result {
            Ok(()) | Err(Error::Phase { .. } | Error::Destroyed) => Ok(()),
            Err(error) => Err(Failure::new(format!("{act:?} failed: {error}"))),
        }
    }

    fn connect(&mut self, from: usize, to: usize) -> Checked {
        let Some(program) = &self.programs[from] else { return Ok(()) };
        let (place, peer) = (self.places[from], self.places[to]);
        let datagram = self.random.chance(self.plan.datagrams);
        let port_space = PORT_SPACES[usize::from(datagram)];
        let id = program.cm.create_id(&program.channels[0], port_space);
        let timeout = Duration::from_nanos(self.random.within(1_000_000_000, 20_000_000_000));
        let in_caller = self.random.chance(0.5);
        id.set_options(|options| {
            options.connect_timeout = timeout;
            options.setup_in = if in_caller { SetupIn::Caller } else { SetupIn::EventThread };
        })?;
        let attempt = self.attempts.len();
        let deadline = self.network.now() + timeout;
        // Nobody listens there.
        let missing = self.random.chance(0.05);
        let peer = if missing { SocketAddr::new(peer.ip, 9) } else { peer.addr() };
        let local = self.random.chance(0.5).then(|| SocketAddr::new(place.ip, 0));
        id.resolve_addr(local, peer)?;
        id.resolve_route()?;
        self.watch.note(&format!("attempt {attempt}: place {from} to place {to}, {port_space:?}, until {deadline:?}"));
        self.attempts.push(Attempt { to, deadline, fate: None, orphaned: false, datagram });
        let number = self.add_side(from, attempt, true, id.clone())?;
        if !datagram {
            self.give_qp(number, &id)?;
        }
        id.connect(&ConnParam { private_data: &tag(attempt), ..ConnParam::default() })?;
        // A program reads at latest so long after something has happened; then it may take its time to confirm.
        let slack = 2 * self.plan.lag + Duration::from_nanos(1);
        self.at(deadline + slack, Act::CheckDeadline(attempt));
        if self.random.chance(self.plan.cancels) {
            let within = *self.random.pick(&[MS, 50 * MS, 5 * S]);
            let act = if self.random.chance(0.8) { Act::Destroy(number) } else { Act::Disconnect(number) };
            self.after(within, act);
        }
        if self.random.chance(0.2) {
            self.after(S, Act::Migrate(number));
        }
        self.touch(from);
        Ok(())
    }

    /// Notes a new side of an attempt.
    pub(super) fn add_side(&mut self, place: usize, attempt: usize, active: bool, id: Id) -> Checked<usize> {
        let number = self.sides.len();
        id.set_context(Arc::new(SideNumber(number)))?;
        self.sides.push(Side {
            place,
            attempt,
            active,
            id: Some(id),
            mr: None,
            established: false,
            ended: None,
            destroyed: false,
            received: false,
        });
        Ok(number)
    }

    /// Makes the queue pair of a connection, with a receive.
    pub(super) fn give_qp(&mut self, number: usize, id: &Id) -> Checked {
        let Some(program) = &self.programs[self.sides[number].place] else { return Ok(()) };
        let mr = program.pd.alloc_mr(2 * MESSAGE, Access::LOCAL_WRITE)?;
        let qp = id.create_qp(&program.pd, &QpInitAttr::new(QpType::Rc, &program.cq))?;
        qp.post_recv(&[RecvWr::new(number as u64, &[mr.sge(MESSAGE..)?])]).map_err(Failure::new)?;
        self.sides[number].mr = Some(mr);
        Ok(())
    }

    /// What the program's call returned.
    fn accept(&mut self, number: usize, id: &Id) -> Checked<ferroce_cm::Result<()>> {
        let attempt = self.sides[number].attempt;
        if id.port_space() == PortSpace::Udp {
            let param = ConnParam { private_data: &tag(attempt), qp_num: Some(qp_of(attempt)), ..ConnParam::default() };
            let result = id.accept(&param);
            if result.is_ok() {
                // There is nothing more to come.
                self.sides[number].ended = Some("answered");
                self.after(S, Act::Destroy(number));
            }
            return Ok(result);
        }
        if id.qp().is_none() && id.phase() == Phase::Requested {
            self.give_qp(number, id)?;
        }
        Ok(id.accept(&ConnParam { private_data: &tag(attempt), ..ConnParam::default() }))
    }

    pub(super) fn destroy(&mut self, number: usize, id: &Id) -> Checked {
        id.destroy();
        let side = &mut self.sides[number];
        side.destroyed = true;
        side.mr = None;
        let (active, attempt) = (side.active, side.attempt);
        if active && self.attempts[attempt].fate.is_none() {
            self.decide(attempt, Fate::Cancelled)?;
        }
        Ok(())
    }

    /// An attempt has come to its end: exactly one.
    pub(super) fn decide(&mut self, attempt: usize, fate: Fate) -> Checked {
        self.watch.note(&format!("attempt {attempt}: {fate:?}"));
        let old = self.attempts[attempt].fate.replace(fate);
        ensure!(old.is_none(), "attempt {attempt} is {fate:?} after it was {old:?}");
        match fate {
            Fate::Established => self.outcome.completed += 1,
            _ => self.outcome.failed += 1,
        }
        Ok(())
    }

    fn power_off(&mut self, place: usize) -> Checked {
        let host = place - place % self.plan.programs;
        self.watch.note(&format!("the host of place {place} loses power"));
        for place in host..host + self.plan.programs {
            self.end(place)?;
        }
        // When it comes back its numbers begin anew.
        self.network.reboot(self.places[place].ip);
        for place in host..host + self.plan.programs {
            self.after(3 * S, Act::Restart(place));
        }
        Ok(())
    }

    fn kill(&mut self, place: usize) -> Checked {
        self.watch.note(&format!("place {place} is killed"));
        self.end(place)?;
        self.after(3 * S, Act::Restart(place));
        Ok(())
    }

    /// A program ends without a word: whatever the destructors would say is lost.
    fn end(&mut self, place: usize) -> Checked {
        let ip = self.places[place].ip;
        self.network.isolate(ip);
        self.network.block(ip, ip);
        for number in 0..self.sides.len() {
            let side = &mut self.sides[number];
            self.attempts[side.attempt].orphaned |= side.place == place || self.attempts[side.attempt].to == place;
            if side.place != place || side.id.is_none() {
                continue;
            }
            side.id = None;
            side.mr = None;
            let (active, attempt) = (side.active, side.attempt);
            if active && self.attempts[attempt].fate.is_none() {
                self.decide(attempt, Fate::Cancelled)?;
            }
        }
        self.programs[place] = None;
        self.network.restore(ip);
        self.network.unblock(ip, ip);
        Ok(())
    }

    fn cut(&mut self, from: usize, to: Option<usize>, cut: bool) -> Checked {
        let ip = self.places[from].ip;
        match (to.map(|to| self.places[to].ip), cut) {
            (None, true) => self.network.isolate(ip),
            (None, false) => self.network.restore(ip),
            (Some(to), true) => self.network.block(ip, to),
            (Some(to), false) => self.network.unblock(ip, to),
        }
        self.watch.note(&format!("the way from place {from} to {to:?} is {}", if cut { "cut" } else { "whole" }));
        if cut {
            self.after(8 * S, Act::Mend(from, to));
        }
        Ok(())
    }

    /// A listener closes, and another one takes its place.
    fn close(&mut self, place: usize, which: usize) -> Checked {
        let (at, backlog) = (self.places[place], self.plan.backlog);
        let Some(program) = &mut self.programs[place] else { return Ok(()) };
        if let Some(listener) = program.listeners[which].take() {
            listener.destroy();
            program.listen(at, which, backlog, false)?;
        }
        self.touch(place);
        Ok(())
    }
}

/// What private data and messages say: which attempt it is.
pub(super) fn tag(attempt: usize) -> [u8; 4] {
    (attempt as u32).to_be_bytes()
}

/// The queue pair number that a datagram server answers with.
pub(super) fn qp_of(attempt: usize) -> u32 {
    0x10_0000 + attempt as u32
}
