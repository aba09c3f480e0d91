//! ud_verbs as the transports' common surface has it.

use super::waiting::{Flush, Lacks, Waiting};
use super::{Handler, InterfaceAddress, Shared, State, UdEndpoint, UdVerbs};
use crate::uct::{
    AmHandler, Arm, AtomicOp, Cause, Completion, Endpoint, EventCaps, Evidence, Failure, FailureHandler, FlushKind,
    Interface, InterfaceAttr, InterfaceFlags, Iov, OpError, OpFailure, OpLimits, Packer, PendingError, PendingRequest,
    Posted, Remote, Unreachable, check_addresses,
};
use crate::ud::{self, EndpointId, Nanos, SendError};
use ferroce_verbs::Result;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

const NAME: &str = "ud_verbs";
/// Pieces of memory that one message takes.
const MAX_IOV: usize = 16;
/// While an address is being resolved, or the device does not take receives, whoever sleeps looks this often: nobody is woken for that.
const SOON: Nanos = 1_000_000;

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
        resolution: seen.resolution,
        ..Evidence::default()
    };
    Failure { cause, evidence }
}

impl Shared {
    /// Something has changed that whoever sleeps has to know: a timer, or requests. To be called with the state locked.
    pub(super) fn stir(&self) {
        // That the timer cannot be set is said by whoever arms it next.
        let _ = self.wakeup.wake_under_lock();
    }

    /// Sends a message that `queue` queues, as far as there is room. A few are sent together, unless somebody may sleep meanwhile.
    #[inline]
    pub(super) fn send<E>(
        &self,
        id: EndpointId,
        queue: impl FnOnce(&mut ud::Interface, Nanos) -> Result<(), SendError>,
        explain: impl FnOnce(&State, SendError) -> E,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        let now = self.now();
        let sent = queue(&mut state.protocol, now);
        match sent {
            Ok(()) if state.fresh || self.wakeup.is_armed() || !state.protocol.gathers(id) => {
                state.fresh = false;
                state.pump(now);
            }
            Err(SendError::Busy(_)) => state.waiting.block(id, Lacks::Window),
            _ => {}
        }
        self.stir();
        let outcome = sent.map_err(|error| explain(&state, error));
        drop(self.resolve(state));
        outcome
    }
}

impl State {
    /// How long whoever makes progress may sleep, if nothing comes.
    pub(super) fn sleeps_for(&self, now: Nanos) -> Option<Nanos> {
        let timer = self.protocol.next_timeout().map(|at| at.saturating_sub(now));
        let soon = self.links.waits() || self.queue.is_short();
        if soon { Some(timer.map_or(SOON, |it| it.min(SOON))) } else { timer }
    }

