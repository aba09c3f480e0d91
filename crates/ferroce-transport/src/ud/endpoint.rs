//! One end of a session.

use super::config::Config;
use super::rx::RxWindow;
use super::table::EndpointId;
use super::tx::TxWindow;
use super::{Cause, Evidence, Failure, Nanos, PeerAddress};

/// Where an endpoint is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It asked the peer for a session and waits for the answer. `tries` CONNECTs were sent.
    Connecting { tries: u32, next: Nanos, deadline: Nanos },
    /// The peer asked, and was answered `tries` times; whether it got that is not known.
    HalfOpen { tries: u32, next: Nanos, deadline: Nanos },
    /// Both know each other's endpoint.
    Open,
    /// Its owner let go of it; what was sent before is still being delivered.
    Closing { deadline: Nanos },
    /// It is over, and its owner was told.
    Dead,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) peer: PeerAddress,
    /// Names the session.
    pub(super) nonce: u64,
    /// The peer's endpoint.
    pub(super) remote: Option<EndpointId>,
    pub(super) state: State,
    /// The program has it. If not, the peer made it.
    pub(super) owned: bool,
    /// An answer to a CONNECT is due, though one was sent.
    pub(super) accept: bool,
    /// In the list of those that have something to send.
    pub(super) ready: bool,
    pub(super) tx: TxWindow,
    pub(super) rx: RxWindow,
    /// When its timer looks at it next.
    pub(super) timer: Option<Nanos>,
    /// When the peer was last heard of.
    pub(super) heard: Nanos,
    /// When something was last acknowledged, or first waited for that.
    pub(super) progress: Nanos,
    /// When a sign of life was first asked for, if none came since, and how often since then.
    pub(super) probed: Option<Nanos>,
    pub(super) unanswered: u32,
    /// How often one was ever asked for.
    pub(super) probes: u32,
    /// A probe is to be sent.
    pub(super) probe: bool,
}

impl Endpoint {
    pub(super) fn new(now: Nanos, peer: PeerAddress, nonce: u64, state: State, owned: bool) -> Self {
        Self {
            peer,
            nonce,
            remote: None,
            state,
            owned,
            accept: false,
            ready: false,
            tx: TxWindow::new(),
            rx: RxWindow::default(),
            timer: None,
            heard: now,
            progress: now,
            probed: None,
            unanswered: 0,
            probes: 0,
            probe: false,
        }
    }

    /// Whether data may be sent as far as the state goes.
    pub(super) fn talks(&self) -> bool {
        self.remote.is_some() && matches!(self.state, State::HalfOpen { .. } | State::Open | State::Closing { .. })
    }

    /// Whether it has something to send now.
    pub(super) fn wants(&self, now: Nanos) -> bool {
        match self.state {
            State::Connecting { next, .. } => next <= now,
            State::HalfOpen { next, .. } if next <= now => true,
            State::Dead => false,
            _ => self.accept || self.probe || self.rx.deadline().is_some_and(|at| at <= now) || self.tx.can_send(),
        }
    }

    /// When something is to be done even if nothing comes.
    pub(super) fn deadline(&self, config: &Config) -> Option<Nanos> {
        let own = match self.state {
            State::Connecting { next, deadline, .. } => return Some(next.min(deadline)),
            State::Dead => return None,
            State::HalfOpen { next, deadline, .. } => Some(next.min(deadline)),
            State::Closing { deadline } => Some(deadline),
            State::Open => None,
        };
        let silent = self.silence(config);
        [own, self.rx.deadline(), self.tx.deadline(), silent, self.keepalive(config)].into_iter().flatten().min()
    }

    /// When the next sign of life is to be asked for. Not while data waits for an acknowledgement: that is one.
    pub(super) fn keepalive(&self, config: &Config) -> Option<Nanos> {
        // Nobody would miss a peer that went away from an endpoint that it made and that nobody owns (UCX reports 11822, 11899).
        let unowned = (!self.owned).then_some(config.peer_timeout);
        let period = config.keepalive.or(unowned).filter(|_| self.tx.is_empty() && self.talks())?;
        Some(self.heard + period.as_nanos() as Nanos * Nanos::from(self.unanswered + 1))
    }

    /// Asks the peer for a sign of life.
    pub(super) fn ask(&mut self, now: Nanos) {
        self.probe = true;
        self.probed.get_or_insert(now);
        self.unanswered += 1;
        self.probes += 1;
    }

    /// When the peer counts as dead: nothing of what waits for an acknowledgement was acknowledged, or no sign of life came.
    pub(super) fn silence(&self, config: &Config) -> Option<Nanos> {
        let patience = config.peer_timeout.as_nanos() as Nanos;
        let waits = (!self.tx.is_empty()).then_some(self.progress);
        [waits, self.probed].into_iter().flatten().min().map(|since| since + patience)
    }

    /// Something came from the peer.
    pub(super) fn hear(&mut self, now: Nanos) {
        self.heard = now;
        self.probed = None;
        self.unanswered = 0;
        if let State::HalfOpen { .. } = self.state {
            self.state = State::Open;
        }
    }

    /// Why it ended, with what is known.
    pub(super) fn failure(&self, cause: Cause, late: Nanos) -> Failure {
        let evidence = Evidence {
            last_heard: self.heard,
            last_progress: self.progress,
            retransmissions: self.tx.retransmissions(),
            probes: self.probes,
            timer_late_by: late,
        };
        Failure { cause, evidence }
    }
}
