//! What one end consists of: queue pairs, completion queue, memory, and how they are connected.

use super::address::Address;
use super::data::Data;
use super::exchange::Exchange;
use super::{Plan, local};
use crate::completions::Completions;
use crate::failure::{Failure, Result};
use ferroce::{
    Access, AhAttr, Context, GidEntry, Mtu, Pd, PostError, Qp, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, Srq,
    SrqInitAttr,
};

/// The Q_Key of `ibv_ud_pingpong`.
pub(crate) const QKEY: u32 = 0x1111_1111;
/// Identifies receives and sends, as bits of what a queue pair waits for.
pub(crate) const RECV: u64 = 1;
pub(crate) const SEND: u64 = 2;
/// The most bytes for which inline data is asked for.
const INLINE: u32 = 256;

pub(crate) struct Endpoint {
    pub(crate) pd: Pd,
    pub(crate) completions: Completions,
    pub(crate) srq: Option<Srq>,
    pub(crate) qps: Vec<Qp>,
    pub(crate) data: Data,
    pub(crate) rx_depth: u32,
    pub(crate) inline: bool,
    psns: Vec<u32>,
}

impl Endpoint {
    /// Makes everything; the queue pairs are in INIT, so that receives can be posted.
    pub(crate) fn new(context: &Context, plan: &Plan) -> Result<Self> {
        let limit = context.query_port(plan.ib_port)?.max_msg_sz;
        if plan.size > limit {
            return Err(Failure::usage(format!(
                "a message of {} bytes is more than the port allows ({limit})",
                plan.size
            )));
        }
        let pd = context.alloc_pd()?;
        let data = Data::new(&pd, plan)?;
        let completions = Completions::new(context, plan.rx_depth + plan.num_qp as u32, plan.events)?;
        let srq = match plan.srq {
            true => Some(pd.create_srq(&SrqInitAttr { max_wr: plan.rx_depth, max_sge: 1 })?),
            false => None,
        };
        let want_inline = plan.size <= INLINE.min(context.query_device()?.max_inline_data);
        let attr = QpInitAttr {
            srq: srq.clone(),
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: if plan.srq { 0 } else { plan.rx_depth },
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: if want_inline { plan.size } else { 0 },
            },
            ..QpInitAttr::new(plan.qp_type, &completions.cq)
        };
        let qps = (0..plan.num_qp).map(|_| pd.create_qp(&attr)).collect::<ferroce::Result<Vec<_>>>()?;
        let init = match plan.qp_type {
            QpType::Ud => QpAttr::init_ud(QKEY),
            QpType::Rc | QpType::Uc => QpAttr::init(Access::empty()),
        };
        for qp in &qps {
            qp.modify(&QpAttr { port_num: Some(plan.ib_port), ..init })?;
        }
        let inline = qps.iter().all(|qp| qp.cap().max_inline_data >= plan.size);
        let psns = qps.iter().map(|_| rand::random::<u32>() & 0xff_ffff).collect();
        Ok(Self { pd, completions, srq, qps, data, rx_depth: plan.rx_depth, inline, psns })
    }

    /// Posts as many receives as the queue holds.
    pub(crate) fn post_all_receives(&self) -> Result<()> {
        self.post_receives(self.rx_depth)
    }

    /// Posts `count` receives: to the shared receive queue, else to the only queue pair.
    pub(crate) fn post_receives(&self, count: u32) -> Result<()> {
        const CHUNK: usize = 64;
        let sges = [self.data.recv_sge()?];
        let batch = [RecvWr::new(RECV, &sges); CHUNK];
        let post = |wrs: &[RecvWr<'_>]| -> Result<(), PostError> {
            match &self.srq {
                Some(srq) => srq.post_recv(wrs),
                None => self.qps[0].post_recv(wrs),
            }
        };
        let mut left = count as usize;
        while left > 0 {
            let now = left.min(CHUNK);
            post(&batch[..now]).map_err(|error| Failure::from(error).during("posting receives"))?;
            left -= now;
        }
        Ok(())
    }

    /// Where this end is.
    pub(crate) fn addresses(&self, gid: &GidEntry, lid: u16) -> Vec<Address> {
        let address = |(qp, &psn): (&Qp, &u32)| Address { lid, qpn: qp.qp_num(), psn, gid: gid.gid };
        self.qps.iter().zip(&self.psns).map(address).collect()
    }

    /// Connects the queue pairs to `peers`, with the attributes that the C programs use.
    pub(crate) fn connect(self, plan: &Plan, gid: &GidEntry, mine: &[Address], peers: &[Address]) -> Result<Exchange> {
        let mut dests = Vec::new();
        for ((qp, mine), peer) in self.qps.iter().zip(mine).zip(peers) {
            local::check_families(gid, peer.gid)?;
            let route =
                AhAttr { sl: plan.sl, port_num: plan.ib_port, dlid: peer.lid, ..AhAttr::roce(peer.gid, gid.index) };
            match plan.mtu {
                None => {
                    qp.modify(&QpAttr::to(QpState::Rtr))?;
                    qp.modify(&QpAttr::rts_unreliable(mine.psn))?;
                    let ah = self.pd.create_ah(&route).map_err(|error| {
                        Failure::from(error).during(format!("the peer's address {} cannot be used", peer.gid))
                    })?;
                    dests.push((ah, peer.qpn));
                }
                Some(mtu) => {
                    let [rtr, rts] = transitions(plan.qp_type, route, mtu, mine, peer);
                    qp.modify(&rtr).and_then(|()| qp.modify(&rts)).map_err(|error| {
                        Failure::from(error)
                            .during(format!("connecting to queue pair {:#08x} of {}", peer.qpn, peer.gid))
                    })?;
                }
            }
        }
        Exchange::new(self, dests)
    }
}

fn transitions(qp_type: QpType, route: AhAttr, mtu: Mtu, mine: &Address, peer: &Address) -> [QpAttr; 2] {
    match qp_type {
        QpType::Rc => [
            QpAttr { max_dest_rd_atomic: Some(1), ..QpAttr::rtr(route, mtu, peer.qpn, peer.psn) },
            QpAttr { max_rd_atomic: Some(1), ..QpAttr::rts(mine.psn) },
        ],
        QpType::Uc | QpType::Ud => [QpAttr::rtr_uc(route, mtu, peer.qpn, peer.psn), QpAttr::rts_unreliable(mine.psn)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reliable_connection_has_the_attributes_of_the_c_program() {
        let (mine, peer) = (Address { psn: 5, ..Address::default() }, Address { qpn: 7, psn: 9, ..Address::default() });
        let route = AhAttr::roce(peer.gid, 0);
        let [rtr, rts] = transitions(QpType::Rc, route, Mtu::Mtu1024, &mine, &peer);
        assert_eq!(
            (rtr.dest_qpn, rtr.rq_psn, rtr.max_dest_rd_atomic, rtr.min_rnr_timer),
            (Some(7), Some(9), Some(1), Some(12))
        );
        assert_eq!(
            (rts.sq_psn, rts.timeout, rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic),
            (Some(5), Some(14), Some(7), Some(7), Some(1))
        );
        let [rtr, rts] = transitions(QpType::Uc, route, Mtu::Mtu1024, &mine, &peer);
        assert_eq!((rtr.min_rnr_timer, rts.timeout), (None, None));
    }
}
