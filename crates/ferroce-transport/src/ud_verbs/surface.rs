//! ud_verbs as the transports' common surface has it.

use super::waiting::Waiting;
use super::{Handler, InterfaceAddress, Shared, State, UdEndpoint, UdVerbs};
use crate::uct::{
    AmHandler, Arm, AtomicOp, Cause, Completion, Endpoint, EventCaps, Evidence, Failure, FailureHandler, FlushKind,
    Interface, InterfaceAttr, InterfaceFlags, Iov, OpError, OpFailure, OpLimits, Packer, PendingError, PendingRequest,
    PendingStatus, Posted, Remote, Unreachable, check_addresses,
};
use crate::ud::{self, EndpointId, Nanos, SendError};
use ferroce_verbs::Result;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

const NAME: &str = "ud_verbs";
/// Pieces of memory that one message takes.
const MAX_IOV: usize = 16;
/// While an address is being resolved, whoever sleeps looks this often: what resolves it wakes nobody.
const RESOLVING: Duration = Duration::from_millis(1);

pub(super) fn attributes(protocol: &ud::Config, inline: usize) -> InterfaceAttr {
    let most = protocol.max_message();
    let keepalive = protocol.keepalive.map_or(InterfaceFlags::empty(), |_| InterfaceFlags::EP_KEEPALIVE);
    InterfaceAttr {
        name: NAME,
        am: OpLimits {
            max_short: most.min(inline.saturating_sub(ud::HEADER_LEN)),
            max_bcopy: most,
            // Messages are kept until they are acknowledged, so all of them are copied: a zcopy is over at once.
            max_zcopy: most,
            max_iov: MAX_IOV,
            max_header: most,
        },
        flags: keepalive
            | InterfaceFlags::PENDING
            | InterfaceFlags::CONNECT_TO_IFACE
            | InterfaceFlags::EP_CHECK
            | InterfaceFlags::ERRHANDLE_PEER_FAILURE
            | InterfaceFlags::INTER_NODE,
        events: EventCaps::SEND_COMP | EventCaps::RECV | EventCaps::TIMER | EventCaps::FD,
        iface_addr_len: InterfaceAddress::LEN,
        ..InterfaceAttr::default()
    }
}

/// A failure as all transports have it.
fn common(failure: ud::Failure, at: Nanos) -> Failure {
    let cause = match failure.cause {
        ud::Cause::ConnectTimeout => Cause::ConnectTimeout,
        ud::Cause::PeerTimeout => Cause::PeerTimeout,
        ud::Cause::Unreachable => Cause::Unreachable,
        ud::Cause::Reset => Cause::Closed,
    };
    let ago = |time: Nanos| Some(Duration::from_nanos(at.saturating_sub(time)));
    let seen = failure.evidence;
    let evidence = Evidence {
        last_receive: ago(seen.last_heard),
        last_ack: ago(seen.last_progress),
        retransmissions: seen.retransmissions,
        probes: seen.probes,
        timer_late_by: Duration::from_nanos(seen.timer_late_by),
        ..Evidence::default()
    };
    Failure { cause, evidence }
}

impl Shared {
    /// Something has changed that whoever sleeps has to know: a timer, or requests.
    pub(super) fn stir(&self) {
        // That the timer cannot be set is said by whoever arms it next.
        let _ = self.wakeup.wake();
    }
}

impl State {
    /// Sends a message, as far as there is room. A few are sent together unless `at_once`.
    pub(super) fn send(
        &mut self,
        now: Nanos,
        id: EndpointId,
        am: u8,
        payload: &[u8],
        at_once: bool,
    ) -> Result<(), SendError> {
        let sent = self.protocol.send(now, id, am, payload);
        if let Err(SendError::Busy(_)) = sent {
            self.waiting.block(id);
        }
        sent?;
        if at_once || !self.protocol.gathers(id) {
            self.pump(now);
        }
        Ok(())
    }

