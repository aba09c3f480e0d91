//! The sequence of runs, as the client decides it and the server follows.

use super::baseline::{TcpClient, TcpServer};
use super::client::Client;
use super::control::{Control, Message, unexpected};
use super::kills::{Kills, first_addr};
use super::plan::{Nic, Plan};
use super::result::{Document, EndReport, Measured, Run, Tcp, TcpRun};
use super::server::Server;
use super::side::{KERNEL_DRAIN, Side};
use super::target::Target;
use super::{HostPort, SERVER, StormArgs};
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::{child, local, report, tcp};
use ferroce::Gid;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

/// Processor time of this process, in microseconds.
fn cpu_us() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Runs all plans against the server at `host`, and reports.
pub(super) fn client(args: &StormArgs, plans: &[Plan], host: &str, port: u16) -> Result<()> {
    let control = Control::new(tcp::connect(host, port, SERVER)?, args.timeout)?;
    let outcome = measure(args, plans, &control);
    match &outcome {
        Ok(_) => control.send(&Message::Bye)?,
        Err(failure) => control.send_failure(failure),
    }
    conclude(args, plans, &outcome?)
}

/// Runs all plans, each against servers of its own, started with `words`, that are killed every so often; and reports.
pub(super) fn client_with_kills(args: &StormArgs, plans: &[Plan], words: &[String], every: Duration) -> Result<()> {
    let mut runs = Vec::new();
    for plan in plans {
        let kills = Kills::new(words, every, args.timeout)?;
        runs.push(storm(args, plan, Servers::Killed(&kills))?);
    }
    conclude(args, plans, &Document { runs, tcp: None })
}

/// Prints what was measured; fails if anything went wrong.
fn conclude(args: &StormArgs, plans: &[Plan], document: &Document) -> Result<()> {
    let verdict = document.verdict();
    if args.common.json {
        report::json(document)?;
    } else {
        report::text_line(&human(args, plans, document))?;
    }
    for sample in document.samples() {
        eprintln!("error: {sample}");
    }
    match verdict {
        None => Ok(()),
        Some(verdict) => Err(Failure::run(verdict).documented()),
    }
}

fn human(args: &StormArgs, plans: &[Plan], document: &Document) -> String {
    let mut lines = Vec::new();
    if let Some(run) = document.runs.first() {
        lines.push(format!(
            "{} connections each, {} at a time, link {}{}",
            report::grouped(run.connections),
            run.window,
            run.link,
            if args.cancel == 0 { String::new() } else { format!(", {} % to be cancelled", args.cancel) }
        ));
    }
    if let Some(plan) = plans.iter().find(|plan| plan.nic == Nic::Slow) {
        let factor =
            if plan.nic_factor == 1 { String::new() } else { format!(", all of it times {}", plan.nic_factor) };
        lines.push(format!(
            "The NIC is modelled: creating a queue pair takes 0.5 ms and now and then 10 to 20, destroying it 1 to 2 ms, each \
             change of state 0.1 to 0.2 ms{factor}."
        ));
    }
    lines.push(document.human());
    for run in &document.runs {
        if let (Some(kills), Some(interrupted)) = (run.kills, run.interrupted) {
            lines.push(format!(
                "{}: {} servers were killed, {} connections with them interrupted{}",
                run.policy,
                report::grouped(kills),
                report::grouped(interrupted),
                if kills == 0 { "; the run was over before: raise -n" } else { "" }
            ));
        }
    }
    lines.join("\n")
}

fn measure(args: &StormArgs, plans: &[Plan], control: &Control) -> Result<Document> {
    let mut runs = Vec::new();
    for plan in plans {
        runs.push(storm(args, plan, Servers::One(control))?);
    }
    let mut tcp_runs = Vec::new();
    if args.baseline.is_some() {
        for (at, plan) in plans.iter().enumerate() {
            if plans[..at].iter().all(|earlier| earlier.io_threads != plan.io_threads) {
                tcp_runs.push(churn(args, plan, control)?);
            }
        }
    }
    Ok(Document { runs, tcp: args.baseline.map(|_| Tcp { runs: tcp_runs }) })
}

/// Has the server get ready; returns where it listens.
pub(super) fn prepare(control: &Control, plan: &Plan, tcp: bool) -> Result<Vec<SocketAddr>> {
    control.send(&Message::Prepare { plan: *plan, tcp })?;
    match control.expect("addresses")? {
        Message::Ready { addrs } => Ok(addrs),
        other => Err(unexpected(&other)),
    }
}

/// Has the server end the run, which may take `limit`, and calls `meanwhile`; returns what both saw.
fn finish<T>(control: &Control, limit: Duration, meanwhile: impl FnOnce() -> T) -> (Result<EndReport>, T) {
    let sent = control.send(&Message::Finish);
    let own = meanwhile();
    let report = sent.and_then(|()| match control.expect_after("report", limit)? {
        Message::Finished { report } => Ok(report),
        other => Err(unexpected(&other)),
    });
    (report, own)
}

