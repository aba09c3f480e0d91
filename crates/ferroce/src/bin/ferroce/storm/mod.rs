//! `ferroce storm`: connections that come and go by the thousand, closed by whichever thread likes to.

mod baseline;
mod client;
mod conn;
mod control;
mod inbox;
mod kills;
mod lane;
mod memory;
mod message;
mod nic;
mod plan;
mod result;
mod run;
mod score;
mod server;
mod side;
mod target;
mod timer;
mod trouble;

use crate::args::{Common, parse_seconds};
use crate::child;
use crate::failure::{Failure, Result};
use clap::{Args, ValueEnum};
use plan::{Nic, Plan, Policy, Setup};
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

const ABOUT: &str = "\
Open and close connections by the thousand, from many threads.

Two processes, each with one event thread and N IO threads. The event thread reads connection events, creates queue pairs, posts \
receives and moves connections on; once established they are handed to an IO thread, which carries one checked message each way and \
closes, by destroying queue pair and id. With --cancel a timer thread closes some before they are established. The setting, and the \
policies other than per-id, are those of a public report on librdmacm, for which closing at will is a use after free.

Without --connect and --listen both processes run on this machine. Setup latency is the time from the beginning of the creation of \
the id until the connection is established at the client. CPU is the processor time of both processes. RSS is the most memory of \
both in the second half of the run; --json has the first half, too, and how many connections were in timewait in each. Leaked is \
what is left of ids, connections, events, queue pairs, address handles and memory regions at both ends when all is closed; it must \
be 0. Of servers that were killed only the last one has a say.";

const EXAMPLES: &str = "\
Examples:
  ferroce storm                                        10000 connections on this machine
  ferroce storm --baseline tcp                         beside the same over kernel TCP
  ferroce storm --link udp --io-threads 1,8            over UDP, with 1 and with 8 IO threads
  ferroce storm --cancel 10 --connections 200000       a tenth is closed before it is established
  ferroce storm --hold 10000                           beside 10000 connections that stay open
  ferroce storm -n 100000 --kill-every 1               the server dies each second, another starts
  ferroce storm --nic slow --policy all -n 2000        the policies' cost on a NIC (modelled)
  ferroce storm --nic slow --setup-in io -n 2000       queue pairs are set up by the IO threads
  ferroce storm --listen 10.77.0.1                     a server
  ferroce storm --connect 10.77.0.1                    its client, on another machine";

/// The TCP port on which the ends find each other.
const PORT: u16 = 18517;
/// What starts the server.
const SERVER: &str = "ferroce storm --listen IP";

#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub(crate) struct StormArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Be the server for one client, at this local address; it does what the client decides
    #[arg(long, value_name = "IP[:PORT]", conflicts_with = "connect")]
    listen: Option<HostPort>,
    /// Be the client of the server at this address
    #[arg(long, value_name = "HOST[:PORT]")]
    connect: Option<HostPort>,
    /// Who closes connections
    #[arg(long, value_enum, default_value_t = PolicyChoice::PerId)]
    policy: PolicyChoice,
    /// IO threads of each process; one run for each number of a list
    #[arg(long, value_name = "NUM[,NUM...]", value_delimiter = ',', default_value = "8")]
    io_threads: Vec<u32>,
    /// Connections of each run
    #[arg(short = 'n', long, value_name = "NUM", default_value_t = 10_000)]
    connections: u64,
    /// Connections at a time, from the creation of the id to its destruction [default: 64, with --nic slow 32]
    #[arg(long, value_name = "NUM")]
    window: Option<u32>,
    /// How many of a hundred are closed before they are established
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    cancel: u32,
    /// So many more connections are opened before the run and stay open until its end
    #[arg(long, value_name = "NUM", default_value_t = 0)]
    hold: u32,
    /// Close nothing before the end of the run: what remains is the cost of opening
    #[arg(long)]
    keep: bool,
    /// Who creates queue pairs and moves them
    #[arg(long, value_enum, default_value_t = Setup::Event)]
    setup_in: Setup,
    /// How long creating, moving and destroying a queue pair takes
    #[arg(long, value_enum, default_value_t = Nic::None)]
    nic: Nic,
    /// With --nic slow: by how much longer it takes, for machines that are emulated and slower, too
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    nic_factor: u32,
    /// Kill the server with SIGKILL every so many seconds and start another one; connections with it are interrupted, which is no error
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with_all = ["listen", "connect", "baseline", "hold", "keep"])]
    kill_every: Option<Duration>,
    /// Do the same over something else too
    #[arg(long, value_enum)]
    baseline: Option<Baseline>,
    /// How long the storm may stand still, and the peer be silent, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    timeout: Duration,
    /// Be the child of another process: see `child`
    #[arg(long, hide = true)]
    child: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Baseline {
    /// Kernel TCP sockets
    Tcp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyChoice {
    /// Any thread, at any time: ferroce's own way
    PerId,
    /// The event thread, between events; other threads ask it to
    Deferred,
    /// Any thread, under one lock that excludes all calls and the handling of events
    ChannelLock,
    /// One run with each
    All,
}

impl PolicyChoice {
    fn policies(self) -> &'static [Policy] {
        match self {
            Self::PerId => &[Policy::PerId],
            Self::Deferred => &[Policy::Deferred],
            Self::ChannelLock => &[Policy::ChannelLock],
            Self::All => &Policy::ALL,
        }
    }
}