    /// Flushes that are over.
    pub(super) fn settle_flushes(&mut self, now: Nanos, flushed: &mut Vec<(Completion, Result<(), OpFailure>)>) {
        let Self { waiting: Waiting { flushes, .. }, protocol, failures, .. } = self;
        if flushes.is_empty() {
            return;
        }
        let over = |(id, _): &mut (EndpointId, Completion)| !matches!(protocol.flush(now, *id), Ok(false));
        for (id, completion) in flushes.extract_if(.., over) {
            let outcome = match failures.get(&id) {
                Some(&(failure, at)) => Err(OpFailure::Failed(common(failure, at))),
                None => Ok(()),
            };
            flushed.push((completion, outcome));
        }
        self.pump(now);
    }
}

impl UdVerbs {
    /// Calls requests that wait, of at most `due` endpoints.
    pub(super) fn dispatch(&self, due: usize) {
        for _ in 0..due {
            let mut state = self.0.state.lock();
            let Some(id) = state.waiting.next() else { return };
            let Some(&peer) = state.peers.get(&id) else { continue };
            drop(state);
            self.dispatch_one(&UdEndpoint { interface: self.clone(), id, peer, owned: false });
        }
    }

    fn dispatch_one(&self, endpoint: &UdEndpoint) {
        let id = endpoint.id;
        loop {
            let mut state = self.0.state.lock();
            if state.failures.contains_key(&id) || state.waiting.is_canceled(id) {
                return;
            }
            let Some(mut request) = state.waiting.take(id) else { return };
            drop(state);
            if request(endpoint) == PendingStatus::NoResource {
                let mut state = self.0.state.lock();
                if state.peers.contains_key(&id) {
                    state.waiting.put_back(id, request);
                }
                return;
            }
        }
    }
}

impl Interface for UdVerbs {
    fn attr(&self) -> &InterfaceAttr {
        &self.0.attr
    }

    fn address_bytes(&self) -> Vec<u8> {
        self.address().to_bytes().to_vec()
    }

    fn is_reachable(&self, address: &[u8]) -> Result<(), Unreachable> {
        let why = "it has 20 bytes, a GID and a queue pair that can be somebody's";
        let peer = InterfaceAddress::from_bytes(address).map_err(|_| Unreachable::Malformed {
            transport: NAME,
            len: address.len(),
            why,
        })?;
        let ip = peer.0.gid.ip();
        check_addresses(self.0.local.gid.ip(), ip)?;
        let found = self.0.state.lock().links.reach(peer.0);
        found.map_err(|error| Unreachable::NoRoute { peer: ip, why: error.to_string() })
    }

    fn set_am(&self, am: u8, handler: Option<AmHandler>) -> Result<(), OpError> {
        let mut handlers = self.0.handlers.write();
        let slot = handlers.get_mut(usize::from(am)).ok_or(OpError::AmId(am))?;
        let before = std::mem::replace(slot, handler.map(Handler::Uct));
        drop(handlers);
        // Somebody else's destructor.
        drop(before);
        Ok(())
    }

    fn progress(&self) -> Result<usize> {
        Self::progress(self)
    }

    fn next_timeout(&self) -> Option<Duration> {
        Self::next_timeout(self)
    }

    fn flush(&self) -> bool {
        let mut state = self.0.state.lock();
        let now = self.0.now();
        let ids: Vec<EndpointId> = state.peers.keys().copied().collect();
        let mut done = true;
        for id in ids {
            done &= !matches!(state.protocol.flush(now, id), Ok(false));
        }
        state.pump(now);
        done
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.wakeup.fd()
    }

    fn arm(&self) -> Result<Arm> {
        if self.0.progressing.load(Ordering::Acquire) {
            return Ok(Arm::Busy);
        }
        let mut state = self.0.state.lock();
        // Nothing waits for more to be sent with while its sender sleeps.
        state.pump(self.0.now());
        state.queue.arm()?;
        let timeout = self.0.timeout_of(&state);
        let timeout =
            if state.links.waits() { Some(timeout.map_or(RESOLVING, |it| it.min(RESOLVING))) } else { timeout };
        self.0.wakeup.arm(timeout)?;
        state.reap()?;
        // First armed, then looked: what comes between is seen by one or the other.
        let room = !state.overflow.is_empty() && state.queue.has_room();
        let due = timeout.is_some_and(|timeout| timeout.is_zero());
        if state.queue.has_received()? || state.waiting.is_due() || room || due {
            return Ok(Arm::Busy);
        }
        Ok(Arm::Armed)
    }
}

