//! Send with invalidate, and what an invalidated key is good for.

use super::bench::{Bench, Fault, LEN, Peer};
use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Link, Pair, ok};
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{Access, Pd, QpState, SendOp, SendWr, WcOpcode, WcStatus};

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("status/rc/remote/write/invalidated-by-send-inv", |env| invalidated(env, false)));
    all.push(Case::new("status/rc/remote/read/invalidated-by-send-inv", |env| invalidated(env, true)));
    all.push(Case::new("status/rc/remote/send-inv/unknown-rkey", unknown));
    all.push(Case::new("status/rc/remote/send-inv/other-protection-domain", other_pd));
}

fn invalidated(env: &Env, read: bool) -> CaseResult {
    let bench = Bench::new(env, &Link::default())?;
    let Pair { a, b } = &bench.pair;
    let mr = b.pd.alloc_mr(LEN, Access::ALL)?;
    let (remote_addr, rkey) = (mr.addr(), mr.rkey());
    let op = if read { SendOp::Read { remote_addr, rkey } } else { SendOp::Write { remote_addr, rkey } };
    let sges = [bench.local.mr.sge(..16)?];
    // It works, then it is invalidated, then it does not.
    a.post(SendWr::new(1, op, &sges))?;
    ensure!(a.sent()?.is_ok(), "the key does not even work at first");
    b.post_recv(2, &[])?;
    a.post(SendWr::new(3, SendOp::SendInv(rkey), &[]))?;
    ok(&a.sent()?, 3, WcOpcode::Send)?;
    let wc = b.received()?;
    ok(&wc, 2, WcOpcode::Recv)?;
    ensure_eq!(wc.invalidated_rkey(), Some(rkey), "the key that was invalidated");
    bench.run(&Fault::new(op, &sges), WcStatus::RemAccessErr, Peer::FLUSHED)
}

/// What the sender hears differs between devices. The receiver must not take the message for a good one.
fn refused(bench: &Bench, rkey: u32) -> CaseResult {
    let Pair { a, b } = &bench.pair;
    b.post_recv(2, &[])?;
    a.post(SendWr::new(3, SendOp::SendInv(rkey), &[]))?;
    ensure_eq!(a.sent()?.wr_id, 3, "request number");
    let wc = b.received()?;
    ensure_eq!(wc.wr_id, 2, "request number of the receive");
    ensure!(!wc.is_ok(), "a receive that invalidates what it may not was successful");
    b.reaches(QpState::Err)
}

fn unknown(env: &Env) -> CaseResult {
    let bench = Bench::new(env, &Link::default())?;
    refused(&bench, bench.remote.mr.rkey() ^ 0x00f0_f0f0)?;
    bench.recovers()
}

/// A key of another protection domain is not invalidated.
fn other_pd(env: &Env) -> CaseResult {
    let bench = Bench::new(env, &Link::default())?;
    let other: Pd = env.b.context.alloc_pd()?;
    let mr = other.alloc_mr(64, Access::ALL)?;
    refused(&bench, mr.rkey())?;
    let build = crate::fixture::Build::new(ferroce_verbs::QpType::Rc);
    let sound = Pair::of(env, &build, &build.clone().pd(&other), &Link::default())?;
    let source = sound.a.memory(64)?;
    let op = SendOp::Write { remote_addr: mr.addr(), rkey: mr.rkey() };
    sound.a.post(SendWr::new(1, op, &[source.mr.sge(..)?]))?;
    ok(&sound.a.sent()?, 1, WcOpcode::RdmaWrite)
}
