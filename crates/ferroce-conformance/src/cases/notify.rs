//! The completion channel: an event for each arm, none lost, none besides.

use crate::failure::{Explain, ensure, ensure_eq};
use crate::fixture::{Build, Endpoint, Link, Pair, failed, ok, succeeded};
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{
    CompChannel, Cq, QpAttr, QpState, QpType, SendFlags, SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use std::time::Duration;

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("notify/one-event-for-each-arm", one_for_each_arm));
    all.push(Case::new("notify/none-unless-armed", none_unless_armed));
    all.push(Case::new("notify/armed-twice-is-armed-once", armed_twice));
    all.push(Case::new("notify/none-for-what-came-before", none_for_the_past));
    all.push(Case::new("notify/send-completions", send_completions));
    all.push(Case::new("notify/two-queues-on-one-channel", two_queues));
    all.push(Case::new("notify/queues-on-different-channels", two_channels));
    all.push(Case::new("notify/solicited-only", solicited_only));
    all.push(Case::new("notify/solicited-then-any", solicited_then_any));
    all.push(Case::new("notify/any-is-not-weakened", any_not_weakened));
    all.push(Case::new("notify/an-error-is-solicited", error_is_solicited));
    all.push(Case::new("notify/descriptor", descriptor));
    all.push(Case::new("notify/timeout", timeout));
    all.push(Case::new("notify/no-event-is-lost", no_event_lost));
    all.push(Case::new("notify/both-ends-sleep", both_sleep));
    all.push(Case::new("notify/queue-outlives-its-channel", outlives_channel));
}

/// A connection whose receives at `b` report on a channel. Messages are empty.
struct Bench {
    pair: Pair,
    channel: CompChannel,
    cq: Cq,
}

impl Bench {
    fn new(env: &Env) -> CaseResult<Self> {
        let channel = env.b.context.create_comp_channel()?;
        let cq = env.b.context.create_cq(64, Some(&channel))?;
        let build = Build::new(QpType::Rc);
        let pair = Pair::of(env, &build, &build.clone().recv_cq(&cq), &Link::default())?;
        Ok(Self { pair, channel, cq })
    }

    /// Sends an empty message with more `flags`, and waits until it was sent.
    fn send(&self, wr_id: u64, flags: SendFlags) -> CaseResult {
        self.pair.b.post_recv(wr_id, &[])?;
        self.pair.a.post(SendWr::send(wr_id, &[]).flags(SendFlags::SIGNALED | flags))?;
        ok(&self.pair.a.sent()?, wr_id, WcOpcode::Send)
    }

    fn receive(&self, wr_id: u64) -> CaseResult {
        ok(&self.pair.b.received()?, wr_id, WcOpcode::Recv)
    }

    fn event(&self) -> CaseResult {
        let cq = self.pair.b.wait.channel(&self.channel)?;
        ensure!(cq == self.cq, "the event is of another queue");
        Ok(())
    }

    fn no_event(&self) -> CaseResult {
        ensure_eq!(self.channel.try_event()?, None, "event on the channel");
        Ok(())
    }
}

fn one_for_each_arm(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    for wr_id in 0..5 {
        bench.cq.req_notify(false)?;
        bench.send(wr_id, SendFlags::empty())?;
        bench.event()?;
        bench.receive(wr_id)?;
        // The arm is used up.
        bench.send(100 + wr_id, SendFlags::SOLICITED)?;
        bench.receive(100 + wr_id)?;
        bench.no_event()?;
    }
    Ok(())
}

fn none_unless_armed(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    bench.send(1, SendFlags::SOLICITED)?;
    bench.receive(1)?;
    bench.no_event()
}

fn armed_twice(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    bench.cq.req_notify(false)?;
    bench.cq.req_notify(false)?;
    bench.send(1, SendFlags::empty())?;
    bench.send(2, SendFlags::empty())?;
    bench.event()?;
    bench.receive(1)?;
    bench.receive(2)?;
    bench.no_event()
}

