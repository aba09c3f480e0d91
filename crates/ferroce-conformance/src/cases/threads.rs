//! Every call may be made from any thread.

use super::lifetime::join_all;
use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Link, Pair, UdPair, ok, pattern, succeeded};
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{Access, QpType, RecvWr, SendFlags, SendOp, SendWr, SrqInitAttr, WcOpcode, WorkCompletion};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("threads/a-connection-each", connection_each));
    all.push(Case::new("threads/one-queue-pair", one_queue_pair));
    all.push(Case::new("threads/one-queue-pair-both-queues", both_queues));
    all.push(Case::new("threads/one-completion-queue-many-pollers", many_pollers));
    all.push(Case::new("threads/one-shared-receive-queue", one_srq));
    all.push(Case::new("threads/one-datagram-queue-pair", one_datagram));
    all.push(Case::new("threads/objects-made-by-many", made_by_many));
}

const THREADS: usize = 4;

/// Each thread drives both ends of a connection of its own: messages one way, reads and writes the other.
fn connection_each(env: &Env) -> CaseResult {
    const LEN: usize = 20_000;
    std::thread::scope(|scope| {
        join_all(
            (0..THREADS)
                .map(|thread| {
                    scope.spawn(move || -> CaseResult {
                        let pair = Pair::rc(env)?;
                        let Pair { a, b } = &pair;
                        let (source, target) = (a.memory(LEN)?, b.memory(LEN)?);
                        let read = SendOp::Read { remote_addr: source.addr(0), rkey: source.mr.rkey() };
                        for round in 0..60 {
                            let data = pattern((thread << 16) as u64 + round, LEN);
                            source.mr.write(0, &data)?;
                            if round % 3 == 0 {
                                b.post(SendWr::new(round, read, &[target.mr.sge(..)?]))?;
                                ok(&b.sent()?, round, WcOpcode::RdmaRead)?;
                            } else {
                                b.post_recv(round, &[target.mr.sge(..)?])?;
                                a.post(SendWr::send(round, &[source.mr.sge(..)?]))?;
                                ok(&a.sent()?, round, WcOpcode::Send)?;
                                ok(&b.received()?, round, WcOpcode::Recv)?;
                            }
                            target.holds(0, &data)?;
                        }
                        Ok(())
                    })
                })
                .collect::<Vec<_>>(),
        )
    })
}

/// Threads post to one queue pair; what each posted completes once, in its order, and arrived.
fn one_queue_pair(env: &Env) -> CaseResult {
    const POSTS: usize = 200;
    let build = Build::new(QpType::Rc).cap(|cap| cap.max_send_wr = (THREADS * POSTS) as u32);
    let pair = Pair::new(env, &build, &Link::default())?;
    let Pair { a, b } = &pair;
    let (source, target) = (a.memory(THREADS * POSTS * 8)?, b.memory(THREADS * POSTS * 8)?);
    let data = pattern(1, THREADS * POSTS * 8);
    source.mr.write(0, &data)?;
    let all = std::thread::scope(|scope| -> CaseResult<_> {
        let posters: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (source, target) = (&source, &target);
                scope.spawn(move || -> CaseResult {
                    for post in 0..POSTS {
                        let at = (thread * POSTS + post) * 8;
                        let op = SendOp::Write { remote_addr: target.addr(at), rkey: target.mr.rkey() };
                        let wr_id = (thread << 32 | post) as u64;
                        a.post(SendWr::new(wr_id, op, &[source.mr.sge(at..at + 8)?]))?;
                    }
                    Ok(())
                })
            })
            .collect();
        let all = a.wait.take(&a.send_cq, THREADS * POSTS);
        join_all(posters)?;
        all
    })?;
    ensure!(all.iter().all(WorkCompletion::is_ok), "not every write succeeded");
    for thread in 0..THREADS as u64 {
        let order = all.iter().filter(|wc| wc.wr_id >> 32 == thread).map(|wc| wc.wr_id & 0xffff_ffff);
        ensure!(order.eq(0..POSTS as u64), "the requests of thread {thread} did not complete once each, in order");
    }
    target.holds(0, &data)
}

