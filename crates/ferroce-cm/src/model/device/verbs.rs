//! The device itself.

use super::{Host, LOCAL, REMOTE};
use crate::proto::Address;
use ferroce_verbs::provider::{
    AhOps, CompChannelOps, ContextBase, ContextOps, CqOps, Device, GsiOps, MrOps, PdOps, QpOps, SrqOps,
};
use ferroce_verbs::{
    Access, AhAttr, AsyncEvent, Context, Cq, DeviceAttr, DeviceInfo, Gid, GidEntry, MAD_LEN, MadHandler, Mtu, PortAttr,
    PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, Region, Result, SendWr, ServiceBinding, SrqInitAttr,
    WorkCompletion, check_transition,
};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};

impl Device for Host {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "model".into(), provider: "model", node_guid: 1 }
    }

    fn open(&self) -> Result<Context> {
        Ok(Context::from_ops(Arc::new(Opened(self.clone(), ContextBase::default()))))
    }
}

struct Opened(Host, ContextBase);

struct Domain(Arc<Opened>);

struct QueuePair {
    host: Host,
    qp_type: QpType,
    number: u32,
    state: Mutex<QpState>,
    /// It is in the middle of a transition.
    busy: Mutex<bool>,
}

const UNUSED: &str = "connection management does not use it";

impl ContextOps for Opened {
    fn info(&self) -> DeviceInfo {
        Device::info(&self.0)
    }
    fn base(&self) -> &ContextBase {
        &self.1
    }
    fn query_device(&self) -> Result<DeviceAttr> {
        unreachable!("{UNUSED}")
    }
    fn query_port(&self, _: u8) -> Result<PortAttr> {
        unreachable!("{UNUSED}")
    }
    fn gid_table(&self, _: u8) -> Result<Vec<GidEntry>> {
        let gid = Gid::from(LOCAL);
        Ok(vec![GidEntry { index: 0, gid, netdev: String::new(), ifindex: 1, mtu: Mtu::Mtu1024, loopback: false }])
    }
    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>> {
        Ok(Arc::new(Domain(self)))
    }
    fn create_comp_channel(self: Arc<Self>) -> Result<Arc<dyn CompChannelOps>> {
        unreachable!("{UNUSED}")
    }
    fn create_cq(self: Arc<Self>, _: u32, _: Option<Arc<dyn CompChannelOps>>) -> Result<Arc<dyn CqOps>> {
        Ok(Arc::new(NoCompletions))
    }
    fn async_fd(&self) -> BorrowedFd<'_> {
        unreachable!("{UNUSED}")
    }
    fn next_async_event(&self) -> Result<Option<AsyncEvent>> {
        unreachable!("{UNUSED}")
    }
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    fn gsi(self: Arc<Self>) -> Option<Arc<dyn GsiOps>> {
        Some(Arc::new(self.0.clone()))
    }
}

impl GsiOps for Host {
    fn set_handler(&self, handler: Weak<dyn MadHandler>) -> Result<()> {
        self.state().handler = Some(handler);
        Ok(())
    }
    fn send(&self, _: &dyn AhOps, mad: &[u8; MAD_LEN]) -> Result<()> {
        self.pass();
        let mut state = self.state();
        let from = Address { local: REMOTE.into(), remote: LOCAL.into(), scope_id: 0 };
        let now = state.now;
        state.peer.handle_mad(now, &from, mad);
        state.settle();
        Ok(())
    }
    fn bind_service(&self, binding: ServiceBinding) -> Result<()> {
        self.pass();
        assert!(self.state().services.insert(binding));
        Ok(())
    }
    fn release_service(&self, binding: ServiceBinding) {
        self.pass();
        assert!(self.state().services.remove(&binding), "released twice");
    }
    fn comm_id_prefix(&self) -> u8 {
        1
    }
    fn now(&self) -> u64 {
        self.note();
        self.state().now
    }
    fn wake_at(&self, deadline: u64) {
        let mut state = self.state();
        state.wake_at = state.wake_at.min(deadline);
    }
}

