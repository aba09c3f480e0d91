use super::live::Kind;
use super::{RawContext, RawCq, RawPd, RawSrq};
use crate::errno;
use ferroce_abi::types::{ibv_gid, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr};
use ferroce_verbs::{Error, Result};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// What a queue pair is made from.
pub(crate) struct QpParts {
    pub(crate) pd: Arc<RawPd>,
    pub(crate) send_cq: Arc<RawCq>,
    pub(crate) recv_cq: Arc<RawCq>,
    pub(crate) srq: Option<Arc<RawSrq>>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: bool,
}

/// A queue pair.
pub(crate) struct RawQp {
    pd: Arc<RawPd>,
    _send_cq: Arc<RawCq>,
    _recv_cq: Arc<RawCq>,
    _srq: Option<Arc<RawSrq>>,
    qp: NonNull<ibv_qp>,
    cap: ibv_qp_cap,
}

// SAFETY: the library's verbs may be called from any thread with any object.
unsafe impl Send for RawQp {}
// SAFETY: as above.
unsafe impl Sync for RawQp {}

impl RawQp {
    pub(crate) fn new(parts: QpParts) -> Result<Self> {
        let QpParts { pd, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } = parts;
        // A provider takes another one's queues for its own, and writes beyond them.
        for (what, cq) in [("send_cq", &send_cq), ("recv_cq", &recv_cq)] {
            if !cq.is_of(pd.context()) {
                return Err(Error::invalid(what, "it belongs to another device, or to another opening of this one"));
            }
        }
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.as_ptr(),
            recv_cq: recv_cq.as_ptr(),
            srq: srq.as_ref().map_or(null_mut(), |srq| srq.as_ptr()),
            cap,
            qp_type,
            sq_sig_all: i32::from(sq_sig_all),
        };
        // SAFETY: the domain and the queues belong to one context and are alive, and are held; `init` is read and written by the call only.
        let make = || unsafe { (pd.library().create_qp)(pd.as_ptr(), &mut init) };
        let qp = super::made(pd.context(), Kind::Qp, make)?;
        // The library has put in what it really has.
        Ok(Self { pd, _send_cq: send_cq, _recv_cq: recv_cq, _srq: srq, qp, cap: init.cap })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_qp {
        self.qp.as_ptr()
    }

    /// What events name it by.
    pub(crate) fn id(&self) -> usize {
        self.as_ptr() as usize
    }

    pub(crate) fn context(&self) -> &RawContext {
        self.pd.context()
    }

    pub(crate) fn qp_num(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.as_ptr()).qp_num }
    }

    pub(crate) fn cap(&self) -> ibv_qp_cap {
        self.cap
    }

    /// May block while the neighbour is asked for its address.
    pub(crate) fn modify(&self, mut attr: ibv_qp_attr, mask: u32) -> Result<(), i32> {
        // SAFETY: the queue pair is alive, and `attr` is only read.
        let number = unsafe { (self.pd.library().modify_qp)(self.as_ptr(), &mut attr, mask as i32) };
        if number == 0 { Ok(()) } else { Err(errno::number(number)) }
    }

    pub(crate) fn query(&self, mask: u32) -> Result<ibv_qp_attr> {
        let mut attr = ibv_qp_attr::default();
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap: ibv_qp_cap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        // SAFETY: the queue pair is alive; the other two are what it writes to.
        let number = unsafe { (self.pd.library().query_qp)(self.as_ptr(), &mut attr, mask as i32, &mut init) };
        self.pd.context().check("querying a queue pair", number)?;
        Ok(attr)
    }

    pub(crate) fn attach_mcast(&self, gid: ibv_gid) -> Result<()> {
        // SAFETY: the queue pair is alive, and `gid` is only read.
        let number = unsafe { (self.pd.library().attach_mcast)(self.as_ptr(), &gid, 0) };
        self.pd.context().check("joining a multicast group", number)
    }

    pub(crate) fn detach_mcast(&self, gid: ibv_gid) -> Result<()> {
        // SAFETY: as above.
        let number = unsafe { (self.pd.library().detach_mcast)(self.as_ptr(), &gid, 0) };
        self.pd.context().check("leaving a multicast group", number)
    }
}

impl Drop for RawQp {
    fn drop(&mut self) {
        // SAFETY: it is alive, and is destroyed once. It waits until events that were read are acknowledged, which whoever reads one does
        // at once.
        let number = unsafe { (self.pd.library().destroy_qp)(self.as_ptr()) };
        super::destroyed(self.pd.context(), Kind::Qp, number);
    }
}
