use super::disturb::{Disturbance, Gone};
use super::end::{End, Receives, check_untouched};
use super::world::World;
use crate::failure::{Checked, Failure, ensure};
use crate::scenario::Outcome;
use ferroce_verbs::{QpAttr, QpState};
use std::collections::HashMap;
use std::time::Duration;

/// Virtual time in which everything must be over.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Packets that are sent until then: four times what the worst of the first 3000 seeds takes.
const PACKET_LIMIT: u64 = 1_000_000;
/// Things that its ends do until then.
const ROUND_LIMIT: u32 = 2_000_000;

impl World {
    /// Runs until everything is over, then checks that nothing is left.
    pub(super) fn run(mut self) -> Result<Outcome, Failure> {
        self.traffic()?;
        self.check_complete()?;
        self.tear_down()
    }

    /// Random traffic until all of it is over.
    fn traffic(&mut self) -> Checked {
        let (mut at_rest, mut rounds) = (0, 0);
        while !self.is_over() {
            rounds += 1;
            ensure!(rounds < ROUND_LIMIT, "not over after {rounds} rounds: {}", self.left());
            self.maybe_disturb()?;
            let end = *self.random.pick(&self.ends.numbers());
            let mut rest = false;
            if self.random.chance(self.plan.drains) {
                self.toggle_drain(end)?;
            }
            match self.random.below(16) {
                0..=3 => {
                    let burst = self.random.within(1, 6);
                    self.post_sends(end, burst)?;
                }
                4..=5 if !self.random.chance(self.plan.lazy) => {
                    let count = self.random.within(1, 8);
                    self.post_receives(end, count)?;
                }
                6..=8 => {
                    let cq = *self.random.pick(&self.cqs.numbers());
                    let count = self.random.below(9) as usize;
                    self.poll(cq, count)?;
                }
                _ => rest = self.steps()?,
            }
            at_rest = if rest && !self.do_everything()? { at_rest + 1 } else { 0 };
            ensure!(at_rest < 3, "the network is at rest, and this is left: {}", self.left());
            ensure!(self.network.now() < TIME_LIMIT, "not over after {TIME_LIMIT:?}: {}", self.left());
            let packets = self.network.stats().sent;
            ensure!(packets < PACKET_LIMIT, "not over after {packets} packets: {}", self.left());
        }
        Ok(())
    }

    /// Lets some events of the network happen; returns whether it is at rest.
    fn steps(&mut self) -> Checked<bool> {
        for _ in 0..self.random.below(40) {
            if !self.network.step() {
                return Ok(true);
            }
            if matches!(self.disturbance, Some(Disturbance::Partition { .. })) {
                // How long a failure takes to notice is measured when its completion is polled.
                for cq in self.cqs.numbers() {
                    while self.poll(cq, 16)? != 0 {}
                }
            }
        }
        Ok(false)
    }

    /// Whether the peer of `end` is gone or has failed.
    fn is_alone(&self, end: &End) -> bool {
        self.ends.get(end.peer).is_none_or(|peer| peer.failed)
    }

    /// Does all that ends can do while the network is at rest; returns whether there was anything.
    fn do_everything(&mut self) -> Checked<bool> {
        let mut done = false;
        for cq in self.cqs.numbers() {
            while self.poll(cq, 16)? != 0 {
                done = true;
            }
        }
        done |= self.end_drains()?;
        for end in self.ends.numbers() {
            let before = self.ends[end].posted;
            self.post_sends(end, u64::MAX)?;
            done |= self.ends[end].posted != before;
        }
        if !self.all_receives_posted() {
            done = true;
            for end in self.ends.numbers() {
                self.post_receives(end, u64::from(2 * self.plan.depth))?;
            }
        }
        Ok(done)
    }

    fn is_over(&self) -> bool {
        self.ends.iter().all(|end| {
            let sent = end.failed || end.posted == self.plan.ops;
            let received = end.expected.is_empty() || end.failed || self.is_alone(end);
            sent && end.outstanding.is_empty() && received
        })
    }

    fn left(&self) -> String {
        let left: Vec<String> = self
            .ends
            .iter()
            .filter(|end| !end.outstanding.is_empty() || !end.expected.is_empty())
            .map(|end| {
                let (sends, receives) = (end.outstanding.len(), end.expected.len());
                let first = end.outstanding.front();
                format!("end {}: {sends} sends, {receives} receives, first {first:?}", end.index)
            })
            .collect();
        left.join("; ")
    }

