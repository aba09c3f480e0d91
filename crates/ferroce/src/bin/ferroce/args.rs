//! The command line that all commands have in common.

use clap::{Args, Parser, Subcommand, ValueEnum};
use ferroce::LinkMode;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

const EXIT_CODES: &str = "\
Exit codes:
  0  it worked
  1  the run failed: the peer went away, a work request failed, the data was wrong
  2  the command line is wrong
  3  the device, or something that it needs from this machine, is missing

Environment:
  FERROCE_DEVICE   the device to use when --device is not given: soft0, or one of rdma-core
  FERROCE_LIBIBVERBS
                   the file of rdma-core's library [default: libibverbs.so.1]
  FERROCE_LINK     auto, udp or shm, when --link is not given
  FERROCE_CAPTURE  a pcap file that gets every packet; the processes of a command share it
  FERROCE_FAULT    faults to inject: loss=0.01,dup=0.001,reorder=0.01,corrupt=0.001,seed=7
  FERROCE_KEEPALIVE
                   how long an idle peer may be silent until it is asked for a sign of life (20s, inf for never)
  FERROCE_AH_CACHE_TTL, FERROCE_AH_CACHE_MAX_AGE, FERROCE_AH_CACHE_CAPACITY
                   how long address handles are kept (inf, 0, 100ms, 1s, 5m), how old they get, and how many there are
  FERROCE_LOG      what to log to stderr: error, warn, info, debug, trace, or a filter such as
                   ferroce_soft=debug
  FERROCE_RUNTIME_DIR
                   where the contexts of this machine find each other, a directory of mode 0700
                   [default: one of the user and network namespace in /dev/shm]

Examples:
  ferroce demo
  ferroce info
  ferroce pingpong rc                (on one machine)
  ferroce pingpong rc 10.77.0.1      (on the other)
  ferroce perf write --bw --local
  ferroce storm --baseline tcp";

/// RDMA on any Linux machine: look at devices, exchange messages, measure.
#[derive(Debug, Parser)]
#[command(name = "ferroce", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show devices, ports, addresses and limits, and what is missing.
    Info(crate::info::InfoArgs),
    /// Exchange messages with another ferroce or with rdma-core's ibv_*_pingpong programs.
    Pingpong(crate::pingpong::PingpongArgs),
    /// Measure latency, bandwidth or message rate between two ends.
    Perf(crate::perf::PerfArgs),
    /// Start two processes on this machine and show RDMA between them.
    Demo(crate::demo::DemoArgs),
    /// Ping over a connection that the connection manager makes, with another ferroce or with librdmacm's rping.
    Rping(crate::rping::RpingArgs),
    /// Open and close connections by the thousand, from many threads.
    Storm(crate::storm::StormArgs),
    /// Connect many times at once and exchange messages, with another ferroce or with librdmacm's ucmatose.
    Cmatose(crate::rdmacm::CmatoseArgs),
    /// Exchange datagrams with what serves a UDP port, with another ferroce or with librdmacm's udaddy.
    Udaddy(crate::rdmacm::UdaddyArgs),
    /// Join a multicast group and exchange datagrams, with other members, ferroce or librdmacm's mckey.
    Mckey(crate::rdmacm::MckeyArgs),
    /// Measure the steps of making and ending connections, with another ferroce or with librdmacm's cmtime.
    Cmtime(crate::cmtime::CmtimeArgs),
    /// Measure what parts of the stack cost by themselves.
    Bench(crate::bench::BenchArgs),
}

impl Command {
    /// Whether results are asked for as JSON.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Info(args) => args.common.json,
            Self::Pingpong(args) => args.kind.options().common.json,
            Self::Perf(args) => args.common.json,
            Self::Demo(args) => args.common.json,
            Self::Rping(args) => args.common.json,
            Self::Storm(args) => args.common.json,
            Self::Cmatose(args) => args.shape.common.json,
            Self::Udaddy(args) => args.shape.common.json,
            Self::Mckey(args) => args.common.json,
            Self::Cmtime(args) => args.common.json,
            Self::Bench(args) => args.json(),
        }
    }
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Print one JSON document on stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Device to use: soft0, or one of rdma-core such as mlx5_0 or rxe0 [default: FERROCE_DEVICE, else soft0]
    #[arg(short, long, alias = "ib-dev", value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Link that the software device sends on [default: FERROCE_LINK, else auto]
    #[arg(long, value_name = "LINK")]
    pub(crate) link: Option<Link>,
    /// Local GID, by index or by IP address [default: the one that the peer is reached from]
    #[arg(short, long, alias = "gid-idx", value_name = "INDEX|IP")]
    pub(crate) gid_index: Option<GidChoice>,
}

