//! The completion queue itself.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Link, Pair, ok, same_set, succeeded};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{AsyncEvent, EventType, QpType, SendOp, SendWr, WcOpcode, WorkCompletion};

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("cq/has-the-room-asked-for", room));
    all.push(Case::new("cq/poll-takes-what-fits", poll_takes_what_fits));
    all.push(Case::new("cq/shared-by-queue-pairs", shared));
    all.push(Case::new("cq/keeps-what-is-not-polled", keeps));
    all.push(Case::new("cq/completions-outlive-the-queue-pair", outlive));
    all.push(Case::new("cq/overflow-is-reported", overflow));
    all.push(Case::new("cq/refuses-impossible-sizes", impossible));
}

fn room(env: &Env) -> CaseResult {
    let max = env.device()?.max_cqe;
    for cqe in [1, 2, 3, 17, 100, 1000] {
        if cqe <= max {
            let cq = env.a.context.create_cq(cqe, None)?;
            ensure!(cq.cqe() >= cqe, "{cqe} entries asked for, {} made", cq.cqe());
        }
    }
    Ok(())
}

fn impossible(env: &Env) -> CaseResult {
    let max = env.device()?.max_cqe;
    if let Some(more) = max.checked_add(1) {
        ensure!(env.a.context.create_cq(more, None).is_err(), "{more} entries, where {max} is the most");
    }
    ensure!(env.a.context.create_cq(u32::MAX, None).is_err(), "2^32-1 entries, where {max} is the most");
    ensure!(env.a.context.create_cq(0, None).is_err(), "a queue of no entries");
    Ok(())
}

/// Posts `count` writes of nothing, signaled.
fn writes(pair: &Pair, count: u64) -> CaseResult {
    for wr_id in 0..count {
        pair.a.post(SendWr::new(wr_id, SendOp::Write { remote_addr: 0, rkey: 0 }, &[]))?;
    }
    Ok(())
}

fn poll_takes_what_fits(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let cq = &pair.a.send_cq;
    ensure_eq!(cq.poll(&mut [])?, 0, "completions in no places");
    writes(&pair, 7)?;
    ensure_eq!(cq.poll(&mut [])?, 0, "completions in no places");
    succeeded(&env.wait.take(cq, 3)?, 0..3)?;
    succeeded(&env.wait.take(cq, 4)?, 3..7)?;
    let untouched = WorkCompletion::new(99, WcOpcode::Recv, 98);
    let mut out = [untouched; 2];
    ensure_eq!(cq.poll(&mut out)?, 0, "completions of an empty queue");
    ensure_eq!(out, [untouched; 2], "what was in the places");
    Ok(())
}

/// Sends and receives of several queue pairs come out of one queue, each with its queue pair's number.
fn shared(env: &Env) -> CaseResult {
    const QPS: usize = 4;
    let cq = env.b.context.create_cq(64, None)?;
    let build = Build::new(QpType::Rc);
    let pairs: Vec<Pair> = (0..QPS)
        .map(|_| Pair::of(env, &build, &build.clone().send_cq(&cq).recv_cq(&cq), &Link::default()))
        .collect::<Result<_, _>>()?;
    let mut want = Vec::new();
    for (index, pair) in (0..).zip(&pairs) {
        pair.b.post_recv(index, &[])?;
        pair.a.post_recv(index, &[])?;
        pair.a.post(SendWr::send(index, &[]))?;
        pair.b.post(SendWr::send(100 + index, &[]))?;
        want.push((index, pair.b.qp.qp_num()));
        want.push((100 + index, pair.b.qp.qp_num()));
    }
    let all = env.wait.take(&cq, want.len())?;
    ensure!(all.iter().all(WorkCompletion::is_ok), "{all:?}");
    same_set(all.iter().map(|wc| (wc.wr_id, wc.qp_num)).collect(), want)
}

/// Completions stay, in order, however late they are polled.
fn keeps(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    writes(&pair, 40)?;
    let after = Pair::rc(env)?;
    after.round_trip()?;
    succeeded(&env.wait.take(&pair.a.send_cq, 40)?, 0..40)
}

/// What completed before its queue pair was dropped can still be polled, as can the success of what is outstanding.
fn outlive(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let (send_cq, recv_cq) = (pair.a.send_cq.clone(), pair.b.recv_cq.clone());
    pair.b.post_recv(1, &[])?;
    pair.a.post(SendWr::send(2, &[]))?;
    // The receive's success shows that the message was there before anything was dropped.
    ok(&env.wait.next(&recv_cq)?, 1, WcOpcode::Recv)?;
    ok(&env.wait.next(&send_cq)?, 2, WcOpcode::Send)?;
    pair.b.post_recv(3, &[])?;
    pair.a.post(SendWr::send(4, &[]))?;
    Pair::rc(env)?.round_trip()?;
    drop(pair);
    let all = [env.wait.next(&send_cq)?, env.wait.next(&recv_cq)?];
    ensure_eq!([all[0].wr_id, all[1].wr_id], [4, 3], "request numbers");
    Ok(())
}

fn overflow(env: &Env) -> CaseResult {
    let device = env.device()?;
    let cq = env.a.context.create_cq(1, None)?;
    // A device may have some places that it does not tell of.
    const HIDDEN: u32 = 256;
    let (room, deepest) = (cq.cqe().saturating_add(HIDDEN), device.max_qp_wr.min(4096));
    let count = room.div_euclid(deepest) + 1;
    if count > 8 {
        return Err(Failure::not_applicable(format!("{room} entries are too many to fill")));
    }
    // Together the queue pairs can have more outstanding than the queue has room for.
    let build = Build::new(QpType::Rc).cap(|cap| cap.max_send_wr = deepest.min(room + 1));
    let depth = build.cap.max_send_wr;
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push(Pair::of(env, &build.clone().send_cq(&cq), &Build::new(QpType::Rc), &Link::default())?);
    }
    for pair in &pairs {
        // A post may fail once the overflow has put the queue pair into the error state, and that is no fault.
        for wr_id in 0..u64::from(depth) {
            if pair.a.post(SendWr::new(wr_id, SendOp::Write { remote_addr: 0, rkey: 0 }, &[])).is_err() {
                break;
            }
        }
    }
    match env.wait.event(&env.a.context, EventType::CqErr)? {
        AsyncEvent::Cq(_, which) => ensure!(which == cq, "the event is of another queue"),
        other => return Err(Failure::new(format!("the event is {other:?}"))),
    }
    // Nobody else is hurt.
    Pair::rc(env)?.round_trip()
}
