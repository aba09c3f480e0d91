//! What synchronises this crate: small fast locks, and in its unit tests shuttle's, which run one thread at a time in an order that
//! the test chooses. So the tests in `ah_cache::model` check the code itself.

#[cfg(not(test))]
pub(crate) use parking_lot::{Condvar, Mutex};
#[cfg(not(test))]
pub(crate) use std::sync::atomic;
#[cfg(not(test))]
pub(crate) use std::thread_local;

#[cfg(test)]
pub(crate) use ferroce_testing::model::shuttle::sync::atomic;
#[cfg(test)]
pub(crate) use ferroce_testing::model::shuttle::thread_local;
#[cfg(test)]
pub(crate) use ferroce_testing::model::{Condvar, Mutex};

/// Between two steps that share nothing but a reference count, whose changes a model does not see: others may run here.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    ferroce_testing::model::shuttle::thread::yield_now();
}