/// Which link carries what is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Link {
    /// Shared memory within this machine, UDP to others
    #[default]
    Auto,
    /// Always UDP
    Udp,
    /// Shared memory only
    Shm,
    /// What the device itself has: one of rdma-core's offers no choice
    #[value(skip)]
    Device,
}

impl Link {
    pub(crate) fn mode(self) -> LinkMode {
        match self {
            Self::Auto | Self::Device => LinkMode::Auto,
            Self::Udp => LinkMode::Udp,
            Self::Shm => LinkMode::Shm,
        }
    }

    pub(crate) fn from_mode(mode: LinkMode) -> Self {
        match mode {
            LinkMode::Auto => Self::Auto,
            LinkMode::Udp => Self::Udp,
            LinkMode::Shm => Self::Shm,
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Udp => "udp",
            Self::Shm => "shm",
            Self::Device => "device",
        })
    }
}

/// How a local GID is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidChoice {
    Index(u32),
    Address(IpAddr),
}

impl FromStr for GidChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(index) = text.parse() {
            return Ok(Self::Index(index));
        }
        match text.parse::<IpAddr>() {
            Ok(ip) => Ok(Self::Address(ip.to_canonical())),
            Err(_) => Err("it is neither an index such as 1 nor an IP address such as 192.0.2.1".into()),
        }
    }
}

/// Bytes, with K, M or G for powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u32, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        unit => return Err(format!("there is no unit {unit:?}: it is one of K, M, G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no size: write it as 8, 64K or 1M"))?;
    number
        .checked_mul(1 << shift)
        .and_then(|bytes| u32::try_from(bytes).ok())
        .ok_or_else(|| format!("{text} is more than any message or buffer can have: give less than 4 GiB"))
}

/// A length of time in seconds, fractions allowed.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        Ok(_) => Err("it is more than 0 and at most 86400 seconds".into()),
        Err(_) => Err(format!("{text:?} is no number of seconds")),
    }
}

/// A path MTU in bytes.
pub(crate) fn parse_mtu(text: &str) -> Result<ferroce::Mtu, String> {
    text.parse()
        .ok()
        .and_then(ferroce::Mtu::from_bytes)
        .ok_or_else(|| format!("{text:?} is no RDMA path MTU: it is one of 256, 512, 1024, 2048, 4096"))
}

/// The address of a host; a link-local one names its interface, as in `fe80::1%eth0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host(SocketAddr);

impl Host {
    /// All addresses of IPv4.
    pub(crate) const ANY_V4: Self = Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));

    /// A port of it.
    pub(crate) fn at(self, port: u16) -> SocketAddr {
        let mut addr = self.0;
        addr.set_port(port);
        addr
    }
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((ip, interface)) = text.split_once('%') else {
            let ip = text.parse::<IpAddr>().map_err(|error| error.to_string())?;
            return Ok(Self(SocketAddr::new(ip, 0)));
        };
        ip.parse::<Ipv6Addr>().map_err(|_| format!("{ip} is no IPv6 address, so it has no interface"))?;
        // It is a number and the name of an interface: nobody is asked over the network.
        let found = (text, 0).to_socket_addrs().ok().and_then(|mut addrs| addrs.next());
        found.map(Self).ok_or_else(|| format!("there is no interface {interface}"))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => write!(f, "{}%{}", v6.ip(), v6.scope_id()),
            addr => addr.ip().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn gids_are_named_by_index_or_address() {
        assert_eq!("3".parse(), Ok(GidChoice::Index(3)));
        assert_eq!("192.0.2.1".parse(), Ok(GidChoice::Address("192.0.2.1".parse().unwrap())));
        assert_eq!("::ffff:192.0.2.1".parse(), Ok(GidChoice::Address("192.0.2.1".parse().unwrap())));
        assert!("eth0".parse::<GidChoice>().is_err());
        assert!("-1".parse::<GidChoice>().is_err());
    }

    #[test]
    fn sizes_take_units() {
        assert_eq!(parse_bytes("8"), Ok(8));
        assert_eq!(parse_bytes("64K"), Ok(65536));
        assert_eq!(parse_bytes("1MiB"), Ok(1 << 20));
        assert!(parse_bytes("4G").unwrap_err().contains("less than 4 GiB"));
        assert!(parse_bytes("99999999999999999999").is_err());
        assert!(parse_bytes("1T").unwrap_err().contains("K, M, G"));
        assert!(parse_bytes("").is_err());
        assert!(parse_bytes("-1").is_err());
    }

    #[test]
    fn seconds_are_positive() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_seconds("2s"), Ok(Duration::from_secs(2)));
        for text in ["0", "-1", "inf", "nan", "1e9", "soon"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
