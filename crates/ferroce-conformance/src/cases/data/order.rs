//! What is posted in order happens and completes in order.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Link, Pair, ok, pattern, succeeded};
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{QpType, RecvWr, SendFlags, SendOp, SendWr, WcOpcode};

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("order/rc/mixed-operations", mixed));
    all.push(Case::new("order/rc/receives-in-order", receives));
    all.push(Case::new("order/rc/one-list", one_list));
    all.push(Case::new("order/rc/both-directions", both_directions));
    all.push(Case::new("order/rc/one-completion-for-many", one_for_many));
    all.push(Case::new("order/rc/write-before-send", write_before_send));
    all.push(Case::new("order/rc/read-after-write", read_after_write));
    all.push(Case::new("order/rc/fence-read-then-send", |env| fence(env, false)));
    all.push(Case::new("order/rc/fence-read-then-write", |env| fence(env, true)));
    all.push(Case::new("order/rc/sq-sig-all", sig_all));
}

/// Reads, writes, atomics and sends of different length complete in the order in which they were posted.
fn mixed(env: &Env) -> CaseResult {
    const ROUNDS: usize = 8;
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let (local, remote) = (a.memory(64 << 10)?, b.memory(64 << 10)?);
    let (remote_addr, rkey) = (remote.addr(0), remote.mr.rkey());
    let atomics = super::atomic::need_atomics(env).is_ok();
    let landing = b.memory(64)?;
    let mut want = Vec::new();
    for round in 0..ROUNDS {
        b.post_recv(round as u64, &[landing.mr.sge(..)?])?;
        let big = [local.mr.sge(..)?];
        let small = [local.mr.sge(..8)?];
        let mut ops = vec![
            (SendOp::Read { remote_addr, rkey }, &big, WcOpcode::RdmaRead),
            (SendOp::Write { remote_addr, rkey }, &small, WcOpcode::RdmaWrite),
            (SendOp::Send, &small, WcOpcode::Send),
            (SendOp::Write { remote_addr, rkey }, &big, WcOpcode::RdmaWrite),
        ];
        if atomics {
            ops.insert(2, (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, &small, WcOpcode::FetchAdd));
        }
        for (op, sges, opcode) in ops {
            let wr_id = want.len() as u64;
            want.push((wr_id, opcode));
            a.post(SendWr::new(wr_id, op, sges))?;
        }
    }
    let all = a.wait.take(&a.send_cq, want.len())?;
    for (wc, (wr_id, opcode)) in all.iter().zip(want) {
        ok(wc, wr_id, opcode)?;
    }
    succeeded(&b.wait.take(&b.recv_cq, ROUNDS)?, 0..ROUNDS as u64)
}

/// Each message goes to the receive that was posted first, whatever their sizes.
fn receives(env: &Env) -> CaseResult {
    const COUNT: usize = 40;
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let len = |index: usize| index * 61 % 2500;
    let (source, target) = (a.memory(COUNT * 2500)?, b.memory(COUNT * 2500)?);
    for index in 0..COUNT {
        let at = index * 2500;
        source.mr.write(at, &pattern(index as u64, len(index)))?;
        b.post_recv(1000 + index as u64, &[target.mr.sge(at..at + 2500)?])?;
    }
    for index in 0..COUNT {
        let at = index * 2500;
        a.post(SendWr::send(index as u64, &[source.mr.sge(at..at + len(index))?]))?;
    }
    succeeded(&a.wait.take(&a.send_cq, COUNT)?, 0..COUNT as u64)?;
    let all = b.wait.take(&b.recv_cq, COUNT)?;
    succeeded(&all, 1000..1000 + COUNT as u64)?;
    for (index, wc) in all.iter().enumerate() {
        ensure_eq!(wc.byte_len as usize, len(index), "byte_len of message {index}");
        target.holds(index * 2500, &pattern(index as u64, len(index)))?;
    }
    Ok(())
}

/// A list of requests is as good as one call for each.
fn one_list(env: &Env) -> CaseResult {
    const COUNT: usize = 16;
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let (source, target) = (a.memory(COUNT * 8)?, b.memory(COUNT * 8)?);
    let data = pattern(3, COUNT * 8);
    source.mr.write(0, &data)?;
    let from: Vec<_> = (0..COUNT).map(|at| source.mr.sge(at * 8..at * 8 + 8)).collect::<Result<_, _>>()?;
    let to: Vec<_> = (0..COUNT).map(|at| target.mr.sge(at * 8..at * 8 + 8)).collect::<Result<_, _>>()?;
    let recvs: Vec<_> =
        to.iter().enumerate().map(|(index, sge)| RecvWr::new(index as u64, std::slice::from_ref(sge))).collect();
    let sends: Vec<_> =
        from.iter().enumerate().map(|(index, sge)| SendWr::send(index as u64, std::slice::from_ref(sge))).collect();
    b.qp.post_recv(&recvs)?;
    a.qp.post_send(&sends)?;
    succeeded(&a.wait.take(&a.send_cq, COUNT)?, 0..COUNT as u64)?;
    succeeded(&b.wait.take(&b.recv_cq, COUNT)?, 0..COUNT as u64)?;
    target.holds(0, &data)?;
    // An empty list is no work and no error.
    a.qp.post_send(&[])?;
    b.qp.post_recv(&[])?;
    Ok(())
}

