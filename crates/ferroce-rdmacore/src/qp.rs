use crate::ah::RdmaAh;
use crate::cq::RdmaCq;
use crate::drain::{Drained, Wait};
use crate::flags::CONNECTED;
use crate::note::StateNote;
use crate::pd::RdmaPd;
use crate::post::{self, RecvQueue};
use crate::posted::{Posted, mark};
use crate::sent_to::SentTo;
use crate::srq::RdmaSrq;
use crate::sys::{QpParts, RawQp, SendList};
use crate::{DeviceGone, attr, convert};
use ferroce_abi::types::{ibv_gid, ibv_qp_cap, value};
use ferroce_verbs::provider::QpOps;
use ferroce_verbs::{
    Data, Error, Gid, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, Result, SendWr, check_transition,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Posts after a failure that ask the device whether it has stopped the queue pair.
const MOST_DOUBTS: u8 = 16;

/// A queue pair.
pub(crate) struct RdmaQp {
    raw: Arc<RawQp>,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    note: StateNote,
    pd: Arc<RdmaPd>,
    send_cq: Arc<RdmaCq>,
    recv_cq: Arc<RdmaCq>,
    srq: Option<Arc<RdmaSrq>>,
    groups: Mutex<Vec<Gid>>,
    sent_to: Mutex<SentTo>,
    /// How often the device was asked in vain whether it has failed, since it was last moved.
    doubts: AtomicU8,
    posted: Posted,
    /// Whether it has been able to receive since it was in RESET.
    received: AtomicBool,
    /// Whether it is known that no more receives of a shared queue complete.
    last_wqe: AtomicBool,
}

impl RdmaQp {
    pub(crate) fn new(
        pd: Arc<RdmaPd>,
        attr: &QpInitAttr,
        send_cq: Arc<RdmaCq>,
        recv_cq: Arc<RdmaCq>,
        srq: Option<Arc<RdmaSrq>>,
    ) -> Result<Arc<Self>> {
        let raw = RawQp::new(QpParts {
            pd: pd.raw.clone(),
            send_cq: send_cq.raw.clone(),
            recv_cq: recv_cq.raw.clone(),
            srq: srq.as_ref().map(|srq| srq.raw.clone()),
            cap: ibv_qp_cap {
                max_send_wr: attr.cap.max_send_wr.max(1),
                max_recv_wr: if srq.is_some() { 0 } else { attr.cap.max_recv_wr.max(1) },
                max_send_sge: attr.cap.max_send_sge,
                max_recv_sge: attr.cap.max_recv_sge,
                max_inline_data: attr.cap.max_inline_data,
            },
            qp_type: convert::qp_type(attr.qp_type),
            sq_sig_all: attr.sq_sig_all,
        })?;
        let (real, qp_num) = (raw.cap(), raw.qp_num());
        let flags = &pd.context.flags;
        flags.begin(qp_num, if attr.qp_type == QpType::Ud { 0 } else { CONNECTED });
        let qp = Arc::new(Self {
            qp_num,
            qp_type: attr.qp_type,
            cap: QpCap {
                max_send_wr: real.max_send_wr,
                max_recv_wr: real.max_recv_wr,
                max_send_sge: real.max_send_sge,
                max_recv_sge: real.max_recv_sge,
                max_inline_data: real.max_inline_data,
            },
            raw: Arc::new(raw),
            note: StateNote::new(flags.clone(), qp_num),
            pd,
            send_cq,
            recv_cq,
            srq,
            groups: Mutex::default(),
            sent_to: Mutex::new(SentTo::new(real.max_send_wr)),
            doubts: AtomicU8::new(0),
            posted: Posted::default(),
            received: AtomicBool::new(false),
            last_wqe: AtomicBool::new(false),
        });
        if qp.qp_type == QpType::Ud {
            qp.pd.context.drains.start();
        }
        qp.send_cq.serve(qp.qp_type);
        qp.recv_cq.serve(qp.qp_type);
        let registry = &qp.pd.context.registry;
        registry.qps.insert(qp.raw.id(), &qp);
        Ok(qp)
    }

    /// Whether an event of a completion queue or a shared receive queue concerns it.
    pub(crate) fn uses(&self, id: usize) -> bool {
        let srq = self.srq.as_ref().map(|srq| srq.raw.id());
        self.send_cq.raw.id() == id || self.recv_cq.raw.id() == id || srq == Some(id)
    }

    /// An event says that it failed.
    pub(crate) fn failed(&self) {
        self.note.doubt();
    }

    /// An event says that it takes no more receives out of its shared queue.
    pub(crate) fn last_wqe_reached(&self) {
        self.last_wqe.store(true, Ordering::Relaxed);
        self.note.doubt();
    }

    /// Asks the device. If that fails the state is as it was, and as doubtful.
    fn ask(&self) -> QpState {
        let question = self.note.ask();
        match self.raw.query(value::IBV_QP_STATE) {
            Ok(attr) => match convert::state(attr.qp_state) {
                Some(state) => {
                    self.note.answered(&question, state);
                    state
                }
                None => self.note.noted(),
            },
            Err(error) => {
                tracing::debug!(%error, qpn = self.qp_num, "the state of the queue pair cannot be asked for");
                if self.is_gone() { QpState::Err } else { self.note.noted() }
            }
        }
    }

    /// With the device all queue pairs are gone.
    fn is_gone(&self) -> bool {
        self.pd.context.raw.is_gone()
    }

    /// Whether a connection has failed by itself since somebody last looked. A datagram queue pair's failures stop its sending only.
    #[inline]
    fn has_failed(&self) -> bool {
        if self.qp_type == QpType::Ud || !self.note.has_news() {
            return false;
        }
        let failed = self.ask() == QpState::Err;
        // A device may say that a request failed before it stops the queue pair. If it never does, what was polled was of another life of the queue
        // pair, and asking every time would cost.
        if !failed && self.doubts.load(Ordering::Relaxed) < MOST_DOUBTS {
            self.doubts.fetch_add(1, Ordering::Relaxed);
            self.note.doubt();
        }
        failed
    }

    /// Not every device looks at what is posted in the error state before it is put there once more.
    #[cold]
    fn flush_again(&self) {
        let change = self.note.begin();
        let (values, mask) = attr::error_state();
        let done = self.raw.modify(values, mask).is_ok();
        // If that failed the device is gone, and nothing will be flushed.
        self.note.end(&change, done.then_some(QpState::Err));
    }

    fn destination<'a>(&self, wr: &SendWr<'a>) -> Result<Option<&'a RdmaAh>> {
        let Some(dest) = wr.ud else { return Ok(None) };
        let ah: &RdmaAh = match (**dest.ah.ops()).as_any().downcast_ref() {
            Some(ah) => ah,
            None => return Err(Error::invalid("ah", "it belongs to another device")),
        };
        if !Arc::ptr_eq(ah.raw.pd(), &self.pd.raw) {
            return Err(Error::invalid("ah", "it belongs to another protection domain"));
        }
        Ok(Some(ah))
    }

    fn check_send(&self, wr: &SendWr<'_>) -> Result<()> {
        if let state @ (QpState::Reset | QpState::Init | QpState::Rtr) = self.note.noted() {
            return Err(Error::State { what: "post_send", state });
        }
        wr.check(self.qp_type)?;
        match wr.data {
            Data::Sges(sges) if sges.len() > self.cap.max_send_sge as usize => {
                let why = format!("{} elements, the queue pair was made for {}", sges.len(), self.cap.max_send_sge);
                Err(Error::invalid("sges", why))
            }
            Data::Inline(bytes) if bytes.len() > self.cap.max_inline_data as usize => {
                let why = format!("{} bytes, the queue pair was made for {}", bytes.len(), self.cap.max_inline_data);
                Err(Error::invalid("inline data", why))
            }
            _ => Ok(()),
        }
    }
}

