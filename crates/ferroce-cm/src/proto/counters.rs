//! What was counted, named as the kernel's ib_cm names it where it has a name.

use ferroce_wire::MAD_LEN;

/// Counts by message, in the order of their attribute ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the messages of communication management")]
pub struct MessageCounts {
    pub req: u64,
    pub mra: u64,
    pub rej: u64,
    pub rep: u64,
    pub rtu: u64,
    pub dreq: u64,
    pub drep: u64,
    pub sidr_req: u64,
    pub sidr_rep: u64,
    pub lap: u64,
    pub apr: u64,
}

impl MessageCounts {
    pub(super) fn add(&mut self, attr_id: u16) {
        let count = match attr_id {
            0x10 => &mut self.req,
            0x11 => &mut self.mra,
            0x12 => &mut self.rej,
            0x13 => &mut self.rep,
            0x14 => &mut self.rtu,
            0x15 => &mut self.dreq,
            0x16 => &mut self.drep,
            0x17 => &mut self.sidr_req,
            0x18 => &mut self.sidr_rep,
            0x19 => &mut self.lap,
            0x1a => &mut self.apr,
            _ => return,
        };
        *count += 1;
    }
}

/// What an endpoint has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Counters {
    /// Messages sent.
    pub tx_msgs: MessageCounts,
    /// Of those, sent again because no answer came.
    pub tx_retries: MessageCounts,
    /// Messages received.
    pub rx_msgs: MessageCounts,
    /// Of those, duplicates.
    pub rx_duplicates: MessageCounts,
    /// Of those, for connections that there are not, that are of another peer, or in whose state they mean nothing.
    pub rx_unexpected: MessageCounts,
    /// Datagrams that are no message of communication management.
    pub rx_malformed: u64,
    /// Datagrams of another version of communication management.
    pub rx_class_version: u64,
    /// REQs and REPs that showed an older connection to be stale.
    pub rx_stale: u64,
    /// REQs and SIDR_REQs that nobody listens to.
    pub rx_no_listener: u64,
    /// REQs that were told to come again, because the backlog was full (MRA).
    pub backlog_busy: u64,
    /// REQs and SIDR_REQs that were refused, because the backlog was full.
    pub backlog_rejected: u64,
    /// REQs and SIDR_REQs that were refused, because a limit was reached.
    pub limit_rejected: u64,
    /// Connections that were forgotten before their time, because too many had ended.
    pub timewait_evicted: u64,
    /// DREQs that are sent once only, because too many destroyed connections wait for an answer.
    pub linger_skipped: u64,
    /// Messages that were not sent, because too many waited to be taken.
    pub tx_dropped: u64,
}

/// The attribute id of a MAD.
pub(super) const fn attr_id(mad: &[u8; MAD_LEN]) -> u16 {
    u16::from_be_bytes([mad[16], mad[17]])
}

/// What an endpoint holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Usage {
    /// Connections that the user holds.
    pub connections: usize,
    /// Destroyed connections that wait for the peer's DREP.
    pub lingering: usize,
    /// Connections that peers asked for and that are not established yet.
    pub half_open: usize,
    /// Destroyed connections that are remembered.
    pub timewait: usize,
    /// Listeners.
    pub listeners: usize,
    /// Service id resolutions of ours.
    pub sidr_sent: usize,
    /// Service id resolutions of peers, answered ones that are remembered included.
    pub sidr_received: usize,
    /// Events that were not taken yet, those that destroying has made void included.
    pub events: usize,
    /// Messages that were not taken yet.
    pub transmits: usize,
    /// Communication ids and QPNs, ours and peers', by which something is found.
    pub names: usize,
    /// Places for connections that were ever needed at a time: what memory grows with.
    pub connection_slots: usize,
}
