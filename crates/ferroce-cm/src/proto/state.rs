//! The states of a connection, and what is known of one.

use super::listen::Place;
use super::slab::Name;
use super::{Address, Nanos};
use ferroce_wire::MAD_LEN;
use ferroce_wire::cm::{RejectReason, Req, ServiceId};
use std::fmt;

/// The state of a connection, named as IBTA 12.9 and the kernel's ib_cm name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Over, without timewait: rejected, or never established.
    Idle,
    /// Active: the REQ is sent.
    ReqSent,
    /// Active: the peer asked for time to answer the REQ.
    MraReqRcvd,
    /// Active: the peer granted the connection, the user has not confirmed it.
    RepRcvd,
    /// Active: likewise, and we asked the peer for time.
    MraRepSent,
    /// Passive: a REQ came, the user has not decided.
    ReqRcvd,
    /// Passive: likewise, and we asked the peer for time.
    MraReqSent,
    /// Passive: the REP is sent.
    RepSent,
    /// Passive: the peer asked for time to confirm the REP.
    MraRepRcvd,
    /// Established.
    Established,
    /// The DREQ is sent.
    DreqSent,
    /// A DREQ came, the user has not answered it.
    DreqRcvd,
    /// Over, but packets may still be in the network.
    TimeWait,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::ReqSent => "REQ sent",
            Self::MraReqRcvd => "MRA for REQ received",
            Self::RepRcvd => "REP received",
            Self::MraRepSent => "MRA for REP sent",
            Self::ReqRcvd => "REQ received",
            Self::MraReqSent => "MRA for REQ sent",
            Self::RepSent => "REP sent",
            Self::MraRepRcvd => "MRA for REP received",
            Self::Established => "established",
            Self::DreqSent => "DREQ sent",
            Self::DreqRcvd => "DREQ received",
            Self::TimeWait => "timewait",
        })
    }
}

/// What tells a REQ that is sent again from another one with the same communication id: that of a peer that has
/// restarted, or of a liar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fingerprint {
    tid: u64,
    service_id: ServiceId,
    qpn: u32,
    psn: u32,
}

impl Fingerprint {
    pub(super) const fn new(tid: u64, req: &Req) -> Self {
        Self { tid, service_id: req.service_id, qpn: req.local_qpn, psn: req.starting_psn }
    }
}

/// What is special about the side that was asked.
pub(super) struct Passive {
    pub(super) req: Fingerprint,
    /// Who was asked.
    pub(super) listener: Name,
    /// The user has not decided: the place in the listener's backlog, until the user has read the request.
    pub(super) backlog: Option<Place>,
    /// Counts among the half-open ones.
    pub(super) half_open: bool,
    /// The peer offered an alternate path, which we refuse.
    pub(super) alternate_path: bool,
    /// How long the peer waits for a REP, as its REQ says.
    pub(super) patience: Nanos,
}

/// A connection.
pub(super) struct Conn {
    pub(super) state: State,
    /// The user has not destroyed it.
    pub(super) owned: bool,
    /// The terminal event was given.
    pub(super) told: bool,
    /// Duplicates are recognised by its communication ids.
    pub(super) remembered: bool,
    /// The peer's QP is known to be connected to this one.
    pub(super) holds_qpn: bool,
    /// `None`: we asked for the connection.
    pub(super) passive: Option<Passive>,
    pub(super) address: Address,
    pub(super) traffic_class: u8,
    pub(super) flow_label: u32,
    pub(super) local_comm_id: u32,
    pub(super) remote_comm_id: Option<u32>,
    pub(super) local_qpn: u32,
    pub(super) remote_qpn: u32,
    pub(super) remote_ca_guid: u64,
    /// Of the messages that we send on.
    pub(super) tid: u64,
    pub(super) cookie: u64,
    /// With what duplicates of what the peer sent are refused, once it was.
    pub(super) refusal: Option<RejectReason>,
    /// How long it is remembered when it has ended.
    pub(super) timewait: Nanos,
    /// How often `mad` was sent.
    pub(super) sent: u32,
    /// When the state is given up.
    pub(super) expires: Nanos,
    /// The last message that was sent and may be sent again: REQ, REP, RTU, REJ, DREQ or DREP.
    pub(super) mad: [u8; MAD_LEN],
}

impl Conn {
    pub(super) const fn is_passive(&self) -> bool {
        self.passive.is_some()
    }

    /// What the peer's messages call this side.
    pub(super) fn remote_comm_id_or_zero(&self) -> u32 {
        self.remote_comm_id.unwrap_or(0)
    }
}
