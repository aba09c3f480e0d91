//! `ferroce cmatose`, `ferroce udaddy` and `ferroce mckey`: the exchanges of librdmacm's ucmatose, udaddy and mckey, so that either end
//! may be the C program.
//!
//! The first two make a number of connections at once, or of what UDP has instead, and send some messages each way over each of them.

mod cmatose;
mod mckey;
mod meet;
mod traffic;
mod udaddy;

use crate::args::{Common, Host, parse_seconds};
use crate::failure::Result;
use crate::report;
use clap::Args;
use meet::Met;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) use cmatose::{CmatoseArgs, run as run_cmatose};
pub(crate) use mckey::{MckeyArgs, run as run_mckey};
pub(crate) use udaddy::{UdaddyArgs, run as run_udaddy};

/// What the programs for which one end is the server are told.
#[derive(Debug, Args)]
pub(crate) struct Shape {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Address of the server [default: be the server]
    #[arg(short, long, value_name = "IP")]
    server: Option<Host>,
    /// Local address [default: for a server all, for a client the one that the server is reached from]
    #[arg(short, long, value_name = "IP")]
    bind: Option<Host>,
    #[command(flatten)]
    load: Load,
    /// Type of service of all packets
    #[arg(short, long, default_value_t = 0)]
    tos: u8,
}

/// What is exchanged.
#[derive(Debug, Args)]
struct Load {
    /// Connections, all at once; the same at both ends
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Messages each way over each connection; the same at both ends
    #[arg(short = 'C', long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=4096))]
    messages: u32,
    /// Bytes of a message; the same at both ends
    #[arg(short = 'S', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    size: u32,
    /// Seconds to wait for the peer
    #[arg(long, default_value = "30", value_parser = parse_seconds, value_name = "S")]
    timeout: Duration,
}

impl Shape {
    fn peer(&self, port: u16) -> Option<SocketAddr> {
        self.server.map(|host| host.at(port))
    }

    fn report(&self, op: &'static str, met: &Met, exchange: Duration) -> Result<()> {
        #[derive(Serialize)]
        struct Document {
            op: &'static str,
            connections: u32,
            messages: u32,
            size: u32,
            setup_seconds: f64,
            exchange_seconds: f64,
        }
        let (setup_seconds, exchange_seconds) = (met.setup.as_secs_f64(), exchange.as_secs_f64());
        let Load { connections, messages, size, .. } = self.load;
        if self.common.json {
            return report::json(&Document { op, connections, messages, size, setup_seconds, exchange_seconds });
        }
        let plural = if connections == 1 { "" } else { "s" };
        println!(
            "{connections} connection{plural} in {setup_seconds:.3} s; over each {messages} messages of {size} bytes each way, in \
             {exchange_seconds:.3} s"
        );
        Ok(())
    }
}
