use super::entry::AhLease;
use super::error::{AhError, Destination};
use super::key::Key;
use super::neighbours::Moment;
use super::table::Core;
use crate::sync::{Condvar, Mutex};
use crate::{Ah, AhAttr, Error, Pd, Result};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// One resolution, for all who wait for it.
pub(super) struct Flight {
    pub(super) attr: AhAttr,
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    wakers: Vec<Waker>,
}

/// It holds the address handle too, until all who wait have it.
type Outcome = Result<AhLease, AhError>;

impl Flight {
    pub(super) fn new(attr: &AhAttr) -> Arc<Self> {
        Arc::new(Self { attr: *attr, state: Mutex::new(State::default()), landed: Condvar::new() })
    }

    /// Tells everybody. With no lock held: what wakes up may do anything.
    pub(super) fn land(&self, outcome: Outcome) {
        let wakers = {
            let mut state = self.state.lock();
            state.outcome = Some(outcome);
            std::mem::take(&mut state.wakers)
        };
        self.landed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits for the outcome, at most so long.
    pub(super) fn wait(&self, limit: Duration) -> Result<AhLease, AhError> {
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone();
            }
            if self.landed.wait_until(&mut state, deadline).timed_out() && state.outcome.is_none() {
                return Err(AhError::Wait { to: Destination(self.attr), seconds: limit.as_secs() });
            }
        }
    }

    pub(super) fn try_take(&self) -> Option<Outcome> {
        self.state.lock().outcome.as_ref().cloned()
    }

    fn poll(&self, waker: &Waker) -> Poll<Outcome> {
        let mut state = self.state.lock();
        if let Some(outcome) = &state.outcome {
            return Poll::Ready(outcome.clone());
        }
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        Poll::Pending
    }
}

/// The duty to resolve an address: [`AhResolver::start`](super::AhResolver::start) gets one. If it is dropped, everybody who waits
/// gets an error.
pub struct Resolution {
    pub(super) core: Arc<Core>,
    pub(super) flight: Arc<Flight>,
    pub(super) key: Key,
    pub(super) hash: u64,
    pub(super) pd: Pd,
    /// When it began.
    pub(super) since: u64,
    /// When it was begun the last time: what neighbours changed to until then it has seen.
    pub(super) begun: Moment,
    /// How often it was begun anew so far.
    pub(super) repeats: u32,
    /// Everybody was told.
    pub(super) is_done: bool,
    /// It is in the table of those under way; otherwise somebody bypasses the cache.
    pub(super) is_shared: bool,
}

impl Resolution {
    /// The protection domain that the address handle is to belong to.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The address.
    #[must_use]
    pub fn attr(&self) -> &AhAttr {
        &self.flight.attr
    }

    /// Has the cache's resolver begin ([`AhResolver::start`](super::AhResolver::start)), which is somebody else's code.
    pub fn start(self) {
        let resolver = self.core.resolver.clone();
        resolver.start(self);
    }

    /// Tells everybody who waits.
    pub fn finish(self, outcome: Result<Ah>) {
        self.publish(outcome).into_iter().for_each(Self::start);
    }

    /// Calls the resolver and tells everybody who waits.
    pub(super) fn run(self) {
        let mut resolution = self;
        loop {
            let outcome = resolution.core.resolver.resolve(resolution.pd(), resolution.attr());
            match resolution.publish(outcome) {
                Some(again) => resolution = again,
                None => return,
            }
        }
    }

    /// Tells everybody who waits; or returns itself, if the address changed while it was resolved.
    fn publish(mut self, outcome: Result<Ah>) -> Option<Self> {
        let core = self.core.clone();
        core.publish(&mut self, outcome);
        (!self.is_done).then_some(self)
    }
}

impl Drop for Resolution {
    fn drop(&mut self) {
        if !self.is_done {
            // However often the address changed: nobody goes on.
            self.repeats = u32::MAX;
            let core = self.core.clone();
            core.publish(self, Err(Error::Device("whoever was resolving the address gave up".into())));
        }
    }
}

impl fmt::Debug for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resolution").field(&Destination(*self.attr())).finish()
    }
}

/// An address handle that is on its way. Wait for it as a future, with [`Self::wait`], or ask with [`Self::try_take`]. Dropping it
/// ends the waiting, not the resolution.
#[must_use]
pub struct AhPending(pub(super) Arc<Flight>);

impl AhPending {
    /// The address handle, or why there is none, if that is known by now. Never blocks.
    pub fn try_take(&self) -> Option<Outcome> {
        self.0.try_take()
    }

    /// Waits for it, at most so long.
    ///
    /// # Errors
    ///
    /// Why there is none; [`AhError::Wait`] if that is not known yet.
    pub fn wait(&self, limit: Duration) -> Result<AhLease, AhError> {
        self.0.wait(limit)
    }
}

impl Future for AhPending {
    type Output = Result<AhLease, AhError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context.waker())
    }
}

impl fmt::Debug for AhPending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AhPending").field(&Destination(self.0.attr)).finish()
    }
}
