//! Events of connection management that a command waits for.

use crate::failure::{Failure, Result};
use ferroce::cm::{Event, EventChannel, EventKind};
use std::time::Duration;

/// The next event, whatever it is.
pub(crate) fn next(channel: &EventChannel, timeout: Duration, what: &str) -> Result<Event> {
    channel.next_timeout(timeout)?.ok_or_else(|| {
        Failure::run(format!("nothing came of {what} in {timeout:?}"))
            .hint("is the other end up, and UDP port 4791 open on the way? --timeout gives it longer")
    })
}

/// The next event, which must be a `wanted` one.
pub(crate) fn expect(
    channel: &EventChannel,
    timeout: Duration,
    what: &str,
    wanted: impl Fn(&EventKind) -> bool,
) -> Result<Event> {
    let event = next(channel, timeout, what)?;
    if wanted(event.kind()) { Ok(event) } else { Err(unexpected(what, event.kind())) }
}

/// What an event means that is not the one that was waited for.
pub(crate) fn unexpected(what: &str, kind: &EventKind) -> Failure {
    match kind {
        EventKind::Rejected { reason } => Failure::run(format!("{what} was refused: {reason}"))
            .hint("is a server listening at this address and port?"),
        EventKind::Unreachable { sent } => Failure::run(format!("nobody answered for {what}, asked {sent} times"))
            .hint("the host is down, or UDP port 4791 is closed on the way"),
        EventKind::AddrError(error) | EventKind::RouteError(error) => Failure::run(format!("{what}: {error}")),
        EventKind::MulticastError { error, .. } => Failure::run(format!("{what}: {error}")),
        EventKind::ConnectError(refusal) => Failure::run(format!("{what}: {refusal}")),
        EventKind::Disconnected(_) => Failure::run(format!("the peer disconnected while this end waited for {what}")),
        other => Failure::run(format!("while waiting for {what} came {other:?}")),
    }
}
