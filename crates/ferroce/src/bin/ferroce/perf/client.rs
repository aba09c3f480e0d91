//! The client: it decides what is measured, and measures.

use super::control::{Control, EndAddress, Message, VERSION, unexpected};
use super::endpoint::Endpoint;
use super::lane::{RecvLanes, post_all};
use super::latency::{OneSidedTrip, SendTrip, WriteTrip};
use super::plan::{Mode, Op, Plan};
use super::result::{Measurement, Run};
use super::stream::Stream;
use super::timing::Timing;
use super::transport::{self, End};
use crate::args::{Common, Link};
use crate::failure::Result;
use crate::monitor::Monitor;
use crate::tcp;
use ferroce::{Context, Data, Mtu, SendOp, Sge};
use serde::Serialize;
use std::net::IpAddr;
use std::time::Duration;

/// What was connected.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Connected {
    pub(crate) local: Described,
    pub(crate) remote: Described,
    pub(crate) mtu: u32,
    pub(crate) link: Link,
}

/// One end of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Described {
    pub(crate) device: String,
    pub(crate) pid: u32,
    pub(crate) gid: String,
    pub(crate) qpn: Vec<u32>,
}

impl From<&EndAddress> for Described {
    fn from(end: &EndAddress) -> Self {
        Self {
            device: end.device.clone(),
            pid: end.pid,
            gid: end.gid.to_string(),
            qpn: end.qps.iter().map(|qp| qp.qpn).collect(),
        }
    }
}

