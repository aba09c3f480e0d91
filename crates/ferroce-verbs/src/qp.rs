use crate::{Access, AhAttr, Cq, Mtu, Srq};
use bitflags::bitflags;
use std::fmt;
use std::time::Duration;

/// The transport service of a queue pair (`ibv_qp_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

/// The state of a queue pair (IBTA 10.3.1, `ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Just created.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// The send queue drains: what is in flight completes, nothing new starts.
    Sqd,
    /// The send queue failed; receives go on (UC and UD only).
    Sqe,
    /// Everything is flushed.
    Err,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

/// Sizes of a queue pair's queues (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Outstanding sends.
    pub max_send_wr: u32,
    /// Outstanding receives; ignored with an SRQ.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 }
    }
}

/// What a queue pair is created with (`ibv_qp_init_attr`).
#[derive(Clone, Debug)]
pub struct QpInitAttr {
    /// The transport service.
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete.
    pub recv_cq: Cq,
    /// The shared receive queue, if it uses one.
    pub srq: Option<Srq>,
    /// Sizes.
    pub cap: QpCap,
    /// Every send is signaled, whatever its flags say.
    pub sq_sig_all: bool,
}

impl QpInitAttr {
    /// A queue pair of `qp_type` whose sends and receives complete on `cq`, with default sizes.
    pub fn new(qp_type: QpType, cq: &Cq) -> Self {
        Self { qp_type, send_cq: cq.clone(), recv_cq: cq.clone(), srq: None, cap: QpCap::default(), sq_sig_all: false }
    }
}

bitflags! {
    /// Which attributes a [`QpAttr`] carries (`ibv_qp_attr_mask`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QpAttrMask: u32 {
        /// `state`
        const STATE = 1;
        /// `cur_state`
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`
        const ACCESS = 1 << 3;
        /// `pkey_index`
        const PKEY_INDEX = 1 << 4;
        /// `port_num`
        const PORT = 1 << 5;
        /// `qkey`
        const QKEY = 1 << 6;
        /// `ah_attr`
        const AV = 1 << 7;
        /// `path_mtu`
        const PATH_MTU = 1 << 8;
        /// `timeout`
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`
        const MAX_RD_ATOMIC = 1 << 13;
        /// `min_rnr_timer`
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `dest_qpn`
        const DEST_QPN = 1 << 20;
    }
}

/// Attributes of a queue pair: those that are `Some` are set by `modify`, and `query` fills in what is known
/// (`ibv_qp_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// The state to go to.
    pub state: Option<QpState>,
    /// The state that the caller believes the queue pair to be in; `modify` fails if it is wrong.
    pub cur_state: Option<QpState>,
    /// Report [`crate::EventType::SqDrained`] when the send queue is drained.
    pub en_sqd_async_notify: Option<bool>,
    /// What the peer may do through this queue pair.
    pub access: Option<Access>,
    /// Index into the P_Key table.
    pub pkey_index: Option<u16>,
    /// The port, from 1.
    pub port_num: Option<u8>,
    /// The Q_Key that incoming datagrams must carry.
    pub qkey: Option<u32>,
    /// The peer's address.
    pub ah_attr: Option<AhAttr>,
    /// The path MTU.
    pub path_mtu: Option<Mtu>,
    /// Local ACK timeout exponent, 0 to 31: 4.096 µs · 2^timeout, 0 for never (IBTA 9.7.6.1.3).
    pub timeout: Option<u8>,
    /// How often a request is resent after a timeout or a sequence error, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// How often a request is resent after a receiver-not-ready answer, 0 to 6; 7 for ever.
    pub rnr_retry: Option<u8>,
    /// First PSN that is expected, 24 bits.
    pub rq_psn: Option<u32>,
    /// First PSN that is sent, 24 bits.
    pub sq_psn: Option<u32>,
    /// Reads and atomics that may be outstanding to the peer.
    pub max_rd_atomic: Option<u8>,
    /// Reads and atomics that the peer may have outstanding to us.
    pub max_dest_rd_atomic: Option<u8>,
    /// The delay that a receiver-not-ready answer asks for, as a code; see [`rnr_timer`].
    pub min_rnr_timer: Option<u8>,
    /// The peer's queue pair number, 24 bits.
    pub dest_qpn: Option<u32>,
}

