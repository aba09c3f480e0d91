//! What one end of a measurement consists of.

use super::super::control::{EndAddress, QpAddress};
use super::super::data::Areas;
use super::super::plan::{Mode, Op, Plan};
use super::Transport;
use crate::args::{Common, Link};
use crate::failure::{Failure, Result};
use crate::local;
use ferroce::transport::rc_verbs::{EndpointAddress, RcEndpoint, RcOptions, RcVerbs};
use ferroce::transport::uct::{Arm, Endpoint, Interface, InterfaceAttr, Message, Remote};
use ferroce::transport::ud_verbs::{InterfaceAddress, UdOptions, UdVerbs};
use ferroce::{Context, Gid, GidEntry, Mtu};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The active message id that is used.
pub(super) const AM: u8 = 0;
/// The port of the device that is used.
const PORT: u8 = 1;
/// How long a sleeping end sleeps at most before it looks whether it should end.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How long messages that the client knows to have arrived may take to show up here.
const DRAIN: Duration = Duration::from_secs(10);
/// Of long messages every so many-th is compared byte by byte.
const COMPARE_EVERY: u64 = 64;

enum Side {
    Rc { interface: RcVerbs, endpoint: RcEndpoint },
    Ud { interface: UdVerbs, endpoint: OnceLock<ferroce::transport::ud_verbs::UdEndpoint> },
}

/// What the handler counts.
pub(super) struct Received {
    count: AtomicU64,
    wrong: AtomicU64,
    size: AtomicU32,
    pattern: Vec<u8>,
}

impl Received {
    fn take(&self, message: Message<'_>) {
        let count = self.count.load(Ordering::Relaxed);
        let expected = &self.pattern[..self.size.load(Ordering::Relaxed) as usize];
        let whole = expected.len() <= 64 || count.is_multiple_of(COMPARE_EVERY);
        let right = message.payload.len() == expected.len() && (!whole || message.payload == expected);
        if !right {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
        // Handlers are called by one thread at a time.
        self.count.store(count + 1, Ordering::Release);
    }
}

/// An interface, an endpoint, and memory.
pub(crate) struct End {
    pub(crate) context: Context,
    side: Side,
    pub(super) areas: Areas,
    received: Arc<Received>,
    /// The peer's memory.
    remote: OnceLock<Remote>,
    gid: GidEntry,
    events: bool,
}

impl End {
    /// Makes everything for `plan`, at the local address that reaches the peer.
    pub(crate) fn new(common: &Common, plan: &Plan, transport: Transport, from: Option<IpAddr>) -> Result<Self> {
        let context = local::open(common, plan.link)?;
        let gid = local::pick_gid(&context, PORT, common.gid_index, from)?;
        let address = Some(gid.ip());
        let (side, areas) = match transport {
            Transport::RcVerbs => {
                let send_depth = plan.depth.max(4);
                let options = RcOptions { address, send_depth, max_endpoints: 16, ..RcOptions::default() };
                let interface = RcVerbs::open(&context, options)?;
                let areas = Areas::new(interface.pd(), plan)?;
                let endpoint = interface.create_endpoint()?;
                (Side::Rc { interface, endpoint }, areas)
            }
            Transport::UdVerbs => {
                let interface = UdVerbs::open(&context, UdOptions { address, ..UdOptions::default() })?;
                (Side::Ud { interface, endpoint: OnceLock::new() }, Areas::new(&context.alloc_pd()?, plan)?)
            }
        };
        let received = Arc::new(Received {
            count: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            size: AtomicU32::new(0),
            pattern: areas.pattern.clone(),
        });
        let events = plan.events;
        let end = Self { context, side, areas, received: received.clone(), remote: OnceLock::new(), gid, events };
        let handler = move |message: Message<'_>| received.take(message);
        end.interface().set_am(AM, Some(Arc::new(handler))).map_err(Failure::run)?;
        end.check_size(plan)?;
        Ok(end)
    }

    fn check_size(&self, plan: &Plan) -> Result<()> {
        let attr = self.attr();
        let most = match plan.op {
            Op::Am => attr.am.max_bcopy,
            Op::Get => attr.get.max_zcopy,
            _ => attr.put.max_zcopy.max(8),
        };
        if plan.max_size() as usize > most {
            let what =
                format!("a message of {} bytes is more than the {most} that {} takes", plan.max_size(), attr.name);
            return Err(Failure::usage(what).hint(format!("ask for at most --size {most}")));
        }
        Ok(())
    }

    pub(super) fn interface(&self) -> &dyn Interface {
        match &self.side {
            Side::Rc { interface, .. } => interface,
            Side::Ud { interface, .. } => interface,
        }
    }

    pub(super) fn attr(&self) -> &InterfaceAttr {
        self.interface().attr()
    }

