//! Numbered places for values, where a number is used again but a name is not.

use std::ops::{Index, IndexMut};

/// What a user holds: a slot, and how often the slot had been vacated or renamed when the name was given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Name {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A slab. Indexing with a vacant slot panics: only slots that tables of the endpoint name are indexed.
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The slots that there are, vacant ones included: what the slab costs in memory.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// The slots whose values are such.
    pub(super) fn slots(&self, is: impl Fn(&T) -> bool) -> Vec<u32> {
        let slots = (0_u32..).zip(&self.slots);
        slots.filter(|(_, slot)| slot.value.as_ref().is_some_and(&is)).map(|(number, _)| number).collect()
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize].value = Some(value);
            return slot;
        }
        self.slots.push(Slot { generation: 0, value: Some(value) });
        (self.slots.len() - 1) as u32
    }

    pub(super) fn name(&self, slot: u32) -> Name {
        Name { slot, generation: self.slots[slot as usize].generation }
    }

    /// The slot that `name` names, if it still does.
    pub(super) fn find(&self, name: Name) -> Option<u32> {
        let slot = self.slots.get(name.slot as usize)?;
        (slot.generation == name.generation && slot.value.is_some()).then_some(name.slot)
    }

    /// Makes all names of an occupied slot stale.
    pub(super) fn rename(&mut self, slot: u32) {
        let slot = &mut self.slots[slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
    }

    pub(super) fn remove(&mut self, slot: u32) -> T {
        self.rename(slot);
        self.free.push(slot);
        self.slots[slot as usize].value.take().expect("the slot is occupied")
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        self.slots[slot as usize].value.as_ref().expect("the slot is occupied")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.slots[slot as usize].value.as_mut().expect("the slot is occupied")
    }
}
