//! The contract that a device implements, as object-safe traits. Users see it through the handles of this crate.
//!
//! A handle is an `Arc` of one of these objects; the object's `Drop` releases the device's resource. An object keeps its
//! parents alive itself (queue pair → protection domain → context). No `Drop` may block on another part of the
//! program.

pub use crate::base::ContextBase;
use crate::{
    Access, AddressWatcher, AhAttr, AsyncEvent, Context, Cq, DeviceAttr, DeviceInfo, Error, GidEntry, LinkLayer,
    MAD_LEN, MadHandler, PortAttr, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, Region, Result,
    SendWr, ServiceBinding, SrqAttr, SrqInitAttr, WorkCompletion,
};
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

/// Checks that the argument `what` is in `least..=most`.
///
/// # Errors
///
/// [`Error::Invalid`] says what it may be.
pub fn check_range(what: &'static str, value: u32, least: u32, most: u32) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(what, format!("{value} is not in {least}..={most}")))
}

/// A way back from a trait object to the device's own type.
pub trait AsAny: Any + Send + Sync {
    /// The object as itself.
    fn as_any(&self) -> &dyn Any;
    /// The counted object as itself.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<T: Any + Send + Sync> AsAny for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// A device that can be opened.
pub trait Device: Send + Sync {
    /// What it is called.
    fn info(&self) -> DeviceInfo;
    /// Opens it. Each call gives a context of its own.
    fn open(&self) -> Result<Context>;
}

/// An open device.
pub trait ContextOps: AsAny {
    /// What the device is called.
    fn info(&self) -> DeviceInfo;
    /// What this crate keeps with the context: always the same.
    fn base(&self) -> &ContextBase;
    /// What the device can do.
    fn query_device(&self) -> Result<DeviceAttr>;
    /// The state of a port, from 1.
    fn query_port(&self, port: u8) -> Result<PortAttr>;
    /// The entries of a port's GID table, in order of index; holes are left out.
    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>>;
    /// Makes a protection domain.
    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>>;
    /// Makes a completion channel.
    fn create_comp_channel(self: Arc<Self>) -> Result<Arc<dyn CompChannelOps>>;
    /// Makes a completion queue of at least `cqe` entries.
    fn create_cq(self: Arc<Self>, cqe: u32, channel: Option<Arc<dyn CompChannelOps>>) -> Result<Arc<dyn CqOps>>;
    /// A descriptor that is readable while asynchronous events wait.
    fn async_fd(&self) -> BorrowedFd<'_>;
    /// The next asynchronous event, if one waits. Never blocks.
    fn next_async_event(&self) -> Result<Option<AsyncEvent>>;
    /// Named counters, as the kernel and NICs name them.
    fn counters(&self) -> Vec<(&'static str, u64)>;
    /// Tells `watcher` from now on, for as long as it exists, when neighbours, GIDs and ports change. One is enough; a second
    /// takes the place of the first. Costs nothing where nobody asks for it.
    fn watch_addresses(&self, _watcher: Weak<dyn AddressWatcher>) -> Result<()> {
        Err(Error::Unsupported { what: "watching addresses", by: "this device" })
    }
    /// This context's share of queue pair 1, if the device gives it away.
    fn gsi(self: Arc<Self>) -> Option<Arc<dyn GsiOps>> {
        None
    }
}

/// A context's share of queue pair 1: see [`crate::Gsi`], whose methods these are.
pub trait GsiOps: Send + Sync {
    /// Hands all datagrams to `handler`.
    fn set_handler(&self, handler: Weak<dyn MadHandler>) -> Result<()>;
    /// Sends a datagram. Never blocks.
    fn send(&self, to: &dyn AhOps, mad: &[u8; MAD_LEN]) -> Result<()>;
    /// Claims a service for this context.
    fn bind_service(&self, binding: ServiceBinding) -> Result<()>;
    /// Gives a service up.
    fn release_service(&self, binding: ServiceBinding);
    /// The top byte of this context's communication ids.
    fn comm_id_prefix(&self) -> u8;
    /// The time.
    fn now(&self) -> u64;
    /// Has the handler called at `deadline`.
    fn wake_at(&self, deadline: u64);
}

/// A protection domain.
pub trait PdOps: AsAny {
    /// Registers memory.
    fn reg_mr(self: Arc<Self>, region: Region, access: Access) -> Result<Arc<dyn MrOps>>;
    /// Makes an address handle. May block while the address is resolved.
    fn create_ah(self: Arc<Self>, attr: &AhAttr) -> Result<Arc<dyn AhOps>>;
    /// Whether [`Self::create_ah`] waits for neighbours to answer, or for a device: then what must not block has it done elsewhere.
    fn create_ah_blocks(&self) -> bool {
        true
    }
    /// Makes a shared receive queue.
    fn create_srq(self: Arc<Self>, attr: &SrqInitAttr) -> Result<Arc<dyn SrqOps>>;
    /// Makes a queue pair in the RESET state.
    fn create_qp(self: Arc<Self>, attr: &QpInitAttr) -> Result<Arc<dyn QpOps>>;
    /// The context it belongs to.
    fn context(&self) -> Arc<dyn ContextOps>;
}

/// A memory region. Dropping it invalidates its keys.
pub trait MrOps: AsAny {
    /// The memory.
    fn region(&self) -> &Region;
    /// The key for local use.
    fn lkey(&self) -> u32;
    /// The key for a peer's use.
    fn rkey(&self) -> u32;
    /// What may be done to it.
    fn access(&self) -> Access;
}

/// An address handle: a resolved address. `Drop` destroys it; that this failed is for
/// [`ContextBase::report_ah_destroy_failure`].
pub trait AhOps: AsAny {
    /// The address that it was made from.
    fn attr(&self) -> &AhAttr;
    /// How its packets are addressed on the link layer, as resolved when it was made; `None` if they do not leave this machine, or
    /// if the device does not tell.
    fn link_layer(&self) -> Option<LinkLayer> {
        None
    }
}

/// A completion channel: a descriptor that becomes readable when an armed completion queue gets a completion.
pub trait CompChannelOps: AsAny {
    /// The descriptor to poll.
    fn fd(&self) -> BorrowedFd<'_>;
    /// The next completion queue that has something, if any. Never blocks.
    fn try_event(&self) -> Result<Option<Cq>>;
}

/// A completion queue.
pub trait CqOps: AsAny {
    /// Takes up to `out.len()` completions; returns how many. Never blocks.
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize>;
    /// Asks for one event on the channel at the next completion, or at the next solicited one (or error).
    fn req_notify(&self, solicited_only: bool) -> Result<()>;
    /// How many entries it has room for.
    fn cqe(&self) -> u32;
}

/// A shared receive queue.
pub trait SrqOps: AsAny {
    /// Posts receives.
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;
    /// Sets the limit at which an event is raised; 0 for never.
    fn set_limit(&self, limit: u32) -> Result<()>;
    /// Its present attributes.
    fn query(&self) -> Result<SrqAttr>;
}

/// A queue pair. Dropping it flushes what is outstanding.
pub trait QpOps: AsAny {
    /// Its number, 24 bits.
    fn qp_num(&self) -> u32;
    /// Its transport service.
    fn qp_type(&self) -> QpType;
    /// The sizes that it really has.
    fn cap(&self) -> QpCap;
    /// Its present state, as far as this process knows: no system call as long as nothing failed.
    fn state(&self) -> QpState;
    /// Changes its state and attributes.
    fn modify(&self, attr: &QpAttr) -> Result<()>;
    /// Its present attributes.
    fn query(&self) -> Result<QpAttr>;
    /// Posts sends.
    fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError>;
    /// Posts receives.
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;
    /// Joins a multicast group; UD only.
    fn attach_mcast(&self, gid: crate::Gid) -> Result<()>;
    /// Leaves a multicast group.
    fn detach_mcast(&self, gid: crate::Gid) -> Result<()>;
}
