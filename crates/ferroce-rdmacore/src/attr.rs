//! Queue pair attributes in the library's form.

use crate::context::{RdmaContext, limit};
use crate::{address, convert};
use ferroce_abi::types::ibv_qp_attr;
use ferroce_verbs::{Access, Error, QpAttr, QpAttrMask, QpState, QpType, Result};

/// What is asked for when a queue pair is queried.
pub(crate) const MASK: u32 = QpAttrMask::all().bits();

/// The values, and which of them count.
pub(crate) fn to_abi(attr: &QpAttr, context: &RdmaContext) -> Result<(ibv_qp_attr, u32)> {
    // The kernel refuses these too, but does not say which.
    for (what, value, most) in [
        ("max_rd_atomic", attr.max_rd_atomic, context.attr.max_qp_init_rd_atom),
        ("max_dest_rd_atomic", attr.max_dest_rd_atomic, context.attr.max_qp_rd_atom),
    ] {
        let most = limit(most);
        if value.is_some_and(|value| u32::from(value) > most) {
            return Err(Error::invalid(what, format!("the device takes at most {most}")));
        }
    }
    if let Some(port) = attr.port_num.or(attr.ah_attr.map(|ah_attr| ah_attr.port_num)) {
        context.check_port(port)?;
    }
    if let Some(index) = attr.pkey_index {
        // Without a port it is the one that the queue pair has, and most devices have one.
        context.check_pkey(attr.port_num.unwrap_or(1), index)?;
    }
    let state = |state: Option<QpState>| state.map_or(0, convert::state_number);
    let values = ibv_qp_attr {
        qp_state: state(attr.state),
        cur_qp_state: state(attr.cur_state),
        path_mtu: attr.path_mtu.map_or(0, |mtu| mtu as u32),
        qkey: attr.qkey.unwrap_or(0),
        rq_psn: attr.rq_psn.unwrap_or(0),
        sq_psn: attr.sq_psn.unwrap_or(0),
        dest_qp_num: attr.dest_qpn.unwrap_or(0),
        qp_access_flags: attr.access.map_or(0, |access| access.bits()),
        ah_attr: attr.ah_attr.as_ref().map(address::to_abi).transpose()?.unwrap_or_default(),
        pkey_index: attr.pkey_index.unwrap_or(0),
        en_sqd_async_notify: attr.en_sqd_async_notify.map_or(0, u8::from),
        max_rd_atomic: attr.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: attr.max_dest_rd_atomic.unwrap_or(0),
        min_rnr_timer: attr.min_rnr_timer.unwrap_or(0),
        port_num: attr.port_num.unwrap_or(0),
        timeout: attr.timeout.unwrap_or(0),
        retry_cnt: attr.retry_cnt.unwrap_or(0),
        rnr_retry: attr.rnr_retry.unwrap_or(0),
        ..ibv_qp_attr::default()
    };
    Ok((values, attr.mask().bits()))
}

/// What takes a queue pair to the error state, from any other but RESET.
pub(crate) fn error_state() -> (ibv_qp_attr, u32) {
    let values = ibv_qp_attr { qp_state: convert::state_number(QpState::Err), ..ibv_qp_attr::default() };
    (values, QpAttrMask::STATE.bits())
}

/// What a queried queue pair of this type has. Attributes that its type or its state does not have are left out.
pub(crate) fn from_abi(attr: &ibv_qp_attr, qp_type: QpType) -> QpAttr {
    let Some(state) = convert::state(attr.qp_state) else { return QpAttr::default() };
    let mut known = QpAttr { state: Some(state), cur_state: Some(state), ..QpAttr::default() };
    if state == QpState::Reset {
        return known;
    }
    known.pkey_index = Some(attr.pkey_index);
    known.port_num = Some(attr.port_num);
    match qp_type {
        QpType::Ud => known.qkey = Some(attr.qkey),
        QpType::Rc | QpType::Uc => known.access = Some(Access::from_bits_truncate(attr.qp_access_flags)),
    }
    if state == QpState::Init {
        return known;
    }
    if qp_type != QpType::Ud {
        known.ah_attr = Some(address::from_abi(&attr.ah_attr));
        known.path_mtu = convert::mtu(attr.path_mtu);
        known.dest_qpn = Some(attr.dest_qp_num);
        known.rq_psn = Some(attr.rq_psn);
    }
    if qp_type == QpType::Rc {
        known.max_dest_rd_atomic = Some(attr.max_dest_rd_atomic);
        known.min_rnr_timer = Some(attr.min_rnr_timer);
    }
    if state == QpState::Rtr {
        return known;
    }
    known.sq_psn = Some(attr.sq_psn);
    if qp_type == QpType::Rc {
        known.timeout = Some(attr.timeout);
        known.retry_cnt = Some(attr.retry_cnt);
        known.rnr_retry = Some(attr.rnr_retry);
        known.max_rd_atomic = Some(attr.max_rd_atomic);
    }
    known
}