impl Described {
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
    let bench = match connect(common, plan, &control, reached_from) {
        Ok(bench) => bench,
        Err(failure) => {
            control.send_failure(&failure);
            return Err(failure);
        }
    };
    let timing = Timing { plan, monitor, idle: patience };
    let mut measurements = Vec::with_capacity(plan.sizes.len());
    for &size in &plan.sizes {
        match measure_size(&*bench, &timing, &control, size) {
            Ok(measurement) => measurements.push(measurement),
            Err(failure) => {
                tracing::debug!(counters = ?bench.context().counters(), "failed");
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
    tracing::debug!(counters = ?bench.context().counters(), "measured");
    Ok((bench.connected(), measurements))
}

/// What is connected to a server, and can be measured.
trait Bench {
    fn context(&self) -> &Context;
    fn connected(&self) -> Connected;
    /// Makes memory ready for messages of `size` bytes.
    fn prepare(&self, size: u32) -> Result<()>;
    fn run(&self, timing: &Timing<'_>, size: u32, warmup: u64) -> Result<Run>;
    /// Checks what arrived here, after `messages` messages.
    fn verify(&self, size: u32, messages: u64) -> Result<()>;
}

fn connect<'a>(
    common: &Common,
    plan: &'a Plan,
    control: &Control,
    reached_from: Option<IpAddr>,
) -> Result<Box<dyn Bench + 'a>> {
    Ok(match plan.transport {
        None => Box::new(QueuePairs::connect(control, Endpoint::new(common, plan, reached_from)?, plan)?),
        Some(kind) => Box::new(Transported::connect(control, End::new(common, plan, kind, reached_from)?, plan)?),
    })
}

fn measure_size(bench: &dyn Bench, timing: &Timing<'_>, control: &Control, size: u32) -> Result<Measurement> {
    bench.prepare(size)?;
    control.send(&Message::Start { size })?;
    match control.expect("readiness")? {
        Message::Ready => {}
        other => return Err(unexpected(&other)),
    }
    let warmup = timing.plan.warmup(size);
    let run = bench.run(timing, size, warmup)?;
    control.send(&Message::Stop { messages: run.messages + warmup })?;
    match control.expect("confirmation")? {
        Message::Stopped => {}
        other => return Err(unexpected(&other)),
    }
    bench.verify(size, run.messages + warmup)?;
    let Connected { link, mtu, .. } = bench.connected();
    Ok(Measurement::of(timing.plan, size, link, mtu, &run))
}

/// Says what is wanted; where the server is.
fn greet(control: &Control, plan: &Plan) -> Result<EndAddress> {
    control.send(&Message::Hello { version: VERSION, plan: plan.clone() })?;
    match control.expect("answer")? {
        Message::Welcome { end } => Ok(end),
        other => Err(unexpected(&other)),
    }
}

/// Tells the server where this end is, and waits until it is connected.
fn introduce(control: &Control, end: EndAddress, mtu: Mtu) -> Result<()> {
    control.send(&Message::Connect { end, mtu: mtu.bytes() })?;
    match control.expect("connection")? {
        Message::Connected => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Queue pairs.
struct QueuePairs<'a> {
    endpoint: Endpoint,
    plan: &'a Plan,
    peer: EndAddress,
    mtu: Mtu,
    /// Where receives go.
    open: [Sge; 1],
}

impl<'a> QueuePairs<'a> {
    fn connect(control: &Control, endpoint: Endpoint, plan: &'a Plan) -> Result<Self> {
        let peer = greet(control, plan)?;
        let mtu = endpoint.agree_on_mtu(plan, &peer)?;
        endpoint.check_size(plan, &peer)?;
        let open = [endpoint.areas.open()?];
        endpoint.connect(&peer, mtu)?;
        if plan.op == Op::Send && plan.mode == Mode::Lat {
            post_all(&endpoint.qps, plan, &open)?;
        }
        introduce(control, endpoint.address(), mtu)?;
        Ok(Self { endpoint, plan, peer, mtu, open })
    }

    fn op(&self) -> SendOp {
        remote_op(self.plan.op, self.peer.addr, self.peer.rkey)
    }

    fn stream(&self, timing: &Timing<'_>, size: u32, warmup: u64) -> Result<Run> {
        let sges = [self.endpoint.areas.own(size)?];
        let data = message(&self.endpoint, self.plan, size, &sges);
        let mut stream = Stream::new(&self.endpoint, self.plan, self.op(), data, timing.idle);
        timing.warm(size, |monitor| stream.run(Some(warmup), monitor).map(|_| ()))?;
        let (messages, elapsed) = timing.timed(size, |monitor| stream.run(self.plan.iters, monitor))?;
        Ok(Run { messages, elapsed, round_trips: None })
    }
}

impl Bench for QueuePairs<'_> {
    fn context(&self) -> &Context {
        &self.endpoint.context
    }

    fn connected(&self) -> Connected {
        Connected {
            local: (&self.endpoint.address()).into(),
            remote: (&self.peer).into(),
            mtu: self.mtu.bytes(),
            link: self.endpoint.link_to(self.plan, &self.peer),
        }
    }

    fn prepare(&self, size: u32) -> Result<()> {
        self.endpoint.areas.prepare(self.plan, size, true)
    }

    fn run(&self, timing: &Timing<'_>, size: u32, warmup: u64) -> Result<Run> {
        if self.plan.mode != Mode::Lat {
            return self.stream(timing, size, warmup);
        }
        let (endpoint, plan) = (&self.endpoint, self.plan);
        match plan.op {
            Op::Send => {
                let sges = [endpoint.areas.own(size)?];
                let data = message(endpoint, plan, size, &sges);
                let receives = RecvLanes::new(&endpoint.qps, plan, size, &self.open);
                let mut trip = SendTrip::new(endpoint, plan, data, receives);
                let run = timing.round_trips(size, warmup, &mut trip)?;
                trip.end()?;
                Ok(run)
            }
            Op::Write => timing.round_trips(size, warmup, &mut WriteTrip::new(endpoint, plan, size, self.op())?),
            _ => timing.round_trips(size, warmup, &mut OneSidedTrip::new(endpoint, plan, size, self.op())?),
        }
    }

    fn verify(&self, size: u32, messages: u64) -> Result<()> {
        self.endpoint.areas.verify(self.plan, size, true, messages)
    }
}

/// An endpoint of a transport.
struct Transported<'a> {
    end: End,
    plan: &'a Plan,
    peer: EndAddress,
}

impl<'a> Transported<'a> {
    fn connect(control: &Control, end: End, plan: &'a Plan) -> Result<Self> {
        let peer = greet(control, plan)?;
        end.connect(&peer)?;
        introduce(control, end.address(), end.mtu(&peer))?;
        Ok(Self { end, plan, peer })
    }
}

impl Bench for Transported<'_> {
    fn context(&self) -> &Context {
        &self.end.context
    }

    fn connected(&self) -> Connected {
        Connected {
            local: (&self.end.address()).into(),
            remote: (&self.peer).into(),
            mtu: self.end.mtu(&self.peer).bytes(),
            link: self.end.link_to(self.plan, &self.peer),
        }
    }

    fn prepare(&self, size: u32) -> Result<()> {
        self.end.prepare(self.plan, size, true)
    }

    fn run(&self, timing: &Timing<'_>, size: u32, warmup: u64) -> Result<Run> {
        transport::measure(&self.end, timing, size, warmup)
    }

    fn verify(&self, size: u32, messages: u64) -> Result<()> {
        self.end.verify(self.plan, size, true, messages)
    }
}

/// The work request's operation on the peer's open area.
pub(super) fn remote_op(op: Op, remote_addr: u64, rkey: u32) -> SendOp {
    match op {
        Op::Send | Op::Am => SendOp::Send,
        Op::Write | Op::Put => SendOp::Write { remote_addr, rkey },
        Op::Read | Op::Get => SendOp::Read { remote_addr, rkey },
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