fn standstill(patience: Duration, ended: u64, connections: u64) -> String {
    format!("nothing has ended for {:.0} s; {ended} of {connections} connections had by then", patience.as_secs_f64())
}

/// Who serves a run.
#[derive(Clone, Copy)]
enum Servers<'a> {
    One(&'a Control),
    Killed(&'a Kills),
}

impl Servers<'_> {
    /// Calls `f` with the control connection of the present one.
    fn with_control<T>(self, f: impl FnOnce(&Control) -> T) -> T {
        match self {
            Self::One(control) => f(control),
            Self::Killed(kills) => kills.with_control(f),
        }
    }
}

/// One run over RDMA.
fn storm(args: &StormArgs, plan: &Plan, servers: Servers<'_>) -> Result<Run> {
    let kills = match servers {
        Servers::One(_) => None,
        Servers::Killed(kills) => Some(kills),
    };
    let (peer, reached_from) = servers.with_control(|control| {
        Ok::<_, Failure>((first_addr(&prepare(control, plan, false)?)?, tcp::local_ip(control.stream())))
    })?;
    let client = Client::new(&args.common, *plan, reached_from, Target::new(peer, kills.is_some()))?;
    let link = local::link_to(&client.side.context, 1, plan.link, Gid::from(peer.ip()));
    let label = format!("{} with {} IO threads", plan.policy, plan.io_threads);
    let mut progress = Progress::new(label, Some(plan.connections));
    tracing::debug!(?plan, %peer, "storming");
    let (server, mut leaked, cpu, taken) = std::thread::scope(|scope| {
        Side::start(&client, scope);
        if plan.cancel != 0 {
            scope.spawn(|| client.timer.run(|conn| client.expired(conn)));
        }
        let killer = kills.map(|kills| scope.spawn(|| kills.run(&client, plan)));
        if !client.hold(args.timeout) {
            client.give_up("the connections that are to be held cannot be opened");
        }
        if plan.hold != 0
            && let Err(failure) = servers.with_control(|control| control.send(&Message::Begin))
        {
            client.give_up(failure);
        }
        client.score.begin();
        client.side.memory.begin();
        let cpu = cpu_us();
        for _ in 0..plan.window {
            client.begin();
        }
        if !client.score.wait(args.timeout, |done| progress.update(done)) {
            client.side.troubles.note(standstill(args.timeout, client.score.progress(), plan.connections));
        }
        if let (Some(kills), Some(killer)) = (kills, killer) {
            kills.stop();
            let _ = killer.join();
        }
        let (cpu, taken) = (cpu_us() - cpu, client.side.memory.taken());
        client.let_go();
        let (server, leaked) =
            // The server may have a device of the kernel, whatever this end has.
            servers.with_control(|control| finish(control, KERNEL_DRAIN, || client.side.drain()));
        client.timer.stop();
        client.side.stop();
        (server, leaked, cpu, taken)
    });
    let (side, score) = client.into_parts();
    let mut client = EndReport { exchanged: score.exchanges(), cpu_us: cpu, ..EndReport::default() };
    (client.errors, client.samples) = (side.troubles.count(), side.troubles.samples());
    client.taken = taken;
    side.release(&mut leaked);
    client.leaked = leaked;
    let measured = Measured {
        link,
        cancelled: score.cancellations(),
        kills: kills.map(Kills::count),
        interrupted: score.interruptions(),
        elapsed: score.elapsed(),
        setup: score.setup(),
        client,
        server: server?,
    };
    Ok(Run::new(plan, measured))
}

/// The same over kernel TCP.
fn churn(args: &StormArgs, plan: &Plan, control: &Control) -> Result<TcpRun> {
    let client = TcpClient::new(plan, prepare(control, plan, true)?)?;
    let label = format!("kernel TCP with {} IO threads", plan.io_threads);
    let mut progress = Progress::new(label, Some(plan.connections));
    let cpu = cpu_us();
    let cpu = std::thread::scope(|scope| {
        client.start(scope);
        for _ in 0..plan.window {
            client.begin();
        }
        if !client.score.wait(args.timeout, |done| progress.update(done)) {
            client.ends.troubles.note(standstill(args.timeout, client.score.progress(), plan.connections));
        }
        client.ends.stop();
        cpu_us() - cpu
    });
    let (server, ()) = finish(control, Duration::ZERO, || {});
    let (score, ends) = (&client.score, &client.ends);
    let measured = Measured {
        link: plan.link,
        cancelled: 0,
        kills: None,
        interrupted: 0,
        elapsed: score.elapsed(),
        setup: score.setup(),
        client: EndReport {
            exchanged: ends.exchanged(),
            errors: ends.troubles.count(),
            samples: ends.troubles.samples(),
            cpu_us: cpu,
            ..EndReport::default()
        },
        server: server?,
    };
    Ok(TcpRun::new(plan, measured))
}

