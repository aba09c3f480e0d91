//! Faults on UC and UD: a local one stops the send queue alone, a remote one is nobody's business but the receiver's.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, GUARD, Link, Marker, Pair, UdPair, failed, ok, pattern, persist};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{Access, QpAttr, QpState, QpType, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion};

pub(super) fn add(all: &mut Vec<Case>) {
    for (name, wrong) in [
        ("unknown-lkey", (|good| Sge { lkey: good.lkey ^ 0x00f0_f0f0, ..good }) as fn(Sge) -> Sge),
        ("beyond-the-end", |good| Sge { length: good.length + 1, ..good }),
    ] {
        all.push(Case::new(format!("status/uc/local/send/{name}"), move |env| uc_local(env, wrong)));
        all.push(Case::new(format!("status/ud/local/send/{name}"), move |env| ud_local(env, wrong)));
    }
    all.push(Case::new("status/uc/remote/no-receive", uc_no_receive));
    all.push(Case::new("status/uc/remote/longer-than-the-receive", uc_too_long));
    all.push(Case::new("status/uc/remote/unknown-rkey", |env| uc_refused(env, Refused::Key)));
    all.push(Case::new("status/uc/remote/no-right-on-the-region", |env| uc_refused(env, Refused::Region)));
    all.push(Case::new("status/uc/remote/no-right-on-the-queue-pair", |env| uc_refused(env, Refused::QueuePair)));
    all.push(Case::new("status/uc/remote/other-protection-domain", |env| uc_refused(env, Refused::Domain)));
    all.push(Case::new("status/uc/receive/unknown-lkey", uc_bad_receive));
    all.push(Case::new("status/ud/receive/unknown-lkey", ud_bad_receive));
    all.push(Case::new("status/uc/peer-destroyed", uc_peer_destroyed));
    for (name, qp_type) in [("uc", QpType::Uc), ("ud", QpType::Ud)] {
        all.push(Case::new(format!("status/{name}/no-such-operation"), move |env| no_such_operation(env, qp_type)));
    }
}

/// The send queue stops in SQE: what is posted is flushed, receives go on, and RTS starts it again (IBTA 10.3.1.6).
fn uc_local(env: &Env, wrong: fn(Sge) -> Sge) -> CaseResult {
    let pair = Pair::uc(env)?;
    let Pair { a, b } = &pair;
    let local = a.memory(64)?;
    a.post_recv(9, &[])?;
    a.qp.post_send(&[SendWr::send(1, &[wrong(local.mr.sge(..)?)]), SendWr::send(2, &[])])?;
    failed(&a.sent()?, 1, WcStatus::LocProtErr, a.qp.qp_num())?;
    failed(&a.sent()?, 2, WcStatus::WrFlushErr, a.qp.qp_num())?;
    a.reaches(QpState::Sqe)?;
    a.post(SendWr::send(3, &[]))?;
    failed(&a.sent()?, 3, WcStatus::WrFlushErr, a.qp.qp_num())?;
    let wc = persist(a, || {
        b.post(SendWr::send(4, &[]))?;
        ok(&b.sent()?, 4, WcOpcode::Send)
    })?;
    ok(&wc, 9, WcOpcode::Recv)?;
    ensure_eq!(a.qp.state(), QpState::Sqe, "state after a receive");
    a.qp.modify(&QpAttr::to(QpState::Rts))?;
    b.post_recv(5, &[])?;
    let wc = persist(b, || {
        a.post(SendWr::send(6, &[]))?;
        ok(&a.sent()?, 6, WcOpcode::Send)
    })?;
    ok(&wc, 5, WcOpcode::Recv)
}

