//! The operations of transports: active messages, puts, gets, atomics.

mod end;
mod stream;
mod trip;

pub(crate) use end::End;

use super::plan::{Mode, Op, Plan};
use super::result::Run;
use super::timing::Timing;
use crate::failure::{Failure, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use trip::{AmTrip, FetchTrip, PutTrip};

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[clap(rename_all = "snake_case")]
pub(crate) enum Transport {
    /// RC queue pairs: all operations
    RcVerbs,
    /// Reliable messages over a UD queue pair: active messages
    UdVerbs,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RcVerbs => "rc_verbs",
            Self::UdVerbs => "ud_verbs",
        }
    }

    /// What an active message has if nobody says how long it should be and it is bandwidth that is measured: what fits, also into a
    /// packet of an Ethernet.
    pub(crate) fn bw_message(self) -> u32 {
        match self {
            Self::RcVerbs => 8192,
            Self::UdVerbs => 960,
        }
    }
}

/// Says in a sentence what a transport does not do.
pub(crate) fn validate(transport: Transport, op: Op) -> Result<(), String> {
    match (transport, op) {
        (_, Op::Send | Op::Write | Op::Read) => Err(format!(
            "{} is an operation of queue pairs: leave --transport out, or measure am, put, get or atomic",
            op.name()
        )),
        (Transport::UdVerbs, Op::Put | Op::Get | Op::Atomic) => {
            Err(format!("ud_verbs has active messages only: {} needs --transport rc_verbs", op.name()))
        }
        _ => Ok(()),
    }
}

/// Client: measures one size.
pub(crate) fn measure(end: &End, timing: &Timing<'_>, size: u32, warmup: u64) -> Result<Run> {
    let plan = timing.plan;
    match (plan.mode, plan.op) {
        (Mode::Lat, Op::Am) => timing.round_trips(size, warmup, &mut AmTrip::new(end, size)),
        (Mode::Lat, Op::Put) => timing.round_trips(size, warmup, &mut PutTrip::new(end, size)),
        (Mode::Lat, _) => timing.round_trips(size, warmup, &mut FetchTrip::new(end, plan.op, size)),
        _ => {
            timing.warm(size, |monitor| stream::run(end, timing, size, Some(warmup), monitor).map(|_| ()))?;
            let (messages, elapsed) =
                timing.timed(size, |monitor| stream::run(end, timing, size, plan.iters, monitor))?;
            Ok(Run { messages, elapsed, round_trips: None })
        }
    }
}

/// Server: does its part until the control connection has something to say; how often it answered, if it did.
pub(crate) fn serve(end: &End, plan: &Plan, size: u32, monitor: &crate::monitor::Monitor) -> Result<Option<u64>> {
    match (plan.mode, plan.op) {
        (Mode::Lat, Op::Am) => super::latency::echo(&mut AmTrip::new(end, size), monitor).map(Some),
        (Mode::Lat, Op::Put) => super::latency::echo(&mut PutTrip::new(end, size), monitor).map(Some),
        _ => {
            while monitor.halt() == crate::monitor::Halt::Running {
                end.progress()?;
            }
            Ok(None)
        }
    }
}

/// What the transport says, with what the endpoint saw.
fn failed(end: &End, error: ferroce::transport::uct::OpError, what: &str) -> Failure {
    let failure = Failure::run(format!("{what}: {error}"));
    match end.failure() {
        Some(seen) => failure.hint(seen),
        None => failure,
    }
}