impl RdmaQp {
    /// Posts what is in the list, which is the beginning of `wrs`.
    #[inline]
    fn flush(&self, list: &mut SendList<'_>, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let stopped = |(index, number)| PostError {
            index,
            error: post::refused(&self.pd.context.raw, number, "send queue", self.cap.max_send_wr),
        };
        let wrs = &wrs[..list.len()];
        if self.qp_type != QpType::Ud {
            let result = list.post(&self.raw);
            self.posted.sends(post::count(result, wrs.len()));
            return result.map_err(stopped);
        }
        // In the order of the queue, so nobody else may post in between. Posting does not block.
        let mut sent_to = self.sent_to.lock();
        let result = list.post(&self.raw);
        let posted = post::count(result, wrs.len());
        self.posted.sends(posted);
        let done = sent_to.posted(wrs[..posted].iter().filter_map(|wr| wr.ud).map(|dest| dest.ah.clone()));
        drop(sent_to);
        self.pd.context.drains.let_go(done.into_iter().flatten());
        result.map_err(stopped)
    }
}

impl RdmaQp {
    /// Sees to it that what is outstanding is flushed, if there is anything and somebody may want to know: see [`crate::drain`].
    fn drain(&mut self) {
        // A datagram's marker needs an address, and without one none was ever posted.
        let can_send = self.qp_type != QpType::Ud || !self.sent_to.get_mut().is_empty();
        let sends = if self.posted.any_sends() && can_send { Wait::Marker } else { Wait::Nothing };
        let receives = match (self.srq.is_some(), *self.last_wqe.get_mut()) {
            (false, _) if self.posted.any_receives() => Wait::Marker,
            (true, _) if !*self.received.get_mut() => Wait::Nothing,
            (true, false) => Wait::LastWqe,
            (true, true) => Wait::Round,
            _ => Wait::Nothing,
        };
        if self.is_gone() || [sends, receives] == [Wait::Nothing; 2] {
            return;
        }
        if self.qp_type != QpType::Ud && self.srq.is_none() && self.posted.is_out(&self.pd.context.flags, self.qp_num) {
            return;
        }
        let drained = Drained::new(self.raw.clone(), self.sent_to.get_mut().clear());
        let cqs = [self.send_cq.raw.id(), self.recv_cq.raw.id()];
        self.pd.context.drains.drain(drained, cqs, [sends, receives]);
    }
}

