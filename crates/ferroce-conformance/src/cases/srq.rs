//! The shared receive queue.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Link, Memory, Pair, UdPair, failed, ok, pattern, persist, succeeded};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{
    AsyncEvent, Error, EventType, Pd, QpAttr, QpState, QpType, RecvWr, SendWr, Sge, Srq, SrqInitAttr, WcOpcode,
    WcStatus,
};

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("srq/rc/several-queue-pairs", several));
    all.push(Case::new("srq/rc/scatter", scatter));
    all.push(Case::new("srq/rc/empty-is-not-ready", empty_is_not_ready));
    all.push(Case::new("srq/rc/too-short-receive", too_short));
    all.push(Case::new("srq/rc/error-leaves-it-alone", error_leaves_it_alone));
    all.push(Case::new("srq/rc/last-wqe-reached", last_wqe_reached));
    all.push(Case::new("srq/uc/receives", uc));
    all.push(Case::new("srq/ud/receives", ud));
    all.push(Case::new("srq/limit-event", limit_event));
    all.push(Case::new("srq/limit-is-set-anew", limit_anew));
    all.push(Case::new("srq/limit-beyond-its-size", limit_beyond));
    all.push(Case::new("srq/query", query));
    all.push(Case::new("srq/full", full));
    all.push(Case::new("srq/too-many-elements", too_many));
    all.push(Case::new("srq/no-receives-on-the-queue-pair", not_on_the_qp));
}

struct Shared {
    srq: Srq,
    pd: Pd,
    memory: Memory,
}

/// Bytes of each receive.
const SLOT: usize = 256;

impl Shared {
    fn new(env: &Env, max_wr: u32) -> CaseResult<Self> {
        if env.device()?.max_srq == 0 {
            return Err(Failure::not_applicable("the device has no shared receive queues"));
        }
        let pd = env.b.context.alloc_pd()?;
        let srq = pd.create_srq(&SrqInitAttr { max_wr, max_sge: 2 })?;
        let memory = Memory::new(&pd, 64 * SLOT, ferroce_verbs::Access::ALL)?;
        Ok(Self { srq, pd, memory })
    }

    fn post(&self, wr_id: u64) -> CaseResult {
        let at = (wr_id as usize % 64) * SLOT;
        Ok(self.srq.post_recv(&[RecvWr::new(wr_id, &[self.memory.mr.sge(at..at + SLOT)?])])?)
    }

    fn build(&self, qp_type: QpType) -> Build {
        Build::new(qp_type).pd(&self.pd).srq(&self.srq)
    }

    fn rc(&self, env: &Env) -> CaseResult<Pair> {
        Ok(Pair::of(env, &Build::new(QpType::Rc), &self.build(QpType::Rc), &Link::default())?)
    }
}

/// Receives are taken in the order in which they were posted, by whichever queue pair needs one.
fn several(env: &Env) -> CaseResult {
    const QPS: usize = 3;
    let shared = Shared::new(env, 32)?;
    let pairs: Vec<Pair> = (0..QPS).map(|_| shared.rc(env)).collect::<Result<_, _>>()?;
    for wr_id in 0..30 {
        shared.post(wr_id)?;
    }
    for wr_id in 0..30 {
        let Pair { a, b } = &pairs[(wr_id as usize * 7 + wr_id as usize / 3) % QPS];
        let data = pattern(wr_id, 100 + wr_id as usize);
        let source = a.memory(data.len())?;
        source.mr.write(0, &data)?;
        a.post(SendWr::send(1, &[source.mr.sge(..)?]))?;
        ok(&a.sent()?, 1, WcOpcode::Send)?;
        let wc = b.received()?;
        ok(&wc, wr_id, WcOpcode::Recv)?;
        ensure_eq!(wc.qp_num, b.qp.qp_num(), "qp_num of message {wr_id}");
        ensure_eq!(wc.byte_len as usize, data.len(), "byte_len of message {wr_id}");
        shared.memory.holds(wr_id as usize * SLOT, &data)?;
    }
    Ok(())
}

fn scatter(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 8)?;
    let pair = shared.rc(env)?;
    let target = pair.b.memory(5000)?;
    let sges = target.sges(1, &[7, 4000])?;
    shared.srq.post_recv(&[RecvWr::new(3, &sges)])?;
    let data = pattern(1, 3001);
    let source = pair.a.memory(data.len())?;
    source.mr.write(0, &data)?;
    pair.a.post(SendWr::send(1, &[source.mr.sge(..)?]))?;
    ok(&pair.b.received()?, 3, WcOpcode::Recv)?;
    target.expect(1, &[7, 4000], &data)?;
    ok(&pair.a.sent()?, 1, WcOpcode::Send)
}