impl UdEndpoint {
    fn common_error(&self, state: &State, error: SendError) -> OpError {
        let id = self.id.to_uct();
        match error {
            SendError::Busy(_) => OpError::NoResource,
            SendError::TooLong { len, most } => OpError::TooLong { what: "an active message", len, most },
            SendError::AmId(am) => OpError::AmId(am),
            SendError::Failed(_) if state.waiting.is_canceled(self.id) => OpError::Canceled(id),
            SendError::Failed(_) => match state.failures.get(&self.id) {
                Some(&(failure, at)) => OpError::Failed(id, common(failure, at)),
                // It failed just now; progress will say why.
                None => OpError::NoResource,
            },
            SendError::NoEndpoint(_) | SendError::Full => OpError::Canceled(id),
        }
    }

    fn send(&self, am: u8, payload: &[u8]) -> Result<(), OpError> {
        let shared = &self.interface.0;
        let mut state = shared.state.lock();
        let now = shared.now();
        let sent = state.send(now, self.id, am, payload, shared.wakeup.is_armed());
        let sent = sent.map_err(|error| self.common_error(&state, error));
        shared.stir();
        sent
    }

    /// Copies a message together before anything is locked: packing is the program's.
    fn packed(&self, pack: impl FnOnce(&mut Packer<'_>) -> Result<()>) -> Result<Vec<u8>, OpError> {
        let most = self.interface.0.attr.am.max_bcopy;
        let mut bytes = Vec::new();
        let mut packer = Packer::to_bytes(&mut bytes, most);
        pack(&mut packer)?;
        match packer.finish() {
            Ok(_) => Ok(bytes),
            Err(full) => Err(OpError::TooLong { what: "an active message", len: full.len, most }),
        }
    }
}

fn unsupported<T>(what: &'static str) -> Result<T, OpError> {
    Err(OpError::Unsupported(what, NAME))
}

/// Its answer is that it cannot be begun.
fn refuse(completion: Option<Completion>, what: &'static str) -> Result<Posted, OpError> {
    completion.into_iter().for_each(Completion::disarm);
    unsupported(what)
}

impl Endpoint for UdEndpoint {
    fn id(&self) -> crate::uct::EndpointId {
        self.id.to_uct()
    }

    fn failure(&self) -> Option<Failure> {
        let state = self.interface.0.state.lock();
        if state.waiting.is_canceled(self.id) {
            return None;
        }
        state.failures.get(&self.id).map(|&(failure, at)| common(failure, at))
    }

    fn on_failure(&self, told: FailureHandler) {
        if let Some(failure) = Endpoint::failure(self) {
            return told(failure);
        }
        let before =
            self.interface.0.state.lock().told.insert(self.id, Box::new(|failure, at| told(common(failure, at))));
        // Somebody else's destructor.
        drop(before);
    }

    fn is_connected(&self, address: &[u8]) -> bool {
        InterfaceAddress::from_bytes(address).is_ok_and(|peer| Self::is_connected(self, peer))
    }

    fn am_short(&self, am: u8, payload: &[u8]) -> Result<(), OpError> {
        let most = self.interface.0.attr.am.max_short;
        if payload.len() > most {
            return Err(OpError::TooLong { what: "a short active message", len: payload.len(), most });
        }
        self.send(am, payload)
    }

