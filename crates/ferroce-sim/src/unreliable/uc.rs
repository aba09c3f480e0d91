use super::inbox::{Inbox, RECEIVE};
use super::{ROUNDS, is_perfect, key, network};
use crate::arena::Area;
use crate::failure::{Checked, Failure, ensure};
use crate::pattern::{CONSUMED, message, pieces};
use crate::scenario::{Options, Outcome};
use crate::watch::Watch;
use ferroce_soft::memory::{MemoryNetwork, Random};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Context, Cq, Mtu, Pd, Qp, QpAttr, QpCap, QpInitAttr, QpState, QpType, SendFlags, SendOp, SendWr,
    Sge, WcFlags, WcOpcode, WcStatus, WorkCompletion,
};
use std::net::IpAddr;
use std::time::Duration;

struct Plan {
    pairs: usize,
    ops: usize,
    mtu: Mtu,
    max_len: usize,
    depth: usize,
    max_sge: u32,
    /// Receives are posted as soon as there is room.
    eager: bool,
}

struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    inbox: Inbox,
    /// Source of all its messages, one after the other.
    local: Area,
    /// Where the peer writes: a place of its own for each message.
    target: Area,
    sent: Vec<Message>,
    /// Sends whose completion was polled.
    completed: usize,
    /// The peer's messages up to here arrived, or never will.
    received: usize,
    arrived: u64,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    len: usize,
    op: Op,
    imm: u32,
    arrived: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
}

struct World {
    plan: Plan,
    random: Random,
    network: MemoryNetwork,
    perfect: bool,
    watch: Watch,
    ends: Vec<End>,
    outcome: Outcome,
}

pub(super) fn run(seed: u64, mut random: Random, options: &Options) -> Result<Outcome, Failure> {
    let config = network(seed, &mut random);
    let mtu = *random.pick(&Mtu::ALL);
    let plan = Plan {
        pairs: random.within(1, 3) as usize,
        ops: random.within(4, 40) as usize,
        mtu,
        max_len: mtu.bytes() as usize * *random.pick(&[1, 2, 6]),
        depth: *random.pick(&[1, 2, 16]),
        max_sge: *random.pick(&[1, 3]),
        eager: random.chance(0.7),
    };
    let perfect = is_perfect(&config.faults);
    let network = MemoryNetwork::new(config);
    let watch = Watch::new(&network, options);
    let mut world = World { plan, random, network, perfect, watch, ends: Vec::new(), outcome: Outcome::default() };
    for _ in 0..world.plan.pairs {
        world.add_pair()?;
    }
    world.traffic()?;
    world.finish()
}

