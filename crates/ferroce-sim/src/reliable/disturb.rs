//! What happens to hosts in the middle of traffic, and what it excuses.

use super::end::{End, RECEIVE};
use super::op::Op;
use super::world::World;
use crate::failure::{Checked, Failure, ensure};
use crate::scenario::Scenario;
use ferroce_verbs::{QpState, WcStatus, WorkCompletion};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// What an end left behind when it vanished.
pub(super) struct Gone {
    pub(super) context: usize,
    pub(super) qpn: u32,
    /// Sends that were outstanding, and whether they were signaled.
    sends: VecDeque<(u64, bool)>,
    /// Slots of receives that were posted.
    receives: VecDeque<usize>,
}

impl Gone {
    /// A completion of what it left behind: in order, once, and nothing left out that must not be. Returns whether it is
    /// a receive of its own.
    pub(super) fn complete(&mut self, wc: &WorkCompletion) -> Checked<bool> {
        if wc.wr_id & RECEIVE != 0 {
            let own = self.receives.front() == Some(&((wc.wr_id & !RECEIVE) as usize));
            if own {
                self.receives.pop_front();
            }
            return Ok(own);
        }
        while let Some((id, signaled)) = self.sends.pop_front() {
            if id == wc.wr_id {
                return Ok(false);
            }
            ensure!(!signaled, "send {id} of an end that vanished was left out");
        }
        Err(Failure::new("it was not outstanding when its end vanished"))
    }

    pub(super) fn is_complete(&self) -> bool {
        self.receives.is_empty() && !self.sends.iter().any(|&(_, signaled)| signaled)
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// Packets from one host to another are lost, or all from and to a host, from this time on.
    Partition { from: Option<IpAddr>, to: IpAddr, at: Duration },
    /// Something was torn down without a word to its peers.
    Crash,
}

impl World {
    /// Whether it is time to disturb the run: when about half of what is to be posted is.
    pub(super) fn maybe_disturb(&mut self) -> Checked {
        if self.disturbance.is_some() || !matches!(self.plan.scenario, Scenario::Partition | Scenario::Restart) {
            return Ok(());
        }
        let posted: u64 = self.ends.iter().map(|end| end.posted).sum();
        let total = self.plan.ops * self.ends.end() as u64;
        // Each try has the same chance, from the first send to the last.
        if posted == 0 || !self.random.chance(1.0 / 128.0) && posted < total {
            return Ok(());
        }
        match self.plan.scenario {
            Scenario::Partition => self.partition(),
            _ => self.crash()?,
        }
        Ok(())
    }

    fn partition(&mut self) {
        let hosts: Vec<IpAddr> = self.contexts.iter().map(|host| host.ip).collect();
        let (from, to) = (*self.random.pick(&hosts), *self.random.pick(&hosts));
        let at = self.network.now();
        let from = if from != to && self.random.chance(0.5) {
            self.network.block(from, to);
            Some(from)
        } else {
            self.network.isolate(to);
            None
        };
        self.watch.note(&format!("partition from {from:?} to {to}"));
        self.disturbance = Some(Disturbance::Partition { from, to, at });
    }

