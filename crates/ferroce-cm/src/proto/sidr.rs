//! Which QP serves a service id: SIDR_REQ and SIDR_REP.

use super::listen::{Place, Service};
use super::request::check;
use super::slab::{Name, Slab};
use super::timers::Timers;
use super::wire::{Head, Route, encode};
use super::{
    Address, CmError, Ece, Endpoint, Event, Nanos, ReceivedData, ResolveParams, SidrId, SidrRequest, SidrResponse,
};
use ferroce_wire::MAD_LEN;
use ferroce_wire::cm::{AdditionalInfo, PrivateData, ServiceId, SidrRep, SidrReq, SidrStatus};
use std::collections::HashMap;

/// Our question.
pub(super) struct Sent {
    route: Route,
    request_id: u32,
    service_id: ServiceId,
    cookie: u64,
    sent: u32,
    expires: Nanos,
    mad: [u8; MAD_LEN],
}

/// A peer's question.
pub(super) struct Received {
    address: Address,
    request_id: u32,
    tid: u64,
    service_id: ServiceId,
    backlog: Option<Place>,
    /// Who was asked, as long as the question may come again and must be answered here.
    listener: Option<Name>,
    /// Nobody waits for the answer any more; the event has not been read, and keeps its place until it is.
    is_void: bool,
    answer: Option<[u8; MAD_LEN]>,
}

#[derive(Default)]
pub(super) struct Sidrs {
    pub(super) sent: Slab<Sent>,
    pub(super) sent_timers: Timers,
    by_request_id: HashMap<u32, u32>,
    pub(super) received: Slab<Received>,
    pub(super) received_timers: Timers,
    by_peer: HashMap<(Address, u32), u32>,
}

/// The answer to a peer's question.
#[derive(Clone, Copy, Debug)]
pub struct SidrAnswer<'a> {
    /// What becomes of it.
    pub status: SidrStatus,
    /// The QP that serves the service id, 24 bits, if the status is [`SidrStatus::Success`].
    pub qpn: u32,
    /// Its queue key.
    pub qkey: u32,
    /// Options, if any.
    pub ece: Option<Ece>,
    /// Details, depending on the status.
    pub info: AdditionalInfo,
    /// The user's, at most 136 bytes.
    pub private_data: &'a [u8],
}

impl Endpoint {
    /// Asks which QP serves a service id. Ends in [`Event::SidrResponse`] or [`Event::SidrUnreachable`]; then, or
    /// before, the user destroys the question.
    ///
    /// # Errors
    ///
    /// If a parameter does not fit, the deadline has passed, or there are too many questions.
    pub fn resolve_service(&mut self, now: Nanos, params: &ResolveParams<'_>) -> Result<SidrId, CmError> {
        check("flow label", params.flow_label, 0xf_ffff)?;
        let private_data = PrivateData::new(params.private_data)?;
        if params.deadline <= now {
            return Err(CmError::DeadlinePassed { deadline: params.deadline, now });
        }
        let limit = self.config.limits.sidr;
        if self.sidrs.sent.len() >= limit {
            return Err(CmError::Limit { what: "service id resolutions", limit });
        }
        let request_id = self.comm_ids.allocate(|id| self.sidrs.by_request_id.contains_key(&id));
        let req = SidrReq { request_id, pkey: params.pkey, service_id: params.service_id, private_data };
        let tid = rand::Rng::random(&mut self.rng);
        let slot = self.sidrs.sent.insert(Sent {
            route: Route { to: params.address, traffic_class: params.traffic_class, flow_label: params.flow_label },
            request_id,
            service_id: params.service_id,
            cookie: params.cookie,
            sent: 0,
            expires: params.deadline,
            mad: encode(tid, 0, req, Some(params.private_data.len())),
        });
        self.sidrs.by_request_id.insert(request_id, slot);
        self.send_sidr(now, slot);
        Ok(SidrId(self.sidrs.sent.name(slot)))
    }

    fn send_sidr(&mut self, now: Nanos, slot: u32) {
        let sidr = &mut self.sidrs.sent[slot];
        sidr.sent = sidr.sent.saturating_add(1);
        let (route, mad, sent, expires) = (sidr.route, sidr.mad, sidr.sent, sidr.expires);
        if sent > 1 {
            self.counters.tx_retries.sidr_req += 1;
        }
        self.transmit(route, mad);
        let at = now.saturating_add(self.config.retry.interval(sent, &mut self.rng));
        self.sidrs.sent_timers.set(slot, at.min(expires));
    }

    /// Lets go of a question of ours, at any time. There is no event for it any more.
    ///
    /// # Errors
    ///
    /// [`CmError::Stale`] if that was done before.
    pub fn destroy_sidr(&mut self, sidr: SidrId) -> Result<(), CmError> {
        let slot = self.sidrs.sent.find(sidr.0).ok_or(CmError::Stale)?;
        self.sidrs.sent_timers.clear(slot);
        let sidr = self.sidrs.sent.remove(slot);
        self.sidrs.by_request_id.remove(&sidr.request_id);
        Ok(())
    }

