//! A connection is refused: REJ.

use super::index::{PeerKey, Target};
use super::wire::{Head, encode};
use super::{Address, CmError, ConnId, DisconnectCause, Endpoint, Event, Nanos, ReceivedData, Rejected, State};
use ferroce_wire::cm::{AdditionalInfo, Answered, PrivateData, Rej, RejectReason};

impl Endpoint {
    /// Refuses a request, or the peer's answer to ours. The connection is over for the user, who gets no event, and is
    /// to be destroyed.
    ///
    /// The usual reason is [`RejectReason::ConsumerDefined`].
    ///
    /// # Errors
    ///
    /// If the name is stale, there is nothing to refuse (any more), or there is too much private data.
    pub fn reject(
        &mut self,
        now: Nanos,
        conn: ConnId,
        reason: RejectReason,
        info: AdditionalInfo,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let slot = self.conn_slot(conn)?;
        let field = PrivateData::new(private_data)?;
        let conn = &mut self.conns[slot];
        match conn.state {
            State::ReqRcvd | State::MraReqSent | State::RepRcvd | State::MraRepSent => {
                conn.told = true;
                self.send_rej(slot, reason, info, field, Some(private_data.len()));
                self.enter_idle(now, slot);
                Ok(())
            }
            state => Err(CmError::InvalidState { call: "reject", state }),
        }
    }

    /// Refuses what the peer sent last, and remembers why.
    pub(super) fn send_rej(
        &mut self,
        slot: u32,
        reason: RejectReason,
        info: AdditionalInfo,
        private_data: PrivateData<148>,
        private_len: Option<usize>,
    ) {
        let conn = &mut self.conns[slot];
        conn.refusal = Some(reason);
        // As the kernel fills it in.
        let (local_comm_id, rejected) = match conn.state {
            State::ReqRcvd => (0, Answered::Req),
            State::MraReqSent => (conn.local_comm_id, Answered::Req),
            State::RepRcvd | State::MraRepSent => (conn.local_comm_id, Answered::Rep),
            _ => (conn.local_comm_id, Answered::Other),
        };
        let remote_comm_id = conn.remote_comm_id_or_zero();
        let rej = Rej { local_comm_id, remote_comm_id, rejected, reason, info, private_data };
        let mad = encode(conn.tid, 0, rej, private_len);
        self.send_new(slot, mad);
    }

    /// Gives up: the peer finds the connection by our GUID if it has told us no communication id yet.
    pub(super) fn send_timeout_rej(&mut self, slot: u32) {
        let guid = AdditionalInfo::new(&self.config.ca_guid.to_be_bytes());
        self.send_rej(slot, RejectReason::Timeout, guid, PrivateData::default(), None);
    }

    /// Refuses a duplicate for a connection that is over, and that the user still holds.
    pub(super) fn send_rej_again(&mut self, slot: u32, rejected: Answered, reason: RejectReason) {
        let conn = &self.conns[slot];
        if super::counters::attr_id(&conn.mad) == ferroce_wire::cm::attr::REJ {
            return self.send(slot);
        }
        let rej = Rej {
            local_comm_id: conn.local_comm_id,
            remote_comm_id: conn.remote_comm_id_or_zero(),
            rejected,
            reason,
            info: AdditionalInfo::EMPTY,
            private_data: PrivateData::default(),
        };
        let (route, mad) = (conn.route(), encode(conn.tid, 0, rej, None));
        self.transmit(route, mad);
    }

    /// Refuses a duplicate for a connection that was destroyed.
    pub(super) fn refuse_again(
        &mut self,
        from: &Address,
        head: &Head,
        wait: u32,
        rejected: Answered,
        remote_comm_id: u32,
    ) {
        let wait = &self.waits.slab[wait];
        if let Some(rej) = &wait.rej
            && wait.remote_comm_id == Some(remote_comm_id)
        {
            let rej = **rej;
            return self.transmit(super::wire::Route::back(from), rej);
        }
        let rej = Rej {
            local_comm_id: wait.local_comm_id,
            remote_comm_id,
            rejected,
            reason: wait.refusal,
            info: AdditionalInfo::EMPTY,
            private_data: PrivateData::default(),
        };
        self.reply(from, head.tid, rej);
    }

    pub(super) fn on_rej(&mut self, now: Nanos, from: &Address, head: &Head, rej: &Rej) {
        let Some(slot) = self.rejected(from, rej) else {
            self.counters.rx_unexpected.rej += 1;
            return;
        };
        let conn = &self.conns[slot];
        // Whoever knows both ids is the peer. One alone suffices where the other is not known yet.
        let knows_both = conn.remote_comm_id == Some(rej.local_comm_id) && conn.local_comm_id == rej.remote_comm_id;
        match conn.state {
            State::ReqSent | State::MraReqRcvd | State::ReqRcvd | State::MraReqSent => {
                self.on_rejected(now, slot, head, rej);
            }
            State::RepSent | State::MraRepRcvd => self.on_rejected(now, slot, head, rej),
            State::RepRcvd | State::MraRepSent if knows_both => self.on_rejected(now, slot, head, rej),
            State::Established if knows_both => {
                self.conns[slot].refusal = Some(rej.reason);
                self.on_denied(now, slot, DisconnectCause::Denied(rej.reason));
            }
            // As good as a DREP.
            State::DreqSent if knows_both => self.on_denied(now, slot, DisconnectCause::Denied(rej.reason)),
            State::Idle | State::TimeWait | State::DreqRcvd => self.counters.rx_duplicates.rej += 1,
            State::RepRcvd | State::MraRepSent | State::Established | State::DreqSent => {
                self.counters.rx_unexpected.rej += 1;
            }
        }
    }

    /// The connection that a REJ is for.
    fn rejected(&self, from: &Address, rej: &Rej) -> Option<u32> {
        let target = match self.called(from, rej.remote_comm_id) {
            Some(Target::Conn(slot)) => {
                // Where both know each other's id, both must be right. A refused REQ may be answered without one.
                let conn = &self.conns[slot];
                let is_right = conn.remote_comm_id.is_none_or(|id| id == rej.local_comm_id)
                    || rej.rejected == Answered::Req && rej.local_comm_id == 0;
                is_right.then_some(Target::Conn(slot))
            }
            Some(target @ Target::Wait(_)) => Some(target),
            // A requester that has heard nothing from us knows no id of ours, but says its GUID.
            None if rej.reason == RejectReason::Timeout => {
                let ca_guid = u64::from_be_bytes(rej.info.as_slice().get(..8)?.try_into().ok()?);
                self.index.by_remote(&PeerKey { address: *from, ca_guid, number: rej.local_comm_id })
            }
            None => None,
        };
        match target? {
            Target::Conn(slot) => Some(slot),
            Target::Wait(_) => None,
        }
    }

    fn on_rejected(&mut self, now: Nanos, slot: u32, head: &Head, rej: &Rej) {
        self.conns[slot].refusal.get_or_insert(rej.reason);
        self.tell(slot, |conn, cookie| {
            Event::Rejected(Rejected {
                conn,
                cookie,
                reason: rej.reason,
                info: rej.info,
                private_data: ReceivedData::new(rej.private_data, head.class_specific),
            })
        });
        self.enter_idle(now, slot);
    }

    fn on_denied(&mut self, now: Nanos, slot: u32, cause: DisconnectCause) {
        self.tell_ended(slot, cause);
        self.enter_timewait(now, slot);
    }
}
