//! `ferroce cmtime`: what the steps of a connection cost, one after the other for many connections, as librdmacm's cmtime measures it.

mod server;
mod steps;

use crate::args::{Common, Host, parse_seconds};
use crate::failure::Result;
use crate::report;
use clap::Args;
use ferroce::{Context, Cq, Pd, QpCap, QpInitAttr, QpType};
use serde::Serialize;
use std::time::Duration;
use steps::Row;

const ABOUT: &str = "\
Measure the steps of making and ending connections, with another ferroce or with librdmacm's cmtime at the other end.

The client takes one step for all connections, then the next one. Without -s this end is the server, which serves clients until \
interrupted.";

const EXAMPLES: &str = "\
Examples:
  ferroce cmtime                         a server at all IPv4 addresses
  ferroce cmtime -s 10.77.0.1 -c 1000    a thousand connections to it
  ferroce cmtime --once -c 1000          a server that ends after as many";

#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub(crate) struct CmtimeArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Address of the server [default: be the server]
    #[arg(short, long, value_name = "IP")]
    server: Option<Host>,
    /// Local address [default: for a server all, for a client the one that the server is reached from]
    #[arg(short, long, value_name = "IP")]
    bind: Option<Host>,
    /// Port of the server
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
    /// Connections of a client, or of a server with --once
    #[arg(short, long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// End after as many connections as -c says
    #[arg(long, conflicts_with = "server")]
    once: bool,
    /// Seconds to wait for the peer
    #[arg(long, default_value = "30", value_parser = parse_seconds, value_name = "S")]
    timeout: Duration,
}

/// With what the queue pairs are made, which never carry anything.
struct Resources {
    pd: Pd,
    cq: Cq,
}

impl Resources {
    fn new(context: &Context) -> Result<Self> {
        Ok(Self { pd: context.alloc_pd()?, cq: context.create_cq(1, None)? })
    }

    fn attr(&self) -> QpInitAttr {
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
        QpInitAttr { cap, ..QpInitAttr::new(QpType::Rc, &self.cq) }
    }
}

pub(crate) fn run(args: &CmtimeArgs) -> Result<()> {
    let cm = crate::local::manager(&args.common)?;
    match args.server {
        Some(server) => {
            let rows = steps::measure(args, &cm, server.at(args.port))?;
            print(args, &rows)
        }
        None => server::run(args, &cm),
    }
}

fn print(args: &CmtimeArgs, rows: &[Row]) -> Result<()> {
    #[derive(Serialize)]
    struct Document<'a> {
        op: &'static str,
        connections: u32,
        steps: &'a [Row],
    }
    if args.common.json {
        let steps: Vec<Row> = rows.iter().map(Row::rounded).collect();
        return report::json(&Document { op: "cmtime", connections: args.connections, steps: &steps });
    }
    println!("{} connections", args.connections);
    println!("{:<13}  {:>10}  {:>10}  {:>10}  {:>10}", "step", "total µs", "µs / conn", "max µs", "min µs");
    for Row { step, total_us, us_per_connection, max_us, min_us } in rows {
        println!("{step:<13}  {total_us:>10.1}  {us_per_connection:>10.2}  {max_us:>10.1}  {min_us:>10.1}");
    }
    Ok(())
}
