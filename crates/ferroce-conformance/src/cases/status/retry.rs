//! A peer that has no receive, or does not answer at all.

use crate::failure::ensure_eq;
use crate::fixture::{Build, Link, Marker, Pair, failed, ok, succeeded};
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{QpAttr, QpState, QpType, SendOp, SendWr, WcOpcode, WcStatus};

/// Why the peer does not answer.
#[derive(Clone, Copy, Debug)]
enum Silent {
    Destroyed,
    NeverThere,
    Reset,
    Init,
    Error,
}

pub(super) fn add(all: &mut Vec<Case>) {
    for retries in [0, 1, 3] {
        let name = format!("status/rc/rnr/exhausted-after-{retries}");
        all.push(Case::new(name, move |env| rnr_exhausted(env, retries)));
    }
    all.push(Case::new("status/rc/rnr/write-imm", rnr_write_imm));
    all.push(Case::new("status/rc/rnr/retried-for-ever", rnr_for_ever));
    all.push(Case::new("status/rc/rnr/order-is-kept", rnr_order));
    for (name, silent) in [
        ("destroyed", Silent::Destroyed),
        ("never-there", Silent::NeverThere),
        ("in-reset", Silent::Reset),
        ("in-init", Silent::Init),
        ("in-error", Silent::Error),
    ] {
        let case = format!("status/rc/retry/peer-{name}");
        all.push(Case::new(case, move |env| retry_exhausted(env, silent)));
    }
    all.push(Case::new("status/rc/retry/psn-ahead", psn_ahead));
    all.push(Case::new("status/rc/retry/comes-up-late", comes_up_late));
}

/// As patient as ever with a peer that does not answer, but not with one that has no receive.
fn rnr_link(rnr_retry: u8) -> Link {
    Link { rnr_retry, ..Link::default() }
}

fn rnr_exhausted(env: &Env, rnr_retry: u8) -> CaseResult {
    let pair = Pair::new(env, &Build::new(QpType::Rc), &rnr_link(rnr_retry))?;
    let Pair { a, b } = &pair;
    let qpn = a.qp.qp_num();
    a.post_recv(9, &[])?;
    a.post(SendWr::send(1, &[]))?;
    a.post(SendWr::send(2, &[]))?;
    failed(&a.sent()?, 1, WcStatus::RnrRetryExcErr, qpn)?;
    failed(&a.sent()?, 2, WcStatus::WrFlushErr, qpn)?;
    failed(&a.received()?, 9, WcStatus::WrFlushErr, qpn)?;
    a.reaches(QpState::Err)?;
    // The peer has seen nothing wrong.
    ensure_eq!(b.qp.state(), QpState::Rts, "state of the peer");
    b.wait.nothing(&b.recv_cq)?;
    pair.reconnect()?;
    pair.round_trip()
}

/// A write with immediate needs a receive; whether its data is written before that is found out is open.
fn rnr_write_imm(env: &Env) -> CaseResult {
    let pair = Pair::new(env, &Build::new(QpType::Rc), &rnr_link(0))?;
    let target = pair.b.memory(8)?;
    let op = SendOp::WriteImm { remote_addr: target.addr(0), rkey: target.mr.rkey(), imm: 1 };
    pair.a.post(SendWr::new(1, op, &[]))?;
    failed(&pair.a.sent()?, 1, WcStatus::RnrRetryExcErr, pair.a.qp.qp_num())
}

/// Seven means for ever: the message waits until there is a receive.
fn rnr_for_ever(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let marker = Marker::new(env)?;
    for wr_id in 0..5 {
        pair.a.post(SendWr::send(wr_id, &[]))?;
        marker.pass()?;
        env.wait.nothing(&pair.a.send_cq)?;
        pair.b.post_recv(wr_id, &[])?;
        ok(&pair.a.sent()?, wr_id, WcOpcode::Send)?;
        ok(&pair.b.received()?, wr_id, WcOpcode::Recv)?;
    }
    Ok(())
}

/// What waits for a receive holds up all that was posted after it, and nothing is done twice.
fn rnr_order(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let marker = Marker::new(env)?;
    let Pair { a, b } = &pair;
    let (source, target) = (a.memory(16)?, b.memory(16)?);
    let write = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
    source.mr.write(0, b"after the first!")?;
    a.post(SendWr::send(1, &[]))?;
    a.post(SendWr::new(2, write, &[source.mr.sge(..)?]))?;
    a.post(SendWr::new(3, SendOp::SendImm(3), &[]))?;
    marker.pass()?;
    target.untouched()?;
    b.post_recv(1, &[])?;
    ok(&b.received()?, 1, WcOpcode::Recv)?;
    succeeded(&a.wait.take(&a.send_cq, 2)?, [1, 2])?;
    target.holds(0, b"after the first!")?;
    b.post_recv(3, &[])?;
    let wc = b.received()?;
    ok(&wc, 3, WcOpcode::Recv)?;
    ensure_eq!(wc.imm_data(), Some(3), "immediate data");
    ok(&a.sent()?, 3, WcOpcode::Send)?;
    pair.round_trip()
}

