//! Latency: one message at a time. Both ends of send and write use the same code: the client starts and waits for the
//! answer, the server waits and answers.

use super::data::Areas;
use super::endpoint::Endpoint;
use super::lane::{RECV, RecvLanes};
use super::plan::{Op, Plan};
use crate::completions::{BATCH, Completions};
use crate::failure::{Failure, Result};
use crate::monitor::{Halt, Monitor};
use ferroce::{Data, Qp, SendFlags, SendOp, SendWr, Sge, WorkCompletion};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// The longest round trip that the histogram tells apart.
const MAX_NANOS: u64 = 60_000_000_000;

/// One message there, one answer back.
pub(crate) trait RoundTrip {
    /// Sends.
    fn start(&mut self) -> Result<()>;
    /// Waits for what comes back; false if the loop was asked to end first.
    fn finish(&mut self, monitor: &Monitor) -> Result<bool>;
}

/// Client: makes `iters` round trips, or as many as it can until the time is up. `None` if it was asked to break off.
pub(crate) fn drive<T: RoundTrip>(
    trip: &mut T,
    iters: Option<u64>,
    monitor: &Monitor,
) -> Result<Option<(Histogram<u64>, Duration)>> {
    let mut histogram =
        Histogram::new_with_bounds(1, MAX_NANOS, 3).map_err(|error| Failure::run(format!("no histogram: {error}")))?;
    let most = iters.unwrap_or(u64::MAX);
    let started = monitor.begin();
    let (mut last, mut done) = (started, 0);
    let mut taken = None;
    while done < most {
        trip.start()?;
        // Recorded while the next message is on its way.
        if let Some(nanos) = taken {
            histogram.saturating_record(nanos);
        }
        if !trip.finish(monitor)? {
            return Ok(None);
        }
        // Asked before the clock is read: what is reported is then never less than the time that was given.
        let is_over = iters.is_none() && monitor.halt() != Halt::Running;
        let now = Instant::now();
        taken = Some(((now - last).as_nanos() as u64).max(1));
        last = now;
        done += 1;
        monitor.set_done(done);
        if is_over {
            break;
        }
    }
    if let Some(nanos) = taken {
        histogram.saturating_record(nanos);
    }
    Ok(Some((histogram, last - started)))
}

/// Server: answers until it is asked to end; returns how many it answered.
pub(crate) fn echo<T: RoundTrip>(trip: &mut T, monitor: &Monitor) -> Result<u64> {
    let mut answered = 0;
    while trip.finish(monitor)? {
        trip.start()?;
        answered += 1;
    }
    Ok(answered)
}

/// One queue pair that posts single requests, of which every so many-th is signaled.
struct Sender<'a> {
    qp: &'a Qp,
    op: SendOp,
    depth: u64,
    every: u64,
    posted: u64,
    completed: u64,
}

impl<'a> Sender<'a> {
    fn new(qp: &'a Qp, plan: &Plan, op: SendOp) -> Self {
        Self { qp, op, depth: plan.depth.into(), every: plan.cq_mod.into(), posted: 0, completed: 0 }
    }

    fn is_full(&self) -> bool {
        self.posted - self.completed >= self.depth
    }

    #[inline]
    fn post(&mut self, data: Data<'_>) -> Result<()> {
        self.posted += 1;
        let signaled = self.posted.is_multiple_of(self.every);
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let wr = SendWr { wr_id: 0, op: self.op, data, flags, ud: None };
        self.qp.post_send(&[wr]).map_err(|error| Failure::from(error).during("posting a send"))
    }

    #[inline]
    fn complete(&mut self, wc: &WorkCompletion) -> Result<()> {
        if !wc.is_ok() {
            return Err(Failure::completion("a work request", wc));
        }
        self.completed += self.every;
        Ok(())
    }
}

/// Whether the loop should end; the end of the time ends no round trip.
#[inline]
pub(super) fn is_halted(monitor: &Monitor) -> bool {
    monitor.halt() > Halt::TimeUp
}

/// Send and receive.
pub(crate) struct SendTrip<'a> {
    completions: &'a Completions,
    sender: Sender<'a>,
    receives: RecvLanes<'a>,
    data: Data<'a>,
    wcs: [WorkCompletion; BATCH],
}

impl<'a> SendTrip<'a> {
    pub(crate) fn new(endpoint: &'a Endpoint, plan: &Plan, data: Data<'a>, receives: RecvLanes<'a>) -> Self {
        Self {
            completions: &endpoint.completions,
            sender: Sender::new(&endpoint.qps[0], plan, SendOp::Send),
            receives,
            data,
            wcs: [WorkCompletion::default(); BATCH],
        }
    }

    /// Takes completions; true if a message was among them.
    #[inline]
    fn take(&mut self) -> Result<(usize, bool)> {
        let taken = self.completions.take(&mut self.wcs)?;
        let mut came = false;
        for wc in &self.wcs[..taken] {
            if wc.wr_id & RECV != 0 {
                self.receives.complete(wc)?;
                came = true;
            } else {
                self.sender.complete(wc)?;
            }
        }
        Ok((taken, came))
    }

    /// Leaves all receives posted for the next run.
    pub(crate) fn end(mut self) -> Result<()> {
        self.receives.refill_all()
    }
}

