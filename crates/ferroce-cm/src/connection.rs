//! The short path: connect to a socket address, listen at one, accept.

use crate::alarm::Deadline;
use crate::kernel::GONE;
use crate::{
    ConnParam, ConnectionManager, Error, Event, EventChannel, EventKind, Id, PortSpace, Refusal, RejectReason, Result,
};
use ferroce_verbs::{Pd, Qp, QpInitAttr};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// What who connects waits for, and what who accepts.
const CONNECTION: &str = "the connection";
const CONFIRMATION: &str = "the peer's confirmation";

/// What connections of the short path are made with. Queue pairs complete where `qp` says.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Who manages them.
    pub cm: ConnectionManager,
    /// Where their queue pairs belong.
    pub pd: Pd,
    /// How their queue pairs are made.
    pub qp: QpInitAttr,
}

/// An established connection: a queue pair in RTS, and its end.
///
/// Dropping it closes it: the peer is told, outstanding work is flushed. Nothing waits: what the peer is told has left when this
/// returns, and is repeated as long as the device is open. (With a device of the kernel it is said once, as the kernel forgets an id that is
/// destroyed; a peer that does not get it finds out when it sends.)
///
/// A peer that vanishes without a word (its host loses power, or it is the only program of its host and is killed) is noticed by the device,
/// when what is sent fails with [`ferroce_verbs::WcStatus::RetryExcErr`], and by the software device also while nothing is sent: then the connection is closed, see
/// [`Self::wait_closed`]. On a device of the kernel, who only waits sends something now and then, an RDMA write of no bytes, say.
#[derive(Debug)]
pub struct Connection {
    id: Id,
    channel: EventChannel,
    qp: Qp,
    private_data: Vec<u8>,
}

impl Connection {
    /// Connects to `peer`, in at most `timeout`. `post` is called with the queue pair before the peer can send anything: post
    /// receives there, with `?` on what the device says. `private_data` is at most 56 bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] says how the attempt ended, [`Error::Address`] what is wrong with the address. [`Error::TimedOut`] if nobody
    /// answered.
    pub fn connect(
        endpoint: &Endpoint,
        peer: SocketAddr,
        private_data: &[u8],
        timeout: Duration,
        post: impl FnOnce(&Qp) -> Result<()>,
    ) -> Result<Self> {
        let deadline = Instant::now().checked_add(timeout);
        let mut attempt = Attempt::begin(endpoint, peer, private_data, timeout, post)?;
        while let Some(event) = next_before(&attempt.channel, deadline)? {
            if let Some(private_data) = attempt.on(event)? {
                return attempt.finish(private_data);
            }
        }
        Err(Error::TimedOut { what: CONNECTION })
    }

    /// As [`Self::connect`], for an executor of the caller's. The attempt ends when the future is dropped.
    ///
    /// # Errors
    ///
    /// As of [`Self::connect`].
    pub async fn connect_async(
        endpoint: &Endpoint,
        peer: SocketAddr,
        private_data: &[u8],
        timeout: Duration,
        post: impl FnOnce(&Qp) -> Result<()>,
    ) -> Result<Self> {
        let mut deadline = Deadline::new(&endpoint.cm.0, timeout);
        let mut attempt = Attempt::begin(endpoint, peer, private_data, timeout, post)?;
        while let Some(event) = deadline.next(&attempt.channel).await? {
            if let Some(private_data) = attempt.on(event)? {
                return attempt.finish(private_data);
            }
        }
        Err(Error::TimedOut { what: CONNECTION })
    }

    /// Its queue pair.
    #[must_use]
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Its id, for what the short path does not have.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// What the peer's user sent along. From a peer that is not ferroce, it is padded with zeros; see [`Event::private_data`].
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Waits, at most for `timeout`, until the peer closes it; whether it did. What was received is in the completion queue.
    ///
    /// # Errors
    ///
    /// If the channel fails.
    pub fn wait_closed(&self, timeout: Duration) -> Result<bool> {
        let deadline = Instant::now().checked_add(timeout);
        while let Some(event) = next_before(&self.channel, deadline)? {
            // Rejected: the peer has taken back what it had granted.
            if matches!(
                event.kind(),
                EventKind::Disconnected(_) | EventKind::Rejected { .. } | EventKind::DeviceRemoval
            ) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Closes it: the peer is told, outstanding work is flushed.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // That it has ended already is fine.
        let _ = self.id.disconnect();
        self.id.destroy();
    }
}

/// A connection that is being made.
struct Attempt<'a, F> {
    id: Id,
    channel: EventChannel,
    endpoint: &'a Endpoint,
    private_data: &'a [u8],
    /// Until it was called.
    post: Option<F>,
    qp: Option<Qp>,
}