/// A message to an empty queue is tried again until a receive is there.
fn empty_is_not_ready(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 8)?;
    let pair = shared.rc(env)?;
    pair.a.post(SendWr::send(1, &[]))?;
    Pair::rc(env)?.round_trip()?;
    pair.a.wait.nothing(&pair.a.send_cq)?;
    shared.post(5)?;
    ok(&pair.a.sent()?, 1, WcOpcode::Send)?;
    ok(&pair.b.received()?, 5, WcOpcode::Recv)
}

fn too_short(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 8)?;
    let pair = shared.rc(env)?;
    shared.post(5)?;
    let source = pair.a.memory(SLOT + 1)?;
    pair.a.post(SendWr::send(1, &[source.mr.sge(..)?]))?;
    failed(&pair.a.sent()?, 1, WcStatus::RemInvReqErr, pair.a.qp.qp_num())?;
    failed(&pair.b.received()?, 5, WcStatus::LocLenErr, pair.b.qp.qp_num())?;
    pair.b.reaches(QpState::Err)
}

/// A queue pair in the error state leaves the receives to the others.
fn error_leaves_it_alone(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 8)?;
    let (broken, sound) = (shared.rc(env)?, shared.rc(env)?);
    shared.post(1)?;
    shared.post(2)?;
    let unused = broken.b.recv_cq.clone();
    broken.b.qp.modify(&QpAttr::to(QpState::Err))?;
    broken.b.reaches(QpState::Err)?;
    let next = |wr_id: u64| -> CaseResult {
        sound.a.post(SendWr::send(9, &[]))?;
        ok(&sound.a.sent()?, 9, WcOpcode::Send)?;
        ok(&sound.b.received()?, wr_id, WcOpcode::Recv)
    };
    next(1)?;
    drop(broken);
    next(2)?;
    env.wait.nothing(&unused)
}

/// After the event, no completion of the queue pair comes any more (IBTA 11.6.3.1).
fn last_wqe_reached(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 8)?;
    let pair = shared.rc(env)?;
    shared.post(1)?;
    pair.a.post(SendWr::send(1, &[]))?;
    ok(&pair.b.received()?, 1, WcOpcode::Recv)?;
    pair.b.qp.modify(&QpAttr::to(QpState::Err))?;
    match env.wait.event(&env.b.context, EventType::QpLastWqeReached)? {
        AsyncEvent::Qp(_, qp) => ensure!(qp == pair.b.qp, "the event is of another queue pair"),
        other => return Err(Failure::new(format!("the event is {other:?}"))),
    }
    pair.b.wait.nothing(&pair.b.recv_cq)?;
    // It is in the error state already: nothing is reached a second time.
    pair.b.qp.modify(&QpAttr::to(QpState::Err))?;
    let again = env.b.context.next_async_event()?;
    ensure!(again.is_none(), "event {again:?}");
    Ok(())
}

fn uc(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 8)?;
    let pair = Pair::of(env, &Build::new(QpType::Uc), &shared.build(QpType::Uc), &Link::default())?;
    shared.post(5)?;
    let data = pattern(1, 200);
    let source = pair.a.memory(200)?;
    source.mr.write(0, &data)?;
    let wc = persist(&pair.b, || {
        pair.a.post(SendWr::send(1, &[source.mr.sge(..)?]))?;
        ok(&pair.a.sent()?, 1, WcOpcode::Send)
    })?;
    ok(&wc, 5, WcOpcode::Recv)?;
    shared.memory.holds(5 * SLOT, &data)
}

fn ud(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 8)?;
    let pair = UdPair::of(env, &Build::new(QpType::Ud), &shared.build(QpType::Ud))?;
    shared.post(5)?;
    let data = pattern(1, 200);
    let source = pair.a.memory(200)?;
    source.mr.write(0, &data)?;
    let wc = persist(&pair.b, || {
        pair.a.post(SendWr::send(1, &[source.mr.sge(..)?]).to(pair.dest()))?;
        ok(&pair.a.sent()?, 1, WcOpcode::Send)
    })?;
    ok(&wc, 5, WcOpcode::Recv)?;
    ensure_eq!(wc.byte_len as usize, UdPair::GRH + 200, "byte_len");
    shared.memory.holds(5 * SLOT + UdPair::GRH, &data)
}

/// Takes one receive from the queue.
fn take(pair: &Pair) -> CaseResult {
    pair.a.post(SendWr::send(1, &[]))?;
    ok(&pair.a.sent()?, 1, WcOpcode::Send)?;
    succeeded(&[pair.b.received()?].map(|wc| ferroce_verbs::WorkCompletion { wr_id: 0, ..wc }), [0])
}

fn limit_reached(env: &Env, srq: &Srq) -> CaseResult {
    match env.wait.event(&env.b.context, EventType::SrqLimitReached)? {
        AsyncEvent::Srq(_, which) => ensure!(which == *srq, "the event is of another queue"),
        other => return Err(Failure::new(format!("the event is {other:?}"))),
    }
    Ok(())
}

