//! The library's numbers as the contract's values.

use ferroce_abi::types::{ibv_wc, value};
use ferroce_verbs::{
    AtomicCap, EventType, Mtu, PortState, QpState, QpType, WcFlags, WcOpcode, WcStatus, WorkCompletion,
};

pub(crate) fn mtu(number: u32) -> Option<Mtu> {
    Mtu::ALL.into_iter().find(|&mtu| mtu as u32 == number)
}

pub(crate) fn port_state(number: u32) -> PortState {
    match number {
        value::IBV_PORT_INIT => PortState::Init,
        value::IBV_PORT_ARMED => PortState::Armed,
        // Deferred: the link is being recovered, and what is sent waits.
        value::IBV_PORT_ACTIVE | value::IBV_PORT_ACTIVE_DEFER => PortState::Active,
        _ => PortState::Down,
    }
}

pub(crate) fn atomic_cap(number: u32) -> AtomicCap {
    match number {
        value::IBV_ATOMIC_HCA => AtomicCap::Device,
        value::IBV_ATOMIC_GLOB => AtomicCap::Global,
        _ => AtomicCap::None,
    }
}

pub(crate) fn qp_type(qp_type: QpType) -> u32 {
    match qp_type {
        QpType::Rc => value::IBV_QPT_RC,
        QpType::Uc => value::IBV_QPT_UC,
        QpType::Ud => value::IBV_QPT_UD,
    }
}

pub(crate) fn state_number(state: QpState) -> u32 {
    match state {
        QpState::Reset => value::IBV_QPS_RESET,
        QpState::Init => value::IBV_QPS_INIT,
        QpState::Rtr => value::IBV_QPS_RTR,
        QpState::Rts => value::IBV_QPS_RTS,
        QpState::Sqd => value::IBV_QPS_SQD,
        QpState::Sqe => value::IBV_QPS_SQE,
        QpState::Err => value::IBV_QPS_ERR,
    }
}

/// `None` for what is no state.
pub(crate) fn state(number: u32) -> Option<QpState> {
    Some(match number {
        value::IBV_QPS_RESET => QpState::Reset,
        value::IBV_QPS_INIT => QpState::Init,
        value::IBV_QPS_RTR => QpState::Rtr,
        value::IBV_QPS_RTS => QpState::Rts,
        value::IBV_QPS_SQD => QpState::Sqd,
        value::IBV_QPS_SQE => QpState::Sqe,
        value::IBV_QPS_ERR => QpState::Err,
        _ => return None,
    })
}

/// `None` for events that the contract does not have: of InfiniBand's subnet management, and of objects that this crate does not make.
pub(crate) fn event(number: u32) -> Option<EventType> {
    Some(match number {
        value::IBV_EVENT_CQ_ERR => EventType::CqErr,
        value::IBV_EVENT_QP_FATAL => EventType::QpFatal,
        value::IBV_EVENT_QP_REQ_ERR => EventType::QpReqErr,
        value::IBV_EVENT_QP_ACCESS_ERR => EventType::QpAccessErr,
        value::IBV_EVENT_COMM_EST => EventType::CommEst,
        value::IBV_EVENT_SQ_DRAINED => EventType::SqDrained,
        value::IBV_EVENT_DEVICE_FATAL => EventType::DeviceFatal,
        value::IBV_EVENT_PORT_ACTIVE => EventType::PortActive,
        value::IBV_EVENT_PORT_ERR => EventType::PortErr,
        value::IBV_EVENT_SRQ_ERR => EventType::SrqErr,
        value::IBV_EVENT_SRQ_LIMIT_REACHED => EventType::SrqLimitReached,
        value::IBV_EVENT_QP_LAST_WQE_REACHED => EventType::QpLastWqeReached,
        value::IBV_EVENT_GID_CHANGE => EventType::GidChange,
        _ => return None,
    })
}

fn status(number: u32) -> WcStatus {
    match number {
        value::IBV_WC_SUCCESS => WcStatus::Success,
        value::IBV_WC_LOC_LEN_ERR => WcStatus::LocLenErr,
        value::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocQpOpErr,
        value::IBV_WC_LOC_PROT_ERR => WcStatus::LocProtErr,
        value::IBV_WC_WR_FLUSH_ERR => WcStatus::WrFlushErr,
        value::IBV_WC_MW_BIND_ERR => WcStatus::MwBindErr,
        value::IBV_WC_BAD_RESP_ERR => WcStatus::BadRespErr,
        value::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocAccessErr,
        value::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemInvReqErr,
        value::IBV_WC_REM_ACCESS_ERR => WcStatus::RemAccessErr,
        value::IBV_WC_REM_OP_ERR => WcStatus::RemOpErr,
        value::IBV_WC_RETRY_EXC_ERR => WcStatus::RetryExcErr,
        value::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExcErr,
        value::IBV_WC_REM_ABORT_ERR => WcStatus::RemAbortErr,
        value::IBV_WC_FATAL_ERR => WcStatus::FatalErr,
        value::IBV_WC_RESP_TIMEOUT_ERR => WcStatus::RespTimeoutErr,
        _ => WcStatus::GeneralErr,
    }
}

