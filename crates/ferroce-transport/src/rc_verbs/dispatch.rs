//! Requests that wait for resources, and grants that do.

use super::core::{Core, Phase, State};
use super::counters::count;
use super::endpoint::RcEndpoint;
use super::progress::Progress;
use super::wire::Control;
use super::{RcVerbs, Shared};
use crate::uct::{OpError, PENDING_TURN, PendingStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A handler that panics leaves things undone: somebody has to look.
pub(super) struct Left<'a>(pub(super) &'a Shared);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.look_at(true);
        }
    }
}

impl RcVerbs {
    /// Calls requests that wait, as far as there are resources.
    pub(super) fn dispatch(&self, progress: &mut Progress) {
        let shared = &*self.0;
        progress.freed = false;
        shared.look.store(false, Ordering::Relaxed);
        // Those that were added meanwhile come after those that were there before.
        progress.waiting.extend(shared.waiting.lock().drain(..));
        for _ in 0..progress.waiting.len() {
            // It stays first while its requests are called, should one panic.
            let Some(&id) = progress.waiting.front() else { return };
            let core = shared.table.read().get(id).cloned();
            let waits = core.is_some_and(|core| self.dispatch_one(&core));
            progress.waiting.pop_front();
            if waits {
                progress.waiting.push_back(id);
            }
        }
    }

    /// Calls the requests of one endpoint; whether some still wait.
    fn dispatch_one(&self, core: &Arc<Core>) -> bool {
        let shared = &*self.0;
        // Lent to the requests.
        let endpoint = RcEndpoint { interface: self.clone(), core: core.clone(), owned: false };
        for _ in 0..PENDING_TURN {
            let mut state = core.lock();
            if state.grant_owed && !shared.send_grant(core, &mut state) {
                return true;
            }
            let over = state.closed || matches!(state.phase, Phase::Failed(_) | Phase::Canceled);
            if over || state.pending.is_empty() {
                state.listed = false;
                return false;
            }
            if state.phase != Phase::Ready || !state.has_room(core) {
                return true;
            }
            let Some(mut request) = state.pending.pop_front() else { return false };
            drop(state);
            if request(&endpoint) == PendingStatus::NoResource {
                let mut state = core.lock();
                if !state.closed {
                    state.pending.push_front(request);
                    return true;
                }
                drop(state);
                drop(request);
                return false;
            }
        }
        // The others first.
        shared.look_at(true);
        true
    }
}

impl Shared {
    /// Grants what the peer may send; whether there is nothing more to be said.
    pub(super) fn send_grant(&self, core: &Core, state: &mut State) -> bool {
        match state.ready(core, self) {
            Ok(mut ready) => {
                let sent = ready.control(Control::Grant).is_ok();
                if sent {
                    count(&self.counters.grants_sent);
                }
                sent
            }
            // As soon as it is connected.
            Err(OpError::NotConnected(_)) => false,
            // Nobody is there who would use it.
            Err(_) => {
                state.grant_owed = false;
                true
            }
        }
    }
}
