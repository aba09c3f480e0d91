use super::live::Kind;
use super::{RawContext, set_nonblocking};
use crate::errno;
use ferroce_abi::types::ibv_comp_channel;
use ferroce_verbs::Result;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A completion channel.
pub(crate) struct RawChannel {
    context: Arc<RawContext>,
    channel: NonNull<ibv_comp_channel>,
}

// SAFETY: the library's verbs may be called from any thread with any object.
unsafe impl Send for RawChannel {}
// SAFETY: as above.
unsafe impl Sync for RawChannel {}

impl RawChannel {
    pub(crate) fn new(context: Arc<RawContext>) -> Result<Self> {
        // SAFETY: the context is open.
        let make = || unsafe { (context.library.create_comp_channel)(context.as_ptr()) };
        let channel = super::made(&context, Kind::Channel, make)?;
        let this = Self { context, channel };
        set_nonblocking(this.fd())?;
        Ok(this)
    }

    pub(super) fn is_of(&self, context: &Arc<RawContext>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.as_ptr()).fd) }
    }

    /// The next event as `look` sees it, if one waits; it is given the address of the completion queue. The rules are those of
    /// [`RawContext::next_async_event`].
    pub(crate) fn try_event<T>(&self, look: impl FnOnce(usize) -> T) -> Result<Option<T>> {
        let (mut cq, mut user) = (null_mut(), null_mut());
        // SAFETY: the channel is alive; the other two are what it writes to.
        if unsafe { (self.context.library.get_cq_event)(self.as_ptr(), &mut cq, &mut user) } != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) | None => Ok(None),
                Some(number) => Err(self.context.error("reading a completion event", number)),
            };
        }
        let seen = look(cq as usize);
        // SAFETY: the event was read just now and is acknowledged once; the queue is destroyed only after that.
        unsafe { (self.context.library.ack_cq_events)(cq, 1) };
        Ok(Some(seen))
    }
}

impl AsFd for RawChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl Drop for RawChannel {
    fn drop(&mut self) {
        // SAFETY: completion queues hold their channel, so none uses it any more.
        let number = unsafe { (self.context.library.destroy_comp_channel)(self.as_ptr()) };
        if number != 0 && errno::number(number) == libc::EBUSY {
            // A queue that could not be destroyed, as those of a device that is gone cannot, still counts as its user.
            // SAFETY: the library has left the channel and its descriptor alone, and nobody else has them any more.
            unsafe {
                drop(OwnedFd::from_raw_fd((*self.as_ptr()).fd));
                (*self.as_ptr()).fd = -1;
            }
            self.context.live.gone(Kind::Channel);
        } else {
            super::destroyed(&self.context, Kind::Channel, number);
        }
    }
}
