//! Two hosts with queue pairs of every type, and whatever posts, packets, time and state transitions the bytes ask for.

use super::end::Ledger;
use super::inject::Seen;
use super::input::Input;
use crate::arena::Area;
use crate::failure::{Checked, Failure, ensure};
use ferroce_soft::memory::{MemoryConfig, MemoryNetwork, TraceKind};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, Ah, AhAttr, Context, Cq, Gid, Mtu, Pd, Qp, QpAttr, QpCap, QpInitAttr, QpState, QpType, Srq, SrqInitAttr,
    WorkCompletion,
};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of each memory region.
pub(super) const AREA_LEN: usize = 4096;
/// Outstanding work requests of each queue.
pub(super) const DEPTH: u32 = 8;
pub(super) const MAX_SGE: u32 = 3;
pub(super) const MAX_INLINE: u32 = 64;
pub(super) const QKEY: u32 = 0x1234_5678;
/// Queue pairs of each host, and whether they use the SRQ.
pub(super) const QPS: [(QpType, bool); 4] =
    [(QpType::Rc, false), (QpType::Rc, true), (QpType::Uc, false), (QpType::Ud, true)];
/// Commands and network events of one input, so that every input ends soon.
const COMMANDS: u32 = 600;
const EVENTS: u32 = 6000;
/// Packets in flight at once: far more than the queues above can account for.
const IN_FLIGHT: u64 = 8192;
/// What memory that is not to be written holds.
const SEALED: u8 = 0x5e;

pub(super) struct Host {
    pub(super) ip: IpAddr,
    pub(super) gid: Gid,
    pub(super) context: Context,
    pub(super) pd: Pd,
    _other_pd: Pd,
    pub(super) cq: Cq,
    pub(super) srq: Srq,
    pub(super) srq_ledger: Ledger,
    /// Everybody may do everything; only this host may write; peers may only read; of another protection domain.
    pub(super) areas: [Area; 4],
    pub(super) qps: Vec<Qp>,
    /// Handles to both hosts.
    pub(super) ahs: Vec<Ah>,
}

pub(super) struct World {
    pub(super) network: MemoryNetwork,
    pub(super) seen: Arc<Mutex<Seen>>,
    pub(super) hosts: Vec<Host>,
    /// Of every queue pair that there ever was, by host and number.
    pub(super) ledgers: HashMap<(usize, u32), (QpType, bool, Ledger)>,
    pub(super) next_id: u64,
    pub(super) events: u32,
    pub(super) mtu: Mtu,
}

/// The engine of the software device, on the network in memory: no panic, no write outside of what was registered for it, each
/// work request completes once and in order, and in the end nothing is left.
///
/// # Errors
///
/// What does not hold.
pub fn engine(data: &[u8]) -> Result<(), Failure> {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input)?;
    for number in 0..COMMANDS {
        if input.is_empty() {
            break;
        }
        world.command(&mut input)?;
        if number % 16 == 15 {
            world.poll()?;
        }
    }
    world.finish()
}

impl World {
    fn new(input: &mut Input<'_>) -> Checked<Self> {
        let config = MemoryConfig {
            seed: u64::from(input.u8()),
            rate: input.pick(&[0, 100_000_000]),
            send_buffer: 8 << 10,
            answer_within: Duration::from_nanos(input.pick(&[0, 2000])),
            ..MemoryConfig::default()
        };
        let mtu = input.pick(&[Mtu::Mtu256, Mtu::Mtu1024]);
        let network = MemoryNetwork::new(config);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let sink = seen.clone();
        network.observe(move |event| {
            if event.kind == TraceKind::Sent {
                sink.lock().unwrap_or_else(PoisonError::into_inner).note(event);
            }
        });
        let hosts = [1, 2].map(|host| Host::new(&network, IpAddr::from([10, 0, 0, host])));
        let hosts = hosts.into_iter().collect::<Checked<Vec<Host>>>()?;
        let mut world = Self { network, seen, hosts, ledgers: HashMap::new(), next_id: 1, events: EVENTS, mtu };
        for host in 0..2 {
            let gids = [world.hosts[0].gid, world.hosts[1].gid];
            let ahs = gids.iter().map(|&gid| world.hosts[host].pd.create_ah(&AhAttr::roce(gid, 0)));
            world.hosts[host].ahs = ahs.collect::<Result<_, _>>()?;
            for index in 0..QPS.len() {
                let qp = world.make_qp(host, index)?;
                world.hosts[host].qps.push(qp);
            }
        }
        for index in 0..QPS.len() {
            for host in 0..2 {
                world.connect(host, index);
                ensure!(world.hosts[host].qps[index].state() == QpState::Rts, "queue pair {index} does not connect");
            }
        }
        Ok(world)
    }

