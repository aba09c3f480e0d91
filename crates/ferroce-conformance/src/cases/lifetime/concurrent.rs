//! Queue pairs and contexts that go away while other threads are at work on them.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Link, Memory, Pair, pattern};
use crate::{Case, CaseResult, End, Env, Failure};
use ferroce_verbs::{Cq, Qp, QpAttr, QpState, QpType, SendOp, SendWr, WcStatus, WorkCompletion};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("lifetime/queue-pairs-destroyed-by-another-thread", destroyed_elsewhere));
    all.push(Case::new("lifetime/destroyed-while-polled", destroyed_while_polled));
    all.push(Case::new("lifetime/destroyed-while-the-peer-writes", destroyed_under_writes));
    all.push(Case::new("lifetime/last-handle-in-any-thread", last_handle));
    all.push(Case::new("lifetime/context-dropped-under-a-waiting-thread", dropped_under_waiter));
    all.push(Case::new("lifetime/contexts-come-and-go-under-traffic", come_and_go));
    all.push(Case::new("lifetime/stopped-while-posting", stopped_while_posting));
}

/// Joins threads; the first failure counts.
pub(crate) fn join_all<'scope>(
    threads: impl IntoIterator<Item = std::thread::ScopedJoinHandle<'scope, CaseResult>>,
) -> CaseResult {
    // All are joined before the first failure is reported.
    let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
    results.into_iter().try_for_each(|result| result.map_err(|_| Failure::new("a thread panicked"))?)
}

/// Polls `cq` until `stop` is set and it is empty; says how often each request completed.
fn tally(cq: &Cq, stop: &AtomicBool) -> CaseResult<HashMap<(u32, u64), u32>> {
    let mut seen = HashMap::new();
    let mut out = [WorkCompletion::default(); 16];
    loop {
        let ending = stop.load(Ordering::Acquire);
        let got = cq.poll(&mut out)?;
        for wc in &out[..got] {
            ensure!(
                matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr | WcStatus::RetryExcErr),
                "request {} ended with {:?}",
                wc.wr_id,
                wc.status
            );
            *seen.entry((wc.qp_num, wc.wr_id)).or_insert(0) += 1;
        }
        if got == 0 {
            if ending {
                return Ok(seen);
            }
            std::thread::yield_now();
        }
    }
}

/// Some threads make queue pairs and post to them, one drops them at once, with all that is outstanding, and one polls.
/// Each request completes exactly once.
fn destroyed_elsewhere(env: &Env) -> CaseResult {
    const MAKERS: usize = 3;
    const ROUNDS: usize = 25;
    const POSTS: u64 = 8;
    let cq = env.a.context.create_cq((MAKERS * ROUNDS) as u32 * POSTS as u32 * 2, None)?;
    let pd = env.a.context.alloc_pd()?;
    let b_pd = env.b.context.alloc_pd()?;
    let stop = AtomicBool::new(false);
    let posted = std::thread::scope(|scope| -> CaseResult<_> {
        let poller = scope.spawn(|| tally(&cq, &stop));
        let (sender, receiver) = channel::<(Qp, Qp, [Memory; 2])>();
        let reaper = scope.spawn(move || {
            for (a, b, memory) in receiver {
                drop(a);
                drop(b);
                drop(memory);
            }
        });
        let makers: Vec<_> = (0..MAKERS)
            .map(|maker| {
                let (sender, cq, pd, b_pd) = (sender.clone(), &cq, &pd, &b_pd);
                scope.spawn(move || -> CaseResult<Vec<(u32, u64)>> {
                    let mut posted = Vec::new();
                    let build = Build::new(QpType::Rc);
                    for round in 0..ROUNDS {
                        let a = build.clone().pd(pd).send_cq(cq).recv_cq(cq);
                        let pair = Pair::of(env, &a, &build.clone().pd(b_pd), &Link::default())?;
                        let (source, target) = (pair.a.memory(9000)?, pair.b.memory(9000)?);
                        let op = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
                        for post in 0..POSTS {
                            let wr_id = ((maker * ROUNDS + round) as u64) << 8 | post;
                            pair.a.post(SendWr::new(wr_id, op, &[source.mr.sge(..)?]))?;
                            pair.a.post_recv(1 << 40 | wr_id, &[])?;
                            posted.extend([(pair.a.qp.qp_num(), wr_id), (pair.a.qp.qp_num(), 1 << 40 | wr_id)]);
                        }
                        // The regions outlive the writes, or these could fail for another reason.
                        let Pair { a, b } = pair;
                        sender.send((a.qp, b.qp, [source, target])).map_err(|_| Failure::new("the reaper is gone"))?;
                    }
                    Ok(posted)
                })
            })
            .collect();
        drop(sender);
        let mut all = Vec::new();
        let mut outcome = Ok(());
        for maker in makers {
            match maker.join() {
                Ok(Ok(posted)) => all.extend(posted),
                Ok(Err(failure)) => outcome = Err(failure),
                Err(_) => outcome = Err(Failure::new("a thread panicked")),
            }
        }
        let reaped = reaper.join();
        stop.store(true, Ordering::Release);
        let seen = poller.join().map_err(|_| Failure::new("the poller panicked"))?;
        outcome?;
        reaped.map_err(|_| Failure::new("the reaper panicked"))?;
        let mut seen = seen?;
        // What was flushed by the last drops may come a little later than these.
        env.wait.within(env.wait.deadline(), || {
            for (request, count) in tally(&cq, &stop)? {
                *seen.entry(request).or_insert(0) += count;
            }
            Ok((seen.len() >= all.len()).then_some(()))
        })?;
        Ok((all, seen))
    });
    let (all, seen) = posted?;
    for request in &all {
        ensure_eq!(seen.get(request).copied().unwrap_or(0), 1, "completions of request {request:x?}");
    }
    ensure_eq!(seen.len(), all.len(), "requests that completed");
    Ok(())
}

