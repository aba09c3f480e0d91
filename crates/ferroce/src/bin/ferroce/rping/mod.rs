//! `ferroce rping`: the protocol of librdmacm's rping, so that either end may be the C program.
//!
//! The client advertises a buffer; the server reads it with an RDMA read and says so; the client advertises another one, the server
//! writes the same bytes there with an RDMA write and says so. Each ping is two messages in each direction.

mod exchange;
mod server;

use crate::args::{Common, Host};
use crate::cm_events::{self, unexpected};
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::report;
use clap::Args;
use exchange::{Buffers, Exchange};
use ferroce::cm::{ConnParam, ConnectionManager, Event, EventChannel, EventKind, PortSpace};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  ferroce rping -s                          wait for one client at all addresses
  ferroce rping -c -a 10.77.0.1 -C 10 -v    ten pings, shown
  ferroce rping -s -P                       serve clients until interrupted";

/// What rping asks for at most.
const MAX_SIZE: u32 = 64 * 1024 - 1;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[group(id = "side", required = true, multiple = false, args = ["server", "client"])]
pub(crate) struct RpingArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Wait for a client
    #[arg(short, long)]
    server: bool,
    /// Connect to a server
    #[arg(short, long, requires = "address")]
    client: bool,
    /// Address of the server; for a server the one to wait at [default: all]
    #[arg(short, long, value_name = "IP")]
    address: Option<Host>,
    /// Port of the server
    #[arg(short, long, default_value_t = 7174)]
    port: u16,
    /// Pings; 0: until interrupted
    #[arg(short = 'C', long, default_value_t = 0)]
    count: u64,
    /// Bytes of one ping
    #[arg(short = 'S', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(16..=i64::from(MAX_SIZE)))]
    size: u32,
    /// Show what is received
    #[arg(short, long)]
    verbose: bool,
    /// Compare what comes back with what was sent
    #[arg(short = 'V', long)]
    validate: bool,
    /// Serve clients until interrupted, as many at a time as come
    #[arg(short = 'P', long, requires = "server")]
    persistent: bool,
    /// Seconds to wait for the peer
    #[arg(long, default_value = "30", value_parser = crate::args::parse_seconds, value_name = "S")]
    timeout: Duration,
}

#[derive(Serialize)]
struct Document {
    op: &'static str,
    size: u32,
    pings: u64,
    seconds: f64,
    usec_per_ping: f64,
}

pub(crate) fn run(args: &RpingArgs) -> Result<()> {
    let cm = crate::local::manager(&args.common)?;
    let outcome = if args.server {
        server::run(args, &cm)
    } else {
        let address = args.address.ok_or_else(|| Failure::usage("a client needs the address of its server: -a"))?;
        client(args, &cm, address.at(args.port))
    };
    if outcome.is_err() {
        tracing::debug!(device = ?cm.context().counters(), protocol = ?cm.counters(), "counters");
    }
    outcome
}

fn client(args: &RpingArgs, cm: &ConnectionManager, peer: SocketAddr) -> Result<()> {
    let channel = EventChannel::new()?;
    let id = cm.create_id(&channel, PortSpace::Tcp);
    id.set_options(|options| options.connect_timeout = args.timeout)?;
    id.resolve_addr(None, peer)?;
    expect(args, &channel, "the address", |kind| matches!(kind, EventKind::AddrResolved))?;
    id.resolve_route()?;
    expect(args, &channel, "the route", |kind| matches!(kind, EventKind::RouteResolved))?;
    let buffers = Buffers::new(cm.context(), args.size)?;
    let mut exchange = Exchange::new(&id, &channel, buffers, args)?;
    id.connect(&ConnParam {
        responder_resources: Some(1),
        initiator_depth: Some(1),
        retry_count: Some(7),
        rnr_retry_count: Some(7),
        ..ConnParam::default()
    })?;
    expect(args, &channel, "the connection", |kind| matches!(kind, EventKind::Established))?;
    let mut progress = Progress::new("rping", (args.count != 0).then_some(args.count));
    let started = Instant::now();
    let mut pings = 0;
    while args.count == 0 || pings < args.count {
        exchange.ping(pings)?;
        pings += 1;
        progress.update(pings);
    }
    let elapsed = started.elapsed();
    drop(progress);
    id.disconnect()?;
    // The peer's answer, so that it does not have to find out by itself.
    let _ = expect(args, &channel, "the end", |kind| matches!(kind, EventKind::Disconnected(_)));
    let seconds = elapsed.as_secs_f64();
    let usec_per_ping = seconds * 1e6 / pings.max(1) as f64;
    if args.common.json {
        return report::json(&Document {
            op: "rping",
            size: args.size,
            pings,
            seconds,
            usec_per_ping: report::rounded(usec_per_ping),
        });
    }
    println!("{pings} pings of {} bytes in {seconds:.3} s, {usec_per_ping:.1} µs each", args.size);
    Ok(())
}

/// Waits for an event.
fn expect(args: &RpingArgs, channel: &EventChannel, what: &str, wanted: impl Fn(&EventKind) -> bool) -> Result<Event> {
    cm_events::expect(channel, args.timeout, what, wanted)
}
