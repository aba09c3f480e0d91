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

/// How hash tables hash: with a seed that nobody outside knows, and in a model always the same.
#[cfg(not(test))]
pub(crate) type Hashing = hashbrown::DefaultHashBuilder;
#[cfg(test)]
pub(crate) type Hashing = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// Between two steps that share nothing but a reference count, whose changes a model does not see: others may run here.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    ferroce_testing::model::shuttle::thread::yield_now();
}

/// One for the process; in a model one for each run.
macro_rules! global {
    ($(#[$doc:meta])* static $name:ident: $type:ty = $init:expr;) => {
        #[cfg(not(test))]
        $(#[$doc])*
        static $name: $type = $init;
        #[cfg(test)]
        ferroce_testing::model::shuttle::lazy_static! {
            $(#[$doc])*
            static ref $name: $type = $init;
        }
    };
}
pub(crate) use global;
