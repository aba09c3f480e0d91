//! A queue pair: its state, its two sides, and what ties them together.

mod conn;
mod datagram;
mod emit;
mod message;
mod requester;
mod responder;
mod uc;

pub(crate) use conn::Conn;

use super::mr::MrLookup;
use super::payload::Payload;
use super::recv::{RecvQueue, RecvWqe, Taken};
use super::sendq::Datagram;
use super::tx::{Av, PacketTx};
use super::{CompletionQueue, Engine, Nanos, Origin, SharedRecvQueue, count};
use datagram::receive_datagram;
use ferroce_verbs::{
    Error, EventType, PostError, QpAttr, QpCap, QpState, QpType, RecvWr, Result, SendWr, WcOpcode, WcStatus,
    WorkCompletion, check_transition,
};
use ferroce_wire::{Headers, Operation, Transport};
use parking_lot::{Mutex, MutexGuard};
use requester::{Requester, SendFailed, Silence};
use responder::{Broken, Responder};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use uc::UcReceiver;

/// What the sides of a queue pair work with.
pub(crate) struct Cx<'a> {
    engine: &'a Engine,
    qp: &'a QueuePair,
    conn: &'a Conn,
    mrs: MrLookup<'a>,
}

impl<'a> Cx<'a> {
    fn new(engine: &'a Engine, qp: &'a QueuePair, conn: &'a Conn) -> Self {
        Self { engine, qp, conn, mrs: MrLookup::new(&engine.mrs) }
    }
}

/// How many packets one queue pair may send before others have their turn.
pub(crate) struct Budget(u32);

impl Budget {
    /// Packets in one turn.
    const TURN: u32 = 64;

    fn take(&mut self) -> bool {
        let some = self.0 != 0;
        self.0 = self.0.saturating_sub(1);
        some
    }

    /// What was taken was the first of more.
    fn take_more(&mut self, packets: u32) {
        self.0 = self.0.saturating_sub(packets);
    }

    fn give_back(&mut self) {
        self.0 += 1;
    }
}

/// Where sending stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxStatus {
    /// Nothing more can be sent before something arrives or a timer expires.
    Idle,
    /// There is more; the turn is over.
    More,
    /// There is more; the link has no room.
    LinkFull,
}

/// What a queue pair wants after something happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    Nothing,
    /// To send now.
    Transmit,
    /// To send an acknowledgement, which may wait for the program's reaction.
    Acknowledge,
}

/// A queue pair.
pub(crate) struct QueuePair {
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) recv_cq: Arc<CompletionQueue>,
    pub(crate) rq: Arc<RecvQueue>,
    pub(crate) srq: Option<Arc<SharedRecvQueue>>,
    /// The state, for those who do not hold the lock.
    state: AtomicU8,
    /// In the engine's list of those that have something to send.
    pub(crate) scheduled: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    conn: Conn,
    requester: Requester,
    receiver: Receiver,
    /// When the engine's timer will look at this queue pair.
    timer: Option<Nanos>,
    gone: bool,
}

#[allow(clippy::large_enum_variant, reason = "most queue pairs are RC")]
enum Receiver {
    Rc(Responder),
    Uc(UcReceiver),
    Ud(RecvWqe),
}

/// What a queue pair is made of.
pub(crate) struct QpParts {
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) recv_cq: Arc<CompletionQueue>,
    pub(crate) srq: Option<Arc<SharedRecvQueue>>,
}

