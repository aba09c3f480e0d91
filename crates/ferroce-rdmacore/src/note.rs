//! What this process knows of a queue pair's state without asking the kernel.

use crate::flags::{FAILED, Flags};
use ferroce_verbs::QpState;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// All states, in the order of their numbers.
const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

/// The state as last set, and whether something may have changed it since.
///
/// Asking costs a system call, so the state is noted when it is set. A queue pair also changes by itself, when a request fails; its
/// completion or an event then sets a flag ([`FAILED`]), and whoever wants the state asks. Changes that overlap in time leave doubt too, as
/// it is the device that orders them.
pub(crate) struct StateNote {
    noted: Mutex<Noted>,
    /// The same state, for those who post: they have no time for a lock, and may as well see the one before.
    state: AtomicU8,
    flags: Arc<Flags>,
    qp_num: u32,
}

struct Noted {
    state: QpState,
    doubt: Doubt,
    /// Changes that have begun and not ended.
    running: u32,
    /// Changes that have begun, and doubts.
    steps: u64,
}

/// Why the state as noted may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doubt {
    None,
    /// Changes overlapped: the device knows which came last.
    Order,
    /// Something failed. The device may put the queue pair into the error state later than it said so, so only that state, or a RESET,
    /// leaves nothing to come.
    Failure,
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
    /// Of a queue pair in RESET, whose flags have begun.
    pub(crate) fn new(flags: Arc<Flags>, qp_num: u32) -> Self {
        let state = QpState::Reset;
        let noted = Noted { state, doubt: Doubt::None, running: 0, steps: 0 };
        Self { noted: Mutex::new(noted), state: AtomicU8::new(state as u8), flags, qp_num }
    }

    /// The state as noted: what it is, or was before it failed.
    #[inline]
    pub(crate) fn noted(&self) -> QpState {
        STATES[usize::from(self.state.load(Ordering::Relaxed))]
    }

    /// Whether something has failed and nobody has asked the device since: what of [`Self::certain`] costs no lock.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.flags.has(self.qp_num, FAILED)
    }

    /// Whoever looks hears of failures first.
    fn lock(&self) -> MutexGuard<'_, Noted> {
        let mut noted = self.noted.lock();
        if self.flags.take(self.qp_num, FAILED) {
            noted.doubt = Doubt::Failure;
            noted.steps += 1;
        }
        noted
    }

    /// The state, if it is certain.
    pub(crate) fn certain(&self) -> Option<QpState> {
        let noted = self.lock();
        (noted.doubt == Doubt::None).then_some(noted.state)
    }

    /// The queue pair may have failed.
    pub(crate) fn doubt(&self) {
        self.flags.set(self.qp_num, FAILED);
    }

    /// A change begins.
    pub(crate) fn begin(&self) -> Change {
        let mut noted = self.lock();
        noted.running += 1;
        noted.steps += 1;
        Change { alone: noted.running == 1, steps: noted.steps }
    }

    /// It ended, and put the queue pair into `state`, or failed.
    pub(crate) fn end(&self, change: &Change, state: Option<QpState>) {
        let mut noted = self.lock();
        noted.running -= 1;
        let undisturbed = change.alone && change.steps == noted.steps;
        if let Some(state) = state {
            self.set(&mut noted, state);
            let settles = noted.doubt == Doubt::Order || matches!(state, QpState::Reset | QpState::Err);
            if undisturbed && settles {
                noted.doubt = Doubt::None;
            }
        }
        if !undisturbed {
            noted.doubt = noted.doubt.max(Doubt::Order);
        }
    }

    /// The device is about to be asked.
    pub(crate) fn ask(&self) -> Question {
        Question { steps: self.lock().steps }
    }

    /// What it said. It counts only if nothing happened meanwhile.
    pub(crate) fn answered(&self, question: &Question, state: QpState) {
        let mut noted = self.lock();
        if noted.running == 0 && question.steps == noted.steps {
            self.set(&mut noted, state);
            if noted.doubt == Doubt::Order || state == QpState::Err {
                noted.doubt = Doubt::None;
            }
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

    /// Of a queue pair that was put into `state`.
    fn note(state: QpState) -> StateNote {
        let flags = Arc::<Flags>::default();
        flags.begin(1, 0);
        let note = StateNote::new(flags, 1);
        change(&note, Some(state));
        note
    }

    fn change(note: &StateNote, state: Option<QpState>) {
        let change = note.begin();
        note.end(&change, state);
    }

    #[test]
    fn states_have_their_places() {
        for state in STATES {
            assert_eq!(note(state).noted(), state);
        }
    }

    #[test]
    fn a_change_alone_is_certain() {
        let note = note(QpState::Reset);
        change(&note, Some(QpState::Init));
        assert_eq!(note.certain(), Some(QpState::Init));
        change(&note, None);
        assert_eq!(note.certain(), Some(QpState::Init));
    }

    #[test]
    fn changes_that_overlap_leave_doubt() {
        for said in [QpState::Err, QpState::Rts] {
            let note = note(QpState::Rts);
            let (first, second) = (note.begin(), note.begin());
            note.end(&second, Some(QpState::Err));
            note.end(&first, Some(QpState::Rts));
            assert_eq!(note.certain(), None);
            note.answered(&note.ask(), said);
            assert_eq!(note.certain(), Some(said), "nothing failed, so the answer is the last word");
        }
    }

    #[test]
    fn an_answer_older_than_a_change_is_ignored() {
        let note = note(QpState::Rts);
        let question = note.ask();
        change(&note, Some(QpState::Reset));
        note.answered(&question, QpState::Rts);
        assert_eq!(note.certain(), Some(QpState::Reset));
    }

    #[test]
    fn a_failure_during_a_change_is_not_forgotten() {
        let note = note(QpState::Rtr);
        let change_to_rts = note.begin();
        note.doubt();
        note.end(&change_to_rts, Some(QpState::Rts));
        assert_eq!(note.certain(), None);
        // The failure is on its way: the device does not say so yet.
        note.answered(&note.ask(), QpState::Rts);
        assert_eq!(note.certain(), None);
        change(&note, Some(QpState::Reset));
        assert_eq!(note.certain(), Some(QpState::Reset));
    }

    #[test]
    fn a_failure_before_a_change_is_not_forgotten() {
        let note = note(QpState::Rtr);
        note.doubt();
        change(&note, Some(QpState::Rts));
        assert_eq!(note.certain(), None, "the device may put it into ERR after that");
        change(&note, Some(QpState::Err));
        assert_eq!(note.certain(), Some(QpState::Err));
    }
}
