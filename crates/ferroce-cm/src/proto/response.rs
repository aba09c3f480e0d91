//! A connection is granted and confirmed, or that takes longer: REP, RTU, MRA.

use super::endpoint::refuse_req;
use super::index::{PeerKey, Target};
use super::request::{check, nanos};
use super::wire::{Head, encode};
use super::{AcceptParams, Address, CmError, ConnId, Ece, Endpoint, Event, Nanos, ReceivedData, Response, State};
use ferroce_wire::cm::{Answered, Mra, PrivateData, Rej, RejectReason, Rep, Rtu, time};

impl AcceptParams<'_> {
    /// Whether they fit the message. Returns its private data.
    pub(crate) fn check(&self) -> Result<PrivateData<196>, CmError> {
        check("QPN", self.qpn, 0xff_ffff)?;
        check("PSN", self.psn, 0xff_ffff)?;
        check("RNR retry count", self.rnr_retry_count.into(), 7)?;
        Ok(PrivateData::new(self.private_data)?)
    }
}

impl Endpoint {
    /// Grants a request (REP). The QP must be ready for packets: they may come before [`Event::Established`].
    ///
    /// # Errors
    ///
    /// If the name is stale, the request was decided or has ended, or a parameter does not fit.
    pub fn accept(&mut self, now: Nanos, conn: ConnId, params: &AcceptParams<'_>) -> Result<(), CmError> {
        let slot = self.conn_slot(conn)?;
        let private_data = params.check()?;
        let (vendor_id, options) = Ece::to_wire(params.ece);
        let conn = &mut self.conns[slot];
        let (State::ReqRcvd | State::MraReqSent, Some(passive)) = (conn.state, &conn.passive) else {
            return Err(CmError::InvalidState { call: "accept", state: conn.state });
        };
        let deadline =
            params.deadline.unwrap_or_else(|| now.saturating_add(self.config.accept_timeout.min(passive.patience)));
        if deadline <= now {
            return Err(CmError::DeadlinePassed { deadline, now });
        }
        let rep = Rep {
            local_comm_id: conn.local_comm_id,
            remote_comm_id: conn.remote_comm_id_or_zero(),
            local_qkey: 0,
            local_qpn: params.qpn,
            local_eecn: 0,
            vendor_id,
            starting_psn: params.psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            target_ack_delay: self.config.target_ack_delay,
            failover_accepted: u8::from(passive.alternate_path),
            end_to_end_flow_control: true,
            rnr_retry_count: params.rnr_retry_count,
            srq: params.srq,
            local_ca_guid: self.config.ca_guid,
            private_data,
        };
        conn.state = State::RepSent;
        conn.local_qpn = params.qpn;
        conn.cookie = params.cookie;
        conn.expires = deadline;
        let mad = encode(conn.tid, options, rep, Some(params.private_data.len()));
        self.undecided_no_more(now, slot);
        self.send_new(slot, mad);
        self.schedule_retry(now, slot);
        Ok(())
    }

    /// Confirms a connection that the peer has granted (RTU): it is established. There is no event.
    ///
    /// # Errors
    ///
    /// If the name is stale, the connection was not granted or has ended, or there is too much private data.
    pub fn establish(&mut self, conn: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let slot = self.conn_slot(conn)?;
        let field = PrivateData::new(private_data)?;
        let conn = &mut self.conns[slot];
        if !matches!(conn.state, State::RepRcvd | State::MraRepSent) {
            return Err(CmError::InvalidState { call: "establish", state: conn.state });
        }
        conn.state = State::Established;
        let rtu = Rtu {
            local_comm_id: conn.local_comm_id,
            remote_comm_id: conn.remote_comm_id_or_zero(),
            private_data: field,
        };
        let mad = encode(conn.tid, 0, rtu, Some(private_data.len()));
        self.conn_timers.clear(slot);
        self.send_new(slot, mad);
        Ok(())
    }

    /// Data came over a connection that we have granted: the peer has established it, whatever became of its RTU.
    /// Established already is fine.
    ///
    /// # Errors
    ///
    /// If the name is stale, or the connection was not granted or has ended.
    pub fn notify_established(&mut self, conn: ConnId) -> Result<(), CmError> {
        let slot = self.conn_slot(conn)?;
        match self.conns[slot].state {
            State::Established => Ok(()),
            State::RepSent | State::MraRepRcvd => {
                self.on_established(slot, ReceivedData::empty());
                Ok(())
            }
            state => Err(CmError::InvalidState { call: "notify_established", state }),
        }
    }

