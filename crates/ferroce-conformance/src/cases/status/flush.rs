//! What is outstanding when a queue pair stops: flushed in the error state, forgotten in RESET.

use crate::failure::ensure_eq;
use crate::fixture::{Build, Endpoint, Link, Marker, Pair, failed, ok};
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{QpAttr, QpState, QpType, SendFlags, SendOp, SendWr, UdDest, WcOpcode, WcStatus};

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("flush/rc/by-modify", by_modify));
    all.push(Case::new("flush/rc/after-success", after_success));
    all.push(Case::new("flush/rc/by-drop", by_drop));
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let service = qp_type.to_string().to_lowercase();
        all.push(Case::new(format!("flush/{service}/receives-in-init"), move |env| receives_in_init(env, qp_type)));
        all.push(Case::new(format!("flush/{service}/posts-in-error"), move |env| posts_in_error(env, qp_type)));
        all.push(Case::new(format!("flush/{service}/nothing-posted"), move |env| nothing_posted(env, qp_type)));
    }
    all.push(Case::new("flush/rc/reset-forgets", reset_forgets));
    all.push(Case::new("flush/rc/nothing-is-touched-afterwards", nothing_afterwards));
    all.push(Case::new("flush/rc/mid-message-of-the-peer", mid_message));
}

/// Posts `sends` sends that wait for ever for a receive, every other one unsignaled, and as many receives.
fn stuck(pair: &Pair, count: u64) -> CaseResult {
    for wr_id in 0..count {
        let flags = if wr_id % 2 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        pair.a.post(SendWr::send(wr_id, &[]).flags(flags))?;
        pair.a.post_recv(100 + wr_id, &[])?;
    }
    Ok(())
}

fn flushed(end: &Endpoint, count: u64) -> CaseResult {
    let qpn = end.qp.qp_num();
    for wr_id in 0..count {
        failed(&end.sent()?, wr_id, WcStatus::WrFlushErr, qpn)?;
    }
    for wr_id in 0..count {
        failed(&end.received()?, 100 + wr_id, WcStatus::WrFlushErr, qpn)?;
    }
    end.wait.nothing(&end.send_cq)?;
    end.wait.nothing(&end.recv_cq)
}

/// Both queues in order, signaled or not; the peer is not told.
fn by_modify(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    stuck(&pair, 20)?;
    pair.a.qp.modify(&QpAttr::to(QpState::Err))?;
    ensure_eq!(pair.a.qp.state(), QpState::Err, "state");
    flushed(&pair.a, 20)?;
    ensure_eq!(pair.b.qp.state(), QpState::Rts, "state of the peer");
    pair.reconnect()?;
    pair.round_trip()
}

/// What was done before comes first, as the success that it is.
fn after_success(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    for wr_id in 1000..1005 {
        pair.b.post_recv(wr_id, &[])?;
        pair.a.post(SendWr::send(wr_id, &[]))?;
        ok(&pair.b.received()?, wr_id, WcOpcode::Recv)?;
    }
    for wr_id in 1000..1005 {
        ok(&pair.a.sent()?, wr_id, WcOpcode::Send)?;
    }
    stuck(&pair, 3)?;
    pair.a.qp.modify(&QpAttr::to(QpState::Err))?;
    flushed(&pair.a, 3)
}

/// The last handle is dropped with work outstanding: it is flushed to the completion queues.
fn by_drop(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    stuck(&pair, 10)?;
    let Pair { a, b: _b } = pair;
    let qpn = a.qp.qp_num();
    let (send_cq, recv_cq) = (a.send_cq.clone(), a.recv_cq.clone());
    drop(a);
    for wr_id in 0..10 {
        failed(&env.wait.next(&send_cq)?, wr_id, WcStatus::WrFlushErr, qpn)?;
        failed(&env.wait.next(&recv_cq)?, 100 + wr_id, WcStatus::WrFlushErr, qpn)?;
    }
    env.wait.nothing(&send_cq)?;
    env.wait.nothing(&recv_cq)
}

/// A queue pair of `qp_type` in INIT.
fn in_init(env: &Env, qp_type: QpType) -> CaseResult<Endpoint> {
    let end = Build::new(qp_type).at(env, &env.a)?;
    match qp_type {
        QpType::Ud => end.qp.modify(&QpAttr { port_num: Some(end.side.port), ..QpAttr::init_ud(Build::QKEY) })?,
        QpType::Rc | QpType::Uc => end.qp.modify(&Link::default().init(&end))?,
    }
    Ok(end)
}

fn receives_in_init(env: &Env, qp_type: QpType) -> CaseResult {
    let end = in_init(env, qp_type)?;
    for wr_id in 0..5 {
        end.post_recv(wr_id, &[])?;
    }
    end.qp.modify(&QpAttr::to(QpState::Err))?;
    for wr_id in 0..5 {
        failed(&end.received()?, wr_id, WcStatus::WrFlushErr, end.qp.qp_num())?;
    }
    end.wait.nothing(&end.recv_cq)
}

