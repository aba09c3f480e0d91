//! Messages over all queue pairs of one end.

use super::Load;
use crate::cm_events::unexpected;
use crate::completions::{BATCH, Completions};
use crate::failure::{Failure, Result};
use ferroce::cm::{EventChannel, EventKind, Id};
use ferroce::{Access, Ah, Context, Mr, Pd, Qp, QpCap, QpInitAttr, QpType, RecvWr, SendOp, SendWr, Sge, UdDest};
use ferroce::{WcOpcode, WorkCompletion};
use std::time::{Duration, Instant};

/// Bytes before a datagram in its receive buffer.
const GRH: usize = 40;

/// Queue pairs, where they complete, and the memory that they use.
pub(super) struct Traffic {
    pub(super) pd: Pd,
    completions: Completions,
    /// A receive buffer for each queue pair, then what is sent.
    mr: Mr,
    qp_type: QpType,
    /// By the numbers of their ids.
    qps: Vec<Option<Qp>>,
    /// The last receive of each.
    last: Vec<WorkCompletion>,
    messages: u32,
    size: usize,
    timeout: Duration,
    received: u64,
    sent: u64,
}

/// Where the datagrams of one id go.
pub(super) struct Dest {
    pub(super) ah: Ah,
    pub(super) qpn: u32,
    pub(super) qkey: u32,
}

impl Dest {
    /// As a work request names it.
    pub(super) fn wr(&self) -> UdDest<'_> {
        UdDest { ah: &self.ah, qpn: self.qpn, qkey: self.qkey }
    }
}

impl Traffic {
    pub(super) fn new(context: &Context, load: &Load, qp_type: QpType) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let (count, size) = (load.connections as usize, load.size as usize);
        let mr = pd.alloc_mr(count * (GRH + size) + size, Access::LOCAL_WRITE)?;
        // Sends and receives.
        let cqe = load.connections.saturating_mul(2 * load.messages).max(1);
        Ok(Self {
            completions: Completions::new(context, cqe, true)?,
            pd,
            mr,
            qp_type,
            qps: vec![None; count],
            last: vec![WorkCompletion::default(); count],
            messages: load.messages,
            size,
            timeout: load.timeout,
            received: 0,
            sent: 0,
        })
    }

    /// Gives the id with this number a queue pair, with receives for all messages if it `receives`.
    pub(super) fn prepare(&mut self, id: &Id, number: usize, receives: bool) -> Result<()> {
        let depth = self.messages.max(1);
        let attr = QpInitAttr {
            cap: QpCap { max_send_wr: depth, max_recv_wr: depth, ..QpCap::default() },
            ..QpInitAttr::new(self.qp_type, &self.completions.cq)
        };
        let qp = id.create_qp(&self.pd, &attr)?;
        let sges = [self.receive_buffer(number)?];
        if receives {
            qp.post_recv(&vec![RecvWr::new(number as u64, &sges); self.messages as usize])?;
        }
        self.qps[number] = Some(qp);
        Ok(())
    }

    /// What comes before the bytes of a message.
    fn head(&self) -> usize {
        if self.qp_type == QpType::Ud { GRH } else { 0 }
    }

    fn receive_buffer(&self, number: usize) -> Result<Sge> {
        let at = number * (GRH + self.size);
        Ok(self.mr.sge(at..at + self.head() + self.size)?)
    }

    /// Sends all messages of one id; datagrams carry the number of its queue pair.
    pub(super) fn send(&self, number: usize, to: Option<UdDest<'_>>) -> Result<()> {
        let Some(qp) = &self.qps[number] else { return Ok(()) };
        let sges = [self.mr.sge(self.mr.len() - self.size..)?];
        let op = if to.is_some() { SendOp::SendImm(qp.qp_num()) } else { SendOp::Send };
        let wr = SendWr { ud: to, ..SendWr::new(number as u64, op, &sges) };
        Ok(qp.post_send(&vec![wr; self.messages as usize])?)
    }

    /// The last receive of an id, if it has any, with the header that came before the datagram.
    pub(super) fn last_datagram(&self, number: usize) -> Result<(WorkCompletion, [u8; GRH])> {
        let mut grh = [0; GRH];
        self.mr.read(number * (GRH + self.size), &mut grh)?;
        Ok((self.last[number], grh))
    }

    /// Waits until all messages have come.
    pub(super) fn receive_all(&mut self, channel: &EventChannel) -> Result<()> {
        self.wait(channel, "messages", |traffic| traffic.received)
    }

    /// Waits until all messages are sent.
    pub(super) fn complete_sends(&mut self, channel: &EventChannel) -> Result<()> {
        self.wait(channel, "completions of sends", |traffic| traffic.sent)
    }

    fn wait(&mut self, channel: &EventChannel, what: &str, count: impl Fn(&Self) -> u64) -> Result<()> {
        let wanted = u64::from(self.messages) * self.qps.len() as u64;
        let mut wcs = [WorkCompletion::default(); BATCH];
        let mut deadline = Instant::now() + self.timeout;
        while count(self) < wanted {
            let taken = self.completions.take(&mut wcs)?;
            for wc in &wcs[..taken] {
                self.note(wc)?;
            }
            if taken != 0 {
                deadline = Instant::now() + self.timeout;
                continue;
            }
            if let Some(event) = channel.try_next()?
                && !matches!(
                    event.kind(),
                    EventKind::Established | EventKind::TimewaitExit | EventKind::ConnectRequest { .. }
                )
            {
                return Err(unexpected(what, event.kind()));
            }
            if Instant::now() > deadline {
                let hint = match self.qp_type {
                    QpType::Ud => "datagrams may be lost; give both ends the same -c and -C",
                    _ => "give both ends the same -c and -C",
                };
                return Err(Failure::run(format!("{} of {wanted} {what} came", count(self))).hint(hint));
            }
        }
        Ok(())
    }

    fn note(&mut self, wc: &WorkCompletion) -> Result<()> {
        if !wc.is_ok() {
            return Err(Failure::completion("a work request", wc));
        }
        if wc.opcode != WcOpcode::Recv {
            self.sent += 1;
            return Ok(());
        }
        let got = (wc.byte_len as usize).saturating_sub(self.head());
        if got != self.size {
            return Err(Failure::run(format!("the peer's messages have {got} bytes, this end's have {}", self.size))
                .hint("give both ends the same -S"));
        }
        self.received += 1;
        self.last[wc.wr_id as usize] = *wc;
        Ok(())
    }
}