    fn on_established(&mut self, slot: u32, private_data: ReceivedData<224>) {
        self.conns[slot].state = State::Established;
        self.conn_timers.clear(slot);
        let id = self.conn_id(slot);
        let conn = &self.conns[slot];
        if conn.owned {
            self.events.push_back(Event::Established { conn: id, cookie: conn.cookie, private_data });
        }
        self.release_half_open(slot);
    }

    pub(super) fn on_rep(&mut self, now: Nanos, from: &Address, head: &Head, rep: &Rep) {
        match self.called(from, rep.remote_comm_id) {
            Some(Target::Conn(slot)) => self.on_rep_for(now, from, head, rep, slot),
            Some(Target::Wait(wait)) => {
                self.counters.rx_duplicates.rep += 1;
                self.refuse_again(from, head, wait, Answered::Rep, rep.local_comm_id);
            }
            None => self.refuse_rep(from, head, rep, RejectReason::InvalidCommId),
        }
    }

    fn on_rep_for(&mut self, now: Nanos, from: &Address, head: &Head, rep: &Rep, slot: u32) {
        let conn = &self.conns[slot];
        let is_same = conn.remote_comm_id == Some(rep.local_comm_id);
        match conn.state {
            State::ReqSent | State::MraReqRcvd => self.on_first_rep(now, from, head, rep, slot),
            State::RepRcvd | State::MraRepSent if is_same => {
                self.counters.rx_duplicates.rep += 1;
                self.send_mra(slot, Answered::Rep, State::MraRepSent);
            }
            State::Established if is_same && !conn.is_passive() => {
                self.counters.rx_duplicates.rep += 1;
                self.send(slot);
            }
            // A second answer to one request: its sender has restarted in between.
            State::RepRcvd | State::MraRepSent | State::Established if !conn.is_passive() => {
                self.refuse_rep(from, head, rep, RejectReason::InvalidCommInstance);
            }
            // The peer waits for what will not come.
            State::Idle | State::TimeWait if !conn.is_passive() => {
                self.counters.rx_duplicates.rep += 1;
                let reason = conn.refusal.unwrap_or(RejectReason::StaleConn);
                self.refuse_rep(from, head, rep, reason);
            }
            // A DREQ is on its way and ends it.
            State::DreqSent | State::DreqRcvd if !conn.is_passive() => self.counters.rx_duplicates.rep += 1,
            // Nobody asked the peer.
            State::ReqRcvd
            | State::MraReqSent
            | State::RepSent
            | State::MraRepRcvd
            | State::RepRcvd
            | State::MraRepSent
            | State::Established
            | State::DreqSent
            | State::DreqRcvd
            | State::Idle
            | State::TimeWait => self.counters.rx_unexpected.rep += 1,
        }
    }

    fn on_first_rep(&mut self, now: Nanos, from: &Address, head: &Head, rep: &Rep, slot: u32) {
        // Only who has our REQ knows the id that this names. So if an older connection seems to have the same QP of
        // the peer, then it is the older one that is stale, and not this (the kernel refuses both).
        let key = PeerKey { address: *from, ca_guid: rep.local_ca_guid, number: rep.local_qpn };
        if let Some(old) = self.index.by_qpn(&key) {
            self.counters.rx_stale += 1;
            self.end_stale(now, old);
        }
        let conn = &mut self.conns[slot];
        conn.state = State::RepRcvd;
        conn.remote_comm_id = Some(rep.local_comm_id);
        conn.remote_qpn = rep.local_qpn;
        conn.remote_ca_guid = rep.local_ca_guid;
        conn.holds_qpn = true;
        // An RTU repeats the transaction id of its REP, which is that of the REQ.
        conn.tid = head.tid;
        let expires = conn.expires;
        let (cookie, owned) = (conn.cookie, conn.owned);
        debug_assert!(owned, "a destroyed connection does not wait for a REP");
        self.index.set_qpn(key, slot);
        self.conn_timers.set(slot, expires);
        self.events.push_back(Event::Response(Response {
            conn: self.conn_id(slot),
            cookie,
            remote_qpn: rep.local_qpn,
            remote_psn: rep.starting_psn,
            remote_ca_guid: rep.local_ca_guid,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            target_ack_delay: rep.target_ack_delay,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            ece: Ece::from_wire(rep.vendor_id, head.ece_options),
            private_data: ReceivedData::new(rep.private_data, head.class_specific),
        }));
    }