/// One thread for each of: posting sends, polling them, posting receives, polling those.
fn both_queues(env: &Env) -> CaseResult {
    const COUNT: u64 = 1500;
    const DEPTH: usize = 32;
    let pair = Pair::rc(env)?;
    let Pair { a, b } = &pair;
    let (sends, receives) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Posts with never more than `DEPTH` outstanding, which `done` counts down.
    let throttled = |outstanding: &AtomicUsize, post: &dyn Fn(u64) -> CaseResult| -> CaseResult {
        for wr_id in 0..COUNT {
            let room = || Ok((outstanding.load(Ordering::Acquire) < DEPTH).then_some(()));
            env.wait.until("room in the queue", room)?;
            outstanding.fetch_add(1, Ordering::AcqRel);
            post(wr_id)?;
        }
        Ok(())
    };
    let drained = |cq: &ferroce_verbs::Cq, outstanding: &AtomicUsize| -> CaseResult {
        for wr_id in 0..COUNT {
            succeeded(&[env.wait.next(cq)?], [wr_id])?;
            outstanding.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        join_all([
            scope.spawn(|| throttled(&sends, &|wr_id| a.post(SendWr::send(wr_id, &[])))),
            scope.spawn(|| drained(&a.send_cq, &sends)),
            scope.spawn(|| throttled(&receives, &|wr_id| b.post_recv(wr_id, &[]))),
            scope.spawn(|| drained(&b.recv_cq, &receives)),
        ])
    })
}

/// Each completion goes to exactly one of the threads that poll.
fn many_pollers(env: &Env) -> CaseResult {
    const COUNT: usize = 2000;
    let pair = Pair::rc(env)?;
    let Pair { a, .. } = &pair;
    let (taken, seen) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let pollers: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| -> CaseResult {
                    let mut mine = Vec::new();
                    let mut out = [WorkCompletion::default(); 4];
                    a.wait.until("the last completion", || {
                        let got = a.send_cq.poll(&mut out)?;
                        mine.extend_from_slice(&out[..got]);
                        let total = taken.fetch_add(got, Ordering::AcqRel) + got;
                        Ok((total >= COUNT).then_some(()))
                    })?;
                    // One thread's completions are in order, with gaps.
                    ensure!(mine.windows(2).all(|two| two[0].wr_id < two[1].wr_id), "out of order");
                    seen.lock().map_err(|_| crate::Failure::new("a poller panicked"))?.extend(mine);
                    Ok(())
                })
            })
            .collect();
        let post = (|| -> CaseResult {
            for wr_id in 0..COUNT {
                let room = || Ok((wr_id < taken.load(Ordering::Acquire) + 32).then_some(()));
                env.wait.until("room in the queue", room)?;
                a.post(SendWr::new(wr_id as u64, SendOp::Write { remote_addr: 0, rkey: 0 }, &[]))?;
            }
            Ok(())
        })();
        post.and(join_all(pollers))
    })?;
    let mut seen = seen.into_inner().map_err(|_| crate::Failure::new("a poller panicked"))?;
    seen.sort_by_key(|wc| wc.wr_id);
    succeeded(&seen, 0..COUNT as u64)
}

