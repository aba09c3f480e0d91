//! The client: one step for all ids, then the next one. A second thread reads the events and says when they came.

use super::{CmtimeArgs, Resources};
use crate::cm_events::unexpected;
use crate::failure::{Failure, Result};
use crate::report::rounded;
use ferroce::cm::{ConnParam, ConnectionManager, EventChannel, EventKind, Id, PortSpace};
use serde::Serialize;
use std::mem::{Discriminant, discriminant};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

/// What a step took.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) step: &'static str,
    /// From the beginning of the first to the end of the last.
    pub(super) total_us: f64,
    pub(super) us_per_connection: f64,
    pub(super) max_us: f64,
    pub(super) min_us: f64,
}

impl Row {
    /// Of the beginnings and ends of one step, which began first.
    fn new(step: &'static str, began: Instant, spans: &[(Instant, Instant)]) -> Self {
        let us = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e6;
        let each = || spans.iter().map(|&(from, to)| us(from, to));
        let total_us = spans.iter().map(|&(_, to)| us(began, to)).fold(0.0, f64::max);
        Self {
            step,
            total_us,
            us_per_connection: total_us / spans.len().max(1) as f64,
            max_us: each().fold(0.0, f64::max),
            min_us: each().fold(f64::INFINITY, f64::min),
        }
    }

    /// The same for JSON.
    pub(super) fn rounded(&self) -> Self {
        Self {
            step: self.step,
            total_us: rounded(self.total_us),
            us_per_connection: rounded(self.us_per_connection),
            max_us: rounded(self.max_us),
            min_us: rounded(self.min_us),
        }
    }
}

/// An event, whose id it was of, and when it was read.
struct Came {
    number: usize,
    kind: EventKind,
    at: Instant,
}

struct Measurement<'a> {
    args: &'a CmtimeArgs,
    ids: Vec<Id>,
    events: Receiver<Came>,
    rows: Vec<Row>,
}

/// Makes the connections, and ends them.
pub(super) fn measure(args: &CmtimeArgs, cm: &ConnectionManager, peer: SocketAddr) -> Result<Vec<Row>> {
    let resources = Resources::new(cm.context())?;
    let channel = EventChannel::new()?;
    let (sender, events) = mpsc::channel();
    std::thread::scope(|scope| {
        let reader = channel.clone();
        scope.spawn(move || read(&reader, &sender));
        let rows = Measurement { args, ids: Vec::new(), events, rows: Vec::new() }.run(cm, &channel, &resources, peer);
        // Which ends the reader.
        channel.close();
        rows
    })
}

/// Reads events until the channel is closed.
fn read(channel: &EventChannel, to: &Sender<Came>) {
    while let Ok(event) = channel.next() {
        let Some(event) = event else { continue };
        let at = Instant::now();
        let Some(number) = event.id().context::<usize>() else { continue };
        if to.send(Came { number: *number, kind: event.into_parts().1, at }).is_err() {
            return;
        }
    }
}

impl Measurement<'_> {
    fn run(
        mut self,
        cm: &ConnectionManager,
        channel: &EventChannel,
        resources: &Resources,
        peer: SocketAddr,
    ) -> Result<Vec<Row>> {
        let timeout = self.args.timeout;
        let began = Instant::now();
        let mut spans = Vec::new();
        for number in 0..self.args.connections as usize {
            let from = Instant::now();
            let id = cm.create_id(channel, PortSpace::Tcp);
            spans.push((from, Instant::now()));
            id.set_context(Arc::new(number))?;
            id.set_options(|options| options.connect_timeout = timeout)?;
            self.ids.push(id);
        }
        self.rows.push(Row::new("create id", began, &spans));
        if let Some(host) = self.args.bind {
            self.step("bind addr", None, |id| Ok(id.bind_addr(host.at(0))?))?;
        }
        self.step("resolve addr", Some(EventKind::AddrResolved), |id| Ok(id.resolve_addr(None, peer)?))?;
        self.step("resolve route", Some(EventKind::RouteResolved), |id| Ok(id.resolve_route()?))?;
        let attr = resources.attr();
        self.step("create qp", None, |id| Ok(id.create_qp(&resources.pd, &attr).map(drop)?))?;
        let param = ConnParam { responder_resources: Some(1), initiator_depth: Some(1), ..ConnParam::default() };
        self.step("connect", Some(EventKind::Established), |id| Ok(id.connect(&param)?))?;
        let ended = EventKind::Disconnected(ferroce::cm::proto::DisconnectCause::Agreed);
        self.step("disconnect", Some(ended), |id| Ok(id.disconnect()?))?;
        self.step("destroy", None, |id| {
            // With it goes its queue pair.
            id.destroy();
            Ok(())
        })?;
        Ok(self.rows)
    }

    /// Makes `call` for all ids. If an event follows, the step ends with it.
    fn step(&mut self, step: &'static str, follows: Option<EventKind>, call: impl Fn(&Id) -> Result<()>) -> Result<()> {
        let began = Instant::now();
        let mut spans = Vec::with_capacity(self.ids.len());
        for id in &self.ids {
            let from = Instant::now();
            call(id).map_err(|failure| failure.during(step))?;
            spans.push((from, Instant::now()));
        }
        if let Some(kind) = follows {
            self.await_events(step, discriminant(&kind), &mut spans)?;
        }
        self.rows.push(Row::new(step, began, &spans));
        Ok(())
    }

    fn await_events(
        &self,
        step: &'static str,
        wanted: Discriminant<EventKind>,
        spans: &mut [(Instant, Instant)],
    ) -> Result<()> {
        let mut left = spans.len();
        while left != 0 {
            let came = self.events.recv_timeout(self.args.timeout).map_err(|_| {
                Failure::run(format!("{left} of {} did not end in {:?}", spans.len(), self.args.timeout))
                    .during(step)
                    .hint(
                        "does the server answer: is it up, is UDP port 4791 open on the way? --timeout gives it longer",
                    )
            })?;
            if discriminant(&came.kind) == wanted {
                spans[came.number].1 = came.at;
                left -= 1;
            } else if !matches!(came.kind, EventKind::TimewaitExit) {
                return Err(unexpected(step, &came.kind));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_row_sums_up_what_overlaps() {
        let began = Instant::now();
        let at = |us| began + Duration::from_micros(us);
        let row = Row::new("connect", began, &[(at(0), at(30)), (at(10), at(20)), (at(15), at(40)), (at(20), at(40))]);
        let tenths = |us: f64| (us * 10.0).round() as u64;
        assert_eq!((tenths(row.total_us), tenths(row.us_per_connection)), (400, 100));
        assert_eq!((tenths(row.max_us), tenths(row.min_us)), (300, 100));
    }
}
