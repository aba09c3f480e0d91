use crate::channel::RdmaChannel;
use crate::cq::RdmaCq;
use crate::drain::Drains;
use crate::events::Kept;
use crate::flags::Flags;
use crate::pd::RdmaPd;
use crate::port::is_ethernet;
use crate::registry::Registry;
use crate::sys::RawContext;
use crate::watch::Watch;
use crate::{convert, drain, events, own};
use ferroce_abi::types::{ibv_device_attr, ibv_port_attr};
use ferroce_verbs::provider::{CompChannelOps, ContextBase, ContextOps, CqOps, PdOps};
use ferroce_verbs::{
    AddressWatcher, AhAttr, AsyncEvent, DeviceAttr, DeviceInfo, Error, GidEntry, LinkLayer, PortAttr, Result,
};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// An open device.
pub(crate) struct RdmaContext {
    pub(crate) raw: Arc<RawContext>,
    pub(crate) registry: Registry,
    pub(crate) flags: Arc<Flags>,
    pub(crate) drains: Drains,
    pub(crate) kept: Kept,
    /// What it can do, as it said when it was opened.
    pub(crate) attr: ibv_device_attr,
    /// The ports as they were when it was opened: for what does not change.
    ports: Vec<ibv_port_attr>,
    watch: Mutex<Option<Watch>>,
    fw_ver: String,
    info: DeviceInfo,
    base: ContextBase,
    max_inline_data: OnceLock<u32>,
    next_vector: AtomicU32,
}

impl RdmaContext {
    pub(crate) fn new(info: DeviceInfo, raw: RawContext) -> Result<Arc<Self>> {
        let (attr, fw_ver) = raw.query_device()?;
        let info = DeviceInfo { node_guid: u64::from_be(attr.node_guid), ..info };
        let ports = (1..=attr.phys_port_cnt).map(|port| raw.query_port(port)).collect::<Result<_>>()?;
        let flags = Arc::<Flags>::default();
        let context = Arc::new(Self {
            kept: Kept::new(raw.async_fd())?,
            drains: Drains::new(flags.clone()),
            flags,
            ports,
            watch: Mutex::default(),
            raw: Arc::new(raw),
            registry: Registry::default(),
            attr,
            fw_ver,
            info,
            base: ContextBase::default(),
            max_inline_data: OnceLock::new(),
            next_vector: AtomicU32::new(0),
        });
        context.drains.events_from(events::of(&context));
        Ok(context)
    }

    fn port(&self, number: u8) -> Option<&ibv_port_attr> {
        self.ports.get(usize::from(number).wrapping_sub(1))
    }

    /// How packets to `attr` leave, as the kernel has it at this moment; `None` if it is no IP address or does not leave this machine.
    pub(crate) fn link_layer(&self, attr: &AhAttr) -> Option<LinkLayer> {
        let grh = attr.grh.filter(|grh| !grh.dgid.is_multicast())?;
        self.port(attr.port_num).filter(|port| is_ethernet(port))?;
        let remote = grh.dgid.ip();
        // A link-local address says nothing without its interface.
        let scope = match remote {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                let table = self.read_gid_table(attr.port_num).unwrap_or_default();
                let Some(entry) = table.iter().find(|entry| entry.index == grh.sgid_index) else {
                    return Some(LinkLayer::UNKNOWN);
                };
                entry.ifindex
            }
            _ => 0,
        };
        let link = ferroce_addr::link_layer(remote, scope);
        link.inspect_err(
            |error| tracing::debug!(%error, to = %remote, "the neighbour cannot be looked up over netlink"),
        )
        .unwrap_or(Some(LinkLayer::UNKNOWN))
    }

    /// Not every device refuses a P_Key that it does not have.
    pub(crate) fn check_pkey(&self, port: u8, index: u16) -> Result<()> {
        let length = self.port(port).map_or(0, |port| port.pkey_tbl_len);
        if index < length {
            return Ok(());
        }
        Err(Error::invalid("pkey_index", format!("{index} is not in the P_Key table of {length} entries")))
    }

    /// Completion queues take turns.
    pub(crate) fn next_vector(&self) -> u32 {
        self.next_vector.fetch_add(1, Ordering::Relaxed) % self.raw.comp_vectors()
    }

    /// Places for markers in each completion queue, beyond those that its owner asks for.
    pub(crate) fn marker_room(&self) -> u32 {
        drain::ROOM.min(limit(self.attr.max_cqe) / 2)
    }

    /// The most entries of a completion queue that can be asked for.
    pub(crate) fn max_cqe(&self) -> u32 {
        limit(self.attr.max_cqe) - self.marker_room()
    }

    /// The most bytes of inline data. Found out at first need; 0, to be tried again, if it cannot be found out at the moment.
    fn max_inline_data(&self) -> u32 {
        if let Some(&most) = self.max_inline_data.get() {
            return most;
        }
        match crate::pd::most_inline(&self.raw) {
            Ok(most) => *self.max_inline_data.get_or_init(|| most),
            Err(error) => {
                tracing::debug!(%error, "how much inline data the device takes cannot be found out");
                0
            }
        }
    }
}