impl<'a, F: FnOnce(&Qp) -> Result<()>> Attempt<'a, F> {
    fn begin(
        endpoint: &'a Endpoint,
        peer: SocketAddr,
        private_data: &'a [u8],
        timeout: Duration,
        post: F,
    ) -> Result<Self> {
        let channel = EventChannel::new()?;
        let id = endpoint.cm.create_id(&channel, PortSpace::Tcp);
        id.set_options(|options| options.connect_timeout = timeout)?;
        id.resolve_addr(None, peer)?;
        Ok(Self { id, channel, endpoint, private_data, post: Some(post), qp: None })
    }

    /// The next step. Returns the private data once the connection is established.
    fn on(&mut self, event: Event) -> Result<Option<Vec<u8>>> {
        match event.kind() {
            EventKind::AddrResolved => self.id.resolve_route()?,
            EventKind::RouteResolved => {
                let qp = self.id.create_qp(&self.endpoint.pd, &self.endpoint.qp)?;
                if let Some(post) = self.post.take() {
                    post(&qp)?;
                }
                self.qp = Some(qp);
                self.id.connect(&ConnParam { private_data: self.private_data, ..ConnParam::default() })?;
            }
            _ => return outcome(event),
        }
        Ok(None)
    }

    fn finish(self, private_data: Vec<u8>) -> Result<Connection> {
        let qp = self.qp.ok_or(Error::Destroyed)?;
        Ok(Connection { id: self.id, channel: self.channel, qp, private_data })
    }
}

/// The next event, if one comes before `deadline`, should there be one. Who wakes the channel's readers means others.
fn next_before(channel: &EventChannel, deadline: Option<Instant>) -> Result<Option<Event>> {
    loop {
        let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let event = channel.next_timeout(left)?;
        if event.is_some() || left.is_zero() {
            return Ok(event);
        }
    }
}

/// Waits until a connection is established; returns the private data.
fn settled(channel: &EventChannel, deadline: Option<Instant>, what: &'static str) -> Result<Vec<u8>> {
    while let Some(event) = next_before(channel, deadline)? {
        if let Some(private_data) = outcome(event)? {
            return Ok(private_data);
        }
    }
    Err(Error::TimedOut { what })
}

/// What an event means for a connection that is being made: private data if it is established, nothing if it says nothing.
fn outcome(event: Event) -> Result<Option<Vec<u8>>> {
    let (_, kind, private_data) = event.into_parts();
    Err(Error::Refused(match kind {
        EventKind::Established => return Ok(Some(private_data)),
        EventKind::Rejected { reason } => Refusal::Rejected { reason, private_data },
        EventKind::Unreachable { sent } => Refusal::Unreachable { sent },
        EventKind::ConnectError(refusal) => refusal,
        EventKind::Disconnected(_) => Refusal::Disconnected,
        EventKind::DeviceRemoval => Refusal::Setup(GONE.into()),
        EventKind::AddrError(error) | EventKind::RouteError(error) => return Err(error),
        _ => return Ok(None),
    }))
}

/// Listens for connections of the short path. Dropping it stops it; connections that were accepted live on.
#[derive(Debug)]
pub struct Listener {
    id: Id,
    channel: EventChannel,
    endpoint: Endpoint,
}