    pub(super) fn make_qp(&mut self, host: usize, index: usize) -> Checked<Qp> {
        let (qp_type, shared) = QPS[index];
        let at = &self.hosts[host];
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_inline_data: MAX_INLINE,
        };
        let srq = shared.then(|| at.srq.clone());
        let qp = at.pd.create_qp(&QpInitAttr { srq, cap, ..QpInitAttr::new(qp_type, &at.cq) })?;
        self.ledgers.insert((host, qp.qp_num()), (qp_type, shared, Ledger::default()));
        Ok(qp)
    }

    /// Connects queue pair `index` of `host`, which is in RESET, with that of the other host.
    pub(super) fn connect(&self, host: usize, index: usize) {
        let (qp, peer) = (&self.hosts[host].qps[index], &self.hosts[1 - host].qps[index]);
        let av = AhAttr::roce(self.hosts[1 - host].gid, 0);
        // Each direction begins shortly before its PSNs wrap.
        let (sq_psn, rq_psn) = (0xff_fff0 + host as u32, 0xff_fff0 + (1 - host) as u32);
        let steps = match QPS[index].0 {
            QpType::Rc => [
                QpAttr::init(Access::ALL),
                QpAttr { min_rnr_timer: Some(1), ..QpAttr::rtr(av, self.mtu, peer.qp_num(), rq_psn) },
                QpAttr { timeout: Some(5), ..QpAttr::rts(sq_psn) },
            ],
            QpType::Uc => [
                QpAttr::init(Access::ALL),
                QpAttr::rtr_uc(av, self.mtu, peer.qp_num(), rq_psn),
                QpAttr::rts_unreliable(sq_psn),
            ],
            QpType::Ud => [QpAttr::init_ud(QKEY), QpAttr::to(QpState::Rtr), QpAttr::rts_unreliable(sq_psn)],
        };
        // In another state than RESET it is refused, which is as good.
        let _ = steps.iter().try_for_each(|attr| qp.modify(attr));
    }

    pub(super) fn poll(&mut self) -> Checked {
        let mut wcs = [WorkCompletion::default(); 16];
        for host in 0..self.hosts.len() {
            loop {
                let polled = self.hosts[host].cq.poll(&mut wcs)?;
                for wc in &wcs[..polled] {
                    let Some((_, shared, ledger)) = self.ledgers.get_mut(&(host, wc.qp_num)) else {
                        return Err(Failure::new(format!("{wc:?}: there was no such queue pair")));
                    };
                    let own = ledger.complete(wc)?;
                    ensure!(own || *shared, "{wc:?}: it was not posted, or completed before");
                    if !own {
                        self.hosts[host].srq_ledger.complete_shared(wc)?;
                    }
                }
                if polled == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Checked {
        self.poll()?;
        self.check_memory()?;
        let stats = self.network.stats();
        ensure!(stats.max_in_flight <= IN_FLIGHT, "{} packets were in flight at once", stats.max_in_flight);
        for qp in self.hosts.iter().flat_map(|host| &host.qps) {
            if qp.state() != QpState::Reset {
                qp.modify(&QpAttr::to(QpState::Err))?;
            }
        }
        ensure!(self.network.run_until_idle(Duration::from_secs(60)), "queue pairs that failed still do something");
        self.poll()?;
        self.check_memory()?;
        for (qp_type, shared, ledger) in self.ledgers.values() {
            ledger.check_complete(*qp_type, *shared)?;
        }
        let Self { network, hosts, .. } = self;
        for host in hosts {
            while host.context.next_async_event()?.is_some() {}
            let context = host.context.clone();
            drop(host);
            for (name, value) in context.counters() {
                let left = ["queue_pairs", "memory_regions", "completion_queues", "shared_receive_queues", "timers"];
                let none = left.contains(&name) || ["address_handles", "bytes_in_flight"].contains(&name);
                ensure!(!none || value == 0, "{name} is {value} after all was destroyed");
            }
        }
        let stats = network.stats();
        ensure!(stats.is_consistent() && stats.in_flight == 0, "the network lost count: {stats:?}");
        Ok(())
    }

    /// Nobody wrote where nobody may.
    pub(super) fn check_memory(&self) -> Checked {
        for host in &self.hosts {
            for area in &host.areas {
                area.check_guards()?;
            }
            for area in &host.areas[2..] {
                let bytes = area.read(0..AREA_LEN)?;
                ensure!(bytes.iter().all(|&byte| byte == SEALED), "memory was written that nobody may write to");
            }
        }
        Ok(())
    }
}

impl Host {
    fn new(network: &MemoryNetwork, ip: IpAddr) -> Checked<Self> {
        let context = network.host(ip).open()?;
        let (pd, other_pd) = (context.alloc_pd()?, context.alloc_pd()?);
        let areas = [
            Area::new(&pd, AREA_LEN, 0, Access::ALL)?,
            Area::new(&pd, AREA_LEN, 0, Access::LOCAL_WRITE)?,
            Area::new(&pd, AREA_LEN, SEALED, Access::REMOTE_READ)?,
            Area::new(&other_pd, AREA_LEN, SEALED, Access::ALL)?,
        ];
        Ok(Self {
            ip,
            gid: context.query_gid(1, 0)?.gid,
            cq: context.create_cq(4096, None)?,
            srq: pd.create_srq(&SrqInitAttr { max_wr: DEPTH, max_sge: MAX_SGE })?,
            srq_ledger: Ledger::default(),
            qps: Vec::new(),
            ahs: Vec::new(),
            areas,
            pd,
            _other_pd: other_pd,
            context,
        })
    }
}
