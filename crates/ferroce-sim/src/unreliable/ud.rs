use super::inbox::{Inbox, RECEIVE};
use super::{ROUNDS, is_perfect, key, network};
use crate::arena::Area;
use crate::failure::{Checked, Failure, ensure};
use crate::pattern::message;
use crate::scenario::{Options, Outcome};
use crate::watch::Watch;
use ferroce_soft::memory::{MemoryFaults, MemoryNetwork, Random};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, Ah, AhAttr, Context, Cq, Mtu, Pd, Qp, QpAttr, QpCap, QpInitAttr, QpState, QpType, SendOp, SendWr, UdDest,
    WcFlags, WcStatus, WorkCompletion,
};
use ferroce_wire::{GRH_LEN, Grh};
use std::net::IpAddr;
use std::time::Duration;

const DEPTH: usize = 16;

struct End {
    ip: IpAddr,
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    qkey: u32,
    inbox: Inbox,
    local: Area,
    /// How to reach every end, this one included.
    ahs: Vec<Ah>,
    sent: Vec<Datagram>,
    completed: usize,
    /// The last datagram of each end that arrived.
    last: Vec<Option<usize>>,
}

#[derive(Clone, Copy, Debug)]
struct Datagram {
    to: usize,
    len: usize,
    imm: Option<u32>,
    /// It carries the receiver's Q_Key, so it may be delivered.
    right_key: bool,
    arrived: u32,
}

struct World {
    random: Random,
    network: MemoryNetwork,
    faults: MemoryFaults,
    perfect: bool,
    watch: Watch,
    mtu: Mtu,
    ops: usize,
    ends: Vec<End>,
    outcome: Outcome,
}

pub(super) fn run(seed: u64, mut random: Random, options: &Options) -> Result<Outcome, Failure> {
    let mut config = network(seed, &mut random);
    config.mtu = *random.pick(&Mtu::ALL);
    let faults = config.faults;
    let network = MemoryNetwork::new(config.clone());
    let mut world = World {
        ops: random.within(4, 60) as usize,
        watch: Watch::new(&network, options),
        perfect: is_perfect(&faults),
        mtu: config.mtu,
        ends: Vec::new(),
        outcome: Outcome::default(),
        random,
        network,
        faults,
    };
    let count = world.random.within(2, 5) as usize;
    for _ in 0..count {
        world.add_end()?;
    }
    let gids: Vec<_> = world.ends.iter().map(|end| end.ip.into()).collect();
    for end in &mut world.ends {
        end.ahs = gids.iter().map(|&gid| end.pd.create_ah(&AhAttr::roce(gid, 0))).collect::<Result<_, _>>()?;
        end.last = vec![None; count];
    }
    world.traffic()?;
    world.finish()
}