/// In the error state posts are accepted, and flushed at once (IBTA 10.3.1.7).
fn posts_in_error(env: &Env, qp_type: QpType) -> CaseResult {
    let end = in_init(env, qp_type)?;
    let ah = end.pd.create_ah(&Link::route(&end.side, &end.side))?;
    end.qp.modify(&QpAttr::to(QpState::Err))?;
    let dest = UdDest { ah: &ah, qpn: end.qp.qp_num(), qkey: Build::QKEY };
    for wr_id in 0..5 {
        let wr = SendWr::send(wr_id, &[]);
        end.post(if qp_type == QpType::Ud { wr.to(dest) } else { wr })?;
        failed(&end.sent()?, wr_id, WcStatus::WrFlushErr, end.qp.qp_num())?;
        end.post_recv(wr_id, &[])?;
        failed(&end.received()?, wr_id, WcStatus::WrFlushErr, end.qp.qp_num())?;
    }
    ensure_eq!(end.qp.state(), QpState::Err, "state");
    Ok(())
}

fn nothing_posted(env: &Env, qp_type: QpType) -> CaseResult {
    let end = in_init(env, qp_type)?;
    end.qp.modify(&QpAttr::to(QpState::Err))?;
    end.qp.modify(&QpAttr::to(QpState::Err))?;
    Marker::new(env)?.pass()?;
    end.wait.nothing(&end.send_cq)?;
    end.wait.nothing(&end.recv_cq)
}

/// RESET empties both queues: none of the work is done or reported later, and all places are free.
fn reset_forgets(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    stuck(&pair, 10)?;
    let old = a.memory(64)?;
    a.post_recv(200, &[old.mr.sge(..)?])?;
    pair.reconnect()?;
    let marker = Marker::new(env)?;
    marker.pass()?;
    for end in [a, b] {
        end.wait.nothing(&end.send_cq)?;
        end.wait.nothing(&end.recv_cq)?;
    }
    old.untouched()?;
    // As many receives as ever fit, and the first message takes the first of them.
    let capacity = u64::from(a.qp.cap().max_recv_wr);
    for wr_id in 0..capacity {
        a.post_recv(500 + wr_id, &[])?;
    }
    b.post(SendWr::send(1, &[]))?;
    ok(&b.sent()?, 1, WcOpcode::Send)?;
    ok(&a.received()?, 500, WcOpcode::Recv)
}

/// Once the flush of a read or a receive is reported, its buffer belongs to the program again.
fn nothing_afterwards(env: &Env) -> CaseResult {
    const LEN: usize = 1 << 20;
    let marker = Marker::new(env)?;
    for _ in 0..5 {
        let pair = Pair::rc(env)?;
        let Pair { a, b } = &pair;
        let (local, landing, remote) = (a.memory(LEN)?, a.memory(LEN)?, b.memory(LEN)?);
        remote.mr.write(0, &vec![7; LEN])?;
        let op = SendOp::Read { remote_addr: remote.addr(0), rkey: remote.mr.rkey() };
        a.post_recv(1, &[landing.mr.sge(..)?])?;
        a.post(SendWr::new(2, op, &[local.mr.sge(..)?]))?;
        b.post(SendWr::send(3, &[remote.mr.sge(..)?]))?;
        a.qp.modify(&QpAttr::to(QpState::Err))?;
        ensure_eq!((a.sent()?.wr_id, a.received()?.wr_id), (2, 1), "request numbers");
        local.clear()?;
        landing.clear()?;
        marker.pass()?;
        local.untouched()?;
        landing.untouched()?;
    }
    Ok(())
}

/// A peer that stops in the middle of its message leaves a receive that was begun; it is flushed like the others.
fn mid_message(env: &Env) -> CaseResult {
    const LEN: usize = 1 << 20;
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let (source, target) = (a.memory(LEN)?, b.memory(LEN)?);
    b.post_recv(1, &[target.mr.sge(..)?])?;
    b.post_recv(2, &[])?;
    a.post(SendWr::send(3, &[source.mr.sge(..)?]))?;
    a.qp.modify(&QpAttr::to(QpState::Err))?;
    ensure_eq!(a.sent()?.wr_id, 3, "request number");
    b.qp.modify(&QpAttr::to(QpState::Err))?;
    // It may have been complete already.
    ensure_eq!(b.received()?.wr_id, 1, "request number");
    failed(&b.received()?, 2, WcStatus::WrFlushErr, b.qp.qp_num())?;
    pair.reconnect()?;
    pair.round_trip()
}
