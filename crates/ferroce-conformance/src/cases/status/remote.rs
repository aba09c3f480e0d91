//! Requests that the peer refuses: access to its memory, and requests that are no valid ones.

use super::bench::{Bench, Fault, LEN, Peer};
use crate::cases::data::need_atomics;
use crate::failure::ensure_eq;
use crate::fixture::{Build, GUARD, Link, Pair};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{Access, Mr, Mtu, QpType, SendOp, WcStatus};

/// An operation on remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Write,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Op {
    const ALL: [Self; 4] = [Self::Write, Self::Read, Self::CompareSwap, Self::FetchAdd];

    fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::CompareSwap => "cmp-swap",
            Self::FetchAdd => "fetch-add",
        }
    }

    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// The right that it needs.
    fn right(self) -> Access {
        match self {
            Self::Write => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::CompareSwap | Self::FetchAdd => Access::REMOTE_ATOMIC,
        }
    }

    /// A few packets, but for atomics.
    fn len(self) -> usize {
        if self.is_atomic() { 8 } else { 3000 }
    }

    fn on(self, remote_addr: u64, rkey: u32) -> SendOp {
        match self {
            Self::Write => SendOp::Write { remote_addr, rkey },
            Self::Read => SendOp::Read { remote_addr, rkey },
            Self::CompareSwap => {
                let guard = u64::from_ne_bytes([GUARD; 8]);
                SendOp::CompareSwap { remote_addr, rkey, compare: guard, swap: 0 }
            }
            Self::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        }
    }
}

/// Where an operation of some length should not go: address, key, and what has to stay alive for that.
type Wrong = fn(&Bench, Op) -> CaseResult<(u64, u32, Option<Mr>)>;

const WRONG: [(&str, Wrong); 8] = [
    ("unknown-rkey", |bench, _| Ok((bench.remote.addr(0), bench.remote.mr.rkey() ^ 0x00f0_f0f0, None))),
    ("rkey-zero", |bench, _| Ok((bench.remote.addr(0), 0, None))),
    ("beyond-the-end", |bench, op| {
        // Eight more than there is, so that an atomic is still aligned.
        Ok((bench.remote.addr(LEN - op.len() + 8), bench.remote.mr.rkey(), None))
    }),
    ("before-the-start", |bench, _| Ok((bench.remote.addr(0) - 8, bench.remote.mr.rkey(), None))),
    ("around-the-address-space", |bench, _| Ok((u64::MAX - 7, bench.remote.mr.rkey(), None))),
    ("other-protection-domain", |bench, _| {
        let mr = bench.pair.b.side.context.alloc_pd()?.alloc_mr(LEN, Access::ALL)?;
        Ok((mr.addr(), mr.rkey(), Some(mr)))
    }),
    ("no-right-on-the-region", |bench, op| {
        let mr = bench.pair.b.pd.alloc_mr(LEN, Access::ALL - op.right())?;
        Ok((mr.addr(), mr.rkey(), Some(mr)))
    }),
    ("deregistered", |bench, _| {
        let mr = bench.pair.b.pd.alloc_mr(LEN, Access::ALL)?;
        Ok((mr.addr(), mr.rkey(), None))
    }),
];

pub(super) fn add(all: &mut Vec<Case>) {
    for op in Op::ALL {
        for (name, wrong) in WRONG {
            let case = format!("status/rc/remote/{}/{name}", op.name());
            all.push(Case::new(case, move |env| no_access(env, op, wrong)));
        }
        let case = format!("status/rc/remote/{}/no-right-on-the-queue-pair", op.name());
        all.push(Case::new(case, move |env| no_right_on_qp(env, op)));
    }
    for op in [Op::CompareSwap, Op::FetchAdd] {
        let case = format!("status/rc/remote/{}/misaligned", op.name());
        all.push(Case::new(case, move |env| misaligned(env, op)));
    }
    all.push(Case::new("status/rc/remote/write-imm/unknown-rkey", write_imm));
    all.push(Case::new("status/rc/remote/write/empty-is-not-checked-but-one-byte-is", one_byte));
    all.push(Case::new("status/rc/remote/send/longer-than-the-receive", |env| too_long(env, 65, 64)));
    all.push(Case::new("status/rc/remote/send/many-packets-longer", |env| too_long(env, 8192, 5000)));
    all.push(Case::new("status/rc/remote/send/into-no-elements", |env| too_long(env, 1, 0)));
    all.push(Case::new("status/rc/remote/send/path-mtu-differs", mtu_differs));
    all.push(Case::new("status/rc/remote/read/no-responder-resources", no_resources));
}

fn applies(env: &Env, op: Op) -> CaseResult {
    if op.is_atomic() { need_atomics(env) } else { Ok(()) }
}

/// The peer refuses access (IBTA 9.9.3, class C): it tells, and both ends stop. Nothing is touched.
fn no_access(env: &Env, op: Op, wrong: Wrong) -> CaseResult {
    applies(env, op)?;
    let bench = Bench::new(env, &Link::default())?;
    let (remote_addr, rkey, keep) = wrong(&bench, op)?;
    let fault = Fault::new(op.on(remote_addr, rkey), &[bench.local.mr.sge(..op.len())?]);
    if let Some(mr) = &keep {
        mr.write(0, &[GUARD; LEN])?;
    }
    let marked = vec![0x11; 64];
    bench.local.mr.write(64, &marked)?;
    bench.run(&fault, WcStatus::RemAccessErr, Peer::FLUSHED)?;
    // The good write before it touched the first 16 bytes, with guard bytes.
    bench.remote.untouched()?;
    bench.local.holds(64, &marked)?;
    if let Some(mr) = keep {
        let mut out = vec![0; LEN];
        mr.read(0, &mut out)?;
        ensure_eq!(out.iter().position(|&byte| byte != GUARD), None, "first byte that was changed");
    }
    Ok(())
}

