//! The end that began a session, and sends.

use super::config::{Config, Retry};
use super::endpoint::Life;
use super::tx::TxWindow;
use super::wire::Kind;
use super::{Cause, Evidence, Failure, Nanos};
use ferroce_verbs::ah_cache::ResolveCause;

/// Where an initiator is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It asked for a session and waits for the answer.
    Connecting(Retry),
    /// Both know each other's endpoint.
    Open,
    /// It is over, and its owner was told.
    Dead,
}

#[derive(Debug)]
pub(super) struct Initiator {
    pub(super) state: State,
    /// Its owner let go of it; what was sent before is being delivered until then.
    pub(super) closed: Option<Nanos>,
    pub(super) tx: TxWindow,
    /// A message found no room, and its owner waits to hear that there is some.
    pub(super) refused: bool,
    /// Why its address could not be resolved the last time; `None` once it could.
    pub(super) resolution: Option<ResolveCause>,
    /// When something was last acknowledged, or first waited for that.
    pub(super) progress: Nanos,
}

impl Initiator {
    pub(super) fn new(now: Nanos, config: &Config) -> Self {
        let state = State::Connecting(Retry::new(now, config));
        Self { state, ..Self::dead(now) }
    }

    /// What is left of it once it failed.
    pub(super) fn dead(now: Nanos) -> Self {
        let (tx, closed, resolution) = (TxWindow::new(), None, None);
        Self { state: State::Dead, closed, tx, refused: false, resolution, progress: now }
    }

    pub(super) fn push(&mut self, now: Nanos, kind: Kind, body: Vec<u8>) {
        if self.tx.is_empty() {
            self.progress = now;
        }
        self.tx.push(kind, body);
    }

    pub(super) fn wants(&self, now: Nanos, life: &Life) -> bool {
        match self.state {
            State::Connecting(retry) => retry.next <= now,
            State::Open => life.probe || self.tx.can_send(),
            State::Dead => false,
        }
    }

    /// When something is to be done even if nothing comes.
    pub(super) fn deadline(&self, life: &Life, config: &Config) -> Option<Nanos> {
        let times = match self.state {
            State::Connecting(retry) => [Some(retry.next), Some(retry.deadline), None, None],
            State::Open => [self.tx.deadline(), self.silent_at(life, config), self.probe_at(life, config), self.closed],
            State::Dead => return None,
        };
        times.into_iter().flatten().min()
    }

    /// When the peer counts as dead: nothing of what waits for an acknowledgement was acknowledged, or no sign of life came.
    pub(super) fn silent_at(&self, life: &Life, config: &Config) -> Option<Nanos> {
        let waits = (!self.tx.is_empty()).then(|| self.progress + config.peer_timeout());
        [waits, life.given_up(config)].into_iter().flatten().min()
    }

    /// When a sign of life is to be asked for. Not while data waits for an acknowledgement: that is one.
    pub(super) fn probe_at(&self, life: &Life, config: &Config) -> Option<Nanos> {
        let period = config.keepalive.map(|period| period.as_nanos() as Nanos);
        self.tx.is_empty().then(|| life.next_probe(period, config))?
    }

    /// Why it ends, with what is known.
    pub(super) fn failure(&self, life: &Life, cause: Cause, late: Nanos) -> Failure {
        let evidence = Evidence {
            last_heard: life.heard,
            last_progress: self.progress,
            retransmissions: self.tx.retransmissions(),
            probes: life.probes,
            timer_late_by: late,
            resolution: self.resolution,
        };
        Failure { cause, evidence }
    }
}
