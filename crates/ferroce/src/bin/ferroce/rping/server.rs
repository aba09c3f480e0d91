//! The server: one connection, or as many as come.

use super::exchange::{Buffers, Exchange};
use super::{RpingArgs, expect, unexpected};
use crate::args::Host;
use crate::failure::{Failure, Result};
use crate::report;
use ferroce::cm::{ConnParam, ConnectionManager, EventChannel, EventKind, Id, PortSpace};
use serde::Serialize;
use std::net::SocketAddr;

pub(super) fn run(args: &RpingArgs, cm: &ConnectionManager) -> Result<()> {
    let channel = EventChannel::new()?;
    let listener = cm.create_id(&channel, PortSpace::Tcp);
    let address = args.address.unwrap_or(Host::ANY_V4);
    listener.bind_addr(address.at(args.port))?;
    listener.listen(0)?;
    eprintln!("waiting at {} port {}", address, args.port);
    std::thread::scope(|scope| {
        loop {
            let Some(event) = channel.next()? else { continue };
            let (_, kind, _) = event.into_parts();
            let EventKind::ConnectRequest { id, .. } = kind else { return Err(unexpected("a client", &kind)) };
            if !args.persistent {
                // No one else is served: they are told at once.
                listener.destroy();
                let served = Served::new(args, &id, serve(args, cm, &id)?);
                eprintln!("{} pings served", served.pings);
                return if args.common.json { report::json(&served) } else { Ok(()) };
            }
            scope.spawn(move || {
                let peer = id.peer_addr();
                let served = serve(args, cm, &id).and_then(|pings| {
                    tracing::debug!(?peer, pings, "a client has left");
                    if args.common.json { report::json_line(&Served::new(args, &id, pings)) } else { Ok(()) }
                });
                if let Err(failure) = served {
                    eprintln!("error: client {peer:?}: {failure}");
                }
            });
        }
    })
}

/// What a client has had.
#[derive(Serialize)]
struct Served {
    op: &'static str,
    role: &'static str,
    peer: Option<SocketAddr>,
    size: u32,
    pings: u64,
}

impl Served {
    fn new(args: &RpingArgs, id: &Id, pings: u64) -> Self {
        Self { op: "rping", role: "server", peer: id.peer_addr(), size: args.size, pings }
    }
}

fn serve(args: &RpingArgs, cm: &ConnectionManager, id: &Id) -> Result<u64> {
    // A channel of its own: nobody else reads the events of this connection.
    let channel = EventChannel::new()?;
    id.migrate(&channel)?;
    let mut exchange = Exchange::new(id, &channel, Buffers::new(cm.context(), args.size)?, args)?;
    id.accept(&ConnParam { responder_resources: Some(1), initiator_depth: Some(1), ..ConnParam::default() })?;
    let event = expect(args, &channel, "the connection", |kind| matches!(kind, EventKind::Established))
        .map_err(|failure: Failure| failure.during("accepting"))?;
    drop(event);
    let pings = exchange.serve()?;
    id.disconnect()?;
    Ok(pings)
}
