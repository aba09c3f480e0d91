//! Posting lists of work requests: what the contract checks before the device sees them, and what its answers mean.

use crate::sys::{RawContext, RecvList, Stopped};
use ferroce_verbs::{Error, PostError, RecvWr};

/// A queue that takes receives.
#[derive(Clone, Copy)]
pub(crate) struct RecvQueue<'a> {
    pub(crate) context: &'a RawContext,
    pub(crate) name: &'static str,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
}

/// Posts receives, in order; stops at the first that fails.
#[inline]
pub(crate) fn receives<'a>(
    wrs: &[RecvWr<'a>],
    queue: RecvQueue<'_>,
    post: impl Fn(&mut RecvList<'a>) -> Result<(), Stopped>,
) -> Result<(), PostError> {
    let mut list = RecvList::new();
    // How many are posted.
    let mut done = 0;
    let flush = |list: &mut RecvList<'a>, done: &mut usize| {
        let len = list.len();
        post(list).map_err(|(index, number)| PostError {
            index: *done + index,
            error: refused(queue.context, number, queue.name, queue.max_wr),
        })?;
        *done += len;
        Ok(())
    };
    for wr in wrs {
        if wr.sges.len() > queue.max_sge as usize {
            flush(&mut list, &mut done)?;
            let why = format!("{} elements, the queue was made for {}", wr.sges.len(), queue.max_sge);
            return Err(PostError { index: done, error: Error::invalid("sges", why) });
        }
        list.push(wr);
        if list.is_full() {
            flush(&mut list, &mut done)?;
        }
    }
    flush(&mut list, &mut done)
}

/// How many of a list of so many were posted.
#[inline]
pub(crate) fn count(outcome: Result<(), Stopped>, all: usize) -> usize {
    outcome.map_or_else(|(index, _)| index, |()| all)
}

/// Why the device did not take a work request.
#[cold]
pub(crate) fn refused(context: &RawContext, number: i32, queue: &'static str, capacity: u32) -> Error {
    match number {
        libc::ENOMEM => Error::QueueFull { queue, capacity },
        number => context.error("posting a work request", number),
    }
}
