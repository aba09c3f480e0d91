//! A device that has nothing but protection domains and address handles, and neighbours whose MACs the test sets.

use ferroce_verbs::provider::{AhOps, CompChannelOps, ContextBase, ContextOps, CqOps, MrOps, PdOps, QpOps, SrqOps};
use ferroce_verbs::{
    Access, AddressChange, AddressWatcher, AhAttr, AsyncEvent, Context, DeviceAttr, DeviceInfo, Error, Gid, GidEntry,
    LinkLayer, PortAttr, QpInitAttr, Region, Result, SrqInitAttr,
};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

pub(crate) type Mac = [u8; 6];

pub(crate) const IFINDEX: u32 = 7;

/// The device, as a test sees it.
#[derive(Clone, Default)]
pub(crate) struct Device(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Address handles made so far, and those that exist.
    made: AtomicU64,
    live: AtomicU64,
    contexts: AtomicU64,
    destroying_fails: AtomicBool,
    refuses_watch: AtomicBool,
    failure: Mutex<Option<fn() -> Error>>,
    macs: Mutex<HashMap<IpAddr, Mac>>,
    router: Mutex<Option<IpAddr>>,
    watcher: Mutex<Option<Weak<dyn AddressWatcher>>>,
}

impl Device {
    pub(crate) fn open(&self) -> Context {
        self.0.contexts.fetch_add(1, SeqCst);
        Context::from_ops(Arc::new(Opened { device: self.clone(), base: ContextBase::default() }))
    }

    pub(crate) fn made(&self) -> u64 {
        self.0.made.load(SeqCst)
    }

    pub(crate) fn live(&self) -> u64 {
        self.0.live.load(SeqCst)
    }

    pub(crate) fn contexts(&self) -> u64 {
        self.0.contexts.load(SeqCst)
    }

    pub(crate) fn fail_to_destroy(&self) {
        self.0.destroying_fails.store(true, SeqCst);
    }

    pub(crate) fn refuse_to_watch(&self) {
        self.0.refuses_watch.store(true, SeqCst);
    }

    /// From now on address handles fail so, or do not.
    pub(crate) fn fail(&self, failure: Option<fn() -> Error>) {
        *self.0.failure.lock().unwrap() = failure;
    }

    /// Everything but the neighbours is behind this router.
    pub(crate) fn set_router(&self, router: IpAddr) {
        *self.0.router.lock().unwrap() = Some(router);
    }

    /// The neighbour has this MAC from now on; nobody is told.
    pub(crate) fn set_mac(&self, ip: IpAddr, mac: Mac) {
        self.0.macs.lock().unwrap().insert(ip, mac);
    }

    /// The neighbour has this MAC from now on, and whoever watches is told.
    pub(crate) fn move_to(&self, ip: IpAddr, mac: Mac) {
        self.set_mac(ip, mac);
        self.tell(&AddressChange::Neighbour { ifindex: IFINDEX, ip, mac: Some(mac) });
    }

    pub(crate) fn tell(&self, change: &AddressChange) {
        let watcher = self.0.watcher.lock().unwrap().as_ref().and_then(Weak::upgrade);
        watcher.expect("somebody watches").changed(change);
    }
}

struct Opened {
    device: Device,
    base: ContextBase,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.device.0.contexts.fetch_sub(1, SeqCst);
    }
}

const UNUSED: &str = "the address-handle cache has no use for this";

impl ContextOps for Opened {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "test0".into(), provider: "test", node_guid: 1 }
    }
    fn base(&self) -> &ContextBase {
        &self.base
    }
    fn query_device(&self) -> Result<DeviceAttr> {
        unreachable!("{UNUSED}")
    }
    fn query_port(&self, _: u8) -> Result<PortAttr> {
        unreachable!("{UNUSED}")
    }
    fn gid_table(&self, _: u8) -> Result<Vec<GidEntry>> {
        unreachable!("{UNUSED}")
    }
    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>> {
        Ok(Arc::new(Domain(self)))
    }
    fn create_comp_channel(self: Arc<Self>) -> Result<Arc<dyn CompChannelOps>> {
        unreachable!("{UNUSED}")
    }
    fn create_cq(self: Arc<Self>, _: u32, _: Option<Arc<dyn CompChannelOps>>) -> Result<Arc<dyn CqOps>> {
        unreachable!("{UNUSED}")
    }
    fn async_fd(&self) -> BorrowedFd<'_> {
        unreachable!("{UNUSED}")
    }
    fn next_async_event(&self) -> Result<Option<AsyncEvent>> {
        unreachable!("{UNUSED}")
    }
    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("address_handles", self.device.live())]
    }
    fn watch_addresses(&self, watcher: Weak<dyn AddressWatcher>) -> Result<()> {
        if self.device.0.refuses_watch.load(SeqCst) {
            return Err(Error::Unsupported { what: "watching addresses", by: "this test" });
        }
        *self.device.0.watcher.lock().unwrap() = Some(watcher);
        Ok(())
    }
}

struct Domain(Arc<Opened>);

impl PdOps for Domain {
    fn reg_mr(self: Arc<Self>, _: Region, _: Access) -> Result<Arc<dyn MrOps>> {
        unreachable!("{UNUSED}")
    }
    fn create_ah(self: Arc<Self>, attr: &AhAttr) -> Result<Arc<dyn AhOps>> {
        let device = &self.0.device.0;
        if let Some(failure) = *device.failure.lock().unwrap() {
            return Err(failure());
        }
        let ip = attr.grh.ok_or_else(|| Error::invalid("ah_attr", "it has no GRH"))?.dgid.ip();
        let macs = device.macs.lock().unwrap();
        let next_hop = match *device.router.lock().unwrap() {
            Some(router) if !macs.contains_key(&ip) => router,
            _ => ip,
        };
        let mac = macs.get(&next_hop).copied();
        device.made.fetch_add(1, SeqCst);
        device.live.fetch_add(1, SeqCst);
        let link = LinkLayer { ifindex: IFINDEX, next_hop, mac };
        drop(macs);
        Ok(Arc::new(Handle { attr: *attr, link, context: self.0.clone() }))
    }
    fn create_srq(self: Arc<Self>, _: &SrqInitAttr) -> Result<Arc<dyn SrqOps>> {
        unreachable!("{UNUSED}")
    }
    fn create_qp(self: Arc<Self>, _: &QpInitAttr) -> Result<Arc<dyn QpOps>> {
        unreachable!("{UNUSED}")
    }
    fn context(&self) -> Arc<dyn ContextOps> {
        self.0.clone()
    }
}

struct Handle {
    attr: AhAttr,
    link: LinkLayer,
    context: Arc<Opened>,
}

impl AhOps for Handle {
    fn attr(&self) -> &AhAttr {
        &self.attr
    }
    fn link_layer(&self) -> Option<LinkLayer> {
        Some(self.link)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let device = &self.context.device.0;
        device.live.fetch_sub(1, SeqCst);
        if device.destroying_fails.load(SeqCst) {
            let source = std::io::Error::from_raw_os_error(16);
            self.context.base.report_ah_destroy_failure(&Error::os("ibv_destroy_ah", source));
        }
    }
}

/// Peer number `n`.
pub(crate) fn peer(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n))
}

/// The address of peer number `n`.
pub(crate) fn to(n: u32) -> AhAttr {
    AhAttr::roce(Gid::from(peer(n)), 0)
}

pub(crate) const MAC_A: Mac = [2, 0, 0, 0, 0, 0xa];
pub(crate) const MAC_B: Mac = [2, 0, 0, 0, 0, 0xb];
