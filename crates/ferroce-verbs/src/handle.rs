//! The handles: counted references to a device's objects.

use crate::provider::{AhOps, CompChannelOps, ContextOps, CqOps, MrOps, PdOps, QpOps, SrqOps};
use crate::{
    Access, AhAttr, AsyncEvent, Buffer, DeviceAttr, DeviceInfo, Error, Gid, GidEntry, LinkLayer, PortAttr, PostError,
    QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, Region, Result, SendWr, Sge, SrqAttr, SrqInitAttr, WcFlags,
    WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::net::IpAddr;
use std::ops::{Bound, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $ops:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(Arc<dyn $ops>);

        impl $name {
            /// Wraps a device's object.
            pub fn from_ops(ops: Arc<dyn $ops>) -> Self {
                Self(ops)
            }

            /// The device's object.
            pub fn ops(&self) -> &Arc<dyn $ops> {
                &self.0
            }
        }

        impl PartialEq for $name {
            /// Whether both are handles to one object.
            fn eq(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0)
            }
        }

        impl Eq for $name {}
    };
}

handle! {
    /// An open device (`ibv_context`).
    Context, ContextOps
}
handle! {
    /// A protection domain (`ibv_pd`): memory, queue pairs and address handles work together only within one.
    Pd, PdOps
}
handle! {
    /// A memory region (`ibv_mr`). When the last handle is dropped its keys become invalid at once; owned memory is freed
    /// when the device no longer touches it.
    Mr, MrOps
}
handle! {
    /// A completion channel (`ibv_comp_channel`).
    CompChannel, CompChannelOps
}
handle! {
    /// A completion queue (`ibv_cq`).
    Cq, CqOps
}
handle! {
    /// A shared receive queue (`ibv_srq`).
    Srq, SrqOps
}
handle! {
    /// A queue pair (`ibv_qp`). When the last handle is dropped it stops: what is outstanding is flushed to its completion
    /// queues.
    Qp, QpOps
}
handle! {
    /// An address handle (`ibv_ah`).
    Ah, AhOps
}

impl Context {
    /// What the device is called.
    pub fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    /// What the device can do.
    pub fn query_device(&self) -> Result<DeviceAttr> {
        self.0.query_device()
    }

    /// The state of port `port`, from 1.
    pub fn query_port(&self, port: u8) -> Result<PortAttr> {
        self.0.query_port(port)
    }

    /// The GID table of port `port`, in order of index; holes are left out.
    pub fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>> {
        self.0.gid_table(port)
    }

    /// The GID table entry at `index` of port `port`.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] names the entries that there are.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<GidEntry> {
        let table = self.gid_table(port)?;
        if let Some(entry) = table.iter().find(|entry| entry.index == index) {
            return Ok(entry.clone());
        }
        Err(Error::NotFound { what: "GID index", name: index.to_string(), hint: gid_hint(&table) })
    }

    /// The GID table entry of the local address `ip`.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] names the entries that there are.
    pub fn find_gid(&self, port: u8, ip: IpAddr) -> Result<GidEntry> {
        let table = self.gid_table(port)?;
        if let Some(entry) = table.iter().find(|entry| entry.ip() == ip) {
            return Ok(entry.clone());
        }
        Err(Error::NotFound { what: "GID for the address", name: ip.to_string(), hint: gid_hint(&table) })
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&self) -> Result<Pd> {
        self.0.clone().alloc_pd().map(Pd)
    }

    /// Makes a completion channel.
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        self.0.clone().create_comp_channel().map(CompChannel)
    }

    /// Makes a completion queue of at least `cqe` entries, which reports on `channel` when armed.
    pub fn create_cq(&self, cqe: u32, channel: Option<&CompChannel>) -> Result<Cq> {
        self.0.clone().create_cq(cqe, channel.map(|channel| channel.0.clone())).map(Cq)
    }

    /// A descriptor that is readable while asynchronous events wait.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.0.async_fd()
    }

    /// The next asynchronous event, if one waits. Never blocks; poll [`Context::async_fd`] to wait.
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>> {
        self.0.next_async_event()
    }

    /// Named counters, as the kernel and NICs name them; those of the address-handle cache too.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.0.counters();
        let base = self.0.base();
        let cache = base.ah_cache.lock().upgrade();
        counters.extend(cache.map(|cache| cache.counters()).unwrap_or_default().named());
        counters.push(("ah_destroy_failures", base.ah_destroy_failures()));
        counters
    }
}

