//! SQD: the send queue drains, and what is posted meanwhile waits.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Endpoint, Link, Marker, Pair, ok};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{AsyncEvent, EventType, QpAttr, QpState, QpType, SendOp, SendWr, WcOpcode};

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("sqd/event-when-idle", idle));
    all.push(Case::new("sqd/event-after-what-is-outstanding", after_outstanding));
    all.push(Case::new("sqd/event-though-attributes-change", event_though_attributes_change));
    all.push(Case::new("sqd/no-event-unless-asked", unless_asked));
    all.push(Case::new("sqd/posts-wait", posts_wait));
    all.push(Case::new("sqd/receives-go-on", receives_go_on));
    all.push(Case::new("sqd/attributes-change", attributes_change));
}

fn to_sqd(notify: bool) -> QpAttr {
    QpAttr { en_sqd_async_notify: notify.then_some(true), ..QpAttr::to(QpState::Sqd) }
}

fn drained(env: &Env, end: &Endpoint) -> CaseResult {
    match env.wait.event(&end.side.context, EventType::SqDrained)? {
        AsyncEvent::Qp(_, qp) => ensure!(qp == end.qp, "the event is of another queue pair"),
        other => return Err(Failure::new(format!("the event is {other:?}"))),
    }
    Ok(())
}

fn no_event(end: &Endpoint) -> CaseResult {
    let event = end.side.context.next_async_event()?;
    ensure!(event.is_none(), "event {event:?}");
    Ok(())
}

fn idle(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    pair.a.qp.modify(&to_sqd(true))?;
    drained(env, &pair.a)?;
    ensure_eq!(pair.a.qp.state(), QpState::Sqd, "state");
    pair.a.qp.modify(&QpAttr::to(QpState::Rts))?;
    pair.round_trip()?;
    no_event(&pair.a)
}

/// A message that has no receive yet is outstanding; the queue is drained when it is done, not before.
fn after_outstanding(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let marker = Marker::new(env)?;
    pair.a.post(SendWr::send(1, &[]))?;
    marker.pass()?;
    pair.a.qp.modify(&to_sqd(true))?;
    marker.pass()?;
    no_event(&pair.a)?;
    pair.b.post_recv(2, &[])?;
    drained(env, &pair.a)?;
    ok(&pair.a.sent()?, 1, WcOpcode::Send)?;
    pair.a.qp.modify(&QpAttr::to(QpState::Rts))?;
    ok(&pair.b.received()?, 2, WcOpcode::Recv)?;
    pair.round_trip()
}

/// The event that RTS to SQD asked for is not taken back by a change of other attributes while the queue drains: nothing else
/// can ask for it again.
fn event_though_attributes_change(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let marker = Marker::new(env)?;
    pair.a.post(SendWr::send(1, &[]))?;
    marker.pass()?;
    pair.a.qp.modify(&to_sqd(true))?;
    pair.a.qp.modify(&QpAttr { retry_cnt: Some(5), ..QpAttr::to(QpState::Sqd) })?;
    marker.pass()?;
    no_event(&pair.a)?;
    pair.b.post_recv(2, &[])?;
    drained(env, &pair.a)?;
    ok(&pair.a.sent()?, 1, WcOpcode::Send)
}

fn unless_asked(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let marker = Marker::new(env)?;
    pair.a.qp.modify(&to_sqd(false))?;
    marker.pass()?;
    pair.a.qp.modify(&QpAttr::to(QpState::Rts))?;
    pair.round_trip()?;
    no_event(&pair.a)
}

/// What is posted in SQD is accepted and starts in RTS (IBTA 10.3.1.5).
fn posts_wait(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    let marker = Marker::new(env)?;
    let (source, target) = (pair.a.memory(8)?, pair.b.memory(8)?);
    source.mr.write(0, b"too soon")?;
    pair.a.qp.modify(&to_sqd(true))?;
    drained(env, &pair.a)?;
    let op = SendOp::Write { remote_addr: target.addr(0), rkey: target.mr.rkey() };
    pair.a.post(SendWr::new(1, op, &[source.mr.sge(..)?]))?;
    marker.pass()?;
    env.wait.nothing(&pair.a.send_cq)?;
    target.untouched()?;
    pair.a.qp.modify(&QpAttr::to(QpState::Rts))?;
    ok(&pair.a.sent()?, 1, WcOpcode::RdmaWrite)?;
    target.holds(0, b"too soon")
}

fn receives_go_on(env: &Env) -> CaseResult {
    let pair = Pair::rc(env)?;
    pair.a.qp.modify(&to_sqd(true))?;
    drained(env, &pair.a)?;
    pair.a.post_recv(1, &[])?;
    pair.b.post(SendWr::send(2, &[]))?;
    ok(&pair.b.sent()?, 2, WcOpcode::Send)?;
    ok(&pair.a.received()?, 1, WcOpcode::Recv)?;
    let source = pair.a.memory(8)?;
    let back = pair.b.memory(8)?;
    let op = SendOp::Read { remote_addr: source.addr(0), rkey: source.mr.rkey() };
    pair.b.post(SendWr::new(3, op, &[back.mr.sge(..)?]))?;
    ok(&pair.b.sent()?, 3, WcOpcode::RdmaRead)
}

/// In SQD the timers of a connection can be changed (IBTA 11.2.5.2, table 94).
fn attributes_change(env: &Env) -> CaseResult {
    let pair = Pair::new(env, &Build::new(QpType::Rc), &Link::default())?;
    pair.a.qp.modify(&to_sqd(true))?;
    drained(env, &pair.a)?;
    let change = QpAttr {
        timeout: Some(15),
        retry_cnt: Some(5),
        rnr_retry: Some(4),
        min_rnr_timer: Some(9),
        ..QpAttr::to(QpState::Sqd)
    };
    pair.a.qp.modify(&change)?;
    let attr = pair.a.qp.query()?;
    ensure_eq!(
        (attr.state, attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer),
        (change.state, change.timeout, change.retry_cnt, change.rnr_retry, change.min_rnr_timer),
        "attributes"
    );
    pair.a.qp.modify(&QpAttr::to(QpState::Rts))?;
    pair.round_trip()
}
