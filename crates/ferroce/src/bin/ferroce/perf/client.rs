//! The client: it decides what is measured, and measures.

use super::control::{Control, EndAddress, Message, VERSION, unexpected};
use super::endpoint::Endpoint;
use super::lane::{RecvLanes, post_all};
use super::latency::{OneSidedTrip, RoundTrip, SendTrip, WriteTrip, drive};
use super::plan::{Mode, Op, Plan};
use super::result::{Latency, Measurement};
use super::stream::Stream;
use crate::args::{Common, Link};
use crate::failure::{Failure, Result};
use crate::monitor::{Halt, Monitor, idle_failure};
use crate::progress::Progress;
use crate::report::rounded;
use crate::tcp;
use ferroce::{Data, Mtu, SendOp, Sge};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// What was connected.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Connected {
    pub(crate) local: End,
    pub(crate) remote: End,
    pub(crate) mtu: u32,
    pub(crate) link: Link,
}

/// One end of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct End {
    pub(crate) device: String,
    pub(crate) pid: u32,
    pub(crate) gid: String,
    pub(crate) qpn: Vec<u32>,
}

impl From<&EndAddress> for End {
    fn from(end: &EndAddress) -> Self {
        Self {
            device: end.device.clone(),
            pid: end.pid,
            gid: end.gid.to_string(),
            qpn: end.qps.iter().map(|qp| qp.qpn).collect(),
        }
    }
}

impl End {
    fn describe(&self) -> String {
        let qpn = self.qpn.first().copied().unwrap_or(0);
        let more = match self.qpn.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        format!("process {} {} {} QPN {qpn:#08x}{more}", self.pid, self.device, self.gid)
    }
}

impl Connected {
    pub(crate) fn describe(&self) -> String {
        format!("{} ↔ {}, link {}, MTU {}", self.local.describe(), self.remote.describe(), self.link, self.mtu)
    }
}

/// Connects to the server and measures every size of `plan`.
pub(crate) fn measure(
    common: &Common,
    plan: &Plan,
    host: &str,
    port: u16,
    patience: Duration,
) -> Result<(Connected, Vec<Measurement>)> {
    let stream = tcp::connect(host, port, tcp::NO_HOST)?;
    let reached_from = tcp::local_ip(&stream);
    let monitor = Monitor::default();
    let control = Control::new(stream, monitor.clone(), patience)?;
    let endpoint = Endpoint::new(common, plan, reached_from)?;
    let session = match Session::connect(&control, &endpoint, plan, monitor, patience) {
        Ok(session) => session,
        Err(failure) => {
            control.send_failure(&failure);
            return Err(failure);
        }
    };
    let mut measurements = Vec::with_capacity(plan.sizes.len());
    for &size in &plan.sizes {
        match session.measure_size(&control, size) {
            Ok(measurement) => measurements.push(measurement),
            Err(failure) => {
                tracing::debug!(counters = ?endpoint.context.counters(), "failed");
                // What the peer says explains more than that this end was broken off by it.
                let cause = control.broken_off();
                control.send_failure(&failure);
                return Err(match cause {
                    Some(cause) if failure.broken_off => cause,
                    Some(cause) => failure.hint(cause),
                    None => failure,
                });
            }
        }
    }
    control.send(&Message::Bye { results: measurements.clone() })?;
    let connected = Connected {
        local: (&endpoint.address()).into(),
        remote: (&session.peer).into(),
        mtu: session.mtu.bytes(),
        link: session.link(),
    };
    tracing::debug!(counters = ?endpoint.context.counters(), "measured");
    Ok((connected, measurements))
}

struct Session<'a> {
    endpoint: &'a Endpoint,
    plan: &'a Plan,
    peer: EndAddress,
    mtu: Mtu,
    monitor: Monitor,
    idle: Duration,
    /// Where receives go.
    open: [Sge; 1],
}

impl<'a> Session<'a> {
    fn connect(
        control: &Control,
        endpoint: &'a Endpoint,
        plan: &'a Plan,
        monitor: Monitor,
        idle: Duration,
    ) -> Result<Self> {
        control.send(&Message::Hello { version: VERSION, plan: plan.clone() })?;
        let peer = match control.expect("answer")? {
            Message::Welcome { end } => end,
            other => return Err(unexpected(&other)),
        };
        let mtu = endpoint.agree_on_mtu(plan, &peer)?;
        endpoint.check_size(plan, &peer)?;
        let open = [endpoint.areas.open()?];
        endpoint.connect(&peer, mtu)?;
        if plan.op == Op::Send && plan.mode == Mode::Lat {
            post_all(&endpoint.qps, plan, &open)?;
        }
        control.send(&Message::Connect { end: endpoint.address(), mtu: mtu.bytes() })?;
        match control.expect("connection")? {
            Message::Connected => Ok(Self { endpoint, plan, peer, mtu, monitor, idle, open }),
            other => Err(unexpected(&other)),
        }
    }

    fn measure_size(&self, control: &Control, size: u32) -> Result<Measurement> {
        self.endpoint.areas.prepare(self.plan, size, true)?;
        control.send(&Message::Start { size })?;
        match control.expect("readiness")? {
            Message::Ready => {}
            other => return Err(unexpected(&other)),
        }
        let warmup = self.plan.warmup(size);
        let run = match self.plan.mode {
            Mode::Lat => self.latency(size, warmup)?,
            Mode::Bw | Mode::Rate => self.stream(size, warmup)?,
        };
        control.send(&Message::Stop { messages: run.messages + warmup })?;
        match control.expect("confirmation")? {
            Message::Stopped => {}
            other => return Err(unexpected(&other)),
        }
        self.endpoint.areas.verify(self.plan, size, true, run.messages + warmup)?;
        Ok(self.result(size, &run))
    }

