//! Receives whose buffers are wrong. The peer hears that the operation failed here, and nothing of why.

use super::bench::{Bench, Fault, LEN, Peer};
use crate::fixture::{GUARD, Link};
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{Access, Mr, SendOp, Sge, WcStatus};

type Wrong = fn(&Bench) -> CaseResult<(Sge, Option<Mr>)>;

const WRONG: [(&str, Wrong); 5] = [
    ("unknown-lkey", |bench| {
        let good = bench.remote.mr.sge(..256)?;
        Ok((Sge { lkey: good.lkey ^ 0x00f0_f0f0, ..good }, None))
    }),
    ("beyond-the-end", |bench| {
        let last = bench.remote.mr.sge(LEN - 256..)?;
        Ok((Sge { addr: last.addr + 1, ..last }, None))
    }),
    ("no-local-write", |bench| {
        let mr = bench.pair.b.pd.alloc_mr(256, Access::REMOTE_READ)?;
        Ok((mr.sge(..)?, Some(mr)))
    }),
    ("other-protection-domain", |bench| {
        let mr = bench.pair.b.side.context.alloc_pd()?.alloc_mr(256, Access::ALL)?;
        Ok((mr.sge(..)?, Some(mr)))
    }),
    ("deregistered", |bench| {
        let mr = bench.pair.b.pd.alloc_mr(256, Access::ALL)?;
        Ok((mr.sge(..)?, None))
    }),
];

pub(super) fn add(all: &mut Vec<Case>) {
    for (name, wrong) in WRONG {
        all.push(Case::new(format!("status/rc/receive/{name}"), move |env| bad_receive(env, wrong)));
    }
    all.push(Case::new("status/rc/receive/second-element", second_element));
}

/// IBTA 9.9.3, class A: a remote operational error for the requester, a local protection error for the receive.
fn bad_receive(env: &Env, wrong: Wrong) -> CaseResult {
    let mut bench = Bench::new(env, &Link::default())?;
    let (sge, keep) = wrong(&bench)?;
    bench.receive = vec![sge];
    // The last byte counts: what lies beyond is only noticed by a message that goes there.
    let fault = Fault::new(SendOp::Send, &[bench.local.mr.sge(..256)?]);
    bench.run(&fault, WcStatus::RemOpErr, Peer::Fails(&[WcStatus::LocProtErr]))?;
    bench.remote.holds(LEN - 256, &[GUARD; 256])?;
    if let Some(mr) = keep {
        let mut out = [1; 256];
        mr.read(0, &mut out)?;
        crate::failure::ensure_eq!(out, [0; 256], "memory that must not be written");
    }
    Ok(())
}

/// A message of several packets, the later of which have no place to go.
fn second_element(env: &Env) -> CaseResult {
    let mut bench = Bench::new(env, &Link::default())?;
    let good = bench.remote.mr.sge(..2000)?;
    bench.receive = vec![good, Sge { lkey: !good.lkey, length: 4000, ..good }];
    let fault = Fault::new(SendOp::Send, &[bench.local.mr.sge(..5000)?]);
    bench.run(&fault, WcStatus::RemOpErr, Peer::Fails(&[WcStatus::LocProtErr]))
}
