//! A connection is asked for: REQ.

use super::endpoint::refuse_req;
use super::index::{PeerKey, Target};
use super::listen::Service;
use super::params::roce_path;
use super::state::{Fingerprint, Passive};
use super::timewait::remote_key;
use super::wire::{Head, encode};
use super::{
    Address, CmError, Conn, ConnId, ConnectParams, ConnectRequest, DisconnectCause, Ece, Endpoint, Event, Nanos,
    ReceivedData, Rejected, State,
};
use ferroce_wire::MAD_LEN;
use ferroce_wire::cm::{
    AdditionalInfo, Answered, Mra, Path, PrivateData, Rej, RejectReason, Req, TransportService, time,
};
use rand::Rng;
use std::time::Duration;

const MIN_PATIENCE: Nanos = 1_000_000_000;

/// However long packets are said to live, a minute is enough to remember what is over.
const MAX_TIMEWAIT: Nanos = 60_000_000_000;

pub(crate) fn nanos(duration: Duration) -> Nanos {
    duration.as_nanos().try_into().unwrap_or(Nanos::MAX)
}

pub(super) fn check(field: &'static str, value: u32, max: u32) -> Result<(), CmError> {
    if value > max { Err(CmError::Parameter { field, value, max }) } else { Ok(()) }
}

impl Endpoint {
    /// Asks for a connection. Ends in [`Event::Response`], or in a terminal event by the deadline.
    ///
    /// # Errors
    ///
    /// If a parameter does not fit, the deadline has passed, or there are too many connections.
    pub fn connect(&mut self, now: Nanos, params: &ConnectParams<'_>) -> Result<ConnId, CmError> {
        check("QPN", params.qpn, 0xff_ffff)?;
        check("PSN", params.psn, 0xff_ffff)?;
        check("retry count", params.retry_count.into(), 7)?;
        check("RNR retry count", params.rnr_retry_count.into(), 7)?;
        check("path MTU code", params.path_mtu.into(), 5)?;
        check("ACK timeout", params.ack_timeout.into(), 31)?;
        check("flow label", params.flow_label, 0xf_ffff)?;
        let private_data = PrivateData::new(params.private_data)?;
        if params.deadline <= now {
            return Err(CmError::DeadlinePassed { deadline: params.deadline, now });
        }
        self.check_room()?;

        let (vendor_id, options) = Ece::to_wire(params.ece);
        let local_comm_id = self.comm_ids.allocate(|id| self.index.by_local(id).is_some());
        let tid = self.rng.random();
        let req = Req {
            local_comm_id,
            vendor_id,
            service_id: params.service_id,
            local_ca_guid: self.config.ca_guid,
            local_qkey: 0,
            local_qpn: params.qpn,
            responder_resources: params.responder_resources,
            local_eecn: 0,
            initiator_depth: params.initiator_depth,
            remote_eecn: 0,
            remote_cm_response_timeout: self.config.remote_cm_response_timeout,
            transport: params.transport,
            end_to_end_flow_control: true,
            starting_psn: params.psn,
            local_cm_response_timeout: self.config.local_cm_response_timeout,
            retry_count: params.retry_count,
            pkey: params.pkey,
            path_mtu: params.path_mtu,
            rdc_exists: false,
            rnr_retry_count: params.rnr_retry_count,
            max_cm_retries: self.config.max_cm_retries,
            srq: params.srq,
            primary: roce_path(params),
            alternate: None,
            sap_supported: false,
            private_data,
        };
        let slot = self.conns.insert(Conn {
            state: State::ReqSent,
            owned: true,
            told: false,
            remembered: true,
            holds_qpn: false,
            passive: None,
            address: params.address,
            traffic_class: params.traffic_class,
            flow_label: params.flow_label,
            local_comm_id,
            remote_comm_id: None,
            local_qpn: params.qpn,
            remote_qpn: 0,
            remote_ca_guid: 0,
            tid,
            cookie: params.cookie,
            refusal: None,
            timewait: self.timewait_for(&req.primary),
            sent: 0,
            expires: params.deadline,
            mad: [0; MAD_LEN],
        });
        self.index.set_local(local_comm_id, Target::Conn(slot));
        self.send_new(slot, encode(tid, options, req, Some(params.private_data.len())));
        self.schedule_retry(now, slot);
        Ok(self.conn_id(slot))
    }

    fn check_room(&self) -> Result<(), CmError> {
        let limit = self.config.limits.connections;
        if self.conns.len() >= limit { Err(CmError::Limit { what: "connections", limit }) } else { Ok(()) }
    }

    /// Packets of a connection live about as long as its QPs wait for an acknowledgement.
    fn timewait_for(&self, path: &Path) -> Nanos {
        let twice = nanos(time(path.local_ack_timeout)).saturating_mul(2);
        self.config.timewait.max(twice.min(MAX_TIMEWAIT))
    }