/// No answer, however often it is asked. All that was posted ends, first the one that was not answered.
fn retry_exhausted(env: &Env, silent: Silent) -> CaseResult {
    for read in [false, true] {
        let build = Build::new(QpType::Rc);
        let (a, b) = (build.at(env, &env.a)?, build.at(env, &env.b)?);
        let target = b.memory(64)?;
        let b_qpn = b.qp.qp_num();
        let link = Link::impatient();
        match silent {
            Silent::Reset | Silent::Destroyed | Silent::NeverThere => {}
            Silent::Init => b.qp.modify(&link.init(&b))?,
            Silent::Error => {
                link.bring_up(&b, &a.side, a.qp.qp_num(), (link.psn.1, link.psn.0))?;
                b.qp.modify(&QpAttr::to(QpState::Err))?;
            }
        }
        let state = b.qp.state();
        let peer = match silent {
            Silent::Destroyed | Silent::NeverThere => {
                drop(b);
                None
            }
            Silent::Reset | Silent::Init | Silent::Error => Some(b),
        };
        let qpn = if matches!(silent, Silent::NeverThere) { 0xff_fff0 } else { b_qpn };
        link.bring_up(&a, &env.b, qpn, link.psn)?;
        let (remote_addr, rkey) = (target.addr(0), target.mr.rkey());
        let op = if read { SendOp::Read { remote_addr, rkey } } else { SendOp::Write { remote_addr, rkey } };
        let local = a.memory(64)?;
        for wr_id in 1..4 {
            a.post(SendWr::new(wr_id, op, &[local.mr.sge(..)?]))?;
        }
        failed(&a.sent()?, 1, WcStatus::RetryExcErr, a.qp.qp_num())?;
        failed(&a.sent()?, 2, WcStatus::WrFlushErr, a.qp.qp_num())?;
        failed(&a.sent()?, 3, WcStatus::WrFlushErr, a.qp.qp_num())?;
        a.reaches(QpState::Err)?;
        target.untouched()?;
        local.untouched()?;
        if let Some(b) = peer {
            ensure_eq!(b.qp.state(), state, "state of the peer");
        }
    }
    Ok(())
}

/// The peer waits for sequence numbers that were never sent: it says so each time, until the retries are used up.
fn psn_ahead(env: &Env) -> CaseResult {
    let build = Build::new(QpType::Rc);
    let (a, b) = (build.at(env, &env.a)?, build.at(env, &env.b)?);
    let link = Link { retry_cnt: 2, ..Link::default() };
    link.bring_up(&b, &a.side, a.qp.qp_num(), (link.psn.1, link.psn.0 - 100))?;
    link.bring_up(&a, &b.side, b.qp.qp_num(), link.psn)?;
    b.post_recv(1, &[])?;
    a.post(SendWr::send(2, &[]))?;
    failed(&a.sent()?, 2, WcStatus::RetryExcErr, a.qp.qp_num())?;
    a.reaches(QpState::Err)?;
    ensure_eq!(b.qp.state(), QpState::Rts, "state of the peer");
    b.wait.nothing(&b.recv_cq)
}

/// A peer that becomes ready while it is being retried gets the message, once.
fn comes_up_late(env: &Env) -> CaseResult {
    let build = Build::new(QpType::Rc);
    let (a, b) = (build.at(env, &env.a)?, build.at(env, &env.b)?);
    let marker = Marker::new(env)?;
    let link = Link::default();
    link.bring_up(&a, &b.side, b.qp.qp_num(), link.psn)?;
    a.post(SendWr::new(1, SendOp::SendImm(7), &[]))?;
    marker.pass()?;
    env.wait.nothing(&a.send_cq)?;
    b.qp.modify(&link.init(&b))?;
    b.post_recv(2, &[])?;
    b.qp.modify(&link.rtr(&b, &a.side, a.qp.qp_num(), link.psn.0))?;
    ok(&a.sent()?, 1, WcOpcode::Send)?;
    let wc = b.received()?;
    ok(&wc, 2, WcOpcode::Recv)?;
    ensure_eq!(wc.imm_data(), Some(7), "immediate data");
    b.qp.modify(&link.rts(&b, link.psn.1))?;
    Pair { a, b }.round_trip()
}
