//! The server: it does what the client decides, and checks what arrived.

use super::client::{message, remote_op};
use super::control::{Control, EndAddress, Message, VERSION, unexpected, version_failure};
use super::endpoint::Endpoint;
use super::lane::{RecvLanes, post_all};
use super::latency::{SendTrip, WriteTrip, echo};
use super::passive;
use super::plan::{Mode, Op, Plan};
use super::result::{self, Measurement};
use super::transport::{self, End, Transport};
use crate::args::{Common, Link};
use crate::failure::{Failure, Result};
use crate::monitor::Monitor;
use crate::{child, local, report, tcp};
use ferroce::{Context, Mtu, Sge};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::Duration;

/// What a server was started for.
pub(crate) type Wish = (Op, Mode, Option<Transport>);

/// How a server serves.
pub(crate) struct Service<'a> {
    pub(crate) common: &'a Common,
    pub(crate) port: u16,
    /// What it was started for; `None` serves anything.
    pub(crate) fixed: Option<Wish>,
    /// It belongs to another process: it serves one client after the other and prints no results.
    pub(crate) child: bool,
    pub(crate) patience: Duration,
}

/// Waits for a client and does what it wants. Clients that cannot be served are told why, and the wait goes on.
pub(crate) fn serve(service: &Service<'_>) -> Result<()> {
    // A device that is missing is better told now than to the first client.
    local::check(service.common)?;
    let listener = match service.child {
        true => tcp::listen(Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), 0)?,
        false => tcp::listen(None, service.port)?,
    };
    if service.child {
        let port = listener.local_addr().map_err(|error| tcp::lost("it was set up", &error))?.port();
        child::announce(port)?;
    } else {
        eprintln!("waiting for a client on TCP port {}", service.port);
    }
    loop {
        let stream = tcp::accept(&listener)?;
        let peer =
            stream.peer_addr().map_or_else(|_| "a client".into(), |address| address.ip().to_canonical().to_string());
        let accepted = match Accepted::new(service, stream) {
            Ok(accepted) => accepted,
            Err(failure) => {
                eprintln!("refused {peer}: {failure}");
                continue;
            }
        };
        let outcome = accepted.run();
        match (outcome, service.child) {
            (Ok(results), false) => return report_results(service, &peer, &results),
            (Err(failure), false) => return Err(failure.during(format!("serving {peer}"))),
            (_, true) => {}
        }
    }
}

fn report_results(service: &Service<'_>, peer: &str, results: &[Measurement]) -> Result<()> {
    if service.common.json {
        return result::print_json(results);
    }
    report::text_line(&format!("served {peer}; its results:"))?;
    result::print_table(results)
}

/// A client whose wish can be fulfilled.
struct Accepted {
    control: Control,
    plan: Plan,
    monitor: Monitor,
    part: Part,
}

/// What serves it.
enum Part {
    Verbs {
        endpoint: Box<Endpoint>,
        peer: EndAddress,
        /// Where receives go.
        open: [Sge; 1],
    },
    Transport(Box<End>),
}

impl Accepted {
    fn new(service: &Service<'_>, stream: TcpStream) -> Result<Self> {
        let reached_from = tcp::local_ip(&stream);
        let monitor = Monitor::default();
        let control = Control::new(stream, monitor.clone(), service.patience)?;
        match Self::negotiate(service, &control, reached_from) {
            Ok((plan, part)) => Ok(Self { control, plan, monitor, part }),
            Err(failure) => {
                control.send_failure(&failure);
                Err(failure)
            }
        }
    }

    fn negotiate(service: &Service<'_>, control: &Control, reached_from: Option<IpAddr>) -> Result<(Plan, Part)> {
        let plan = match control.expect("wish")? {
            Message::Hello { version: VERSION, plan } => plan,
            Message::Hello { version, .. } => return Err(version_failure(version)),
            other => return Err(unexpected(&other)),
        };
        plan.validate().map_err(|why| Failure::run(format!("the client's wish cannot be fulfilled: {why}")))?;
        check_fixed(service.fixed, &plan)?;
        check_link(service.common.link, &plan)?;
        let part = match plan.transport {
            None => Self::connect_verbs(control, Endpoint::new(service.common, &plan, reached_from)?, &plan)?,
            Some(kind) => {
                let end = End::new(service.common, &plan, kind, reached_from)?;
                let (peer, _) = introduce(control, end.address())?;
                end.connect(&peer)?;
                Part::Transport(Box::new(end))
            }
        };
        control.send(&Message::Connected)?;
        Ok((plan, part))
    }

    fn connect_verbs(control: &Control, endpoint: Endpoint, plan: &Plan) -> Result<Part> {
        let (peer, mtu) = introduce(control, endpoint.address())?;
        let mtu = Mtu::from_bytes(mtu).ok_or_else(|| Failure::run(format!("{mtu} is no path MTU")))?;
        endpoint.connect(&peer, mtu)?;
        let open = [endpoint.areas.open()?];
        if plan.receives() {
            post_all(&endpoint.qps, plan, &open)?;
        }
        Ok(Part::Verbs { endpoint: Box::new(endpoint), peer, open })
    }

    fn context(&self) -> &Context {
        match &self.part {
            Part::Verbs { endpoint, .. } => &endpoint.context,
            Part::Transport(end) => &end.context,
        }
    }

