//! Ids: one end of a connection to be, a connection, or a listener (`rdma_cm_id`).

mod connect;
mod datagram;
mod destroy;
mod kernel;
mod listen;
mod multicast;
mod queue;
mod resolve;
mod setup;

use crate::backend::Backend;
use crate::channel::{ChannelCore, EventChannel};
use crate::manager::{Manager, Protocol};
use crate::proto::{ConnId, ConnectRequest, ListenId, SidrRequest};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::{Error, PortSpace, Result};
use ferroce_verbs::{AhAttr, GidEntry, Qp};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

pub use connect::ConnParam;
pub use datagram::UDP_QKEY;
pub use multicast::Membership;
pub(crate) use queue::Queued;
pub(crate) use resolve::is_link_local;
pub use setup::SetupIn;

/// A handle to an id. Clones are handles to one id; when the last one is dropped, those in events included, the id is
/// destroyed.
#[derive(Clone)]
pub struct Id(Arc<IdHandle>);

/// Destroys the id when the last handle goes.
pub(crate) struct IdHandle(Arc<IdCore>);

impl Drop for IdHandle {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

/// What the manager, the channel and the handles share of an id.
pub(crate) struct IdCore {
    backend: Backend,
    /// The handles, to make one for an event.
    handles: Weak<IdHandle>,
    port_space: PortSpace,
    /// Under which the native protocol knows it; 0 before it is enrolled.
    cookie: AtomicU64,
    /// The phase says the same; this is for those who need not wait for the lock.
    destroyed: AtomicBool,
    /// Held for an instant; before the protocol's lock, where both are held.
    state: Mutex<IdState>,
    /// Likewise, after the protocol's lock.
    options: Mutex<Options>,
    /// Held by whoever changes the queue pair's state: on a NIC that takes long.
    setup: Mutex<()>,
    queue: queue::EventQueue,
}

struct IdState {
    phase: Phase,
    conn: Option<ConnId>,
    /// Its part in a resolution, in the port space UDP.
    sidr: Option<datagram::Sidr>,
    listener: Option<ListenId>,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// The local GID to send from.
    gid: Option<GidEntry>,
    path: Option<AhAttr>,
    qp: Option<Qp>,
    /// Which has a shared receive queue.
    srq: bool,
    /// Multicast groups, in the port space UDP.
    groups: Vec<multicast::Group>,
    negotiated: setup::Negotiated,
    /// What takes the place of that where the kernel manages connections.
    kernel: kernel::Part,
    /// The program's own.
    context: Option<Arc<dyn Any + Send + Sync>>,
}

/// Where an id is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// New.
    Idle,
    /// It has a local address.
    Bound,
    /// It has the peer's address.
    AddrResolved,
    /// It may connect.
    RouteResolved,
    /// It listens.
    Listening,
    /// It has asked for a connection.
    Connecting,
    /// The peer has granted it; the queue pair is not set up, or the peer does not know yet.
    Responding,
    /// A peer has asked for a connection, which is not decided.
    Requested,
    /// It has granted a connection, and the peer has not confirmed it.
    Accepted,
    /// It is connected; in the port space UDP the peer's queue pair is known, or the peer was told its own.
    Connected,
    /// It has asked for the end of the connection.
    Disconnecting,
    /// Its connection is over, or did not come about.
    Disconnected,
    /// It is destroyed.
    Destroyed,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Idle => "new",
            Self::Bound => "bound",
            Self::AddrResolved => "address-resolved",
            Self::RouteResolved => "route-resolved",
            Self::Listening => "listening",
            Self::Connecting => "connecting",
            Self::Responding => "responding",
            Self::Requested => "requested",
            Self::Accepted => "accepted",
            Self::Connected => "connected",
            Self::Disconnecting => "disconnecting",
            Self::Disconnected => "disconnected",
            Self::Destroyed => "destroyed",
        })
    }
}

/// What may be set before an id connects, accepts or listens (`rdma_set_option` and more).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Type of service: the traffic class of all packets. 0.
    pub tos: u8,
    /// The queue pair's local ACK timeout, exponent of 4.096 µs times 2 to its power, at most 31. 14, which is 67 ms; for who accepts
    /// 14 stands for what the peer has asked for. A kernel that manages connections adds what its device needs, and has its own default,
    /// which 14 stands for.
    pub ack_timeout: u8,
    /// What a queue pair without receives asks its peer to wait, the code of `rnr_timer`. 12, which is 0.64 ms; librdmacm's 0 is
    /// 655 ms (ydb nbs #5790).
    pub min_rnr_timer: u8,
    /// How long to try to connect. 30 s.
    pub connect_timeout: std::time::Duration,
    /// Who moves the queue pair once the peer has granted the connection.
    pub setup_in: SetupIn,
    /// Others may have the local address and port, too, if they allow it as well and nobody listens there (`RDMA_OPTION_ID_REUSEADDR`); to be set
    /// before the id is bound. False. Where the kernel manages connections it keeps a port for the id that is bound to it; otherwise that is only done
    /// for listeners, and this changes nothing.
    pub reuse_addr: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tos: 0,
            ack_timeout: 14,
            min_rnr_timer: 12,
            connect_timeout: std::time::Duration::from_secs(30),
            setup_in: SetupIn::default(),
            reuse_addr: false,
        }
    }
}

impl IdCore {
    pub(crate) fn create(backend: &Backend, channel: Arc<ChannelCore>, port_space: PortSpace) -> Id {
        backend.serves(&channel);
        Self::in_phase(backend.clone(), channel, port_space, Phase::Idle, Options::default())
    }

