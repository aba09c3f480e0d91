//! A connection ends: DREQ, DREP, and destroying at any time.

use super::index::Target;
use super::wire::{Head, encode};
use super::{Address, CmError, ConnId, DisconnectCause, Endpoint, Event, Nanos, ReceivedData, State};
use ferroce_wire::cm::{AdditionalInfo, Apr, AprStatus, Drep, Dreq, Lap, PrivateData, RejectReason};
use std::collections::HashSet;

impl Endpoint {
    /// Ends a connection: asks the peer (DREQ, then [`Event::Disconnected`]), or answers it if it has asked (DREP).
    /// Once the connection is over or ending, this does nothing.
    ///
    /// # Errors
    ///
    /// If the name is stale, there is no connection yet (reject or destroy instead), or there is more private data than
    /// the 220 bytes of a DREQ.
    pub fn disconnect(&mut self, now: Nanos, conn: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let slot = self.conn_slot(conn)?;
        let field: PrivateData<220> = PrivateData::new(private_data)?;
        match self.conns[slot].state {
            State::Established => self.start_dreq(now, slot, &field, Some(private_data.len())),
            State::RepSent | State::MraRepRcvd => {
                self.refuse(slot, RejectReason::ConsumerDefined);
                self.start_dreq(now, slot, &field, Some(private_data.len()));
            }
            State::DreqRcvd => {
                self.send_drep(slot, private_data);
                self.enter_timewait(now, slot);
            }
            State::DreqSent | State::TimeWait | State::Idle => {}
            state => return Err(CmError::InvalidState { call: "disconnect", state }),
        }
        Ok(())
    }

    /// The peers of these local QPs do not answer on them any more: the connections are over ([`Event::Disconnected`]). The peers are told
    /// (DREQ), in case they only cannot be heard.
    pub fn peers_lost(&mut self, now: Nanos, local_qpns: &[u32]) {
        let lost: HashSet<u32> = local_qpns.iter().copied().collect();
        let slots = self.conns.slots(|conn| conn.state == State::Established && lost.contains(&conn.local_qpn));
        for slot in slots {
            self.tell_ended(slot, DisconnectCause::PeerLost);
            self.start_dreq(now, slot, &PrivateData::default(), None);
        }
    }

    /// Lets go of a connection, at any time and in any state, and returns at once. The peer is told, until it answers
    /// or [`Config::linger_timeout`](super::Config::linger_timeout) has passed. There is no event for the
    /// connection any more.
    ///
    /// # Errors
    ///
    /// [`CmError::Stale`] if that was done before.
    pub fn destroy(&mut self, now: Nanos, conn: ConnId) -> Result<(), CmError> {
        let slot = self.conn_slot(conn)?;
        self.destroy_slot(now, slot, RejectReason::ConsumerDefined);
        Ok(())
    }

    pub(super) fn destroy_slot(&mut self, now: Nanos, slot: u32, reason: RejectReason) {
        self.conns.rename(slot);
        self.conns[slot].owned = false;
        self.lingering += 1;
        match self.conns[slot].state {
            State::ReqSent | State::MraReqRcvd => {
                self.send_timeout_rej(slot);
                self.enter_idle(now, slot);
            }
            State::ReqRcvd | State::MraReqSent | State::RepRcvd | State::MraRepSent => {
                self.refuse(slot, reason);
                self.enter_idle(now, slot);
            }
            State::RepSent | State::MraRepRcvd => {
                // The peer may have established it, or not: a REJ is for the one case, a DREQ for the other.
                self.refuse(slot, reason);
                self.start_dreq(now, slot, &PrivateData::default(), None);
            }
            State::Established => self.start_dreq(now, slot, &PrivateData::default(), None),
            // Nobody waits any more.
            State::DreqSent => {
                let conn = &mut self.conns[slot];
                conn.expires = conn.expires.max(now.saturating_add(self.config.linger_timeout));
                self.bound_lingering(now, slot);
            }
            State::DreqRcvd => {
                self.send_drep(slot, &[]);
                self.enter_timewait(now, slot);
            }
            State::TimeWait | State::Idle => self.retire(now, slot),
        }
    }

