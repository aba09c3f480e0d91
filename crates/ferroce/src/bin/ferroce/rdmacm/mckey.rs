//! `ferroce mckey`: datagrams to a multicast group.

use super::Load;
use super::meet::number;
use super::traffic::{Dest, Traffic};
use crate::args::{Common, Host};
use crate::cm_events::{next, unexpected};
use crate::failure::{Failure, Result};
use crate::report;
use clap::Args;
use ferroce::QpType;
use ferroce::cm::{EventChannel, EventKind, Id, Membership, PortSpace, UdParam};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ABOUT: &str = "\
Join a multicast group and exchange datagrams with its members, ferroce or librdmacm's mckey.

With -s this end sends; without, it waits until all messages have come. Start the receivers first: a group does not keep what nobody \
receives.";

const EXAMPLES: &str = "\
Examples:
  ferroce mckey -m 239.1.2.3          receive ten datagrams
  ferroce mckey -m 239.1.2.3 -s       send them
  ferroce mckey -m 239.1.2.3 -b 10.77.0.2 -C 100 -S 1000";

#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub(crate) struct MckeyArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The group
    #[arg(short, long, value_name = "IP")]
    multicast: IpAddr,
    /// Send, instead of receiving
    #[arg(short, long)]
    sender: bool,
    /// Join as a member that only sends
    #[arg(short = 'o', long, requires = "sender")]
    send_only: bool,
    /// Local address [default: the one that the group is reached from]
    #[arg(short, long, value_name = "IP")]
    bind: Option<Host>,
    #[command(flatten)]
    load: Load,
    /// Seconds between joining and sending, for switches that learn who has joined
    #[arg(long, default_value = "1", value_parser = crate::args::parse_seconds, value_name = "S")]
    pause: Duration,
}

#[derive(Serialize)]
struct Document {
    op: &'static str,
    group: IpAddr,
    connections: u32,
    messages: u32,
    size: u32,
    join_seconds: f64,
    exchange_seconds: f64,
}

pub(crate) fn run(args: &MckeyArgs) -> Result<()> {
    if !args.multicast.is_multicast() {
        return Err(Failure::usage(format!("{} is no multicast group", args.multicast))
            .hint("a group is an address in 224.0.0.0/4 or ff00::/8"));
    }
    let cm = crate::local::manager(&args.common)?;
    let channel = EventChannel::new()?;
    let mut traffic = Traffic::new(cm.context(), &args.load, QpType::Ud)?;
    let began = Instant::now();
    let ids: Vec<Id> = (0..args.load.connections as usize)
        .map(|number| {
            let id = cm.create_id(&channel, PortSpace::Udp);
            id.set_context(Arc::new(number))?;
            id.resolve_addr(args.bind.map(|host| host.at(0)), SocketAddr::new(args.multicast, 0))?;
            Ok(id)
        })
        .collect::<Result<_>>()?;
    let dests = join(args, &channel, &mut traffic)?;
    let join_seconds = began.elapsed().as_secs_f64();
    eprintln!("joined {}", args.multicast);
    let began = Instant::now();
    if args.sender {
        std::thread::sleep(args.pause);
        for (number, dest) in dests.iter().enumerate() {
            traffic.send(number, dest.as_ref().map(Dest::wr))?;
        }
        traffic.complete_sends(&channel)?;
    } else {
        traffic.receive_all(&channel)?;
    }
    let exchange_seconds = began.elapsed().as_secs_f64();
    for id in &ids {
        id.leave_multicast(args.multicast)?;
    }
    let Load { connections, messages, size, .. } = args.load;
    if args.common.json {
        let group = args.multicast;
        return report::json(&Document {
            op: "mckey",
            group,
            connections,
            messages,
            size,
            join_seconds,
            exchange_seconds,
        });
    }
    let what = if args.sender { "sent from" } else { "received by" };
    println!(
        "{messages} messages of {size} bytes {what} each of {connections} queue pairs in {exchange_seconds:.3} s, joined in \
         {join_seconds:.3} s"
    );
    Ok(())
}

/// Gives each id a queue pair and has it join; returns where its datagrams go.
fn join(args: &MckeyArgs, channel: &EventChannel, traffic: &mut Traffic) -> Result<Vec<Option<Dest>>> {
    let mut dests: Vec<Option<Dest>> = (0..args.load.connections).map(|_| None).collect();
    let mut left = dests.len();
    let membership = if args.send_only { Membership::SendOnly } else { Membership::Full };
    while left != 0 {
        let event = next(channel, args.load.timeout, "joining the group")?;
        match event.kind() {
            EventKind::AddrResolved => {
                traffic.prepare(event.id(), number(&event)?, !args.sender)?;
                event.id().join_multicast(args.multicast, membership)?;
            }
            EventKind::MulticastJoin { .. } => {
                let Some(&UdParam { ah_attr, qp_num, qkey, .. }) = event.ud_param() else {
                    return Err(Failure::run("the group's address is missing"));
                };
                dests[number(&event)?] = Some(Dest { ah: traffic.pd.create_ah(&ah_attr)?, qpn: qp_num, qkey });
                left -= 1;
            }
            kind => return Err(unexpected("joining the group", kind)),
        }
    }
    Ok(dests)
}
