//! An endpoint's queue pair and state, and how something is posted to it.

use super::Shared;
use super::address::Terms;
use super::clock::Nanos;
use super::credits::Credits;
use super::pool::{Bounce, Pool};
use super::ring::{Op, Ring};
use super::wire::{Control, Header, MAX_HEADER};
use crate::uct::{Cause, Completion, EndpointId, Evidence, Failure, FailureHandler, OpError, PendingRequest};
use ferroce_verbs::{Data, Gid, Qp, SendFlags, SendOp, SendWr, WcStatus};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Work requests beyond those of the program: what this side has to say itself must not wait for room (report 8169), and the last one says
/// that there are no more.
const CONTROL_ROOM: u32 = 4;
pub(super) const EXTRA_ROOM: u32 = CONTROL_ROOM + 4;
/// An operation of so many bytes always asks for a completion: that others are complete must not wait for it.
const LARGE: u32 = 1 << 16;

/// An endpoint. It exists until its queue pair has given back all that was posted.
pub(super) struct Core {
    id: EndpointId,
    qpn: u32,
    /// Before the state: what was posted is given back when the device no longer uses it.
    pub(super) qp: Qp,
    /// At which it begins to send.
    pub(super) psn: u32,
    depth: u32,
    signal_every: u32,
    /// Most bytes of a message that the peer takes, header included; 0 before that is known.
    peer_message: AtomicU32,
    state: Mutex<State>,
}

/// What may be done with an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is not connected.
    Init,
    /// Its queue pair is on its way to RTS.
    Connecting,
    /// It is connected.
    Ready,
    /// It failed: all that can be done is to drop it.
    Failed(Failure),
    /// It was canceled: all that can be done is to drop it.
    Canceled,
}

/// An endpoint's state.
pub(super) struct State {
    pub(super) phase: Phase,
    /// The program let go of it.
    pub(super) closed: bool,
    /// GID and queue pair of the peer.
    pub(super) peer: Option<(Gid, u32)>,
    pub(super) ring: Ring,
    /// Where the ring ended after the last question whether the peer has all.
    pub(super) asked_at: u64,
    pub(super) credits: Credits,
    /// Buffers of the transport that its operations have.
    pub(super) held: u32,
    pool: Arc<Pool>,
    /// The next operation waits for those before it.
    pub(super) fence: bool,
    /// The peer wants a grant at once.
    pub(super) grant_owed: bool,
    pub(super) told: Option<FailureHandler>,
    /// Flushes, each with the position that it waits for.
    pub(super) flushes: VecDeque<(u64, Completion)>,
    pub(super) pending: VecDeque<PendingRequest>,
    /// It is among those that wait for resources.
    pub(super) listed: bool,
    /// The connection manager's part of it, if it has one.
    pub(super) connection: Option<ferroce_cm::Connection>,
    pub(super) life: Life,
    /// Somebody will look at it in time, or nobody has to: see [`super::keepalive`].
    pub(super) watched: bool,
    /// The oldest operation when somebody last looked, and since when it is that.
    pub(super) oldest: Option<(u64, Nanos)>,
}

impl Drop for State {
    /// The queue pair is gone, so nothing uses what it did not give back (a device that fails does not).
    fn drop(&mut self) {
        while let Some((_, op)) = self.ring.pop_through(u64::MAX) {
            if let Some(slot) = op.bounce {
                self.pool.put_back(slot);
            }
        }
    }
}

/// What is known about whether the peer lives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    pub(super) last_receive: Nanos,
    pub(super) last_ack: Nanos,
    pub(super) probes: u32,
    /// How late the last look was.
    pub(super) late: Nanos,
}

impl Core {
    pub(super) fn new(id: EndpointId, qp: Qp, depth: u32, terms: Terms, pool: Arc<Pool>) -> Self {
        let state = State {
            phase: Phase::Init,
            closed: false,
            peer: None,
            ring: Ring::new(depth + EXTRA_ROOM),
            asked_at: 0,
            credits: Credits::new(terms.window, 0),
            held: 0,
            pool,
            fence: false,
            grant_owed: false,
            told: None,
            flushes: VecDeque::new(),
            pending: VecDeque::new(),
            listed: false,
            connection: None,
            life: Life::default(),
            watched: false,
            oldest: None,
        };
        Self {
            id,
            qpn: qp.qp_num(),
            qp,
            // Not to be guessed: only the peer is to send to it.
            psn: rand::random::<u32>() & 0xff_ffff,
            depth,
            signal_every: (depth / 4).clamp(1, 64),
            peer_message: AtomicU32::new(0),
            state: Mutex::new(state),
        }
    }

    #[inline]
    pub(super) fn id(&self) -> EndpointId {
        self.id
    }

