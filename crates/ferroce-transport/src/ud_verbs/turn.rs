//! One thread's turn of progress: what came is handed over with no lock held.

use super::{Handler, InterfaceAddress, Message, Shared, UdEndpoint, UdVerbs};
use crate::uct::{self, PENDING_TURN, PendingStatus};
use crate::ud::{EndpointId, PeerAddress};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What came, between its arrival and its handlers; kept, so that it costs no allocation.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) messages: VecDeque<(EndpointId, PeerAddress, u8, Range<usize>)>,
    pub(super) bytes: Vec<u8>,
    /// Flushes that are over.
    pub(super) flushed: VecDeque<(uct::Completion, Result<(), uct::OpFailure>)>,
}

impl Inbox {
    /// How much was not handed over.
    pub(super) fn left(&self) -> usize {
        self.messages.len() + self.flushed.len()
    }
}

/// No other thread makes progress while this exists. Dropped, also because a handler panics, it keeps what was not handed over for the next.
pub(super) struct Turn<'a> {
    shared: &'a Arc<Shared>,
    /// `None` once it is back where others find it.
    inbox: Option<Box<Inbox>>,
}

impl<'a> Turn<'a> {
    /// With the state locked, and if there is none.
    pub(super) fn begin(shared: &'a Arc<Shared>, inbox: Box<Inbox>) -> Self {
        shared.progressing.store(true, Ordering::Relaxed);
        Self { shared, inbox: Some(inbox) }
    }

    /// Flushes that are over.
    pub(super) fn flushed(&mut self) -> &mut VecDeque<(uct::Completion, Result<(), uct::OpFailure>)> {
        &mut self.inbox.get_or_insert_default().flushed
    }

    /// Calls whom it concerns. So many endpoints have failed of which nobody was told.
    pub(super) fn hand_over(mut self, failed: usize) {
        let Inbox { messages, bytes, .. } = &mut **self.inbox.get_or_insert_default();
        while let Some((endpoint, peer, am, range)) = messages.pop_front() {
            let handlers = self.shared.handlers.load();
            let payload = &bytes[range];
            match &handlers[usize::from(am)] {
                Some(Handler::Own(handler)) => handler(Message { peer: InterfaceAddress(peer), payload }),
                Some(Handler::Uct(handler)) => handler(uct::Message { endpoint: endpoint.to_uct(), payload }),
                None => {
                    self.shared.no_handler.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        bytes.clear();
        for _ in 0..failed {
            self.tell();
        }
        while let Some((completion, outcome)) = self.inbox.as_mut().and_then(|it| it.flushed.pop_front()) {
            completion.complete(outcome.map(|()| &[][..]));
        }
        let mut state = self.shared.state.lock();
        state.inbox = self.inbox.take();
        let due = state.waiting.due();
        drop(state);
        if due != 0 {
            self.dispatch(due);
        }
    }

    /// Who wants to know that an endpoint failed is taken out when it is called, and not before: the endpoint may be dropped meanwhile.
    fn tell(&self) {
        let mut state = self.shared.state.lock();
        let Some(id) = state.failed.pop_front() else { return };
        let told = state.told.remove(&id);
        let failure = state.failures.get(&id).copied().filter(|_| !state.waiting.is_canceled(id));
        drop(state);
        if let (Some(told), Some((failure, at))) = (told, failure) {
            told(failure, at);
        }
    }

    /// Calls requests that wait, of at most `due` endpoints.
    fn dispatch(&self, due: usize) {
        for _ in 0..due {
            let mut state = self.shared.state.lock();
            let Some(id) = state.waiting.next_due() else { return };
            let Some(&peer) = state.peers.get(&id) else { continue };
            drop(state);
            let interface = UdVerbs(self.shared.clone());
            self.dispatch_one(&UdEndpoint { interface, id, peer, owned: false });
        }
    }

    fn dispatch_one(&self, endpoint: &UdEndpoint) {
        let id = endpoint.id;
        for _ in 0..PENDING_TURN {
            let mut state = self.shared.state.lock();
            if state.failures.contains_key(&id) || state.waiting.is_canceled(id) {
                return;
            }
            let Some(mut request) = state.waiting.take(id) else { return };
            drop(state);
            let status = request(endpoint);
            let mut state = self.shared.state.lock();
            if status == PendingStatus::NoResource && state.peers.contains_key(&id) {
                state.waiting.put_back(id, request);
                self.shared.stir();
                return;
            }
            state.waiting.done(id);
            drop(state);
        }
        // The others first; in the next turn, whoever makes it.
        let mut state = self.shared.state.lock();
        state.waiting.call(id);
        self.shared.stir();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(inbox) = self.inbox.take() {
            self.shared.state.lock().inbox = Some(inbox);
        }
        if std::thread::panicking() {
            // What is left, and who else waits, has to be looked at. By the next turn: nobody else has a request out now.
            self.shared.state.lock().waiting.call_all();
        }
        self.shared.progressing.store(false, Ordering::Release);
        if std::thread::panicking() {
            let _state = self.shared.state.lock();
            self.shared.stir();
        }
    }
}