fn ud_local(env: &Env, wrong: fn(Sge) -> Sge) -> CaseResult {
    let pair = UdPair::new(env)?;
    let UdPair { a, b, .. } = &pair;
    let local = a.memory(64)?;
    let target = a.memory(64)?;
    a.post_recv(9, &[target.mr.sge(..)?])?;
    let bad = [wrong(local.mr.sge(..)?)];
    a.qp.post_send(&[SendWr::send(1, &bad).to(pair.dest()), SendWr::send(2, &[]).to(pair.dest())])?;
    failed(&a.sent()?, 1, WcStatus::LocProtErr, a.qp.qp_num())?;
    failed(&a.sent()?, 2, WcStatus::WrFlushErr, a.qp.qp_num())?;
    a.reaches(QpState::Sqe)?;
    a.post(SendWr::send(3, &[]).to(pair.dest()))?;
    failed(&a.sent()?, 3, WcStatus::WrFlushErr, a.qp.qp_num())?;
    let back = UdPair { a: b.clone(), b: a.clone(), ah: b.pd.create_ah(&Link::route(&b.side, &a.side))? };
    let wc = persist(a, || {
        b.post(SendWr::send(4, &[]).to(back.dest()))?;
        ok(&b.sent()?, 4, WcOpcode::Send)
    })?;
    ok(&wc, 9, WcOpcode::Recv)?;
    a.qp.modify(&QpAttr::to(QpState::Rts))?;
    pair.deliver(5, &pattern(1, 20)).map(|_| ())
}

/// A message without a receive is dropped, however many packets it has; both ends go on.
fn uc_no_receive(env: &Env) -> CaseResult {
    let pair = Pair::uc(env)?;
    let marker = Marker::new(env)?;
    let Pair { a, b } = &pair;
    let source = a.memory(5000)?;
    for len in [0, 10, 5000] {
        a.post(SendWr::send(1, &[source.mr.sge(..len)?]))?;
        ok(&a.sent()?, 1, WcOpcode::Send)?;
    }
    marker.pass()?;
    b.wait.nothing(&b.recv_cq)?;
    uc_still_works(&pair)
}

/// Sends until something arrives, and checks both ends.
fn uc_still_works(pair: &Pair) -> CaseResult {
    let Pair { a, b } = pair;
    let (source, target) = (a.memory(3000)?, b.memory(3000)?);
    let data = pattern(4, 3000);
    source.mr.write(0, &data)?;
    b.post_recv(77, &[target.mr.sge(..)?])?;
    let wc = persist(b, || {
        a.post(SendWr::send(6, &[source.mr.sge(..)?]))?;
        ok(&a.sent()?, 6, WcOpcode::Send)
    })?;
    ok(&wc, 77, WcOpcode::Recv)?;
    target.holds(0, &data)?;
    ensure_eq!([a.qp.state(), b.qp.state()], [QpState::Rts; 2], "states");
    Ok(())
}

/// A message that is longer than its receive is not delivered in part. What becomes of the receive, and of the receiving
/// queue pair with it, differs between devices.
fn uc_too_long(env: &Env) -> CaseResult {
    let pair = Pair::uc(env)?;
    let marker = Marker::new(env)?;
    let Pair { a, b } = &pair;
    let (source, target) = (a.memory(3000)?, b.memory(3000)?);
    b.post_recv(1, &[target.mr.sge(..2000)?])?;
    a.post(SendWr::send(2, &[source.mr.sge(..)?]))?;
    ok(&a.sent()?, 2, WcOpcode::Send)?;
    marker.pass()?;
    let mut out = [WorkCompletion::default()];
    if b.recv_cq.poll(&mut out)? == 1 {
        ensure_eq!((out[0].wr_id, out[0].status), (1, WcStatus::LocLenErr), "the receive that is too short");
    }
    target.holds(2000, &[GUARD; 1000])
}

enum Refused {
    Key,
    Region,
    QueuePair,
    Domain,
}

