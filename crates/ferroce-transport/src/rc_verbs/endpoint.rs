use super::address::EndpointAddress;
use super::core::{Core, Finish, Phase, Ready};
use super::pool::Bounce;
use super::wire::MAX_HEADER;
use super::{RcVerbs, Shared};
use crate::uct::{
    AM_IDS, AtomicOp, Completion, Endpoint, EndpointId, Failure, FailureHandler, FlushKind, Full, Iov, OpError, Packer,
    PendingError, PendingRequest, Posted, Remote,
};
use ferroce_verbs::{Data, SendOp, Sge};
use std::fmt;
use std::sync::Arc;

/// Pieces of registered memory that one operation takes.
pub(super) const MAX_IOV: usize = 4;
/// Most bytes that go inline, with the header.
pub(super) const MAX_INLINE: usize = 256;
/// Flushes of one endpoint that may wait at a time.
const MAX_FLUSHES: usize = 1024;

/// An endpoint: one RC queue pair, connected to one of a peer's. See [`Endpoint`] for what can be done with it.
///
/// Dropping it closes it, and waits for nothing: the peer is told if that can be said at once, what is outstanding is canceled, and the queue
/// pair goes when it has given back all that was posted, while the interface makes progress. To have everything delivered, flush before.
pub struct RcEndpoint {
    pub(super) interface: RcVerbs,
    pub(super) core: Arc<Core>,
    /// Not one that is lent to a pending request.
    pub(super) owned: bool,
}

impl RcEndpoint {
    pub(super) fn new(interface: RcVerbs, core: Arc<Core>) -> Self {
        Self { interface, core, owned: true }
    }

    fn shared(&self) -> &Shared {
        &self.interface.0
    }

    /// The peer's GID and queue pair, once it is connected.
    pub fn peer(&self) -> Option<(ferroce_verbs::Gid, u32)> {
        self.core.lock().peer
    }

    /// Its queue pair's number.
    pub fn qpn(&self) -> u32 {
        self.core.qpn()
    }

    /// Most bytes of an active message, which the peer may bound further than [`crate::uct::InterfaceAttr`] does; 0 before it is connected.
    pub fn max_message(&self) -> usize {
        self.core.max_message().min(self.shared().attr.am.max_bcopy)
    }

