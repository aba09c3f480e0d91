use super::payload::Offer;
use ferroce_verbs::Mtu;
use ferroce_wire::Headers;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed};

/// A resolved address: what a packet needs to reach a peer.
#[derive(Debug)]
pub(crate) struct Av {
    /// The peer.
    pub(crate) remote: IpAddr,
    /// The interface that a link-local peer is on; 0 otherwise.
    pub(crate) scope: u32,
    /// The local address to send from.
    pub(crate) local: IpAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub(crate) tos: u8,
    /// TTL or hop limit.
    pub(crate) ttl: u8,
    /// The peer is a context on this machine and is reached through shared memory.
    pub(crate) same_host: bool,
    /// The largest path MTU that the local interface carries.
    pub(crate) mtu: Mtu,
    /// The MAC that the peer had when this was resolved, if the link does not look for it itself.
    pub(crate) mac: Option<[u8; 6]>,
    /// Bytes in flight to the peer, if the link does not bound them itself.
    pub(crate) flow: Option<Arc<PeerFlow>>,
}

impl Av {
    /// Whether the peer's silence means that it is gone: it is a context like this one, or something at its address has answered.
    pub(crate) fn answers_keepalive(&self) -> bool {
        self.same_host || self.flow.as_ref().is_some_and(|flow| flow.answers_keepalive.load(Relaxed))
    }

    /// A connection to the peer's address was asked for a sign of life and gave it.
    pub(crate) fn note_keepalive_answer(&self) {
        if let Some(flow) = &self.flow
            && !flow.answers_keepalive.swap(true, Relaxed)
        {
            tracing::debug!(peer = %self.remote, "it answers when it is asked for a sign of life");
        }
    }
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To<'a> {
    pub(crate) av: &'a Av,
    pub(crate) dest_qpn: u32,
    /// The receiver wants to know both IP addresses: it is a datagram.
    pub(crate) datagram: bool,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// It is in the link.
    Yes,
    /// The peer cannot read this process's memory: send packets.
    No,
    /// The link has no room at the moment.
    LinkFull,
}

/// Where the engine puts packets.
pub(crate) trait PacketTx {
    /// Room for one packet of `len` bytes (BTH to pad, without ICRC). `None` when the link has no room at the moment: try
    /// again when it has.
    fn reserve(&mut self, to: &To<'_>, len: usize) -> Option<&mut [u8]>;

    /// The room that was last reserved now holds a packet.
    fn commit(&mut self);

    /// Sends a run of packets with the `headers` of one, whose payload the peer copies itself. No room is reserved at the time.
    fn offer(&mut self, _to: &To<'_>, _headers: &Headers, _offer: &Offer) -> Offered {
        Offered::No
    }

    /// What was committed leaves before anything that another thread commits from now on. Called with the queue pair's lock
    /// held, so that its packets leave in the order of their PSNs whoever sends them. Gives back all locks of the link, so
    /// that none is held when the next queue pair's is taken. Never blocks.
    fn flush(&mut self);
}

/// How many bytes may be in flight to one peer: a datagram socket has no flow control of its own, so a sender with much to
/// send overruns the peer's buffer. Acknowledgements open the window, losses close it.
#[derive(Debug)]
pub(crate) struct PeerFlow {
    window: AtomicU32,
    in_flight: AtomicI64,
    answers_keepalive: AtomicBool,
}

impl PeerFlow {
    /// What a packet costs besides its bytes: the kernel's own overhead for each datagram in a socket buffer.
    pub(crate) const PACKET_OVERHEAD: u32 = 256;
    /// What single losses leave of the window.
    const MIN: u32 = 64 << 10;
    /// What timeouts leave of it: a peer may be so slow that more than this takes it longer than an ACK timeout.
    const LEAST: u32 = 16 << 10;
    const START: u32 = 512 << 10;
    const MAX: u32 = 1 << 20;

    pub(crate) fn new() -> Self {
        Self {
            window: AtomicU32::new(Self::START),
            in_flight: AtomicI64::new(0),
            answers_keepalive: AtomicBool::new(false),
        }
    }

    /// Whether anything more may be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.in_flight.load(Relaxed) < i64::from(self.window.load(Relaxed))
    }

    pub(crate) fn sent(&self, bytes: u32) {
        self.in_flight.fetch_add(i64::from(bytes), Relaxed);
    }

    /// Bytes in flight. Never negative while nobody is sending.
    pub(crate) fn in_flight(&self) -> i64 {
        self.in_flight.load(Relaxed)
    }

    /// `bytes` are no longer in flight: acknowledged, or given up.
    pub(crate) fn left(&self, bytes: u32) {
        self.in_flight.fetch_sub(i64::from(bytes), Relaxed);
    }

    /// An acknowledgement covered `bytes`: the window grows by one part in eight of them.
    pub(crate) fn acked(&self, bytes: u32) {
        let window = self.window.load(Relaxed);
        if window < Self::MAX {
            self.window.store((window + bytes / 8).min(Self::MAX), Relaxed);
        }
    }

    /// Packets were lost. Two threads at once lose one of two changes, which does no harm.
    pub(crate) fn lost(&self) {
        let window = self.window.load(Relaxed);
        if window > Self::MIN {
            self.window.store((window / 4 * 3).max(Self::MIN), Relaxed);
        }
    }

    /// Nothing was heard for the time of an ACK timeout: all is lost, or still in a queue that is longer than that.
    pub(crate) fn timed_out(&self) {
        let window = self.window.load(Relaxed);
        self.window.store((window / 2).max(Self::LEAST), Relaxed);
    }
}
