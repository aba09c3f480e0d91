//! Memory regions that go away under traffic.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Link, Marker, Pair, pattern};
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{Access, Buffer, QpState, QpType, Region, SendOp, SendWr, WcStatus, WorkCompletion};

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("lifetime/target-dropped-under-writes", target_dropped));
    all.push(Case::new("lifetime/source-of-reads-dropped", source_of_reads_dropped));
    all.push(Case::new("lifetime/source-dropped-after-the-post", source_dropped));
    all.push(Case::new("lifetime/receive-buffer-dropped", receive_buffer_dropped));
    all.push(Case::new("lifetime/clone-keeps-the-key", clone_keeps));
    all.push(Case::new("lifetime/region-outlives-its-registration", region_outlives));
}

const LEN: usize = 200_000;

/// The peer's region is dropped while writes to it arrive. Each write succeeds or is refused, and after the first that is
/// refused none succeeds; new memory in the same place is never written.
fn target_dropped(env: &Env) -> CaseResult {
    for _ in 0..10 {
        let pair = Pair::rc(env)?;
        let (source, target) = (pair.a.memory(LEN)?, pair.b.memory(LEN)?);
        source.mr.write(0, &pattern(1, LEN))?;
        let op = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
        for wr_id in 0..20 {
            pair.a.post(SendWr::new(wr_id, op, &[source.mr.sge(..)?]))?;
        }
        drop(target);
        let fresh = pair.b.memory(LEN)?;
        let all = pair.a.wait.take(&pair.a.send_cq, 20)?;
        stops_once(&all, WcStatus::RemAccessErr)?;
        fresh.untouched()?;
    }
    Ok(())
}

/// Some successes, then at most one `failure`, then nothing but flushes.
fn stops_once(all: &[WorkCompletion], failure: WcStatus) -> CaseResult {
    let statuses: Vec<_> = all.iter().map(|wc| wc.status).collect();
    let first = statuses.iter().position(|&status| status != WcStatus::Success).unwrap_or(statuses.len());
    ensure!(
        statuses[first..].iter().enumerate().all(|(at, &status)| match at {
            0 => status == failure,
            _ => status == WcStatus::WrFlushErr,
        }),
        "statuses {statuses:?}"
    );
    ensure!(all.iter().enumerate().all(|(at, wc)| wc.wr_id == at as u64), "request numbers of {all:?}");
    Ok(())
}

fn source_of_reads_dropped(env: &Env) -> CaseResult {
    for _ in 0..10 {
        let pair = Pair::rc(env)?;
        let (local, source) = (pair.a.memory(LEN)?, pair.b.memory(LEN)?);
        let op = SendOp::Read { remote_addr: source.addr(0), rkey: source.mr.rkey() };
        for wr_id in 0..20 {
            pair.a.post(SendWr::new(wr_id, op, &[local.mr.sge(..)?]))?;
        }
        drop(source);
        let all = pair.a.wait.take(&pair.a.send_cq, 20)?;
        stops_once(&all, WcStatus::RemAccessErr)?;
        // Whether a request or a response found the memory gone, the connection is over at both ends.
        if all.iter().any(|wc| !wc.is_ok()) {
            pair.b.reaches(QpState::Err)?;
        }
    }
    Ok(())
}

/// The sender drops its own region right after the post: the send succeeds with the bytes that were there, or fails.
fn source_dropped(env: &Env) -> CaseResult {
    let marker = Marker::new(env)?;
    for round in 0..10 {
        let pair = Pair::rc(env)?;
        let target = pair.b.memory(LEN)?;
        let data = pattern(round, LEN);
        {
            let source = pair.a.memory(LEN)?;
            source.mr.write(0, &data)?;
            pair.b.post_recv(1, &[target.mr.sge(..)?])?;
            pair.a.post(SendWr::send(0, &[source.mr.sge(..)?]))?;
        }
        let sent = pair.a.sent()?;
        stops_once(&[sent], WcStatus::LocProtErr)?;
        if sent.is_ok() {
            ensure!(pair.b.received()?.is_ok(), "the receive of a message that was sent");
            target.holds(0, &data)?;
        } else {
            marker.pass()?;
            pair.b.wait.nothing(&pair.b.recv_cq)?;
        }
    }
    Ok(())
}

/// A receive buffer is dropped while the message for it arrives.
fn receive_buffer_dropped(env: &Env) -> CaseResult {
    for _ in 0..10 {
        let pair = Pair::rc(env)?;
        let source = pair.a.memory(LEN)?;
        source.mr.write(0, &pattern(1, LEN))?;
        let target = pair.b.memory(LEN)?;
        pair.b.post_recv(0, &[target.mr.sge(..)?])?;
        pair.a.post(SendWr::send(0, &[source.mr.sge(..)?]))?;
        drop(target);
        let fresh = pair.b.memory(LEN)?;
        let (sent, received) = (pair.a.sent()?, pair.b.received()?);
        stops_once(&[sent], WcStatus::RemOpErr)?;
        stops_once(&[received], WcStatus::LocProtErr)?;
        ensure_eq!(sent.is_ok(), received.is_ok(), "whether both ends call it a success");
        fresh.untouched()?;
    }
    Ok(())
}

/// The keys are valid until the last handle is dropped.
fn clone_keeps(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let (source, target) = (pair.a.memory(8)?, pair.b.memory(8)?);
    let op = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
    let twin = target.mr.clone();
    ensure!(twin == target.mr, "a clone is another region");
    drop(target);
    pair.a.post(SendWr::new(1, op, &[source.mr.sge(..)?]))?;
    ensure!(pair.a.sent()?.is_ok(), "the key died with the first handle");
    drop(twin);
    pair.a.post(SendWr::new(2, op, &[source.mr.sge(..)?]))?;
    ensure_eq!(pair.a.sent()?.status, WcStatus::RemAccessErr, "status after the last handle");
    Ok(())
}

/// Memory can outlive its registration, and be registered again, elsewhere.
fn region_outlives(env: &Env) -> CaseResult {
    let region = Region::owned(Buffer::zeroed(4096)?);
    for round in 0..3 {
        let pair = Pair::new(env, &Build::new(QpType::Rc), &Link::default())?;
        let mr = pair.b.pd.reg_region(region.clone(), Access::ALL)?;
        let source = pair.a.memory(4096)?;
        let data = pattern(round, 4096);
        source.mr.write(0, &data)?;
        let op = SendOp::Write { remote_addr: mr.addr(), rkey: mr.rkey() };
        pair.a.post(SendWr::new(1, op, &[source.mr.sge(..)?]))?;
        ensure!(pair.a.sent()?.is_ok(), "the write of round {round}");
        drop((pair, mr));
        let mut out = vec![0; 4096];
        region.read(0, &mut out)?;
        ensure!(out == data, "the memory of round {round}");
    }
    Ok(())
}