    /// Does `begin` with the endpoint if it can be posted to.
    #[inline]
    fn with<T>(&self, begin: impl FnOnce(Ready<'_>) -> Result<T, OpError>) -> Result<T, OpError> {
        let mut state = self.core.lock();
        begin(state.ready(&self.core, self.shared())?)
    }

    /// The same for an operation with a completion, which is not called unless the operation is under way.
    #[inline]
    fn completing(
        &self,
        mut completion: Option<Completion>,
        begin: impl FnOnce(Ready<'_>, &mut Option<Completion>) -> Result<Posted, OpError>,
    ) -> Result<Posted, OpError> {
        let answer = self.with(|ready| begin(ready, &mut completion));
        // It was not begun, or is over: the answer is the outcome.
        if let Some(completion) = completion {
            completion.disarm();
        }
        answer
    }

    /// A buffer of the transport's, taken with nothing locked: for what the program packs. Whether this endpoint may have it is still to be asked
    /// ([`Ready::share`]).
    #[inline]
    fn bounce(&self) -> Result<Bounce<'_>, OpError> {
        match self.shared().pool.take() {
            Some(bounce) => Ok(bounce),
            None => self.with(|_| Err(OpError::NoResource)),
        }
    }

    /// An active message of at most [`MAX_INLINE`] bytes.
    #[inline]
    fn short_message(mut ready: Ready<'_>, am: u8, payload: &[u8]) -> Result<(), OpError> {
        check_len("a short active message", payload.len(), ready.core.max_message())?;
        ready.room_for_message()?;
        let header = ready.header(am);
        let (bytes, len) = header.emit();
        // The common case costs no more than it needs.
        if payload.len() <= 64 - MAX_HEADER {
            Self::post_inline::<64>(&mut ready, &bytes[..len], payload)?;
        } else {
            Self::post_inline::<MAX_INLINE>(&mut ready, &bytes[..len], payload)?;
        }
        ready.sent(header);
        Ok(())
    }

    #[inline]
    fn post_inline<const N: usize>(ready: &mut Ready<'_>, header: &[u8], payload: &[u8]) -> Result<(), OpError> {
        let mut bytes = [0; N];
        let len = header.len() + payload.len();
        bytes[..header.len()].copy_from_slice(header);
        bytes[header.len()..len].copy_from_slice(payload);
        ready.post_bytes(&bytes[..len])
    }

    /// The pieces of `iov`, after `before`; and how many there are, and how many bytes.
    fn gather(
        &self,
        what: &'static str,
        before: Option<Sge>,
        iov: &[Iov<'_>],
    ) -> Result<([Sge; MAX_IOV + 1], usize, usize), OpError> {
        if iov.len() > self.shared().attr.put.max_iov {
            return Err(OpError::TooManyPieces { len: iov.len(), most: self.shared().attr.put.max_iov });
        }
        let mut sges = [Sge::default(); MAX_IOV + 1];
        let mut bytes = 0_usize;
        let mut count = 0;
        for sge in before.into_iter().map(Ok).chain(iov.iter().map(Iov::sge)) {
            let sge = sge?;
            bytes += sge.length as usize;
            sges[count] = sge;
            count += 1;
        }
        let most = self.shared().attr.put.max_zcopy;
        if bytes > most {
            return Err(OpError::TooLong { what, len: bytes, most });
        }
        Ok((sges, count, bytes))
    }

    fn zcopy(
        &self,
        what: &'static str,
        op: SendOp,
        iov: &[Iov<'_>],
        completion: Option<Completion>,
    ) -> Result<Posted, OpError> {
        self.completing(completion, |mut ready, completion| {
            let (sges, count, _) = self.gather(what, None, iov)?;
            ready.room()?;
            let finish = Finish { completion: Some(completion), bounce: None };
            ready.post(op, Data::Sges(&sges[..count]), finish)?;
            Ok(Posted::InProgress)
        })
    }

    /// Something whose answer, of `len` bytes, the completion is given.
    fn fetch(&self, op: SendOp, len: usize, completion: Option<Completion>) -> Result<Posted, OpError> {
        self.completing(completion, |mut ready, completion| {
            ready.room()?;
            let bounce = ready.bounce()?;
            let sges = [bounce.sge(0..len)?];
            let finish = Finish { completion: Some(completion), bounce: Some((bounce, len as u32)) };
            ready.post(op, Data::Sges(&sges), finish)?;
            Ok(Posted::InProgress)
        })
    }
}

fn check_am(am: u8) -> Result<(), OpError> {
    if am < AM_IDS { Ok(()) } else { Err(OpError::AmId(am)) }
}

fn check_len(what: &'static str, len: usize, most: usize) -> Result<(), OpError> {
    if len <= most { Ok(()) } else { Err(OpError::TooLong { what, len, most }) }
}

fn too_long(what: &'static str, full: Full) -> OpError {
    OpError::TooLong { what, len: full.len, most: full.most }
}

impl Endpoint for RcEndpoint {
    fn id(&self) -> EndpointId {
        self.core.id()
    }

    fn failure(&self) -> Option<Failure> {
        match self.core.lock().phase {
            Phase::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    fn on_failure(&self, told: FailureHandler) {
        let mut state = self.core.lock();
        // Of a lent endpoint whose owner has let go of it nobody is told anything.
        let failed = match state.phase {
            Phase::Failed(failure) if !state.closed => Some(failure),
            _ => None,
        };
        // Who would have been told before, and was not called yet, is not called any more.
        let before = state.told.take();
        let mut now = Some(told);
        if failed.is_none() && !state.closed {
            state.told = now.take();
        }
        drop(state);
        // Somebody else's destructor.
        drop(before);
        if let (Some(told), Some(failure)) = (now, failed) {
            told(failure);
        }
    }

    fn is_connected(&self, address: &[u8]) -> bool {
        let Ok(address) = EndpointAddress::from_bytes(address) else { return false };
        let state = self.core.lock();
        state.phase == Phase::Ready && state.peer == Some((address.gid, address.qpn))
    }

    #[inline]
    fn am_short(&self, am: u8, payload: &[u8]) -> Result<(), OpError> {
        check_am(am)?;
        check_len("a short active message", payload.len(), self.shared().attr.am.max_short)?;
        self.with(|ready| Self::short_message(ready, am, payload))
    }

    fn am_bcopy(&self, am: u8, pack: &mut dyn FnMut(&mut Packer<'_>)) -> Result<usize, OpError> {
        check_am(am)?;
        let bounce = self.bounce()?;
        let most = self.max_message();
        // The header, whose length shows later, goes right before it.
        let mut packer = Packer::to_region(bounce.mr().region(), bounce.offset() + MAX_HEADER, most);
        pack(&mut packer);
        let packed = packer.finish();
        self.with(|mut ready| {
            ready.room_for_message()?;
            ready.share()?;
            let packed = packed.map_err(|full| too_long("an active message", full))?;
            let header = ready.header(am);
            let (bytes, len) = header.emit();
            let start = MAX_HEADER - len;
            bounce.write(start, &bytes[..len])?;
            let sges = [bounce.sge(start..MAX_HEADER + packed)?];
            let finish = Finish { completion: None, bounce: Some((bounce, 0)) };
            ready.post(SendOp::Send, Data::Sges(&sges), finish)?;
            ready.sent(header);
            Ok(packed)
        })
    }

    fn am_zcopy(
        &self,
        am: u8,
        user_header: &[u8],
        iov: &[Iov<'_>],
        completion: Option<Completion>,
    ) -> Result<Posted, OpError> {
        self.completing(completion, |mut ready, completion| {
            check_am(am)?;
            check_len("the header of an active message", user_header.len(), self.shared().attr.am.max_header)?;
            ready.room_for_message()?;
            let bounce = ready.bounce()?;
            let header = ready.header(am);
            let (bytes, len) = header.emit();
            bounce.write(0, &bytes[..len])?;
            bounce.write(len, user_header)?;
            let before = bounce.sge(0..len + user_header.len())?;
            let (sges, count, total) = self.gather("an active message", Some(before), iov)?;
            let most = ready.core.max_message().min(self.shared().attr.am.max_zcopy);
            check_len("an active message", total - len, most)?;
            let finish = Finish { completion: Some(completion), bounce: Some((bounce, 0)) };
            ready.post(SendOp::Send, Data::Sges(&sges[..count]), finish)?;
            ready.sent(header);
            Ok(Posted::InProgress)
        })
    }

    fn put_short(&self, bytes: &[u8], remote: Remote) -> Result<(), OpError> {
        check_len("a short put", bytes.len(), self.shared().attr.put.max_short)?;
        self.with(|mut ready| {
            ready.room()?;
            ready.post(write(remote), Data::Inline(bytes), Finish::default())
        })
    }

    fn put_bcopy(&self, pack: &mut dyn FnMut(&mut Packer<'_>), remote: Remote) -> Result<usize, OpError> {
        let bounce = self.bounce()?;
        let most = self.shared().attr.put.max_bcopy;
        let mut packer = Packer::to_region(bounce.mr().region(), bounce.offset(), most);
        pack(&mut packer);
        let packed = packer.finish();
        self.with(|mut ready| {
            ready.room()?;
            ready.share()?;
            let packed = packed.map_err(|full| too_long("a put", full))?;
            let sges = [bounce.sge(0..packed)?];
            let finish = Finish { completion: None, bounce: Some((bounce, 0)) };
            ready.post(write(remote), Data::Sges(&sges), finish)?;
            Ok(packed)
        })
    }

    fn put_zcopy(&self, iov: &[Iov<'_>], remote: Remote, completion: Option<Completion>) -> Result<Posted, OpError> {
        self.zcopy("a put", write(remote), iov, completion)
    }

    fn get_bcopy(&self, len: usize, remote: Remote, completion: Completion) -> Result<Posted, OpError> {
        if let Err(error) = check_len("a get", len, self.shared().attr.get.max_bcopy) {
            completion.disarm();
            return Err(error);
        }
        self.fetch(SendOp::Read { remote_addr: remote.addr, rkey: remote.rkey }, len, Some(completion))
    }

    fn get_zcopy(&self, iov: &[Iov<'_>], remote: Remote, completion: Option<Completion>) -> Result<Posted, OpError> {
        self.zcopy("a get", SendOp::Read { remote_addr: remote.addr, rkey: remote.rkey }, iov, completion)
    }

    fn atomic64_post(&self, op: AtomicOp, value: u64, remote: Remote) -> Result<(), OpError> {
        let op = fetch_add(op, value, remote)?;
        self.fetch(op, 8, None).map(|_| ())
    }

    fn atomic64_fetch(
        &self,
        op: AtomicOp,
        value: u64,
        remote: Remote,
        completion: Completion,
    ) -> Result<Posted, OpError> {
        match fetch_add(op, value, remote) {
            Ok(op) => self.fetch(op, 8, Some(completion)),
            Err(error) => {
                completion.disarm();
                Err(error)
            }
        }
    }

    fn atomic64_cswap(
        &self,
        compare: u64,
        swap: u64,
        remote: Remote,
        completion: Completion,
    ) -> Result<Posted, OpError> {
        let op = SendOp::CompareSwap { remote_addr: remote.addr, rkey: remote.rkey, compare, swap };
        self.fetch(op, 8, Some(completion))
    }

    fn flush(&self, kind: FlushKind, completion: Option<Completion>) -> Result<Posted, OpError> {
        if kind == FlushKind::Cancel {
            return self.cancel(completion);
        }
        self.completing(completion, |mut ready, completion| {
            let state = &mut *ready.state;
            if state.ring.outstanding() == 0 {
                return Ok(Posted::Done);
            }
            let last = state.ring.tail() - 1;
            // With nothing posted since the last that says when it is complete, that one is waited for.
            if kind == FlushKind::Local && state.ring.unsignaled() == 0 {
                if completion.is_some() && state.flushes.len() >= MAX_FLUSHES {
                    return Err(OpError::NoResource);
                }
                state.flushes.extend(completion.take().map(|completion| (last, completion)));
                return Ok(Posted::InProgress);
            }
            // Nothing was posted since the last question: another one at each call would always leave one outstanding.
            if kind == FlushKind::Remote && completion.is_none() && state.asked_at == state.ring.tail() {
                return Ok(Posted::InProgress);
            }
            ready.probe(kind == FlushKind::Remote, completion)?;
            Ok(Posted::InProgress)
        })
    }

    fn fence(&self) -> Result<(), OpError> {
        self.with(|ready| {
            // Messages and writes are in order anyway; it is what is posted after reads and atomics that has to wait for them.
            ready.state.fence = ready.state.ring.outstanding() != 0;
            Ok(())
        })
    }

    fn check(&self) -> Result<(), OpError> {
        self.with(|mut ready| {
            if ready.state.ring.signaled() == 0 {
                ready.probe(false, &mut None)?;
                ready.state.life.probes += 1;
            }
            Ok(())
        })
    }

    fn pending_add(&self, request: PendingRequest) -> Result<(), PendingError> {
        let shared = self.shared();
        let mut state = self.core.lock();
        match state.phase {
            Phase::Failed(failure) => return Err(PendingError::Over(request, Some(failure))),
            Phase::Canceled => return Err(PendingError::Over(request, None)),
            Phase::Init | Phase::Connecting => {}
            Phase::Ready => {
                // All that an operation may want; else it would be refused, and the request with it.
                let free = state.has_room(&self.core)
                    && state.credits.available() != 0
                    && state.has_share(shared.pool.available())
                    && state.flushes.len() < MAX_FLUSHES;
                if free && state.pending.is_empty() {
                    return Err(PendingError::Busy(request));
                }
            }
        }
        state.pending.push_back(request);
        shared.list(&self.core, &mut state);
        Ok(())
    }

    fn pending_purge(&self, take: &mut dyn FnMut(PendingRequest)) {
        let requests = std::mem::take(&mut self.core.lock().pending);
        for request in requests {
            take(request);
        }
    }
}

fn write(remote: Remote) -> SendOp {
    SendOp::Write { remote_addr: remote.addr, rkey: remote.rkey }
}

/// RC adds and compares, and nothing else.
fn fetch_add(op: AtomicOp, value: u64, remote: Remote) -> Result<SendOp, OpError> {
    match op {
        AtomicOp::Add => Ok(SendOp::FetchAdd { remote_addr: remote.addr, rkey: remote.rkey, add: value }),
        _ => Err(OpError::Unsupported("an atomic other than add and compare-and-swap", super::NAME)),
    }
}

impl Drop for RcEndpoint {
    fn drop(&mut self) {
        if self.owned {
            self.close();
        }
    }
}

impl fmt::Debug for RcEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.core.lock();
        f.debug_struct("RcEndpoint")
            .field("id", &self.core.id())
            .field("qpn", &self.core.qpn())
            .field("peer", &state.peer)
            .field("phase", &state.phase)
            .field("outstanding", &state.ring.outstanding())
            .field("credits", &state.credits)
            .field("pending", &state.pending.len())
            .finish_non_exhaustive()
    }
}