/// A completion that was there before the arm raises none; the next one does.
fn none_for_the_past(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    bench.send(1, SendFlags::empty())?;
    bench.receive(1)?;
    bench.send(2, SendFlags::empty())?;
    // Wait, without taking it, until the completion is there: it is when one that was sent later is, on another queue.
    let after = Pair::rc(env)?;
    after.round_trip()?;
    bench.cq.req_notify(false)?;
    bench.no_event()?;
    bench.receive(2)?;
    bench.send(3, SendFlags::empty())?;
    bench.event()?;
    bench.receive(3)
}

/// Sends report too, reads and atomics as well as messages.
fn send_completions(env: &Env) -> CaseResult {
    let channel = env.a.context.create_comp_channel()?;
    let cq = env.a.context.create_cq(64, Some(&channel))?;
    let build = Build::new(QpType::Rc);
    let pair = Pair::of(env, &build.clone().send_cq(&cq), &build, &Link::default())?;
    let remote = pair.b.memory(8)?;
    let (remote_addr, rkey) = (remote.addr(0), remote.mr.rkey());
    let local = pair.a.memory(8)?;
    for (op, opcode) in [
        (SendOp::Write { remote_addr, rkey }, WcOpcode::RdmaWrite),
        (SendOp::Read { remote_addr, rkey }, WcOpcode::RdmaRead),
    ] {
        cq.req_notify(false)?;
        pair.a.post(SendWr::new(1, op, &[local.mr.sge(..)?]))?;
        ensure!(env.wait.channel(&channel)? == cq, "the event is of another queue");
        ok(&pair.a.sent()?, 1, opcode)?;
    }
    // Unsignaled success is no completion, so no event either.
    cq.req_notify(false)?;
    pair.a.post(SendWr::new(2, SendOp::Write { remote_addr, rkey }, &[]).flags(SendFlags::empty()))?;
    pair.round_trip_unheard(&channel)
}

impl Pair {
    /// Something that surely comes after what `a` has posted, and then no event on `channel`.
    fn round_trip_unheard(&self, channel: &CompChannel) -> CaseResult {
        self.a.post_recv(9, &[])?;
        self.b.post(SendWr::send(9, &[]))?;
        ok(&self.b.sent()?, 9, WcOpcode::Send)?;
        ok(&self.a.received()?, 9, WcOpcode::Recv)?;
        ensure_eq!(channel.try_event()?, None, "event on the channel");
        Ok(())
    }
}

fn two_queues(env: &Env) -> CaseResult {
    let channel = env.b.context.create_comp_channel()?;
    let queues = [env.b.context.create_cq(16, Some(&channel))?, env.b.context.create_cq(16, Some(&channel))?];
    let build = Build::new(QpType::Rc);
    let mut pairs = Vec::new();
    for cq in &queues {
        pairs.push(Pair::of(env, &build, &build.clone().recv_cq(cq), &Link::default())?);
    }
    for (index, pair) in pairs.iter().enumerate() {
        for cq in &queues {
            cq.req_notify(false)?;
        }
        pair.b.post_recv(1, &[])?;
        pair.a.post(SendWr::send(1, &[]))?;
        let cq = env.wait.channel(&channel)?;
        ensure!(cq == queues[index], "the event is not of queue {index}");
        ok(&pair.b.received()?, 1, WcOpcode::Recv)?;
        ensure_eq!(channel.try_event()?, None, "second event");
    }
    // Both at once: each has its event.
    for (pair, cq) in pairs.iter().zip(&queues) {
        cq.req_notify(false)?;
        pair.b.post_recv(2, &[])?;
        pair.a.post(SendWr::send(2, &[]))?;
    }
    let events = [env.wait.channel(&channel)?, env.wait.channel(&channel)?];
    ensure!(queues.iter().all(|cq| events.contains(cq)), "one queue had both events");
    Ok(())
}

