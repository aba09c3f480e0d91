//! Asynchronous events of queue pairs.

use crate::cases::notify::readable;
use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Link, Pair, ok};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{Access, AsyncEvent, EventType, Qp, QpState, QpType, SendOp, SendWr, WcOpcode, WcStatus};
use std::time::Duration;

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("event/access-error", access_error));
    all.push(Case::new("event/request-error", request_error));
    all.push(Case::new("event/communication-established", established));
    all.push(Case::new("event/descriptor", descriptor));
    all.push(Case::new("event/holds-its-queue-pair", holds));
    all.push(Case::new("event/none-in-ordinary-use", none));
    all.push(Case::new("event/only-to-its-own-context", own_context));
}

/// Makes `pair.a` read what it may not, and waits until it is told so.
fn forbidden_read(pair: &Pair) -> CaseResult {
    let secret = pair.b.memory_with(8, Access::LOCAL_WRITE)?;
    let local = pair.a.memory(8)?;
    let op = SendOp::Read { remote_addr: secret.addr(0), rkey: secret.mr.rkey() };
    pair.a.post(SendWr::new(1, op, &[local.mr.sge(..)?]))?;
    ensure_eq!(pair.a.sent()?.status, WcStatus::RemAccessErr, "status");
    Ok(())
}

fn expect(env: &Env, kind: EventType, qp: &Qp) -> CaseResult<AsyncEvent> {
    let event = env.wait.event(&env.b.context, kind)?;
    match &event {
        AsyncEvent::Qp(_, which) => ensure!(which == qp, "the event is of another queue pair"),
        other => return Err(Failure::new(format!("the event is {other:?}"))),
    }
    Ok(event)
}

/// IBTA 11.6.3.2, local access violation work queue error.
fn access_error(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    forbidden_read(&pair)?;
    expect(env, EventType::QpAccessErr, &pair.b.qp)?;
    pair.b.reaches(QpState::Err)
}

/// IBTA 11.6.3.2, invalid request local work queue error.
fn request_error(env: &Env) -> CaseResult {
    let pair = Pair::new(env, &Build::new(QpType::Rc), &Link { access: Access::empty(), ..Link::default() })?;
    let local = pair.a.memory(8)?;
    let target = pair.b.memory(8)?;
    let op = SendOp::Read { remote_addr: target.addr(0), rkey: target.mr.rkey() };
    pair.a.post(SendWr::new(1, op, &[local.mr.sge(..)?]))?;
    ensure_eq!(pair.a.sent()?.status, WcStatus::RemInvReqErr, "status");
    expect(env, EventType::QpReqErr, &pair.b.qp)?;
    pair.b.reaches(QpState::Err)
}

/// The first message to a queue pair in RTR says that its peer is ready (IBTA 11.6.3.1).
fn established(env: &Env) -> CaseResult {
    let build = Build::new(QpType::Rc);
    let (a, b) = (build.at(env, &env.a)?, build.at(env, &env.b)?);
    let link = Link::default();
    b.qp.modify(&link.init(&b))?;
    b.post_recv(1, &[])?;
    b.qp.modify(&link.rtr(&b, &a.side, a.qp.qp_num(), link.psn.0))?;
    link.bring_up(&a, &b.side, b.qp.qp_num(), link.psn)?;
    a.post(SendWr::send(2, &[]))?;
    ok(&b.received()?, 1, WcOpcode::Recv)?;
    expect(env, EventType::CommEst, &b.qp)?;
    Ok(())
}

fn descriptor(env: &Env) -> CaseResult {
    let fd = env.b.context.async_fd();
    ensure!(!readable(&fd, Duration::ZERO)?, "readable before any event");
    let pair = Pair::rc(env)?;
    forbidden_read(&pair)?;
    ensure!(readable(&fd, env.wait.deadline())?, "not readable with an event");
    expect(env, EventType::QpAccessErr, &pair.b.qp)?;
    while env.b.context.next_async_event()?.is_some() {}
    ensure!(!readable(&fd, Duration::ZERO)?, "readable after the last event");
    Ok(())
}

/// An event that nobody has read keeps nobody waiting, and its queue pair can be asked for its state.
fn holds(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    forbidden_read(&pair)?;
    let event = expect(env, EventType::QpAccessErr, &pair.b.qp)?;
    let number = pair.b.qp.qp_num();
    drop(pair);
    let AsyncEvent::Qp(_, qp) = event else { return Err(Failure::new("no event of a queue pair")) };
    ensure_eq!((qp.qp_num(), qp.state()), (number, QpState::Err), "the event's queue pair");
    drop(qp);
    Pair::rc(env)?.round_trip()
}

fn none(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    for _ in 0..20 {
        pair.round_trip()?;
    }
    drop(pair);
    for side in [&env.a, &env.b] {
        while let Some(event) = side.context.next_async_event()? {
            // The machine's addresses may change at any time.
            ensure_eq!(event.event_type(), EventType::GidChange, "an event in ordinary use");
        }
    }
    Ok(())
}

/// The context whose queue pair it is gets it, and no other.
fn own_context(env: &Env) -> CaseResult {
    let other = env.open_again(crate::End::B)?;
    let pair = Pair::rc(env)?;
    forbidden_read(&pair)?;
    expect(env, EventType::QpAccessErr, &pair.b.qp)?;
    for context in [&other.context, &env.a.context] {
        while let Some(event) = context.next_async_event()? {
            ensure!(!matches!(event, AsyncEvent::Qp(..)), "{event:?} at another context");
        }
    }
    Ok(())
}