/// A host, and a port if it is not the usual one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPort {
    host: String,
    port: u16,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = |host: &str| Ok(Self { host: host.trim_matches(['[', ']']).to_string(), port: PORT });
        if text.is_empty() {
            return Err("it is empty".into());
        }
        // An IPv6 address has colons of its own.
        if text.parse::<IpAddr>().is_ok() || text.ends_with(']') {
            return whole(text);
        }
        match text.rsplit_once(':') {
            None => whole(text),
            Some((host, port)) => {
                let port = port.parse().map_err(|_| format!("{port:?} is no port"))?;
                Ok(Self { port, ..whole(host)? })
            }
        }
    }
}

impl StormArgs {
    /// The runs that the command line asks for.
    fn plans(&self) -> Result<Vec<Plan>> {
        let link = crate::local::link(&self.common)?;
        let mut plans = Vec::new();
        for &io_threads in &self.io_threads {
            for &policy in self.policy.policies() {
                let plan = Plan {
                    policy,
                    io_threads,
                    connections: self.connections,
                    cancel: self.cancel,
                    window: self.window.unwrap_or(Plan::default_window(self.nic)),
                    setup_in: self.setup_in,
                    nic: self.nic,
                    nic_factor: self.nic_factor,
                    link,
                    hold: self.hold,
                    keep: self.keep,
                };
                plan.validate().map_err(Failure::usage)?;
                plans.push(plan);
            }
        }
        Ok(plans)
    }
}

pub(crate) fn run(args: &StormArgs) -> Result<()> {
    if args.child {
        return run::serve_parent(args);
    }
    if let Some(at) = &args.listen {
        return run::serve_one(args, at);
    }
    let plans = args.plans()?;
    if let Some(at) = &args.connect {
        return run::client(args, &plans, &at.host, at.port);
    }
    // What is missing is better told by this process, with its exit code, than by the child.
    crate::local::check(&args.common)?;
    let mut words: Vec<String> = ["storm", "--child"].map(String::from).to_vec();
    if let Some(device) = &args.common.device {
        words.extend(["--device".into(), device.clone()]);
    }
    if let Some(every) = args.kill_every {
        return run::client_with_kills(args, &plans, &words, every);
    }
    let server = child::Server::start(&words)?;
    run::client(args, &plans, "127.0.0.1", server.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn parse(line: &str) -> Result<Vec<Plan>> {
        let words = ["ferroce", "storm"].into_iter().chain(line.split_whitespace());
        let Command::Storm(args) = Cli::try_parse_from(words).unwrap().command else {
            unreachable!("storm was asked for")
        };
        args.plans()
    }

    #[test]
    fn there_is_a_run_for_each_policy_and_thread_count() {
        let plans = parse("--policy all --io-threads 1,8 --cancel 10 --link udp").unwrap();
        let shape: Vec<_> = plans.iter().map(|plan| (plan.io_threads, plan.policy)).collect();
        let expected: Vec<_> = [1, 8].into_iter().flat_map(|io| Policy::ALL.map(|policy| (io, policy))).collect();
        assert_eq!(shape, expected);
        assert!(plans.iter().all(|plan| plan.cancel == 10 && plan.window == 64));
        assert_eq!(parse("--nic slow").unwrap()[0].window, 32);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, part) in [
            ("--io-threads 0", "--io-threads"),
            ("--io-threads 1,999", "--io-threads"),
            ("--window 0", "--window"),
            ("-n 0", "--connections"),
            ("--cancel 91", "--cancel"),
        ] {
            let failure = parse(line).unwrap_err();
            assert!(failure.message.contains(part), "{line}: {failure}");
            assert_eq!(failure.class as u8, 2);
        }
    }

    #[test]
    fn hosts_may_have_ports() {
        for (text, host, port) in [
            ("10.0.0.1", "10.0.0.1", PORT),
            ("10.0.0.1:7", "10.0.0.1", 7),
            ("fd00::1", "fd00::1", PORT),
            ("[fd00::1]:7", "fd00::1", 7),
            ("[fd00::1]", "fd00::1", PORT),
            ("storm.example:7", "storm.example", 7),
        ] {
            assert_eq!(text.parse(), Ok(HostPort { host: host.into(), port }), "{text}");
        }
        assert!("host:port".parse::<HostPort>().is_err());
        assert!("".parse::<HostPort>().is_err());
    }
}
