use super::list::text;
use super::live::Live;
use super::set_nonblocking;
use crate::DeviceGone;
use crate::errno;
use ferroce_abi::types::{
    ibv_async_event, ibv_async_event_element, ibv_context, ibv_device_attr, ibv_gid_entry, ibv_port_attr, value,
};
use ferroce_abi::{Library, inline};
use ferroce_verbs::{Error, Result};
use std::borrow::Cow;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open device.
pub(crate) struct RawContext {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<ibv_context>,
    pub(super) live: Live,
    gone: AtomicBool,
}

// SAFETY: the library's verbs may be called from any thread with any object.
unsafe impl Send for RawContext {}
// SAFETY: as above.
unsafe impl Sync for RawContext {}

/// An asynchronous event: its number, and which object it is about. Objects are named by their address, which is theirs alone for as
/// long as the event is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RawEvent {
    Qp(u32, usize),
    Cq(u32, usize),
    Srq(u32, usize),
    Port(u32, u8),
    Device(u32),
    Other,
}

impl RawContext {
    pub(super) fn new(library: &'static Library, context: NonNull<ibv_context>) -> Result<Self> {
        let this = Self { library, context, live: Live::default(), gone: AtomicBool::new(false) };
        set_nonblocking(this.async_fd())?;
        Ok(this)
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.as_ptr()).async_fd) }
    }

    /// How many objects of each kind it has.
    pub(crate) fn live(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.live.counters()
    }

    /// Whether the device is known to be gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Asks the kernel whether the device is there; once it is gone, so it stays.
    pub(crate) fn ask_whether_gone(&self) -> bool {
        if !self.is_gone() {
            let mut attr = ibv_port_attr::default();
            // SAFETY: the context is open.
            let returned = unsafe { inline::query_port(self.library, self.as_ptr(), 1, &mut attr) };
            // What the kernel answers to any command for a device that it has taken away.
            if returned != 0 && errno::number(returned) == libc::EIO {
                self.gone.store(true, Ordering::Relaxed);
            }
        }
        self.is_gone()
    }

    /// The error behind a number that a verb returned while it was `doing` something.
    pub(crate) fn error(&self, doing: impl Into<Cow<'static, str>>, number: i32) -> Error {
        if errno::may_be_gone(number) && self.ask_whether_gone() {
            DeviceGone.into()
        } else {
            errno::error(doing, number)
        }
    }

    /// The result of a verb that returns an error number.
    pub(crate) fn check(&self, doing: &'static str, returned: i32) -> Result<()> {
        if returned == 0 { Ok(()) } else { Err(self.error(doing, errno::number(returned))) }
    }

    /// Completion vectors: interrupts that completion queues can be spread over.
    pub(crate) fn comp_vectors(&self) -> u32 {
        // SAFETY: the context is open.
        u32::try_from(unsafe { (*self.as_ptr()).num_comp_vectors }).unwrap_or(0).max(1)
    }

    pub(crate) fn query_device(&self) -> Result<(ibv_device_attr, String)> {
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and `attr` is what it writes to.
        let number = unsafe { (self.library.query_device)(self.as_ptr(), attr.as_mut_ptr()) };
        self.check("querying the device", number)?;
        // SAFETY: zeroes are a value of it, and the library has written over them.
        let attr = unsafe { attr.assume_init() };
        let fw_ver = text(&attr.fw_ver);
        Ok((attr, fw_ver))
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<ibv_port_attr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open.
        let number = unsafe { inline::query_port(self.library, self.as_ptr(), port, &mut attr) };
        self.check("querying the port", number)?;
        Ok(attr)
    }

    /// The GID tables of all ports together, at most `limit` entries; holes are left out.
    pub(crate) fn gid_table(&self, limit: usize) -> Result<Vec<ibv_gid_entry>> {
        let mut entries = vec![ibv_gid_entry::default(); limit];
        // SAFETY: the context is open, and there is room for as many entries of this size as it is told.
        let count = unsafe {
            (self.library.query_gid_table)(
                self.as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        match usize::try_from(count) {
            Ok(count) => {
                entries.truncate(count);
                Ok(entries)
            }
            Err(_) => Err(self.error("reading the GID table", errno::number(count as i32))),
        }
    }

    /// The next asynchronous event as `look` sees it, if one waits. It is acknowledged when `look` returns: until then the object that it
    /// is about cannot be destroyed, and so no other can have its address. `look` must be quick, as whoever destroys the object waits
    /// for it, and must not destroy anything itself.
    pub(crate) fn next_async_event<T>(&self, look: impl FnOnce(RawEvent) -> T) -> Result<Option<T>> {
        let mut event = ibv_async_event { element: ibv_async_event_element { port_num: 0 }, event_type: 0 };
        // SAFETY: the context is open, and `event` is what it writes to.
        if unsafe { (self.library.get_async_event)(self.as_ptr(), &mut event) } != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                Some(number) => Err(self.error("reading an asynchronous event", number)),
                None => Ok(None),
            };
        }
        let kind = event.event_type;
        let raw = match kind {
            value::IBV_EVENT_QP_FATAL
            | value::IBV_EVENT_QP_REQ_ERR
            | value::IBV_EVENT_QP_ACCESS_ERR
            | value::IBV_EVENT_COMM_EST
            | value::IBV_EVENT_SQ_DRAINED
            | value::IBV_EVENT_PATH_MIG
            | value::IBV_EVENT_PATH_MIG_ERR
            // SAFETY: events of these kinds are about a queue pair.
            | value::IBV_EVENT_QP_LAST_WQE_REACHED => RawEvent::Qp(kind, unsafe { event.element.qp } as usize),
            // SAFETY: events of this kind are about a completion queue.
            value::IBV_EVENT_CQ_ERR => RawEvent::Cq(kind, unsafe { event.element.cq } as usize),
            value::IBV_EVENT_SRQ_ERR | value::IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: events of these kinds are about a shared receive queue.
                RawEvent::Srq(kind, unsafe { event.element.srq } as usize)
            }
            kind if kind == value::IBV_EVENT_GID_CHANGE || is_about_port(kind) => {
                // SAFETY: events of these kinds are about a port.
                RawEvent::Port(kind, u8::try_from(unsafe { event.element.port_num }).unwrap_or(0))
            }
            value::IBV_EVENT_DEVICE_FATAL => RawEvent::Device(kind),
            _ => RawEvent::Other,
        };
        let seen = look(raw);
        // SAFETY: the event was read just now and is acknowledged once; its object exists, as it is destroyed only after that.
        unsafe { (self.library.ack_async_event)(&mut event) };
        Ok(Some(seen))
    }
}