    /// Tells the sender of a REP that it waits in vain, instead of letting it send the REP again until it gives up.
    fn refuse_rep(&mut self, from: &Address, head: &Head, rep: &Rep, reason: RejectReason) {
        self.counters.rx_unexpected.rep += 1;
        let rej =
            Rej { local_comm_id: rep.remote_comm_id, rejected: Answered::Rep, ..refuse_req(rep.local_comm_id, reason) };
        self.reply(from, head.tid, rej);
    }

    pub(super) fn on_rtu(&mut self, from: &Address, head: &Head, rtu: &Rtu) {
        let slot = match self.called_by(from, rtu.remote_comm_id, rtu.local_comm_id) {
            Some(Target::Conn(slot)) => slot,
            // The peer takes for established what is over: our REP came late, or we have restarted since.
            Some(Target::Wait(wait)) => {
                self.counters.rx_duplicates.rtu += 1;
                return self.refuse_again(from, head, wait, Answered::Other, rtu.local_comm_id);
            }
            None => {
                self.counters.rx_unexpected.rtu += 1;
                let rej = Rej {
                    local_comm_id: rtu.remote_comm_id,
                    rejected: Answered::Other,
                    ..refuse_req(rtu.local_comm_id, RejectReason::InvalidCommId)
                };
                return self.reply(from, head.tid, rej);
            }
        };
        let conn = &self.conns[slot];
        match conn.state {
            State::RepSent | State::MraRepRcvd => {
                self.on_established(slot, ReceivedData::new(rtu.private_data, head.class_specific));
            }
            State::TimeWait | State::Idle if conn.is_passive() => {
                self.counters.rx_duplicates.rtu += 1;
                let reason = conn.refusal.unwrap_or(RejectReason::StaleConn);
                self.send_rej_again(slot, Answered::Other, reason);
            }
            State::Established | State::DreqSent | State::DreqRcvd if conn.is_passive() => {
                self.counters.rx_duplicates.rtu += 1;
            }
            State::ReqRcvd
            | State::MraReqSent
            | State::ReqSent
            | State::MraReqRcvd
            | State::RepRcvd
            | State::MraRepSent
            | State::Established
            | State::DreqSent
            | State::DreqRcvd
            | State::TimeWait
            | State::Idle => self.counters.rx_unexpected.rtu += 1,
        }
    }

    pub(super) fn on_mra(&mut self, now: Nanos, from: &Address, mra: &Mra) {
        // One that answers a REQ may come from a peer that keeps nothing of it and has no id.
        let target = match mra.received {
            Answered::Req => self.called(from, mra.remote_comm_id),
            Answered::Rep | Answered::Other => self.called_by(from, mra.remote_comm_id, mra.local_comm_id),
        };
        let Some(Target::Conn(slot)) = target else {
            self.counters.rx_unexpected.mra += 1;
            return;
        };
        let conn = &mut self.conns[slot];
        match (conn.state, mra.received) {
            (State::ReqSent | State::MraReqRcvd, Answered::Req) => conn.state = State::MraReqRcvd,
            (State::RepSent | State::MraRepRcvd, Answered::Rep) => conn.state = State::MraRepRcvd,
            _ => {
                self.counters.rx_unexpected.mra += 1;
                return;
            }
        }
        // It gets what it asks for, within the deadline, and a little more, so that many do not come again at once. But who has a REP says
        // RTU once, and again only if it is asked again (the kernel's `cm_dup_rep_handler`): a lost one would be missed for as long as it has
        // asked for, which is 69 s for programs on the kernel (`CMA_CM_MRA_SETTING`), more than anybody waits.
        let wait = nanos(time(mra.service_timeout));
        let wait = if mra.received == Answered::Rep { wait.min(self.config.retry.max) } else { wait };
        let wait = self.config.retry.jitter(wait, &mut self.rng).max(wait);
        let expires = self.conns[slot].expires;
        self.conn_timers.set(slot, now.saturating_add(wait).min(expires));
    }

    /// Asks the peer for time.
    pub(super) fn send_mra(&mut self, slot: u32, received: Answered, state: State) {
        let conn = &mut self.conns[slot];
        conn.state = state;
        let mra = Mra {
            local_comm_id: conn.local_comm_id,
            remote_comm_id: conn.remote_comm_id_or_zero(),
            received,
            service_timeout: self.config.mra_service_timeout,
            private_data: PrivateData::default(),
        };
        let (route, mad) = (conn.route(), encode(conn.tid, 0, mra, None));
        self.transmit(route, mad);
    }
}
