//! `ferroce cmatose`: connections. The server sends first, the client answers, the server disconnects.

use super::Shape;
use super::meet::{End, Met, meet};
use super::traffic::Traffic;
use crate::cm_events::{next, unexpected};
use crate::failure::Result;
use clap::Args;
use ferroce::QpType;
use ferroce::cm::{Event, EventKind, Id, PortSpace};
use std::time::Instant;

const ABOUT: &str = "\
Connect many times at once, exchange messages, disconnect, with another ferroce or with librdmacm's ucmatose.

Without -s this end is the server: it waits until all connections are established, sends its messages over all of them, receives the \
client's, and disconnects.";

const EXAMPLES: &str = "\
Examples:
  ferroce cmatose -c 100                    a server for 100 connections at all IPv4 addresses
  ferroce cmatose -c 100 -s 10.77.0.1       its client
  ferroce cmatose -b ::                     a server at all addresses, for one connection
  ferroce cmatose -s fd77::1 -C 0           connect and disconnect only";

#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub(crate) struct CmatoseArgs {
    #[command(flatten)]
    pub(crate) shape: Shape,
    /// Port of the server
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
}

struct Connections(Traffic);

impl End for Connections {
    const PORT_SPACE: PortSpace = PortSpace::Tcp;

    fn prepare(&mut self, id: &Id, number: usize) -> Result<()> {
        self.0.prepare(id, number, true)
    }

    fn established(&mut self, _: usize, _: &Event) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn run(args: &CmatoseArgs) -> Result<()> {
    let shape = &args.shape;
    let cm = crate::local::manager(&shape.common)?;
    let mut end = Connections(Traffic::new(cm.context(), &shape.load, QpType::Rc)?);
    let met = meet(shape, args.port, &cm, &mut end)?;
    let traffic = &mut end.0;
    let is_server = shape.server.is_none();
    let began = Instant::now();
    if !is_server {
        traffic.receive_all(&met.channel)?;
    }
    for number in 0..met.ids.len() {
        traffic.send(number, None)?;
    }
    if is_server {
        traffic.complete_sends(&met.channel)?;
        traffic.receive_all(&met.channel)?;
        for id in &met.ids {
            id.disconnect()?;
        }
    }
    let exchange = began.elapsed();
    // A client does not look at its sends: that the server disconnects says that it has all of them.
    part(shape, &met)?;
    shape.report("cmatose", &met, exchange)
}

/// Waits until all connections have ended.
fn part(shape: &Shape, met: &Met) -> Result<()> {
    let mut left = met.ids.len();
    while left != 0 {
        let event = next(&met.channel, shape.load.timeout, "the end of the connections")?;
        match event.kind() {
            EventKind::Disconnected(_) => {
                event.id().disconnect()?;
                left -= 1;
            }
            EventKind::TimewaitExit | EventKind::ConnectRequest { .. } => {}
            kind => return Err(unexpected("the end of the connections", kind)),
        }
    }
    Ok(())
}
