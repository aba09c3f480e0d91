//! `ferroce perf`: latency, bandwidth and message rate between two ends.

mod client;
mod control;
mod data;
mod endpoint;
mod lane;
mod latency;
mod passive;
mod plan;
mod result;
mod server;
mod stream;
mod timing;
mod transport;

pub(crate) use client::{Connected, measure};
pub(crate) use plan::{Mode, Op, Plan};
pub(crate) use result::Measurement;

use transport::Transport;

use crate::args::{Common, parse_bytes, parse_mtu, parse_seconds};
use crate::failure::{Failure, Result};
use crate::{child, report};
use clap::{ArgGroup, Args};
use ferroce::Mtu;
use std::time::Duration;

const ABOUT: &str = "\
Measure latency, bandwidth or message rate between two ends.

Without HOST this is the server: it waits for one client and does what the client decides. With HOST it is the client. \
With --local it starts a server on this machine by itself.

Latency is half a round trip for send, write, am and put, where both ends send in turn (for write and put each end polls the last byte \
of its memory), and a whole round trip for read, get and atomic, which only one end takes part in. Bandwidth counts MB of \
10^6 bytes. Every run is checked: the received bytes, the number of messages, the sum of the atomics.

send, write, read and atomic are done with queue pairs; am, put, get and, with --transport, atomic by a transport: \
messages between endpoints, with its flow control and its completions.";

const EXAMPLES: &str = "\
Examples:
  ferroce perf send --lat --local                    8-byte latency on this machine
  ferroce perf send --lat --local --link udp         the same over UDP
  ferroce perf write --bw                            a server
  ferroce perf write --bw 10.77.0.1                  its client: 64 KiB writes
  ferroce perf write --bw -s all 10.77.0.1           sizes from 1 byte to 8 MiB
  ferroce perf send --rate --local --json            8-byte messages per second
  ferroce perf read --lat -s 8,4K,64K -n 10000 host  three sizes, 10000 iterations each
  ferroce perf am --lat --transport ud_verbs --local  8-byte active messages over a UD queue pair";

#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
#[command(group = ArgGroup::new("mode").required(true).args(["lat", "bw", "rate"]))]
pub(crate) struct PerfArgs {
    /// Operation
    op: Op,
    /// Name or IP address of the server; without it, this is the server
    #[arg(conflicts_with = "local")]
    host: Option<String>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Transport of am, put, get and atomic [default: rc_verbs for am, put and get]
    #[arg(long, value_name = "NAME")]
    transport: Option<Transport>,
    /// Measure latency
    #[arg(long)]
    lat: bool,
    /// Measure bandwidth
    #[arg(long)]
    bw: bool,
    /// Measure the message rate: by default 8 bytes inline, depth 256, lists of 32, every 32nd signaled
    #[arg(long)]
    rate: bool,
    /// Start the server on this machine too
    #[arg(long)]
    local: bool,
    /// TCP port on which the ends find each other
    #[arg(short, long, default_value_t = 18516)]
    port: u16,
    /// Message sizes, separated by commas, or `all` [default: 8, with --bw 64K]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_sizes)]
    size: Option<Sizes>,
    /// Work requests that may be outstanding on a queue pair [default: 64, with --bw 128, with --rate 256]
    #[arg(long)]
    depth: Option<u32>,
    /// Queue pairs
    #[arg(short, long, default_value_t = 1)]
    qps: u32,
    /// Iterations of each size, over all queue pairs [default: as many as --duration allows]
    #[arg(short = 'n', long, conflicts_with = "duration")]
    iters: Option<u64>,
    /// How long each size is measured, in seconds
    #[arg(short = 'D', long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    duration: Duration,
    /// Iterations before the measurement starts [default: 1000, fewer of large messages]
    #[arg(long, value_name = "ITERS")]
    warmup: Option<u64>,
    /// Sleep on completion events instead of polling, at both ends
    #[arg(short, long)]
    events: bool,
    /// Path MTU in bytes [default: the largest that both ends carry]
    #[arg(short, long, value_parser = parse_mtu)]
    mtu: Option<Mtu>,
    /// Send messages of up to so many bytes inline [default: 64]
    #[arg(short = 'I', long, value_name = "BYTES", value_parser = parse_bytes)]
    inline: Option<u32>,
    /// Work requests in one call of post_send [default: 1, with --rate 32]
    #[arg(long, value_name = "NUM")]
    post_list: Option<u32>,
    /// Ask for a completion of every NUM-th work request only [default: --lat 32 (read, atomic 1), --bw 8, --rate 32]
    #[arg(long, value_name = "NUM")]
    cq_mod: Option<u32>,
    /// How long the peer may be silent, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
    /// Be the child of another process: see `child`
    #[arg(long, hide = true)]
    child: bool,
}