/// An operation that the queue pair does not take at all is an invalid request, not an access error (IBTA 11.6.2, remote
/// invalid request error: "operation not supported by this receive queue"; so do rxe's `check_op_valid` and rdmavt).
fn no_right_on_qp(env: &Env, op: Op) -> CaseResult {
    applies(env, op)?;
    let link = Link { access: Access::ALL - op.right(), ..Link::default() };
    let mut bench = Bench::new(env, &link)?;
    let (remote_addr, rkey) = (bench.remote.addr(0), bench.remote.mr.rkey());
    if op == Op::Write {
        bench.good = SendOp::Read { remote_addr, rkey };
    }
    let fault = Fault::new(op.on(remote_addr, rkey), &[bench.local.mr.sge(..op.len())?]);
    bench.run(&fault, WcStatus::RemInvReqErr, Peer::FLUSHED)?;
    bench.remote.untouched()
}

/// IBTA 9.4.5: the address of an atomic is a multiple of 8. rxe answers with an invalid request; its library refuses it.
fn misaligned(env: &Env, op: Op) -> CaseResult {
    need_atomics(env)?;
    for off in [1, 4, 7] {
        let bench = Bench::new(env, &Link::default())?;
        let sges = [bench.local.mr.sge(64..72)?];
        let fault = Fault::new(op.on(bench.remote.addr(off), bench.remote.mr.rkey()), &sges).refusable();
        bench.run(&fault, WcStatus::RemInvReqErr, Peer::FLUSHED)?;
        bench.remote.untouched()?;
    }
    Ok(())
}

/// Whether the receive that a write with immediate would have completed is used up is the device's choice
/// (IBTA 11.6.2: local access error).
fn write_imm(env: &Env) -> CaseResult {
    let bench = Bench::new(env, &Link::default())?;
    let op = SendOp::WriteImm { remote_addr: bench.remote.addr(0), rkey: !bench.remote.mr.rkey(), imm: 1 };
    let fault = Fault::new(op, &[bench.local.mr.sge(..64)?]);
    let first = &[WcStatus::LocAccessErr, WcStatus::WrFlushErr];
    bench.run(&fault, WcStatus::RemAccessErr, Peer::Fails(first))
}

/// The counterpart of `edge/rc/empty-write-needs-no-key`, right at the end of a region.
fn one_byte(env: &Env) -> CaseResult {
    let bench = Bench::new(env, &Link::default())?;
    let op = SendOp::Write { remote_addr: bench.remote.addr(LEN), rkey: bench.remote.mr.rkey() };
    let fault = Fault::new(op, &[bench.local.mr.sge(..1)?]);
    bench.run(&fault, WcStatus::RemAccessErr, Peer::FLUSHED)
}

/// A message that does not fit its receive: a length error there, an invalid request here (IBTA 9.9.3, class C).
fn too_long(env: &Env, len: usize, room: usize) -> CaseResult {
    let mut bench = Bench::new(env, &Link::default())?;
    let landing = bench.pair.b.memory(LEN)?;
    bench.receive = if room == 0 { vec![] } else { vec![landing.mr.sge(..room)?] };
    let fault = Fault::new(SendOp::Send, &[bench.local.mr.sge(..len)?]);
    bench.run(&fault, WcStatus::RemInvReqErr, Peer::Fails(&[WcStatus::LocLenErr]))?;
    // Not a byte behind the receive's buffers.
    landing.holds(room, &vec![GUARD; LEN - room])
}

/// A packet that is longer than the path MTU of its receiver is an invalid request (IBTA 9.7.4.1.6).
fn mtu_differs(env: &Env) -> CaseResult {
    if env.max_mtu() < Mtu::Mtu1024 {
        return Err(Failure::not_applicable("the port's MTU is small"));
    }
    let build = Build::new(QpType::Rc).cap(|cap| cap.max_send_sge = 2);
    let pair = Pair { a: build.at(env, &env.a)?, b: build.at(env, &env.b)? };
    let link = |mtu| Link { mtu: Some(mtu), ..Link::default() };
    let (large, small) = (link(Mtu::Mtu1024), link(Mtu::Mtu256));
    small.bring_up(&pair.b, &env.a, pair.a.qp.qp_num(), (small.psn.1, small.psn.0))?;
    large.bring_up(&pair.a, &env.b, pair.b.qp.qp_num(), large.psn)?;
    let bench = Bench::of(pair)?;
    let fault = Fault::new(SendOp::Send, &[bench.local.mr.sge(..1000)?]);
    let first = &[WcStatus::LocLenErr, WcStatus::WrFlushErr];
    bench.run(&fault, WcStatus::RemInvReqErr, Peer::Fails(first))
}

/// A peer that said it answers no reads calls one an invalid request.
fn no_resources(env: &Env) -> CaseResult {
    let build = Build::new(QpType::Rc);
    let pair = Pair { a: build.at(env, &env.a)?, b: build.at(env, &env.b)? };
    let (some, none) = (Link::default(), Link { rd_atomic: 0, ..Link::default() });
    none.bring_up(&pair.b, &env.a, pair.a.qp.qp_num(), (some.psn.1, some.psn.0))?;
    some.bring_up(&pair.a, &env.b, pair.b.qp.qp_num(), some.psn)?;
    let bench = Bench::of(pair)?;
    let op = SendOp::Read { remote_addr: bench.remote.addr(0), rkey: bench.remote.mr.rkey() };
    let fault = Fault::new(op, &[bench.local.mr.sge(..64)?]);
    bench.run(&fault, WcStatus::RemInvReqErr, Peer::FLUSHED)
}
