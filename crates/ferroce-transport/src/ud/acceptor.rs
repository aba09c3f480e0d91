//! The end that a peer made, and that receives.

use super::Nanos;
use super::config::{Config, Retry};
use super::endpoint::Life;
use super::rx::RxWindow;

#[derive(Debug)]
pub(super) struct Acceptor {
    /// It was answered, but whether the peer got that is not known.
    pub(super) half_open: Option<Retry>,
    /// The peer asked again: answer again.
    pub(super) answer: bool,
    pub(super) rx: RxWindow,
}

impl Acceptor {
    pub(super) fn new(now: Nanos, config: &Config) -> Self {
        Self { half_open: Some(Retry::new(now, config)), answer: false, rx: RxWindow::default() }
    }

    pub(super) fn wants(&self, now: Nanos, life: &Life) -> bool {
        let answers = self.answer || self.half_open.is_some_and(|retry| retry.next <= now);
        answers || life.probe || self.rx.deadline().is_some_and(|at| at <= now)
    }

    /// When something is to be done even if nothing comes.
    pub(super) fn deadline(&self, life: &Life, config: &Config) -> Option<Nanos> {
        let half_open = self.half_open.map(|retry| retry.next.min(retry.deadline));
        let probe = self.probe_at(life, config);
        [half_open, self.rx.deadline(), probe, life.given_up(config)].into_iter().flatten().min()
    }

    /// When a sign of life is to be asked for; not before the first packet. Nobody owns this end, so nobody else would miss a peer that went away (UCX reports
    /// 11822, 11899).
    pub(super) fn probe_at(&self, life: &Life, config: &Config) -> Option<Nanos> {
        self.half_open.is_none().then(|| life.next_probe(Some(config.peer_timeout()), config))?
    }
}
