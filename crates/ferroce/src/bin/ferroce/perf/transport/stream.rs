//! Bandwidth and message rate: the client sends as much as the transport takes.

use super::super::plan::Op;
use super::super::timing::Timing;
use super::end::End;
use super::failed;
use super::trip::{send, when_possible};
use crate::failure::{Failure, Result};
use crate::monitor::{self, Halt, Monitor};
use ferroce::transport::uct::{AtomicOp, Completion, CompletionCounter, Endpoint, FlushKind, OpError, Posted};
use std::time::Duration;

/// Messages between two looks at whether the time is up.
const LOOK_EVERY: u64 = 16;

/// Sends `total` messages, or as many as it can until the time is up; returns how many and how long it took, from the first to the end of
/// the flush that follows the last.
pub(super) fn run(
    end: &End,
    timing: &Timing<'_>,
    size: u32,
    total: Option<u64>,
    monitor: &Monitor,
) -> Result<(u64, Duration)> {
    let (endpoint, op) = (end.endpoint()?, timing.plan.op);
    let most = total.unwrap_or(u64::MAX);
    let mut sent = 0;
    let started = monitor.begin();
    while sent < most {
        match post(end, endpoint, op, size) {
            Ok(()) => {
                sent += 1;
                if !sent.is_multiple_of(LOOK_EVERY) {
                    continue;
                }
                monitor.set_done(sent);
            }
            Err(OpError::NoResource) => {
                end.progress()?;
            }
            Err(error) => return Err(failed(end, error, "streaming")),
        }
        match monitor.halt() {
            Halt::Running => {}
            Halt::TimeUp if total.is_none() => break,
            _ => monitor::check(monitor, timing.idle, "resources")?,
        }
    }
    let flushed = CompletionCounter::new();
    let flush = |endpoint: &dyn Endpoint| endpoint.flush(FlushKind::Remote, Some(Completion::new(&flushed, 0)));
    let mut over = when_possible(end, "flushing", flush)? == Posted::Done;
    while !over {
        if end.progress()? == 0 {
            monitor::check(monitor, timing.idle, "acknowledgements")?;
        }
        over = flushed.succeeded() != 0;
        if let Some(failure) = end.failure().filter(|_| !over) {
            return Err(Failure::run(failure).during("flushing"));
        }
    }
    Ok((sent, started.elapsed()))
}

#[inline]
fn post(end: &End, endpoint: &dyn Endpoint, op: Op, size: u32) -> Result<(), OpError> {
    match op {
        Op::Am => send(end, endpoint, size as usize),
        Op::Put if size as usize <= end.attr().put.max_short => {
            endpoint.put_short(&end.areas.pattern[..size as usize], end.remote())
        }
        Op::Put => endpoint.put_zcopy(&[end.areas.own_iov(size)], end.remote(), None).map(|_| ()),
        Op::Atomic => endpoint.atomic64_post(AtomicOp::Add, 1, end.remote()),
        _ => endpoint.get_zcopy(&[end.areas.own_iov(size)], end.remote(), None).map(|_| ()),
    }
}