    fn link(&self) -> Link {
        self.endpoint.link_to(self.plan, &self.peer)
    }

    fn op(&self) -> SendOp {
        let (remote_addr, rkey) = (self.peer.addr, self.peer.rkey);
        remote_op(self.plan.op, remote_addr, rkey)
    }

    fn progress(&self, size: u32, what: &str) -> Progress {
        let label = format!("{} {} {size} bytes{what}", self.plan.op.name(), self.plan.mode.name());
        Progress::new(label, self.plan.iters)
    }

    fn stream(&self, size: u32, warmup: u64) -> Result<Run> {
        let sges = [self.endpoint.areas.own(size)?];
        let data = message(self.endpoint, self.plan, size, &sges);
        let mut stream = Stream::new(self.endpoint, self.plan, self.op(), data, self.idle);
        self.warm(size, |monitor| stream.run(Some(warmup), monitor).map(|_| ()))?;
        let (messages, elapsed) = self.timed(size, |monitor| stream.run(self.plan.iters, monitor))?;
        Ok(Run { messages, elapsed, round_trips: None })
    }

    fn latency(&self, size: u32, warmup: u64) -> Result<Run> {
        let sges = [self.endpoint.areas.own(size)?];
        match self.plan.op {
            Op::Send => {
                let data = message(self.endpoint, self.plan, size, &sges);
                let receives = RecvLanes::new(&self.endpoint.qps, self.plan, size, &self.open);
                let mut trip = SendTrip::new(self.endpoint, self.plan, data, receives);
                let run = self.round_trips(size, warmup, &mut trip)?;
                trip.end()?;
                Ok(run)
            }
            Op::Write => {
                let mut trip = WriteTrip::new(self.endpoint, self.plan, size, self.op())?;
                self.round_trips(size, warmup, &mut trip)
            }
            Op::Read | Op::Atomic => {
                let mut trip = OneSidedTrip::new(self.endpoint, self.plan, size, self.op())?;
                self.round_trips(size, warmup, &mut trip)
            }
        }
    }

    fn round_trips<T: RoundTrip>(&self, size: u32, warmup: u64, trip: &mut T) -> Result<Run> {
        self.warm(size, |monitor| self.unbroken(drive(trip, Some(warmup), monitor)?, monitor).map(|_| ()))?;
        let (histogram, elapsed) =
            self.timed(size, |monitor| self.unbroken(drive(trip, self.plan.iters, monitor)?, monitor))?;
        Ok(Run { messages: histogram.len(), elapsed, round_trips: Some(histogram) })
    }

    fn unbroken<T>(&self, outcome: Option<T>, monitor: &Monitor) -> Result<T> {
        outcome.ok_or_else(|| match monitor.halt() {
            Halt::Idle => idle_failure(self.idle, "the answer"),
            _ => Failure::broken_off("the answer"),
        })
    }

    fn warm(&self, size: u32, run: impl FnOnce(&Monitor) -> Result<()>) -> Result<()> {
        let _watch = self.monitor.watch(None, self.idle, self.progress(size, ", warming up"));
        run(&self.monitor)
    }

    fn timed<T>(&self, size: u32, run: impl FnOnce(&Monitor) -> Result<T>) -> Result<T> {
        tracing::debug!(size, "measuring");
        let duration = self.plan.iters.is_none().then(|| Duration::from_millis(self.plan.duration_ms));
        let watch = self.monitor.watch(duration, self.idle, self.progress(size, ""));
        let outcome = run(&self.monitor);
        drop(watch);
        self.monitor.withdraw(Halt::TimeUp);
        outcome
    }

    fn result(&self, size: u32, run: &Run) -> Measurement {
        let (plan, seconds) = (self.plan, run.elapsed.as_secs_f64());
        let parts = if plan.op.both_ends() { 2.0 } else { 1.0 };
        let of = if plan.op.both_ends() { "half_round_trip" } else { "round_trip" };
        let rate = run.messages as f64 / seconds;
        let streamed = plan.mode != Mode::Lat;
        Measurement {
            op: plan.op,
            mode: plan.mode,
            size,
            link: self.link(),
            iterations: run.messages,
            seconds: rounded(seconds),
            latency_us: run.round_trips.as_ref().map(|histogram| Latency::of(histogram, parts)),
            latency_of: run.round_trips.is_some().then(|| of.into()),
            mb_per_s: streamed.then(|| rounded(rate * f64::from(size) / 1e6)),
            msgs_per_s: streamed.then(|| rounded(rate)),
            qps: plan.qps,
            depth: plan.depth,
            mtu: self.mtu.bytes(),
        }
    }
}

/// What one size came to, before it is put into figures.
struct Run {
    messages: u64,
    elapsed: Duration,
    round_trips: Option<Histogram<u64>>,
}

/// The work request's operation on the peer's open area.
pub(super) fn remote_op(op: Op, remote_addr: u64, rkey: u32) -> SendOp {
    match op {
        Op::Send => SendOp::Send,
        Op::Write => SendOp::Write { remote_addr, rkey },
        Op::Read => SendOp::Read { remote_addr, rkey },
        Op::Atomic => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
    }
}

/// The local data of a message of `size` bytes.
pub(super) fn message<'a>(endpoint: &'a Endpoint, plan: &Plan, size: u32, sges: &'a [Sge]) -> Data<'a> {
    if plan.is_inline(size, endpoint.inline_limit) {
        Data::Inline(&endpoint.areas.pattern[..size as usize])
    } else {
        Data::Sges(sges)
    }
}
