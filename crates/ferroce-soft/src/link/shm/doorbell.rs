//! Falling asleep, and being woken.
//!
//! The sleeper says that it sleeps, then looks once more for work; the waker makes work, then looks whether somebody
//! sleeps. With a fence of all orders between the two halves on both sides, at least one sees the other.
//!
//! The waker writes into the FIFO *before* it takes the sign down. The other way round, a waker killed in between would
//! leave a sleeper whom nobody wakes any more. This way it may be woken twice, which costs a look. The sign is the
//! number of the sleep, so that a slow waker cannot take down the sign of a later sleep. It is only ever changed by
//! read-modify-write operations: their order is total, so a waker that took a sign down sees the ones put up later.

use std::sync::atomic::Ordering;

use super::ring::Word;

/// Puts the sign up, fences, and looks for work. Returns false, with the sign down again, if there is some.
pub(super) fn fall_asleep<W: Word>(sign: &W, sleep: u64, has_work: impl FnOnce() -> bool) -> bool {
    debug_assert_ne!(sleep, 0);
    sign.exchange(sleep);
    W::fence();
    if has_work() {
        stay_awake(sign);
        return false;
    }
    true
}

/// Takes the sign down, after the sleep.
pub(super) fn stay_awake<W: Word>(sign: &W) {
    sign.exchange(0);
}

/// Wakes whoever sleeps behind the sign, after work was made.
#[inline]
pub(super) fn wake<W: Word>(sign: &W, write: impl FnOnce()) -> bool {
    W::fence();
    let sleep = sign.load(Ordering::Relaxed);
    if sleep == 0 {
        return false;
    }
    write();
    sign.replace(sleep, 0);
    true
}
