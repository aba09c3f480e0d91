//! What one end of a measurement consists of, and how the two are connected.

use super::control::{EndAddress, QpAddress};
use super::data::Areas;
use super::plan::Plan;
use crate::args::{Common, Link};
use crate::completions::Completions;
use crate::failure::{Failure, Result};
use crate::local;
use ferroce::{Access, AhAttr, Context, Gid, GidEntry, Mtu, Qp, QpAttr, QpCap, QpInitAttr, QpType};
use std::net::{IpAddr, Ipv6Addr};

/// The port of the device that is used.
const PORT: u8 = 1;

pub(crate) struct Endpoint {
    pub(crate) context: Context,
    pub(crate) completions: Completions,
    pub(crate) qps: Vec<Qp>,
    pub(crate) areas: Areas,
    /// What the queue pairs take inline.
    pub(crate) inline_limit: u32,
    gid: GidEntry,
    psns: Vec<u32>,
    max_msg_sz: u32,
}

impl Endpoint {
    /// Makes everything for `plan`, at the local address that reaches the peer.
    pub(crate) fn new(common: &Common, plan: &Plan, reached_from: Option<IpAddr>) -> Result<Self> {
        let context = local::open(common, plan.link)?;
        let gid = local::pick_gid(&context, PORT, common.gid_index, reached_from)?;
        let max_msg_sz = context.query_port(PORT)?.max_msg_sz;
        let pd = context.alloc_pd()?;
        let areas = Areas::new(&pd, plan)?;
        let max_inline = context.query_device()?.max_inline_data;
        // A queue may still hold the unsignaled requests of the size before, fewer than `cq_mod`.
        let max_send_wr = plan.depth + plan.cq_mod;
        let max_recv_wr = if plan.receives() { plan.rx_depth() } else { 1 };
        let completions = Completions::new(&context, plan.qps * (max_send_wr + max_recv_wr), plan.events)?;
        let cap = QpCap {
            max_send_wr,
            max_recv_wr,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: plan.inline.min(max_inline),
        };
        let attr = QpInitAttr { cap, ..QpInitAttr::new(QpType::Rc, &completions.cq) };
        let qps = (0..plan.qps).map(|_| pd.create_qp(&attr)).collect::<ferroce::Result<Vec<_>>>()?;
        for qp in &qps {
            qp.modify(&QpAttr::init(Access::ALL))?;
        }
        let inline_limit = qps.iter().map(|qp| qp.cap().max_inline_data).min().unwrap_or(0);
        let psns = qps.iter().map(|_| rand::random::<u32>() & 0xff_ffff).collect();
        Ok(Self { context, completions, qps, areas, inline_limit, gid, psns, max_msg_sz })
    }

    /// Where this end is.
    pub(crate) fn address(&self) -> EndAddress {
        let (addr, rkey) = self.areas.open_addr();
        EndAddress {
            gid: Ipv6Addr::from(self.gid.gid.to_bytes()),
            mtu: self.gid.mtu.bytes(),
            max_msg_sz: self.max_msg_sz,
            device: self.context.info().name,
            pid: std::process::id(),
            qps: self.qps.iter().zip(&self.psns).map(|(qp, &psn)| QpAddress { qpn: qp.qp_num(), psn }).collect(),
            addr,
            rkey,
            transport: None,
        }
    }

    /// The path MTU for both ends; an error names the end that cannot carry what was asked for.
    pub(crate) fn agree_on_mtu(&self, plan: &Plan, peer: &EndAddress) -> Result<Mtu> {
        agree_on_mtu(plan.mtu, self.gid.mtu.bytes(), peer.mtu)
    }

    /// The link that carries what goes to `peer`.
    pub(crate) fn link_to(&self, plan: &Plan, peer: &EndAddress) -> Link {
        local::link_to(&self.context, PORT, plan.link, Gid::from(peer.gid))
    }

    /// Checks that both ends take the messages of `plan`.
    pub(crate) fn check_size(&self, plan: &Plan, peer: &EndAddress) -> Result<()> {
        let (limit, size) = (self.max_msg_sz.min(peer.max_msg_sz), plan.max_size());
        if size > limit {
            return Err(Failure::usage(format!("a message of {size} bytes is more than the ends take ({limit})")));
        }
        Ok(())
    }

    /// Connects the queue pairs to those of `peer`.
    pub(crate) fn connect(&self, peer: &EndAddress, mtu: Mtu) -> Result<()> {
        if peer.qps.len() != self.qps.len() {
            return Err(Failure::run(format!(
                "the peer has {} queue pairs, this end has {}",
                peer.qps.len(),
                self.qps.len()
            )));
        }
        let gid = Gid::from(peer.gid);
        local::check_families(&self.gid, gid)?;
        for ((qp, &psn), theirs) in self.qps.iter().zip(&self.psns).zip(&peer.qps) {
            qp.modify(&QpAttr::rtr(AhAttr::roce(gid, self.gid.index), mtu, theirs.qpn, theirs.psn))
                .and_then(|()| qp.modify(&QpAttr::rts(psn)))
                .map_err(|error| {
                    Failure::from(error).during(format!("connecting to queue pair {:#08x} of {gid}", theirs.qpn))
                })?;
        }
        Ok(())
    }
}

fn agree_on_mtu(wanted: Option<u32>, here: u32, there: u32) -> Result<Mtu> {
    let bytes = wanted.unwrap_or(here.min(there));
    for (end, limit) in [("this end", here), ("the peer", there)] {
        if bytes > limit {
            return Err(Failure::run(format!(
                "the ends' MTUs do not match: {bytes} was asked for, {end} carries {limit}"
            ))
            .hint(format!("use --mtu {} or leave it out", here.min(there))));
        }
    }
    Mtu::from_bytes(bytes).ok_or_else(|| Failure::run(format!("the peer has a path MTU of {bytes}, which is none")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_mtu_wins_and_too_large_a_wish_is_named() {
        assert_eq!(agree_on_mtu(None, 4096, 1024).unwrap(), Mtu::Mtu1024);
        assert_eq!(agree_on_mtu(Some(256), 4096, 1024).unwrap(), Mtu::Mtu256);
        let failure = agree_on_mtu(Some(4096), 4096, 1024).unwrap_err();
        assert!(failure.message.contains("the peer carries 1024"), "{failure}");
        assert_eq!(failure.hint.unwrap(), "use --mtu 1024 or leave it out");
        assert!(agree_on_mtu(Some(4096), 1024, 4096).unwrap_err().message.contains("this end carries 1024"));
        assert!(agree_on_mtu(None, 4096, 1000).is_err());
    }
}
