use super::channel::SoftChannel;
use super::cq::SoftCq;
use super::events::{Events, RawEvent, Sink};
use super::gsi::SoftGsi;
use super::own;
use super::pd::SoftPd;
use super::port::ContextPort;
use super::qp::SoftQp;
use super::srq::SoftSrq;
use crate::config::SoftConfig;
use crate::driver::{self, OpenError, Port};
use crate::engine::{Av, Engine, MAX_MR, MAX_QP, PeerFlow, SharedRecvQueue, Table};
use crate::memory::MemoryPlace;
use ferroce_verbs::provider::{CompChannelOps, ContextBase, ContextOps, CqOps, GsiOps, PdOps};
use ferroce_verbs::{
    AddressWatcher, AhAttr, AsyncEvent, AtomicCap, Cq, DeviceAttr, DeviceInfo, Error, EventType, Gid, GidEntry, Mtu,
    PortAttr, PortState, Qp, Result, Srq,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

pub(super) const MAX_WR: u32 = 1 << 15;
pub(super) const MAX_SGE: u32 = 32;
pub(super) const MAX_INLINE: u32 = 1024;
pub(super) const MAX_RD_ATOMIC: u8 = 16;
pub(super) const MAX_SRQ: u32 = 1 << 16;
const MAX_CQ: u32 = 1 << 16;
const MAX_CQE: u32 = 1 << 22;

/// An open software device.
pub(crate) struct SoftContext {
    pub(super) engine: Arc<Engine>,
    pub(super) port: ContextPort,
    pub(super) events: Arc<Events>,
    info: DeviceInfo,
    /// The handles of queue pairs, completion queues and shared receive queues, for events.
    pub(super) qps: Mutex<HashMap<u32, Weak<SoftQp>>>,
    pub(super) cqs: Table<Weak<SoftCq>>,
    pub(super) srqs: Table<Weak<SoftSrq>>,
    /// Held while a queue pair joins or leaves a multicast group: who is in it, and whether the port is, change together.
    pub(super) membership: Mutex<()>,
    next_pd: AtomicU32,
    pub(super) pds: AtomicU32,
    pub(super) ahs: AtomicU32,
    /// Bytes in flight to each peer that is reached over UDP.
    flows: Mutex<HashMap<IpAddr, Weak<PeerFlow>>>,
    base: ContextBase,
}

impl SoftContext {
    pub(crate) fn open(info: DeviceInfo, config: &SoftConfig) -> Result<Arc<Self>, OpenError> {
        let os = |what| move |source| OpenError::Os { what, source };
        let port = Arc::new(Port::open(config)?);
        let events = Arc::new(Events::new().map_err(os("creating an eventfd"))?);
        let sink = Sink { events: events.clone(), kick: Some(port.kick.clone()) };
        let engine = Arc::new(Engine::new(port.slot(), Box::new(sink), config.keepalive));
        driver::start(port.clone(), engine.clone()).map_err(os("starting the driver's thread"))?;
        let info = DeviceInfo { node_guid: port.node_guid(), ..info };
        Ok(Self::assemble(info, ContextPort::Host(port), engine, events))
    }

    /// A context on a network in memory.
    pub(crate) fn in_memory(info: DeviceInfo, place: MemoryPlace) -> Result<Arc<Self>> {
        let events = Arc::new(Events::new().map_err(|error| Error::os("creating an eventfd", error))?);
        let sink = Sink { events: events.clone(), kick: None };
        let engine = Arc::new(Engine::new(place.slot(), Box::new(sink), place.keepalive()));
        let port = ContextPort::Memory(place.attach(engine.clone()));
        Ok(Self::assemble(info, port, engine, events))
    }

    fn assemble(info: DeviceInfo, port: ContextPort, engine: Arc<Engine>, events: Arc<Events>) -> Arc<Self> {
        Arc::new(Self {
            engine,
            port,
            events,
            info,
            qps: Mutex::default(),
            cqs: Table::new(0, MAX_CQ),
            srqs: Table::new(0, MAX_SRQ),
            membership: Mutex::default(),
            next_pd: AtomicU32::new(1),
            pds: AtomicU32::new(0),
            ahs: AtomicU32::new(0),
            flows: Mutex::default(),
            base: ContextBase::default(),
        })
    }

    #[inline]
    pub(super) fn progress(&self) {
        self.port.progress(&self.engine);
    }

    pub(super) fn check_port(&self, port: u8) -> Result<()> {
        if port == 1 {
            return Ok(());
        }
        Err(Error::NotFound { what: "port", name: port.to_string(), hint: "the device has one port, 1".into() })
    }

    /// Finds out how the peer at `attr` is reached.
    pub(super) fn resolve(&self, attr: &AhAttr) -> Result<Arc<Av>> {
        self.check_port(attr.port_num)?;
        let grh = attr.grh.ok_or_else(|| Error::invalid("ah_attr", "RoCE needs a GRH"))?;
        let Some(local) = self.port.gid(grh.sgid_index) else {
            let table = self.port.gid_table();
            let entries: Vec<String> = table.iter().map(|entry| format!("{} = {}", entry.index, entry.ip())).collect();
            return Err(Error::NotFound {
                what: "GID index",
                name: grh.sgid_index.to_string(),
                hint: format!("the device has {}", entries.join(", ")),
            });
        };
        let remote = grh.dgid.ip();
        if grh.dgid.is_zero() || remote.is_unspecified() {
            return Err(Error::invalid("dgid", "it is no address"));
        }
        if remote.is_ipv4() != local.ip().is_ipv4() {
            let why = format!("{remote} cannot be reached from {}: one is IPv4, the other IPv6", local.ip());
            return Err(Error::invalid("sgid_index", why));
        }
        let same_host = self.port.is_local(remote);
        let flow = if grh.dgid.is_multicast() { None } else { Some(self.flow(remote)) };
        Ok(Arc::new(Av {
            remote,
            scope: if needs_scope(remote) { local.ifindex } else { 0 },
            local: local.ip(),
            tos: grh.traffic_class,
            ttl: grh.hop_limit,
            same_host,
            mac: self.port.mac_of(remote),
            mtu: local.mtu,
            flow: flow.filter(|_| !(same_host && self.port.uses_shm())),
        }))
    }

    fn flow(&self, peer: IpAddr) -> Arc<PeerFlow> {
        let mut flows = self.flows.lock();
        if let Some(flow) = flows.get(&peer).and_then(Weak::upgrade) {
            return flow;
        }
        flows.retain(|_, flow| flow.strong_count() != 0);
        let flow = Arc::new(PeerFlow::new());
        flows.insert(peer, Arc::downgrade(&flow));
        flow
    }

    /// Bytes in flight to all peers that are reached over UDP.
    fn bytes_in_flight(&self) -> u64 {
        let flows = self.flows.lock();
        let flows = flows.values().filter_map(Weak::upgrade);
        flows.map(|flow| flow.in_flight().unsigned_abs()).sum()
    }

    pub(super) fn join_group(&self, gid: Gid) -> Result<()> {
        self.port.join_group(gid)
    }

    pub(super) fn leave_group(&self, gid: Gid) {
        self.port.leave_group(gid);
    }

    pub(super) fn report_srq_limit(&self, srq: &SharedRecvQueue) {
        self.events.push(RawEvent::Srq(EventType::SrqLimitReached, srq.id));
    }
}

impl Drop for SoftContext {
    fn drop(&mut self) {
        self.port.stop();
    }
}

impl ContextOps for SoftContext {
    fn gsi(self: Arc<Self>) -> Option<Arc<dyn GsiOps>> {
        Some(Arc::new(SoftGsi(self)))
    }

    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn base(&self) -> &ContextBase {
        &self.base
    }

    fn watch_addresses(&self, watcher: Weak<dyn AddressWatcher>) -> Result<()> {
        self.port.watch_addresses(watcher)
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        Ok(DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION").into(),
            node_guid: self.info.node_guid,
            max_mr_size: u64::MAX,
            max_qp: MAX_QP - 2,
            max_qp_wr: MAX_WR,
            max_sge: MAX_SGE,
            max_cq: MAX_CQ,
            max_cqe: MAX_CQE,
            max_mr: MAX_MR - 1,
            max_pd: u32::MAX,
            max_qp_rd_atom: MAX_RD_ATOMIC,
            max_qp_init_rd_atom: MAX_RD_ATOMIC,
            atomic_cap: AtomicCap::Global,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_WR,
            max_inline_data: MAX_INLINE,
            max_mcast_grp: 8192,
            max_ah: u32::MAX,
            phys_port_cnt: 1,
        })
    }

    fn query_port(&self, port: u8) -> Result<PortAttr> {
        self.check_port(port)?;
        let table = self.port.gid_table();
        Ok(PortAttr {
            state: if table.is_empty() { PortState::Down } else { PortState::Active },
            max_mtu: Mtu::Mtu4096,
            active_mtu: table.iter().map(|entry| entry.mtu).min().unwrap_or(Mtu::Mtu1024),
            gid_tbl_len: table.last().map_or(0, |entry| entry.index + 1),
            pkey_tbl_len: 1,
            max_msg_sz: crate::engine::MAX_MSG_SIZE,
            lid: 0,
            ethernet: true,
        })
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>> {
        self.check_port(port)?;
        Ok(self.port.gid_table().to_vec())
    }

    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>> {
        self.pds.fetch_add(1, Ordering::Relaxed);
        let id = self.next_pd.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(SoftPd { id, context: self }))
    }

    fn create_comp_channel(self: Arc<Self>) -> Result<Arc<dyn CompChannelOps>> {
        Ok(Arc::new(SoftChannel::new(self)?))
    }

    fn create_cq(self: Arc<Self>, cqe: u32, channel: Option<Arc<dyn CompChannelOps>>) -> Result<Arc<dyn CqOps>> {
        if !(1..=MAX_CQE).contains(&cqe) {
            return Err(Error::invalid("cqe", format!("{cqe} is not in 1..={MAX_CQE}")));
        }
        let channel = match channel {
            Some(channel) => Some(own::<SoftChannel>(channel.into_any(), "channel")?),
            None => None,
        };
        let mut made = None;
        let context = self.clone();
        let inserted = self.cqs.insert(|id| {
            let cq = SoftCq::new(context, id, cqe, channel);
            let weak = Arc::downgrade(&cq);
            made = Some(cq);
            Arc::new(weak)
        });
        match (inserted, made) {
            (Some(_), Some(cq)) => Ok(cq),
            _ => Err(Error::Exhausted { what: "completion queues", limit: u64::from(MAX_CQ) }),
        }
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.events.queue.fd()
    }

    fn next_async_event(&self) -> Result<Option<AsyncEvent>> {
        while let Some(event) = self.events.queue.pop() {
            // An event for something that its owner let go of is of no use to anybody.
            let event = match event {
                RawEvent::Qp(kind, qpn) => {
                    let qp = self.qps.lock().get(&qpn).and_then(Weak::upgrade);
                    qp.map(|qp| AsyncEvent::Qp(kind, Qp::from_ops(qp)))
                }
                RawEvent::Cq(kind, id) => {
                    let cq = self.cqs.get(id).as_ref().and_then(|cq| cq.upgrade());
                    cq.map(|cq| AsyncEvent::Cq(kind, Cq::from_ops(cq)))
                }
                RawEvent::Srq(kind, id) => {
                    let srq = self.srqs.get(id).as_ref().and_then(|srq| srq.upgrade());
                    srq.map(|srq| AsyncEvent::Srq(kind, Srq::from_ops(srq)))
                }
                RawEvent::Port(kind) => Some(AsyncEvent::Port(kind, 1)),
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.engine.counters.snapshot();
        counters.extend([
            ("queue_pairs", u64::from(self.engine.qp_count())),
            ("memory_regions", u64::from(self.engine.mrs.len())),
            ("completion_queues", u64::from(self.cqs.len())),
            ("shared_receive_queues", u64::from(self.srqs.len())),
            ("protection_domains", u64::from(self.pds.load(Ordering::Relaxed))),
            ("address_handles", u64::from(self.ahs.load(Ordering::Relaxed))),
            ("timers", self.engine.timer_count() as u64),
            ("bytes_in_flight", self.bytes_in_flight()),
            ("lost_async_events", self.events.lost.load(Ordering::Relaxed)),
        ]);
        counters.extend(self.port.counters());
        counters
    }
}

/// Whether an address means something else on each interface.
fn needs_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local() || ip.is_multicast())
}
