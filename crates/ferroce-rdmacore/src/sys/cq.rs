use super::live::Kind;
use super::{RawChannel, RawContext};
use ferroce_abi::inline;
use ferroce_abi::types::{ibv_cq, ibv_wc};
use ferroce_verbs::{Error, Result};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Completions that are taken from the device at a time.
pub(crate) const BATCH: usize = 16;

/// No status of a completion.
const UNTOUCHED: u32 = u32::MAX;

/// What a provider returned for a poll that failed. It is no error number: -2 is the usual one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollFailed(pub(crate) i32);

/// A completion queue.
pub(crate) struct RawCq {
    context: Arc<RawContext>,
    _channel: Option<Arc<RawChannel>>,
    cq: NonNull<ibv_cq>,
}

// SAFETY: the library's verbs may be called from any thread with any object.
unsafe impl Send for RawCq {}
// SAFETY: as above.
unsafe impl Sync for RawCq {}

impl RawCq {
    pub(crate) fn new(
        context: Arc<RawContext>,
        entries: u32,
        channel: Option<Arc<RawChannel>>,
        vector: u32,
    ) -> Result<Self> {
        if channel.as_ref().is_some_and(|channel| !channel.is_of(&context)) {
            return Err(Error::invalid("channel", "it belongs to another device, or to another opening of this one"));
        }
        let entries = i32::try_from(entries).map_err(|_| Error::invalid("cqe", "it is more than 2^31-1"))?;
        let on = channel.as_ref().map_or(null_mut(), |channel| channel.as_ptr());
        // SAFETY: context and channel belong together and are alive, and are held.
        let make = || unsafe { (context.library.create_cq)(context.as_ptr(), entries, null_mut(), on, vector as i32) };
        let cq = super::made(&context, Kind::Cq, make)?;
        Ok(Self { context, _channel: channel, cq })
    }

    pub(super) fn is_of(&self, context: &Arc<RawContext>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// What events name it by.
    pub(crate) fn id(&self) -> usize {
        self.as_ptr() as usize
    }

    /// How many entries it has room for.
    pub(crate) fn entries(&self) -> u32 {
        // SAFETY: the queue is alive.
        u32::try_from(unsafe { (*self.as_ptr()).cqe }).unwrap_or(0)
    }

    /// Takes up to `most` completions, [`BATCH`] at most, and shows each to `take`; says how many there were, and whether it then failed.
    #[inline]
    pub(crate) fn poll(&self, most: usize, mut take: impl FnMut(&ibv_wc)) -> (usize, Option<PollFailed>) {
        let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let most = most.min(BATCH);
        // A device writes only what means something, and all of it is looked at.
        for place in &mut batch[..most] {
            place.write(ibv_wc { status: UNTOUCHED, ..ibv_wc::default() });
        }
        // SAFETY: the queue is alive, and `batch` has room for `most`.
        let got = unsafe { inline::poll_cq(self.as_ptr(), most as i32, batch.as_mut_ptr().cast()) };
        let (got, failed) = match usize::try_from(got) {
            Ok(got) => (got.min(most), None),
            // Those before the one that failed are taken all the same, and only what was written tells how many.
            Err(_) => (most, Some(PollFailed(got))),
        };
        let mut taken = 0;
        for wc in &batch[..got] {
            // SAFETY: the first `most` have a value, and the library has written over some of them.
            let wc = unsafe { wc.assume_init_ref() };
            if failed.is_some() && wc.status == UNTOUCHED {
                break;
            }
            take(wc);
            taken += 1;
        }
        (taken, failed)
    }

    pub(crate) fn req_notify(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: the queue is alive.
        let number = unsafe { inline::req_notify_cq(self.as_ptr(), solicited_only) };
        self.context.check("arming a completion queue", number)
    }
}

impl Drop for RawCq {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their completion queues, so none uses it any more. It waits until events that were read are
        // acknowledged, which whoever reads one does at once.
        let number = unsafe { (self.context.library.destroy_cq)(self.as_ptr()) };
        super::destroyed(&self.context, Kind::Cq, number);
    }
}