impl QueuePair {
    pub(super) fn new(qpn: u32, parts: QpParts) -> Self {
        let QpParts { qp_type, pd, cap, sq_sig_all, send_cq, recv_cq, srq } = parts;
        let rq = match &srq {
            Some(srq) => srq.queue.clone(),
            None => Arc::new(RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge, "receive queue", false)),
        };
        let receiver = match qp_type {
            QpType::Rc => Receiver::Rc(Responder::new()),
            QpType::Uc => Receiver::Uc(UcReceiver::default()),
            QpType::Ud => Receiver::Ud(RecvWqe::default()),
        };
        let inner = Inner { conn: Conn::new(), requester: Requester::new(&cap), receiver, timer: None, gone: false };
        Self {
            qpn,
            qp_type,
            pd,
            cap,
            sq_sig_all,
            send_cq,
            recv_cq,
            rq,
            srq,
            state: AtomicU8::new(QpState::Reset as u8),
            scheduled: AtomicBool::new(false),
            inner: Mutex::new(inner),
        }
    }

    pub(crate) fn state(&self) -> QpState {
        self.inner.lock().conn.state
    }

    /// Where the peer is, if it is connected.
    pub(crate) fn av(&self) -> Option<Arc<Av>> {
        self.inner.lock().conn.av.clone()
    }

    pub(crate) fn query(&self) -> QpAttr {
        self.inner.lock().conn.query()
    }

    pub(super) fn srq_limit(&self, engine: &Engine) {
        if let Some(srq) = &self.srq {
            engine.sink.srq(EventType::SrqLimitReached, srq);
        }
    }

    // ---- state ----

    /// Changes state and attributes. `av` is the resolved `attr.ah_attr`.
    pub(crate) fn modify(
        self: &Arc<Self>,
        engine: &Engine,
        attr: &QpAttr,
        av: Option<Arc<Av>>,
        tx: &mut dyn PacketTx,
        now: Nanos,
    ) -> Result<()> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let from = inner.conn.state;
        let to = check_transition(self.qp_type, from, attr)?;
        if inner.gone {
            return Err(Error::State { what: "modify of a destroyed queue pair", state: QpState::Err });
        }
        let mut conn = inner.conn.clone();
        conn.apply(attr, av);
        if let Some(av) = conn.av.as_ref().filter(|_| attr.path_mtu.is_some() || attr.ah_attr.is_some())
            && conn.mtu > av.mtu
        {
            let why = format!("{} is more than the {} that the interface of {} carries", conn.mtu, av.mtu, av.local);
            return Err(Error::invalid("path_mtu", why));
        }
        conn.state = to;
        if to != from {
            // Only the way to SQD can ask for the event, and only leaving SQD takes that back.
            conn.sqd_notify = attr.en_sqd_async_notify.unwrap_or(false);
        }
        inner.conn = conn;
        let cx = Cx::new(engine, self, &inner.conn);
        match to {
            QpState::Reset => {
                inner.requester.reset(&cx, 0);
                inner.receiver.reset(0);
                if self.srq.is_none() {
                    self.rq.clear();
                }
                inner.conn = Conn::new();
            }
            QpState::Rtr if from != to => inner.receiver.reset(inner.conn.rq_psn),
            QpState::Rts if from == QpState::Rtr => inner.requester.start(&cx, inner.conn.sq_psn),
            QpState::Sqd => inner.requester.drain(&cx),
            _ => {}
        }
        // Only new counts begin anew: otherwise draining now and then would put off the end of a dead connection.
        if attr.retry_cnt.is_some() || attr.rnr_retry.is_some() {
            inner.requester.reload(&Cx::new(engine, self, &inner.conn));
        }
        self.state.store(to as u8, Ordering::SeqCst);
        if self.srq.is_none() {
            self.rq.set_open(to != QpState::Reset);
        }
        // In ERR already all is flushed, and its last receive reached.
        if to == QpState::Err && from != to {
            inner.receiver.silence();
            self.flush(engine, inner);
        }
        self.pump(engine, guard, tx, now);
        Ok(())
    }

    /// Stops for good: flushes what is outstanding. The caller takes it out of the table.
    pub(crate) fn destroy(&self, engine: &Engine) {
        let mut inner = self.inner.lock();
        inner.gone = true;
        inner.receiver.silence();
        if let Some(deadline) = inner.timer.take() {
            engine.disarm(self, deadline);
        }
        if !matches!(inner.conn.state, QpState::Reset | QpState::Err) {
            self.enter_err(engine, &mut inner, None);
        }
    }

    fn set_state(&self, inner: &mut Inner, state: QpState) {
        inner.conn.state = state;
        self.state.store(state as u8, Ordering::SeqCst);
    }

    fn enter_err(&self, engine: &Engine, inner: &mut Inner, event: Option<EventType>) {
        self.set_state(inner, QpState::Err);
        self.flush(engine, inner);
        if let Some(event) = event {
            engine.sink.qp(event, self.qpn);
        }
    }

    /// Completes all that is outstanding as flushed (IBTA 10.3.1.5).
    fn flush(&self, engine: &Engine, inner: &mut Inner) {
        let cx = Cx::new(engine, self, &inner.conn);
        inner.receiver.fail(&cx, WcStatus::WrFlushErr);
        inner.requester.flush(&cx);
        if self.srq.is_some() {
            engine.sink.qp(EventType::QpLastWqeReached, self.qpn);
        } else {
            self.flush_receives();
        }
    }

    fn flush_receives(&self) {
        let mut wqe = RecvWqe::default();
        while self.rq.take(&mut wqe) != Taken::Empty {
            let mut wc = WorkCompletion::new(wqe.wr_id, WcOpcode::Recv, self.qpn);
            wc.status = WcStatus::WrFlushErr;
            self.recv_cq.push(wc, true);
        }
    }

    /// The send queue failed: a reliable connection is over, the others can still receive (IBTA 10.3.1.7).
    fn on_send_failed(&self, engine: &Engine, inner: &mut Inner) {
        if self.qp_type == QpType::Rc {
            self.enter_err(engine, inner, None);
        } else {
            self.set_state(inner, QpState::Sqe);
            let cx = Cx::new(engine, self, &inner.conn);
            inner.requester.flush(&cx);
        }
    }

    fn check_drained(&self, engine: &Engine, inner: &mut Inner) {
        if inner.conn.state == QpState::Sqd && inner.conn.sqd_notify && inner.requester.drained() {
            inner.conn.sqd_notify = false;
            engine.sink.qp(EventType::SqDrained, self.qpn);
        }
    }

    // ---- posting ----

    /// Posts sends and begins to execute them. `resolve` gives the address of a datagram's handle.
    #[inline]
    pub(crate) fn post_send(
        self: &Arc<Self>,
        engine: &Engine,
        wrs: &[SendWr<'_>],
        resolve: impl Fn(&SendWr<'_>) -> Result<Option<Datagram>>,
        tx: &mut dyn PacketTx,
        now: Nanos,
    ) -> Result<(), PostError> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            let cx = Cx::new(engine, self, &inner.conn);
            let posted = match inner.conn.state {
                state @ (QpState::Reset | QpState::Init | QpState::Rtr) => {
                    Err(Error::State { what: "post_send", state })
                }
                _ => resolve(wr).and_then(|dest| inner.requester.post(&cx, wr, dest)),
            };
            if let Err(error) = posted {
                result = Err(PostError { index, error });
                break;
            }
        }
        match inner.conn.state {
            QpState::Err | QpState::Sqe => {
                let cx = Cx::new(engine, self, &inner.conn);
                inner.requester.flush(&cx);
            }
            _ => {
                self.pump(engine, guard, tx, now);
            }
        }
        result
    }

    /// Posts receives.
    #[inline]
    pub(crate) fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.srq.is_some() {
            let error = Error::invalid("queue pair", "it uses an SRQ: post receives there");
            return Err(PostError { index: 0, error });
        }
        let result = self.rq.post(wrs);
        // The state is read after the receives are in the queue, and written before the queue is flushed: whichever came
        // first, somebody flushes them.
        if self.state.load(Ordering::SeqCst) == QpState::Err as u8 {
            let _inner = self.inner.lock();
            self.flush_receives();
        }
        result.map_err(|(index, error)| PostError { index, error })
    }

    // ---- sending ----

    /// Sends what can be sent, and sees to it that somebody continues; returns whether it sent anything.
    pub(crate) fn transmit(self: &Arc<Self>, engine: &Engine, tx: &mut dyn PacketTx, now: Nanos) -> bool {
        self.pump(engine, self.inner.lock(), tx, now)
    }

    fn pump(
        self: &Arc<Self>,
        engine: &Engine,
        mut guard: MutexGuard<'_, Inner>,
        tx: &mut dyn PacketTx,
        now: Nanos,
    ) -> bool {
        let inner = &mut *guard;
        let mut budget = Budget(Budget::TURN);
        let mut status = TxStatus::Idle;
        let cx = Cx::new(engine, self, &inner.conn);
        if inner.conn.sends() {
            status = inner.requester.transmit(&cx, tx, &mut budget);
            if inner.requester.reap_failed(&cx).is_err() {
                self.on_send_failed(engine, inner);
                status = TxStatus::Idle;
            }
            // For all but reliable connections, what was sent is complete.
            self.check_drained(engine, inner);
        }
        // A responder owes its last answer even when the queue pair has just failed.
        if let Receiver::Rc(responder) = &mut inner.receiver
            && status != TxStatus::LinkFull
        {
            let cx = Cx::new(engine, self, &inner.conn);
            let answered = responder.transmit(&cx, tx, &mut budget);
            if status == TxStatus::Idle {
                status = answered;
            }
            if let Some(Broken { recv, event }) = responder.take_broken() {
                responder.incoming.fail(&cx, recv);
                self.enter_err(engine, inner, Some(event));
            }
        }
        self.arm_timer(engine, inner, now);
        tx.flush();
        drop(guard);
        if status != TxStatus::Idle {
            engine.schedule(self, status == TxStatus::LinkFull);
        }
        budget.0 != Budget::TURN || status != TxStatus::LinkFull
    }

    fn arm_timer(self: &Arc<Self>, engine: &Engine, inner: &mut Inner, now: Nanos) {
        let cx = Cx::new(engine, self, &inner.conn);
        if !inner.conn.sends() || self.qp_type != QpType::Rc {
            return;
        }
        let Some(deadline) = inner.requester.deadline(&cx, now) else { return };
        // An earlier look at this queue pair will see to the rest.
        if inner.timer.is_none_or(|timer| deadline < timer) {
            engine.arm(self, inner.timer.replace(deadline), deadline);
        }
    }

    /// A timer entry for `deadline` came up.
    /// Returns whether the queue pair has failed because its peer is silent.
    pub(crate) fn on_timer(
        self: &Arc<Self>,
        engine: &Engine,
        deadline: Nanos,
        tx: &mut dyn PacketTx,
        now: Nanos,
    ) -> bool {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.timer != Some(deadline) {
            return false;
        }
        inner.timer = None;
        if !inner.conn.sends() {
            return false;
        }
        let cx = Cx::new(engine, self, &inner.conn);
        let silence = inner.requester.on_timer(&cx, now).err();
        match silence {
            None => {}
            Some(Silence::WhileSending) => self.on_send_failed(engine, inner),
            // No work request can say so.
            Some(Silence::WhileIdle) => self.enter_err(engine, inner, Some(EventType::QpFatal)),
        }
        self.pump(engine, guard, tx, now);
        silence.is_some()
    }

    // ---- receiving ----

    /// Takes in one packet, or an offered run of them. What it leads to is sent later, by [`QueuePair::transmit`].
    #[inline]
    pub(crate) fn receive(
        &self,
        engine: &Engine,
        origin: &Origin,
        headers: &Headers,
        payload: Payload<'_>,
        now: Nanos,
    ) -> Wants {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let opcode = headers.bth.opcode;
        let transport = match self.qp_type {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            QpType::Ud => Transport::Ud,
        };
        // Only reliable connections make offers: others do not know when their memory was read.
        if opcode.transport() != transport || (transport != Transport::Rc && payload.packets() != 1) {
            count(&engine.counters.malformed_packets);
            return Wants::Nothing;
        }
        if !inner.conn.receives() {
            return Wants::Nothing;
        }
        if self.qp_type != QpType::Ud
            && !inner.conn.av.as_ref().is_some_and(|av| origin.is_from(av, inner.conn.dest_qpn))
        {
            count(&engine.counters.wrong_source);
            return Wants::Nothing;
        }
        inner.requester.heard();
        let cx = Cx::new(engine, self, &inner.conn);
        match &mut inner.receiver {
            Receiver::Rc(responder) => match opcode.operation() {
                Operation::Ack | Operation::ReadResponse | Operation::AtomicAck => {
                    if !inner.conn.sends() {
                        return Wants::Nothing;
                    }
                    let result = inner.requester.on_response(&cx, now, headers, payload);
                    if let Err(SendFailed) = result.and_then(|()| inner.requester.reap_failed(&cx)) {
                        self.on_send_failed(engine, inner);
                        return Wants::Transmit;
                    }
                    self.check_drained(engine, inner);
                    if inner.requester.wants_transmit() { Wants::Transmit } else { Wants::Nothing }
                }
                _ => {
                    let first = responder.first_contact() && inner.conn.state == QpState::Rtr;
                    let result = responder.on_request(&cx, headers, payload);
                    if let Err(Broken { recv, event }) = result {
                        responder.incoming.fail(&cx, recv);
                        self.enter_err(engine, inner, Some(event));
                        return Wants::Transmit;
                    }
                    if first {
                        engine.sink.qp(EventType::CommEst, self.qpn);
                    }
                    match responder.pending() {
                        None => Wants::Nothing,
                        Some(true) => Wants::Acknowledge,
                        Some(false) => Wants::Transmit,
                    }
                }
            },
            Receiver::Uc(receiver) => {
                if let Some(status) = receiver.on_request(&cx, headers, payload) {
                    receiver.incoming.fail(&cx, status);
                    self.enter_err(engine, inner, Some(EventType::QpReqErr));
                }
                Wants::Nothing
            }
            Receiver::Ud(wqe) => {
                if let Some(status) = receive_datagram(&cx, wqe, origin, headers, payload) {
                    let mut wc = WorkCompletion::new(wqe.wr_id, WcOpcode::Recv, self.qpn);
                    wc.status = status;
                    self.recv_cq.push(wc, true);
                    self.enter_err(engine, inner, Some(EventType::QpFatal));
                }
                Wants::Nothing
            }
        }
    }
}

impl Receiver {
    fn reset(&mut self, rq_psn: u32) {
        match self {
            Self::Rc(responder) => responder.reset(rq_psn),
            Self::Uc(receiver) => receiver.reset(rq_psn),
            Self::Ud(_) => {}
        }
    }

    /// Its owner ended it: nothing that it owes is sent any more (IBTA 10.3.1.5).
    fn silence(&mut self) {
        if let Self::Rc(responder) = self {
            responder.silence();
        }
    }

    fn fail(&mut self, cx: &Cx<'_>, status: WcStatus) {
        match self {
            Self::Rc(responder) => responder.incoming.fail(cx, status),
            Self::Uc(receiver) => receiver.incoming.fail(cx, status),
            Self::Ud(_) => {}
        }
    }
}