impl Listener {
    /// Listens at `addr`; port 0 stands for any.
    ///
    /// # Errors
    ///
    /// As of [`Id::bind_addr`] and [`Id::listen`].
    pub fn bind(endpoint: &Endpoint, addr: SocketAddr, backlog: usize) -> Result<Self> {
        let channel = EventChannel::new()?;
        let id = endpoint.cm.create_id(&channel, PortSpace::Tcp);
        id.bind_addr(addr)?;
        id.listen(backlog)?;
        Ok(Self { id, channel, endpoint: endpoint.clone() })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// The next peer that asks for a connection; `None` if there is none within `timeout`. Several threads may wait.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] after [`Self::close`].
    pub fn incoming(&self, timeout: Duration) -> Result<Option<Incoming>> {
        let deadline = Instant::now().checked_add(timeout);
        while let Some(event) = next_before(&self.channel, deadline)? {
            if let Some(incoming) = self.request(event)? {
                return Ok(Some(incoming));
            }
        }
        Ok(None)
    }

    /// As [`Self::incoming`], as a future. It may be dropped at any time. Whoever keeps the time for the connection manager wakes it: no
    /// timer of an executor's is needed.
    ///
    /// # Errors
    ///
    /// As of [`Self::incoming`].
    pub async fn incoming_async(&self, timeout: Duration) -> Result<Option<Incoming>> {
        let mut deadline = Deadline::new(&self.endpoint.cm.0, timeout);
        while let Some(event) = deadline.next(&self.channel).await? {
            if let Some(incoming) = self.request(event)? {
                return Ok(Some(incoming));
            }
        }
        Ok(None)
    }

    fn request(&self, event: Event) -> Result<Option<Incoming>> {
        let (_, kind, private_data) = event.into_parts();
        let id = match kind {
            EventKind::ConnectRequest { id, .. } => id,
            EventKind::DeviceRemoval => return Err(Error::Refused(Refusal::Setup(GONE.into()))),
            _ => return Ok(None),
        };
        // Its events are its own from now on.
        let channel = EventChannel::new()?;
        match id.migrate(&channel) {
            Ok(()) => Ok(Some(Incoming { id, channel, endpoint: self.endpoint.clone(), private_data })),
            Err(Error::Destroyed) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stops listening and wakes all who wait. Peers that were not accepted are rejected.
    pub fn close(&self) {
        self.id.destroy();
        self.channel.close();
    }
}

/// A peer that asks for a connection. Dropping it rejects.
#[derive(Debug)]
pub struct Incoming {
    id: Id,
    channel: EventChannel,
    endpoint: Endpoint,
    private_data: Vec<u8>,
}

impl Incoming {
    /// Who asks.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// What the peer's user sent along. From a peer that is not ferroce, it is padded with zeros; see [`Event::private_data`].
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Refuses, with at most 148 bytes for the peer's user.
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] if the peer has given up.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.id.reject(private_data)
    }

    /// Grants the connection and waits, at most for `timeout`, until the peer knows. `post` is called with the queue pair before the
    /// peer can send anything. `private_data` is at most 196 bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the peer has given up, [`Error::TimedOut`] if it does not answer.
    pub fn accept(
        self,
        private_data: &[u8],
        timeout: Duration,
        post: impl FnOnce(&Qp) -> Result<()>,
    ) -> Result<Connection> {
        let deadline = Instant::now().checked_add(timeout);
        let qp = self.grant(private_data, post)?;
        settled(&self.channel, deadline, CONFIRMATION)?;
        Ok(self.into_connection(qp))
    }

    /// As [`Self::accept`], for an executor of the caller's.
    ///
    /// # Errors
    ///
    /// As of [`Self::accept`].
    pub async fn accept_async(
        self,
        private_data: &[u8],
        timeout: Duration,
        post: impl FnOnce(&Qp) -> Result<()>,
    ) -> Result<Connection> {
        let mut deadline = Deadline::new(&self.endpoint.cm.0, timeout);
        let qp = self.grant(private_data, post)?;
        while let Some(event) = deadline.next(&self.channel).await? {
            if outcome(event)?.is_some() {
                return Ok(self.into_connection(qp));
            }
        }
        Err(Error::TimedOut { what: CONFIRMATION })
    }

    fn grant(&self, private_data: &[u8], post: impl FnOnce(&Qp) -> Result<()>) -> Result<Qp> {
        let qp = self.id.create_qp(&self.endpoint.pd, &self.endpoint.qp)?;
        post(&qp)?;
        match self.id.accept(&ConnParam { private_data, ..ConnParam::default() }) {
            Ok(()) => Ok(qp),
            Err(Error::Phase { .. }) => Err(self.given_up()),
            Err(error) => Err(error),
        }
    }

    /// The peer has taken its request back: what it says of that, or, where the kernel keeps that to itself, what it means.
    fn given_up(&self) -> Error {
        while let Ok(Some(event)) = self.channel.try_next() {
            if let Err(why) = outcome(event) {
                return why;
            }
        }
        Error::Refused(Refusal::Rejected { reason: RejectReason::Timeout, private_data: Vec::new() })
    }

    fn into_connection(self, qp: Qp) -> Connection {
        Connection { id: self.id, channel: self.channel, qp, private_data: self.private_data }
    }
}
