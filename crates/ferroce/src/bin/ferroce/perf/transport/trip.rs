//! Latency: one message there, one back.

use super::super::latency::{RoundTrip, is_halted};
use super::super::plan::Op;
use super::end::{AM, End};
use super::failed;
use crate::failure::Result;
use crate::monitor::Monitor;
use ferroce::transport::uct::{AtomicOp, Completion, CompletionCounter, Endpoint, OpError, Packer, Posted};
use std::sync::Arc;

/// Does `op` as soon as there are resources.
#[inline]
pub(super) fn when_possible<T>(
    end: &End,
    what: &str,
    mut op: impl FnMut(&dyn Endpoint) -> Result<T, OpError>,
) -> Result<T> {
    let endpoint = end.endpoint()?;
    loop {
        match op(endpoint) {
            Ok(done) => return Ok(done),
            Err(OpError::NoResource) => {
                end.progress()?;
            }
            Err(error) => return Err(failed(end, error, what)),
        }
    }
}

/// Sends an active message of `size` bytes of the pattern, short if it fits.
#[inline]
pub(super) fn send(end: &End, endpoint: &dyn Endpoint, size: usize) -> Result<(), OpError> {
    let bytes = &end.areas.pattern[..size];
    if size <= end.attr().am.max_short {
        endpoint.am_short(AM, bytes)
    } else {
        let mut pack = |packer: &mut Packer<'_>| {
            // What does not fit the transport says itself.
            let _ = packer.put(bytes);
        };
        endpoint.am_bcopy(AM, &mut pack).map(|_| ())
    }
}

/// Active messages.
pub(super) struct AmTrip<'a> {
    end: &'a End,
    size: usize,
    seen: u64,
}

impl<'a> AmTrip<'a> {
    pub(super) fn new(end: &'a End, size: u32) -> Self {
        Self { end, size: size as usize, seen: end.received() }
    }
}

impl RoundTrip for AmTrip<'_> {
    #[inline]
    fn start(&mut self) -> Result<()> {
        when_possible(self.end, "sending an active message", |endpoint| send(self.end, endpoint, self.size))
    }

    #[inline]
    fn finish(&mut self, monitor: &Monitor) -> Result<bool> {
        loop {
            if self.end.received() > self.seen {
                self.seen += 1;
                return Ok(true);
            }
            if self.end.progress()? == 0 && is_halted(monitor) {
                return Ok(false);
            }
        }
    }
}

/// Puts whose last byte counts up, which the other end sees in its memory.
pub(super) struct PutTrip<'a> {
    end: &'a End,
    size: u32,
    /// The message, when it goes short.
    short: Option<Vec<u8>>,
    sent: u8,
    awaited: u8,
}

impl<'a> PutTrip<'a> {
    pub(super) fn new(end: &'a End, size: u32) -> Self {
        let short = (size as usize <= end.attr().put.max_short).then(|| end.areas.pattern[..size as usize].to_vec());
        Self { end, size, short, sent: 0, awaited: 0 }
    }
}

impl RoundTrip for PutTrip<'_> {
    #[inline]
    fn start(&mut self) -> Result<()> {
        self.sent = self.sent.wrapping_add(1);
        let (end, remote) = (self.end, self.end.remote());
        match &mut self.short {
            Some(bytes) => {
                if let Some(last) = bytes.last_mut() {
                    *last = self.sent;
                }
                when_possible(end, "a put", |endpoint| endpoint.put_short(bytes, remote))
            }
            None => {
                end.areas.set_own_last(self.size, self.sent)?;
                let iov = [end.areas.own_iov(self.size)];
                when_possible(end, "a put", |endpoint| endpoint.put_zcopy(&iov, remote, None)).map(|_| ())
            }
        }
    }

    #[inline]
    fn finish(&mut self, monitor: &Monitor) -> Result<bool> {
        let awaited = self.awaited.wrapping_add(1);
        loop {
            if self.end.areas.open_last(self.size)? == awaited {
                self.awaited = awaited;
                return Ok(true);
            }
            if self.end.progress()? == 0 && is_halted(monitor) {
                return Ok(false);
            }
        }
    }
}

/// Gets and atomics, which the peer's device answers.
pub(super) struct FetchTrip<'a> {
    end: &'a End,
    op: Op,
    size: u32,
    done: Arc<CompletionCounter>,
    begun: usize,
}

impl<'a> FetchTrip<'a> {
    pub(super) fn new(end: &'a End, op: Op, size: u32) -> Self {
        Self { end, op, size, done: CompletionCounter::new(), begun: 0 }
    }
}

/// Begins a get or an atomic.
#[inline]
pub(super) fn fetch(
    end: &End,
    endpoint: &dyn Endpoint,
    op: Op,
    size: u32,
    done: Completion,
) -> Result<Posted, OpError> {
    match op {
        Op::Atomic => endpoint.atomic64_fetch(AtomicOp::Add, 1, end.remote(), done),
        _ => endpoint.get_zcopy(&[end.areas.own_iov(size)], end.remote(), Some(done)),
    }
}

impl RoundTrip for FetchTrip<'_> {
    #[inline]
    fn start(&mut self) -> Result<()> {
        let Self { end, op, size, done, .. } = self;
        let begin = |endpoint: &dyn Endpoint| fetch(end, endpoint, *op, *size, Completion::new(done, 0));
        when_possible(end, "fetching", begin)?;
        self.begun += 1;
        Ok(())
    }

    #[inline]
    fn finish(&mut self, monitor: &Monitor) -> Result<bool> {
        loop {
            if self.done.succeeded() == self.begun {
                return Ok(true);
            }
            if let Some(failure) = (self.done.failed() != 0).then(|| self.end.failure()).flatten() {
                return Err(crate::failure::Failure::run(failure));
            }
            if self.end.progress()? == 0 && is_halted(monitor) {
                return Ok(false);
            }
        }
    }
}
