//! Both ends of the exchange.

use super::{RpingArgs, unexpected};
use crate::completions::{BATCH, Completions};
use crate::failure::{Failure, Result};
use ferroce::cm::proto::DisconnectCause;
use ferroce::cm::{EventChannel, EventKind, Id};
use ferroce::{Access, Context, Mr, Pd, Qp, QpCap, QpInitAttr, QpType, RecvWr, SendOp, SendWr, WorkCompletion};
use std::time::{Duration, Instant};

/// What one end tells the other of a buffer: address, rkey and length, big endian.
const INFO: usize = 16;

const RECV: u64 = 1;
const SEND: u64 = 2;
const RDMA: u64 = 3;

/// The registered memory of one end.
pub(super) struct Buffers {
    pd: Pd,
    completions: Completions,
    /// One message in, one out.
    messages: Mr,
    /// What the client offers to be read.
    start: Mr,
    /// What is read, or written.
    data: Mr,
}

impl Buffers {
    pub(super) fn new(context: &Context, size: u32) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let mr = |len| pd.alloc_mr(len, Access::ALL);
        let (messages, start, data) = (mr(2 * INFO)?, mr(size as usize)?, mr(size as usize)?);
        Ok(Self { completions: Completions::new(context, 64, true)?, messages, start, data, pd })
    }
}

/// A buffer of the peer's.
#[derive(Clone, Copy)]
struct Info {
    addr: u64,
    rkey: u32,
    len: u32,
}

/// One end of one connection.
pub(super) struct Exchange<'a> {
    channel: &'a EventChannel,
    buffers: Buffers,
    qp: Qp,
    args: &'a RpingArgs,
    /// Completions that came before they were waited for.
    early: Vec<u64>,
}

/// The peer disconnected.
pub(super) struct PeerLeft;

impl<'a> Exchange<'a> {
    /// Gives `id` a queue pair and posts the first receive.
    pub(super) fn new(id: &Id, channel: &'a EventChannel, buffers: Buffers, args: &'a RpingArgs) -> Result<Self> {
        let attr = QpInitAttr {
            cap: QpCap { max_send_wr: 16, max_recv_wr: 4, ..QpCap::default() },
            ..QpInitAttr::new(QpType::Rc, &buffers.completions.cq)
        };
        let qp = id.create_qp(&buffers.pd, &attr)?;
        let exchange = Self { channel, buffers, qp, args, early: Vec::new() };
        exchange.post_recv()?;
        Ok(exchange)
    }

    fn post_recv(&self) -> Result<()> {
        Ok(self.qp.post_recv(&[RecvWr::new(RECV, &[self.buffers.messages.sge(..INFO)?])])?)
    }

    /// One ping, by the client.
    pub(super) fn ping(&mut self, number: u64) -> Result<()> {
        let text = ping_text(number, self.args.size);
        self.buffers.start.write(0, &text)?;
        self.advertise(&self.buffers.start)?;
        self.answer()?;
        self.advertise(&self.buffers.data)?;
        self.answer()?;
        let mut back = vec![0; text.len()];
        self.buffers.data.read(0, &mut back)?;
        if self.args.validate && back != text {
            let at = back.iter().zip(&text).position(|(a, b)| a != b).unwrap_or(0);
            return Err(Failure::run(format!("ping {number} came back with another byte at {at}")));
        }
        self.show("ping data", &back);
        Ok(())
    }

    /// Serves pings until the peer disconnects; returns how many it were.
    pub(super) fn serve(&mut self) -> Result<u64> {
        let mut pings = 0;
        loop {
            let Some(source) = self.info()? else { return Ok(pings) };
            let read = SendOp::Read { remote_addr: source.addr, rkey: source.rkey };
            self.rdma(read, source.len)?;
            let mut data = vec![0; source.len as usize];
            self.buffers.data.read(0, &mut data)?;
            self.show("server ping data", &data);
            if let Err(PeerLeft) = self.go_ahead()? {
                return Err(in_the_middle());
            }
            let Some(target) = self.info()? else { return Ok(pings) };
            let write = SendOp::Write { remote_addr: target.addr, rkey: target.rkey };
            self.rdma(write, target.len.min(source.len))?;
            pings += 1;
            // Who has this may leave before it is known here that he has.
            if let Err(PeerLeft) = self.go_ahead()? {
                return Ok(pings);
            }
        }
    }

    fn show(&self, what: &str, data: &[u8]) {
        if self.args.verbose {
            let text = data.split(|&byte| byte == 0).next().unwrap_or_default();
            let line = format!("{what}: {}", String::from_utf8_lossy(text));
            // Stdout is the document's.
            if self.args.common.json { eprintln!("{line}") } else { println!("{line}") }
        }
    }

    fn advertise(&self, mr: &Mr) -> Result<()> {
        let mut info = [0; INFO];
        info[..8].copy_from_slice(&mr.addr().to_be_bytes());
        info[8..12].copy_from_slice(&mr.rkey().to_be_bytes());
        info[12..].copy_from_slice(&self.args.size.to_be_bytes());
        self.send(&info)
    }

