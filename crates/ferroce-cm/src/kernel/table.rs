//! Who gets the events with which uid, and how many events there are still to come for what is destroyed.
//!
//! A uid is a slot and the slot's generation, so that an event that was on its way while its id was destroyed finds nobody, or at least not
//! somebody else. The kernel says with the destruction how many events of the id were read; those that the thread has read and not brought
//! here yet are *owed*, and the slot is free once they have come.

use crate::id::IdCore;
use crate::proto::Usage;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    /// The one that was vacated first is used first.
    free: VecDeque<u32>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// When whoever reads events wakes by itself, at the latest.
    wakes_at: Option<Instant>,
    /// Entries of ids.
    ids: usize,
    /// Events that are owed.
    owed: usize,
    /// Entries of memberships whose events are not known.
    unknown: usize,
}

struct Slot {
    generation: u32,
    entry: Entry,
}

enum Entry {
    Vacant,
    Live {
        owner: Owner,
        seen: u32,
        deadline: Option<Instant>,
    },
    /// So many are still to come. The id whose uid this is counts them, too.
    Owed {
        left: u32,
        also: Option<u64>,
    },
    /// A membership of which the kernel did not say how many are still to come. The id whose uid this is counts them, too, and it goes with that.
    Unknown {
        also: u64,
    },
}

/// Never 0, which to the kernel means that there are to be no events.
fn uid(index: u32, slot: &Slot) -> u64 {
    u64::from(slot.generation) << 32 | u64::from(index + 1)
}

/// Whose events these are.
pub(super) enum Owner {
    /// An id's.
    Id(Weak<IdCore>),
    /// Those of its membership in a multicast group. The kernel counts them for the id, too, whose uid this is.
    Group { id: Weak<IdCore>, uid: u64 },
}

/// Once there were deadlines the thread wakes after this, though there be none: the next deadline, which comes soon where connections are
/// made all the time, then need not wake it.
const IDLE: Duration = Duration::from_secs(2);

