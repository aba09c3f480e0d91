//! Model checking with shuttle: all orders of threads within bounds ([`exhaust`]), and random ones ([`sample`]).
//!
//! The code under test takes its locks and atomics from a module `sync` of its crate, which in unit tests gives it those of this
//! module and of [`shuttle`]: so the tests check the code itself.

mod search;
mod sync;

pub use search::{exhaust, sample};
pub use shuttle;
pub use sync::{Condvar, Mutex, MutexGuard, WaitTimeoutResult, is_releasing};