    /// All traffic is over: that nothing happens any more and everything was done once.
    fn check_complete(&mut self) -> Checked {
        let idle = self.network.run_until_idle(Duration::from_secs(60));
        ensure!(idle, "the network goes on after all traffic is over: next at {:?}", self.network.next_event());
        for cq in self.cqs.numbers() {
            // Of a failed connection there may be flushed receives, and messages that came before the failure.
            let failed = !self.gone.is_empty() || self.ends.iter().any(|end| end.failed || self.is_alone(end));
            while self.poll(cq, 16)? != 0 {
                ensure!(failed, "a completion came after everything was complete");
            }
        }
        let slot_len = self.plan.slot_len();
        let clean = self.ends.iter().all(|end| !end.failed) && self.disturbance != Some(Disturbance::Crash);
        for end in self.ends.iter() {
            for area in [&end.local, &end.target, &end.source] {
                area.check_guards()?;
            }
            let quiet = !end.failed && !self.is_alone(end);
            for slot in 0..self.plan.depth as usize {
                check_untouched(&end.local, slot, slot_len, "local memory that no send uses")?;
                if quiet {
                    check_untouched(&end.target, slot, slot_len, "memory that no write is for")?;
                }
            }
            ensure!(end.source.read(0..end.source.len())? == end.source_bytes, "memory that is only read was written");
            if let Some(receives) = &end.receives {
                receives.check()?;
            }
        }
        for host in self.contexts.iter() {
            host.words.check()?;
            if let Some(receives) = &host.receives {
                receives.check()?;
            }
            let counters: HashMap<&str, u64> = host.context.counters().into_iter().collect();
            for name in ["malformed_packets", "wrong_source", "bytes_in_flight"] {
                ensure!(counters[name] == 0, "{name} is {}", counters[name]);
            }
            // What is lost is reported, not left for a timeout to find out.
            let reported = counters["out_of_sequence"] == 0 || counters["send_nak"] + counters["send_rnr_err"] != 0;
            ensure!(
                reported || !clean,
                "{} packets came after a gap, and no NAK was sent",
                counters["out_of_sequence"]
            );
            if clean {
                ensure!(counters["unknown_qp"] == 0, "unknown_qp is {}", counters["unknown_qp"]);
            }
            let timers = counters["timers"];
            ensure!(timers == 0, "{timers} timers are left of connections with nothing to wait for");
        }
        let stats = self.network.stats();
        ensure!(stats.is_consistent() && stats.in_flight == 0, "the network lost count: {stats:?}");
        let faults = self.plan.network.faults;
        if faults.loss == 0.0 && faults.corrupt == 0.0 && faults.reorder == 0.0 && faults.duplicate == 0.0 {
            self.check_faultless()?;
        }
        self.outcome.packets = stats.sent;
        self.outcome.time = self.network.now();
        Ok(())
    }

    /// Nothing was lost: then nothing is sent twice, but for receivers that were not ready.
    fn check_faultless(&self) -> Checked {
        for host in self.contexts.iter() {
            let counters: HashMap<&str, u64> = host.context.counters().into_iter().collect();
            for name in ["local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err", "out_of_sequence"] {
                let rnr = name == "out_of_sequence" && counters["send_rnr_err"] != 0;
                ensure!(rnr || counters[name] == 0, "{name} is {} though nothing was lost", counters[name]);
            }
        }
        Ok(())
    }

    /// Ends everything: what is posted is flushed once, and nothing is left of any object.
    fn tear_down(mut self) -> Result<Outcome, Failure> {
        for index in self.ends.numbers() {
            self.ends[index].qp.modify(&QpAttr::to(QpState::Err))?;
            for cq in [self.ends[index].send_cq, self.ends[index].recv_cq] {
                while self.poll(cq, 16)? != 0 {}
            }
            let end = &self.ends[index];
            let posted = end.receives.as_ref().map_or(0, |receives| receives.order.len());
            ensure!(posted == 0, "{posted} receives of end {index} were not flushed");
        }
        self.take_events()?;
        let mut outcome = self.outcome;
        outcome.trace = self.watch.hash();
        ensure!(self.gone.iter().all(Gone::is_complete), "completions of an end that vanished are missing");
        let Self { ends, mut contexts, cqs, network, .. } = self;
        drop(ends);
        drop(cqs);
        for host in contexts.numbers().into_iter().filter_map(|index| contexts.take(index)) {
            let context = host.context.clone();
            drop(host);
            let counters: HashMap<&str, u64> = context.counters().into_iter().collect();
            let objects =
                ["queue_pairs", "memory_regions", "completion_queues", "shared_receive_queues", "protection_domains"];
            for name in objects {
                ensure!(counters[name] == 0, "{} {name} are left", counters[name]);
            }
        }
        ensure!(!network.step(), "something happens on a network without contexts");
        Ok(outcome)
    }

    pub(super) fn all_receives_posted(&self) -> bool {
        let own = self.ends.iter().filter(|end| !end.failed && !end.starved).filter_map(|end| end.receives.as_ref());
        own.chain(self.contexts.iter().filter_map(|host| host.receives.as_ref())).all(Receives::is_full)
    }
}
