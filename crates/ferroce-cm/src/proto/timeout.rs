//! What happens when nothing does.

use super::{DisconnectCause, Endpoint, Event, Nanos, State, Unreachable};
use ferroce_wire::cm::PrivateData;

impl Endpoint {
    /// Sets the timer for when the last message is to be sent again, or given up.
    pub(super) fn schedule_retry(&mut self, now: Nanos, slot: u32) {
        let conn = &self.conns[slot];
        let at = now.saturating_add(self.config.retry.interval(conn.sent, &mut self.rng));
        self.conn_timers.set(slot, at.min(conn.expires));
    }

    pub(super) fn on_conn_timer(&mut self, now: Nanos, slot: u32) {
        self.conn_timers.clear(slot);
        let conn = &mut self.conns[slot];
        let has_expired = conn.expires <= now;
        match conn.state {
            State::ReqSent | State::RepSent | State::DreqSent if !has_expired => {
                self.send(slot);
                self.schedule_retry(now, slot);
            }
            // The peer has taken the time that it asked for.
            State::MraReqRcvd | State::MraRepRcvd if !has_expired => {
                conn.state = if conn.is_passive() { State::RepSent } else { State::ReqSent };
                self.send(slot);
                self.schedule_retry(now, slot);
            }
            State::ReqSent | State::MraReqRcvd => self.on_unreachable(now, slot),
            State::RepRcvd | State::MraRepSent | State::ReqRcvd | State::MraReqSent => self.on_unreachable(now, slot),
            State::RepSent | State::MraRepRcvd => {
                // The peer may have established it, and its RTU was lost again and again.
                self.tell_unreachable(slot);
                self.send_timeout_rej(slot);
                self.start_dreq(now, slot, &PrivateData::default(), None);
            }
            State::DreqSent if conn.owned && !conn.told => {
                // The user waits no longer; the peer may still hear of it.
                conn.expires = now.saturating_add(self.config.linger_timeout);
                self.tell_ended(slot, DisconnectCause::TimedOut);
                self.send(slot);
                self.schedule_retry(now, slot);
            }
            State::DreqSent => self.enter_timewait(now, slot),
            State::TimeWait | State::Idle => self.on_timewait_over(slot),
            // They wait for nothing.
            State::Established | State::DreqRcvd => {}
        }
    }

    fn on_unreachable(&mut self, now: Nanos, slot: u32) {
        self.tell_unreachable(slot);
        self.send_timeout_rej(slot);
        self.enter_idle(now, slot);
    }

    fn tell_unreachable(&mut self, slot: u32) {
        let conn = &self.conns[slot];
        let (state, sent) = (conn.state, conn.sent);
        self.tell(slot, |conn, cookie| Event::Unreachable(Unreachable { conn, cookie, state, sent }));
    }
}
