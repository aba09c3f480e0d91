//! What this process knows of a queue pair's state without asking the kernel.

use ferroce_verbs::QpState;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// All states, in the order of their numbers.
const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

/// The state as last set, and whether something may have changed it since.
///
/// Asking costs a system call, so the state is noted when it is set. A queue pair also changes by itself, when a request fails; its
/// completion or an event then casts `doubt`, and whoever wants the state asks. Changes that overlap in time leave doubt too, as it is
/// the device that orders them.
pub(crate) struct StateNote {
    noted: Mutex<Noted>,
    /// The same state, for those who post: they have no time for a lock, and may as well see the one before.
    state: AtomicU8,
}

struct Noted {
    state: QpState,
    doubt: bool,
    /// Changes that have begun and not ended.
    running: u32,
    /// Changes that have begun, and doubts.
    steps: u64,
}

/// A change that has begun.
pub(crate) struct Change {
    alone: bool,
    steps: u64,
}

/// The device is being asked.
pub(crate) struct Question {
    steps: u64,
}

impl StateNote {
    pub(crate) fn new(state: QpState) -> Self {
        let noted = Noted { state, doubt: false, running: 0, steps: 0 };
        Self { noted: Mutex::new(noted), state: AtomicU8::new(state as u8) }
    }

    /// The state as noted: what it is, or was before it failed.
    #[inline]
    pub(crate) fn noted(&self) -> QpState {
        STATES[usize::from(self.state.load(Ordering::Relaxed))]
    }

    /// The state, if it is certain.
    pub(crate) fn certain(&self) -> Option<QpState> {
        let noted = self.noted.lock();
        (!noted.doubt).then_some(noted.state)
    }

    /// The queue pair may have failed.
    pub(crate) fn doubt(&self) {
        let mut noted = self.noted.lock();
        noted.doubt = true;
        noted.steps += 1;
    }

    /// A change begins.
    pub(crate) fn begin(&self) -> Change {
        let mut noted = self.noted.lock();
        noted.running += 1;
        noted.steps += 1;
        Change { alone: noted.running == 1, steps: noted.steps }
    }

    /// It ended, and put the queue pair into `state`, or failed.
    pub(crate) fn end(&self, change: &Change, state: Option<QpState>) {
        let mut noted = self.noted.lock();
        noted.running -= 1;
        let undisturbed = change.alone && change.steps == noted.steps;
        if let Some(state) = state {
            self.set(&mut noted, state);
            noted.doubt = !undisturbed;
        } else {
            noted.doubt |= !undisturbed;
        }
    }

    /// The device is about to be asked.
    pub(crate) fn ask(&self) -> Question {
        Question { steps: self.noted.lock().steps }
    }

    /// What it said. It counts only if nothing happened meanwhile; and only the error state is final: what a failure changes, it may
    /// change after its completion is seen.
    pub(crate) fn answered(&self, question: &Question, state: QpState) {
        let mut noted = self.noted.lock();
        if noted.running == 0 && question.steps == noted.steps {
            self.set(&mut noted, state);
            noted.doubt &= state != QpState::Err;
        }
    }

    fn set(&self, noted: &mut Noted, state: QpState) {
        noted.state = state;
        self.state.store(state as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_their_places() {
        for state in STATES {
            assert_eq!(StateNote::new(state).noted(), state);
        }
    }

    #[test]
    fn a_change_alone_is_certain() {
        let note = StateNote::new(QpState::Reset);
        let change = note.begin();
        note.end(&change, Some(QpState::Init));
        assert_eq!(note.certain(), Some(QpState::Init));
        let change = note.begin();
        note.end(&change, None);
        assert_eq!(note.certain(), Some(QpState::Init));
    }

    #[test]
    fn changes_that_overlap_leave_doubt() {
        let note = StateNote::new(QpState::Rts);
        let (first, second) = (note.begin(), note.begin());
        note.end(&second, Some(QpState::Err));
        note.end(&first, Some(QpState::Rts));
        assert_eq!(note.certain(), None);
        note.answered(&note.ask(), QpState::Err);
        assert_eq!(note.certain(), Some(QpState::Err));
    }

    #[test]
    fn an_answer_older_than_a_change_is_ignored() {
        let note = StateNote::new(QpState::Rts);
        let question = note.ask();
        let change = note.begin();
        note.end(&change, Some(QpState::Reset));
        note.answered(&question, QpState::Rts);
        assert_eq!(note.certain(), Some(QpState::Reset));
    }

    #[test]
    fn a_failure_during_a_change_is_not_forgotten() {
        let note = StateNote::new(QpState::Rtr);
        let change = note.begin();
        note.doubt();
        note.end(&change, Some(QpState::Rts));
        assert_eq!(note.certain(), None);
        // The failure is on its way: the device does not say so yet.
        note.answered(&note.ask(), QpState::Rts);
        assert_eq!(note.certain(), None);
        let change = note.begin();
        note.end(&change, Some(QpState::Reset));
        assert_eq!(note.certain(), Some(QpState::Reset));
    }
}
