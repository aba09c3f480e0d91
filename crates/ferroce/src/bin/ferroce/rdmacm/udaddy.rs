//! `ferroce udaddy`: datagrams, whose queue pairs find each other by SIDR. The client sends first, and the server answers.

use super::Shape;
use super::meet::{End, meet};
use super::traffic::{Dest, Traffic};
use crate::failure::{Failure, Result};
use clap::Args;
use ferroce::cm::{Event, Id, PortSpace, UDP_QKEY, UdParam};
use ferroce::{Context, QpType};
use std::time::Instant;

const ABOUT: &str = "\
Find the queue pairs that serve a UDP port, and exchange datagrams with them, with another ferroce or with librdmacm's udaddy.

Without -s this end is the server. The client learns queue pair number, Q_Key and address from the server's answer; the server learns \
them from the client's datagrams, which carry the number of its queue pair.";

const EXAMPLES: &str = "\
Examples:
  ferroce udaddy                      a server for one client at all IPv4 addresses
  ferroce udaddy -s 10.77.0.1         its client
  ferroce udaddy -b :: -c 10          a server at all addresses, ten queue pairs";

#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub(crate) struct UdaddyArgs {
    #[command(flatten)]
    pub(crate) shape: Shape,
    /// Port of the server
    #[arg(short, long, default_value_t = 7174)]
    port: u16,
}

struct Datagrams<'a> {
    context: &'a Context,
    shape: &'a Shape,
    traffic: Traffic,
    dests: Vec<Option<Dest>>,
}

impl End for Datagrams<'_> {
    const PORT_SPACE: PortSpace = PortSpace::Udp;

    fn prepare(&mut self, id: &Id, number: usize) -> Result<()> {
        if let Some(local) = id.local_addr() {
            let mtu = self.context.find_gid(1, local.ip())?.mtu.bytes();
            if self.shape.load.size > mtu {
                return Err(Failure::usage(format!(
                    "a datagram of {} bytes does not fit a packet: at {} it is at most {mtu}",
                    self.shape.load.size,
                    local.ip()
                )));
            }
        }
        self.traffic.prepare(id, number, true)
    }

    fn established(&mut self, number: usize, event: &Event) -> Result<()> {
        let Some(&UdParam { ah_attr, qp_num, qkey, .. }) = event.ud_param() else {
            return Err(Failure::run("the answer does not say where datagrams go"));
        };
        self.dests[number] = Some(Dest { ah: self.traffic.pd.create_ah(&ah_attr)?, qpn: qp_num, qkey });
        Ok(())
    }
}

impl Datagrams<'_> {
    /// Learns from what each peer has sent where the answers go.
    fn learn(&mut self) -> Result<()> {
        for (number, dest) in self.dests.iter_mut().enumerate() {
            let (wc, grh) = self.traffic.last_datagram(number)?;
            let qpn = wc.imm_data().ok_or_else(|| {
                Failure::run("the client's datagrams do not say its queue pair").hint("is it a udaddy?")
            })?;
            let ah = self.traffic.pd.create_ah_from_wc(&wc, &grh, 1)?;
            *dest = Some(Dest { ah, qpn, qkey: UDP_QKEY });
        }
        Ok(())
    }

    fn send(&self) -> Result<()> {
        for (number, dest) in self.dests.iter().enumerate() {
            let Some(dest) = dest else { continue };
            self.traffic.send(number, Some(dest.wr()))?;
        }
        Ok(())
    }
}

pub(crate) fn run(args: &UdaddyArgs) -> Result<()> {
    let shape = &args.shape;
    let cm = crate::local::manager(&shape.common)?;
    let context = cm.context();
    let traffic = Traffic::new(context, &shape.load, QpType::Ud)?;
    let dests = (0..shape.load.connections).map(|_| None).collect();
    let mut end = Datagrams { context, shape, traffic, dests };
    let met = meet(shape, args.port, &cm, &mut end)?;
    let began = Instant::now();
    if shape.server.is_some() {
        end.send()?;
        end.traffic.receive_all(&met.channel)?;
    } else if shape.load.messages != 0 {
        end.traffic.receive_all(&met.channel)?;
        end.learn()?;
        end.send()?;
        end.traffic.complete_sends(&met.channel)?;
    }
    shape.report("udaddy", &met, began.elapsed())
}
