use super::NAME;
use super::address::{EndpointAddress, Terms};
use super::clock::{self, Nanos};
use super::core::{Core, EXTRA_ROOM, State};
use super::counters::{Counters, RcCounters};
use super::endpoint::{MAX_INLINE, MAX_IOV, RcEndpoint};
use super::handlers::Handlers;
use super::keepalive::Deadlines;
use super::options::RcOptions;
use super::pool::Pool;
use super::progress::Progress;
use super::receives::Receives;
use super::table::Table;
use super::wire::MAX_HEADER;
use crate::local;
use crate::uct::{
    AmHandler, Arm, AtomicOps, EndpointId, EventCaps, Interface, InterfaceAttr, InterfaceFlags, Message, OpError,
    OpLimits, Unreachable, Wakeup, check_addresses,
};
use ferroce_cm::EventChannel;
use ferroce_verbs::{
    Access, AhAttr, AhCache, Context, Cq, Error, Gid, Mtu, Pd, Qp, QpAttr, QpCap, QpInitAttr, QpType, Result,
};
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// An interface: a shared receive queue, a completion queue, and the endpoints that use them. Clones are handles to the same; endpoints hold it.
#[derive(Clone)]
pub struct RcVerbs(pub(super) Arc<Shared>);

/// Where the interface is.
pub(super) struct Local {
    pub(super) gid: Gid,
    pub(super) index: u32,
    pub(super) mtu: Mtu,
}

pub(super) struct Shared {
    pub(super) attr: InterfaceAttr,
    pub(super) options: RcOptions,
    pub(super) local: Local,
    /// First of what holds queue pairs: they let go of all that follows.
    pub(super) table: RwLock<Table>,
    pub(super) cq: Cq,
    pub(super) receives: Receives,
    pub(super) pool: Arc<Pool>,
    pub(super) pd: Pd,
    addresses: AhCache,
    pub(super) handlers: Handlers,
    pub(super) progress: Mutex<Progress>,
    /// Endpoints that wait for resources.
    pub(super) waiting: Mutex<Vec<EndpointId>>,
    /// Somebody has to look at them, though nothing became free.
    pub(super) look: AtomicBool,
    /// Endpoints that were closed.
    pub(super) closes: AtomicU64,
    pub(super) deadlines: Deadlines,
    pub(super) wakeup: Wakeup,
    /// What the connection manager says of endpoints that it connected.
    pub(super) channel: EventChannel,
    pub(super) counters: Counters,
}

impl RcVerbs {
    /// Makes an interface of `context`.
    ///
    /// # Errors
    ///
    /// What is wrong with the options, or what the device says: no address, no resources.
    pub fn open(context: &Context, options: RcOptions) -> Result<Self> {
        let device = context.query_device()?;
        check(&options, device.max_qp_wr, device.max_srq_wr)?;
        let entry = local::choose(context, options.port, options.address)?;
        let port = context.query_port(options.port)?;
        let local = Local { gid: entry.gid, index: entry.index, mtu: entry.mtu.min(port.active_mtu) };
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let events = EventChannel::new().map_err(|error| Error::Device(Box::new(error)))?;
        // Room for all that endpoints can have outstanding, and all receives: it cannot overrun.
        let of_endpoint = u64::from(options.send_depth + EXTRA_ROOM);
        let entries = u64::from(options.max_endpoints) * of_endpoint + u64::from(options.receive_depth);
        let entries = u32::try_from(entries).ok().filter(|&entries| entries <= device.max_cqe).ok_or_else(|| {
            let most = u64::from(device.max_cqe - options.receive_depth.min(device.max_cqe)) / of_endpoint;
            let why = format!("the completion queue has room for {most} of this depth: ask for less of either");
            Error::invalid("max_endpoints", why)
        })?;
        let cq = context.create_cq(entries, Some(&channel))?;
        let max_inline = options.max_inline.min(device.max_inline_data).min(MAX_INLINE as u32);
        let slot_len = (options.max_bcopy as usize + MAX_HEADER).next_multiple_of(64);
        let receives = Receives::new(&pd, options.receive_depth, slot_len)?;
        let pool = Arc::new(Pool::new(&pd, options.buffers, slot_len)?);
        let max_iov = MAX_IOV.min(device.max_sge as usize - 1);
        let attr = attributes(&options, max_inline as usize, max_iov, port.max_msg_sz as usize);
        let wakeup = Wakeup::new(channel, &[events.fd().map_err(|error| Error::Device(Box::new(error)))?])?;
        Ok(Self(Arc::new(Shared {
            attr,
            local,
            table: RwLock::default(),
            cq,
            progress: Mutex::new(Progress::new(slot_len)),
            receives,
            pool,
            pd,
            addresses: context.ah_cache()?,
            handlers: Handlers::new(),
            waiting: Mutex::default(),
            look: AtomicBool::new(false),
            closes: AtomicU64::new(0),
            deadlines: Deadlines::new(),
            wakeup,
            channel: events,
            counters: Counters::default(),
            options,
        })))
    }