    pub(super) fn on_req(&mut self, now: Nanos, from: &Address, head: &Head, req: &Req) {
        let fingerprint = Fingerprint::new(head.tid, req);
        let key = PeerKey { address: *from, ca_guid: req.local_ca_guid, number: req.local_comm_id };
        match self.index.by_remote(&key) {
            Some(Target::Conn(slot)) => {
                let conn = &self.conns[slot];
                if conn.passive.as_ref().is_some_and(|passive| passive.req == fingerprint) {
                    self.counters.rx_duplicates.req += 1;
                    return self.on_duplicate_req(slot);
                }
                let is_over = matches!(conn.state, State::Idle | State::TimeWait | State::DreqSent | State::DreqRcvd);
                if !is_over {
                    // The id names a connection that lives. A peer that has restarted chooses another id next time.
                    return self.reply(
                        from,
                        head.tid,
                        refuse_req(req.local_comm_id, RejectReason::DuplicateLocalCommId),
                    );
                }
                self.index.remove_remote(key, Target::Conn(slot));
            }
            Some(Target::Wait(wait)) => {
                if self.waits.slab[wait].req == Some(fingerprint) {
                    self.counters.rx_duplicates.req += 1;
                    return self.refuse_again(from, head, wait, Answered::Req, req.local_comm_id);
                }
                self.index.remove_remote(key, Target::Wait(wait));
            }
            None => {}
        }
        if let Some(refusal) = self.refuse_at_sight(now, from, req) {
            return self.reply(from, head.tid, refusal);
        }
        let Some(listener) = self.listeners.asked(from, req.service_id) else {
            self.counters.rx_no_listener += 1;
            return self.reply(from, head.tid, refuse_req(req.local_comm_id, RejectReason::InvalidServiceId));
        };
        if self.listeners.get(listener).service != Service::Connection {
            return self.reply(from, head.tid, refuse_req(req.local_comm_id, RejectReason::InvalidTransportType));
        }
        if self.check_room().is_err() || !self.half_open.admits(from, self.config.limits.half_open) {
            self.counters.limit_rejected += 1;
            return self.reply(from, head.tid, refuse_req(req.local_comm_id, RejectReason::NoResources));
        }
        if !self.listeners.has_room(listener) {
            return self.on_full_backlog(now, from, head, listener, req);
        }
        self.admit(now, from, head, listener, req);
    }

    /// What is wrong with a request, whoever it is for.
    fn refuse_at_sight(&mut self, now: Nanos, from: &Address, req: &Req) -> Option<Rej> {
        let refuse = |reason| refuse_req(req.local_comm_id, reason);
        if !matches!(req.transport, TransportService::Rc | TransportService::Uc) {
            return Some(refuse(RejectReason::InvalidTransportType));
        }
        if req.primary.remote_gid != from.local.to_bytes() {
            let info = AdditionalInfo::new(&from.local.to_bytes());
            return Some(Rej { info, ..refuse(RejectReason::InvalidGid) });
        }
        if !(1..=5).contains(&req.path_mtu) {
            return Some(refuse(RejectReason::InvalidMtu));
        }
        let key = PeerKey { address: *from, ca_guid: req.local_ca_guid, number: req.local_qpn };
        if let Some(old) = self.index.by_qpn(&key) {
            // IBTA 12.9.8.3.1: the peer has forgotten a connection of this QP. It is told to try again, by when we
            // have forgotten it as well.
            self.counters.rx_stale += 1;
            self.end_stale(now, old);
            return Some(refuse(RejectReason::StaleConn));
        }
        None
    }

    /// The peer has forgotten a connection.
    pub(super) fn end_stale(&mut self, now: Nanos, slot: u32) {
        self.release_qpn(slot);
        match self.conns[slot].state {
            State::ReqRcvd | State::MraReqSent => {
                self.conns[slot].refusal = Some(RejectReason::StaleConn);
                self.tell(slot, |conn, cookie| {
                    Event::Rejected(Rejected {
                        conn,
                        cookie,
                        reason: RejectReason::StaleConn,
                        info: AdditionalInfo::EMPTY,
                        private_data: ReceivedData::empty(),
                    })
                });
                self.enter_idle(now, slot);
            }
            State::RepSent | State::MraRepRcvd | State::RepRcvd | State::MraRepSent | State::Established => {
                self.tell_ended(slot, DisconnectCause::Stale);
                self.start_dreq(now, slot, &PrivateData::default(), None);
            }
            State::Idle | State::ReqSent | State::MraReqRcvd | State::DreqSent | State::DreqRcvd | State::TimeWait => {}
        }
    }