/// Queue pairs come and go on a queue that another thread polls without pause.
fn destroyed_while_polled(env: &Env) -> CaseResult {
    let cq = env.a.context.create_cq(4096, None)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pollers: Vec<_> = (0..2).map(|_| scope.spawn(|| tally(&cq, &stop).map(|_| ()))).collect();
        let work = (|| -> CaseResult {
            for round in 0..50 {
                let end = Build::new(QpType::Rc).send_cq(&cq).recv_cq(&cq).at(env, &env.a)?;
                Link::default().bring_up(&end, &env.a, end.qp.qp_num(), (round, round))?;
                end.post_recv(1, &[])?;
                end.post(SendWr::send(2, &[]))?;
            }
            Ok(())
        })();
        stop.store(true, Ordering::Release);
        work.and(join_all(pollers))
    })
}

/// The target of a stream of writes is destroyed. The writer hears of it as of any peer that does not answer.
fn destroyed_under_writes(env: &Env) -> CaseResult {
    for _ in 0..5 {
        // Not quite impatient, as these writes should succeed for as long as there is somebody.
        let link = Link { timeout: 12, retry_cnt: 3, ..Link::default() };
        let Pair { a, b } = Pair::new(env, &Build::new(QpType::Rc), &link)?;
        let (source, target) = (a.memory(100_000)?, b.memory(100_000)?);
        source.mr.write(0, &pattern(1, 100_000))?;
        let op = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
        for wr_id in 0..30 {
            a.post(SendWr::new(wr_id, op, &[source.mr.sge(..)?]))?;
        }
        ensure_eq!(a.sent()?.wr_id, 0, "request number");
        drop(b);
        let all = a.wait.take(&a.send_cq, 29)?;
        let first = all.iter().position(|wc| !wc.is_ok()).unwrap_or(all.len());
        for (index, wc) in all.iter().enumerate().skip(first) {
            let want = if index == first { WcStatus::RetryExcErr } else { WcStatus::WrFlushErr };
            ensure_eq!(wc.status, want, "status of request {}", wc.wr_id);
        }
    }
    Ok(())
}