/// The server that another process has started: serves one client after the other, until that process ends.
pub(super) fn serve_parent(args: &StormArgs) -> Result<()> {
    let listener = tcp::listen(Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), 0)?;
    child::announce(listener.local_addr().map_err(|error| tcp::lost("it was set up", &error))?.port())?;
    loop {
        // What goes wrong is told to the client, and so is all that there is to report.
        let _ = serve(args, &listener);
    }
}

/// The server for one client.
pub(super) fn serve_one(args: &StormArgs, at: &HostPort) -> Result<()> {
    // A device that is missing is better told now than to the client.
    local::check(&args.common)?;
    let ip = at.host.parse().map_err(|_| {
        Failure::usage(format!("--listen {}: it is no IP address", at.host))
            .hint("give a local address, or 0.0.0.0 or :: for all")
    })?;
    let listener = tcp::listen(Some(ip), at.port)?;
    eprintln!("waiting for a client on TCP port {}", at.port);
    let runs = serve(args, &listener)?;
    if args.common.json { report::json(&ServerDocument { role: "server", runs }) } else { Ok(()) }
}

/// What a server saw that was started by hand.
#[derive(Serialize)]
struct ServerDocument {
    role: &'static str,
    runs: Vec<EndReport>,
}

/// Serves the next client.
fn serve(args: &StormArgs, listener: &TcpListener) -> Result<Vec<EndReport>> {
    let stream = tcp::accept(listener)?;
    let control = Control::new(stream, args.timeout)?;
    let outcome = follow(args, &control);
    if let Err(failure) = &outcome {
        control.send_failure(failure);
    }
    outcome
}

/// Does what the client decides; returns what this end saw of each run.
fn follow(args: &StormArgs, control: &Control) -> Result<Vec<EndReport>> {
    let mut reports = Vec::new();
    let reached_at = tcp::local_ip(control.stream());
    loop {
        let report = match control.wait("next run")? {
            Message::Prepare { plan, tcp } => {
                plan.validate().map_err(|why| Failure::run(format!("the client's wish cannot be fulfilled: {why}")))?;
                if tcp {
                    serve_churn(&plan, reached_at, control)?
                } else {
                    serve_storm(args, plan, reached_at, control)?
                }
            }
            Message::Bye => return Ok(reports),
            other => return Err(unexpected(&other)),
        };
        reports.push(report.clone());
        control.send(&Message::Finished { report })?;
    }
}

/// Says where it listens, and waits for the end of the run; returns the processor time that was used since it began. `begin` is called when what is
/// measured begins later.
fn await_end(control: &Control, addrs: Vec<SocketAddr>, begin: impl Fn()) -> Result<u64> {
    let mut cpu = cpu_us();
    control.send(&Message::Ready { addrs })?;
    loop {
        match control.wait("end of the run")? {
            Message::Begin => {
                begin();
                cpu = cpu_us();
            }
            Message::Finish => return Ok(cpu_us() - cpu),
            other => return Err(unexpected(&other)),
        }
    }
}

fn serve_storm(args: &StormArgs, plan: Plan, reached_at: Option<IpAddr>, control: &Control) -> Result<EndReport> {
    let server = Server::new(&args.common, plan, reached_at)?;
    let (cpu, mut leaked, taken) = std::thread::scope(|scope| {
        Side::start(&server, scope);
        let ended = await_end(control, server.addr().into_iter().collect(), || server.side.memory.begin());
        let taken = server.side.memory.taken();
        server.close();
        let leaked = if ended.is_ok() { server.side.drain() } else { Default::default() };
        server.side.stop();
        (ended, leaked, taken)
    });
    let mut report = EndReport { exchanged: server.answered(), cpu_us: cpu?, taken, ..EndReport::default() };
    let side = server.into_side();
    (report.errors, report.samples) = (side.troubles.count(), side.troubles.samples());
    side.release(&mut leaked);
    report.leaked = leaked;
    Ok(report)
}

fn serve_churn(plan: &Plan, reached_at: Option<IpAddr>, control: &Control) -> Result<EndReport> {
    let server = TcpServer::new(plan, reached_at.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)))?;
    let cpu = std::thread::scope(|scope| {
        server.start(scope);
        let cpu = await_end(control, server.addrs(), || {});
        server.ends.stop();
        cpu
    })?;
    Ok(EndReport {
        exchanged: server.ends.exchanged(),
        errors: server.ends.troubles.count(),
        samples: server.ends.troubles.samples(),
        cpu_us: cpu,
        ..EndReport::default()
    })
}