    /// Serves until the client says good-bye; returns what it measured.
    fn run(&self) -> Result<Vec<Measurement>> {
        loop {
            match self.control.wait("next size")? {
                Message::Start { size } if self.plan.sizes.contains(&size) => {
                    if let Err(failure) = self.serve_size(size) {
                        tracing::debug!(counters = ?self.context().counters(), "failed");
                        self.control.send_failure(&failure);
                        return Err(failure);
                    }
                }
                Message::Bye { results } => {
                    tracing::debug!(counters = ?self.context().counters(), "served");
                    return Ok(results);
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn serve_size(&self, size: u32) -> Result<()> {
        match &self.part {
            Part::Verbs { endpoint, peer, open } => self.serve_verbs(endpoint, peer, open, size),
            Part::Transport(end) => {
                end.prepare(&self.plan, size, false)?;
                self.control.send(&Message::Ready)?;
                let answered = transport::serve(end, &self.plan, size, &self.monitor)?;
                let messages = self.stop()?;
                check_answers(answered, messages)?;
                end.verify(&self.plan, size, false, messages)?;
                self.control.send(&Message::Stopped)
            }
        }
    }

    fn serve_verbs(&self, endpoint: &Endpoint, peer: &EndAddress, open: &[Sge; 1], size: u32) -> Result<()> {
        endpoint.areas.prepare(&self.plan, size, false)?;
        let mut receives = RecvLanes::new(&endpoint.qps, &self.plan, size, open);
        self.control.send(&Message::Ready)?;
        let answered = match (self.plan.mode, self.plan.op) {
            (Mode::Lat, Op::Send) => {
                let sges = [endpoint.areas.own(size)?];
                let data = message(endpoint, &self.plan, size, &sges);
                let mut trip = SendTrip::new(endpoint, &self.plan, data, receives);
                let answered = echo(&mut trip, &self.monitor)?;
                trip.end()?;
                Some(answered)
            }
            (Mode::Lat, Op::Write) => {
                let op = remote_op(Op::Write, peer.addr, peer.rkey);
                let mut trip = WriteTrip::new(endpoint, &self.plan, size, op)?;
                Some(echo(&mut trip, &self.monitor)?)
            }
            (_, Op::Send) => {
                passive::receive(endpoint, &mut receives, &self.monitor)?;
                let messages = self.stop()?;
                passive::drain(endpoint, &mut receives, messages)?;
                return self.confirm(endpoint, size, messages);
            }
            _ => {
                // In event mode the device's own thread answers, as a NIC would.
                if !self.plan.events {
                    passive::lend_thread(endpoint, &self.monitor)?;
                }
                None
            }
        };
        let messages = self.stop()?;
        check_answers(answered, messages)?;
        self.confirm(endpoint, size, messages)
    }

    /// Waits for the client's count.
    fn stop(&self) -> Result<u64> {
        match self.control.wait("count")? {
            Message::Stop { messages } => Ok(messages),
            other => Err(unexpected(&other)),
        }
    }

    fn confirm(&self, endpoint: &Endpoint, size: u32, messages: u64) -> Result<()> {
        endpoint.areas.verify(&self.plan, size, false, messages)?;
        self.control.send(&Message::Stopped)
    }
}

/// Tells the client where this end is; where the client is, and the path MTU that it chose.
fn introduce(control: &Control, end: EndAddress) -> Result<(EndAddress, u32)> {
    control.send(&Message::Welcome { end })?;
    match control.expect("address")? {
        Message::Connect { end, mtu } => Ok((end, mtu)),
        other => Err(unexpected(&other)),
    }
}

/// Each message that was answered was a round trip for the client, too.
fn check_answers(answered: Option<u64>, messages: u64) -> Result<()> {
    match answered {
        Some(answered) if answered != messages => {
            Err(Failure::run(format!("the client counted {messages} round trips, this end {answered}"))
                .hint("this is a fault of one of the devices"))
        }
        _ => Ok(()),
    }
}

fn check_fixed(fixed: Option<Wish>, plan: &Plan) -> Result<()> {
    let words = |(op, mode, transport): Wish| {
        let transport = transport.map_or(String::new(), |it| format!(" --transport {}", it.name()));
        format!("perf {} {}{transport}", op.name(), mode.flag())
    };
    let wanted = (plan.op, plan.mode, plan.transport);
    match fixed {
        Some(fixed) if fixed != wanted => Err(Failure::run(format!(
            "the server was started for `{}`, the client for `{}`",
            words(fixed),
            words(wanted)
        ))),
        _ => Ok(()),
    }
}

fn check_link(fixed: Option<Link>, plan: &Plan) -> Result<()> {
    match fixed {
        Some(link) if link != plan.link => {
            Err(Failure::run(format!("the server was started with --link {link}, the client asks for {}", plan.link)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_that_want_different_things_are_told() {
        let plan = Plan::new(Op::Send, Mode::Bw);
        assert!(check_fixed(None, &plan).is_ok());
        assert!(check_fixed(Some((Op::Send, Mode::Bw, None)), &plan).is_ok());
        let failure = check_fixed(Some((Op::Write, Mode::Lat, None)), &plan).unwrap_err();
        assert_eq!(failure.message, "the server was started for `perf write --lat`, the client for `perf send --bw`");
        assert!(check_link(Some(Link::Udp), &plan).is_err());
        assert!(check_link(None, &plan).is_ok());
    }
}
