use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// Objects by number, looked up without a lock.
///
/// Numbers are handed out round robin, so that a number which was just given up is reused as late as possible: what
/// still names it from before meets nothing.
pub(crate) struct Table<T> {
    /// Made as they are needed.
    chunks: Box<[OnceLock<Chunk<T>>]>,
    alloc: Mutex<Alloc>,
    first: u32,
    capacity: u32,
}

struct Alloc {
    next: u32,
    live: u32,
}

const CHUNK: u32 = 256;

type Chunk<T> = Box<[ArcSwapOption<T>]>;

impl<T> Table<T> {
    /// A table of the numbers `first..capacity`.
    pub(crate) fn new(first: u32, capacity: u32) -> Self {
        let chunks = (0..capacity.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Self { chunks, alloc: Mutex::new(Alloc { next: first, live: 0 }), first, capacity }
    }

    /// The object with this number, if there is one.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Guard<Option<Arc<T>>> {
        match self.chunks.get((index / CHUNK) as usize).and_then(OnceLock::get) {
            Some(chunk) => chunk[(index % CHUNK) as usize].load(),
            None => Guard::from_inner(None),
        }
    }

    /// Puts the object that `make` returns for its number into the table; `None` when all numbers are taken.
    pub(crate) fn insert(&self, make: impl FnOnce(u32) -> Arc<T>) -> Option<Arc<T>> {
        let mut alloc = self.alloc.lock();
        if alloc.live == self.capacity - self.first {
            return None;
        }
        loop {
            let index = alloc.next;
            alloc.next = if index + 1 == self.capacity { self.first } else { index + 1 };
            let entry = self.entry(index);
            if entry.load().is_none() {
                let object = make(index);
                entry.store(Some(object.clone()));
                alloc.live += 1;
                return Some(object);
            }
        }
    }

    /// Takes the object with this number out, if there is one.
    pub(crate) fn remove(&self, index: u32) -> Option<Arc<T>> {
        let mut alloc = self.alloc.lock();
        let removed = self.chunks.get((index / CHUNK) as usize)?.get()?[(index % CHUNK) as usize].swap(None);
        alloc.live -= u32::from(removed.is_some());
        removed
    }

    /// How many objects there are.
    pub(crate) fn len(&self) -> u32 {
        self.alloc.lock().live
    }

    fn entry(&self, index: u32) -> &ArcSwapOption<T> {
        let chunk = self.chunks[(index / CHUNK) as usize]
            .get_or_init(|| (0..CHUNK).map(|_| ArcSwapOption::const_empty()).collect());
        &chunk[(index % CHUNK) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused_late() {
        let table = Table::new(2, 6);
        let numbers: Vec<u32> = (0..4).map(|_| *table.insert(Arc::new).unwrap()).collect();
        assert_eq!(numbers, [2, 3, 4, 5]);
        assert!(table.insert(Arc::new).is_none());
        table.remove(3);
        table.remove(5);
        assert_eq!(*table.insert(Arc::new).unwrap(), 3);
        table.remove(3);
        assert_eq!(*table.insert(Arc::new).unwrap(), 5);
        assert_eq!(table.len(), 3);
        assert!(table.get(3).is_none());
        assert!(table.get(1_000_000).is_none());
        assert!(table.remove(1_000_000).is_none());
    }
}