fn two_channels(env: &Env) -> CaseResult {
    let (first, second) = (env.a.context.create_comp_channel()?, env.a.context.create_comp_channel()?);
    let sends = env.a.context.create_cq(16, Some(&first))?;
    let receives = env.a.context.create_cq(16, Some(&second))?;
    let end = Build::new(QpType::Rc).send_cq(&sends).recv_cq(&receives).at(env, &env.a)?;
    Link::default().bring_up(&end, &env.a, end.qp.qp_num(), (1, 1))?;
    sends.req_notify(false)?;
    receives.req_notify(false)?;
    end.post_recv(1, &[])?;
    end.post(SendWr::send(2, &[]))?;
    ensure!(env.wait.channel(&first)? == sends, "the first channel has an event of another queue");
    ensure!(env.wait.channel(&second)? == receives, "the second channel has an event of another queue");
    ok(&end.sent()?, 2, WcOpcode::Send)?;
    ok(&end.received()?, 1, WcOpcode::Recv)
}

/// Only what the peer marked as solicited raises an event: sends, and writes with immediate.
fn solicited_only(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    let target = bench.pair.b.memory(8)?;
    let (remote_addr, rkey) = (target.addr(0), target.mr.rkey());
    let ops = [SendOp::Send, SendOp::SendImm(1), SendOp::WriteImm { remote_addr, rkey, imm: 2 }];
    for (wr_id, op) in (0..).zip(ops) {
        let post = |flags: SendFlags| -> CaseResult {
            bench.pair.b.post_recv(wr_id, &[])?;
            bench.pair.a.post(SendWr::new(wr_id, op, &[]).flags(SendFlags::SIGNALED | flags))?;
            succeeded(&[bench.pair.a.sent()?], [wr_id])
        };
        bench.cq.req_notify(true)?;
        post(SendFlags::empty())?;
        succeeded(&[bench.pair.b.received()?], [wr_id])?;
        bench.no_event().explain(|| format!("{op:?}, not solicited"))?;
        post(SendFlags::SOLICITED)?;
        bench.event().explain(|| format!("{op:?}, solicited"))?;
        succeeded(&[bench.pair.b.received()?], [wr_id])?;
    }
    Ok(())
}

/// Armed for solicited ones and then for any, it is armed for any.
fn solicited_then_any(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    bench.cq.req_notify(true)?;
    bench.cq.req_notify(false)?;
    bench.send(1, SendFlags::empty())?;
    bench.event()?;
    bench.receive(1)
}

/// Armed for any, a later arm for solicited ones changes nothing (IBTA 11.4.2.2).
fn any_not_weakened(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    bench.cq.req_notify(false)?;
    bench.cq.req_notify(true)?;
    bench.send(1, SendFlags::empty())?;
    bench.event()?;
    bench.receive(1)
}

fn error_is_solicited(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    bench.pair.b.post_recv(1, &[])?;
    bench.cq.req_notify(true)?;
    bench.pair.b.qp.modify(&QpAttr::to(QpState::Err))?;
    bench.event()?;
    failed(&bench.pair.b.received()?, 1, WcStatus::WrFlushErr, bench.pair.b.qp.qp_num())
}

/// The descriptor is readable exactly while an event waits.
fn descriptor(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    ensure!(!readable(&bench.channel, Duration::ZERO)?, "readable before any event");
    bench.cq.req_notify(false)?;
    bench.send(1, SendFlags::empty())?;
    ensure!(readable(&bench.channel, env.wait.deadline())?, "not readable with an event");
    ensure!(bench.channel.try_event()?.is_some_and(|cq| cq == bench.cq), "readable without an event");
    ensure!(!readable(&bench.channel, Duration::ZERO)?, "readable after the last event");
    bench.receive(1)
}

/// Whether a descriptor is readable now or within `timeout`.
pub(crate) fn readable(fd: &impl AsFd, timeout: Duration) -> CaseResult<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout)?;
    Ok(poll(&mut fds, Some(&timeout))? == 1)
}

/// A wait that nothing ends comes back empty-handed; so does one of no time at all.
fn timeout(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    bench.cq.req_notify(false)?;
    ensure_eq!(bench.channel.wait_event(Some(Duration::ZERO))?, None, "event");
    ensure_eq!(bench.channel.wait_event(Some(Duration::from_millis(5)))?, None, "event");
    bench.send(1, SendFlags::empty())?;
    bench.event()
}