    /// Flushes that are over.
    pub(super) fn settle_flushes(&mut self, flushed: &mut VecDeque<(Completion, Result<(), OpFailure>)>) {
        let Self { waiting: Waiting { flushes, .. }, protocol, failures, .. } = self;
        if flushes.is_empty() {
            return;
        }
        let before = flushes.len();
        let over = |it: &mut Flush| !matches!(protocol.is_acknowledged(it.id, it.sent), Ok(false));
        for Flush { id, sent, completion } in flushes.extract_if(.., over) {
            let outcome = match (protocol.is_acknowledged(id, sent), failures.get(&id)) {
                (Ok(_), _) => Ok(()),
                (Err(_), Some(&(failure, at))) => Err(OpFailure::Failed(common(failure, at))),
                (Err(_), None) => Err(OpFailure::Canceled),
            };
            flushed.push_back((completion, outcome));
        }
        if flushes.len() != before {
            // There is room for others.
            self.waiting.flushes_ended();
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
        let reach = self.0.state.lock().links.reach(peer.0);
        reach().map_err(|error| Unreachable::NoRoute { peer: ip, why: error.to_string() })
    }

    fn set_am(&self, am: u8, handler: Option<AmHandler>) -> Result<(), OpError> {
        self.0.set_handler(am, handler.map(Handler::Uct)).ok_or(OpError::AmId(am))
    }

    fn progress(&self) -> Result<usize> {
        Self::progress(self)
    }

    fn next_timeout(&self) -> Option<Duration> {
        Self::next_timeout(self)
    }

    fn flush(&self) -> bool {
        self.0.with(|state, now| {
            let ids: Vec<EndpointId> = state.peers.keys().copied().collect();
            let mut done = true;
            for id in ids {
                done &= !matches!(state.protocol.flush(now, id), Ok(false));
            }
            done
        })
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.wakeup.fd()
    }

    fn arm(&self) -> Result<Arm> {
        if self.0.progressing.load(Ordering::Acquire) {
            return Ok(Arm::Busy);
        }
        let mut state = self.0.state.lock();
        let now = self.0.now();
        // Nothing waits for more to be sent with while its sender sleeps.
        state.pump(now);
        let mut state = self.0.resolve(state);
        // While receives are missing that cannot be posted, whoever sleeps looks again soon.
        let _ = state.queue.post_again();
        let timeout = state.sleeps_for(self.0.now());
        self.0.wakeup.arm(timeout.map(Duration::from_nanos))?;
        // First armed, then looked: what comes between is seen by one or the other.
        let mut look = || {
            state.queue.arm()?;
            state.reap()?;
            let room = !state.overflow.is_empty() && state.queue.has_room();
            let untold = !state.failed.is_empty() || state.inbox.as_ref().is_some_and(|inbox| inbox.left() != 0);
            Ok(state.queue.has_received()? || state.waiting.due() != 0 || room || untold || timeout == Some(0))
        };
        self.0.wakeup.armed(look())
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
                // A failure is taken in as soon as there is one: it was canceled, and has been closed.
                None => OpError::Canceled(id),
            },
            SendError::NoEndpoint(_) | SendError::Full => OpError::Canceled(id),
        }
    }

    fn send(&self, am: u8, payload: &[u8]) -> Result<(), OpError> {
        let explain = |state: &State, error| self.common_error(state, error);
        self.interface.0.send(self.id, |protocol, now| protocol.send(now, self.id, am, payload), explain)
    }

    /// Sends what was packed for it, without another copy of that.
    fn send_packed(&self, am: u8, bytes: Vec<u8>) -> Result<(), OpError> {
        let explain = |state: &State, error| self.common_error(state, error);
        self.interface.0.send(self.id, |protocol, now| protocol.send_owned(now, self.id, am, bytes), explain)
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
        let mut state = self.interface.0.state.lock();
        // Only if nobody has let go of it; this may be lent to a request.
        let open = state.peers.contains_key(&self.id) && !state.waiting.is_canceled(self.id);
        let failed = state.failures.get(&self.id).copied().filter(|_| open);
        // Who would have been told before, and was not called yet, is not called any more.
        let before = if open { state.told.remove(&self.id) } else { None };
        let mut now = Some(told);
        if failed.is_none()
            && open
            && let Some(told) = now.take()
        {
            state.told.insert(self.id, Box::new(move |failure, at| told(common(failure, at))));
        }
        drop(state);
        // Somebody else's destructor.
        drop(before);
        if let (Some(told), Some((failure, at))) = (now, failed) {
            told(common(failure, at));
        }
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
        let len = bytes.len();
        self.send_packed(am, bytes)?;
        Ok(len)
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
        self.send_packed(am, bytes)?;
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

    /// What is acknowledged was delivered to the peer's interface, so local and remote are one. A flush with a completion waits for what was sent before
    /// it; one without, which is called again and again, finds nothing outstanding at some time or other.
    fn flush(&self, kind: FlushKind, mut completion: Option<Completion>) -> Result<Posted, OpError> {
        let mut canceled = Vec::new();
        let answer = self.interface.0.with(|state, now| {
            if kind == FlushKind::Cancel {
                if state.peers.contains_key(&self.id) {
                    state.waiting.cancel(self.id);
                }
                // What was not acknowledged is forgotten; all of it was copied, so there is nothing to wait for.
                state.protocol.cancel(now, self.id);
                canceled = state.waiting.take_flushes(self.id);
                return Ok(Posted::Done);
            }
            let begun = state.protocol.flush(now, self.id);
            match begun.and_then(|over| state.protocol.sent(self.id).map(|sent| (over, sent))) {
                Ok((true, _)) => Ok(Posted::Done),
                Ok(_) if completion.is_some() && !state.waiting.has_room_for_flush() => {
                    state.waiting.block(self.id, Lacks::Flush);
                    Err(OpError::NoResource)
                }
                Ok((false, sent)) => {
                    let flush = completion.take().map(|completion| Flush { id: self.id, sent, completion });
                    state.waiting.flushes.extend(flush);
                    Ok(Posted::InProgress)
                }
                Err(error) => Err(self.common_error(state, error)),
            }
        });
        completion.into_iter().for_each(Completion::disarm);
        drop(canceled);
        answer
    }

    /// Messages of one endpoint are in order: there is nothing to do.
    fn fence(&self) -> Result<(), OpError> {
        Ok(())
    }

    fn check(&self) -> Result<(), OpError> {
        self.interface.0.with(|state, now| {
            let checked = state.protocol.check(now, self.id);
            checked.map_err(|error| self.common_error(state, error))
        })
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
