//! One end of a session.

use super::acceptor::Acceptor;
use super::config::Config;
use super::initiator::Initiator;
use super::table::EndpointId;
use super::{Nanos, PeerAddress};

/// An endpoint, of either kind.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) peer: PeerAddress,
    /// Names the session.
    pub(super) nonce: u64,
    /// The other end, once it is known.
    pub(super) remote: Option<EndpointId>,
    /// In the list of those that have something to send.
    pub(super) ready: bool,
    /// Something was said on its behalf that has not left yet.
    pub(super) saying: bool,
    /// When its timer looks at it next.
    pub(super) timer: Option<Nanos>,
    pub(super) life: Life,
    pub(super) role: Role,
}

/// Which end it is.
#[derive(Debug)]
pub(super) enum Role {
    /// It began the session, and sends.
    Initiator(Initiator),
    /// It was made by the other end, and receives.
    Acceptor(Acceptor),
}

/// What is known about whether the peer lives.
#[derive(Debug)]
pub(super) struct Life {
    /// When it was last heard of.
    pub(super) heard: Nanos,
    /// When a sign of life was first asked for, if none came since, and how often since then.
    asked: Option<Nanos>,
    unanswered: u32,
    /// How often one was ever asked for.
    pub(super) probes: u32,
    /// One is to be asked for with the next packet.
    pub(super) probe: bool,
}

/// How often a sign of life is asked for until the peer counts as dead: one lost packet must not decide.
const PROBES: Nanos = 16;

impl Life {
    pub(super) const fn new(now: Nanos) -> Self {
        Self { heard: now, asked: None, unanswered: 0, probes: 0, probe: false }
    }

    pub(super) fn hear(&mut self, now: Nanos) {
        self.heard = now;
        self.asked = None;
        self.unanswered = 0;
    }

    pub(super) fn ask(&mut self, now: Nanos) {
        self.probe = true;
        self.asked.get_or_insert(now);
        self.unanswered += 1;
        self.probes += 1;
    }

    /// When to ask next, if nothing is to be heard for `period`.
    pub(super) fn next_probe(&self, period: Nanos, config: &Config) -> Nanos {
        self.heard + period + config.peer_timeout() / PROBES * Nanos::from(self.unanswered)
    }

    /// When the peer counts as dead because it does not answer.
    pub(super) fn given_up(&self, config: &Config) -> Option<Nanos> {
        self.asked.map(|since| since + config.peer_timeout())
    }
}