impl World {
    fn add_end(&mut self) -> Checked {
        // Every run has its own mixture of hosts with one end and with several.
        let ip = IpAddr::from([10, 0, 0, self.random.within(1, 3) as u8]);
        let context = self.network.host(ip).open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024, None)?;
        let cap = QpCap {
            max_send_wr: DEPTH as u32,
            max_recv_wr: DEPTH as u32,
            max_send_sge: 1,
            max_recv_sge: 3,
            max_inline_data: 64,
        };
        let qp = pd.create_qp(&QpInitAttr { cap, ..QpInitAttr::new(QpType::Ud, &cq) })?;
        let qkey = self.random.below(1 << 31) as u32;
        qp.modify(&QpAttr::init_ud(qkey))?;
        qp.modify(&QpAttr::to(QpState::Rtr))?;
        qp.modify(&QpAttr::rts_unreliable(self.random.below(1 << 24) as u32))?;
        let mtu = self.mtu.bytes() as usize;
        self.ends.push(End {
            inbox: Inbox::new(&pd, DEPTH, GRH_LEN + mtu, 3)?,
            local: Area::new(&pd, DEPTH * mtu, 0, Access::empty())?,
            ahs: Vec::new(),
            sent: Vec::new(),
            completed: 0,
            last: Vec::new(),
            ip,
            context,
            pd,
            cq,
            qp,
            qkey,
        });
        Ok(())
    }

    fn traffic(&mut self) -> Checked {
        let mut rest = false;
        for _ in 0..ROUNDS {
            if rest && self.ends.iter().all(|end| end.completed == self.ops) {
                return Ok(());
            }
            let end = self.random.below(self.ends.len() as u64) as usize;
            match self.random.below(8) {
                0..=2 => self.post_sends(end)?,
                3 => {
                    let End { qp, inbox, .. } = &mut self.ends[end];
                    inbox.post_all(qp, &mut self.random)?;
                }
                4 => while self.poll(end)? {},
                _ => rest = (0..self.random.below(20)).any(|_| !self.network.step()),
            }
        }
        Err(Failure::new("traffic does not end"))
    }

    /// How many datagrams to `end` did not arrive, though they may still.
    fn on_their_way(&self, end: usize) -> usize {
        let sent = self.ends.iter().flat_map(|from| &from.sent);
        sent.filter(|datagram| datagram.to == end && datagram.right_key && datagram.arrived == 0).count()
    }

    fn post_sends(&mut self, index: usize) -> Checked {
        let mtu = self.mtu.bytes() as usize;
        for _ in 0..self.random.within(1, 4) {
            let end = &self.ends[index];
            let number = end.sent.len();
            let to = self.random.below(self.ends.len() as u64) as usize;
            let full = number == self.ops || number - end.completed == DEPTH;
            // On a perfect network nothing is sent that has no receive waiting, so that all of it must arrive.
            if full || self.perfect && self.on_their_way(to) >= self.ends[to].inbox.posted() {
                break;
            }
            // At least 8 bytes or immediate data, so that no two datagrams are the same.
            let imm = self.random.chance(0.5).then(|| self.random.next_u64() as u32);
            let least = if imm.is_some() { 0 } else { 8 };
            let len = self.random.within(least, mtu as u64) as usize;
            let right_key = self.random.chance(0.95);
            let peer = &self.ends[to];
            let bytes = message(key(index, number), len);
            let base = (number % DEPTH) * mtu;
            let inline = len <= 64 && self.random.chance(0.5);
            let sges = [end.local.sge(base..base + len)];
            let op = imm.map_or(SendOp::Send, SendOp::SendImm);
            let wr = if inline {
                SendWr::inline(number as u64, op, &bytes)
            } else {
                end.local.write(base, &bytes)?;
                SendWr::new(number as u64, op, &sges)
            };
            let qkey = if right_key { peer.qkey } else { peer.qkey ^ 1 };
            let posted = end.qp.post_send(&[wr.to(UdDest { ah: &end.ahs[to], qpn: peer.qp.qp_num(), qkey })]);
            ensure!(posted.is_ok(), "posting a datagram of {len} bytes: {posted:?}");
            self.ends[index].sent.push(Datagram { to, len, imm, right_key, arrived: 0 });
        }
        Ok(())
    }

    fn poll(&mut self, index: usize) -> Checked<bool> {
        let mut wcs = [WorkCompletion::default(); 3];
        let polled = self.ends[index].cq.poll(&mut wcs)?;
        for wc in &wcs[..polled] {
            self.watch.completion(wc);
            let end = &mut self.ends[index];
            if wc.wr_id & RECEIVE != 0 {
                let received = self.receive(index, wc);
                received.map_err(|Failure(why)| Failure(format!("end {index}: {wc:?}: {why}")))?;
            } else {
                let right = wc.is_ok() && wc.wr_id == end.completed as u64;
                ensure!(right, "end {index}: {wc:?}: send {} should complete with success", end.completed);
                end.completed += 1;
                self.outcome.completed += 1;
            }
        }
        Ok(polled != 0)
    }

    fn receive(&mut self, index: usize, wc: &WorkCompletion) -> Checked {
        ensure!(wc.status == WcStatus::Success && wc.flags.contains(WcFlags::GRH), "a datagram with its GRH");
        let bytes = self.ends[index].inbox.take(wc.wr_id, wc.byte_len as usize)?;
        let Some((grh, payload)) = bytes.split_first_chunk::<GRH_LEN>() else {
            return Err(Failure::new("it is shorter than a GRH"));
        };
        let grh = Grh::parse(grh).map_err(Failure::new)?;
        ensure!(grh.ip.dst() == self.ends[index].ip, "its GRH says that it was for {}", grh.ip.dst());
        let from = self.ends.iter().position(|end| end.qp.qp_num() == wc.src_qp && end.ip == grh.ip.src());
        let Some(from) = from else { return Err(Failure::new(format!("nobody sent it: {grh:?}"))) };
        let found = self.ends[from].sent.iter().enumerate().position(|(number, datagram)| {
            datagram.to == index
                && datagram.len == payload.len()
                && datagram.imm == wc.imm_data()
                && payload == message(key(from, number), payload.len())
        });
        let Some(number) = found else { return Err(Failure::new("it is none of those that were sent")) };
        let MemoryFaults { duplicate, reorder, .. } = self.faults;
        let datagram = &mut self.ends[from].sent[number];
        ensure!(datagram.right_key, "datagram {number} carries a wrong Q_Key");
        datagram.arrived += 1;
        ensure!(datagram.arrived <= 1 + u32::from(duplicate > 0.0), "datagram {number} arrived too often");
        let last = self.ends[index].last[from].replace(number);
        let in_order = last.is_none_or(|last| last < number);
        ensure!(in_order || duplicate > 0.0 || reorder > 0.0, "datagram {number} arrived after {last:?}");
        self.outcome.bytes += payload.len() as u64;
        Ok(())
    }

    fn finish(mut self) -> Result<Outcome, Failure> {
        ensure!(self.network.run_until_idle(Duration::from_secs(1)), "the network does not come to rest");
        let mut wrong_keys = 0;
        for index in 0..self.ends.len() {
            while self.poll(index)? {}
            let end = &self.ends[index];
            ensure!(end.qp.state() == QpState::Rts, "end {index} is in {}", end.qp.state());
            end.local.check_guards()?;
            end.inbox.check_guards()?;
            for (name, value) in end.context.counters() {
                let zero = ["malformed_packets", "unknown_qp", "timers", "bytes_in_flight"];
                ensure!(!zero.contains(&name) || value == 0, "{name} is {value}");
                wrong_keys += if name == "qkey_violation" { value } else { 0 };
            }
        }
        if self.perfect {
            let sent = self.ends.iter().flat_map(|end| &end.sent);
            let lost = sent.clone().filter(|datagram| datagram.right_key && datagram.arrived != 1).count();
            ensure!(lost == 0, "{lost} datagrams did not arrive though nothing was lost");
            let wrong = sent.filter(|datagram| !datagram.right_key).count() as u64;
            ensure!(wrong == wrong_keys, "{wrong_keys} wrong keys were noticed of {wrong}");
        }
        let stats = self.network.stats();
        ensure!(stats.is_consistent() && stats.in_flight == 0, "the network lost count: {stats:?}");
        self.outcome.packets = stats.sent;
        self.outcome.time = self.network.now();
        self.outcome.trace = self.watch.hash();
        Ok(self.outcome)
    }
}