fn gid_hint(table: &[GidEntry]) -> String {
    if table.is_empty() {
        return "the device has no address: bring a network interface up".into();
    }
    let entries: Vec<String> = table.iter().map(|entry| format!("{} = {}", entry.index, entry.gid)).collect();
    format!("the device has {}", entries.join(", "))
}

impl Pd {
    /// Registers memory that the region owns from now on.
    pub fn reg_mr(&self, buffer: Buffer, access: Access) -> Result<Mr> {
        self.reg_region(Region::owned(buffer), access)
    }

    /// Allocates `len` bytes of zeroes and registers them.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr> {
        self.reg_mr(Buffer::zeroed(len)?, access)
    }

    /// Registers a region: one made with [`Region::borrowed`], or a clone of one that is registered already.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when remote write or atomic access is asked for without local write (IBTA 10.6.3.2).
    pub fn reg_region(&self, region: Region, access: Access) -> Result<Mr> {
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::invalid("access", "remote write and remote atomic need local write too"));
        }
        self.0.clone().reg_mr(region, access).map(Mr)
    }

    /// Makes an address handle. May block while the address is resolved.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah> {
        self.0.clone().create_ah(attr).map(Ah)
    }

    /// Makes an address handle to the sender of a datagram, from its completion and the 40 bytes at the start of its
    /// buffer (`ibv_create_ah_from_wc`).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when the completion has no GRH; [`Error::NotFound`] when the datagram was sent to an address
    /// that is not local, such as a multicast group, or not local any more.
    pub fn create_ah_from_wc(&self, wc: &WorkCompletion, grh: &[u8; 40], port_num: u8) -> Result<Ah> {
        if !wc.flags.contains(WcFlags::GRH) {
            return Err(Error::invalid("completion", "it has no GRH"));
        }
        let (sgid, dgid) = Gid::of_grh(grh);
        let local = self.context().find_gid(port_num, dgid.ip())?;
        let mut attr = AhAttr { sl: wc.sl, port_num, ..AhAttr::roce(sgid, local.index) };
        let traffic_class = traffic_class(grh);
        if let Some(grh) = &mut attr.grh {
            grh.traffic_class = traffic_class;
        }
        self.create_ah(&attr)
    }

    /// Makes a shared receive queue.
    pub fn create_srq(&self, attr: &SrqInitAttr) -> Result<Srq> {
        self.0.clone().create_srq(attr).map(Srq)
    }

    /// Makes a queue pair in the RESET state.
    pub fn create_qp(&self, attr: &QpInitAttr) -> Result<Qp> {
        self.0.clone().create_qp(attr).map(Qp)
    }

    /// The context it belongs to.
    pub fn context(&self) -> Context {
        Context(self.0.context())
    }
}

/// The traffic class in the 40 bytes before a datagram.
fn traffic_class(grh: &[u8; 40]) -> u8 {
    if grh[0] >> 4 == 6 { grh[0] << 4 | grh[1] >> 4 } else { grh[21] }
}

impl Mr {
    /// The key for local use.
    pub fn lkey(&self) -> u32 {
        self.0.lkey()
    }

    /// The key for a peer's use.
    pub fn rkey(&self) -> u32 {
        self.0.rkey()
    }

    /// Where it starts; what a peer names with the rkey.
    pub fn addr(&self) -> u64 {
        self.0.region().addr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.region().len()
    }

    /// Always false: a memory region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What may be done to it.
    pub fn access(&self) -> Access {
        self.0.access()
    }

    /// The memory, to copy in and out of.
    pub fn region(&self) -> &Region {
        self.0.region()
    }