fn both_directions(env: &Env) -> CaseResult {
    const COUNT: usize = 30;
    const LEN: usize = 5000;
    let pair = Pair::rc(env)?;
    let ends = [(&pair.a, &pair.b, 1), (&pair.b, &pair.a, 2)];
    let mut targets = Vec::new();
    for (from, to, seed) in ends {
        let (source, target) = (from.memory(LEN)?, to.memory(LEN * COUNT)?);
        source.mr.write(0, &pattern(seed, LEN))?;
        for index in 0..COUNT {
            to.post_recv(index as u64, &[target.mr.sge(index * LEN..(index + 1) * LEN)?])?;
        }
        targets.push((source, target, seed));
    }
    for index in 0..COUNT {
        for ((from, _, _), (source, _, _)) in ends.iter().zip(&targets) {
            from.post(SendWr::send(index as u64, &[source.mr.sge(..)?]))?;
        }
    }
    for ((from, to, _), (_, target, seed)) in ends.iter().zip(&targets) {
        succeeded(&from.wait.take(&from.send_cq, COUNT)?, 0..COUNT as u64)?;
        succeeded(&to.wait.take(&to.recv_cq, COUNT)?, 0..COUNT as u64)?;
        (0..COUNT).try_for_each(|index| target.holds(index * LEN, &pattern(*seed, LEN)))?;
    }
    Ok(())
}

/// A signaled request stands for the unsignaled ones before it, and gives their places in the queue back.
fn one_for_many(env: &Env) -> CaseResult {
    let build = Build::new(QpType::Rc).cap(|cap| cap.max_send_wr = 16);
    let pair = Pair::new(env, &build, &Link::default())?;
    let Pair { a, b } = &pair;
    let capacity = a.qp.cap().max_send_wr as usize;
    let (source, target) = (a.memory(64)?, b.memory(64)?);
    let op = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
    for round in 0..5_u64 {
        let data = pattern(round, 64);
        source.mr.write(0, &data)?;
        for index in 1..=capacity as u64 {
            let last = index == capacity as u64;
            let flags = if last { SendFlags::SIGNALED } else { SendFlags::empty() };
            a.post(SendWr::new(index, op, &[source.mr.sge(..)?]).flags(flags))?;
        }
        ok(&a.sent()?, capacity as u64, WcOpcode::RdmaWrite)?;
        a.wait.nothing(&a.send_cq)?;
        target.holds(0, &data)?;
    }
    Ok(())
}

/// When a send has arrived, so has every write before it (IBTA 9.5, table 76).
fn write_before_send(env: &Env) -> CaseResult {
    const LEN: usize = 100_000;
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let (source, target, landing) = (a.memory(LEN)?, b.memory(LEN)?, b.memory(8)?);
    let op = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
    for round in 0..10 {
        let data = pattern(round, LEN);
        source.mr.write(0, &data)?;
        b.post_recv(round, &[landing.mr.sge(..)?])?;
        a.post(SendWr::new(1, op, &[source.mr.sge(..)?]).flags(SendFlags::empty()))?;
        a.post(SendWr::send(2, &[source.mr.sge(..8)?]))?;
        ok(&b.received()?, round, WcOpcode::Recv)?;
        target.holds(0, &data)?;
        ok(&a.sent()?, 2, WcOpcode::Send)?;
    }
    Ok(())
}

/// A read sees what a write before it wrote.
fn read_after_write(env: &Env) -> CaseResult {
    const LEN: usize = 10_000;
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let (source, back, target) = (a.memory(LEN)?, a.memory(LEN)?, b.memory(LEN)?);
    let (remote_addr, rkey) = (target.addr(0), target.mr.rkey());
    for round in 0..10 {
        let data = pattern(round, LEN);
        source.mr.write(0, &data)?;
        let flags = SendFlags::empty();
        a.post(SendWr::new(1, SendOp::Write { remote_addr, rkey }, &[source.mr.sge(..)?]).flags(flags))?;
        a.post(SendWr::new(2, SendOp::Read { remote_addr, rkey }, &[back.mr.sge(..)?]))?;
        ok(&a.sent()?, 2, WcOpcode::RdmaRead)?;
        back.holds(0, &data)?;
    }
    Ok(())
}

/// A fenced request starts after the reads before it, so it may carry what they bring (IBTA 10.8.3.3).
fn fence(env: &Env, write: bool) -> CaseResult {
    const LEN: usize = 200_000;
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let (relay, origin, target) = (a.memory(LEN)?, b.memory(LEN)?, b.memory(LEN)?);
    for round in 0..8 {
        let data = pattern(round, LEN);
        origin.mr.write(0, &data)?;
        relay.clear()?;
        target.clear()?;
        let read = SendOp::Read { remote_addr: origin.addr(0), rkey: origin.mr.rkey() };
        let next = if write {
            SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() }
        } else {
            b.post_recv(round, &[target.mr.sge(..)?])?;
            SendOp::Send
        };
        let flags = SendFlags::SIGNALED | SendFlags::FENCE;
        a.qp.post_send(&[
            SendWr::new(1, read, &[relay.mr.sge(..)?]),
            SendWr::new(2, next, &[relay.mr.sge(..)?]).flags(flags),
        ])?;
        succeeded(&a.wait.take(&a.send_cq, 2)?, [1, 2])?;
        if !write {
            ok(&b.received()?, round, WcOpcode::Recv)?;
        }
        target.holds(0, &data)?;
    }
    Ok(())
}

/// With `sq_sig_all` a request needs no flag to complete.
fn sig_all(env: &Env) -> CaseResult {
    let pair = Pair::new(env, &Build::new(QpType::Rc).sq_sig_all(), &Link::default())?;
    let Pair { a, b } = &pair;
    let target = b.memory(8)?;
    let op = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
    for wr_id in 0..3 {
        a.post(SendWr::new(wr_id, op, &[]).flags(SendFlags::empty()))?;
    }
    let all = a.wait.take(&a.send_cq, 3)?;
    ensure!(all.iter().all(|wc| wc.opcode == WcOpcode::RdmaWrite), "opcodes of {all:?}");
    succeeded(&all, 0..3)
}
