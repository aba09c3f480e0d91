//! A queue pair that drains, and its markers.

use crate::ah::RdmaAh;
use crate::attr;
use crate::sys::{RawContext, RawQp, RecvList, SendList, Stopped};
use ferroce_verbs::{Ah, RecvWr, SendWr, UdDest};
use std::collections::VecDeque;
use std::sync::Arc;

/// What markers carry. Only completions of queue pairs that are draining are compared with it.
pub(crate) const SEND_MARKER: u64 = 0xfe22_0ce0_0000_0001;
pub(crate) const RECV_MARKER: u64 = 0xfe22_0ce0_0000_0002;

/// A queue pair that nobody holds any more. Dropping it destroys it.
pub(crate) struct Drained {
    qp: Arc<RawQp>,
    /// An address to send the marker of a datagram queue pair to; it goes nowhere.
    ah: Option<Ah>,
    /// What its datagrams hold: see [`crate::sent_to`].
    _sent_to: VecDeque<Ah>,
}

impl Drained {
    pub(crate) fn new(qp: Arc<RawQp>, mut sent_to: VecDeque<Ah>) -> Self {
        let ah = sent_to.pop_back();
        Self { qp, ah, _sent_to: sent_to }
    }

    pub(super) fn context(&self) -> &RawContext {
        self.qp.context()
    }

    pub(super) fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// What events name it by.
    pub(super) fn id(&self) -> usize {
        self.qp.id()
    }

    pub(super) fn to_error(&self) -> Result<(), i32> {
        let (values, mask) = attr::error_state();
        self.qp.modify(values, mask)
    }

    pub(super) fn post_receive(&self) -> Result<(), Stopped> {
        let mut list = RecvList::new();
        list.push(&RecvWr::new(RECV_MARKER, &[]));
        list.post(&self.qp)
    }

    pub(super) fn post_send(&self) -> Result<(), Stopped> {
        let dest = self.ah.as_ref().map(|ah| UdDest { ah, qpn: 0, qkey: 0 });
        let ah = self.ah.as_ref().and_then(|ah| (**ah.ops()).as_any().downcast_ref::<RdmaAh>());
        let mut list = SendList::new();
        list.push(&SendWr { ud: dest, ..SendWr::send(SEND_MARKER, &[]) }, ah.map(|ah| &ah.raw));
        list.post(&self.qp)
    }
}