    pub(super) fn refuse(&mut self, slot: u32, reason: RejectReason) {
        self.send_rej(slot, reason, AdditionalInfo::EMPTY, PrivateData::default(), None);
    }

    /// Sends a DREQ, until it is answered.
    pub(super) fn start_dreq(
        &mut self,
        now: Nanos,
        slot: u32,
        private_data: &PrivateData<220>,
        private_len: Option<usize>,
    ) {
        self.release_qpn(slot);
        self.release_half_open(slot);
        let conn = &mut self.conns[slot];
        conn.state = State::DreqSent;
        let waits = conn.owned && !conn.told;
        let timeout = if waits { self.config.disconnect_timeout } else { self.config.linger_timeout };
        conn.expires = now.saturating_add(timeout);
        let dreq = Dreq {
            local_comm_id: conn.local_comm_id,
            remote_comm_id: conn.remote_comm_id_or_zero(),
            remote_qpn: conn.remote_qpn,
            private_data: *private_data,
        };
        let mad = encode(conn.tid, 0, dreq, private_len);
        self.send_new(slot, mad);
        self.schedule_retry(now, slot);
        self.bound_lingering(now, slot);
    }

    /// Does not wait for an answer if too many do already.
    fn bound_lingering(&mut self, now: Nanos, slot: u32) {
        if !self.conns[slot].owned && self.lingering > self.config.limits.lingering {
            self.counters.linger_skipped += 1;
            self.enter_timewait(now, slot);
        }
    }

    fn send_drep(&mut self, slot: u32, private_data: &[u8]) {
        let conn = &self.conns[slot];
        let drep = Drep {
            local_comm_id: conn.local_comm_id,
            remote_comm_id: conn.remote_comm_id_or_zero(),
            private_data: PrivateData::new(private_data).unwrap_or_default(),
        };
        let mad = encode(conn.tid, 0, drep, Some(private_data.len()));
        self.send_new(slot, mad);
    }

