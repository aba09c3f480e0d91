//! Corners of the data path: empty messages, ends of regions, wrapping sequence numbers, one's own peer.

use crate::failure::ensure_eq;
use crate::fixture::{Build, Link, Pair, UdPair, ok, pattern, succeeded};
use crate::{Case, CaseResult, End, Env};
use ferroce_verbs::{Access, Mtu, QpType, SendOp, SendWr, WcOpcode};

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("edge/rc/empty-write-needs-no-key", |env| empty_needs_no_key(env, false)));
    all.push(Case::new("edge/rc/empty-read-needs-no-key", |env| empty_needs_no_key(env, true)));
    all.push(Case::new("edge/rc/whole-region", whole_region));
    all.push(Case::new("edge/rc/send-psn-wraps", |env| psn_wraps(env, false)));
    all.push(Case::new("edge/rc/read-psn-wraps", |env| psn_wraps(env, true)));
    all.push(Case::new("edge/rc/connected-to-itself", connected_to_itself));
    all.push(Case::new("edge/rc/both-ends-in-one-context", one_context));
    all.push(Case::new("edge/rc/two-keys-for-one-region", two_keys));
    all.push(Case::new("edge/rc/receives-before-rts", receives_before_rts));
    all.push(Case::new("edge/rc/read-only-source", read_only_source));
    all.push(Case::new("edge/rc/elements-of-different-regions", different_regions));
    all.push(Case::new("edge/rc/passive-peer", passive_peer));
    all.push(Case::new("edge/rc/immediate-values", immediates));
    all.push(Case::new("edge/uc/connected-to-itself", uc_to_itself));
    all.push(Case::new("edge/ud/to-itself", ud_to_itself));
    all.push(Case::new("edge/ud/one-to-many", one_to_many));
}

/// A request for no bytes is not checked against any memory (IBTA C9-88): address and key may be anything.
fn empty_needs_no_key(env: &Env, read: bool) -> CaseResult {
    let pair = Pair::rc(env)?;
    let (remote_addr, rkey) = (0xdead_beef_0000, 0x1234_5678);
    let (op, opcode) = if read {
        (SendOp::Read { remote_addr, rkey }, WcOpcode::RdmaRead)
    } else {
        (SendOp::Write { remote_addr, rkey }, WcOpcode::RdmaWrite)
    };
    pair.a.post(SendWr::new(1, op, &[]))?;
    ok(&pair.a.sent()?, 1, opcode)?;
    pair.round_trip()
}

/// A region is usable to its very last byte, from its very first.
fn whole_region(env: &Env) -> CaseResult {
    const LEN: usize = 12_345;
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let (source, back, target) = (a.memory(LEN)?, a.memory(LEN)?, b.memory(LEN)?);
    let data = pattern(1, LEN);
    source.mr.write(0, &data)?;
    let (remote_addr, rkey) = (target.addr(0), target.mr.rkey());
    a.post(SendWr::new(1, SendOp::Write { remote_addr, rkey }, &[source.mr.sge(..)?]))?;
    a.post(SendWr::new(2, SendOp::Read { remote_addr, rkey }, &[back.mr.sge(..)?]))?;
    succeeded(&a.wait.take(&a.send_cq, 2)?, [1, 2])?;
    target.holds(0, &data)?;
    back.holds(0, &data)?;
    let (remote_addr, last) = (target.addr(LEN - 1), source.mr.sge(..1)?);
    a.post(SendWr::new(3, SendOp::Write { remote_addr, rkey }, &[last]))?;
    ok(&a.sent()?, 3, WcOpcode::RdmaWrite)?;
    target.holds(LEN - 1, &data[..1])
}

