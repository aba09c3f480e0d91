//! An interface's endpoints: by slot, which is what completions of sends name, and by queue pair number, as those of receives do.

use super::core::Core;
use crate::uct::EndpointId;
use hashbrown::HashMap;
use std::sync::Arc;

/// The endpoints that exist, those included that wait for their last completion.
#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Option<Arc<Core>>>,
    free: Vec<u32>,
    by_qpn: HashMap<u32, u32>,
    /// What the next one is told apart by. It never comes again.
    generation: u64,
}

impl Table {
    /// Adds the endpoint that `make` makes of its id; `None` if there are `most` already.
    pub(super) fn insert(&mut self, most: u32, make: impl FnOnce(EndpointId) -> Arc<Core>) -> Option<Arc<Core>> {
        if self.len() >= most as usize {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.generation += 1;
        let core = make(EndpointId::new(slot, self.generation));
        self.by_qpn.insert(core.qpn(), slot);
        self.slots[slot as usize] = Some(core.clone());
        Some(core)
    }

    #[inline]
    pub(super) fn at(&self, slot: u32) -> Option<&Arc<Core>> {
        self.slots.get(slot as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn by_qpn(&self, qpn: u32) -> Option<&Arc<Core>> {
        self.at(*self.by_qpn.get(&qpn)?)
    }

    pub(super) fn get(&self, id: EndpointId) -> Option<&Arc<Core>> {
        self.at(id.slot()).filter(|core| core.id() == id)
    }

    pub(super) fn remove(&mut self, id: EndpointId) -> Option<Arc<Core>> {
        self.get(id)?;
        let core = self.slots.get_mut(id.slot() as usize)?.take()?;
        self.by_qpn.remove(&core.qpn());
        self.free.push(id.slot());
        Some(core)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Core>> {
        self.slots.iter().flatten()
    }
}
