use super::disturb::{Disturbance, Gone};
use super::drain::Drain;
use super::end::{End, Queue, Receives};
use super::plan::Plan;
use super::words::{ADD_WORDS, SWAP_WORDS, Words};
use crate::adversary::BoundedFaults;
use crate::arena::Area;
use crate::failure::Checked;
use crate::pattern::CONSUMED;
use crate::scenario::{Options, Outcome, Scenario};
use crate::slots::Slots;
use crate::watch::Watch;
use ferroce_soft::memory::{MemoryNetwork, Random, RandomFaults};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, CompChannel, Context, Cq, Gid, Pd, QpAttr, QpCap, QpInitAttr, QpType, SrqInitAttr,
};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// Everything in one run.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) network: MemoryNetwork,
    pub(super) watch: Watch,
    pub(super) contexts: Slots<Host>,
    pub(super) cqs: Slots<CqState>,
    pub(super) ends: Slots<End>,
    pub(super) outcome: Outcome,
    /// What was done to the network or the hosts, and when.
    pub(super) disturbance: Option<Disturbance>,
    /// Ends that vanished and whose completions are still to come.
    pub(super) gone: Vec<Gone>,
}

/// A context and what its ends share.
pub(super) struct Host {
    pub(super) ip: IpAddr,
    pub(super) gid: Gid,
    pub(super) context: Context,
    pub(super) pd: Pd,
    pub(super) words: Words,
    /// The last value that somebody saw in each word, for compare-and-swap.
    pub(super) last_seen: Vec<u64>,
    pub(super) receives: Option<Receives>,
    shared_cq: Option<usize>,
}

/// A completion queue and what is known of its channel.
pub(super) struct CqState {
    pub(super) cq: Cq,
    pub(super) channel: CompChannel,
    pub(super) context: usize,
    /// Armed while it was empty, and nothing was polled since.
    pub(super) armed: bool,
}

impl World {
    pub(super) fn new(plan: Plan, seed: u64, mut random: Random, options: &Options) -> Checked<Self> {
        let network = MemoryNetwork::new(plan.network.clone());
        let watch = Watch::new(&network, options);
        let mut world = Self {
            contexts: Slots::new(),
            cqs: Slots::new(),
            ends: Slots::new(),
            disturbance: None,
            gone: Vec::new(),
            outcome: Outcome::default(),
            random: random.fork(seed),
            network,
            watch,
            plan,
        };
        for host in 0..world.plan.hosts {
            for _ in 0..world.plan.contexts {
                world.add_context(IpAddr::from([10, 0, 0, host as u8 + 1]))?;
            }
        }
        for _ in 0..world.plan.pairs {
            let contexts = world.contexts.end() as u64;
            let (a, b) = (random.below(contexts) as usize, random.below(contexts) as usize);
            world.add_pair(a, b)?;
        }
        if world.plan.scenario == Scenario::Rc {
            let at = |end: &End| (world.contexts[end.context].ip, end.qp.qp_num());
            let responders = world.ends.iter().map(|end| (at(end), at(&world.ends[end.peer]))).collect();
            let faults = RandomFaults::new(world.plan.network.faults, world.random.fork(1));
            world.network.set_policy(Box::new(BoundedFaults::new(faults, responders)));
        }
        Ok(world)
    }

    pub(super) fn add_context(&mut self, ip: IpAddr) -> Checked<usize> {
        let context = self.network.host(ip).open()?;
        let pd = context.alloc_pd()?;
        let words = Words::new(&pd)?;
        let gid = context.query_gid(1, 0)?.gid;
        let receives = if self.plan.srq {
            let slots = 2 * self.plan.depth;
            let srq = pd.create_srq(&SrqInitAttr { max_wr: slots, max_sge: self.plan.max_sge })?;
            Some(Receives::new(&pd, &self.plan, slots as usize, Queue::Shared(srq))?)
        } else {
            None
        };
        let last_seen = vec![0; ADD_WORDS + SWAP_WORDS];
        Ok(self.contexts.push(Host { ip, gid, context, pd, words, last_seen, receives, shared_cq: None }))
    }