    /// The endpoint, once it is connected.
    pub(super) fn endpoint(&self) -> Result<&dyn Endpoint> {
        match &self.side {
            Side::Rc { endpoint, .. } => Ok(endpoint),
            Side::Ud { endpoint, .. } => match endpoint.get() {
                Some(endpoint) => Ok(endpoint),
                None => Err(Failure::run("the endpoint is not connected")),
            },
        }
    }

    /// Why the endpoint failed, if it did.
    pub(super) fn failure(&self) -> Option<ferroce::transport::uct::Failure> {
        self.endpoint().ok()?.failure()
    }

    pub(super) fn remote(&self) -> Remote {
        self.remote.get().copied().unwrap_or(Remote { addr: 0, rkey: 0 })
    }

    /// Where this end is.
    pub(crate) fn address(&self) -> EndAddress {
        let (addr, rkey) = self.areas.open_addr();
        let (qpn, bytes) = match &self.side {
            Side::Rc { endpoint, .. } => (endpoint.qpn(), endpoint.address().to_bytes().to_vec()),
            Side::Ud { interface, .. } => {
                let bytes = interface.address().to_bytes().to_vec();
                (u32::from_be_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]), bytes)
            }
        };
        EndAddress {
            gid: Ipv6Addr::from(self.gid.gid.to_bytes()),
            mtu: self.gid.mtu.bytes(),
            max_msg_sz: self.attr().put.max_zcopy.min(u32::MAX as usize) as u32,
            device: self.context.info().name,
            pid: std::process::id(),
            qps: vec![QpAddress { qpn, psn: 0 }],
            addr,
            rkey,
            transport: Some(bytes),
        }
    }

    /// Connects to the end at `peer`.
    pub(crate) fn connect(&self, peer: &EndAddress) -> Result<()> {
        local::check_families(&self.gid, Gid::from(peer.gid))?;
        let bytes = peer.transport.as_deref().unwrap_or_default();
        match &self.side {
            Side::Rc { endpoint, .. } => endpoint.connect_to_ep(&EndpointAddress::from_bytes(bytes)?)?,
            Side::Ud { interface, endpoint } => {
                let connected = interface.connect(InterfaceAddress::from_bytes(bytes)?).map_err(Failure::run)?;
                let _ = endpoint.set(connected);
            }
        }
        let _ = self.remote.set(Remote { addr: peer.addr, rkey: peer.rkey });
        Ok(())
    }

    /// The path MTU that both ends carry.
    pub(crate) fn mtu(&self, peer: &EndAddress) -> Mtu {
        Mtu::from_bytes(peer.mtu).map_or(self.gid.mtu, |mtu| mtu.min(self.gid.mtu))
    }

    /// The link that carries what goes to `peer`.
    pub(crate) fn link_to(&self, plan: &Plan, peer: &EndAddress) -> Link {
        local::link_to(&self.context, PORT, plan.link, Gid::from(peer.gid))
    }

    /// Makes ready for messages of `size` bytes.
    pub(crate) fn prepare(&self, plan: &Plan, size: u32, client: bool) -> Result<()> {
        self.received.size.store(size, Ordering::Relaxed);
        self.received.count.store(0, Ordering::Relaxed);
        self.areas.prepare(plan, size, client)
    }

    /// Checks what arrived here, after `messages` of them.
    pub(crate) fn verify(&self, plan: &Plan, size: u32, client: bool, messages: u64) -> Result<()> {
        // A client that streams gets nothing back.
        if plan.op == Op::Am && (!client || plan.mode == Mode::Lat) {
            let give_up = Instant::now() + DRAIN;
            while self.received() < messages && Instant::now() < give_up {
                self.progress()?;
            }
            let (count, wrong) = (self.received(), self.received.wrong.load(Ordering::Relaxed));
            if count != messages || wrong != 0 {
                let what = format!("{messages} messages were sent, {count} came, {wrong} of them wrong");
                return Err(Failure::run(what).hint("this is a fault of the transport or of one of the devices"));
            }
        }
        self.areas.verify(plan, size, client, messages)
    }

    /// Active messages that came.
    #[inline]
    pub(super) fn received(&self) -> u64 {
        self.received.count.load(Ordering::Acquire)
    }

    /// Makes progress; sleeps a while if there is nothing and events were asked for.
    #[inline]
    pub(crate) fn progress(&self) -> Result<usize> {
        let taken = match &self.side {
            Side::Rc { interface, .. } => interface.progress()?,
            Side::Ud { interface, .. } => interface.progress()?,
        };
        if taken == 0 && self.events {
            self.sleep()?;
        }
        Ok(taken)
    }

    fn sleep(&self) -> Result<()> {
        let interface = self.interface();
        if interface.arm()? == Arm::Armed {
            match poll(&mut [PollFd::new(&interface.event_fd(), PollFlags::IN)], Some(&NAP)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::run(format!("waiting for an event: {error}"))),
            }
        }
        Ok(())
    }
}