impl Drop for RawContext {
    fn drop(&mut self) {
        // SAFETY: all that was made from the context holds it, so there is nothing left.
        let number = unsafe { (self.library.close_device)(self.as_ptr()) };
        // It always closes, and there is nothing left to ask.
        if number != 0 {
            tracing::error!(error = %errno::error("closing a context", errno::number(number)), "its objects were left to the kernel");
        }
    }
}

/// Whether an event is about a port, and not about one of its GIDs.
fn is_about_port(event: u32) -> bool {
    matches!(
        event,
        value::IBV_EVENT_PORT_ACTIVE
            | value::IBV_EVENT_PORT_ERR
            | value::IBV_EVENT_LID_CHANGE
            | value::IBV_EVENT_PKEY_CHANGE
            | value::IBV_EVENT_SM_CHANGE
            | value::IBV_EVENT_CLIENT_REREGISTER
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of IBTA's events, by the numbers of `infiniband/verbs.h`: the port's going and coming, its LID, its partitions, the subnet manager,
    /// and that everything is to be registered anew. GIDs are looked at one by one.
    #[test]
    fn events_about_a_port_concern_what_it_sends() {
        let concerning: Vec<u32> = (0..32).filter(|event| is_about_port(*event)).collect();
        assert_eq!(concerning, [9, 10, 11, 12, 13, 17]);
    }
}
