use crate::engine::tx::{Av, To};
use ferroce_verbs::{Access, AhAttr, Mtu, QpAttr, QpState};
use std::sync::Arc;

/// What a queue pair was told by `modify`, as the protocol needs it.
#[derive(Clone, Debug)]
pub(crate) struct Conn {
    pub(crate) state: QpState,
    pub(crate) access: Access,
    pub(crate) qkey: u32,
    pub(crate) av: Option<Arc<Av>>,
    pub(crate) ah_attr: Option<AhAttr>,
    pub(crate) mtu: Mtu,
    pub(crate) dest_qpn: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) pkey_index: u16,
    pub(crate) port_num: u8,
    pub(crate) sqd_notify: bool,
}

impl Conn {
    pub(crate) fn new() -> Self {
        Self {
            state: QpState::Reset,
            access: Access::empty(),
            qkey: 0,
            av: None,
            ah_attr: None,
            mtu: Mtu::Mtu4096,
            dest_qpn: 0,
            rq_psn: 0,
            sq_psn: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            pkey_index: 0,
            port_num: 0,
            sqd_notify: false,
        }
    }

    /// Takes over what `attr` sets. `av` is its resolved address.
    pub(crate) fn apply(&mut self, attr: &QpAttr, av: Option<Arc<Av>>) {
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut self.access, attr.access);
        set(&mut self.qkey, attr.qkey);
        set(&mut self.mtu, attr.path_mtu);
        set(&mut self.dest_qpn, attr.dest_qpn);
        set(&mut self.rq_psn, attr.rq_psn);
        set(&mut self.sq_psn, attr.sq_psn);
        set(&mut self.timeout, attr.timeout);
        set(&mut self.retry_cnt, attr.retry_cnt);
        set(&mut self.rnr_retry, attr.rnr_retry);
        set(&mut self.min_rnr_timer, attr.min_rnr_timer);
        set(&mut self.max_rd_atomic, attr.max_rd_atomic);
        set(&mut self.max_dest_rd_atomic, attr.max_dest_rd_atomic);
        set(&mut self.pkey_index, attr.pkey_index);
        set(&mut self.port_num, attr.port_num);
        if attr.ah_attr.is_some() {
            self.ah_attr = attr.ah_attr;
            self.av = av;
        }
    }

    /// Everything that is known, for `query`.
    pub(crate) fn query(&self) -> QpAttr {
        QpAttr {
            state: Some(self.state),
            cur_state: Some(self.state),
            en_sqd_async_notify: None,
            access: Some(self.access),
            pkey_index: Some(self.pkey_index),
            port_num: Some(self.port_num),
            qkey: Some(self.qkey),
            ah_attr: self.ah_attr,
            path_mtu: Some(self.mtu),
            timeout: Some(self.timeout),
            retry_cnt: Some(self.retry_cnt),
            rnr_retry: Some(self.rnr_retry),
            rq_psn: Some(self.rq_psn),
            sq_psn: Some(self.sq_psn),
            max_rd_atomic: Some(self.max_rd_atomic),
            max_dest_rd_atomic: Some(self.max_dest_rd_atomic),
            min_rnr_timer: Some(self.min_rnr_timer),
            dest_qpn: Some(self.dest_qpn),
        }
    }

    /// Where packets to the connected peer go.
    pub(crate) fn peer(&self) -> Option<To<'_>> {
        self.av.as_deref().map(|av| To { av, dest_qpn: self.dest_qpn, datagram: false })
    }

    /// Whether requests are taken.
    pub(crate) fn receives(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Whether requests are sent and their responses taken.
    pub(crate) fn sends(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }
}
