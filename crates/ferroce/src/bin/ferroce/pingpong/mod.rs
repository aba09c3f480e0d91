//! `ferroce pingpong`: the exchange of rdma-core's `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong` and
//! `ibv_srq_pingpong`, so that either end may be the C program.

mod address;
mod data;
mod endpoint;
mod exchange;
mod handshake;
mod outcome;

use crate::args::{Common, parse_bytes, parse_mtu, parse_seconds};
use crate::failure::{Failure, Result};
use crate::{local, tcp};
use address::Address;
use clap::{Args, Subcommand};
use endpoint::Endpoint;
use ferroce::{GidEntry, Mtu, QpType};
use std::net::TcpStream;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ferroce pingpong rc                          wait for a client
  ferroce pingpong rc 10.77.0.1                be the client
  ibv_rc_pingpong -g 1 10.77.0.1               the same with rdma-core's program
  ferroce pingpong rc -c -s 1M -m 4096 host    large messages, data checked
  ferroce pingpong ud -g 10.77.0.2 host        from this local address

Give both ends the same size, path MTU and number of iterations: the ends do not tell each other.";

#[derive(Debug, Args)]
pub(crate) struct PingpongArgs {
    #[command(subcommand)]
    pub(crate) kind: Kind,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Kind {
    /// Reliable connection, as ibv_rc_pingpong
    #[command(after_help = EXAMPLES)]
    Rc {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        path: Path,
        /// Show the intervals between receive completions
        #[arg(short, long)]
        ts: bool,
    },
    /// Unreliable connection, as ibv_uc_pingpong: a lost message ends the exchange
    #[command(after_help = EXAMPLES)]
    Uc {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        path: Path,
    },
    /// Unreliable datagram, as ibv_ud_pingpong: a lost message ends the exchange
    #[command(after_help = EXAMPLES)]
    Ud {
        #[command(flatten)]
        options: Options,
    },
    /// Reliable connections with a shared receive queue, as ibv_srq_pingpong
    #[command(after_help = EXAMPLES)]
    Srq {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        path: Path,
        /// Queue pairs
        #[arg(short = 'q', long, value_name = "NUM", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..address::MAX_QP as i64))]
        num_qp: u32,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Name or IP address of the server; without it, this is the server
    host: Option<String>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// TCP port on which the ends find each other
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Port of the device
    #[arg(short, long, value_name = "PORT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Message size; K and M are powers of 1024 [default: 4096, ud 1024]
    #[arg(short, long, value_parser = parse_bytes)]
    size: Option<u32>,
    /// Receives to post at a time
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    rx_depth: u32,
    /// Exchanges; with several queue pairs, of all of them together
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    iters: u64,
    /// Service level
    #[arg(short = 'l', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..16))]
    sl: u8,
    /// Sleep on completion events instead of polling
    #[arg(short, long)]
    events: bool,
    /// Check the received data; give it to the client, who makes the data, and to the server
    #[arg(short = 'c', long)]
    chk: bool,
    /// How long the peer may be silent, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Path {
    /// Path MTU in bytes
    #[arg(short, long, default_value = "1024", value_parser = parse_mtu)]
    mtu: Mtu,
}

impl Kind {
    pub(crate) fn options(&self) -> &Options {
        match self {
            Self::Rc { options, .. } | Self::Uc { options, .. } | Self::Ud { options } | Self::Srq { options, .. } => {
                options
            }
        }
    }

    fn plan(&self) -> Plan {
        let options = self.options();
        let (name, qp_type, mtu, num_qp, default_size) = match self {
            Self::Rc { path, .. } => ("rc", QpType::Rc, Some(path.mtu), 1, 4096),
            Self::Uc { path, .. } => ("uc", QpType::Uc, Some(path.mtu), 1, 4096),
            // The C program's own default, whatever its help says: the ends do not tell each other.
            Self::Ud { .. } => ("ud", QpType::Ud, None, 1, 1024),
            Self::Srq { path, num_qp, .. } => ("srq", QpType::Rc, Some(path.mtu), *num_qp, 4096),
        };
        Plan {
            name,
            qp_type,
            mtu,
            num_qp: num_qp as usize,
            srq: matches!(self, Self::Srq { .. }),
            client: options.host.is_some(),
            size: options.size.unwrap_or(default_size),
            rx_depth: options.rx_depth,
            iters: options.iters,
            sl: options.sl,
            ib_port: options.ib_port,
            events: options.events,
            check: options.chk,
            intervals: matches!(self, Self::Rc { ts: true, .. }),
            idle: options.timeout,
        }
    }
}

/// What is to be exchanged.
#[derive(Clone, Debug)]
struct Plan {
    name: &'static str,
    qp_type: QpType,
    /// The path MTU; UD has none.
    mtu: Option<Mtu>,
    num_qp: usize,
    srq: bool,
    client: bool,
    size: u32,
    rx_depth: u32,
    iters: u64,
    sl: u8,
    ib_port: u8,
    events: bool,
    check: bool,
    intervals: bool,
    idle: Duration,
}

impl Plan {
    fn validate(&self) -> Result<()> {
        if self.size == 0 {
            return Err(Failure::usage("a message has at least one byte").hint("give --size 1 or more"));
        }
        if self.srq && self.num_qp > self.rx_depth as usize {
            return Err(Failure::usage(format!(
                "a receive depth of {} is too small for {} queue pairs",
                self.rx_depth, self.num_qp
            ))
            .hint("each queue pair needs at least one receive: raise -r or lower -q"));
        }
        Ok(())
    }

    /// How many addresses the ends exchange: `ibv_srq_pingpong` always sends its whole table.
    fn addresses(&self) -> usize {
        if self.srq { address::MAX_QP } else { 1 }
    }

    /// Checks what depends on the local address.
    fn fits(&self, gid: &GidEntry) -> Result<()> {
        match self.mtu {
            Some(mtu) if mtu > gid.mtu => Err(Failure::usage(format!(
                "a path MTU of {mtu} is more than {} with {} carries ({})",
                gid.netdev, gid.gid, gid.mtu
            ))
            .hint(format!("use -m {} at both ends, or another local address with -g", gid.mtu))),
            None if self.size > gid.mtu.bytes() => Err(Failure::usage(format!(
                "a datagram of {} bytes does not fit the MTU of {} ({})",
                self.size, gid.netdev, gid.mtu
            ))
            .hint(format!("use -s {} or less at both ends", gid.mtu))),
            _ => Ok(()),
        }
    }
}

pub(crate) fn run(args: &PingpongArgs) -> Result<()> {
    let (plan, options) = (args.kind.plan(), args.kind.options());
    plan.validate()?;
    let link = local::link(&options.common)?;
    let context = local::open(&options.common, link)?;
    let endpoint = Endpoint::new(&context, &plan)?;
    endpoint.post_all_receives()?;

    if options.common.gid_index.is_some() {
        // A local address that does not exist is better told before the peer is waited for.
        plan.fits(&local::pick_gid(&context, plan.ib_port, options.common.gid_index, None)?)?;
    }
    let stream = meet(options)?;
    let gid = local::pick_gid(&context, plan.ib_port, options.common.gid_index, tcp::local_ip(&stream))?;
    plan.fits(&gid)?;
    let mine = endpoint.addresses(&gid, context.query_port(plan.ib_port)?.lid);
    if !options.common.json {
        print_addresses("local address: ", &mine)?;
    }

    let mut handshake = handshake::Handshake::new(stream, plan.idle)?;
    let peers;
    let exchange = if plan.client {
        handshake.send(&mine, plan.addresses())?;
        peers = handshake.receive(plan.addresses(), plan.num_qp)?;
        handshake.send_done()?;
        endpoint.connect(&plan, &gid, &mine, &peers)?
    } else {
        peers = handshake.receive(plan.addresses(), plan.num_qp)?;
        let exchange = endpoint.connect(&plan, &gid, &mine, &peers)?;
        handshake.send(&mine, plan.addresses())?;
        handshake.receive_done()?;
        exchange
    };
    drop(handshake);
    if !options.common.json {
        print_addresses("remote address:", &peers)?;
    }

    let link = local::link_to(&context, plan.ib_port, link, peers[0].gid);
    let outcome = exchange.run(&plan)?;
    tracing::debug!(counters = ?context.counters(), "exchanged");
    outcome.report(&plan, options.common.json, link, &mine, &peers)
}

/// Finds the peer over TCP.
fn meet(options: &Options) -> Result<TcpStream> {
    match &options.host {
        Some(host) => tcp::connect(host, options.port, tcp::NO_HOST),
        None => {
            let listener = tcp::listen(None, options.port)?;
            eprintln!("waiting for a client on TCP port {}", options.port);
            tcp::accept(&listener)
        }
    }
}

fn print_addresses(label: &str, addresses: &[Address]) -> Result<()> {
    addresses.iter().try_for_each(|address| crate::report::text_line(&format!("  {label} {address}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use ferroce::Gid;
    use std::net::Ipv4Addr;

    /// What `ferroce pingpong rc` does by default.
    pub(crate) fn plan() -> Plan {
        parse(&["rc"])
    }

    fn parse(args: &[&str]) -> Plan {
        let cli = Cli::try_parse_from(["ferroce", "pingpong"].iter().chain(args)).unwrap();
        let Command::Pingpong(args) = cli.command else { unreachable!("pingpong was asked for") };
        args.kind.plan()
    }

    fn gid(mtu: Mtu) -> GidEntry {
        let gid = Gid::from(Ipv4Addr::LOCALHOST);
        GidEntry { index: 0, gid, netdev: "lo".into(), ifindex: 1, mtu, loopback: true }
    }

    #[test]
    fn defaults_are_those_of_the_c_programs() {
        let rc = plan();
        assert_eq!((rc.size, rc.mtu, rc.rx_depth, rc.iters, rc.num_qp), (4096, Some(Mtu::Mtu1024), 500, 1000, 1));
        assert!(!rc.client && !rc.check && !rc.events);
        let ud = parse(&["ud", "host"]);
        assert_eq!((ud.size, ud.mtu, ud.client), (1024, None, true));
        let srq = parse(&["srq", "-q", "4", "-r", "8", "-c", "-e"]);
        assert_eq!((srq.num_qp, srq.rx_depth, srq.srq, srq.check, srq.events), (4, 8, true, true, true));
    }

    #[test]
    fn what_cannot_work_is_refused_first() {
        assert!(parse(&["srq", "-q", "16", "-r", "8"]).validate().unwrap_err().message.contains("too small"));
        assert!(parse(&["rc", "-s", "0"]).validate().is_err());
        let failure = parse(&["rc", "-m", "4096"]).fits(&gid(Mtu::Mtu1024)).unwrap_err();
        assert_eq!(failure.hint.unwrap(), "use -m 1024 at both ends, or another local address with -g");
        assert!(parse(&["ud", "-s", "1025"]).fits(&gid(Mtu::Mtu1024)).is_err());
        assert!(parse(&["ud", "-s", "1024"]).fits(&gid(Mtu::Mtu1024)).is_ok());
    }
}