fn opcode(number: u32) -> WcOpcode {
    match number {
        value::IBV_WC_RDMA_WRITE => WcOpcode::RdmaWrite,
        value::IBV_WC_RDMA_READ => WcOpcode::RdmaRead,
        value::IBV_WC_COMP_SWAP => WcOpcode::CompSwap,
        value::IBV_WC_FETCH_ADD => WcOpcode::FetchAdd,
        value::IBV_WC_RECV => WcOpcode::Recv,
        value::IBV_WC_RECV_RDMA_WITH_IMM => WcOpcode::RecvRdmaWithImm,
        // What is left are operations that this crate does not post.
        _ => WcOpcode::Send,
    }
}

#[inline]
pub(crate) fn completion(wc: &ibv_wc) -> WorkCompletion {
    let mut flags = WcFlags::empty();
    for (bit, flag) in [
        (value::IBV_WC_GRH, WcFlags::GRH),
        (value::IBV_WC_WITH_IMM, WcFlags::WITH_IMM),
        (value::IBV_WC_WITH_INV, WcFlags::WITH_INV),
    ] {
        if wc.wc_flags & bit != 0 {
            flags |= flag;
        }
    }
    WorkCompletion {
        wr_id: wc.wr_id,
        status: status(wc.status),
        opcode: opcode(wc.opcode),
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm: if flags.contains(WcFlags::WITH_IMM) { u32::from_be(wc.imm_data) } else { wc.imm_data },
        qp_num: wc.qp_num,
        src_qp: wc.src_qp,
        flags,
        pkey_index: wc.pkey_index,
        sl: wc.sl,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_verbs::{Access, QpAttrMask};

    /// Bits that are handed on as they are.
    #[test]
    fn masks_are_those_of_the_library() {
        for (ours, theirs) in [
            (QpAttrMask::STATE, value::IBV_QP_STATE),
            (QpAttrMask::CUR_STATE, value::IBV_QP_CUR_STATE),
            (QpAttrMask::EN_SQD_ASYNC_NOTIFY, value::IBV_QP_EN_SQD_ASYNC_NOTIFY),
            (QpAttrMask::ACCESS, value::IBV_QP_ACCESS_FLAGS),
            (QpAttrMask::PKEY_INDEX, value::IBV_QP_PKEY_INDEX),
            (QpAttrMask::PORT, value::IBV_QP_PORT),
            (QpAttrMask::QKEY, value::IBV_QP_QKEY),
            (QpAttrMask::AV, value::IBV_QP_AV),
            (QpAttrMask::PATH_MTU, value::IBV_QP_PATH_MTU),
            (QpAttrMask::TIMEOUT, value::IBV_QP_TIMEOUT),
            (QpAttrMask::RETRY_CNT, value::IBV_QP_RETRY_CNT),
            (QpAttrMask::RNR_RETRY, value::IBV_QP_RNR_RETRY),
            (QpAttrMask::RQ_PSN, value::IBV_QP_RQ_PSN),
            (QpAttrMask::MAX_RD_ATOMIC, value::IBV_QP_MAX_QP_RD_ATOMIC),
            (QpAttrMask::MIN_RNR_TIMER, value::IBV_QP_MIN_RNR_TIMER),
            (QpAttrMask::SQ_PSN, value::IBV_QP_SQ_PSN),
            (QpAttrMask::MAX_DEST_RD_ATOMIC, value::IBV_QP_MAX_DEST_RD_ATOMIC),
            (QpAttrMask::DEST_QPN, value::IBV_QP_DEST_QPN),
        ] {
            assert_eq!(ours.bits(), theirs, "{ours:?}");
        }
        for (ours, theirs) in [
            (Access::LOCAL_WRITE, value::IBV_ACCESS_LOCAL_WRITE),
            (Access::REMOTE_WRITE, value::IBV_ACCESS_REMOTE_WRITE),
            (Access::REMOTE_READ, value::IBV_ACCESS_REMOTE_READ),
            (Access::REMOTE_ATOMIC, value::IBV_ACCESS_REMOTE_ATOMIC),
        ] {
            assert_eq!(ours.bits(), theirs, "{ours:?}");
        }
        for state_ in
            [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err]
        {
            assert_eq!(state(state_number(state_)), Some(state_));
        }
        assert_eq!(state(value::IBV_QPS_UNKNOWN), None);
    }

    /// The status's own number is what libibverbs calls it by.
    #[test]
    fn statuses_keep_their_numbers() {
        for number in 0..=value::IBV_WC_GENERAL_ERR {
            let ours = status(number);
            assert!(ours as u32 == number || ours == WcStatus::GeneralErr, "{number} is {ours:?}");
        }
        assert_eq!(status(value::IBV_WC_FATAL_ERR), WcStatus::FatalErr);
    }

    #[test]
    fn immediate_data_changes_its_order_and_an_rkey_does_not() {
        let wc = ibv_wc { imm_data: 0x0102_0304_u32.to_be(), wc_flags: value::IBV_WC_WITH_IMM, ..ibv_wc::default() };
        assert_eq!(completion(&wc).imm_data(), Some(0x0102_0304));
        let wc = ibv_wc { imm_data: 0x0102_0304, wc_flags: value::IBV_WC_WITH_INV, ..ibv_wc::default() };
        assert_eq!(completion(&wc).invalidated_rkey(), Some(0x0102_0304));
    }
}