/// Many threads hold a handle each; whichever drops the last, the work is flushed once.
fn last_handle(env: &Env) -> CaseResult {
    for _ in 0..20 {
        let Pair { a, b: _b } = Pair::rc(env)?;
        let (cq, qpn) = (a.send_cq.clone(), a.qp.qp_num());
        for wr_id in 0..10 {
            a.post(SendWr::send(wr_id, &[]))?;
        }
        let qp = a.qp.clone();
        drop(a);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let qp = qp.clone();
                scope.spawn(move || drop(qp));
            }
            drop(qp);
        });
        for wr_id in 0..10 {
            crate::fixture::failed(&env.wait.next(&cq)?, wr_id, WcStatus::WrFlushErr, qpn)?;
        }
        env.wait.nothing(&cq)?;
    }
    Ok(())
}

/// A thread waits for an event of a context that all others drop. It comes back with an event or without one.
fn dropped_under_waiter(env: &Env) -> CaseResult {
    for round in 0..8 {
        let side = env.open_again(End::B)?;
        let channel = side.context.create_comp_channel()?;
        let cq = side.context.create_cq(16, Some(&channel))?;
        let end = Build::new(QpType::Rc).recv_cq(&cq).at(env, &side)?;
        end.qp.modify(&Link::default().init(&end))?;
        end.post_recv(1, &[])?;
        cq.req_notify(false)?;
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || -> CaseResult {
                while channel.wait_event(Some(Duration::from_millis(20)))?.is_some() {}
                Ok(())
            });
            // In half of the rounds something happens on the way out.
            if round % 2 == 0 {
                end.qp.modify(&QpAttr::to(QpState::Err))?;
            }
            drop(side);
            drop(end);
            drop(cq);
            join_all([waiter])
        })?;
    }
    Ok(())
}

/// Other contexts of the process open and close while two exchange data.
fn come_and_go(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let stop = AtomicBool::new(false);
    let opened = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| -> CaseResult {
                    while !stop.load(Ordering::Acquire) {
                        let side = env.open_again(End::A)?;
                        let end = Build::new(QpType::Rc).at(env, &side)?;
                        Link::default().bring_up(&end, &side, end.qp.qp_num(), (3, 3))?;
                        end.post(SendWr::send(1, &[]))?;
                        opened.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let work = (|| -> CaseResult {
            let mut rounds = 0;
            while rounds < 200 || opened.load(Ordering::Relaxed) < 20 {
                pair.round_trip()?;
                rounds += 1;
                ensure!(rounds < 1_000_000, "the other threads do not get on");
            }
            Ok(())
        })();
        stop.store(true, Ordering::Release);
        work.and(join_all(others))
    })
}

/// Threads post to a queue pair that another puts into the error state: what was accepted completes once.
fn stopped_while_posting(env: &Env) -> CaseResult {
    const POSTERS: u64 = 3;
    const POSTS: u64 = 400;
    let build = Build::new(QpType::Rc).cap(|cap| cap.max_send_wr = (POSTERS * POSTS) as u32);
    let pair = Pair::new(env, &build, &Link::default())?;
    let target = pair.b.memory(64)?;
    let source = pair.a.memory(64)?;
    let op = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
    std::thread::scope(|scope| {
        let posters: Vec<_> = (0..POSTERS)
            .map(|poster| {
                let (pair, source) = (&pair, &source);
                scope.spawn(move || -> CaseResult {
                    for post in 0..POSTS {
                        pair.a.post(SendWr::new(poster << 32 | post, op, &[source.mr.sge(..)?]))?;
                    }
                    Ok(())
                })
            })
            .collect();
        std::thread::yield_now();
        pair.a.qp.modify(&QpAttr::to(QpState::Err))?;
        join_all(posters)
    })?;
    let all = pair.a.wait.take(&pair.a.send_cq, (POSTERS * POSTS) as usize)?;
    let first = all.iter().position(|wc| !wc.is_ok()).unwrap_or(all.len());
    for poster in 0..POSTERS {
        let order = all.iter().filter(|wc| wc.wr_id >> 32 == poster).map(|wc| wc.wr_id & 0xffff_ffff);
        ensure!(order.eq(0..POSTS), "the requests of thread {poster} did not complete once each, in order");
    }
    ensure!(all[first..].iter().all(|wc| wc.status == WcStatus::WrFlushErr), "a success after a flush");
    pair.a.wait.nothing(&pair.a.send_cq)
}
