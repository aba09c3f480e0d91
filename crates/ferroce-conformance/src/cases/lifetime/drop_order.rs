//! Every order in which the handles of a context can be dropped, with work outstanding.

use crate::failure::{Explain, ensure_eq};
use crate::fixture::{Build, Endpoint, Link, Memory, UdPair};
use crate::{Case, CaseResult, End, Env, Failure, Side};
use ferroce_verbs::{
    Access, Ah, CompChannel, Context, Cq, Pd, Qp, QpState, QpType, RecvWr, SendOp, SendWr, Srq, SrqInitAttr, UdDest,
    WorkCompletion,
};
use std::collections::BTreeSet;

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("lifetime/any-order-of-drops", any_order));
    all.push(Case::new("lifetime/parents-are-dropped-first", parents_first));
    all.push(Case::new("lifetime/unread-events", unread_events));
}

/// What can be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Context,
    Pd,
    Mr,
    Cq,
    Channel,
    Srq,
    Qp,
    Ah,
}

const PARTS: [Part; 8] = [Part::Context, Part::Pd, Part::Mr, Part::Cq, Part::Channel, Part::Srq, Part::Qp, Part::Ah];

/// Permutation number `index` of all parts, in lexicographic order.
fn permutation(mut index: usize) -> Vec<Part> {
    let mut rest = PARTS.to_vec();
    let mut order = Vec::new();
    let mut radix: usize = (1..=rest.len()).product();
    index %= radix;
    while !rest.is_empty() {
        radix /= rest.len();
        order.push(rest.remove(index / radix));
        index %= radix;
    }
    order
}

/// So many of the 40320 orders that any four parts are dropped in each of their 24 orders.
fn orders() -> impl Iterator<Item = Vec<Part>> {
    const COUNT: usize = 320;
    // Coprime to the number of permutations, so that no order comes twice.
    const STEP: usize = 15_991;
    (0..COUNT).map(|number| permutation(number * STEP))
}

/// Handles of one context, each the only one to its object.
struct Handles {
    context: Option<Context>,
    pd: Option<Pd>,
    mr: Option<Memory>,
    cq: Option<Cq>,
    channel: Option<CompChannel>,
    srq: Option<Srq>,
    qps: Option<(Qp, Qp)>,
    ah: Option<Ah>,
    /// Request numbers whose completion is due on `cq` once the queue pairs are gone.
    due: BTreeSet<u64>,
}

/// Sends that wait for a receive that never comes, so that they are outstanding when the queue pair is dropped.
const STUCK: std::ops::Range<u64> = 0..5;
const READ: u64 = 5;
const DATAGRAM: u64 = 6;

impl Handles {
    /// Opens the device once more and posts work of all kinds to it.
    fn new(env: &Env, peer: &Endpoint, remote: &Memory, datagrams: &Endpoint) -> CaseResult<Self> {
        let side: Side = env.open_again(End::A)?;
        let pd = side.context.alloc_pd()?;
        let channel = side.context.create_comp_channel()?;
        let cq = side.context.create_cq(64, Some(&channel))?;
        let srq = pd.create_srq(&SrqInitAttr { max_wr: 8, max_sge: 1 })?;
        let mr = Memory::new(&pd, 1 << 16, Access::ALL)?;
        let build = Build::new(QpType::Rc).pd(&pd).send_cq(&cq).recv_cq(&cq).srq(&srq);
        let rc = build.at(env, &side)?;
        Link::default().bring_up(peer, &side, rc.qp.qp_num(), (0x8000, 0x1000))?;
        Link::default().bring_up(&rc, &peer.side, peer.qp.qp_num(), (0x1000, 0x8000))?;
        let ud = Build { qp_type: QpType::Ud, ..build }.ud_at(env, &side)?;
        let ah = pd.create_ah(&Link::route(&side, &datagrams.side))?;

        cq.req_notify(false)?;
        for wr_id in 100..104 {
            srq.post_recv(&[RecvWr::new(wr_id, &[mr.mr.sge(..256)?])])?;
        }
        let read = SendOp::Read { remote_addr: remote.addr(0), rkey: remote.mr.rkey() };
        rc.post(SendWr::new(READ, read, &[mr.mr.sge(..)?]))?;
        for wr_id in STUCK {
            rc.post(SendWr::send(wr_id, &[mr.mr.sge(..64)?]))?;
        }
        let dest = UdDest { ah: &ah, qpn: datagrams.qp.qp_num(), qkey: Build::QKEY };
        ud.post(SendWr::send(DATAGRAM, &[mr.mr.sge(..64)?]).to(dest))?;
        // And some from the other side, on their way while things are dropped.
        peer.post(SendWr::send(1, &[remote.mr.sge(..200)?]))?;

        Ok(Self {
            context: Some(side.context),
            pd: Some(pd),
            mr: Some(mr),
            cq: Some(cq),
            channel: Some(channel),
            srq: Some(srq),
            qps: Some((rc.qp, ud.qp)),
            ah: Some(ah),
            due: STUCK.chain([READ, DATAGRAM]).collect(),
        })
    }

    fn drop_one(&mut self, env: &Env, part: Part) -> CaseResult {
        match part {
            Part::Context => self.context = None,
            Part::Pd => self.pd = None,
            Part::Mr => self.mr = None,
            Part::Channel => self.channel = None,
            Part::Srq => self.srq = None,
            Part::Qp => self.qps = None,
            Part::Ah => self.ah = None,
            Part::Cq => {
                if self.qps.is_none() {
                    self.collect(env)?;
                }
                self.cq = None;
            }
        }
        Ok(())
    }

