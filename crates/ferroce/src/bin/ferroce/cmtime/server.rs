//! The server: accepts what comes, and lets go of what has ended.

use super::{CmtimeArgs, Resources};
use crate::args::Host;
use crate::failure::Result;
use crate::report;
use ferroce::cm::{ConnParam, ConnectionManager, EventChannel, EventKind, Id, PortSpace};
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
struct Served {
    op: &'static str,
    role: &'static str,
    connections: u32,
}

pub(super) fn run(args: &CmtimeArgs, cm: &ConnectionManager) -> Result<()> {
    let resources = Resources::new(cm.context())?;
    let channel = EventChannel::new()?;
    let listener = cm.create_id(&channel, PortSpace::Tcp);
    let address = args.bind.unwrap_or(Host::ANY_V4);
    listener.bind_addr(address.at(args.port))?;
    listener.listen(0)?;
    eprintln!("waiting at {address} port {}", args.port);
    let mut ended = 0;
    while !(args.once && ended == args.connections) {
        let Some(event) = channel.next()? else { continue };
        match event.kind() {
            EventKind::ConnectRequest { id, .. } => {
                if let Err(failure) = accept(id, &resources) {
                    tracing::warn!(peer = ?id.peer_addr(), %failure, "a client was not accepted");
                    id.destroy();
                }
            }
            EventKind::Established | EventKind::TimewaitExit => {}
            EventKind::Disconnected(_) => {
                event.id().destroy();
                ended += 1;
            }
            kind => {
                tracing::warn!(peer = ?event.id().peer_addr(), ?kind, "a client did not get its connection");
                event.id().destroy();
            }
        }
    }
    eprintln!("{ended} connections served");
    if args.common.json { report::json(&Served { op: "cmtime", role: "server", connections: ended }) } else { Ok(()) }
}

fn accept(id: &Id, resources: &Resources) -> Result<()> {
    id.create_qp(&resources.pd, &resources.attr())?;
    id.accept(&ConnParam::default())?;
    // It holds itself until it is destroyed: nobody needs to keep a list.
    id.set_context(Arc::new(id.clone()))?;
    Ok(())
}