    fn go_ahead(&mut self) -> Result<Result<(), PeerLeft>> {
        self.send(&[0; INFO])?;
        self.wait(SEND)
    }

    fn send(&self, bytes: &[u8; INFO]) -> Result<()> {
        self.buffers.messages.write(INFO, bytes)?;
        Ok(self.qp.post_send(&[SendWr::send(SEND, &[self.buffers.messages.sge(INFO..)?])])?)
    }

    /// The client's message is sent, and the server's go-ahead has come.
    fn answer(&mut self) -> Result<()> {
        if let Err(PeerLeft) = self.wait(SEND)? {
            // Who answers has had the message, and may have left before that was acknowledged.
            return if self.has_come(RECV) { Ok(()) } else { Err(in_the_middle()) };
        }
        if let Err(PeerLeft) = self.wait(RECV)? {
            return Err(in_the_middle());
        }
        self.post_recv()
    }

    /// What the client advertises next; `None` if it disconnects.
    fn info(&mut self) -> Result<Option<Info>> {
        if let Err(PeerLeft) = self.wait(RECV)? {
            return Ok(None);
        }
        let mut bytes = [0; INFO];
        self.buffers.messages.read(0, &mut bytes)?;
        self.post_recv()?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let info = Info { addr: u64::from(word(0)) << 32 | u64::from(word(4)), rkey: word(8), len: word(12) };
        if info.len > self.args.size {
            return Err(Failure::run(format!(
                "the client's pings have {} bytes, this end takes {}",
                info.len, self.args.size
            ))
            .hint("give both ends the same -S"));
        }
        Ok(Some(info))
    }

    fn rdma(&mut self, op: SendOp, len: u32) -> Result<()> {
        self.qp.post_send(&[SendWr::new(RDMA, op, &[self.buffers.data.sge(..len as usize)?])])?;
        match self.wait(RDMA)? {
            Ok(()) => Ok(()),
            Err(PeerLeft) => Err(in_the_middle()),
        }
    }

    /// Waits for a completion of one kind, or for the end of the connection.
    fn wait(&mut self, kind: u64) -> Result<Result<(), PeerLeft>> {
        let mut wcs = [WorkCompletion::default(); BATCH];
        let mut deadline = Instant::now() + self.args.timeout;
        loop {
            if self.has_come(kind) {
                return Ok(Ok(()));
            }
            let taken = self.buffers.completions.take(&mut wcs)?;
            // What has come, has come, whatever else failed.
            self.early.extend(wcs[..taken].iter().filter(|wc| wc.is_ok()).map(|wc| wc.wr_id));
            if let Some(wc) = wcs[..taken].iter().find(|wc| !wc.is_ok()) {
                // The connection may have ended, which says more.
                return match self.ended(Duration::from_millis(500))? {
                    true => Ok(Err(PeerLeft)),
                    false => Err(Failure::completion("a work request", wc)),
                };
            }
            if taken != 0 {
                deadline = Instant::now() + self.args.timeout;
            } else if self.ended(Duration::ZERO)? {
                return Ok(Err(PeerLeft));
            } else if kind != RECV && Instant::now() > deadline {
                return Err(Failure::run(format!("nothing came for {:?}", self.args.timeout)));
            }
        }
    }

    /// Whether a completion of this kind has come that nobody has waited for yet.
    fn has_come(&mut self, kind: u64) -> bool {
        let at = self.early.iter().position(|&early| early == kind);
        at.map(|at| self.early.swap_remove(at)).is_some()
    }

    /// Whether the connection ends within some time.
    fn ended(&self, within: Duration) -> Result<bool> {
        let event = if within.is_zero() { self.channel.try_next()? } else { self.channel.next_timeout(within)? };
        match event.as_ref().map(ferroce::cm::Event::kind) {
            None | Some(EventKind::Established | EventKind::TimewaitExit) => Ok(false),
            Some(EventKind::Disconnected(DisconnectCause::PeerLost)) => {
                Err(Failure::run("the peer does not answer any more"))
            }
            Some(EventKind::Disconnected(_)) => Ok(true),
            Some(kind) => Err(unexpected("the peer", kind)),
        }
    }
}

fn in_the_middle() -> Failure {
    Failure::run("the peer disconnected in the middle of a ping")
}

/// What a ping carries: its number, then letters that go round, then a zero, as rping makes it.
fn ping_text(number: u64, size: u32) -> Vec<u8> {
    let mut text = format!("rdma-ping-{number}: ").into_bytes();
    let letters = (b'A'..=b'z').cycle().skip((number % 58) as usize);
    text.extend(letters.take((size as usize).saturating_sub(text.len())));
    text.truncate(size as usize);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_fills_its_buffer_and_ends_in_zero() {
        for size in [16, 17, 64, 65_535] {
            let text = ping_text(1_234_567, size);
            assert_eq!((text.len(), text.last()), (size as usize, Some(&0)));
            assert!(text.starts_with(b"rdma-ping-12345"));
        }
        assert_ne!(ping_text(1, 64)[13..], ping_text(2, 64)[13..]);
    }
}