    fn add_cq(&mut self, context: usize) -> Checked<usize> {
        let host = &mut self.contexts[context];
        if let Some(shared) = host.shared_cq {
            return Ok(shared);
        }
        let channel = host.context.create_comp_channel()?;
        let cq = host.context.create_cq(4096, Some(&channel))?;
        let index = self.cqs.push(CqState { cq, channel, context, armed: false });
        host.shared_cq = self.plan.shared_cq.then_some(index);
        Ok(index)
    }

    /// Connects a new queue pair of context `a` with one of context `b`.
    pub(super) fn add_pair(&mut self, a: usize, b: usize) -> Checked {
        let first = self.ends.end();
        for (context, peer, peer_context) in [(a, first + 1, b), (b, first, a)] {
            let end = self.make_end(context, peer, peer_context)?;
            self.ends.push(end);
        }
        let psns = [self.psn(), self.psn()];
        for side in 0..2 {
            let (end, peer) = (&self.ends[first + side], &self.ends[first + 1 - side]);
            let ah_attr = AhAttr::roce(self.contexts[peer.context].gid, 0);
            end.qp.modify(&QpAttr {
                max_dest_rd_atomic: Some(self.plan.rd_atomic),
                min_rnr_timer: Some(self.plan.rnr_timer),
                ..QpAttr::rtr(ah_attr, self.plan.mtu, peer.qp.qp_num(), psns[1 - side])
            })?;
            end.qp.modify(&QpAttr {
                timeout: Some(self.plan.timeout),
                retry_cnt: Some(self.plan.retry_cnt),
                rnr_retry: Some(self.plan.rnr_retry),
                max_rd_atomic: Some(self.plan.rd_atomic),
                ..QpAttr::rts(psns[side])
            })?;
        }
        Ok(())
    }

    /// Where a sequence begins: often shortly before it wraps.
    fn psn(&mut self) -> u32 {
        let psn = self.random.below(1 << 24) as u32;
        if self.random.chance(0.3) { 0xff_ffff - psn % 64 } else { psn }
    }

    fn make_end(&mut self, context: usize, peer: usize, peer_context: usize) -> Checked<End> {
        let index = self.ends.end();
        let starved = self.random.chance(0.3);
        let (send_cq, recv_cq) = (self.add_cq(context)?, self.add_cq(context)?);
        let plan = &self.plan;
        let host = &self.contexts[context];
        let cap = QpCap {
            max_send_wr: plan.depth,
            max_recv_wr: plan.depth,
            max_send_sge: plan.max_sge,
            max_recv_sge: plan.max_sge,
            max_inline_data: plan.inline,
        };
        let srq = host.receives.as_ref().and_then(|receives| receives.srq().cloned());
        let qp = host.pd.create_qp(&QpInitAttr {
            srq,
            cap,
            sq_sig_all: plan.sig_all,
            recv_cq: self.cqs[recv_cq].cq.clone(),
            ..QpInitAttr::new(QpType::Rc, &self.cqs[send_cq].cq)
        })?;
        qp.modify(&QpAttr::init(Access::ALL))?;
        let (slot_len, depth) = (plan.slot_len(), plan.depth as usize);
        let receives = match host.receives {
            Some(_) => None,
            None => Some(Receives::new(&host.pd, plan, depth, Queue::Own(qp.clone()))?),
        };
        let source = Area::new(&host.pd, 2 * plan.max_len, 0, Access::REMOTE_READ)?;
        let source_bytes = End::source_of(index, source.len());
        source.write(0, &source_bytes)?;
        Ok(End {
            index,
            context,
            peer,
            peer_context,
            send_cq,
            recv_cq,
            local: Area::new(&host.pd, depth * slot_len, CONSUMED, Access::LOCAL_WRITE)?,
            target: Area::new(&host.pd, depth * slot_len, CONSUMED, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            source,
            source_bytes,
            receives,
            invalidable: Vec::new(),
            starved: self.plan.scenario == Scenario::Rnr && starved,
            posted: 0,
            outstanding: VecDeque::new(),
            unsignaled: 0,
            expected: VecDeque::new(),
            failed: false,
            drain: Drain::No,
            resumed: Duration::ZERO,
            qp,
        })
    }
}
