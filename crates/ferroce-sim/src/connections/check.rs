//! What must hold once everything is over.

use super::world::{Fate, World};
use crate::failure::{Checked, Failure, ensure};
use ferroce_cm::{ConnectionManager, Phase};
use ferroce_verbs::Context;
use std::collections::BTreeMap;

impl World {
    /// Everything is decided, and of each attempt both sides have a connection, or neither.
    pub(super) fn check_settled(&self) -> Checked {
        for (number, attempt) in self.attempts.iter().enumerate() {
            ensure!(attempt.fate.is_some(), "attempt {number} was never decided: {attempt:?}");
        }
        let mut connected = BTreeMap::<usize, [u32; 2]>::new();
        for side in &self.sides {
            let Some(id) = side.id.as_ref().filter(|_| !self.attempts[side.attempt].datagram) else { continue };
            if id.phase() == Phase::Connected {
                connected.entry(side.attempt).or_default()[usize::from(side.active)] += 1;
            }
        }
        for (attempt, sides) in connected {
            let orphaned = self.attempts[attempt].orphaned;
            ensure!(
                orphaned || sides == [1, 1],
                "attempt {attempt} is established by {sides:?} passive and active sides"
            );
            let fate = self.attempts[attempt].fate;
            ensure!(orphaned || fate == Some(Fate::Established), "attempt {attempt} is established, and was {fate:?}");
        }
        for side in &self.sides {
            let Some(id) = &side.id else { continue };
            // Nobody has ended it, nobody has crashed: each of the two has the other one's message.
            let undisturbed =
                self.plan.is_calm() && id.phase() == Phase::Connected && !self.attempts[side.attempt].datagram;
            ensure!(!undisturbed || side.received, "a side of attempt {} got no message", side.attempt);
        }
        Ok(())
    }

    pub(super) fn destroy_all(&mut self) -> Checked {
        for number in 0..self.sides.len() {
            if let Some(id) = self.sides[number].id.clone() {
                self.destroy(number, &id)?;
                self.sides[number].id = None;
            }
        }
        for program in self.programs.iter_mut().flatten() {
            program.listeners = [None, None];
        }
        Ok(())
    }

    /// Nothing is left of anything: not in the protocol, not in the manager, not in the device.
    pub(super) fn check_nothing_left(&mut self) -> Checked {
        for place in 0..self.places.len() {
            self.read(place)?;
            self.poll(place)?;
            let Some(program) = self.programs[place].take() else { continue };
            nothing_left(&program.cm, &program.context, self.plan.hosts)
                .and_then(|()| {
                    let context = program.context.clone();
                    drop(program);
                    held(&context, &["protection_domains", "completion_queues", "address_handles"])
                })
                .map_err(|why| Failure::new(format!("place {place}: {why}")))?;
        }
        Ok(())
    }
}

/// Nothing is left that a manager holds for connections, or its device, once all are over; `peers` is how many hosts it has talked to.
pub(crate) fn nothing_left(cm: &ConnectionManager, context: &Context, peers: usize) -> Checked {
    let usage = cm.usage();
    let left = usage.connections + usage.lingering + usage.half_open + usage.timewait + usage.listeners;
    let left = left + usage.sidr_sent + usage.sidr_received + usage.events + usage.transmits + usage.names;
    ensure!(left == 0, "it still holds {usage:?}");
    let ids = cm.id_count();
    ensure!(ids == 0, "there are still {ids} ids");
    held(context, &["queue_pairs", "memory_regions", "timers", "bytes_in_flight"])?;
    // One handle for each peer and traffic class.
    let handles = counter(context, "address_handles");
    ensure!(handles <= 2 * peers as u64, "there are {handles} address handles for {peers} peers");
    Ok(())
}

/// None of these is left of a context.
pub(crate) fn held(context: &Context, names: &[&str]) -> Checked {
    for name in names {
        let value = counter(context, name);
        ensure!(value == 0, "there are still {value} {name}");
    }
    Ok(())
}

fn counter(context: &Context, name: &str) -> u64 {
    let counters = context.counters();
    counters.into_iter().find(|(counter, _)| *counter == name).map_or(u64::MAX, |(_, value)| value)
}
