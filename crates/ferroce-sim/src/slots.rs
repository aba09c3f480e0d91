use std::ops::{Index, IndexMut};

/// Things with numbers that stay when others go.
pub(crate) struct Slots<T>(Vec<Option<T>>);

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds one; returns its number.
    pub(crate) fn push(&mut self, thing: T) -> usize {
        self.0.push(Some(thing));
        self.0.len() - 1
    }

    /// One past the last number that was given out.
    pub(crate) fn end(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index)?.as_mut()
    }

    /// Takes one out, if it is there.
    pub(crate) fn take(&mut self, index: usize) -> Option<T> {
        self.0.get_mut(index)?.take()
    }

    /// The numbers of all that are there.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|&index| self.0[index].is_some()).collect()
    }

    /// All that are there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }
}

impl<T> Index<usize> for Slots<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.0[index].as_ref().expect("it is there")
    }
}

impl<T> IndexMut<usize> for Slots<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.0[index].as_mut().expect("it is there")
    }
}