impl RoundTrip for SendTrip<'_> {
    #[inline]
    fn start(&mut self) -> Result<()> {
        while self.sender.is_full() {
            self.take()?;
        }
        self.sender.post(self.data)?;
        self.receives.refill(0)
    }

    #[inline]
    fn finish(&mut self, monitor: &Monitor) -> Result<bool> {
        loop {
            let (taken, came) = self.take()?;
            if came {
                return Ok(true);
            }
            if taken == 0 && is_halted(monitor) {
                return Ok(false);
            }
        }
    }
}

/// RDMA writes whose last byte counts up, which the other end sees in its memory.
pub(crate) struct WriteTrip<'a> {
    completions: &'a Completions,
    areas: &'a Areas,
    sender: Sender<'a>,
    size: u32,
    sges: [Sge; 1],
    /// The message, when it is sent inline.
    inline: Option<Vec<u8>>,
    sent: u8,
    awaited: u8,
    wcs: [WorkCompletion; BATCH],
}

impl<'a> WriteTrip<'a> {
    pub(crate) fn new(endpoint: &'a Endpoint, plan: &Plan, size: u32, op: SendOp) -> Result<Self> {
        let areas = &endpoint.areas;
        let inline = plan.is_inline(size, endpoint.inline_limit).then(|| areas.pattern[..size as usize].to_vec());
        Ok(Self {
            completions: &endpoint.completions,
            areas,
            sender: Sender::new(&endpoint.qps[0], plan, op),
            size,
            sges: [areas.own(size)?],
            inline,
            sent: 0,
            awaited: 0,
            wcs: [WorkCompletion::default(); BATCH],
        })
    }

    #[inline]
    fn take(&mut self) -> Result<usize> {
        let taken = self.completions.take(&mut self.wcs)?;
        for wc in &self.wcs[..taken] {
            self.sender.complete(wc)?;
        }
        Ok(taken)
    }
}

impl RoundTrip for WriteTrip<'_> {
    #[inline]
    fn start(&mut self) -> Result<()> {
        while self.sender.is_full() {
            self.take()?;
        }
        self.sent = self.sent.wrapping_add(1);
        match &mut self.inline {
            Some(bytes) => {
                if let Some(last) = bytes.last_mut() {
                    *last = self.sent;
                }
                self.sender.post(Data::Inline(bytes))
            }
            None => {
                self.areas.set_own_last(self.size, self.sent)?;
                self.sender.post(Data::Sges(&self.sges))
            }
        }
    }

    #[inline]
    fn finish(&mut self, monitor: &Monitor) -> Result<bool> {
        let awaited = self.awaited.wrapping_add(1);
        loop {
            if self.areas.open_last(self.size)? == awaited {
                self.awaited = awaited;
                return Ok(true);
            }
            // A device in software makes progress in here.
            if self.take()? == 0 && is_halted(monitor) {
                return Ok(false);
            }
        }
    }
}

/// Reads and atomics, which are answered by the peer's device alone.
pub(crate) struct OneSidedTrip<'a> {
    completions: &'a Completions,
    sender: Sender<'a>,
    sges: [Sge; 1],
    wcs: [WorkCompletion; BATCH],
}

impl<'a> OneSidedTrip<'a> {
    pub(crate) fn new(endpoint: &'a Endpoint, plan: &Plan, size: u32, op: SendOp) -> Result<Self> {
        debug_assert!(matches!(plan.op, Op::Read | Op::Atomic));
        Ok(Self {
            completions: &endpoint.completions,
            sender: Sender::new(&endpoint.qps[0], plan, op),
            sges: [endpoint.areas.own(size)?],
            wcs: [WorkCompletion::default(); BATCH],
        })
    }
}

impl RoundTrip for OneSidedTrip<'_> {
    #[inline]
    fn start(&mut self) -> Result<()> {
        self.sender.post(Data::Sges(&self.sges))
    }

    #[inline]
    fn finish(&mut self, monitor: &Monitor) -> Result<bool> {
        loop {
            let taken = self.completions.take(&mut self.wcs)?;
            for wc in &self.wcs[..taken] {
                self.sender.complete(wc)?;
            }
            if taken > 0 {
                return Ok(true);
            }
            if is_halted(monitor) {
                return Ok(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers at once, and is asked to end at some point.
    struct Instantly {
        starts: u64,
        halt_at: u64,
    }

    impl RoundTrip for Instantly {
        fn start(&mut self) -> Result<()> {
            self.starts += 1;
            Ok(())
        }

        fn finish(&mut self, _: &Monitor) -> Result<bool> {
            Ok(self.starts < self.halt_at)
        }
    }

    #[test]
    fn every_round_trip_is_recorded_once() {
        let mut trip = Instantly { starts: 0, halt_at: u64::MAX };
        let (histogram, _) = drive(&mut trip, Some(100), &Monitor::default()).unwrap().unwrap();
        assert_eq!((histogram.len(), trip.starts), (100, 100));
        let monitor = Monitor::default();
        monitor.request(Halt::TimeUp);
        let (histogram, _) = drive(&mut trip, None, &monitor).unwrap().unwrap();
        assert_eq!(histogram.len(), 1);
    }

    #[test]
    fn a_loop_that_is_broken_off_says_so() {
        let mut trip = Instantly { starts: 0, halt_at: 5 };
        assert!(drive(&mut trip, Some(100), &Monitor::default()).unwrap().is_none());
        let mut trip = Instantly { starts: 0, halt_at: 5 };
        assert_eq!(echo(&mut trip, &Monitor::default()).unwrap(), 5);
    }
}
