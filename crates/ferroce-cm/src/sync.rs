//! What synchronises this crate: small fast locks, and in its unit tests shuttle's, which run one thread at a time in an order that
//! the test chooses. So the tests in `model` check the code itself.

#[cfg(not(test))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(test))]
pub(crate) use std::sync::atomic;

#[cfg(test)]
pub(crate) use ferroce_testing::model::{Condvar, Mutex, MutexGuard};
#[cfg(test)]
pub(crate) use shuttle::sync::atomic;