    #[inline]
    pub(super) fn qpn(&self) -> u32 {
        self.qpn
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Most bytes of an active message that the peer takes; 0 before that is known.
    #[inline]
    pub(super) fn max_message(&self) -> usize {
        (self.peer_message.load(Relaxed) as usize).saturating_sub(MAX_HEADER)
    }

    /// The number of a work request at `position`.
    fn wr_id(&self, position: u64) -> u64 {
        u64::from(self.id.slot()) << 32 | u64::from(position as u32)
    }
}

impl State {
    /// What the peer takes, once that is known.
    pub(super) fn set_terms(&mut self, core: &Core, peer: Terms) {
        self.credits.set_peer_window(peer.window);
        core.peer_message.store(peer.message, Relaxed);
    }

    /// Whether it may have another buffer: as many as are free besides. So whoever's peer takes nothing leaves some for the others, however many such
    /// peers there are, and who is alone has half of all.
    #[inline]
    pub(super) fn has_share(&self, free: usize) -> bool {
        (self.held as usize) < free
    }

    /// Why nothing can be begun, or what it takes to begin something. A queue pair that failed cannot be posted to (reports 7938, 7071,
    /// 7704, 7122): only this leads to [`Ready::post`].
    #[inline]
    pub(super) fn ready<'a>(&'a mut self, core: &'a Core, shared: &'a Shared) -> Result<Ready<'a>, OpError> {
        match self.phase {
            Phase::Ready => Ok(Ready { core, shared, state: self }),
            Phase::Init | Phase::Connecting => Err(OpError::NotConnected(core.id)),
            Phase::Failed(failure) => Err(OpError::Failed(core.id, failure)),
            Phase::Canceled => Err(OpError::Canceled(core.id)),
        }
    }

    /// Whether only the last marker fits.
    pub(super) fn is_full(&self, core: &Core) -> bool {
        self.ring.outstanding() >= core.depth + EXTRA_ROOM - 1
    }

    #[inline]
    pub(super) fn has_room(&self, core: &Core) -> bool {
        self.ring.outstanding() < core.depth
    }

    /// What was seen until now.
    pub(super) fn evidence(&self, now: Nanos, status: Option<WcStatus>) -> Evidence {
        let ago = |at: Nanos| (at != 0).then(|| Duration::from_nanos(now.saturating_sub(at)));
        Evidence {
            last_receive: ago(self.life.last_receive),
            last_ack: ago(self.life.last_ack),
            retransmissions: 0,
            probes: self.life.probes,
            timer_late_by: Duration::from_nanos(self.life.late),
            status,
            ..Evidence::default()
        }
    }

    /// It is over, for a reason that its owner did not make; `None` if it was over before. Returns whom to tell.
    pub(super) fn fail(&mut self, cause: Cause, now: Nanos, status: Option<WcStatus>) -> Option<Failure> {
        if !matches!(self.phase, Phase::Ready | Phase::Connecting) {
            return None;
        }
        let failure = Failure { cause, evidence: self.evidence(now, status) };
        self.phase = Phase::Failed(failure);
        Some(failure)
    }

    /// Posts the last work request of a queue pair in ERR. Once its completion is seen, all others were.
    pub(super) fn mark(&mut self, core: &Core, completion: &mut Option<Completion>) -> Result<(), OpError> {
        let wr = SendWr::new(core.wr_id(self.ring.tail()), NOTHING, &[]);
        core.qp.post_send(&[wr]).map_err(|failed| failed.error)?;
        self.ring.push(Op { completion: completion.take(), signaled: true, marker: true, ..Op::default() });
        Ok(())
    }
}

/// An RDMA write of no bytes: it asks for no rights (IBTA 9.7.4.1.5 checks no key then), and is acknowledged.
const NOTHING: SendOp = SendOp::Write { remote_addr: 0, rkey: 0 };
/// An RDMA read of no bytes: answered once all before it is in the peer's memory (IBTA 10.8.3.3).
const READ_NOTHING: SendOp = SendOp::Read { remote_addr: 0, rkey: 0 };

/// An endpoint that can be posted to.
pub(super) struct Ready<'a> {
    pub(super) core: &'a Core,
    pub(super) shared: &'a Shared,
    pub(super) state: &'a mut State,
}

/// How an operation is to complete.
#[derive(Default)]
pub(super) struct Finish<'a> {
    pub(super) completion: Option<&'a mut Option<Completion>>,
    /// The buffer that it uses, and how many bytes of it the completion is given.
    pub(super) bounce: Option<(Bounce<'a>, u32)>,
}

impl<'a> Ready<'a> {
    /// Whether an operation of the program can be posted.
    #[inline]
    pub(super) fn room(&self) -> Result<(), OpError> {
        if self.state.has_room(self.core) { Ok(()) } else { Err(OpError::NoResource) }
    }

    /// Whether a message can be posted.
    #[inline]
    pub(super) fn room_for_message(&self) -> Result<(), OpError> {
        if self.state.credits.available() == 0 { Err(OpError::NoResource) } else { self.room() }
    }

