//! The server's part in bandwidth and message rate: it takes receives, or only lends its thread to the device.

use super::endpoint::Endpoint;
use super::lane::{RECV, RecvLanes};
use crate::completions::BATCH;
use crate::failure::{Failure, Result};
use crate::monitor::{Halt, Monitor};
use ferroce::WorkCompletion;
use std::time::{Duration, Instant};

/// How long messages that the client knows to have arrived may take to show up here.
const DRAIN: Duration = Duration::from_secs(10);

/// Receives until the control connection has something to say.
pub(crate) fn receive(endpoint: &Endpoint, receives: &mut RecvLanes<'_>, monitor: &Monitor) -> Result<()> {
    let mut wcs = [WorkCompletion::default(); BATCH];
    while monitor.halt() == Halt::Running {
        take(endpoint, receives, &mut wcs)?;
    }
    Ok(())
}

/// Receives what is left of `messages` messages, all of which are acknowledged.
pub(crate) fn drain(endpoint: &Endpoint, receives: &mut RecvLanes<'_>, messages: u64) -> Result<()> {
    let mut wcs = [WorkCompletion::default(); BATCH];
    let give_up = Instant::now() + DRAIN;
    while receives.received() < messages && Instant::now() < give_up {
        take(endpoint, receives, &mut wcs)?;
    }
    if receives.received() != messages {
        return Err(Failure::run(format!(
            "{messages} messages were sent and acknowledged, {} were received",
            receives.received()
        ))
        .hint("this is a fault of one of the devices"));
    }
    receives.refill_all()
}

#[inline]
fn take(endpoint: &Endpoint, receives: &mut RecvLanes<'_>, wcs: &mut [WorkCompletion]) -> Result<()> {
    let taken = endpoint.completions.take(wcs)?;
    for wc in &wcs[..taken] {
        receives.complete(wc)?;
        receives.refill((wc.wr_id & !RECV) as usize)?;
    }
    Ok(())
}

/// Polls until the control connection has something to say: nothing is expected, but a device in software makes
/// progress in the thread that polls.
pub(crate) fn lend_thread(endpoint: &Endpoint, monitor: &Monitor) -> Result<()> {
    let mut wcs = [WorkCompletion::default(); BATCH];
    while monitor.halt() == Halt::Running {
        let taken = endpoint.completions.take(&mut wcs)?;
        if let Some(wc) = wcs[..taken].iter().find(|wc| !wc.is_ok()) {
            return Err(Failure::completion("a work request", wc));
        }
    }
    Ok(())
}
