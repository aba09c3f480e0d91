//! A fence of which one side is cheap: threads that park leases all the time have only to keep the compiler from reordering, as those
//! that take them back once in a while have the kernel put a fence into every running thread of the process (`membarrier(2)`).
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// Whether the kernel puts fences into other threads for us. It does not where it is older than 4.14, or where a sandbox forbids it.
fn is_asymmetric() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the system call takes two numbers and touches no memory of the program.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0) == 0 }
}

/// The cheap side, or the whole of it where there is no other way.
#[derive(Clone, Copy)]
pub(super) struct LightBarrier {
    is_asymmetric: bool,
}

impl LightBarrier {
    pub(super) fn new() -> Self {
        Self { is_asymmetric: is_asymmetric() }
    }

    /// What this thread wrote before is seen by whoever has passed [`heavy_barrier`], or this thread sees from now on what they wrote
    /// before it.
    #[inline]
    pub(super) fn pass(self) {
        if self.is_asymmetric {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }
}

/// The other side of all [`LightBarrier`]s. False if the kernel has refused it, though it had agreed to it before: as after a sandbox was
/// closed. Then nothing is known of what other threads have written.
#[must_use]
pub(super) fn heavy_barrier() -> bool {
    #[cfg(test)]
    if refused::now() {
        return false;
    }
    fence(Ordering::SeqCst);
    // It may have no memory for a moment (`ENOMEM`): what is refused counts as refused for ever.
    !is_asymmetric() || (0..TRIES).any(|_| membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
}

/// How often the kernel is asked.
const TRIES: u32 = 100;

/// In a model the kernel refuses the barrier when the model says so.
#[cfg(test)]
pub(super) mod refused {
    use crate::sync::atomic::AtomicBool;
    use crate::sync::global;
    use std::sync::atomic::Ordering;

    global! {
        static REFUSED: AtomicBool = AtomicBool::new(false);
    }

    pub(crate) fn from_now_on() {
        REFUSED.store(true, Ordering::Relaxed);
    }

    pub(super) fn now() -> bool {
        REFUSED.load(Ordering::Relaxed)
    }
}