/// Packet sequence numbers are 24 bits and go on from 0.
fn psn_wraps(env: &Env, read: bool) -> CaseResult {
    const LEN: usize = 256 * 20 + 3;
    for before in [1, 2, 3, 19, 20, 21, 22] {
        let start = 0x100_0000 - before;
        let link = Link { mtu: Some(Mtu::Mtu256), psn: (start, start), ..Link::default() };
        let pair = Pair::new(env, &Build::new(QpType::Rc), &link)?;
        let Pair { a, b } = &pair;
        let (source, target) = (a.memory(LEN)?, b.memory(LEN)?);
        let data = pattern(u64::from(before), LEN);
        for wr_id in 0..3 {
            source.clear()?;
            target.clear()?;
            if read {
                target.mr.write(0, &data)?;
                let op = SendOp::Read { remote_addr: target.addr(0), rkey: target.mr.rkey() };
                a.post(SendWr::new(wr_id, op, &[source.mr.sge(..)?]))?;
                ok(&a.sent()?, wr_id, WcOpcode::RdmaRead)?;
                source.holds(0, &data)?;
            } else {
                source.mr.write(0, &data)?;
                b.post_recv(wr_id, &[target.mr.sge(..)?])?;
                a.post(SendWr::send(wr_id, &[source.mr.sge(..)?]))?;
                ok(&a.sent()?, wr_id, WcOpcode::Send)?;
                ok(&b.received()?, wr_id, WcOpcode::Recv)?;
                target.holds(0, &data)?;
            }
        }
        pair.round_trip()?;
    }
    Ok(())
}

/// A queue pair whose peer is itself.
fn connected_to_itself(env: &Env) -> CaseResult {
    const LEN: usize = 9000;
    let end = Build::new(QpType::Rc).at(env, &env.a)?;
    Link::default().bring_up(&end, &env.a, end.qp.qp_num(), (77, 77))?;
    let (source, target) = (end.memory(LEN)?, end.memory(LEN)?);
    let data = pattern(1, LEN);
    source.mr.write(0, &data)?;
    end.post_recv(1, &[target.mr.sge(..)?])?;
    end.post(SendWr::send(2, &[source.mr.sge(..)?]))?;
    ok(&end.sent()?, 2, WcOpcode::Send)?;
    ok(&end.received()?, 1, WcOpcode::Recv)?;
    target.holds(0, &data)?;
    target.clear()?;
    let op = SendOp::Read { remote_addr: source.addr(0), rkey: source.mr.rkey() };
    end.post(SendWr::new(3, op, &[target.mr.sge(..)?]))?;
    ok(&end.sent()?, 3, WcOpcode::RdmaRead)?;
    target.holds(0, &data)
}

fn uc_to_itself(env: &Env) -> CaseResult {
    let end = Build::new(QpType::Uc).at(env, &env.a)?;
    Link::default().bring_up(&end, &env.a, end.qp.qp_num(), (77, 77))?;
    let (source, target) = (end.memory(100)?, end.memory(100)?);
    let data = pattern(1, 100);
    source.mr.write(0, &data)?;
    end.post_recv(1, &[target.mr.sge(..)?])?;
    let wc = crate::fixture::persist(&end, || {
        end.post(SendWr::send(2, &[source.mr.sge(..)?]))?;
        ok(&end.sent()?, 2, WcOpcode::Send)
    })?;
    ok(&wc, 1, WcOpcode::Recv)?;
    target.holds(0, &data)
}

/// Two queue pairs of one context, one protection domain and one completion queue.
fn one_context(env: &Env) -> CaseResult {
    let pd = env.a.context.alloc_pd()?;
    let cq = env.a.context.create_cq(256, None)?;
    let build = Build::new(QpType::Rc).pd(&pd).send_cq(&cq).recv_cq(&cq);
    let (a, b) = (build.at(env, &env.a)?, build.at(env, &env.a)?);
    Link::default().connect(&a, &b)?;
    let (source, target) = (a.memory(100)?, b.memory(100)?);
    let data = pattern(1, 100);
    source.mr.write(0, &data)?;
    b.post_recv(1, &[target.mr.sge(..)?])?;
    a.post(SendWr::send(2, &[source.mr.sge(..)?]))?;
    let all = env.wait.take(&cq, 2)?;
    let numbers: Vec<_> = all.iter().map(|wc| (wc.wr_id, wc.qp_num)).collect();
    crate::fixture::same_set(numbers, vec![(1, b.qp.qp_num()), (2, a.qp.qp_num())])?;
    target.holds(0, &data)
}

