//! Placeholder for the fast path.
use super::entry::{Entry, Shared};
use std::sync::Arc;
#[inline]
pub(super) fn put(entry: Arc<Entry>) {
    Entry::release(entry);
}
pub(super) fn take_back(_: &Shared, _: &[Arc<Entry>]) {}
pub(super) fn take_back_all(_: &Shared) {}
pub(super) fn hits(_: &Shared) -> u64 {
    0
}