/// A limit that C has as a signed number.
pub(crate) fn limit(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

impl ContextOps for RdmaContext {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn base(&self) -> &ContextBase {
        &self.base
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        let attr = &self.attr;
        let byte = |number: i32| u8::try_from(number.clamp(0, 255)).unwrap_or(u8::MAX);
        Ok(DeviceAttr {
            fw_ver: self.fw_ver.clone(),
            node_guid: self.info.node_guid,
            max_mr_size: attr.max_mr_size,
            max_qp: limit(attr.max_qp),
            max_qp_wr: limit(attr.max_qp_wr),
            max_sge: limit(attr.max_sge),
            max_cq: limit(attr.max_cq),
            max_cqe: self.max_cqe(),
            max_mr: limit(attr.max_mr),
            max_pd: limit(attr.max_pd),
            max_qp_rd_atom: byte(attr.max_qp_rd_atom),
            max_qp_init_rd_atom: byte(attr.max_qp_init_rd_atom),
            atomic_cap: convert::atomic_cap(attr.atomic_cap),
            max_srq: limit(attr.max_srq),
            max_srq_wr: limit(attr.max_srq_wr),
            max_inline_data: self.max_inline_data(),
            max_mcast_grp: limit(attr.max_mcast_grp),
            max_ah: limit(attr.max_ah),
            phys_port_cnt: attr.phys_port_cnt,
        })
    }

    fn query_port(&self, port: u8) -> Result<PortAttr> {
        self.port_attr(port)
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>> {
        self.read_gid_table(port)
    }

    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>> {
        Ok(Arc::new(RdmaPd::new(self)?))
    }

    fn create_comp_channel(self: Arc<Self>) -> Result<Arc<dyn CompChannelOps>> {
        Ok(Arc::new(RdmaChannel::new(&self.raw)?))
    }

    fn create_cq(self: Arc<Self>, cqe: u32, channel: Option<Arc<dyn CompChannelOps>>) -> Result<Arc<dyn CqOps>> {
        let channel = match channel {
            Some(channel) => Some(own::<RdmaChannel>(channel.into_any(), "channel")?),
            None => None,
        };
        Ok(RdmaCq::new(self, cqe, channel)?)
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.kept.fd()
    }

    fn next_async_event(&self) -> Result<Option<AsyncEvent>> {
        self.next_event()
    }

    fn watch_addresses(&self, watcher: Weak<dyn AddressWatcher>) -> Result<()> {
        if self.watch.lock().as_ref().is_some_and(|watch| watch.replace(watcher.clone())) {
            return Ok(());
        }
        // Opens the device, which takes its time.
        let new = Watch::start(self, watcher.clone())?;
        let mut watch = self.watch.lock();
        // If somebody else was quicker there is one too many, otherwise an old one may have ended; it goes with no lock held.
        let other = match &*watch {
            Some(other) if other.replace(watcher) => Some(new),
            _ => watch.replace(new),
        };
        drop(watch);
        drop(other);
        Ok(())
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = crate::counters::read(&self.info.name, self.attr.phys_port_cnt);
        counters.extend(self.raw.live());
        counters
    }
}
