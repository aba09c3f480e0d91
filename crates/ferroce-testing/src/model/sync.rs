//! Shuttle's primitives with the interface of `parking_lot`.

use shuttle::rand::RngCore;
use shuttle::sync;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Instant;

/// A lock that is never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// The lock is held while this exists.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a sync::Mutex<T>,
    /// Empty only while a [`Condvar`] has it.
    guard: Option<sync::MutexGuard<'a, T>>,
}

/// What threads wait on.
#[derive(Debug)]
pub struct Condvar(sync::Condvar);

/// Whether the deadline passed.
pub struct WaitTimeoutResult(bool);

thread_local! {
    static RELEASING: Cell<bool> = const { Cell::new(false) };
}

/// The running thread is about to release a lock. Whatever others could do before that, they can do afterwards: an exhaustive
/// search need not try both.
pub fn is_releasing() -> bool {
    RELEASING.get()
}

/// A failed test unwinds through destructors, which lock what is poisoned by then.
fn lock<T>(mutex: &sync::Mutex<T>) -> sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Mutex<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: &self.0, guard: Some(lock(&self.0)) }
    }
}

impl<T> MutexGuard<'_, T> {
    fn release(&mut self) {
        RELEASING.set(true);
        drop(self.guard.take());
        RELEASING.set(false);
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().unwrap()
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    /// Nobody waits yet.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Waits to be notified, without the lock.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.guard.take().unwrap();
        guard.guard = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// There is no clock: the deadline passes before anybody notifies, or never, as the test chooses.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> WaitTimeoutResult {
        let passes = shuttle::rand::thread_rng().next_u64() & 1 == 1;
        if passes {
            guard.release();
            guard.guard = Some(lock(guard.mutex));
        } else {
            self.wait(guard);
        }
        WaitTimeoutResult(passes)
    }

    /// Wakes one who waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl WaitTimeoutResult {
    /// Whether the deadline passed.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}
