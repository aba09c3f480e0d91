//! Which posts each state takes, and how many.

use super::fixture::{SERVICES, STATES, Subject, lower, service};
use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Link, Pair, ok, succeeded};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{
    Data, Error, PostError, QpCap, QpInitAttr, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, WcOpcode,
};

pub(super) fn add(all: &mut Vec<Case>) {
    for qp_type in SERVICES {
        for state in STATES {
            if qp_type == QpType::Rc && state == QpState::Sqe {
                continue;
            }
            let name = format!("post/{}/in-{}", service(qp_type), lower(state));
            all.push(Case::new(name, move |env| in_state(env, qp_type, state)));
        }
    }
    all.push(Case::new("post/send-queue-full", send_queue_full));
    all.push(Case::new("post/receive-queue-full", receive_queue_full));
    all.push(Case::new("post/places-come-back", places_come_back));
    all.push(Case::new("post/too-many-elements", too_many_elements));
    all.push(Case::new("post/inline-too-large", inline_too_large));
    all.push(Case::new("post/inline-for-what-brings-data", inline_read));
    all.push(Case::new("post/longer-than-any-message", longer_than_any));
    all.push(Case::new("post/sizes-are-at-least-those-asked-for", sizes));
    all.push(Case::new("post/sizes-beyond-the-device", beyond_the_device));
}

/// IBTA 10.8.2: sends from RTS on, receives from INIT on; in the error states they are taken and flushed.
fn in_state(env: &Env, qp_type: QpType, state: QpState) -> CaseResult {
    let subject = Subject::new(env, qp_type, state)?;
    let (sends, receives) = match state {
        QpState::Reset => (false, false),
        QpState::Init | QpState::Rtr => (false, true),
        QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => (true, true),
    };
    let sent = subject.end.qp.post_send(&[subject.addressed(SendWr::send(7, &[]))]);
    outcome("a send", sent, sends)?;
    outcome("a receive", subject.end.qp.post_recv(&[RecvWr::new(8, &[])]), receives)?;
    // What was refused leaves no trace.
    if !sends {
        subject.end.wait.nothing(&subject.end.send_cq)?;
    }
    if !receives {
        subject.end.wait.nothing(&subject.end.recv_cq)?;
    }
    ensure_eq!(subject.end.qp.state(), state, "state after the posts");
    Ok(())
}

fn outcome(what: &str, result: Result<(), PostError>, accepted: bool) -> CaseResult {
    match (result, accepted) {
        (Ok(()), true) => Ok(()),
        (Err(refused), false) => {
            ensure_eq!(refused.index, 0, "index of {what} that was refused");
            Ok(())
        }
        (Ok(()), false) => Err(Failure::new(format!("{what} was accepted"))),
        (Err(refused), true) => Err(Failure::new(format!("{what} was refused: {refused}"))),
    }
}

fn full(result: Result<(), PostError>, index: usize) -> CaseResult {
    let Err(refused) = result else { return Err(Failure::new("more was posted than there is room for")) };
    ensure_eq!(refused.index, index, "index of the first that does not fit");
    ensure!(matches!(refused.error, Error::QueueFull { .. }), "refused with: {}", refused.error);
    Ok(())
}

/// Exactly as many sends fit as the queue pair says, one by one or as a list.
fn send_queue_full(env: &Env) -> CaseResult {
    for asked in [1, 3, 64] {
        let build = Build::new(QpType::Rc).cap(|cap| cap.max_send_wr = asked);
        // Nobody has a receive, so nothing completes.
        let pair = Pair::new(env, &build, &Link::default())?;
        let capacity = pair.a.qp.cap().max_send_wr as usize;
        let wrs: Vec<_> = (0..capacity + 3)
            .map(|index| {
                let flags = if index % 3 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
                SendWr::send(index as u64, &[]).flags(flags)
            })
            .collect();
        pair.a.qp.post_send(&wrs[..1])?;
        full(pair.a.qp.post_send(&wrs[1..]), capacity - 1)?;
        full(pair.a.qp.post_send(&wrs[capacity..capacity + 1]), 0)?;
        // Those that fitted are all sent, and no other.
        for wr_id in 0..capacity as u64 {
            pair.b.post_recv(wr_id, &[])?;
            ok(&pair.b.received()?, wr_id, WcOpcode::Recv)?;
        }
        let signaled: Vec<_> = (0..capacity as u64).filter(|index| index % 3 == 0).collect();
        succeeded(&pair.a.wait.take(&pair.a.send_cq, signaled.len())?, signaled)?;
        pair.b.post_recv(99, &[])?;
        pair.a.wait.nothing(&pair.a.send_cq)?;
        pair.b.wait.nothing(&pair.b.recv_cq)?;
    }
    Ok(())
}