impl QpOps for RdmaQp {
    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn qp_type(&self) -> QpType {
        self.qp_type
    }

    fn cap(&self) -> QpCap {
        self.cap
    }

    fn state(&self) -> QpState {
        if self.is_gone() { QpState::Err } else { self.note.certain().unwrap_or_else(|| self.ask()) }
    }

    fn modify(&self, attr: &QpAttr) -> Result<()> {
        let state = self.state();
        if self.is_gone() {
            return Err(DeviceGone.into());
        }
        let next = check_transition(self.qp_type, state, attr)?;
        let (values, mask) = attr::to_abi(attr, &self.pd.context)?;
        let change = self.note.begin();
        let result = self.raw.modify(values, mask);
        self.doubts.store(0, Ordering::Relaxed);
        self.note.end(&change, result.is_ok().then_some(next));
        match result {
            Ok(()) => {
                if matches!(next, QpState::Rtr | QpState::Rts | QpState::Sqd) {
                    mark(&self.received);
                }
                if next == QpState::Reset {
                    // Nothing is outstanding any more.
                    self.posted.reset();
                    self.received.store(false, Ordering::Relaxed);
                    self.last_wqe.store(false, Ordering::Relaxed);
                    let gone = self.sent_to.lock().clear();
                    drop(gone);
                }
                Ok(())
            }
            Err(number) => {
                let error = self.pd.context.raw.error("modifying a queue pair", number);
                if !self.is_gone() {
                    // Was it the state? The queue pair may have failed without anybody having seen it yet.
                    check_transition(self.qp_type, self.ask(), attr)?;
                }
                Err(error)
            }
        }
    }