    /// An end, or a whole context, vanishes; another one takes its place and connects to somebody who is left.
    fn crash(&mut self) -> Checked {
        self.disturbance = Some(Disturbance::Crash);
        let contexts = self.contexts.numbers();
        let victim = *self.random.pick(&contexts);
        if contexts.len() > 1 && self.random.chance(0.5) {
            let ip = self.contexts[victim].ip;
            self.watch.note(&format!("context {victim} on {ip} vanishes"));
            for end in self.ends.numbers() {
                if self.ends[end].context == victim {
                    let gone = self.ends.take(end);
                    if let Some(gone) = gone {
                        self.note_unfinished(&gone);
                    }
                }
            }
            for cq in self.cqs.numbers() {
                if self.cqs[cq].context == victim {
                    drop(self.cqs.take(cq));
                }
            }
            let host = self.contexts.take(victim);
            drop(host);
            let fresh = self.add_context(ip)?;
            let others: Vec<usize> = self.contexts.numbers();
            let other = *self.random.pick(&others);
            return self.add_pair(fresh, other);
        }
        let ends = self.ends.numbers();
        let end = *self.random.pick(&ends);
        self.watch.note(&format!("end {end} vanishes"));
        let Some(gone) = self.ends.take(end) else { return Ok(()) };
        let context = gone.context;
        self.note_unfinished(&gone);
        // What was outstanding is flushed to queues that others may share.
        self.gone.push(Gone {
            context,
            qpn: gone.qp.qp_num(),
            sends: gone.outstanding.iter().map(|op| (op.id, op.signaled)).collect(),
            receives: gone.receives.as_ref().map(|receives| receives.order.clone()).unwrap_or_default(),
        });
        drop(gone);
        if !self.ends.iter().any(|end| end.context == context) {
            let counters = self.contexts[context].context.counters();
            let timers = counters.iter().find(|(name, _)| *name == "timers");
            ensure!(timers.is_some_and(|(_, timers)| *timers == 0), "{timers:?} of a queue pair that is gone");
        }
        let others: Vec<usize> = self.contexts.numbers();
        let other = *self.random.pick(&others);
        self.add_pair(context, other)
    }

    /// Whether the atomics that `gone` had outstanding were executed nobody will know.
    fn note_unfinished(&mut self, gone: &End) {
        let Some(host) = self.contexts.get_mut(gone.peer_context) else { return };
        for op in &gone.outstanding {
            host.words.failed(op.kind);
        }
    }

    /// Whether a send may be the first of its connection that fails, with this status.
    pub(super) fn may_fail(&self, end: usize, op: &Op, status: WcStatus) -> Checked {
        let timed_out = status == WcStatus::RetryExcErr;
        let peer = self.ends.get(self.ends[end].peer);
        if timed_out && self.plan.scenario != Scenario::Rc && peer.is_some_and(|peer| peer.qp.state() == QpState::Err) {
            // Its peer failed first, for a reason of its own, and answers no more.
            return Ok(());
        }
        match self.plan.scenario {
            Scenario::Rnr => {
                ensure!(status == WcStatus::RnrRetryExcErr, "nothing is lost, so only receives can be missing");
                ensure!(op.kind.takes_receive(), "it needs no receive");
            }
            Scenario::RcStorm => ensure!(timed_out, "unexpected status"),
            Scenario::Restart => ensure!(timed_out && peer.is_none(), "its peer is still there"),
            Scenario::Partition => {
                ensure!(timed_out, "unexpected status");
                let Some(Disturbance::Partition { from, to, at }) = self.disturbance else {
                    ensure!(false, "nothing is wrong with the network");
                    return Ok(());
                };
                let ip_of = |end: usize| self.ends.get(end).map(|end| self.contexts[end.context].ip);
                let between = [ip_of(end), ip_of(self.ends[end].peer)].map(|ip| ip.unwrap_or(to));
                let other = if between[0] == to { between[1] } else { between[0] };
                let cut = between.contains(&to) && from.map_or(other != to, |from| from == other);
                ensure!(cut, "the network between {between:?} is whole");
                // Each try takes up to four times the timeout (IBTA 9.7.6.1.3), and the first may have begun before the queue
                // got that far.
                let timeout = Duration::from_nanos(4096 << self.plan.timeout);
                let bound = 4 * timeout * (u32::from(self.plan.retry_cnt) + 2);
                let took = self.network.now() - op.at.max(at).max(self.ends[end].resumed);
                ensure!(took <= bound, "it took {took:?} to notice, more than {bound:?}");
            }
            _ => ensure!(false, "nothing may fail"),
        }
        Ok(())
    }
}