    /// Answers a peer's question. The name is stale then.
    ///
    /// # Errors
    ///
    /// [`CmError::Stale`] if it was answered before, or waited for longer than
    /// [`Config::request_timeout`](super::Config::request_timeout); or a parameter does not fit.
    pub fn answer_sidr(&mut self, now: Nanos, sidr: SidrId, answer: &SidrAnswer<'_>) -> Result<(), CmError> {
        let slot = self.sidrs.received.find(sidr.0).ok_or(CmError::Stale)?;
        check("QPN", answer.qpn, 0xff_ffff)?;
        let private_data = PrivateData::new(answer.private_data)?;
        let (vendor_id, options) = Ece::to_wire(answer.ece);
        self.sidr_read(now, slot)?;
        let received = &mut self.sidrs.received[slot];
        let rep = SidrRep {
            request_id: received.request_id,
            status: answer.status,
            vendor_id,
            qpn: answer.qpn,
            service_id: received.service_id,
            qkey: answer.qkey,
            info: answer.info,
            private_data,
        };
        let mad = encode(received.tid, options, rep, Some(answer.private_data.len()));
        received.answer = Some(mad);
        // A grant may be lost, and the question come again; of a refusal it does no harm if the next one comes from somebody else.
        let listener = if answer.status == SidrStatus::Success { None } else { received.listener.take() };
        let route = Route::back(&received.address);
        self.transmit(route, mad);
        self.sidrs.received.rename(slot);
        let until = now.saturating_add(self.config.timewait);
        self.sidrs.received_timers.set(slot, until);
        if let Some(listener) = listener {
            self.request_settled(listener);
        }
        Ok(())
    }

    /// The user has read a question, though not answered: see [`request_read`](Self::request_read).
    ///
    /// # Errors
    ///
    /// [`CmError::Stale`] as of [`answer_sidr`](Self::answer_sidr): nobody waits for the answer any more.
    pub fn sidr_request_read(&mut self, now: Nanos, sidr: SidrId) -> Result<(), CmError> {
        let slot = self.sidrs.received.find(sidr.0).ok_or(CmError::Stale)?;
        self.sidr_read(now, slot)
    }

    /// Frees the place in the backlog of a question that is read. Forgets it, and fails, if nobody waits for the answer.
    fn sidr_read(&mut self, now: Nanos, slot: u32) -> Result<(), CmError> {
        if let Some(place) = self.sidrs.received[slot].backlog.take()
            && let Some((moved, place)) = self.listeners.leave(place, now)
        {
            self.sidrs.received[moved].backlog = Some(place);
        }
        let has_expired = self.sidrs.received_timers.get(slot).is_some_and(|at| at <= now);
        if self.sidrs.received[slot].is_void || has_expired {
            self.remove_received(slot);
            return Err(CmError::Stale);
        }
        Ok(())
    }

    /// The listener of an unread question is closed.
    pub(super) fn refuse_sidr(&mut self, now: Nanos, slot: u32) {
        self.sidrs.received[slot].backlog = None;
        let sidr = SidrId(self.sidrs.received.name(slot));
        let answer = SidrAnswer {
            status: SidrStatus::Reject,
            qpn: 0,
            qkey: 0,
            ece: None,
            info: AdditionalInfo::EMPTY,
            private_data: &[],
        };
        // The parameters fit; nobody may wait for it.
        let _ = self.answer_sidr(now, sidr, &answer);
    }

    pub(super) fn on_sidr_req(&mut self, now: Nanos, from: &Address, head: &Head, req: &SidrReq) {
        if let Some(&slot) = self.sidrs.by_peer.get(&(*from, req.request_id)) {
            let received = &self.sidrs.received[slot];
            if received.tid == head.tid && received.service_id == req.service_id {
                self.counters.rx_duplicates.sidr_req += 1;
                if let Some(mad) = received.answer {
                    self.transmit(Route::back(from), mad);
                }
                return;
            }
            // The peer has restarted. What it asked before it does not want to know any more.
            self.remove_received(slot);
        }
        let listener = self.listeners.asked(from, req.service_id);
        let Some(listener) = listener.filter(|&slot| self.listeners.get(slot).service == Service::Datagram) else {
            self.counters.rx_no_listener += 1;
            return self.refuse_sidr_req(from, head.tid, req, SidrStatus::Unsupported);
        };
        if !self.listeners.has_room(listener) {
            self.counters.backlog_rejected += 1;
            return self.refuse_sidr_req(from, head.tid, req, SidrStatus::NoQp);
        }
        if self.sidrs.received.len() >= self.config.limits.sidr && !self.evict_answered() {
            self.counters.limit_rejected += 1;
            return self.refuse_sidr_req(from, head.tid, req, SidrStatus::NoQp);
        }
        let slot = self.sidrs.received.insert(Received {
            address: *from,
            request_id: req.request_id,
            tid: head.tid,
            service_id: req.service_id,
            backlog: None,
            listener: Some(self.listeners.name(listener)),
            is_void: false,
            answer: None,
        });
        self.sidrs.received[slot].backlog = Some(self.listeners.enter(listener, slot, now));
        self.sidrs.by_peer.insert((*from, req.request_id), slot);
        self.sidrs.received_timers.set(slot, now.saturating_add(self.config.request_timeout));
        self.events.push_back(Event::SidrRequest(SidrRequest {
            listener: self.listeners.id(listener),
            listener_cookie: self.listeners.get(listener).cookie,
            sidr: SidrId(self.sidrs.received.name(slot)),
            address: *from,
            service_id: req.service_id,
            pkey: req.pkey,
            private_data: ReceivedData::new(req.private_data, head.class_specific),
        }));
    }