    /// The protection domain, to register memory in.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Has messages with this id handed to `handler` from now on.
    ///
    /// # Errors
    ///
    /// [`OpError::AmId`].
    pub fn set_am_handler(&self, am: u8, handler: impl Fn(Message<'_>) + Send + Sync + 'static) -> Result<(), OpError> {
        self.set_am(am, Some(Arc::new(handler)))
    }

    /// An endpoint that is not connected: its address goes to the peer, the peer's to [`RcEndpoint::connect_to_ep`].
    ///
    /// # Errors
    ///
    /// [`Error::Exhausted`] if there are as many as [`RcOptions::max_endpoints`], or what the device says.
    pub fn create_endpoint(&self) -> Result<RcEndpoint> {
        let shared = &*self.0;
        let qp = shared.pd.create_qp(&shared.qp_init_attr())?;
        qp.modify(&shared.init_attr())?;
        Ok(RcEndpoint::new(self.clone(), self.adopt(qp)?))
    }

    /// Puts a queue pair that is in INIT into the table.
    pub(super) fn adopt(&self, qp: Qp) -> Result<Arc<Core>> {
        let shared = &*self.0;
        let most = shared.options.max_endpoints;
        let (depth, terms) = (shared.options.send_depth, shared.terms());
        let make = |id| Arc::new(Core::new(id, qp, depth, terms, shared.pool.clone()));
        let inserted = shared.table.write().insert(most, make);
        inserted.ok_or(Error::Exhausted { what: "endpoints of this interface", limit: u64::from(most) })
    }

    /// What it has and has seen.
    pub fn counters(&self) -> RcCounters {
        self.0.counters.snapshot(self.0.table.read().len(), self.0.pool.available())
    }
}

impl Shared {
    pub(super) fn terms(&self) -> Terms {
        Terms { window: self.options.window, message: self.options.max_bcopy + MAX_HEADER as u32 }
    }

    pub(super) fn qp_init_attr(&self) -> QpInitAttr {
        let cap = QpCap {
            max_send_wr: self.options.send_depth + EXTRA_ROOM,
            max_recv_wr: 1,
            max_send_sge: self.attr.put.max_iov as u32 + 1,
            max_recv_sge: 1,
            max_inline_data: self.attr.put.max_short as u32,
        };
        QpInitAttr { srq: Some(self.receives.srq.clone()), cap, ..QpInitAttr::new(QpType::Rc, &self.cq) }
    }

    pub(super) fn init_attr(&self) -> QpAttr {
        QpAttr { port_num: Some(self.options.port), ..QpAttr::init(Access::ALL) }
    }

    /// Has an endpoint looked at that waits for resources.
    pub(super) fn list(&self, core: &Core, state: &mut State) {
        if !std::mem::replace(&mut state.listed, true) {
            self.waiting.lock().push(core.id());
        }
        self.look_at(true);
    }

    /// Has those looked at that wait.
    pub(super) fn look_at(&self, wanted: bool) {
        if wanted {
            self.look.store(true, Ordering::Release);
            // That the timer cannot be set is said by whoever arms it next.
            let _ = self.wakeup.wake();
        }
    }
}

impl Interface for RcVerbs {
    fn attr(&self) -> &InterfaceAttr {
        &self.0.attr
    }

    /// The GID: endpoints are connected to endpoints, so this is for [`Interface::is_reachable`] only.
    fn address_bytes(&self) -> Vec<u8> {
        self.0.local.gid.to_bytes().to_vec()
    }

    fn is_reachable(&self, address: &[u8]) -> Result<(), Unreachable> {
        let shared = &*self.0;
        let gid = match address.try_into() {
            Ok(gid) => Gid::from_bytes(gid),
            Err(_) => EndpointAddress::from_bytes(address)
                .map_err(|_| Unreachable::Malformed {
                    transport: NAME,
                    len: address.len(),
                    why: "an interface's has 16 bytes, an endpoint's begins with its version",
                })?
                .gid(),
        };
        let peer = gid.ip();
        check_addresses(shared.local.gid.ip(), peer)?;
        let attr = AhAttr { port_num: shared.options.port, ..AhAttr::roce(gid, shared.local.index) };
        // Asks the device, without waiting: an answer that is not there yet is not a no.
        match shared.addresses.try_get(&shared.pd, &attr) {
            Ok(_) => Ok(()),
            Err(error) => Err(Unreachable::NoRoute { peer, why: error.to_string() }),
        }
    }

