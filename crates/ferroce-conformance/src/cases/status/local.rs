//! Requests whose own buffers are wrong: a local protection error, before or after the peer hears of it.

use super::bench::{Bench, Fault, LEN, Peer};
use crate::cases::data::need_atomics;
use crate::fixture::Link;
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{Access, Mr, SendOp, Sge, WcStatus};

/// A local buffer that is wrong: its element, and what has to stay alive for it to be wrong in just this way.
type Wrong = fn(&Bench, usize) -> CaseResult<(Sge, Option<Mr>)>;

/// The ways in which a buffer of some length is wrong for any use.
const WRONG: [(&str, Wrong); 7] = [
    ("unknown-lkey", |bench, len| {
        let good = bench.local.mr.sge(..len)?;
        Ok((Sge { lkey: good.lkey ^ 0x00f0_f0f0, ..good }, None))
    }),
    ("lkey-zero", |bench, len| Ok((Sge { lkey: 0, ..bench.local.mr.sge(..len)? }, None))),
    ("beyond-the-end", |bench, len| {
        let last = bench.local.mr.sge(LEN - len..)?;
        Ok((Sge { length: last.length + 1, ..last }, None))
    }),
    ("before-the-start", |bench, len| {
        let first = bench.local.mr.sge(..len)?;
        Ok((Sge { addr: first.addr - 1, ..first }, None))
    }),
    ("around-the-address-space", |bench, len| {
        let first = bench.local.mr.sge(..len)?;
        Ok((Sge { addr: u64::MAX - 3, ..first }, None))
    }),
    ("other-protection-domain", |bench, len| {
        let pd = bench.pair.a.side.context.alloc_pd()?;
        let mr = pd.alloc_mr(LEN, Access::ALL)?;
        Ok((mr.sge(..len)?, Some(mr)))
    }),
    ("deregistered", |bench, len| {
        let mr = bench.pair.a.pd.alloc_mr(LEN, Access::ALL)?;
        Ok((mr.sge(..len)?, None))
    }),
];

pub(super) fn add(all: &mut Vec<Case>) {
    for (name, wrong) in WRONG {
        all.push(Case::new(format!("status/rc/local/send/{name}"), move |env| {
            with(env, |bench| Ok((SendOp::Send, wrong(bench, 64)?)))
        }));
        all.push(Case::new(format!("status/rc/local/write/{name}"), move |env| {
            with(env, |bench| Ok((bench.good, wrong(bench, 64)?)))
        }));
        all.push(Case::new(format!("status/rc/local/read/{name}"), move |env| {
            with(env, |bench| Ok((read(bench), wrong(bench, 64)?)))
        }));
    }
    all.push(Case::new("status/rc/local/atomic/unknown-lkey", |env| {
        need_atomics(env)?;
        with(env, |bench| Ok((add_one(bench), WRONG[0].1(bench, 8)?)))
    }));
    all.push(Case::new("status/rc/local/read/no-local-write", |env| {
        with(env, |bench| Ok((read(bench), unwritable(bench, 64)?)))
    }));
    all.push(Case::new("status/rc/local/read/no-local-write-many-packets", |env| {
        with(env, |bench| Ok((read(bench), unwritable(bench, LEN)?)))
    }));
    all.push(Case::new("status/rc/local/atomic/no-local-write", |env| {
        need_atomics(env)?;
        with(env, |bench| Ok((add_one(bench), unwritable(bench, 8)?)))
    }));
    all.push(Case::new("status/rc/local/send/second-element", |env| second_element(env, SendOp::Send)));
    all.push(Case::new("status/rc/local/read/second-element", |env| {
        let bench = Bench::new(env, &Link::default())?;
        let good = bench.local.mr.sge(..3000)?;
        let fault = Fault::new(read(&bench), &[good, Sge { lkey: !good.lkey, ..good }]);
        bench.run(&fault, WcStatus::LocProtErr, Peer::Unhurt)
    }));
}

fn read(bench: &Bench) -> SendOp {
    SendOp::Read { remote_addr: bench.remote.addr(0), rkey: bench.remote.mr.rkey() }
}

fn add_one(bench: &Bench) -> SendOp {
    SendOp::FetchAdd { remote_addr: bench.remote.addr(0), rkey: bench.remote.mr.rkey(), add: 1 }
}

/// What a read brings cannot go where the device may not write.
fn unwritable(bench: &Bench, len: usize) -> CaseResult<(Sge, Option<Mr>)> {
    let mr = bench.pair.a.pd.alloc_mr(LEN, Access::REMOTE_READ)?;
    Ok((mr.sge(..len)?, Some(mr)))
}

fn with(env: &Env, fault: impl FnOnce(&Bench) -> CaseResult<(SendOp, (Sge, Option<Mr>))>) -> CaseResult {
    let bench = Bench::new(env, &Link::default())?;
    let (op, (sge, _keep)) = fault(&bench)?;
    bench.run(&Fault::new(op, &[sge]), WcStatus::LocProtErr, Peer::Unhurt)
}

/// The first element is fine, the second is not, and each packet's worth of data lies in one of them.
fn second_element(env: &Env, op: SendOp) -> CaseResult {
    let bench = Bench::new(env, &Link::default())?;
    let good = bench.local.mr.sge(..2048)?;
    let fault = Fault::new(op, &[good, Sge { lkey: !good.lkey, ..good }]);
    bench.run(&fault, WcStatus::LocProtErr, Peer::Unhurt)
}