    fn in_phase(
        backend: Backend,
        channel: Arc<ChannelCore>,
        port_space: PortSpace,
        phase: Phase,
        options: Options,
    ) -> Id {
        Id(Arc::new_cyclic(|handles| {
            IdHandle(Arc::new(Self {
                backend,
                handles: handles.clone(),
                port_space,
                cookie: AtomicU64::new(0),
                destroyed: AtomicBool::new(false),
                state: Mutex::new(IdState {
                    phase,
                    conn: None,
                    sidr: None,
                    listener: None,
                    local: None,
                    peer: None,
                    gid: None,
                    path: None,
                    qp: None,
                    srq: false,
                    groups: Vec::new(),
                    negotiated: setup::Negotiated::default(),
                    kernel: kernel::Part::default(),
                    context: None,
                }),
                options: Mutex::new(options),
                setup: Mutex::new(()),
                queue: queue::EventQueue::new(channel, phase == Phase::Requested),
            }))
        }))
    }

    /// The id of a connection that a peer asks for. With the protocol's lock held.
    pub(crate) fn of_request(
        manager: &Arc<Manager>,
        protocol: &mut Protocol,
        listener: &Arc<Self>,
        request: &ConnectRequest,
    ) -> Id {
        let (id, cookie) = Self::child(manager, protocol, listener);
        // The name is fresh.
        let _ = protocol.endpoint.set_cookie(request.conn, cookie);
        let psn = protocol.endpoint.random_psn();
        id.core().state.lock().take_request(request, psn);
        id
    }

    /// The id for a peer that asks a listener for a queue pair. With the protocol's lock held.
    pub(crate) fn of_question(
        manager: &Arc<Manager>,
        protocol: &mut Protocol,
        listener: &Arc<Self>,
        request: &SidrRequest,
    ) -> Id {
        let (id, _) = Self::child(manager, protocol, listener);
        id.core().state.lock().take_question(request);
        id
    }

    fn child(manager: &Arc<Manager>, protocol: &mut Protocol, listener: &Arc<Self>) -> (Id, u64) {
        let options = *listener.options.lock();
        let backend = Backend::Native(manager.clone());
        let id = Self::in_phase(backend, listener.queue.channel(), listener.port_space, Phase::Requested, options);
        let core = &id.0.0;
        let cookie = protocol.enroll(core);
        core.cookie.store(cookie, Ordering::Relaxed);
        (id, cookie)
    }

    /// The cookie under which events come.
    fn enroll(self: &Arc<Self>, protocol: &mut Protocol) -> u64 {
        match self.cookie.load(Ordering::Relaxed) {
            0 => {
                let cookie = protocol.enroll(self);
                self.cookie.store(cookie, Ordering::Relaxed);
                cookie
            }
            cookie => cookie,
        }
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }
}

impl Id {
    pub(crate) fn core(&self) -> &Arc<IdCore> {
        &self.0.0
    }

    fn state(&self) -> Result<crate::sync::MutexGuard<'_, IdState>> {
        let state = self.core().state.lock();
        match state.phase {
            Phase::Destroyed => Err(Error::Destroyed),
            _ => Ok(state),
        }
    }

    /// Where it is in its life: a snapshot.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.core().state.lock().phase
    }

    /// Its port space.
    #[must_use]
    pub fn port_space(&self) -> PortSpace {
        self.core().port_space
    }

    /// The address of this side, once it has one.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.core().state.lock().local
    }

    /// The address of the peer, once it has one. Of a connection that a peer asked for the port is that of the peer's id.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.core().state.lock().peer
    }

    /// Its queue pair, if it has one.
    #[must_use]
    pub fn qp(&self) -> Option<Qp> {
        self.core().state.lock().qp.clone()
    }

    /// Its options.
    #[must_use]
    pub fn options(&self) -> Options {
        *self.core().options.lock()
    }

    /// Changes its options. Those of a listener are inherited by the connections that peers ask it for.
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] once it has connected or accepted: what was negotiated cannot be changed (perftest #275).
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> Result<()> {
        let state = self.state()?;
        match state.phase {
            Phase::Idle
            | Phase::Bound
            | Phase::AddrResolved
            | Phase::RouteResolved
            | Phase::Listening
            | Phase::Requested => {}
            phase => return Err(Error::Phase { call: "set_options", phase }),
        }
        change(&mut self.core().options.lock());
        Ok(())
    }

    /// Attaches something of the program's own (the `context` of an `rdma_cm_id`), in place of what was there. The id lets go of it
    /// when it is destroyed; so it may hold the id.
    ///
    /// # Errors
    ///
    /// [`Error::Destroyed`].
    pub fn set_context<T: Any + Send + Sync>(&self, context: Arc<T>) -> Result<()> {
        let old = self.state()?.context.replace(context);
        // Without the lock: with it may go ids.
        drop(old);
        Ok(())
    }

    /// What was attached, if it is a `T`. `None` once the id is destroyed.
    #[must_use]
    pub fn context<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let context = self.core().state.lock().context.clone();
        context?.downcast().ok()
    }

    /// Moves it to another channel, with its unread events (`rdma_migrate_id`). A reader that blocks in the new channel wakes;
    /// an event that a reader of the old one has begun to deliver is delivered there. If the new channel is closed, unread events are
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Destroyed`].
    pub fn migrate(&self, channel: &EventChannel) -> Result<()> {
        // Locked, so that it is not destroyed meanwhile.
        let state = self.state()?;
        self.core().backend.serves(channel.core());
        let later = self.core().queue.migrate(self.core(), channel.core());
        drop(state);
        drop(later);
        Ok(())
    }
}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.core().state.lock();
        let mut out = f.debug_struct("Id");
        out.field("phase", &state.phase).field("local", &state.local).field("peer", &state.peer);
        out.field("qp_num", &state.qp.as_ref().map(Qp::qp_num)).finish()
    }
}

/// Ids are the same if they are handles to one id.
impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Id {}