    /// Says that it will take longer, if the user still takes requests; otherwise no.
    fn on_full_backlog(&mut self, now: Nanos, from: &Address, head: &Head, listener: u32, req: &Req) {
        if !self.listeners.is_moving(listener, now, self.config.listener_patience) {
            self.counters.backlog_rejected += 1;
            return self.reply(from, head.tid, refuse_req(req.local_comm_id, RejectReason::NoResources));
        }
        self.counters.backlog_busy += 1;
        let mra = Mra {
            local_comm_id: 0,
            remote_comm_id: req.local_comm_id,
            received: Answered::Req,
            service_timeout: self.config.busy_service_timeout,
            private_data: PrivateData::default(),
        };
        self.reply(from, head.tid, mra);
    }

    fn admit(&mut self, now: Nanos, from: &Address, head: &Head, listener: u32, req: &Req) {
        let local_comm_id = self.comm_ids.allocate(|id| self.index.by_local(id).is_some());
        let tries = Nanos::from(req.max_cm_retries) + 1;
        let patience = nanos(time(req.local_cm_response_timeout)).saturating_mul(tries);
        let expires = now.saturating_add(self.config.request_timeout);
        let slot = self.conns.insert(Conn {
            state: State::ReqRcvd,
            owned: true,
            told: false,
            remembered: true,
            holds_qpn: true,
            passive: Some(Passive {
                req: Fingerprint::new(head.tid, req),
                listener: self.listeners.name(listener),
                backlog: None,
                half_open: true,
                alternate_path: req.alternate.is_some(),
                patience: patience.max(MIN_PATIENCE),
            }),
            address: *from,
            traffic_class: req.primary.traffic_class,
            flow_label: req.primary.flow_label,
            local_comm_id,
            remote_comm_id: Some(req.local_comm_id),
            local_qpn: 0,
            remote_qpn: req.local_qpn,
            remote_ca_guid: req.local_ca_guid,
            tid: head.tid,
            cookie: 0,
            refusal: None,
            timewait: self.timewait_for(&req.primary),
            sent: 0,
            expires,
            mad: [0; MAD_LEN],
        });
        let place = self.listeners.enter(listener, slot, now);
        let conn = &mut self.conns[slot];
        if let Some(passive) = &mut conn.passive {
            passive.backlog = Some(place);
        }
        self.index.set_local(local_comm_id, Target::Conn(slot));
        if let Some(key) = remote_key(conn) {
            self.index.set_remote(key, Target::Conn(slot));
        }
        self.index.set_qpn(Self::qpn_key(conn), slot);
        self.half_open.add(from);
        self.conn_timers.set(slot, expires);
        self.events.push_back(Event::ConnectRequest(ConnectRequest {
            listener: self.listeners.id(listener),
            listener_cookie: self.listeners.get(listener).cookie,
            conn: self.conn_id(slot),
            address: *from,
            service_id: req.service_id,
            transport: req.transport,
            remote_qpn: req.local_qpn,
            remote_psn: req.starting_psn,
            remote_ca_guid: req.local_ca_guid,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            pkey: req.pkey,
            path_mtu: req.path_mtu,
            path: req.primary,
            ece: Ece::from_wire(req.vendor_id, head.ece_options),
            private_data: ReceivedData::new(req.private_data, head.class_specific),
        }));
    }

    /// The user has read a request, though not decided: its place in the backlog is free for another one. Calls that
    /// decide imply this.
    ///
    /// # Errors
    ///
    /// [`CmError::Stale`].
    pub fn request_read(&mut self, now: Nanos, conn: ConnId) -> Result<(), CmError> {
        let slot = self.conn_slot(conn)?;
        self.undecided_no_more(now, slot);
        Ok(())
    }

    /// Changes what comes back with the events of a connection, those excepted that wait to be taken.
    ///
    /// # Errors
    ///
    /// [`CmError::Stale`].
    pub fn set_cookie(&mut self, conn: ConnId, cookie: u64) -> Result<(), CmError> {
        let slot = self.conn_slot(conn)?;
        self.conns[slot].cookie = cookie;
        Ok(())
    }

    /// The peer has not heard from us since it sent its request.
    fn on_duplicate_req(&mut self, slot: u32) {
        let conn = &self.conns[slot];
        match conn.state {
            State::ReqRcvd | State::MraReqSent => self.send_mra(slot, Answered::Req, State::MraReqSent),
            State::RepSent => self.send(slot),
            // With whatever the peer has been refused.
            State::Idle | State::TimeWait => {
                let reason = conn.refusal.unwrap_or(RejectReason::StaleConn);
                self.send_rej_again(slot, Answered::Req, reason);
            }
            State::DreqSent | State::DreqRcvd => {
                if let Some(reason) = conn.refusal {
                    self.send_rej_again(slot, Answered::Req, reason);
                }
            }
            // It has heard from us since: the duplicate is late.
            State::MraRepRcvd | State::Established => {}
            // Not of a connection that the peer asked for.
            State::ReqSent | State::MraReqRcvd | State::RepRcvd | State::MraRepSent => {}
        }
    }
}