impl World {
    fn add_pair(&mut self) -> Checked {
        let first = self.ends.len();
        for _ in 0..2 {
            let ip = IpAddr::from([10, 0, 0, self.random.within(1, 2) as u8]);
            let context = self.network.host(ip).open()?;
            let pd = context.alloc_pd()?;
            let cq = context.create_cq(1024, None)?;
            let Plan { ops, max_len, depth, max_sge, .. } = self.plan;
            let cap = QpCap {
                max_send_wr: depth as u32,
                max_recv_wr: depth as u32,
                max_send_sge: max_sge,
                max_recv_sge: max_sge,
                max_inline_data: 0,
            };
            let qp = pd.create_qp(&QpInitAttr { cap, ..QpInitAttr::new(QpType::Uc, &cq) })?;
            qp.modify(&QpAttr::init(Access::REMOTE_WRITE))?;
            let room = ops * (max_len + 8 * max_sge as usize);
            self.ends.push(End {
                inbox: Inbox::new(&pd, depth, max_len, max_sge)?,
                local: Area::new(&pd, room, 0, Access::empty())?,
                target: Area::new(&pd, room, CONSUMED, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
                sent: Vec::new(),
                completed: 0,
                received: 0,
                arrived: 0,
                context,
                pd,
                cq,
                qp,
            });
        }
        let psn = 0xff_fff0 + self.random.below(16) as u32;
        for side in 0..2 {
            let (end, peer) = (&self.ends[first + side], &self.ends[first + 1 - side]);
            let ah_attr = AhAttr::roce(peer.context.query_gid(1, 0)?.gid, 0);
            end.qp.modify(&QpAttr::rtr_uc(ah_attr, self.plan.mtu, peer.qp.qp_num(), psn))?;
            end.qp.modify(&QpAttr::rts_unreliable(psn))?;
        }
        Ok(())
    }

    fn slot_len(&self) -> usize {
        self.plan.max_len + 8 * self.plan.max_sge as usize
    }

    fn traffic(&mut self) -> Checked {
        let mut rest = false;
        for _ in 0..ROUNDS {
            let over = self.ends.iter().all(|end| end.completed == self.plan.ops);
            if over && rest {
                return Ok(());
            }
            let end = self.random.below(self.ends.len() as u64) as usize;
            match self.random.below(8) {
                0..=2 => self.post_sends(end)?,
                3 => {
                    // Without a receive, messages are lost even on a perfect network.
                    let chance = if self.plan.eager || self.perfect { 1.0 } else { 0.2 };
                    if self.random.chance(chance) {
                        let End { qp, inbox, .. } = &mut self.ends[end];
                        inbox.post_all(qp, &mut self.random)?;
                    }
                }
                4 => while self.poll(end)? {},
                _ => rest = (0..self.random.below(20)).any(|_| !self.network.step()),
            }
        }
        Err(Failure::new("traffic does not end"))
    }

    fn post_sends(&mut self, index: usize) -> Checked {
        let slot_len = self.slot_len();
        for _ in 0..self.random.within(1, 4) {
            let end = &self.ends[index];
            let peer = &self.ends[index ^ 1];
            let number = end.sent.len();
            if number == self.plan.ops || number - end.completed == self.plan.depth {
                break;
            }
            // On a perfect network the sender waits until there is a receive for sure, so that nothing is lost.
            let waits = |message: &&Message| message.op != Op::Write && !message.arrived;
            let in_flight = end.sent.iter().filter(waits).count();
            if self.perfect && in_flight >= peer.inbox.posted() {
                break;
            }
            let mut len = match self.random.below(4) {
                0 => self.random.below(16) as usize,
                1 => self.plan.mtu.bytes() as usize,
                _ => self.random.below(self.plan.max_len as u64 + 1) as usize,
            };
            let op = *self.random.pick(&[Op::Send, Op::SendImm, Op::Write, Op::WriteImm]);
            if op == Op::Send {
                // Long enough that no two messages are the same.
                len = len.max(12);
            }
            let message = Message { len, op, imm: self.random.next_u64() as u32, arrived: false };
            let base = number * slot_len;
            let count = self.random.within(1, u64::from(self.plan.max_sge)) as usize;
            let pieces = pieces(&mut self.random, len, count);
            let bytes = self::message(key(index, number), len);
            let mut rest = &bytes[..];
            let mut sges: Vec<Sge> = Vec::new();
            for piece in &pieces {
                let (part, tail) = rest.split_at(piece.len());
                end.local.write(base + piece.start, part)?;
                sges.push(end.local.sge(base + piece.start..base + piece.end));
                rest = tail;
            }
            let (remote_addr, rkey, imm) = (peer.target.addr() + base as u64, peer.target.key(), message.imm);
            let send_op = match op {
                Op::Send => SendOp::Send,
                Op::SendImm => SendOp::SendImm(imm),
                Op::Write => SendOp::Write { remote_addr, rkey },
                Op::WriteImm => SendOp::WriteImm { remote_addr, rkey, imm },
            };
            let wr = SendWr::new(number as u64, send_op, &sges).flags(SendFlags::SIGNALED);
            let posted = end.qp.post_send(&[wr]);
            ensure!(posted.is_ok(), "posting {message:?}: {posted:?}");
            self.ends[index].sent.push(message);
        }
        Ok(())
    }

    fn poll(&mut self, index: usize) -> Checked<bool> {
        let mut wcs = [WorkCompletion::default(); 3];
        let polled = self.ends[index].cq.poll(&mut wcs)?;
        for wc in &wcs[..polled] {
            self.watch.completion(wc);
            let done = if wc.wr_id & RECEIVE != 0 { self.receive(index, wc) } else { self.sent(index, wc) };
            done.map_err(|Failure(why)| Failure(format!("end {index}: {wc:?}: {why}")))?;
        }
        Ok(polled != 0)
    }

    fn sent(&mut self, index: usize, wc: &WorkCompletion) -> Checked {
        let end = &mut self.ends[index];
        ensure!(wc.is_ok() && wc.wr_id == end.completed as u64, "send {} should complete with success", end.completed);
        end.completed += 1;
        self.outcome.completed += 1;
        Ok(())
    }

    /// A message arrived: one that was sent after all that arrived before it.
    fn receive(&mut self, index: usize, wc: &WorkCompletion) -> Checked {
        ensure!(wc.status == WcStatus::Success, "an unreliable connection drops what it cannot receive");
        let slot_len = self.slot_len();
        let write = wc.opcode == WcOpcode::RecvRdmaWithImm;
        let len = wc.byte_len as usize;
        let end = &mut self.ends[index];
        let bytes = end.inbox.take(wc.wr_id, if write { 0 } else { len })?;
        let with_imm = wc.flags == WcFlags::WITH_IMM;
        let end = &self.ends[index];
        let sent = &self.ends[index ^ 1].sent;
        let found = (end.received..sent.len()).find(|&number| {
            let message = &sent[number];
            let kind = match message.op {
                Op::Send => !write && !with_imm,
                Op::SendImm => !write && with_imm && wc.imm == message.imm,
                Op::Write => false,
                Op::WriteImm => write && with_imm && wc.imm == message.imm,
            };
            kind && len == message.len && (write || bytes == self::message(key(index ^ 1, number), len))
        });
        let Some(number) = found else {
            return Err(Failure::new(format!("no message after number {} is like this one", end.received)));
        };
        if write {
            let found = end.target.read(number * slot_len..number * slot_len + len)?;
            ensure!(found == self::message(key(index ^ 1, number), len), "write {number} is not there");
        }
        self.outcome.bytes += len as u64;
        let end = &mut self.ends[index];
        end.received = number + 1;
        end.arrived += 1;
        self.ends[index ^ 1].sent[number].arrived = true;
        Ok(())
    }

    fn finish(mut self) -> Result<Outcome, Failure> {
        ensure!(self.network.run_until_idle(Duration::from_secs(1)), "the network does not come to rest");
        let slot_len = self.slot_len();
        for index in 0..self.ends.len() {
            while self.poll(index)? {}
            let end = &self.ends[index];
            ensure!(end.qp.state() == QpState::Rts, "end {index} is in {}", end.qp.state());
            for area in [&end.local, &end.target] {
                area.check_guards()?;
            }
            end.inbox.check_guards()?;
            for (number, sent) in self.ends[index ^ 1].sent.iter().enumerate() {
                let expected = message(key(index ^ 1, number), sent.len);
                let found = end.target.read(number * slot_len..(number + 1) * slot_len)?;
                let writes = matches!(sent.op, Op::Write | Op::WriteImm);
                let whole = found[..sent.len] == expected;
                ensure!(!(writes && self.perfect) || whole, "write {number} is not there though nothing was lost");
                for (at, &byte) in found.iter().enumerate() {
                    let allowed = byte == CONSUMED || writes && expected.get(at) == Some(&byte);
                    ensure!(allowed, "byte {at} of the memory for message {number} is {byte:#04x}");
                }
                let seen = sent.arrived || sent.op == Op::Write;
                ensure!(seen || !self.perfect, "message {number} did not arrive though nothing was lost");
            }
            let counters = end.context.counters();
            for (name, value) in counters {
                let zero = ["malformed_packets", "wrong_source", "unknown_qp", "timers", "bytes_in_flight"];
                ensure!(!zero.contains(&name) || value == 0, "{name} is {value}");
            }
        }
        for index in 0..self.ends.len() {
            let end = &mut self.ends[index];
            end.qp.modify(&QpAttr::to(QpState::Err))?;
            let mut wcs = [WorkCompletion::default(); 64];
            let polled = end.cq.poll(&mut wcs)?;
            for wc in &wcs[..polled] {
                ensure!(wc.status == WcStatus::WrFlushErr, "{wc:?} after the end");
                end.inbox.flushed(wc.wr_id)?;
                self.outcome.failed += 1;
            }
            ensure!(end.inbox.posted() == 0, "{} receives were not flushed", end.inbox.posted());
            let _ = &end.pd;
        }
        let stats = self.network.stats();
        ensure!(stats.is_consistent() && stats.in_flight == 0, "the network lost count: {stats:?}");
        self.outcome.packets = stats.sent;
        self.outcome.time = self.network.now();
        self.outcome.trace = self.watch.hash();
        Ok(self.outcome)
    }
}