    /// With the queue pairs gone, all that was outstanding comes out of the queue: once each.
    fn collect(&mut self, env: &Env) -> CaseResult {
        let Some(cq) = &self.cq else { return Ok(()) };
        let mut out = [WorkCompletion::default(); 8];
        let due = &mut self.due;
        let done = env.wait.within(env.wait.deadline(), || {
            let got = cq.poll(&mut out)?;
            for wc in &out[..got] {
                // The peer's message may have found a receive.
                if wc.wr_id < 100 && !due.remove(&wc.wr_id) {
                    return Err(Failure::new(format!("request {} completed twice", wc.wr_id)));
                }
            }
            Ok(due.is_empty().then_some(()))
        })?;
        done.ok_or_else(|| Failure::new(format!("the completions of {due:?} never came")))
    }

    /// All that is left can still be used, as far as its own kind goes.
    fn use_all(&mut self) -> CaseResult {
        if let Some(context) = &self.context {
            context.query_device()?;
            context.alloc_pd()?;
        }
        if let Some(pd) = &self.pd {
            pd.alloc_mr(64, Access::LOCAL_WRITE)?.write(0, &[1; 64])?;
            pd.context().query_device()?;
        }
        if let Some(memory) = &self.mr {
            memory.get(0, 64)?;
            ensure_eq!(memory.mr.access(), Access::ALL, "access");
        }
        if let Some(channel) = &self.channel {
            channel.try_event()?;
        }
        if let Some(srq) = &self.srq {
            srq.query()?;
        }
        if let (Some((rc, ud)), Some(_)) = (&self.qps, &self.mr) {
            // Without the memory that their requests name they may have failed already.
            ensure_eq!([rc.state(), ud.state()], [QpState::Rts; 2], "states");
            rc.query()?;
        }
        if let Some(ah) = &self.ah {
            ensure_eq!(ah.attr().grh.is_some(), true, "route of the address handle");
        }
        if let Some(cq) = &self.cq {
            let mut out = [WorkCompletion::default(); 2];
            let got = cq.poll(&mut out)?;
            for wc in &out[..got] {
                if wc.wr_id < 100 && !self.due.remove(&wc.wr_id) {
                    return Err(Failure::new(format!("request {} completed twice", wc.wr_id)));
                }
            }
            cq.req_notify(false)?;
        }
        Ok(())
    }
}

fn any_order(env: &Env) -> CaseResult {
    let datagrams = Build::new(QpType::Ud).ud_at(env, &env.b)?;
    for order in orders() {
        let peer = Build::new(QpType::Rc).at(env, &env.b)?;
        let remote = peer.memory(1 << 16)?;
        let mut handles = Handles::new(env, &peer, &remote, &datagrams)?;
        for &part in &order {
            handles
                .drop_one(env, part)
                .and_then(|()| handles.use_all())
                .explain(|| format!("{part:?} of {order:?}"))?;
        }
        // Its memory was read, never written.
        remote.untouched()?;
    }
    UdPair::new(env)?.deliver(1, b"still there").map(|_| ())
}

/// Children hold their parents: with nothing left but queue pair and queue, everything still works.
fn parents_first(env: &Env) -> CaseResult {
    let side = env.open_again(End::A)?;
    let end = Build::new(QpType::Rc).at(env, &side)?;
    Link::default().bring_up(&end, &side, end.qp.qp_num(), (9, 9))?;
    let source = end.memory(1000)?;
    let target = end.memory(1000)?;
    let data = crate::fixture::pattern(1, 1000);
    source.mr.write(0, &data)?;
    let Endpoint { qp, send_cq, recv_cq, pd, side: twin, .. } = end;
    drop((side, twin, pd));
    qp.post_recv(&[RecvWr::new(1, &[target.mr.sge(..)?])])?;
    qp.post_send(&[SendWr::send(2, &[source.mr.sge(..)?])])?;
    crate::fixture::succeeded(&[env.wait.next(&send_cq)?, env.wait.next(&recv_cq)?], [2, 1])?;
    target.holds(0, &data)
}

/// A context is dropped with asynchronous and completion events that nobody has read.
fn unread_events(env: &Env) -> CaseResult {
    for _ in 0..5 {
        let side = env.open_again(End::B)?;
        let channel = side.context.create_comp_channel()?;
        let cq = side.context.create_cq(16, Some(&channel))?;
        let a = Build::new(QpType::Rc).at(env, &env.a)?;
        let b = Build::new(QpType::Rc).recv_cq(&cq).at(env, &side)?;
        Link::default().connect(&a, &b)?;
        cq.req_notify(false)?;
        b.post_recv(1, &[])?;
        // Access that is refused: an event, and a flushed receive that raises another.
        a.post(SendWr::new(1, SendOp::Write { remote_addr: 0, rkey: 0 }, &[a.memory(8)?.mr.sge(..)?]))?;
        ensure_eq!(a.sent()?.wr_id, 1, "request number");
        drop((side, b));
        drop(cq);
        drop(channel);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_four_parts_are_dropped_in_any_order() {
        let all: Vec<Vec<Part>> = orders().collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let mut seen = BTreeSet::new();
        for order in &all {
            assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), PARTS.len());
            for a in 0..8 {
                for b in a + 1..8 {
                    for c in b + 1..8 {
                        for d in c + 1..8 {
                            seen.insert([order[a], order[b], order[c], order[d]]);
                        }
                    }
                }
            }
        }
        assert_eq!(seen.len(), 8 * 7 * 6 * 5);
    }
}
