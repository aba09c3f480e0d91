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
    /// When a sign of life was first and last asked for, if none came since.
    asked: Option<(Nanos, Nanos)>,
    /// How often one was ever asked for.
    pub(super) probes: u32,
    /// One is to be asked for with the next packet.
    pub(super) probe: bool,
}

/// How often a sign of life is asked for until the peer counts as dead: one lost packet must not decide.
const PROBES: Nanos = 16;

impl Life {
    pub(super) const fn new(now: Nanos) -> Self {
        Self { heard: now, asked: None, probes: 0, probe: false }
    }

    pub(super) fn hear(&mut self, now: Nanos) {
        self.heard = now;
        self.asked = None;
    }

    pub(super) fn ask(&mut self, now: Nanos) {
        self.probe = true;
        self.asked.get_or_insert((now, now)).1 = now;
        self.probes += 1;
    }

    /// When to ask next: again while there is no answer, whoever asked first; else if nothing is heard for `period`.
    pub(super) fn next_probe(&self, period: Option<Nanos>, config: &Config) -> Option<Nanos> {
        match self.asked {
            Some((_, last)) => Some(last + config.peer_timeout() / PROBES),
            None => period.map(|period| self.heard + period),
        }
    }

    /// When the peer counts as dead because it does not answer.
    pub(super) fn given_up(&self, config: &Config) -> Option<Nanos> {
        self.asked.map(|(first, _)| first + config.peer_timeout())
    }
}
