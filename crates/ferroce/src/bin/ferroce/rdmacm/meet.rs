//! How the two ends come together: all ids at once, their events from one channel.

use super::Shape;
use crate::args::Host;
use crate::cm_events::{next, unexpected};
use crate::failure::{Failure, Result};
use ferroce::cm::{ConnParam, ConnectionManager, Event, EventChannel, EventKind, Id, PortSpace};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a program does with its ids.
pub(super) trait End {
    const PORT_SPACE: PortSpace;

    /// Gives the id with this number a queue pair, and posts its receives.
    fn prepare(&mut self, id: &Id, number: usize) -> Result<()>;

    /// It is established.
    fn established(&mut self, number: usize, event: &Event) -> Result<()>;
}

/// The ends have met.
pub(super) struct Met {
    pub(super) channel: EventChannel,
    pub(super) ids: Vec<Id>,
    /// From the beginning, for a server from the first request, until all were established.
    pub(super) setup: Duration,
}

/// Connects as often as `shape` says to the server, or waits until somebody has.
pub(super) fn meet<E: End>(shape: &Shape, port: u16, cm: &ConnectionManager, end: &mut E) -> Result<Met> {
    match shape.peer(port) {
        Some(peer) => connect(shape, peer, cm, end),
        None => accept(shape, port, cm, end),
    }
}

/// The number that was attached to an event's id.
pub(super) fn number(event: &Event) -> Result<usize> {
    event
        .id()
        .context::<usize>()
        .map(|number| *number)
        .ok_or_else(|| Failure::run("an event of an id without a number"))
}

fn connect<E: End>(shape: &Shape, peer: SocketAddr, cm: &ConnectionManager, end: &mut E) -> Result<Met> {
    let channel = EventChannel::new()?;
    let began = Instant::now();
    let mut ids = Vec::new();
    for number in 0..shape.load.connections as usize {
        let id = cm.create_id(&channel, E::PORT_SPACE);
        id.set_context(Arc::new(number))?;
        id.set_options(|options| {
            options.tos = shape.tos;
            options.connect_timeout = shape.load.timeout;
        })?;
        id.resolve_addr(shape.bind.map(|host| host.at(0)), peer)?;
        ids.push(id);
    }
    let mut left = ids.len();
    while left != 0 {
        let event = next(&channel, shape.load.timeout, "the connections")?;
        match event.kind() {
            EventKind::AddrResolved => event.id().resolve_route()?,
            EventKind::RouteResolved => {
                end.prepare(event.id(), number(&event)?)?;
                // The C programs ask for five retries, which a slow receiver exhausts; Soft-RoCE takes the default, 7, for any number.
                event.id().connect(&ConnParam {
                    responder_resources: Some(1),
                    initiator_depth: Some(1),
                    ..ConnParam::default()
                })?;
            }
            EventKind::Established => {
                end.established(number(&event)?, &event)?;
                left -= 1;
            }
            kind => return Err(unexpected("a connection", kind)),
        }
    }
    Ok(Met { channel, ids, setup: began.elapsed() })
}

fn accept<E: End>(shape: &Shape, port: u16, cm: &ConnectionManager, end: &mut E) -> Result<Met> {
    let channel = EventChannel::new()?;
    let listener = cm.create_id(&channel, E::PORT_SPACE);
    listener.set_options(|options| options.tos = shape.tos)?;
    let address = shape.bind.unwrap_or(Host::ANY_V4);
    listener.bind_addr(address.at(port))?;
    listener.listen(0)?;
    eprintln!("waiting at {address} port {port}");
    let wanted = shape.load.connections as usize;
    let (mut ids, mut established) = (Vec::new(), 0);
    let mut event = loop {
        if let Some(event) = channel.next()? {
            break event;
        }
    };
    let began = Instant::now();
    loop {
        match event.kind() {
            // Dropping it rejects.
            EventKind::ConnectRequest { .. } if ids.len() == wanted => {}
            EventKind::ConnectRequest { id, .. } => {
                let number = ids.len();
                id.set_context(Arc::new(number))?;
                end.prepare(id, number)?;
                id.accept(&ConnParam::default())?;
                ids.push(id.clone());
                // Who asks for a queue pair does not confirm the answer.
                established += usize::from(E::PORT_SPACE == PortSpace::Udp);
            }
            EventKind::Established => {
                end.established(number(&event)?, &event)?;
                established += 1;
            }
            kind => return Err(unexpected("the clients", kind)),
        }
        if established == wanted {
            return Ok(Met { channel, ids, setup: began.elapsed() });
        }
        event = next(&channel, shape.load.timeout, "the clients")?;
    }
}
