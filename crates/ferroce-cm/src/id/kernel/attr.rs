//! What moves queue pairs.

use super::super::datagram;
use super::{IdCore, Phase};
use crate::kernel::{KernelManager, refused};
use crate::{Error, Result};
use ferroce_abi::rdma_cm::wire;
use ferroce_verbs::{Access, AhAttr, Gid, GlobalRoute, Mtu, QpAttr, QpState};
use rustix::io::Errno;
use std::sync::Arc;

impl IdCore {
    pub(in crate::id) fn attr_of_kernel(self: &Arc<Self>, manager: &KernelManager, to: QpState) -> Result<QpAttr> {
        let (min_rnr_timer, tos) = {
            let options = self.options.lock();
            (options.min_rnr_timer, options.tos)
        };
        let (id, phase, depths) = {
            let state = self.state.lock();
            if state.phase == Phase::Destroyed {
                return Err(Error::Destroyed);
            }
            // Of datagrams nothing but the first step depends on the kernel.
            if self.is_datagram() && to != QpState::Init {
                return datagram::qp_attr(to).ok_or(Error::Phase { call: "qp_attr", phase: state.phase });
            }
            let agreed = matches!(
                state.phase,
                Phase::Responding | Phase::Requested | Phase::Accepted | Phase::Connected | Phase::Disconnecting
            );
            let id = state.kernel_id("qp_attr", |_| match to {
                QpState::Init => true,
                QpState::Rtr | QpState::Rts => agreed,
                _ => false,
            })?;
            (id, state.phase, state.kernel.depths)
        };
        let raw = manager.device().init_qp_attr(id.number(), to as u32).map_err(|error| {
            match Errno::from_io_error(&error) {
                // There is no device yet, or the connection is over already.
                Some(Errno::INVAL) => Error::Phase { call: "qp_attr", phase },
                _ => refused("asking how to move the queue pair")(error),
            }
        })?;
        Ok(match to {
            QpState::Init if self.is_datagram() => {
                QpAttr { pkey_index: Some(raw.pkey_index), port_num: Some(raw.port_num), ..QpAttr::init_ud(raw.qkey) }
            }
            QpState::Init => QpAttr {
                pkey_index: Some(raw.pkey_index),
                port_num: Some(raw.port_num),
                // What the kernel says here depends on depths that it does not know yet; they are the limit.
                ..QpAttr::init(Access::ALL)
            },
            QpState::Rtr => {
                let mtu = mtu(raw.path_mtu);
                let mut av = ah_attr(&raw.ah_attr);
                // To who answers, the kernel says what the peer has asked for. (With a LID it is InfiniBand's, where that is not ours to say.)
                if let Some(grh) = av.grh.as_mut().filter(|_| tos != 0 && raw.ah_attr.dlid == 0) {
                    grh.traffic_class = tos;
                }
                let mut attr = QpAttr::rtr(av, mtu, raw.dest_qp_num, raw.rq_psn);
                let resources = depths.map(|depths| depths.responder_resources);
                attr.max_dest_rd_atomic = Some(resources.unwrap_or(raw.max_dest_rd_atomic));
                // The kernel's is 0, which is the longest of all (ydb nbs #5790).
                attr.min_rnr_timer = Some(min_rnr_timer);
                attr
            }
            _ => {
                let mut attr = QpAttr::rts(raw.sq_psn);
                attr.timeout = Some(raw.timeout);
                attr.retry_cnt = Some(raw.retry_cnt);
                attr.rnr_retry = Some(raw.rnr_retry);
                let depth = depths.map(|depths| depths.initiator_depth);
                attr.max_rd_atomic = Some(depth.unwrap_or(raw.max_rd_atomic));
                attr
            }
        })
    }
}

/// From the code of `IBV_MTU_*`. A kernel without an idea gets the smallest.
fn mtu(code: u32) -> Mtu {
    Mtu::ALL.into_iter().find(|&mtu| mtu as u32 == code).unwrap_or(Mtu::Mtu256)
}

pub(super) fn ah_attr(raw: &wire::ah_attr) -> AhAttr {
    let grh = (raw.is_global != 0).then(|| GlobalRoute {
        dgid: Gid::from_bytes(raw.dgid),
        sgid_index: raw.sgid_index.into(),
        flow_label: raw.flow_label,
        hop_limit: raw.hop_limit,
        traffic_class: raw.traffic_class,
    });
    AhAttr {
        grh,
        dlid: raw.dlid,
        sl: raw.sl,
        src_path_bits: raw.src_path_bits,
        static_rate: raw.static_rate,
        port_num: raw.port_num,
    }
}