    fn refuse_sidr_req(&mut self, from: &Address, tid: u64, req: &SidrReq, status: SidrStatus) {
        self.reply(from, tid, refusal(req.request_id, req.service_id, status));
    }

    pub(super) fn refuse_sidr_version(&mut self, from: &Address, tid: u64, request_id: u32) {
        self.reply(from, tid, refusal(request_id, ServiceId(0), SidrStatus::UnsupportedVersion));
    }

    /// Makes room by forgetting the oldest answer, if there is any.
    fn evict_answered(&mut self) -> bool {
        let Some((_, oldest)) = self.sidrs.received_timers.next() else { return false };
        let is_answered = self.sidrs.received[oldest].answer.is_some();
        if is_answered {
            self.counters.timewait_evicted += 1;
            self.remove_received(oldest);
        }
        is_answered
    }

    /// Forgets a question. While the user has its event, unread, the place in the backlog stays taken: otherwise a peer that asks
    /// again and again decides how many events there are.
    fn remove_received(&mut self, slot: u32) {
        self.sidrs.received_timers.clear(slot);
        let received = &mut self.sidrs.received[slot];
        let key = (received.address, received.request_id);
        received.is_void = true;
        let listener = received.listener.take();
        let is_read = received.backlog.is_none();
        if self.sidrs.by_peer.get(&key) == Some(&slot) {
            self.sidrs.by_peer.remove(&key);
        }
        if is_read {
            self.sidrs.received.remove(slot);
        }
        if let Some(listener) = listener {
            self.request_settled(listener);
        }
    }

    pub(super) fn on_sidr_rep(&mut self, from: &Address, head: &Head, rep: &SidrRep) {
        let slot = self.sidrs.by_request_id.get(&rep.request_id).copied();
        let Some(slot) = slot.filter(|&slot| {
            let sent = &self.sidrs.sent[slot];
            // A peer that does not know the version does not know where the service id is either.
            sent.route.to == *from
                && (sent.service_id == rep.service_id || rep.status == SidrStatus::UnsupportedVersion)
        }) else {
            self.counters.rx_unexpected.sidr_rep += 1;
            return;
        };
        self.sidrs.by_request_id.remove(&rep.request_id);
        self.sidrs.sent_timers.clear(slot);
        self.events.push_back(Event::SidrResponse(SidrResponse {
            sidr: SidrId(self.sidrs.sent.name(slot)),
            cookie: self.sidrs.sent[slot].cookie,
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            ece: Ece::from_wire(rep.vendor_id, head.ece_options),
            info: rep.info,
            private_data: ReceivedData::new(rep.private_data, head.class_specific),
        }));
    }

    pub(super) fn on_sidr_timers(&mut self, now: Nanos) {
        while self.transmits.len() < self.config.limits.transmit.max(1)
            && let Some((at, slot)) = self.sidrs.sent_timers.next()
            && at <= now
        {
            let sidr = &self.sidrs.sent[slot];
            if sidr.expires > now {
                self.send_sidr(now, slot);
                continue;
            }
            let (request_id, cookie, sent) = (sidr.request_id, sidr.cookie, sidr.sent);
            self.sidrs.by_request_id.remove(&request_id);
            self.sidrs.sent_timers.clear(slot);
            let sidr = SidrId(self.sidrs.sent.name(slot));
            self.events.push_back(Event::SidrUnreachable { sidr, cookie, sent });
        }
        while let Some((at, slot)) = self.sidrs.received_timers.next()
            && at <= now
        {
            self.remove_received(slot);
        }
    }
}

/// The refusal of a question of which nothing is kept.
fn refusal(request_id: u32, service_id: ServiceId, status: SidrStatus) -> SidrRep {
    SidrRep {
        request_id,
        status,
        vendor_id: 0,
        qpn: 0,
        service_id,
        qkey: 0,
        info: AdditionalInfo::EMPTY,
        private_data: PrivateData::default(),
    }
}