    /// A buffer of the transport's.
    #[inline]
    pub(super) fn bounce(&self) -> Result<Bounce<'a>, OpError> {
        let bounce = self.shared.pool.take().ok_or(OpError::NoResource)?;
        self.share()?;
        Ok(bounce)
    }

    /// Whether it may have the buffer that was just taken.
    #[inline]
    pub(super) fn share(&self) -> Result<(), OpError> {
        if self.state.has_share(self.shared.pool.available() + 1) { Ok(()) } else { Err(OpError::NoResource) }
    }

    /// The header of the next message.
    #[inline]
    pub(super) fn header(&self, am: u8) -> Header {
        let credits = &self.state.credits;
        Header::Message { am, asks: credits.asks(), grant: credits.grant_with() }
    }

    /// A message with this header was posted.
    #[inline]
    pub(super) fn sent(&mut self, header: Header) {
        let Header::Message { asks, grant, .. } = header else { return };
        self.state.credits.on_sent(asks);
        if let Some(total) = grant {
            self.state.credits.on_granted(total);
            self.state.grant_owed = false;
        }
    }

    /// Posts an operation. There must be room.
    #[inline]
    pub(super) fn post(&mut self, op: SendOp, data: Data<'_>, finish: Finish<'_>) -> Result<(), OpError> {
        let Self { core, shared, state } = self;
        let Finish { completion, bounce } = finish;
        let len = match data {
            Data::Inline(_) => 0,
            Data::Sges(sges) => sges.iter().fold(0_u32, |sum, sge| sum.saturating_add(sge.length)),
        };
        let asked = completion.as_ref().is_some_and(|completion| completion.is_some());
        let signaled = asked
            || state.ring.unsignaled() + 1 >= core.signal_every
            || bounce.is_some() && shared.pool.is_scarce()
            || len >= LARGE
            || state.ring.outstanding() + 1 >= core.depth;
        let mut flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        flags.set(SendFlags::FENCE, state.fence);
        let wr = SendWr { wr_id: core.wr_id(state.ring.tail()), op, data, flags, ud: None };
        core.qp.post_send(&[wr]).map_err(|failed| failed.error)?;
        state.fence = false;
        let (bounce, fetched) = match bounce {
            Some((bounce, fetched)) => {
                state.held += 1;
                (Some(bounce.keep()), fetched)
            }
            None => (None, 0),
        };
        let completion = completion.and_then(Option::take);
        state.ring.push(Op { completion, bounce, fetched, len, signaled, marker: false });
        if !state.watched {
            shared.watch(core, state);
        }
        Ok(())
    }

    /// Sends a message, inline if the device does that.
    #[inline]
    pub(super) fn post_bytes(&mut self, bytes: &[u8]) -> Result<(), OpError> {
        if bytes.len() <= self.shared.attr.put.max_short {
            return self.post(SendOp::Send, Data::Inline(bytes), Finish::default());
        }
        // What this side has to say itself takes what there is.
        let bounce = self.shared.pool.take().ok_or(OpError::NoResource)?;
        bounce.write(0, bytes)?;
        let sges = [bounce.sge(0..bytes.len())?];
        let finish = Finish { completion: None, bounce: Some((bounce, 0)) };
        self.post(SendOp::Send, Data::Sges(&sges), finish)
    }

    /// Posts a control word, as far as there is room for it.
    pub(super) fn control(&mut self, what: Control) -> Result<(), OpError> {
        if self.state.ring.outstanding() >= self.core.depth + CONTROL_ROOM {
            return Err(OpError::NoResource);
        }
        let total = self.state.credits.total();
        let (bytes, len) = Header::Control { what, grant: total }.emit();
        self.post_bytes(&bytes[..len.min(MAX_HEADER)])?;
        self.state.credits.on_granted(total);
        self.state.grant_owed = false;
        Ok(())
    }

    /// Posts something that does nothing but complete, after all that was posted before.
    pub(super) fn probe(&mut self, remote: bool, completion: &mut Option<Completion>) -> Result<(), OpError> {
        if self.state.ring.outstanding() >= self.core.depth + CONTROL_ROOM {
            return Err(OpError::NoResource);
        }
        let op = if remote { READ_NOTHING } else { NOTHING };
        let core = self.core;
        let state = &mut *self.state;
        let mut wr = SendWr::new(core.wr_id(state.ring.tail()), op, &[]);
        wr.flags.set(SendFlags::FENCE, state.fence);
        core.qp.post_send(&[wr]).map_err(|failed| failed.error)?;
        state.fence = false;
        state.ring.push(Op { completion: completion.take(), signaled: true, ..Op::default() });
        if remote {
            state.asked_at = state.ring.tail();
        }
        if !state.watched {
            self.shared.watch(core, state);
        }
        Ok(())
    }
}
