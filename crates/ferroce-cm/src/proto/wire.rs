//! Messages in and out.

use super::params::write_private_len;
use super::{Address, Endpoint, Transmit};
use ferroce_wire::cm::{CmMad, CmMessage};
use ferroce_wire::{MAD_LEN, MadHeader};

/// What a MAD's header says beside what the message is.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub(super) tid: u64,
    pub(super) ece_options: u32,
    pub(super) class_specific: u16,
}

impl Head {
    pub(super) fn new(header: &MadHeader) -> Self {
        Self { tid: header.tid, ece_options: header.attr_mod, class_specific: header.class_specific }
    }
}

/// How a message leaves.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) to: Address,
    pub(super) traffic_class: u8,
    pub(super) flow_label: u32,
}

impl Route {
    /// The way back to where a message came from.
    pub(super) const fn back(from: &Address) -> Self {
        Self { to: *from, traffic_class: 0, flow_label: 0 }
    }
}

/// The bytes of a message. `private_len` is the length of the user's private data, where there is a user.
pub(super) fn encode(
    tid: u64,
    ece_options: u32,
    message: impl Into<CmMessage>,
    private_len: Option<usize>,
) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    CmMad { tid, ece_options, message: message.into() }.emit(&mut mad);
    if let Some(len) = private_len {
        write_private_len(&mut mad, len);
    }
    mad
}

impl Endpoint {
    /// Puts a message into the queue.
    pub(super) fn transmit(&mut self, route: Route, mad: [u8; MAD_LEN]) {
        if self.transmits.len() >= self.config.limits.transmit.max(1) {
            self.counters.tx_dropped += 1;
            return;
        }
        self.counters.tx_msgs.add(super::counters::attr_id(&mad));
        let Route { to, traffic_class, flow_label } = route;
        self.transmits.push_back(Transmit { to, traffic_class, flow_label, mad });
    }

    /// Answers a message of which nothing is kept.
    pub(super) fn reply(&mut self, to: &Address, tid: u64, message: impl Into<CmMessage>) {
        self.transmit(Route::back(to), encode(tid, 0, message, None));
    }

    /// Sends a connection's message, for the first time.
    pub(super) fn send_new(&mut self, slot: u32, mad: [u8; MAD_LEN]) {
        let conn = &mut self.conns[slot];
        conn.mad = mad;
        conn.sent = 0;
        self.send(slot);
    }

    /// Sends a connection's last message, once more unless it is new.
    pub(super) fn send(&mut self, slot: u32) {
        let conn = &mut self.conns[slot];
        conn.sent = conn.sent.saturating_add(1);
        let (route, mad, again) = (conn.route(), conn.mad, conn.sent > 1);
        if again {
            self.counters.tx_retries.add(super::counters::attr_id(&mad));
        }
        self.transmit(route, mad);
    }
}
