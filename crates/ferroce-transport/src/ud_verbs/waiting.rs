//! Requests that wait for resources, and flushes that wait for acknowledgements.

use crate::uct::{Completion, PendingRequest};
use crate::ud::{EndpointId, Sent};
use std::collections::{HashMap, HashSet, VecDeque};

/// Flushes of one interface that may wait at a time.
const MAX_FLUSHES: usize = 4096;

/// A flush that waits until what was sent before it is acknowledged.
pub(super) struct Flush {
    pub(super) id: EndpointId,
    pub(super) sent: Sent,
    pub(super) completion: Completion,
}

/// What an endpoint found no room for when it last tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lacks {
    /// A message, in its window.
    Window,
    /// A flush, among those of the interface.
    Flush,
}

/// The requests of one endpoint. While one of them is called it is not in here, but the entry stays.
#[derive(Default)]
struct Requests {
    queue: VecDeque<PendingRequest>,
    /// It is in [`Waiting::due`].
    due: bool,
    /// It is in [`Waiting::restless`].
    restless: bool,
    /// One of them is being called.
    out: bool,
    /// There was room at some moment since that one was taken out: if it found none, that may be over.
    roomy: bool,
}

/// Who waits for what. Endpoints that wait for nothing have no entry; an endpoint costs something only when it is itself concerned, however
/// many wait.
#[derive(Default)]
pub(super) struct Waiting {
    requests: HashMap<EndpointId, Requests>,
    /// Those whose requests are to be called, in the order in which they came to be.
    due: VecDeque<EndpointId>,
    /// Those whose requests are waiting for something that only they know: they are called whenever anything came.
    restless: Vec<EndpointId>,
    /// Endpoints that found no room in their window when last tried.
    windowless: HashSet<EndpointId>,
    /// Those that found none for a flush.
    flushless: HashSet<EndpointId>,
    pub(super) flushes: Vec<Flush>,
    /// Endpoints that were canceled: they fail for nobody.
    canceled: HashSet<EndpointId>,
}

impl Waiting {
    /// It found no room.
    pub(super) fn block(&mut self, id: EndpointId, lacks: Lacks) {
        match lacks {
            Lacks::Window => self.windowless.insert(id),
            Lacks::Flush => self.flushless.insert(id),
        };
    }

    pub(super) fn is_blocked(&self, id: EndpointId) -> bool {
        self.lacks(id) || self.requests.get(&id).is_some_and(|it| !it.queue.is_empty())
    }

    /// It has room in its window again.
    pub(super) fn unblock(&mut self, id: EndpointId) {
        self.windowless.remove(&id);
        self.call(id);
    }

    fn lacks(&self, id: EndpointId) -> bool {
        self.windowless.contains(&id) || self.flushless.contains(&id)
    }

    /// There is room for flushes again; and whoever waits for the end of one may be a request.
    pub(super) fn flushes_ended(&mut self) {
        self.stir();
        for id in std::mem::take(&mut self.flushless) {
            self.call(id);
        }
    }

    /// Something came.
    pub(super) fn stir(&mut self) {
        for id in std::mem::take(&mut self.restless) {
            if let Some(requests) = self.requests.get_mut(&id) {
                requests.restless = false;
            }
            self.call(id);
            self.tidy(id);
        }
    }

    /// Has the requests of an endpoint called, if there are some.
    pub(super) fn call(&mut self, id: EndpointId) {
        let Some(requests) = self.requests.get_mut(&id) else { return };
        requests.roomy = true;
        if !requests.due && !requests.queue.is_empty() {
            requests.due = true;
            self.due.push_back(id);
        }
    }

    /// Has all requests called.
    pub(super) fn call_all(&mut self) {
        let ids: Vec<_> = self.requests.keys().copied().collect();
        for id in ids {
            // A handler that panicked has not put its request back.
            if let Some(requests) = self.requests.get_mut(&id) {
                requests.out = false;
            }
            self.call(id);
            self.tidy(id);
        }
    }

    pub(super) fn cancel(&mut self, id: EndpointId) {
        self.canceled.insert(id);
    }

    pub(super) fn is_canceled(&self, id: EndpointId) -> bool {
        self.canceled.contains(&id)
    }

    pub(super) fn has_room_for_flush(&self) -> bool {
        self.flushes.len() < MAX_FLUSHES
    }

    /// Adds a request, which is called as soon as somebody makes progress.
    pub(super) fn add(&mut self, id: EndpointId, request: PendingRequest) {
        self.requests.entry(id).or_default().queue.push_back(request);
        self.call(id);
    }

    /// The next endpoint whose requests are to be called.
    pub(super) fn next_due(&mut self) -> Option<EndpointId> {
        loop {
            let id = self.due.pop_front()?;
            let Some(requests) = self.requests.get_mut(&id) else { continue };
            requests.due = false;
            if !requests.queue.is_empty() {
                return Some(id);
            }
            self.tidy(id);
        }
    }

    /// Takes a request out to be called. It comes back with [`Self::put_back`], or is done with [`Self::done`].
    pub(super) fn take(&mut self, id: EndpointId) -> Option<PendingRequest> {
        let requests = self.requests.get_mut(&id)?;
        let request = requests.queue.pop_front()?;
        (requests.out, requests.roomy) = (true, false);
        Some(request)
    }