/// The classic loop of arm, poll until empty, wait: whatever the timing, the receiver never sleeps over a message.
fn no_event_lost(env: &Env) -> CaseResult {
    const COUNT: u64 = 3000;
    let bench = Bench::new(env)?;
    let Pair { a, b } = &bench.pair;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> CaseResult {
            for wr_id in 0..COUNT {
                a.post(SendWr::send(wr_id, &[]))?;
                ok(&a.sent()?, wr_id, WcOpcode::Send)?;
            }
            Ok(())
        });
        let received = sleeping_receiver(b, &bench.channel, COUNT);
        let sent = sender.join().unwrap_or_else(|_| Err(crate::Failure::new("the sender panicked")));
        received.and(sent)
    })
}

/// Receives `count` empty messages, and waits on `channel` when there is none.
fn sleeping_receiver(end: &Endpoint, channel: &CompChannel, count: u64) -> CaseResult {
    const POSTED: u64 = 32;
    for wr_id in 0..POSTED.min(count) {
        end.post_recv(wr_id, &[])?;
    }
    let mut next = 0;
    let mut out = [WorkCompletion::default(); 8];
    while next < count {
        end.recv_cq.req_notify(false)?;
        loop {
            let got = end.recv_cq.poll(&mut out)?;
            if got == 0 {
                break;
            }
            for wc in &out[..got] {
                ok(wc, next, WcOpcode::Recv)?;
                if next + POSTED < count {
                    end.post_recv(next + POSTED, &[])?;
                }
                next += 1;
            }
        }
        if next < count {
            end.wait.channel(channel).explain(|| format!("after {next} of {count} messages"))?;
        }
    }
    Ok(())
}

/// A ping-pong whose ends both sleep between messages: nobody polls, and it goes on.
fn both_sleep(env: &Env) -> CaseResult {
    const COUNT: u64 = 300;
    let side = |side: &crate::Side| -> CaseResult<_> {
        let channel = side.context.create_comp_channel()?;
        let cq = side.context.create_cq(64, Some(&channel))?;
        Ok((Build::new(QpType::Rc).recv_cq(&cq).at(env, side)?, channel))
    };
    let ((a, a_channel), (b, b_channel)) = (side(&env.a)?, side(&env.b)?);
    Link::default().connect(&a, &b)?;
    let play = |end: &Endpoint, channel: &CompChannel, first: bool| -> CaseResult {
        end.recv_cq.req_notify(false)?;
        end.post_recv(0, &[])?;
        for turn in 0..COUNT {
            if first || turn > 0 {
                end.post(SendWr::send(turn, &[]))?;
            }
            end.wait.channel(channel).explain(|| format!("turn {turn}"))?;
            end.recv_cq.req_notify(false)?;
            ok(&end.received()?, turn, WcOpcode::Recv)?;
            end.post_recv(turn + 1, &[])?;
            if first || turn > 0 {
                ok(&end.sent()?, turn, WcOpcode::Send)?;
            }
        }
        if !first {
            end.post(SendWr::send(COUNT, &[]))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| play(&b, &b_channel, false));
        let one = play(&a, &a_channel, true);
        let other = other.join().unwrap_or_else(|_| Err(crate::Failure::new("a player panicked")));
        one.and(other)
    })
}

/// Without any handle to its channel, an armed queue still completes.
fn outlives_channel(env: &Env) -> CaseResult {
    let Bench { pair, channel, cq } = Bench::new(env)?;
    cq.req_notify(false)?;
    drop(channel);
    pair.b.post_recv(1, &[])?;
    pair.a.post(SendWr::send(1, &[]))?;
    ok(&pair.a.sent()?, 1, WcOpcode::Send)?;
    ok(&pair.b.received()?, 1, WcOpcode::Recv)?;
    cq.req_notify(false)?;
    Ok(())
}