impl Table {
    pub(super) fn enter(&mut self, owner: Owner) -> u64 {
        self.ids += usize::from(matches!(owner, Owner::Id(_)));
        let entry = Entry::Live { owner, seen: 0, deadline: None };
        let index = match self.free.pop_front() {
            Some(index) => index,
            None => {
                self.slots.push(Slot { generation: 0, entry: Entry::Vacant });
                (self.slots.len() - 1) as u32
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.entry = entry;
        uid(index, slot)
    }

    fn slot(&mut self, uid: u64) -> Option<(u32, &mut Slot)> {
        let index = (uid as u32).checked_sub(1)?;
        let slot = self.slots.get_mut(index as usize)?;
        (slot.generation == (uid >> 32) as u32).then_some((index, slot))
    }

    fn vacate(&mut self, index: u32) {
        if self.unknown != 0 {
            let of = uid(index, &self.slots[index as usize]);
            let goes_too = |slot: &Slot| matches!(slot.entry, Entry::Unknown { also } if also == of);
            let memberships: Vec<u32> =
                (0..).zip(&self.slots).filter(|(_, slot)| goes_too(slot)).map(|(at, _)| at).collect();
            self.unknown -= memberships.len();
            memberships.into_iter().for_each(|membership| self.vacate_one(membership));
        }
        self.vacate_one(index);
    }

    fn vacate_one(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.entry = Entry::Vacant;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push_back(index);
    }

    /// An event has come: whose it is, if there is still somebody. If it `answers`, nothing is waited for any more.
    pub(super) fn seen(&mut self, uid: u64, answers: bool) -> Option<Arc<IdCore>> {
        if answers {
            self.clear_deadline(uid);
        }
        let Some((index, slot)) = self.slot(uid) else {
            tracing::debug!(uid, "an event for nobody");
            return None;
        };
        match &mut slot.entry {
            Entry::Live { owner: Owner::Id(id), seen, .. } => {
                *seen += 1;
                id.upgrade()
            }
            Entry::Live { owner: Owner::Group { id, uid }, seen, .. } => {
                *seen += 1;
                let (id, uid) = (id.upgrade(), *uid);
                self.also_seen(uid);
                id
            }
            Entry::Owed { left, also } => {
                *left -= 1;
                let (is_last, also) = (*left == 0, *also);
                self.owed -= 1;
                if is_last {
                    self.vacate(index);
                }
                also.into_iter().for_each(|uid| self.also_seen(uid));
                None
            }
            Entry::Unknown { also } => {
                let also = *also;
                self.also_seen(also);
                None
            }
            Entry::Vacant => None,
        }
    }

    fn also_seen(&mut self, uid: u64) {
        let Some((index, slot)) = self.slot(uid) else { return };
        match &mut slot.entry {
            Entry::Live { seen, .. } => *seen += 1,
            Entry::Owed { left: 1, .. } => {
                self.owed -= 1;
                self.vacate(index);
            }
            Entry::Owed { left, .. } => {
                *left -= 1;
                self.owed -= 1;
            }
            Entry::Unknown { .. } | Entry::Vacant => {}
        }
    }

    /// It is destroyed; the kernel says how many of its events were read, or it could not be destroyed. With an id that could not the kernel says
    /// nothing more.
    pub(super) fn leave(&mut self, uid: u64, reported: Option<u32>) {
        let Some((index, slot)) = self.slot(uid) else { return };
        let Entry::Live { owner, seen, deadline } = &slot.entry else { return };
        let (also, deadline) = match owner {
            Owner::Id(_) => (None, *deadline),
            Owner::Group { uid, .. } => (Some(*uid), *deadline),
        };
        // Its id is there still: a membership holds it.
        if let (Some(also), None) = (also, reported) {
            slot.entry = Entry::Unknown { also };
            self.unknown += 1;
            return;
        }
        let left = reported.unwrap_or(0).saturating_sub(*seen);
        if left == 0 {
            self.vacate(index);
        } else {
            slot.entry = Entry::Owed { left, also };
            self.owed += left as usize;
        }
        self.ids -= usize::from(also.is_none());
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, uid));
        }
    }

    /// Sets an id's deadline; whether who reads events sleeps longer than that.
    pub(super) fn set_deadline(&mut self, uid: u64, at: Instant) -> bool {
        self.clear_deadline(uid);
        let Some((_, Slot { entry: Entry::Live { deadline, .. }, .. })) = self.slot(uid) else { return false };
        *deadline = Some(at);
        self.deadlines.insert((at, uid));
        self.wakes_at.is_none_or(|wakes_at| at < wakes_at)
    }

    /// Whoever waits from now on wakes then at the latest.
    pub(super) fn wakes_at(&mut self) -> Option<Instant> {
        let first = self.deadlines.first().map(|&(at, _)| at);
        self.wakes_at = [first, self.wakes_at].into_iter().flatten().min();
        self.wakes_at
    }

    /// There is nothing to wait for any more.
    pub(super) fn clear_deadline(&mut self, uid: u64) {
        if let Some((_, Slot { entry: Entry::Live { deadline, .. }, .. })) = self.slot(uid)
            && let Some(old) = deadline.take()
        {
            self.deadlines.remove(&(old, uid));
        }
    }

    /// Whose deadline has passed, and when to look again.
    pub(super) fn expire(&mut self, now: Instant) -> (Vec<Arc<IdCore>>, Option<Instant>) {
        let mut late = Vec::new();
        while let Some(&(at, uid)) = self.deadlines.first()
            && at <= now
        {
            self.clear_deadline(uid);
            if let Some((_, Slot { entry: Entry::Live { owner: Owner::Id(id), .. }, .. })) = self.slot(uid) {
                late.extend(id.upgrade());
            }
        }
        self.wakes_at = match (self.deadlines.first(), self.wakes_at) {
            (Some(&(at, _)), _) => Some(at),
            // It has woken for nothing: there is nobody who connects all the time.
            (None, Some(wakes_at)) if wakes_at <= now => None,
            (None, Some(wakes_at)) => Some(wakes_at.min(now + IDLE)),
            (None, None) => None,
        };
        (late, self.wakes_at)
    }

    pub(super) fn ids(&self) -> usize {
        self.ids
    }

    /// All ids whose events can be delivered, with their uids.
    pub(super) fn owners(&self) -> Vec<(u64, Arc<IdCore>)> {
        let all = self.slots.iter().enumerate().filter_map(|(index, slot)| match &slot.entry {
            Entry::Live { owner: Owner::Id(id), .. } => Some((uid(index as u32, slot), id.upgrade()?)),
            _ => None,
        });
        all.collect()
    }

    pub(super) fn usage(&self) -> Usage {
        let names = self.slots.len() - self.free.len();
        Usage {
            connections: self.ids,
            events: self.owed,
            names,
            connection_slots: self.slots.len(),
            ..Usage::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> Owner {
        Owner::Id(Weak::new())
    }

    #[test]
    fn a_slot_is_free_once_what_is_owed_has_come() {
        let mut table = Table::default();
        let old = table.enter(id());
        assert!(table.seen(old, true).is_none(), "its owner is gone, and it counts");
        // The kernel says that three were read: two are still between it and the table.
        table.leave(old, Some(3));
        assert_eq!((table.usage().events, table.ids()), (2, 0));
        let other = table.enter(id());
        assert_ne!(other as u32, old as u32, "the slot is not free");
        for left in [1, 0] {
            assert!(table.seen(old, true).is_none());
            assert_eq!(table.usage().events, left);
        }
        let again = table.enter(id());
        assert_eq!(again as u32, old as u32);
        assert_ne!(again, old, "another generation");
        // A name that is stale touches nobody.
        assert!(table.seen(old, true).is_none());
        table.leave(old, Some(7));
        assert_eq!((table.usage().events, table.ids()), (0, 2));
    }

    #[test]
    fn events_of_a_membership_count_for_its_id_too() {
        let mut table = Table::default();
        let id = table.enter(id());
        let group = table.enter(Owner::Group { id: Weak::new(), uid: id });
        assert!(table.seen(group, true).is_none());
        table.leave(group, Some(1));
        table.leave(id, Some(1));
        let usage = table.usage();
        assert_eq!((usage.events, usage.names), (0, 0));
        // Also one that comes after the membership has ended.
        let id = table.enter(self::id());
        let group = table.enter(Owner::Group { id: Weak::new(), uid: id });
        table.leave(group, Some(1));
        assert!(table.seen(group, true).is_none());
        table.leave(id, Some(1));
        let usage = table.usage();
        assert_eq!((usage.events, usage.names), (0, 0));
    }

    /// Otherwise the id would wait for ever for events that it counts and nobody has brought it.
    #[test]
    fn a_membership_that_the_kernel_does_not_end_goes_with_its_id() {
        for comes_late in [false, true] {
            let mut table = Table::default();
            let id = table.enter(id());
            let group = table.enter(Owner::Group { id: Weak::new(), uid: id });
            table.leave(group, None);
            assert!(comes_late || table.seen(group, true).is_none());
            table.leave(id, Some(1));
            assert_eq!(table.usage().events, usize::from(comes_late));
            assert!(table.seen(group, true).is_none());
            let usage = table.usage();
            assert_eq!((usage.events, usage.names), (0, 0));
        }
    }

    #[test]
    fn deadlines_wake_the_thread_only_if_it_sleeps_longer() {
        let mut table = Table::default();
        let now = Instant::now();
        let [first, second] = [table.enter(id()), table.enter(id())];
        assert!(table.set_deadline(first, now + Duration::from_secs(30)), "it sleeps for ever");
        assert_eq!(table.expire(now).1, Some(now + Duration::from_secs(30)));
        assert!(!table.set_deadline(second, now + Duration::from_secs(40)));
        assert!(table.set_deadline(second, now + Duration::from_secs(20)), "it is to wake before");
        // Something has happened to both: it looks once more, and then no more.
        assert!(table.seen(first, true).is_none() && table.seen(second, true).is_none());
        let (_, wakes_at) = table.expire(now);
        assert_eq!(wakes_at, Some(now + IDLE));
        assert!(!table.set_deadline(first, now + Duration::from_secs(30)), "it wakes anyway");
        assert!(table.seen(first, true).is_none());
        assert_eq!(table.expire(now + IDLE).1, None);
    }
}