    /// What was taken out did what it wanted.
    pub(super) fn done(&mut self, id: EndpointId) {
        if let Some(requests) = self.requests.get_mut(&id) {
            requests.out = false;
        }
        self.tidy(id);
    }

    /// Puts a request back that could not do anything.
    pub(super) fn put_back(&mut self, id: EndpointId, request: PendingRequest) {
        let requests = self.requests.entry(id).or_default();
        requests.queue.push_front(request);
        requests.out = false;
        if requests.roomy {
            self.call(id);
        } else if !requests.restless && !self.lacks(id) {
            self.restless.push(id);
            if let Some(requests) = self.requests.get_mut(&id) {
                requests.restless = true;
            }
        }
    }

    /// Keeps no entry of an endpoint that has none, once no list names it.
    fn tidy(&mut self, id: EndpointId) {
        if self.requests.get(&id).is_some_and(|it| it.queue.is_empty() && !(it.out || it.due || it.restless)) {
            self.requests.remove(&id);
        }
    }

    pub(super) fn purge(&mut self, id: EndpointId) -> VecDeque<PendingRequest> {
        let Some(requests) = self.requests.get_mut(&id) else { return VecDeque::new() };
        let purged = std::mem::take(&mut requests.queue);
        self.tidy(id);
        purged
    }

    /// How many endpoints have requests that are to be called now.
    pub(super) fn due(&self) -> usize {
        self.due.len()
    }

    /// An endpoint is closed.
    pub(super) fn forget(&mut self, id: EndpointId) -> (VecDeque<PendingRequest>, Vec<Completion>) {
        self.windowless.remove(&id);
        self.flushless.remove(&id);
        self.canceled.remove(&id);
        (self.purge(id), self.take_flushes(id))
    }

    pub(super) fn take_flushes(&mut self, id: EndpointId) -> Vec<Completion> {
        let before = self.flushes.len();
        let taken = self.flushes.extract_if(.., |flush| flush.id == id).map(|flush| flush.completion).collect();
        if self.flushes.len() != before {
            self.flushes_ended();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uct::PendingStatus;

    fn id(number: u64) -> EndpointId {
        EndpointId::from_wire(number)
    }

    fn request() -> PendingRequest {
        Box::new(|_| PendingStatus::Done)
    }

    /// Calls what is due: each once, in vain.
    fn call_in_vain(it: &mut Waiting) -> Vec<EndpointId> {
        let mut called = Vec::new();
        while let Some(id) = it.next_due() {
            let request = it.take(id).unwrap();
            it.put_back(id, request);
            called.push(id);
        }
        called
    }

    fn blocked(count: u64) -> Waiting {
        let mut it = Waiting::default();
        for number in 1..=count {
            it.block(id(number), Lacks::Window);
            it.add(id(number), request());
        }
        call_in_vain(&mut it);
        it
    }

    /// With a request that is to be called, and waits for something else than room.
    fn waiting_for_else() -> Waiting {
        let mut it = blocked(1);
        it.unblock(id(1));
        it
    }

    #[test]
    fn only_those_that_have_room_are_called() {
        let mut it = blocked(1000);
        it.stir();
        assert_eq!(it.due(), 0, "something came that concerns none of them");
        it.unblock(id(7));
        it.unblock(id(7));
        assert_eq!((it.due(), it.next_due(), it.next_due()), (1, Some(id(7)), None));
    }

    #[test]
    fn room_that_comes_while_a_request_is_called_is_not_forgotten() {
        let mut it = blocked(1);
        it.unblock(id(1));
        assert_eq!(it.next_due(), Some(id(1)));
        let request = it.take(id(1)).unwrap();
        it.block(id(1), Lacks::Window);
        it.unblock(id(1));
        assert_eq!(it.due(), 0, "there is none to be called");
        it.put_back(id(1), request);
        assert_eq!(it.next_due(), Some(id(1)));
    }

    #[test]
    fn what_waits_for_something_else_is_called_when_anything_came() {
        let mut it = waiting_for_else();
        for _ in 0..3 {
            assert_eq!(call_in_vain(&mut it), [id(1)]);
            assert_eq!(it.due(), 0);
            it.stir();
        }
        assert_eq!(it.due(), 1);
    }

    #[test]
    fn room_for_flushes_concerns_those_that_lack_it() {
        let mut it = blocked(2);
        it.block(id(2), Lacks::Flush);
        it.flushes_ended();
        assert_eq!((it.next_due(), it.next_due()), (Some(id(2)), None));
        assert!(it.is_blocked(id(1)) && it.is_blocked(id(2)), "neither has a window");
        assert!(it.flushless.is_empty());
    }

    #[test]
    fn the_end_of_a_flush_may_be_what_a_request_waits_for() {
        let mut it = waiting_for_else();
        assert_eq!((call_in_vain(&mut it), it.due()), (vec![id(1)], 0));
        it.flushes_ended();
        assert_eq!(it.due(), 1);
    }

    #[test]
    fn what_is_closed_leaves_nothing() {
        let mut it = blocked(3);
        it.unblock(id(1));
        it.unblock(id(2));
        assert_eq!(it.next_due(), Some(id(1)));
        let out = it.take(id(1)).unwrap();
        for number in 1..=3 {
            it.forget(id(number));
        }
        drop(out);
        it.done(id(1));
        assert_eq!(it.next_due(), None);
        assert!(it.requests.is_empty() && it.windowless.is_empty() && it.due.is_empty(), "{}", it.requests.len());
    }
}