    fn set_am(&self, am: u8, handler: Option<AmHandler>) -> Result<(), OpError> {
        let before = self.0.handlers.set(am, handler).ok_or(OpError::AmId(am))?;
        // Whoever makes progress just now looks for itself.
        let copied = self.0.progress.try_lock().and_then(|mut progress| progress.handlers.refresh(&self.0.handlers));
        drop((before, copied));
        Ok(())
    }

    #[inline]
    fn progress(&self) -> Result<usize> {
        self.make_progress()
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.0.deadlines.next().map(time_until)
    }

    fn flush(&self) -> bool {
        use crate::uct::{Endpoint as _, FlushKind, Posted};
        let cores: Vec<Arc<Core>> = self.0.table.read().iter().cloned().collect();
        let mut done = true;
        for core in cores {
            let endpoint = RcEndpoint { interface: self.clone(), core, owned: false };
            match endpoint.flush(FlushKind::Local, None) {
                Ok(Posted::Done) | Err(OpError::NotConnected(_)) => {}
                Ok(Posted::InProgress) | Err(OpError::NoResource) => done = false,
                // What it had begun is over once it was given back.
                Err(_) => done &= endpoint.core.lock().ring.outstanding() == 0,
            }
        }
        done
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.wakeup.fd()
    }

    fn arm(&self) -> Result<Arm> {
        let shared = &*self.0;
        // First armed, then looked: what comes between is seen by one or the other.
        let due = shared.deadlines.next();
        shared.wakeup.arm(due.map(time_until))?;
        let look = || {
            shared.cq.req_notify(false)?;
            let sooner = shared.deadlines.next().is_some_and(|next| due.is_none_or(|due| next < due));
            Ok(sooner || self.has_work()?)
        };
        shared.wakeup.armed(look())
    }
}

impl fmt::Debug for RcVerbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcVerbs")
            .field("gid", &self.0.local.gid)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

fn time_until(at: Nanos) -> Duration {
    Duration::from_nanos(at.saturating_sub(clock::now()))
}

fn check(options: &RcOptions, max_qp_wr: u32, max_srq_wr: u32) -> Result<()> {
    let range = |what, value: u32, least: u32, most: u32| {
        if (least..=most).contains(&value) {
            Ok(())
        } else {
            Err(Error::invalid(what, format!("{value} is not from {least} to {most}")))
        }
    };
    range("send_depth", options.send_depth, 4, 8192.min(max_qp_wr.saturating_sub(EXTRA_ROOM)))?;
    range("receive_depth", options.receive_depth, 16, max_srq_wr)?;
    range("window", options.window, 1, options.receive_depth)?;
    range("max_bcopy", options.max_bcopy, 64, 1 << 20)?;
    range("buffers", options.buffers, 16, 1 << 20)?;
    range("max_inline", options.max_inline, 0, 1 << 16)?;
    range("max_endpoints", options.max_endpoints, 1, 1 << 20)
}

/// Bytes of a zcopy message's header that fit also where nothing goes inline: buffers have them.
const LEAST_HEADER: usize = 64 - MAX_HEADER;

fn attributes(options: &RcOptions, max_inline: usize, max_iov: usize, max_msg: usize) -> InterfaceAttr {
    let (bcopy, short) = (options.max_bcopy as usize, max_inline);
    // A device may send nothing inline, or less than a header: then short operations are copied all the same.
    let message = short.saturating_sub(MAX_HEADER).min(bcopy);
    let am = OpLimits {
        max_short: message,
        max_bcopy: bcopy,
        max_zcopy: bcopy,
        max_iov,
        max_header: message.max(LEAST_HEADER),
    };
    let put = OpLimits { max_short: short, max_bcopy: bcopy, max_zcopy: max_msg, max_iov, max_header: 0 };
    InterfaceAttr {
        name: NAME,
        am,
        put,
        // A read goes to memory, so there is no short one.
        get: OpLimits { max_short: 0, ..put },
        // IBTA has atomics on 64 bits, and of them two.
        atomic32_post: AtomicOps::empty(),
        atomic32_fetch: AtomicOps::empty(),
        atomic64_post: AtomicOps::ADD,
        atomic64_fetch: AtomicOps::ADD | AtomicOps::CSWAP,
        flags: InterfaceFlags::PENDING
            | InterfaceFlags::CONNECT_TO_EP
            | InterfaceFlags::CONNECT_TO_SOCKADDR
            | InterfaceFlags::EP_CHECK
            | InterfaceFlags::EP_KEEPALIVE
            | InterfaceFlags::ERRHANDLE_PEER_FAILURE
            | InterfaceFlags::ERRHANDLE_REMOTE_MEM
            | InterfaceFlags::FLUSH_REMOTE
            | InterfaceFlags::INTER_NODE,
        events: EventCaps::SEND_COMP | EventCaps::RECV | EventCaps::TIMER | EventCaps::FD,
        iface_addr_len: 16,
        ep_addr_len: EndpointAddress::LEN,
    }
}