    /// A scatter/gather element for a range of offsets.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the range is not inside the region or is longer than 4 GiB.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        let (addr, length) = self.region().span(start..end)?;
        Ok(Sge { addr, length, lkey: self.lkey() })
    }

    /// Copies bytes out, from `offset` on. See [`Region::read`].
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.region().read(offset, out)
    }

    /// Copies bytes in, from `offset` on. See [`Region::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.region().write(offset, bytes)
    }
}

impl CompChannel {
    /// The next completion queue that has something, if any. Never blocks; the descriptor ([`AsFd`]) tells when to try.
    ///
    /// Before it is reported again, a queue must be armed again with [`Cq::req_notify`] and then polled until empty.
    pub fn try_event(&self) -> Result<Option<Cq>> {
        self.0.try_event()
    }

    /// Waits for the next completion queue that has something; `None` when `timeout` passed first.
    pub fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<Cq>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(cq) = self.try_event()? {
                return Ok(Some(cq));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let left =
                left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
            match poll(&mut [PollFd::new(&self.0.fd(), PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::os("waiting for a completion event", error)),
            }
        }
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl Cq {
    /// Takes up to `out.len()` completions; returns how many. Never blocks. A device in software uses the calling thread
    /// to make progress when there is nothing to take.
    #[inline]
    pub fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        self.0.poll(out)
    }

    /// Asks for one event on the channel at the next completion that comes after this call, or only at the next one that
    /// is solicited or failed. Poll once more after arming: what came before raises no event.
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.0.req_notify(solicited_only)
    }

    /// How many entries it has room for.
    pub fn cqe(&self) -> u32 {
        self.0.cqe()
    }
}

impl Srq {
    /// Posts receives, in order; stops at the first that fails.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.0.post_recv(wrs)
    }

    /// Raises one [`crate::EventType::SrqLimitReached`] when fewer than `limit` receives are left; 0 for never.
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        self.0.set_limit(limit)
    }

    /// Its present attributes.
    pub fn query(&self) -> Result<SrqAttr> {
        self.0.query()
    }
}

impl Qp {
    /// Its number, 24 bits.
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num()
    }

    /// Its transport service.
    pub fn qp_type(&self) -> QpType {
        self.0.qp_type()
    }

    /// The sizes that it really has: at least what was asked for.
    pub fn cap(&self) -> QpCap {
        self.0.cap()
    }

    /// Its present state, as far as this process knows. A device may change it by itself, when a request fails: then it is known at the
    /// latest once the failed completion is polled, the event read, or the device asked with [`Qp::query`].
    pub fn state(&self) -> QpState {
        self.0.state()
    }

    /// Changes its state and attributes; all of them or, on an error, none.
    pub fn modify(&self, attr: &QpAttr) -> Result<()> {
        self.0.modify(attr)
    }

    /// Its present attributes.
    pub fn query(&self) -> Result<QpAttr> {
        self.0.query()
    }

    /// Posts sends, in order; stops at the first that fails. Never blocks.
    #[inline]
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.0.post_send(wrs)
    }

    /// Posts receives, in order; stops at the first that fails. Never blocks.
    #[inline]
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.0.post_recv(wrs)
    }

    /// Receives what is sent to multicast group `gid`; UD only.
    pub fn attach_mcast(&self, gid: Gid) -> Result<()> {
        self.0.attach_mcast(gid)
    }

    /// Stops receiving what is sent to multicast group `gid`.
    pub fn detach_mcast(&self, gid: Gid) -> Result<()> {
        self.0.detach_mcast(gid)
    }
}

impl Ah {
    /// The address that it was made from.
    pub fn attr(&self) -> &AhAttr {
        self.0.attr()
    }

    /// How its packets are addressed on the link layer, as resolved when it was made; `None` if they do not leave this machine, or
    /// if the device does not tell.
    pub fn link_layer(&self) -> Option<LinkLayer> {
        self.0.link_layer()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.info().name)
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pd")
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr").field("region", self.region()).field("access", &self.access()).finish_non_exhaustive()
    }
}

impl fmt::Debug for CompChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompChannel({:?})", self.0.fd())
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cq({} entries)", self.cqe())
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Srq")
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({} {:#08x} {})", self.qp_type(), self.qp_num(), self.state())
    }
}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ah").field(self.attr()).finish()
    }
}