    fn query(&self) -> Result<QpAttr> {
        let question = self.note.ask();
        let attr = attr::from_abi(&self.raw.query(attr::MASK)?, self.qp_type);
        if let Some(state) = attr.state {
            self.note.answered(&question, state);
        }
        Ok(attr)
    }

    #[inline]
    fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut list = SendList::new();
        let mut done = 0;
        for wr in wrs {
            match self.check_send(wr).and_then(|()| self.destination(wr)) {
                Ok(ah) => list.push(wr, ah.map(|ah| &ah.raw)),
                Err(error) => {
                    let index = done + list.len();
                    self.flush(&mut list, &wrs[done..]).map_err(|error| beyond(error, done))?;
                    return Err(PostError { index, error });
                }
            }
            if list.is_full() {
                let count = list.len();
                self.flush(&mut list, &wrs[done..]).map_err(|error| beyond(error, done))?;
                done += count;
            }
        }
        self.flush(&mut list, &wrs[done..]).map_err(|error| beyond(error, done))
    }

    #[inline]
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.srq.is_some() {
            let error = Error::invalid("queue pair", "it uses an SRQ: post receives there");
            return Err(PostError { index: 0, error });
        }
        if self.note.noted() == QpState::Reset && !wrs.is_empty() {
            return Err(PostError { index: 0, error: Error::State { what: "post_recv", state: QpState::Reset } });
        }
        let queue = RecvQueue {
            context: &self.pd.context.raw,
            name: "receive queue",
            max_wr: self.cap.max_recv_wr,
            max_sge: self.cap.max_recv_sge,
        };
        post::receives(wrs, queue, |list| {
            let all = list.len();
            let result = list.post(&self.raw);
            self.posted.receives(post::count(result, all));
            result
        })?;
        if self.note.noted() == QpState::Err || self.has_failed() {
            self.flush_again();
        }
        Ok(())
    }

    fn attach_mcast(&self, gid: Gid) -> Result<()> {
        if self.qp_type != QpType::Ud {
            return Err(Error::invalid("queue pair", "only UD queue pairs can join a multicast group"));
        }
        if !gid.is_multicast() {
            return Err(Error::invalid("gid", format!("{gid} is not a multicast group")));
        }
        self.raw.attach_mcast(ibv_gid { raw: gid.to_bytes() })?;
        let mut groups = self.groups.lock();
        if !groups.contains(&gid) {
            groups.push(gid);
        }
        Ok(())
    }

    fn detach_mcast(&self, gid: Gid) -> Result<()> {
        let mut groups = self.groups.lock();
        let Some(at) = groups.iter().position(|&group| group == gid) else {
            return Err(Error::invalid("gid", format!("the queue pair is not in group {gid}")));
        };
        groups.swap_remove(at);
        drop(groups);
        self.raw.detach_mcast(ibv_gid { raw: gid.to_bytes() })
    }
}

/// An error of a part of a list that begins at `done`.
#[cold]
fn beyond(error: PostError, done: usize) -> PostError {
    PostError { index: done + error.index, ..error }
}

impl Drop for RdmaQp {
    fn drop(&mut self) {
        let registry = &self.pd.context.registry;
        registry.qps.remove(&self.raw.id());
        // The kernel does not destroy a member of a group.
        for gid in self.groups.get_mut().drain(..) {
            if let Err(error) = self.raw.detach_mcast(ibv_gid { raw: gid.to_bytes() }) {
                tracing::warn!(%error, %gid, "the queue pair could not leave its group");
            }
        }
        self.drain();
    }
}
