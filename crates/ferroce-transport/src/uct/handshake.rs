//! What a sleeper and whoever wakes it agree on.
//!
//! The sleeper says that it is about to sleep and then looks for work; whoever has made work then looks for sleepers. Each writes one place and
//! reads the other's, so both need a full fence between: with less, each may miss the other (Dekker's pattern).

use std::sync::atomic::{AtomicBool, Ordering, fence};

/// A flag of the machine, or of the model.
pub(super) trait Flag {
    fn load(&self) -> bool;
    /// Acquires and releases.
    fn swap(&self, value: bool) -> bool;
    fn fence();
}

impl Flag for AtomicBool {
    #[inline]
    fn load(&self) -> bool {
        Self::load(self, Ordering::Relaxed)
    }

    #[inline]
    fn swap(&self, value: bool) -> bool {
        Self::swap(self, value, Ordering::AcqRel)
    }

    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Whether somebody sleeps, or is about to.
#[derive(Debug, Default)]
pub(super) struct Handshake<F>(F);

impl<F: Flag> Handshake<F> {
    /// About to sleep: look for work after this. What was to wake sleepers before must be taken back before this.
    pub(super) fn arm(&self) {
        // Not a store: what the last to wake had made before is seen by the look that follows.
        self.0.swap(true);
        F::fence();
    }

    /// Whether somebody may sleep, as far as is known without a fence.
    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.0.load()
    }

    /// Whether a sleeper is to be woken for work that was made before this; only one that wakes is told so.
    #[inline]
    pub(super) fn disarm(&self) -> bool {
        F::fence();
        self.disarm_ordered()
    }

    /// The same for work that was made under a lock that the caller holds, and under which sleepers arm and look.
    #[inline]
    pub(super) fn disarm_ordered(&self) -> bool {
        self.is_armed() && self.0.swap(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::atomic::AtomicBool as Modelled;
    use loom::sync::{Arc, Condvar, Mutex};

    impl Flag for Modelled {
        fn load(&self) -> bool {
            self.load(Ordering::Relaxed)
        }

        fn swap(&self, value: bool) -> bool {
            self.swap(value, Ordering::AcqRel)
        }

        fn fence() {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    /// A descriptor, and what there is to be done.
    struct World {
        handshake: Handshake<Modelled>,
        work: [Modelled; 2],
        readable: Mutex<bool>,
        changed: Condvar,
    }

    impl World {
        fn make(&self, which: usize) {
            // Not a store: loom does not order those among read-modify-writes.
            self.work[which].swap(true, Ordering::Relaxed);
            if self.handshake.disarm() {
                *self.readable.lock().unwrap() = true;
                self.changed.notify_all();
            }
        }

        /// Sleeps until there is work, and does it; loom reports a lost wake-up as a deadlock.
        fn work(&self) {
            let mut done = 0;
            while done < self.work.len() {
                *self.readable.lock().unwrap() = false;
                self.handshake.arm();
                let found = self.work.iter().filter(|work| work.swap(false, Ordering::Relaxed)).count();
                done += found;
                if found != 0 {
                    continue;
                }
                let mut readable = self.readable.lock().unwrap();
                while !*readable {
                    readable = self.changed.wait(readable).unwrap();
                }
            }
        }
    }

    #[test]
    fn no_wake_up_is_lost() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let world = Arc::new(World {
                handshake: Handshake(Modelled::new(false)),
                work: [Modelled::new(false), Modelled::new(false)],
                readable: Mutex::new(false),
                changed: Condvar::new(),
            });
            let makers: Vec<_> = (0..2)
                .map(|which| {
                    let world = world.clone();
                    loom::thread::spawn(move || world.make(which))
                })
                .collect();
            world.work();
            for maker in makers {
                maker.join().unwrap();
            }
        });
    }
}