fn receive_queue_full(env: &Env) -> CaseResult {
    for asked in [1, 5, 64] {
        let build = Build::new(QpType::Rc).cap(|cap| cap.max_recv_wr = asked);
        let pair = Pair::new(env, &build, &Link::default())?;
        let capacity = pair.b.qp.cap().max_recv_wr as usize;
        let wrs: Vec<_> = (0..capacity + 3).map(|index| RecvWr::new(index as u64, &[])).collect();
        full(pair.b.qp.post_recv(&wrs), capacity)?;
        full(pair.b.qp.post_recv(&wrs[capacity..]), 0)?;
        for wr_id in 0..capacity as u64 {
            pair.a.post(SendWr::send(1, &[]))?;
            ok(&pair.a.sent()?, 1, WcOpcode::Send)?;
            ok(&pair.b.received()?, wr_id, WcOpcode::Recv)?;
        }
        pair.b.qp.post_recv(&wrs[..capacity])?;
    }
    Ok(())
}

/// A place is free again once its completion was polled.
fn places_come_back(env: &Env) -> CaseResult {
    let build = Build::new(QpType::Rc).cap(|cap| {
        cap.max_send_wr = 4;
        cap.max_recv_wr = 4;
    });
    let pair = Pair::new(env, &build, &Link::default())?;
    for round in 0..200 {
        pair.b.post_recv(round, &[])?;
        pair.a.post(SendWr::send(round, &[]))?;
        ok(&pair.a.sent()?, round, WcOpcode::Send)?;
        ok(&pair.b.received()?, round, WcOpcode::Recv)?;
    }
    let capacity = u64::from(pair.a.qp.cap().max_send_wr);
    for wr_id in 0..capacity {
        pair.a.post(SendWr::new(wr_id, SendOp::Write { remote_addr: 0, rkey: 0 }, &[]))?;
    }
    succeeded(&env.wait.take(&pair.a.send_cq, capacity as usize)?, 0..capacity)
}

fn too_many_elements(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let cap = pair.a.qp.cap();
    let local = pair.a.memory(8)?;
    let sges = vec![local.mr.sge(..1)?; cap.max_send_sge.max(cap.max_recv_sge) as usize + 1];
    let write = SendOp::Write { remote_addr: 0, rkey: 0 };
    let wrs = [
        SendWr::new(1, write, &[]),
        SendWr::new(2, SendOp::Send, &sges[..cap.max_send_sge as usize + 1]),
        SendWr::new(3, write, &[]),
    ];
    let Err(refused) = pair.a.qp.post_send(&wrs) else { return Err(Failure::new("a send of too many elements")) };
    ensure_eq!(refused.index, 1, "index of the send");
    let wrs = [RecvWr::new(1, &[]), RecvWr::new(2, &sges[..cap.max_recv_sge as usize + 1])];
    let Err(refused) = pair.a.qp.post_recv(&wrs) else { return Err(Failure::new("a receive of too many elements")) };
    ensure_eq!(refused.index, 1, "index of the receive");
    // What came before in the list was posted, what came after was not.
    ok(&pair.a.sent()?, 1, WcOpcode::RdmaWrite)?;
    pair.a.post(SendWr::new(4, write, &[]))?;
    ok(&pair.a.sent()?, 4, WcOpcode::RdmaWrite)?;
    pair.a.wait.nothing(&pair.a.send_cq)?;
    pair.b.post(SendWr::send(5, &[]))?;
    ok(&pair.b.sent()?, 5, WcOpcode::Send)?;
    ok(&pair.a.received()?, 1, WcOpcode::Recv)
}