impl QpAttr {
    /// Attributes that only ask for `state`.
    pub fn to(state: QpState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    /// What RC or UC needs to go from RESET to INIT on port 1.
    pub fn init(access: Access) -> Self {
        Self { pkey_index: Some(0), port_num: Some(1), access: Some(access), ..Self::to(QpState::Init) }
    }

    /// What UD needs to go from RESET to INIT on port 1.
    pub fn init_ud(qkey: u32) -> Self {
        Self { pkey_index: Some(0), port_num: Some(1), qkey: Some(qkey), ..Self::to(QpState::Init) }
    }

    /// What RC needs to go from INIT to RTR.
    ///
    /// The RNR timer is code 12 (0.64 ms): code 0 would be the longest of all, 655 ms.
    pub fn rtr(ah_attr: AhAttr, path_mtu: Mtu, dest_qpn: u32, rq_psn: u32) -> Self {
        Self {
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(12),
            ..Self::rtr_uc(ah_attr, path_mtu, dest_qpn, rq_psn)
        }
    }

    /// What UC needs to go from INIT to RTR.
    pub fn rtr_uc(ah_attr: AhAttr, path_mtu: Mtu, dest_qpn: u32, rq_psn: u32) -> Self {
        Self {
            ah_attr: Some(ah_attr),
            path_mtu: Some(path_mtu),
            dest_qpn: Some(dest_qpn),
            rq_psn: Some(rq_psn),
            ..Self::to(QpState::Rtr)
        }
    }

    /// What RC needs to go from RTR to RTS: a 67 ms local ACK timeout, seven retries, RNR retries for ever.
    pub fn rts(sq_psn: u32) -> Self {
        Self {
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..Self::rts_unreliable(sq_psn)
        }
    }

    /// What UC and UD need to go from RTR to RTS.
    pub fn rts_unreliable(sq_psn: u32) -> Self {
        Self { sq_psn: Some(sq_psn), ..Self::to(QpState::Rts) }
    }

    /// Which attributes are set.
    pub fn mask(&self) -> QpAttrMask {
        let mut mask = QpAttrMask::empty();
        mask.set(QpAttrMask::STATE, self.state.is_some());
        mask.set(QpAttrMask::CUR_STATE, self.cur_state.is_some());
        mask.set(QpAttrMask::EN_SQD_ASYNC_NOTIFY, self.en_sqd_async_notify.is_some());
        mask.set(QpAttrMask::ACCESS, self.access.is_some());
        mask.set(QpAttrMask::PKEY_INDEX, self.pkey_index.is_some());
        mask.set(QpAttrMask::PORT, self.port_num.is_some());
        mask.set(QpAttrMask::QKEY, self.qkey.is_some());
        mask.set(QpAttrMask::AV, self.ah_attr.is_some());
        mask.set(QpAttrMask::PATH_MTU, self.path_mtu.is_some());
        mask.set(QpAttrMask::TIMEOUT, self.timeout.is_some());
        mask.set(QpAttrMask::RETRY_CNT, self.retry_cnt.is_some());
        mask.set(QpAttrMask::RNR_RETRY, self.rnr_retry.is_some());
        mask.set(QpAttrMask::RQ_PSN, self.rq_psn.is_some());
        mask.set(QpAttrMask::SQ_PSN, self.sq_psn.is_some());
        mask.set(QpAttrMask::MAX_RD_ATOMIC, self.max_rd_atomic.is_some());
        mask.set(QpAttrMask::MAX_DEST_RD_ATOMIC, self.max_dest_rd_atomic.is_some());
        mask.set(QpAttrMask::MIN_RNR_TIMER, self.min_rnr_timer.is_some());
        mask.set(QpAttrMask::DEST_QPN, self.dest_qpn.is_some());
        mask
    }
}

/// What a shared receive queue is created with (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInitAttr {
    /// Outstanding receives.
    pub max_wr: u32,
    /// Scatter/gather elements of a receive.
    pub max_sge: u32,
}

/// A shared receive queue's present attributes (`ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Outstanding receives that it has room for.
    pub max_wr: u32,
    /// Scatter/gather elements of a receive.
    pub max_sge: u32,
    /// [`crate::EventType::SrqLimitReached`] is reported once when fewer receives than this are left; 0 for never.
    pub limit: u32,
}

/// The delay that an RNR timer code stands for (IBTA 9.7.5.2.8, table 45). Codes are 5 bits; code 0 is the longest.
pub const fn rnr_timer(code: u8) -> Duration {
    /// In units of 10 µs.
    const TABLE: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(TABLE[(code & 31) as usize] as u64 * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_timer_codes() {
        assert_eq!(rnr_timer(0), Duration::from_micros(655_360));
        assert_eq!(rnr_timer(1), Duration::from_micros(10));
        assert_eq!(rnr_timer(12), Duration::from_micros(640));
        assert_eq!(rnr_timer(31), Duration::from_micros(491_520));
    }
}
