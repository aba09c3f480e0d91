//! The end of a connection, and what is remembered of it.
//!
//! IBTA has a connection wait until nothing of it can be in the network any more. As long as the user holds the
//! connection, it waits where it is; a destroyed one moves to a table of smaller entries. Both keep the
//! communication ids: a REQ that comes late is recognised as what it is, instead of becoming a request from nobody.
//! (The kernel lets go of them when timewait begins.) The peer's QPN is let go at once, so that it can be connected
//! again.

use super::index::{PeerKey, Target};
use super::slab::Slab;
use super::state::Fingerprint;
use super::timers::Timers;
use super::{Address, Conn, Endpoint, Event, Nanos, State};
use ferroce_wire::MAD_LEN;
use ferroce_wire::cm::RejectReason;

/// A connection that was destroyed.
pub(super) struct Wait {
    pub(super) address: Address,
    pub(super) local_comm_id: u32,
    pub(super) remote_comm_id: Option<u32>,
    remote_ca_guid: u64,
    pub(super) local_qpn: u32,
    /// The REQ, if the peer sent one.
    pub(super) req: Option<Fingerprint>,
    /// With what duplicates are refused.
    pub(super) refusal: RejectReason,
    /// The REJ that was sent, if there was private data or additional information in it.
    pub(super) rej: Option<Box<[u8; MAD_LEN]>>,
}

impl Wait {
    fn key(&self) -> Option<PeerKey> {
        let (Some(number), Some(_)) = (self.remote_comm_id, self.req) else { return None };
        Some(PeerKey { address: self.address, ca_guid: self.remote_ca_guid, number })
    }
}

#[derive(Default)]
pub(super) struct Waits {
    pub(super) slab: Slab<Wait>,
    pub(super) timers: Timers,
}

impl Endpoint {
    /// The connection has ended; something of it may still be in the network.
    pub(super) fn enter_timewait(&mut self, now: Nanos, slot: u32) {
        self.over(now, slot, State::TimeWait);
    }

    /// The connection has come to nothing.
    pub(super) fn enter_idle(&mut self, now: Nanos, slot: u32) {
        self.over(now, slot, State::Idle);
    }

    fn over(&mut self, now: Nanos, slot: u32, state: State) {
        self.undecided_no_more(now, slot);
        self.release_half_open(slot);
        self.release_qpn(slot);
        let conn = &mut self.conns[slot];
        conn.state = state;
        let until = now.saturating_add(conn.timewait);
        self.conn_timers.set(slot, until);
        if !self.conns[slot].owned {
            self.retire(now, slot);
        }
    }

    /// The time to remember a connection has passed, which the user still holds.
    pub(super) fn on_timewait_over(&mut self, slot: u32) {
        self.forget(slot);
        let conn = &mut self.conns[slot];
        if conn.state == State::TimeWait {
            conn.state = State::Idle;
            let cookie = conn.cookie;
            let conn = self.conn_id(slot);
            self.events.push_back(Event::TimewaitExit { conn, cookie });
        }
    }

    /// The slot of a destroyed connection that is over becomes free. What is remembered moves to the table.
    pub(super) fn retire(&mut self, now: Nanos, slot: u32) {
        let until = self.conn_timers.get(slot).unwrap_or(now);
        self.conn_timers.clear(slot);
        self.lingering -= 1;
        let conn = self.conns.remove(slot);
        let key = remote_key(&conn);
        if !conn.remembered || until <= now || self.config.limits.timewait == 0 {
            self.index.remove_local(conn.local_comm_id);
            if let Some(key) = key {
                self.index.remove_remote(key, Target::Conn(slot));
            }
            return;
        }
        while self.waits.slab.len() >= self.config.limits.timewait {
            let Some((_, oldest)) = self.waits.timers.next() else { break };
            self.counters.timewait_evicted += 1;
            self.remove_wait(oldest);
        }
        // The REJ is rebuilt from the reason, unless the user said more.
        let is_rej = super::counters::attr_id(&conn.mad) == ferroce_wire::cm::attr::REJ;
        let says_more = is_rej && (conn.mad[6] != 0 || conn.mad[24 + 9] != 0);
        let wait = self.waits.slab.insert(Wait {
            address: conn.address,
            local_comm_id: conn.local_comm_id,
            remote_comm_id: conn.remote_comm_id,
            remote_ca_guid: conn.remote_ca_guid,
            local_qpn: conn.local_qpn,
            req: conn.passive.as_ref().map(|passive| passive.req),
            refusal: conn.refusal.unwrap_or(RejectReason::StaleConn),
            rej: says_more.then(|| Box::new(conn.mad)),
        });
        self.waits.timers.set(wait, until);
        self.index.set_local(conn.local_comm_id, Target::Wait(wait));
        if let Some(key) = key {
            self.index.move_remote(key, Target::Conn(slot), Target::Wait(wait));
        }
    }

    pub(super) fn remove_wait(&mut self, wait: u32) {
        self.waits.timers.clear(wait);
        let entry = self.waits.slab.remove(wait);
        self.index.remove_local(entry.local_comm_id);
        if let Some(key) = entry.key() {
            self.index.remove_remote(key, Target::Wait(wait));
        }
    }

    /// Duplicates of the REQ are not recognised any more.
    fn forget(&mut self, slot: u32) {
        let conn = &mut self.conns[slot];
        conn.remembered = false;
        if let Some(key) = remote_key(conn) {
            self.index.remove_remote(key, Target::Conn(slot));
        }
    }
}

/// The key that duplicates of the connection's REQ are found by, if the peer sent one.
pub(super) fn remote_key(conn: &Conn) -> Option<PeerKey> {
    let (Some(number), Some(_)) = (conn.remote_comm_id, &conn.passive) else { return None };
    Some(PeerKey { address: conn.address, ca_guid: conn.remote_ca_guid, number })
}