fn no_event(env: &Env) -> CaseResult {
    let event = env.b.context.next_async_event()?;
    ensure!(event.is_none(), "an event too many: {event:?}");
    Ok(())
}

/// One event when fewer than the limit are left, not before, not again.
fn limit_event(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 16)?;
    let pair = shared.rc(env)?;
    for wr_id in 0..6 {
        shared.post(wr_id)?;
    }
    shared.srq.set_limit(4)?;
    ensure_eq!(shared.srq.query()?.limit, 4, "the limit that was set");
    // Five, then four are left: not fewer than four.
    take(&pair)?;
    take(&pair)?;
    no_event(env)?;
    take(&pair)?;
    limit_reached(env, &shared.srq)?;
    take(&pair)?;
    no_event(env)
}

/// The limit works once each time that it is set, and 0 takes it back.
fn limit_anew(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 16)?;
    let pair = shared.rc(env)?;
    for _ in 0..3 {
        for wr_id in 0..4 {
            shared.post(wr_id)?;
        }
        shared.srq.set_limit(3)?;
        take(&pair)?;
        no_event(env)?;
        take(&pair)?;
        limit_reached(env, &shared.srq)?;
        take(&pair)?;
        take(&pair)?;
        no_event(env)?;
    }
    shared.post(0)?;
    shared.post(1)?;
    shared.srq.set_limit(2)?;
    shared.srq.set_limit(0)?;
    take(&pair)?;
    take(&pair)?;
    no_event(env)
}

fn limit_beyond(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 16)?;
    let max = shared.srq.query()?.max_wr;
    ensure!(shared.srq.set_limit(max + 1).is_err(), "a limit of {} in a queue of {max}", max + 1);
    ensure_eq!(shared.srq.query()?.limit, 0, "the limit after one that was refused");
    shared.srq.set_limit(max)?;
    Ok(())
}

fn query(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 10)?;
    let attr = shared.srq.query()?;
    ensure!(attr.max_wr >= 10 && attr.max_sge >= 2, "less than was asked for: {attr:?}");
    ensure_eq!(attr.limit, 0, "the limit of a new queue");
    let device = env.b.context.query_device()?;
    for attr in [
        SrqInitAttr { max_wr: device.max_srq_wr.saturating_add(1), max_sge: 1 },
        SrqInitAttr { max_wr: 1, max_sge: device.max_sge.saturating_add(1) },
    ] {
        ensure!(shared.pd.create_srq(&attr).is_err(), "{attr:?}, beyond what the device says of itself");
    }
    Ok(())
}

/// It takes exactly as many receives as it says, and a list in which one is too many is posted up to that one.
fn full(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 10)?;
    let pair = shared.rc(env)?;
    let max = shared.srq.query()?.max_wr;
    for wr_id in 0..u64::from(max) - 2 {
        shared.post(wr_id)?;
    }
    let wrs: [RecvWr<'_>; 4] = std::array::from_fn(|index| RecvWr::new(u64::from(max) - 2 + index as u64, &[]));
    let Err(refused) = shared.srq.post_recv(&wrs) else {
        return Err(Failure::new("two receives more than it has room for"));
    };
    ensure_eq!(refused.index, 2, "index of the first that does not fit");
    ensure!(matches!(refused.error, Error::QueueFull { .. }), "refused with: {}", refused.error);
    // All that fitted are there, and one that is taken makes room for one.
    take(&pair)?;
    shared.post(0)?;
    let Err(refused) = shared.srq.post_recv(&wrs[..1]) else { return Err(Failure::new("one more than has room")) };
    ensure_eq!(refused.index, 0, "index");
    for _ in 0..max {
        take(&pair)?;
    }
    Ok(())
}

fn too_many(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 10)?;
    let max = shared.srq.query()?.max_sge as usize;
    let sges = vec![shared.memory.mr.sge(..1)?; max + 1];
    let wrs = [RecvWr::new(1, &sges[..max]), RecvWr::new(2, &sges)];
    let Err(refused) = shared.srq.post_recv(&wrs) else { return Err(Failure::new("an element too many")) };
    ensure_eq!(refused.index, 1, "index of the request that is too large");
    let pair = shared.rc(env)?;
    let source = pair.a.memory(max)?;
    pair.a.post(SendWr::send(1, &[Sge { length: max as u32, ..source.mr.sge(..)? }]))?;
    ok(&pair.a.sent()?, 1, WcOpcode::Send)?;
    ok(&pair.b.received()?, 1, WcOpcode::Recv)
}

/// IBTA 10.2.9: a queue pair that has a shared receive queue has no other.
fn not_on_the_qp(env: &Env) -> CaseResult {
    let shared = Shared::new(env, 10)?;
    let pair = shared.rc(env)?;
    let refused = pair.b.qp.post_recv(&[RecvWr::new(1, &[])]);
    ensure!(refused.is_err(), "a receive on a queue pair that has a shared receive queue");
    Ok(())
}