/// Several threads post receives to a shared queue while several connections use them up.
fn one_srq(env: &Env) -> CaseResult {
    const EACH: usize = 150;
    if env.device()?.max_srq == 0 {
        return Err(crate::Failure::not_applicable("the device has no shared receive queues"));
    }
    let pd = env.b.context.alloc_pd()?;
    let srq = pd.create_srq(&SrqInitAttr { max_wr: (THREADS * EACH) as u32, max_sge: 1 })?;
    let cq = env.b.context.create_cq((THREADS * EACH) as u32, None)?;
    let memory = crate::fixture::Memory::new(&pd, THREADS * EACH * 8, Access::ALL)?;
    let build = Build::new(QpType::Rc);
    let pairs: Vec<_> = (0..THREADS)
        .map(|_| Pair::of(env, &build, &build.clone().pd(&pd).srq(&srq).recv_cq(&cq), &Link::default()))
        .collect::<Result<_, _>>()?;
    std::thread::scope(|scope| {
        let posters: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (srq, memory) = (&srq, &memory);
                scope.spawn(move || -> CaseResult {
                    for index in thread * EACH..(thread + 1) * EACH {
                        let sge = [memory.mr.sge(index * 8..index * 8 + 8)?];
                        srq.post_recv(&[RecvWr::new(index as u64, &sge)])?;
                    }
                    Ok(())
                })
            })
            .collect();
        let senders: Vec<_> = (0_u64..)
            .zip(&pairs)
            .map(|(thread, pair)| {
                scope.spawn(move || -> CaseResult {
                    let source = pair.a.memory(8)?;
                    for index in 0..EACH as u64 {
                        source.put_u64(0, thread << 32 | index)?;
                        pair.a.post(SendWr::send(index, &[source.mr.sge(..)?]))?;
                        ok(&pair.a.sent()?, index, WcOpcode::Send)?;
                    }
                    Ok(())
                })
            })
            .collect();
        join_all(posters.into_iter().chain(senders))
    })?;
    let all = env.wait.take(&cq, THREADS * EACH)?;
    let used: Vec<_> = all.iter().map(|wc| wc.wr_id).collect();
    crate::fixture::same_set(used, (0..(THREADS * EACH) as u64).collect())?;
    // Every message once, and those of one connection in its order.
    for (thread, pair) in (0_u64..).zip(&pairs) {
        let mine = all.iter().filter(|wc| wc.qp_num == pair.b.qp.qp_num());
        let words: Vec<_> = mine.map(|wc| memory.get_u64(wc.wr_id as usize * 8)).collect::<Result<_, _>>()?;
        ensure!(words.iter().copied().eq((0..EACH as u64).map(|index| thread << 32 | index)), "{words:x?}");
    }
    Ok(())
}

/// Several threads send datagrams through one queue pair and one address handle; each completes once.
fn one_datagram(env: &Env) -> CaseResult {
    const POSTS: usize = 100;
    let build = Build::new(QpType::Ud).cap(|cap| cap.max_send_wr = (THREADS * POSTS) as u32);
    let pair = UdPair::of(env, &build, &Build::new(QpType::Ud))?;
    let a = &pair.a;
    let all = std::thread::scope(|scope| -> CaseResult<_> {
        let posters: Vec<_> = (0..THREADS)
            .map(|thread| {
                let pair = &pair;
                scope.spawn(move || -> CaseResult {
                    for post in 0..POSTS {
                        let flags = SendFlags::SIGNALED;
                        let wr = SendWr::send((thread << 32 | post) as u64, &[]).flags(flags);
                        pair.a.post(wr.to(pair.dest()))?;
                    }
                    Ok(())
                })
            })
            .collect();
        let all = a.wait.take(&a.send_cq, THREADS * POSTS);
        join_all(posters)?;
        all
    })?;
    ensure!(all.iter().all(WorkCompletion::is_ok), "not every datagram was sent");
    let want = (0..THREADS).flat_map(|thread| (0..POSTS).map(move |post| (thread << 32 | post) as u64)).collect();
    crate::fixture::same_set(all.iter().map(|wc| wc.wr_id).collect(), want)
}

/// All kinds of objects are made and dropped by several threads of one context.
fn made_by_many(env: &Env) -> CaseResult {
    std::thread::scope(|scope| {
        join_all(
            (0..THREADS)
                .map(|_| {
                    scope.spawn(|| -> CaseResult {
                        for _ in 0..20 {
                            let pair = UdPair::new(env)?;
                            let memory = pair.a.memory(64)?;
                            let channel = env.a.context.create_comp_channel()?;
                            let cq = env.a.context.create_cq(8, Some(&channel))?;
                            cq.req_notify(false)?;
                            ensure_eq!(channel.try_event()?, None, "event");
                            pair.deliver(1, &memory.get(0, 64)?)?;
                        }
                        Ok(())
                    })
                })
                .collect::<Vec<_>>(),
        )
    })
}
