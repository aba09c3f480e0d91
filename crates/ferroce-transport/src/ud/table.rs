//! Endpoints by their ids.

use std::fmt;

/// Names an endpoint of one interface: a place, and a random number that tells apart who had it one after the other. What names an
/// endpoint that is gone names nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(u64);

/// Bits of an id that are the place.
const PLACE_BITS: u32 = 24;
/// Most endpoints of one interface.
pub const MAX_ENDPOINTS: u32 = 1 << PLACE_BITS;

impl EndpointId {
    /// The id that a packet carries.
    pub(crate) const fn from_wire(wire: u64) -> Self {
        Self(wire)
    }

    /// The number to put into a packet. Never 0.
    pub(super) const fn to_wire(self) -> u64 {
        self.0
    }

    /// As all transports name endpoints.
    pub(crate) const fn to_uct(self) -> crate::uct::EndpointId {
        crate::uct::EndpointId::new(self.place() as u32, self.0 >> PLACE_BITS)
    }

    const fn place(self) -> usize {
        (self.0 as u32 & (MAX_ENDPOINTS - 1)) as usize
    }
}

impl fmt::Debug for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:010x}", self.place(), self.0 >> PLACE_BITS)
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A table of endpoints.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Vec<Option<(EndpointId, Box<T>)>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Table<T> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds a value under an id that is made of `random`; `None` if the table is full.
    pub(super) fn insert(&mut self, random: u64, value: T) -> Option<EndpointId> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.entries.len() < MAX_ENDPOINTS as usize => {
                self.entries.push(None);
                self.entries.len() as u32 - 1
            }
            None => return None,
        };
        // Never 0, which stands for no endpoint.
        let id = EndpointId((random | 1 << PLACE_BITS) & !u64::from(MAX_ENDPOINTS - 1) | u64::from(place));
        self.entries[place as usize] = Some((id, Box::new(value)));
        self.len += 1;
        Some(id)
    }

    pub(super) fn get(&self, id: EndpointId) -> Option<&T> {
        match self.entries.get(id.place())? {
            Some((known, value)) if *known == id => Some(value),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, id: EndpointId) -> Option<&mut T> {
        match self.entries.get_mut(id.place())? {
            Some((known, value)) if *known == id => Some(value),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, id: EndpointId) -> Option<T> {
        let entry = self.entries.get_mut(id.place())?;
        if entry.as_ref().is_none_or(|(known, _)| *known != id) {
            return None;
        }
        let (_, value) = entry.take()?;
        self.free.push(id.place() as u32);
        self.len -= 1;
        Some(*value)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = EndpointId> {
        self.entries.iter().flatten().map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_id_names_nothing() {
        let mut table = Table::new();
        let first = table.insert(0, 'a').unwrap();
        assert_ne!(first.to_wire(), 0);
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert(u64::MAX, 'b').unwrap();
        assert_eq!(first.place(), second.place());
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
        assert_eq!((table.remove(first), table.len()), (None, 1));
        assert_eq!(table.get(EndpointId::from_wire(second.to_wire() ^ 1 << 63)), None);
        assert_eq!(table.get(EndpointId::from_wire(second.to_wire() + 1)), None);
    }
}