    pub(super) fn on_dreq(&mut self, now: Nanos, from: &Address, head: &Head, dreq: &Dreq) {
        let stateless = Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: PrivateData::default(),
        };
        let slot = match self.called_by(from, dreq.remote_comm_id, dreq.local_comm_id) {
            Some(Target::Conn(slot)) => slot,
            Some(Target::Wait(wait)) => {
                if self.waits.slab[wait].local_qpn == dreq.remote_qpn {
                    self.counters.rx_duplicates.dreq += 1;
                    self.reply(from, head.tid, stateless);
                } else {
                    self.counters.rx_unexpected.dreq += 1;
                }
                return;
            }
            None => {
                self.reply(from, head.tid, stateless);
                match self.called(from, dreq.remote_comm_id) {
                    Some(Target::Conn(slot)) if self.conns[slot].remote_comm_id.is_none() => {
                        self.on_early_dreq(now, slot, head, dreq);
                    }
                    // There is no such connection, which is what the peer wants.
                    _ => self.counters.rx_unexpected.dreq += 1,
                }
                return;
            }
        };
        let conn = &mut self.conns[slot];
        if conn.local_qpn != dreq.remote_qpn {
            self.counters.rx_unexpected.dreq += 1;
            return;
        }
        let private_data = ReceivedData::new(dreq.private_data, head.class_specific);
        match conn.state {
            State::RepSent | State::MraRepRcvd | State::RepRcvd | State::MraRepSent | State::Established => {
                conn.state = State::DreqRcvd;
                conn.tid = head.tid;
                self.release_qpn(slot);
                self.release_half_open(slot);
                self.conn_timers.clear(slot);
                self.tell_disconnected(slot, DisconnectCause::Requested, private_data);
            }
            // Both want it to end.
            State::DreqSent => {
                conn.tid = head.tid;
                self.send_drep(slot, &[]);
                self.tell_disconnected(slot, DisconnectCause::Requested, private_data);
                self.enter_timewait(now, slot);
            }
            // The user takes long to answer, and the peer must not wait for it.
            State::DreqRcvd => {
                self.counters.rx_duplicates.dreq += 1;
                self.send_drep(slot, &[]);
                self.enter_timewait(now, slot);
            }
            State::TimeWait | State::Idle => {
                self.counters.rx_duplicates.dreq += 1;
                self.reply(from, head.tid, stateless);
            }
            // The peer does not know our id yet, or we not its; and there is no QP.
            State::ReqSent | State::MraReqRcvd | State::ReqRcvd | State::MraReqSent => {
                self.counters.rx_unexpected.dreq += 1;
            }
        }
    }

    /// The peer has granted what we asked for, and ended it, and the DREQ has overtaken the REP, or the REP was lost.
    fn on_early_dreq(&mut self, now: Nanos, slot: u32, head: &Head, dreq: &Dreq) {
        let conn = &mut self.conns[slot];
        if !matches!(conn.state, State::ReqSent | State::MraReqRcvd) || conn.local_qpn != dreq.remote_qpn {
            self.counters.rx_unexpected.dreq += 1;
            return;
        }
        // Should the REP still come, it is refused.
        conn.refusal = Some(RejectReason::StaleConn);
        let private_data = ReceivedData::new(dreq.private_data, head.class_specific);
        self.tell_disconnected(slot, DisconnectCause::Requested, private_data);
        self.enter_idle(now, slot);
    }

    /// It is over, without a word of the peer's.
    pub(super) fn tell_ended(&mut self, slot: u32, cause: DisconnectCause) {
        self.tell_disconnected(slot, cause, ReceivedData::<0>::empty());
    }

    fn tell_disconnected<const N: usize>(&mut self, slot: u32, cause: DisconnectCause, private_data: ReceivedData<N>) {
        let private_data = private_data.widen();
        self.tell(slot, |conn, cookie| Event::Disconnected { conn, cookie, cause, private_data });
    }

    pub(super) fn on_drep(&mut self, now: Nanos, from: &Address, head: &Head, drep: &Drep) {
        let Some(Target::Conn(slot)) = self.called_by(from, drep.remote_comm_id, drep.local_comm_id) else {
            self.counters.rx_unexpected.drep += 1;
            return;
        };
        match self.conns[slot].state {
            State::DreqSent => {
                let private_data = ReceivedData::new(drep.private_data, head.class_specific);
                self.tell_disconnected(slot, DisconnectCause::Agreed, private_data);
                self.enter_timewait(now, slot);
            }
            State::DreqRcvd | State::TimeWait | State::Idle => self.counters.rx_duplicates.drep += 1,
            State::ReqSent
            | State::MraReqRcvd
            | State::RepRcvd
            | State::MraRepSent
            | State::ReqRcvd
            | State::MraReqSent
            | State::RepSent
            | State::MraRepRcvd
            | State::Established => self.counters.rx_unexpected.drep += 1,
        }
    }

    /// RoCE has no alternate paths: says so where there is a connection.
    pub(super) fn on_lap(&mut self, from: &Address, head: &Head, lap: &Lap) {
        let target = self.called_by(from, lap.remote_comm_id, lap.local_comm_id);
        if !matches!(target, Some(Target::Conn(slot)) if self.conns[slot].state == State::Established) {
            self.counters.rx_unexpected.lap += 1;
            return;
        }
        let apr = Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            status: AprStatus::Unsupported,
            info: AdditionalInfo::EMPTY,
            private_data: PrivateData::default(),
        };
        self.reply(from, head.tid, apr);
    }
}
