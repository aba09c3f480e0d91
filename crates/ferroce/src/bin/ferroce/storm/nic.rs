//! A device whose queue pairs take as long to create, move and destroy as on a NIC: a layer around another device.
//!
//! The times are those of public reports: creating a queue pair takes half a millisecond, and once in a hundred times 10 to 20;
//! destroying one takes 1 to 2 ms, each change of state 0.1 to 0.2 ms. The calling thread sleeps: a NIC's firmware works for it, and
//! the processor is free.

use ferroce::provider::{AhOps, CompChannelOps, ContextBase, ContextOps, CqOps, GsiOps, MrOps, PdOps, QpOps, SrqOps};
use ferroce::{
    Access, AddressWatcher, AhAttr, AsyncEvent, Context, DeviceAttr, DeviceInfo, Gid, GidEntry, PortAttr, PostError,
    QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, Region, Result, SendWr, SrqInitAttr,
};
use rand::Rng;
use std::cell::Cell;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const CREATE: Range<u64> = 450..550;
const CREATE_OUTLIER: Range<u64> = 10_000..20_000;
const DESTROY: Range<u64> = 1_000..2_000;
const MODIFY: Range<u64> = 100..200;
/// A thread that was kept from running does not catch up with more than this.
const MAX_DEBT: Duration = Duration::from_millis(1);

/// The same device with a NIC's times, `factor` times as long.
pub(super) fn slow(context: &Context, factor: u32) -> Context {
    Context::from_ops(Arc::new(SlowContext(context.ops().clone(), factor)))
}

thread_local! {
    /// By how much this thread has slept too long so far: sleeping is less precise than a NIC.
    static DEBT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Sleeps for some time of that range, so that the mean is right.
fn take(micros: Range<u64>, factor: u32) {
    let wanted = Duration::from_micros(rand::rng().random_range(micros)) * factor;
    let (begun, debt) = (Instant::now(), DEBT.get());
    if let Some(left) = wanted.checked_sub(debt) {
        std::thread::sleep(left);
    }
    DEBT.set((debt + begun.elapsed()).saturating_sub(wanted).min(MAX_DEBT * factor));
}

/// What it is around, and its factor.
struct SlowContext(Arc<dyn ContextOps>, u32);

impl ContextOps for SlowContext {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn base(&self) -> &ContextBase {
        self.0.base()
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        self.0.query_device()
    }

    fn query_port(&self, port: u8) -> Result<PortAttr> {
        self.0.query_port(port)
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>> {
        self.0.gid_table(port)
    }

    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>> {
        let pd = self.0.clone().alloc_pd()?;
        Ok(Arc::new(SlowPd { pd, context: self }))
    }

    fn create_comp_channel(self: Arc<Self>) -> Result<Arc<dyn CompChannelOps>> {
        self.0.clone().create_comp_channel()
    }

    fn create_cq(self: Arc<Self>, cqe: u32, channel: Option<Arc<dyn CompChannelOps>>) -> Result<Arc<dyn CqOps>> {
        self.0.clone().create_cq(cqe, channel)
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.0.async_fd()
    }

    fn next_async_event(&self) -> Result<Option<AsyncEvent>> {
        self.0.next_async_event()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.0.counters()
    }

    fn watch_addresses(&self, watcher: Weak<dyn AddressWatcher>) -> Result<()> {
        self.0.watch_addresses(watcher)
    }

    fn gsi(self: Arc<Self>) -> Option<Arc<dyn GsiOps>> {
        self.0.clone().gsi()
    }
}

struct SlowPd {
    pd: Arc<dyn PdOps>,
    context: Arc<SlowContext>,
}

impl PdOps for SlowPd {
    fn reg_mr(self: Arc<Self>, region: Region, access: Access) -> Result<Arc<dyn MrOps>> {
        self.pd.clone().reg_mr(region, access)
    }

    fn create_ah(self: Arc<Self>, attr: &AhAttr) -> Result<Arc<dyn AhOps>> {
        self.pd.clone().create_ah(attr)
    }

    fn create_ah_blocks(&self) -> bool {
        self.pd.create_ah_blocks()
    }

    fn create_srq(self: Arc<Self>, attr: &SrqInitAttr) -> Result<Arc<dyn SrqOps>> {
        self.pd.clone().create_srq(attr)
    }

    fn create_qp(self: Arc<Self>, attr: &QpInitAttr) -> Result<Arc<dyn QpOps>> {
        let outlier = rand::rng().random_ratio(1, 100);
        let factor = self.context.1;
        take(if outlier { CREATE_OUTLIER } else { CREATE }, factor);
        Ok(Arc::new(SlowQp(self.pd.clone().create_qp(attr)?, factor)))
    }

    fn context(&self) -> Arc<dyn ContextOps> {
        self.context.clone()
    }
}

/// What it is around, and its factor.
struct SlowQp(Arc<dyn QpOps>, u32);

impl Drop for SlowQp {
    fn drop(&mut self) {
        take(DESTROY, self.1);
    }
}

impl QpOps for SlowQp {
    fn qp_num(&self) -> u32 {
        self.0.qp_num()
    }

    fn qp_type(&self) -> QpType {
        self.0.qp_type()
    }

    fn cap(&self) -> QpCap {
        self.0.cap()
    }

    fn state(&self) -> QpState {
        self.0.state()
    }

    fn modify(&self, attr: &QpAttr) -> Result<()> {
        take(MODIFY, self.1);
        self.0.modify(attr)
    }

    fn query(&self) -> Result<QpAttr> {
        self.0.query()
    }

    fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.0.post_send(wrs)
    }

    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.0.post_recv(wrs)
    }

    fn attach_mcast(&self, gid: Gid) -> Result<()> {
        self.0.attach_mcast(gid)
    }

    fn detach_mcast(&self, gid: Gid) -> Result<()> {
        self.0.detach_mcast(gid)
    }
}