    fn am_bcopy(&self, am: u8, pack: &mut dyn FnMut(&mut Packer<'_>)) -> Result<usize, OpError> {
        let bytes = self.packed(|packer| {
            pack(packer);
            Ok(())
        })?;
        self.send(am, &bytes)?;
        Ok(bytes.len())
    }

    fn am_zcopy(
        &self,
        am: u8,
        header: &[u8],
        iov: &[Iov<'_>],
        completion: Option<Completion>,
    ) -> Result<Posted, OpError> {
        // Whatever comes of it, it is over when this returns.
        completion.into_iter().for_each(Completion::disarm);
        if iov.len() > MAX_IOV {
            return Err(OpError::TooManyPieces { len: iov.len(), most: MAX_IOV });
        }
        let bytes = self.packed(|packer| {
            let _ = packer.put(header);
            for piece in iov {
                let mut bytes = vec![0; piece.range.len().min(packer.room() + 1)];
                piece.mr.read(piece.range.start, &mut bytes)?;
                let _ = packer.put(&bytes);
            }
            Ok(())
        })?;
        self.send(am, &bytes)?;
        Ok(Posted::Done)
    }

    fn put_short(&self, _: &[u8], _: Remote) -> Result<(), OpError> {
        unsupported("a put")
    }

    fn put_bcopy(&self, _: &mut dyn FnMut(&mut Packer<'_>), _: Remote) -> Result<usize, OpError> {
        unsupported("a put")
    }

    fn put_zcopy(&self, _: &[Iov<'_>], _: Remote, completion: Option<Completion>) -> Result<Posted, OpError> {
        refuse(completion, "a put")
    }

    fn get_bcopy(&self, _: usize, _: Remote, completion: Completion) -> Result<Posted, OpError> {
        refuse(Some(completion), "a get")
    }

    fn get_zcopy(&self, _: &[Iov<'_>], _: Remote, completion: Option<Completion>) -> Result<Posted, OpError> {
        refuse(completion, "a get")
    }

    fn atomic64_post(&self, _: AtomicOp, _: u64, _: Remote) -> Result<(), OpError> {
        unsupported("an atomic")
    }

    fn atomic64_fetch(&self, _: AtomicOp, _: u64, _: Remote, completion: Completion) -> Result<Posted, OpError> {
        refuse(Some(completion), "an atomic")
    }

    fn atomic64_cswap(&self, _: u64, _: u64, _: Remote, completion: Completion) -> Result<Posted, OpError> {
        refuse(Some(completion), "an atomic")
    }

    /// What is acknowledged was delivered to the peer's interface, so local and remote are one. What is sent while a flush waits is waited
    /// for, too.
    fn flush(&self, kind: FlushKind, mut completion: Option<Completion>) -> Result<Posted, OpError> {
        let shared = &self.interface.0;
        let mut state = shared.state.lock();
        let now = shared.now();
        let mut canceled = Vec::new();
        let answer = if kind == FlushKind::Cancel {
            state.waiting.cancel(self.id);
            // What was not acknowledged is forgotten; all of it was copied, so there is nothing to wait for.
            state.protocol.unreachable(now, self.id);
            canceled = state.waiting.take_flushes(self.id);
            Ok(Posted::Done)
        } else {
            match state.protocol.flush(now, self.id) {
                Ok(true) => Ok(Posted::Done),
                Ok(false) if completion.is_some() && !state.waiting.has_room_for_flush() => Err(OpError::NoResource),
                Ok(false) => {
                    state.waiting.flushes.extend(completion.take().map(|completion| (self.id, completion)));
                    Ok(Posted::InProgress)
                }
                Err(error) => Err(self.common_error(&state, error)),
            }
        };
        state.pump(now);
        shared.stir();
        drop(state);
        completion.into_iter().for_each(Completion::disarm);
        drop(canceled);
        answer
    }

    /// Messages of one endpoint are in order: there is nothing to do.
    fn fence(&self) -> Result<(), OpError> {
        Ok(())
    }

    fn check(&self) -> Result<(), OpError> {
        let checked = Self::check(self);
        checked.map_err(|error| self.common_error(&self.interface.0.state.lock(), error))
    }

    fn pending_add(&self, request: PendingRequest) -> Result<(), PendingError> {
        let shared = &self.interface.0;
        let mut state = shared.state.lock();
        if state.waiting.is_canceled(self.id) {
            return Err(PendingError::Over(request, None));
        }
        if let Some(&(failure, at)) = state.failures.get(&self.id) {
            return Err(PendingError::Over(request, Some(common(failure, at))));
        }
        if !state.waiting.is_blocked(self.id) {
            return Err(PendingError::Busy(request));
        }
        state.waiting.add(self.id, request);
        shared.stir();
        Ok(())
    }

    fn pending_purge(&self, take: &mut dyn FnMut(PendingRequest)) {
        let requests = self.interface.0.state.lock().waiting.purge(self.id);
        requests.into_iter().for_each(take);
    }
}
