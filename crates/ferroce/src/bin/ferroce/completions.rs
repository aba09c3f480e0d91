//! A completion queue that is polled, or slept on with a completion channel.

use crate::failure::Result;
use ferroce::{CompChannel, Context, Cq, WorkCompletion};
use std::time::Duration;

/// How long one sleep lasts at most, so that the caller looks around now and then.
const NAP: Duration = Duration::from_millis(50);

/// How many completions are taken at a time.
pub(crate) const BATCH: usize = 32;

/// A completion queue with its way of waiting.
pub(crate) struct Completions {
    pub(crate) cq: Cq,
    channel: Option<CompChannel>,
}

impl Completions {
    /// A completion queue of at least `cqe` entries; with `events` it is slept on.
    pub(crate) fn new(context: &Context, cqe: u32, events: bool) -> Result<Self> {
        let channel = if events { Some(context.create_comp_channel()?) } else { None };
        let cq = context.create_cq(cqe, channel.as_ref())?;
        Ok(Self { cq, channel })
    }

    /// Takes what there is. When there is nothing, this returns 0 at once, or in event mode after a nap that a completion
    /// ends: the caller then checks whether it should go on.
    #[inline]
    pub(crate) fn take(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        let taken = self.cq.poll(out)?;
        if taken > 0 || self.channel.is_none() {
            return Ok(taken);
        }
        self.sleep(out)
    }

    #[cold]
    fn sleep(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        let Some(channel) = &self.channel else { return Ok(0) };
        self.cq.req_notify(false)?;
        // What came before the queue was armed raises no event.
        let taken = self.cq.poll(out)?;
        if taken > 0 {
            return Ok(taken);
        }
        channel.wait_event(Some(NAP))?;
        Ok(self.cq.poll(out)?)
    }
}