/// A write that the peer refuses is dropped; its sender sees success, its target nothing.
fn uc_refused(env: &Env, why: Refused) -> CaseResult {
    let access = if matches!(why, Refused::QueuePair) { Access::empty() } else { Access::ALL };
    let pair = Pair::new(env, &Build::new(QpType::Uc), &Link { access, ..Link::default() })?;
    let marker = Marker::new(env)?;
    let Pair { a, b } = &pair;
    let target = match why {
        Refused::Region => b.memory_with(3000, Access::LOCAL_WRITE | Access::REMOTE_READ)?,
        Refused::Domain => crate::fixture::Memory::new(&env.b.context.alloc_pd()?, 3000, Access::ALL)?,
        Refused::Key | Refused::QueuePair => b.memory(3000)?,
    };
    let rkey = target.mr.rkey() ^ if matches!(why, Refused::Key) { 0x00f0_f0f0 } else { 0 };
    let source = a.memory(3000)?;
    source.mr.write(0, &pattern(1, 3000))?;
    for len in [1, 3000] {
        let op = SendOp::Write { remote_addr: target.addr(0), rkey };
        a.post(SendWr::new(1, op, &[source.mr.sge(..len)?]))?;
        ok(&a.sent()?, 1, WcOpcode::RdmaWrite)?;
    }
    marker.pass()?;
    target.untouched()?;
    uc_still_works(&pair)
}

fn uc_bad_receive(env: &Env) -> CaseResult {
    let pair = Pair::uc(env)?;
    let Pair { a, b } = &pair;
    let (source, target) = (a.memory(64)?, b.memory(64)?);
    let good = target.mr.sge(..)?;
    b.post_recv(1, &[Sge { lkey: !good.lkey, ..good }])?;
    let wc = persist(b, || {
        a.post(SendWr::send(2, &[source.mr.sge(..)?]))?;
        ok(&a.sent()?, 2, WcOpcode::Send)
    })?;
    failed(&wc, 1, WcStatus::LocProtErr, b.qp.qp_num())
}

fn ud_bad_receive(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let target = pair.b.memory(64)?;
    let good = target.mr.sge(..)?;
    pair.b.post_recv(1, &[Sge { lkey: !good.lkey, ..good }])?;
    let wc = persist(&pair.b, || {
        pair.a.post(SendWr::send(2, &[]).to(pair.dest()))?;
        ok(&pair.a.sent()?, 2, WcOpcode::Send)
    })?;
    failed(&wc, 1, WcStatus::LocProtErr, pair.b.qp.qp_num())
}

/// Without a peer, UC sends go on as successfully as before.
fn uc_peer_destroyed(env: &Env) -> CaseResult {
    let Pair { a, b } = Pair::uc(env)?;
    drop(b);
    let source = a.memory(5000)?;
    for wr_id in 0..10 {
        a.post(SendWr::send(wr_id, &[source.mr.sge(..)?]))?;
        ok(&a.sent()?, wr_id, WcOpcode::Send)?;
    }
    ensure_eq!(a.qp.state(), QpState::Rts, "state");
    Ok(())
}

/// Operations that the service does not have (IBTA 9.8.2, 9.8.3) are refused when posted, or end with a queue pair
/// operation error; the peer sees nothing of them.
fn no_such_operation(env: &Env, qp_type: QpType) -> CaseResult {
    let (remote_addr, rkey) = (0, 0);
    let mut ops = vec![
        SendOp::Read { remote_addr, rkey },
        SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 0 },
        SendOp::FetchAdd { remote_addr, rkey, add: 0 },
        SendOp::SendInv(1),
    ];
    if qp_type == QpType::Ud {
        ops.extend([SendOp::Write { remote_addr, rkey }, SendOp::WriteImm { remote_addr, rkey, imm: 0 }]);
    }
    for op in ops {
        let (uc, ud);
        let (a, b, dest) = if qp_type == QpType::Ud {
            ud = UdPair::new(env)?;
            (&ud.a, &ud.b, Some(ud.dest()))
        } else {
            uc = Pair::uc(env)?;
            (&uc.a, &uc.b, None)
        };
        let local = a.memory(8)?;
        let sges = [local.mr.sge(..)?];
        match a.qp.post_send(&[SendWr { ud: dest, ..SendWr::new(1, op, &sges) }]) {
            Err(refused) => ensure_eq!(refused.index, 0, "index"),
            Ok(()) => {
                let wc = a.sent()?;
                ensure!(wc.status == WcStatus::LocQpOpErr, "{op:?} on {qp_type} ended with {:?}", wc.status);
            }
        }
        b.wait.nothing(&b.recv_cq)?;
        if b.qp.state() != QpState::Rts {
            return Err(Failure::new(format!("{op:?} on {qp_type} hurt the peer")));
        }
    }
    Ok(())
}