/// One region registered twice has keys with rights of their own, and losing one leaves the other.
fn two_keys(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let (source, target) = (a.memory(8)?, b.memory(8)?);
    let again = b.pd.reg_region(target.mr.region().clone(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    ensure_eq!(again.addr(), target.mr.addr(), "address of the second registration");
    ensure_eq!(again.rkey() != target.mr.rkey(), true, "the keys differ");
    for (wr_id, rkey) in [(1, target.mr.rkey()), (2, again.rkey())] {
        let data = pattern(wr_id, 8);
        source.mr.write(0, &data)?;
        let op = SendOp::Write { remote_addr: again.addr(), rkey };
        a.post(SendWr::new(wr_id, op, &[source.mr.sge(..)?]))?;
        ok(&a.sent()?, wr_id, WcOpcode::RdmaWrite)?;
        target.holds(0, &data)?;
    }
    let rkey = again.rkey();
    let remote_addr = again.addr();
    drop(target);
    a.post(SendWr::new(3, SendOp::Write { remote_addr, rkey }, &[source.mr.sge(..)?]))?;
    ok(&a.sent()?, 3, WcOpcode::RdmaWrite)
}

/// A queue pair in RTR receives and answers.
fn receives_before_rts(env: &Env) -> CaseResult {
    let build = Build::new(QpType::Rc);
    let (a, b) = (build.at(env, &env.a)?, build.at(env, &env.b)?);
    let link = Link::default();
    b.qp.modify(&link.init(&b))?;
    let target = b.memory(64)?;
    b.post_recv(1, &[target.mr.sge(..)?])?;
    b.qp.modify(&link.rtr(&b, &a.side, a.qp.qp_num(), link.psn.0))?;
    link.bring_up(&a, &b.side, b.qp.qp_num(), link.psn)?;
    let source = a.memory(64)?;
    let data = pattern(1, 64);
    source.mr.write(0, &data)?;
    a.post(SendWr::send(2, &[source.mr.sge(..)?]))?;
    ok(&a.sent()?, 2, WcOpcode::Send)?;
    ok(&b.received()?, 1, WcOpcode::Recv)?;
    target.holds(0, &data)?;
    b.qp.modify(&link.rts(&b, link.psn.1))?;
    Pair { a, b }.round_trip()
}

/// Sending needs no right at all: local read is always allowed.
fn read_only_source(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let (source, target) = (a.memory_with(32, Access::empty())?, b.memory_with(32, Access::LOCAL_WRITE)?);
    b.post_recv(1, &[target.mr.sge(..)?])?;
    a.post(SendWr::send(2, &[source.mr.sge(..)?]))?;
    ok(&a.sent()?, 2, WcOpcode::Send)?;
    ok(&b.received()?, 1, WcOpcode::Recv)?;
    // And a peer may read what nobody may write.
    let shared = b.memory_with(32, Access::REMOTE_READ)?;
    let back = a.memory(32)?;
    let op = SendOp::Read { remote_addr: shared.addr(0), rkey: shared.mr.rkey() };
    a.post(SendWr::new(3, op, &[back.mr.sge(..)?]))?;
    ok(&a.sent()?, 3, WcOpcode::RdmaRead)
}

/// The elements of one request may lie in different regions.
fn different_regions(env: &Env) -> CaseResult {
    let build = Build::new(QpType::Rc).cap(|cap| {
        cap.max_send_sge = 3;
        cap.max_recv_sge = 3;
    });
    let pair = Pair::new(env, &build, &Link::default())?;
    let Pair { a, b } = &pair;
    let data = pattern(1, 3000);
    let parts =
        |end: &crate::fixture::Endpoint| -> CaseResult<Vec<_>> { (0..3).map(|_| Ok(end.memory(1000)?)).collect() };
    let (from, to) = (parts(a)?, parts(b)?);
    for (part, bytes) in from.iter().zip(data.chunks(1000)) {
        part.mr.write(0, bytes)?;
    }
    let sges =
        |parts: &[crate::fixture::Memory]| parts.iter().map(|part| part.mr.sge(..)).collect::<Result<Vec<_>, _>>();
    b.post_recv(1, &sges(&to)?)?;
    a.post(SendWr::send(2, &sges(&from)?))?;
    ok(&a.sent()?, 2, WcOpcode::Send)?;
    ok(&b.received()?, 1, WcOpcode::Recv)?;
    to.iter().zip(data.chunks(1000)).try_for_each(|(part, bytes)| part.holds(0, bytes))
}

/// Reads and writes are answered without any call by the peer's program.
fn passive_peer(env: &Env) -> CaseResult {
    const LEN: usize = 300_000;
    let pair = Pair::rc(env)?;
    let (source, back, target) = (pair.a.memory(LEN)?, pair.a.memory(LEN)?, pair.b.memory(LEN)?);
    let (remote_addr, rkey) = (target.addr(0), target.mr.rkey());
    for round in 0..10 {
        let data = pattern(round, LEN);
        source.mr.write(0, &data)?;
        pair.a.post(SendWr::new(1, SendOp::Write { remote_addr, rkey }, &[source.mr.sge(..)?]))?;
        ok(&pair.a.sent()?, 1, WcOpcode::RdmaWrite)?;
        pair.a.post(SendWr::new(2, SendOp::Read { remote_addr, rkey }, &[back.mr.sge(..)?]))?;
        ok(&pair.a.sent()?, 2, WcOpcode::RdmaRead)?;
        back.holds(0, &data)?;
    }
    Ok(())
}

/// Immediate data is in host order at both ends, and any value is one.
fn immediates(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    for (wr_id, imm) in (0..).zip([0, 1, 0xff, 0x0102_0304, 0x8000_0000, u32::MAX]) {
        pair.b.post_recv(wr_id, &[])?;
        pair.a.post(SendWr::new(wr_id, SendOp::SendImm(imm), &[]))?;
        ok(&pair.a.sent()?, wr_id, WcOpcode::Send)?;
        ensure_eq!(pair.b.received()?.imm_data(), Some(imm), "immediate data");
    }
    Ok(())
}

fn ud_to_itself(env: &Env) -> CaseResult {
    let end = Build::new(QpType::Ud).ud_at(env, &env.a)?;
    let ah = end.pd.create_ah(&Link::route(&end.side, &end.side))?;
    let pair = UdPair { a: end.clone(), b: end, ah };
    let (wc, _) = pair.deliver(5, &pattern(1, 100))?;
    ensure_eq!(wc.src_qp, pair.a.qp.qp_num(), "src_qp");
    Ok(())
}

/// One queue pair sends to several, with one address handle.
fn one_to_many(env: &Env) -> CaseResult {
    let first = UdPair::new(env)?;
    let other_end = env.open_again(End::B)?;
    let more = [Build::new(QpType::Ud).ud_at(env, &env.b)?, Build::new(QpType::Ud).ud_at(env, &other_end)?];
    for (wr_id, b) in (1..).zip([first.b.clone()].into_iter().chain(more)) {
        let pair = UdPair { b, ..first.clone() };
        let data = pattern(wr_id, 200);
        let (wc, target) = pair.deliver(wr_id, &data)?;
        ensure_eq!(wc.qp_num, pair.b.qp.qp_num(), "qp_num");
        target.holds(UdPair::GRH, &data)?;
    }
    Ok(())
}