impl PdOps for Domain {
    fn reg_mr(self: Arc<Self>, _: Region, _: Access) -> Result<Arc<dyn MrOps>> {
        unreachable!("{UNUSED}")
    }
    fn create_ah(self: Arc<Self>, attr: &AhAttr) -> Result<Arc<dyn AhOps>> {
        Ok(Arc::new(Handle(*attr)))
    }
    fn create_ah_blocks(&self) -> bool {
        false
    }
    fn create_srq(self: Arc<Self>, _: &SrqInitAttr) -> Result<Arc<dyn SrqOps>> {
        unreachable!("{UNUSED}")
    }
    fn create_qp(self: Arc<Self>, attr: &QpInitAttr) -> Result<Arc<dyn QpOps>> {
        let host = self.0.0.clone();
        let number = {
            let mut state = host.state();
            state.qps += 1;
            state.next_qpn += 1;
            state.next_qpn
        };
        let (state, busy) = (Mutex::new(QpState::Reset), Mutex::new(false));
        Ok(Arc::new(QueuePair { host, qp_type: attr.qp_type, number, state, busy }))
    }
    fn context(&self) -> Arc<dyn ContextOps> {
        self.0.clone()
    }
}

struct Handle(AhAttr);

impl AhOps for Handle {
    fn attr(&self) -> &AhAttr {
        &self.0
    }
}

struct NoCompletions;

impl CqOps for NoCompletions {
    fn poll(&self, _: &mut [WorkCompletion]) -> Result<usize> {
        Ok(0)
    }
    fn req_notify(&self, _: bool) -> Result<()> {
        Ok(())
    }
    fn cqe(&self) -> u32 {
        1
    }
}

pub(in crate::model) fn cq() -> Cq {
    Cq::from_ops(Arc::new(NoCompletions))
}

impl QpOps for QueuePair {
    fn qp_num(&self) -> u32 {
        self.number
    }
    fn qp_type(&self) -> QpType {
        self.qp_type
    }
    fn cap(&self) -> QpCap {
        QpCap::default()
    }
    fn state(&self) -> QpState {
        *self.state.lock().unwrap()
    }
    fn modify(&self, attr: &QpAttr) -> Result<()> {
        let before = std::mem::replace(&mut *self.busy.lock().unwrap(), true);
        assert!(!before, "two transitions at once");
        self.host.state().transitions += 1;
        // On a NIC it takes long.
        self.host.pass();
        let next = if attr.state == Some(QpState::Rtr) && self.host.state().refuses_rtr {
            Err(ferroce_verbs::Error::invalid("qp_state", "the device refuses"))
        } else {
            check_transition(self.qp_type, self.state(), attr)
        };
        if let Ok(next) = next {
            *self.state.lock().unwrap() = next;
            if let Some(psn) = attr.rq_psn {
                self.host.state().expected.insert(self.number, psn);
            }
        }
        self.host.pass();
        self.host.state().transitions -= 1;
        *self.busy.lock().unwrap() = false;
        next.map(drop)
    }
    fn query(&self) -> Result<QpAttr> {
        unreachable!("{UNUSED}")
    }
    fn post_send(&self, _: &[SendWr<'_>]) -> Result<(), PostError> {
        unreachable!("{UNUSED}")
    }
    fn post_recv(&self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        unreachable!("{UNUSED}")
    }
    fn attach_mcast(&self, gid: Gid) -> Result<()> {
        self.host.pass();
        assert!(self.host.state().groups.insert((self.number, gid)), "attached twice");
        self.host.pass();
        Ok(())
    }
    fn detach_mcast(&self, gid: Gid) -> Result<()> {
        self.host.pass();
        assert!(self.host.state().groups.remove(&(self.number, gid)), "detached twice");
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.host.state().qps -= 1;
    }
}