fn inline_too_large(env: &Env) -> CaseResult {
    if env.device()?.max_inline_data == 0 {
        return Err(Failure::not_applicable("the device has no inline data"));
    }
    let pair = Pair::rc(env)?;
    let max = pair.a.qp.cap().max_inline_data as usize;
    ensure!(max >= QpCap::default().max_inline_data as usize, "less inline data than was asked for");
    let target = pair.b.memory(max + 1)?;
    let op = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
    let bytes = vec![9; max + 1];
    let wrs = [SendWr::inline(1, op, &bytes[..max]), SendWr::inline(2, op, &bytes)];
    let Err(refused) = pair.a.qp.post_send(&wrs) else { return Err(Failure::new("inline data of one byte too many")) };
    ensure_eq!(refused.index, 1, "index");
    ok(&pair.a.sent()?, 1, WcOpcode::RdmaWrite)?;
    target.expect(0, &[max], &bytes[..max])?;
    pair.round_trip()
}

/// Inline data is copied in; a read or an atomic has nowhere to bring its data to.
fn inline_read(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let target = pair.b.memory(8)?;
    let (remote_addr, rkey) = (target.addr(0), target.mr.rkey());
    for op in [
        SendOp::Read { remote_addr, rkey },
        SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 0 },
    ] {
        let wr = SendWr { data: Data::Inline(&[0; 8]), ..SendWr::new(1, op, &[]) };
        ensure!(pair.a.qp.post_send(&[wr]).is_err(), "{op:?} with inline data was accepted");
    }
    target.untouched()?;
    pair.round_trip()
}

/// A message that is longer than the port's limit never leaves.
fn longer_than_any(env: &Env) -> CaseResult {
    let limit = u64::from(env.a.context.query_port(env.a.port)?.max_msg_sz);
    let build = Build::new(QpType::Rc).cap(|cap| cap.max_send_sge = 2);
    let pair = Pair::new(env, &build, &Link::default())?;
    let local = pair.a.memory(8)?;
    let good = local.mr.sge(..)?;
    let half = u32::try_from(limit / 2 + 1).unwrap_or(u32::MAX);
    let sges = [ferroce_verbs::Sge { length: half, ..good }; 2];
    pair.b.post_recv(1, &[])?;
    if pair.a.post(SendWr::send(2, &sges)).is_ok() {
        let wc = pair.a.sent()?;
        ensure!(
            matches!(wc.status, ferroce_verbs::WcStatus::LocLenErr | ferroce_verbs::WcStatus::LocProtErr),
            "it ended with {:?}",
            wc.status
        );
    }
    pair.b.wait.nothing(&pair.b.recv_cq)
}

fn sizes(env: &Env) -> CaseResult {
    let device = env.device()?;
    let asked = QpCap {
        max_send_wr: 17.min(device.max_qp_wr),
        max_recv_wr: 33.min(device.max_qp_wr),
        max_send_sge: 3.min(device.max_sge),
        max_recv_sge: 4.min(device.max_sge),
        max_inline_data: 100.min(device.max_inline_data),
    };
    for qp_type in SERVICES {
        let cap = Build::new(qp_type).cap(|cap| *cap = asked).at(env, &env.a)?.qp.cap();
        let enough = cap.max_send_wr >= asked.max_send_wr
            && cap.max_recv_wr >= asked.max_recv_wr
            && cap.max_send_sge >= asked.max_send_sge
            && cap.max_recv_sge >= asked.max_recv_sge
            && cap.max_inline_data >= asked.max_inline_data;
        ensure!(enough, "asked for {asked:?}, got {cap:?}");
    }
    Ok(())
}

/// What the device says is its most is its most.
fn beyond_the_device(env: &Env) -> CaseResult {
    let device = env.device()?;
    let pd = env.a.context.alloc_pd()?;
    let cq = env.a.context.create_cq(16, None)?;
    let cap = QpCap::default();
    for cap in [
        QpCap { max_send_wr: device.max_qp_wr.saturating_add(1), ..cap },
        QpCap { max_recv_wr: device.max_qp_wr.saturating_add(1), ..cap },
        QpCap { max_send_sge: device.max_sge.saturating_add(1), ..cap },
        QpCap { max_recv_sge: device.max_sge.saturating_add(1), ..cap },
        QpCap { max_inline_data: device.max_inline_data.saturating_add(1), ..cap },
    ] {
        let attr = QpInitAttr { cap, ..QpInitAttr::new(QpType::Rc, &cq) };
        ensure!(pd.create_qp(&attr).is_err(), "{cap:?}, beyond what the device says of itself");
    }
    Ok(())
}