/// A list of message sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sizes(Vec<u32>);

fn parse_sizes(text: &str) -> Result<Sizes, String> {
    if text == "all" {
        return Ok(Sizes((0..=23).map(|shift| 1 << shift).collect()));
    }
    text.split(',').map(parse_bytes).collect::<Result<_, _>>().map(Sizes)
}

impl PerfArgs {
    fn mode(&self) -> Mode {
        match (self.bw, self.rate) {
            (true, _) => Mode::Bw,
            (_, true) => Mode::Rate,
            _ => Mode::Lat,
        }
    }

    fn transport(&self) -> Option<Transport> {
        self.transport.or(matches!(self.op, Op::Am | Op::Put | Op::Get).then_some(Transport::RcVerbs))
    }

    /// Options that say how a queue pair is used are the transport's own decisions.
    fn no_queue_pairs(&self) -> Result<()> {
        let given = [
            ("--inline", self.inline.is_some()),
            ("--post-list", self.post_list.is_some()),
            ("--cq-mod", self.cq_mod.is_some()),
            ("--mtu", self.mtu.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(Failure::usage(format!("a transport decides itself about {name}: leave it out"))),
            None => Ok(()),
        }
    }

    /// What the command line asks for.
    fn plan(&self) -> Result<Plan> {
        let mut plan = Plan::new(self.op, self.mode());
        plan.link = crate::local::link(&self.common)?;
        if let Some(Sizes(sizes)) = &self.size {
            plan.sizes.clone_from(sizes);
        }
        plan.qps = self.qps;
        plan.events = self.events;
        plan.mtu = self.mtu.map(Mtu::bytes);
        plan.iters = self.iters;
        plan.duration_ms = self.duration.as_millis() as u64;
        plan.warmup = self.warmup;
        plan.depth = self.depth.unwrap_or(plan.depth);
        plan.transport = self.transport();
        if let Some(transport) = plan.transport {
            self.no_queue_pairs()?;
            if self.size.is_none() && plan.op == Op::Am && plan.mode == Mode::Bw {
                plan.sizes = vec![transport.bw_message()];
            }
            (plan.post_list, plan.cq_mod) = (1, 1);
        }
        plan.inline = self.inline.unwrap_or(plan.inline);
        // A queue that is asked to be small bounds the defaults of the rest.
        plan.post_list = self.post_list.unwrap_or(plan.post_list.min(plan.depth));
        plan.cq_mod = self.cq_mod.unwrap_or(plan.cq_mod.min(plan.depth));
        plan.validate().map_err(Failure::usage)?;
        Ok(plan)
    }
}

pub(crate) fn run(args: &PerfArgs) -> Result<()> {
    if args.local {
        let plan = args.plan()?;
        let server = start_local_server(&args.common, args.op, args.mode())?;
        return measure_and_report(args, &plan, "127.0.0.1", server.port());
    }
    match &args.host {
        Some(host) => measure_and_report(args, &args.plan()?, host, args.port),
        None => server::serve(&server::Service {
            common: &args.common,
            port: args.port,
            fixed: (!args.child).then(|| (args.op, args.mode(), args.transport())),
            child: args.child,
            patience: args.timeout,
        }),
    }
}

fn measure_and_report(args: &PerfArgs, plan: &Plan, host: &str, port: u16) -> Result<()> {
    let (connected, measurements) = measure(&args.common, plan, host, port, args.timeout)?;
    if args.common.json {
        return result::print_json(&measurements);
    }
    report::text_line(&connected.describe())?;
    result::print_table(&measurements)
}

/// Starts a server for `measure` on this machine, with the same device.
pub(crate) fn start_local_server(common: &Common, op: Op, mode: Mode) -> Result<child::Server> {
    // What is missing is better told by this process, with its exit code, than by the child.
    crate::local::check(common)?;
    let mut args: Vec<String> = ["perf", op.name(), mode.flag(), "--child"].map(String::from).to_vec();
    if let Some(device) = &common.device {
        args.extend(["--device".into(), device.clone()]);
    }
    child::Server::start(&args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn parse(line: &str) -> Result<Plan> {
        let words = ["ferroce", "perf"].into_iter().chain(line.split_whitespace());
        let Command::Perf(args) = Cli::try_parse_from(words).unwrap().command else {
            unreachable!("perf was asked for")
        };
        args.plan()
    }

    #[test]
    fn modes_have_their_defaults() {
        let lat = parse("send --lat").unwrap();
        assert_eq!((lat.sizes, lat.depth, lat.post_list, lat.iters), (vec![8], 64, 1, None));
        let bw = parse("write --bw -n 100").unwrap();
        assert_eq!((bw.sizes, bw.depth, bw.cq_mod, bw.iters), (vec![65536], 128, 8, Some(100)));
        let rate = parse("send --rate").unwrap();
        assert_eq!((rate.sizes, rate.depth, rate.post_list, rate.cq_mod, rate.inline), (vec![8], 256, 32, 32, 64));
        let small = parse("send --rate --depth 4").unwrap();
        assert_eq!((small.depth, small.post_list, small.cq_mod), (4, 4, 4));
    }

    #[test]
    fn transports_have_their_defaults() {
        let am = parse("am --lat").unwrap();
        assert_eq!((am.transport, am.sizes), (Some(Transport::RcVerbs), vec![8]));
        assert_eq!(parse("am --bw").unwrap().sizes, [8192]);
        let ud = parse("am --bw --transport ud_verbs").unwrap();
        assert_eq!((ud.transport, ud.sizes), (Some(Transport::UdVerbs), vec![960]));
        assert_eq!(parse("atomic --lat").unwrap().transport, None);
        assert_eq!(parse("atomic --lat --transport rc_verbs").unwrap().transport, Some(Transport::RcVerbs));
        assert_eq!(parse("put --bw -s 1M").unwrap().sizes, [1 << 20]);
    }

    #[test]
    fn sizes_are_a_list_or_all() {
        assert_eq!(parse("write --bw -s 8,4K,1M").unwrap().sizes, [8, 4096, 1 << 20]);
        let all = parse("write --bw -s all").unwrap().sizes;
        assert_eq!((all.len(), all[0], all[23]), (24, 1, 8 << 20));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (line, part) in [
            ("send --lat -q 2", "one queue pair"),
            ("atomic --lat -s 16", "8 bytes"),
            ("send --bw --depth 4 --cq-mod 8", "cq-mod"),
            ("send --bw --depth 4 --post-list 8", "post-list"),
            ("write --lat -e", "events"),
            ("send --bw -s 0", "size"),
            ("send --bw -q 0", "queue pairs"),
            ("send --bw -n 0", "iteration"),
            ("send --lat --transport rc_verbs", "leave --transport out"),
            ("put --lat --transport ud_verbs", "needs --transport rc_verbs"),
            ("am --lat --cq-mod 4", "leave it out"),
            ("am --rate -q 2", "one endpoint"),
        ] {
            let failure = parse(line).unwrap_err();
            assert!(failure.message.contains(part), "{line}: {failure}");
            assert_eq!(failure.class as u8, 2);
        }
        assert!(Cli::try_parse_from(["ferroce", "perf", "send"]).is_err(), "a mode is required");
        assert!(Cli::try_parse_from(["ferroce", "perf", "send", "--lat", "--bw"]).is_err(), "and only one");
        assert!(Cli::try_parse_from(["ferroce", "perf", "send", "--lat", "--local", "host"]).is_err());
    }
}
