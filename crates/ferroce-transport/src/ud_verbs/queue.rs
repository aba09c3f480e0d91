//! The queue pair: buffers for datagrams on their way out and in.

use super::options::UdOptions;
use crate::ud::PeerAddress;
use ferroce_verbs::{
    Access, AhLease, CompChannel, Context, Cq, Gid, Mr, Pd, Qp, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr,
    Result, SendFlags, SendOp, SendWr, Sge, UdDest, WcStatus, WorkCompletion,
};

/// The Q_Key of UCX's UD transport.
const QKEY: u32 = 0x1ee7_a330;
/// Bytes in front of a received datagram.
const GRH_LEN: usize = 40;
/// Bytes of a receive: the longest datagram that there can be, whatever this end's MTU is. One that does not fit would break the
/// queue pair (IBTA 10.7.3.1), at the whim of whoever sent it.
const RECEIVE_LEN: usize = GRH_LEN + 4096;
/// Datagrams posted at once, and completions taken at once.
pub(super) const BATCH: usize = 16;
/// Datagrams between two that ask for a completion.
const SIGNAL_EVERY: u64 = 16;

/// A datagram on its way out: with which address handle, where to, and what.
pub(super) type Datagram = (AhLease, PeerAddress, Vec<u8>);

/// Both directions of the queue pair.
pub(super) struct Queue {
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    sends: Mr,
    receives: Mr,
    mtu: usize,
    /// What each slot's datagram is sent with, until it is sent: an address handle is never freed under a sender.
    leases: Box<[Option<AhLease>]>,
    inline: usize,
    /// Datagrams posted, and those of them that are complete.
    posted: u64,
    complete: u64,
    /// The device did not take all of the last list: nobody may have asked for the completion of what it took.
    unasked: bool,
    buffer: Box<[u8]>,
    /// Completions of received datagrams, of which arming found some that nobody has looked at; and room for those of sent ones.
    stash: [WorkCompletion; BATCH],
    stashed: usize,
    sent: [WorkCompletion; BATCH],
    /// Receives that are to be posted again: by whoever looks for datagrams next, as the program waits for those that came.
    used: Vec<u64>,
    /// Receives that the device would not take back; they are offered again.
    unposted: Vec<u64>,
}

/// What a look at the completions found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub(super) datagrams: usize,
    pub(super) errors: usize,
    /// Of the datagrams those that were for another address.
    pub(super) elsewhere: usize,
}

impl Queue {
    /// Completions are reported on `channel`, when armed.
    pub(super) fn open(
        context: &Context,
        pd: &Pd,
        channel: &CompChannel,
        options: &UdOptions,
        mtu: usize,
    ) -> Result<Self> {
        let (sends, receives) = (options.send_depth.max(16), options.receive_depth.max(16));
        let send_cq = context.create_cq(sends, Some(channel))?;
        let recv_cq = context.create_cq(receives, Some(channel))?;
        let mut init = QpInitAttr::new(QpType::Ud, &send_cq);
        init.recv_cq = recv_cq.clone();
        let inline = context.query_device()?.max_inline_data.min(256);
        init.cap = QpCap { max_send_wr: sends, max_recv_wr: receives, max_inline_data: inline, ..QpCap::default() };
        let qp = pd.create_qp(&init)?;
        let queue = Self {
            sends: pd.alloc_mr(sends as usize * mtu, Access::empty())?,
            receives: pd.alloc_mr(receives as usize * RECEIVE_LEN, Access::LOCAL_WRITE)?,
            leases: (0..sends).map(|_| None).collect(),
            buffer: vec![0; RECEIVE_LEN].into(),
            inline: inline as usize,
            qp,
            send_cq,
            recv_cq,
            mtu,
            posted: 0,
            complete: 0,
            unasked: false,
            stash: [WorkCompletion::default(); BATCH],
            stashed: 0,
            sent: [WorkCompletion::default(); BATCH],
            used: Vec::with_capacity(BATCH),
            unposted: Vec::new(),
        };
        let port = QpAttr { port_num: Some(options.port), ..QpAttr::init_ud(QKEY) };
        queue.qp.modify(&port)?;
        queue.qp.modify(&QpAttr::to(QpState::Rtr))?;
        queue.qp.modify(&QpAttr::rts_unreliable(0))?;
        for slot in 0..u64::from(receives) {
            queue.post_receive(slot)?;
        }
        Ok(queue)
    }

    pub(super) fn qpn(&self) -> u32 {
        self.qp.qp_num()
    }

    /// Most bytes that go inline.
    pub(super) fn inline(&self) -> usize {
        self.inline
    }

    /// Whether receives wait to be posted.
    pub(super) fn is_short(&self) -> bool {
        !self.unposted.is_empty()
    }

    /// Posts the receives that were used, and those that could not be posted before, as far as that is possible now.
    pub(super) fn post_again(&mut self) -> Result<()> {
        self.unposted.append(&mut self.used);
        while let Some(&slot) = self.unposted.last() {
            self.post_receive(slot)?;
            self.unposted.pop();
        }
        Ok(())
    }

    fn post_receive(&self, slot: u64) -> Result<()> {
        let start = slot as usize * RECEIVE_LEN;
        let sge = self.receives.sge(start..start + RECEIVE_LEN)?;
        self.qp.post_recv(&[RecvWr::new(slot, &[sge])]).map_err(|failed| failed.error)
    }

    /// How many more datagrams can be posted.
    pub(super) fn room(&self) -> usize {
        self.leases.len() - (self.posted - self.complete) as usize
    }

    /// Whether another datagram can be posted.
    pub(super) fn has_room(&self) -> bool {
        self.room() != 0
    }

    /// Posts datagrams, at most [`BATCH`] and as many as there is room for, and empties the list; returns how many the device did not take. Unless
    /// `more` follow at once the completion of the last is asked for: what an idle interface sent last must not keep its address
    /// handle. Where the device stopped before that, the next asks: what was not taken comes again, or its endpoint ends, and says so.
    pub(super) fn post(&mut self, list: &mut Vec<Datagram>, more: bool) -> usize {
        // One alone is not to cost what many do.
        if list.len() == 1 { self.post_most::<1>(list, more) } else { self.post_most::<BATCH>(list, more) }
    }

    fn post_most<const MOST: usize>(&mut self, list: &mut Vec<Datagram>, more: bool) -> usize {
        let (count, slots) = (list.len(), self.leases.len() as u64);
        let mut sges = [Sge::default(); MOST];
        for (at, ((_, _, packet), sge)) in list.iter().zip(&mut sges).enumerate() {
            if packet.len() > self.inline {
                let start = self.slot(self.posted + at as u64) * self.mtu;
                let written = self.sends.write(start, packet);
                // A packet is no longer than its slot. What is of no memory the device refuses.
                *sge = written.and_then(|()| self.sends.sge(start..start + packet.len())).unwrap_or_default();
            }
        }
        let mut wrs = [SendWr::inline(0, SendOp::Send, &[]); MOST];
        for (at, ((ah, to, packet), wr)) in list.iter().zip(&mut wrs).enumerate() {
            let number = self.posted + at as u64;
            *wr = match packet.len() <= self.inline {
                true => SendWr::inline(number, SendOp::Send, packet),
                false => SendWr::send(number, std::slice::from_ref(&sges[at])),
            };
            // The last that fits has to say when there is room again.
            let full = number + 1 - self.complete == slots;
            let last = at + 1 == count && !more;
            let asks = at == 0 && self.unasked;
            if !(full || last || asks || number % SIGNAL_EVERY == SIGNAL_EVERY - 1) {
                wr.flags = SendFlags::empty();
            }
            wr.ud = Some(UdDest { ah, qpn: to.qpn, qkey: QKEY });
        }
        let taken = match self.qp.post_send(&wrs[..count]) {
            Ok(()) => count,
            Err(failed) => failed.index,
        };
        self.unasked = taken < count;
        for (lease, _, _) in list.drain(..).take(taken) {
            let slot = self.slot(self.posted);
            self.leases[slot] = Some(lease);
            self.posted += 1;
        }
        count - taken
    }

    /// Where the datagram of a number is.
    fn slot(&self, number: u64) -> usize {
        (number % self.leases.len() as u64) as usize
    }

    /// Takes what was sent out of the queue, and lets go of its address handles. After an error, which ends a UD queue pair's sending (SQE, IBTA
    /// 10.3.1), it can send again.
    pub(super) fn reap(&mut self) -> Result<Found> {
        let mut found = Found::default();
        // A look at a completion queue costs something, also when it is empty.
        while self.complete != self.posted {
            let count = self.send_cq.poll(&mut self.sent)?;
            for at in 0..count {
                let wc = &self.sent[at];
                let last = wc.wr_id;
                found.errors += usize::from(!wc.is_ok());
                // Datagrams of one queue pair complete in order, those included that do not say so.
                while self.complete <= last {
                    let slot = self.slot(self.complete);
                    self.leases[slot] = None;
                    self.complete += 1;
                    found.datagrams += 1;
                }
            }
            if count < BATCH {
                break;
            }
        }
        if found.errors != 0 && self.qp.state() == QpState::Sqe {
            self.qp.modify(&QpAttr::to(QpState::Rts))?;
        }
        Ok(found)
    }

    /// Hands at most one batch of received datagrams to `take`: who sent it, and what. Says what it found also if something failed.
    pub(super) fn receive(&mut self, local: Gid, mut take: impl FnMut(PeerAddress, &[u8])) -> (Found, Result<()>) {
        let outcome = self.post_again();
        let mut count = std::mem::take(&mut self.stashed);
        if count == 0 {
            match self.recv_cq.poll(&mut self.stash) {
                Ok(polled) => count = polled,
                Err(error) => return (Found::default(), Err(error)),
            }
        }
        let mut found = Found { datagrams: count, ..Found::default() };
        for at in 0..count {
            let wc = self.stash[at];
            let len = (wc.byte_len as usize).min(RECEIVE_LEN);
            let start = wc.wr_id as usize * RECEIVE_LEN;
            if !wc.is_ok() || len < GRH_LEN || self.receives.read(start, &mut self.buffer[..len]).is_err() {
                found.errors += 1;
            } else if let Some((grh, packet)) = self.buffer[..len].split_first_chunk::<GRH_LEN>() {
                let (gid, dgid) = Gid::of_grh(grh);
                // A datagram to another address of this port is for another interface's peer (`UD_ETH_DGID_CHECK` of UCX).
                if dgid == local {
                    take(PeerAddress { gid, qpn: wc.src_qp }, packet);
                } else {
                    found.elsewhere += 1;
                }
            }
            // Whatever came of it, the buffer is the device's again soon. Only a queue pair that is over gives it back at once.
            if wc.status == WcStatus::WrFlushErr {
                continue;
            }
            self.used.push(wc.wr_id);
        }
        (found, outcome)
    }

    /// Asks for an event at the next completion.
    pub(super) fn arm(&self) -> Result<()> {
        self.recv_cq.req_notify(false)?;
        self.send_cq.req_notify(false)
    }

    /// Whether datagrams were received that nobody has looked at.
    pub(super) fn has_received(&mut self) -> Result<bool> {
        if self.stashed == 0 {
            self.stashed = self.recv_cq.poll(&mut self.stash)?;
        }
        Ok(self.stashed != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
    use ferroce_verbs::provider::Device;
    use ferroce_verbs::{AhAttr, Sge};
    use std::net::IpAddr;
    use std::time::Duration;

    /// Two queues of one host, and the way to it.
    struct Fixture {
        network: MemoryNetwork,
        a: Queue,
        b: Queue,
        local: Gid,
        lease: AhLease,
        /// The same of another protection domain.
        foreign: AhLease,
    }

    impl Fixture {
        fn new() -> Self {
            let network = MemoryNetwork::new(MemoryConfig::default());
            let context = network.host(IpAddr::from([10, 0, 0, 1])).open().unwrap();
            let pd = context.alloc_pd().unwrap();
            let channel = context.create_comp_channel().unwrap();
            let options = UdOptions { send_depth: 16, receive_depth: 16, ..UdOptions::default() };
            let open = || Queue::open(&context, &pd, &channel, &options, 1024).unwrap();
            let (a, b) = (open(), open());
            let entry = context.gid_table(1).unwrap()[0].clone();
            let get = |pd| context.ah_cache().unwrap().get(pd, &AhAttr::roce(entry.gid, entry.index)).unwrap();
            let (lease, foreign) = (get(&pd), get(&context.alloc_pd().unwrap()));
            Self { network, a, b, local: entry.gid, lease, foreign }
        }

        fn send(&mut self, body: &[u8]) {
            let to = PeerAddress { gid: self.local, qpn: self.b.qpn() };
            let mut list = vec![(self.lease.clone(), to, body.to_vec())];
            assert_eq!(self.a.post(&mut list, false), 0);
            self.network.run_until_idle(Duration::from_secs(1));
            self.a.reap().unwrap();
        }

        fn received(&mut self) -> usize {
            self.network.run_until_idle(Duration::from_secs(1));
            let mut count = 0;
            while let (Found { datagrams: 1.., .. }, outcome) = self.b.receive(self.local, |_, _| count += 1) {
                outcome.unwrap();
            }
            count
        }
    }

    /// IBTA 10.3.1: an error of a send stops the sending of a UD queue pair (SQE), and no more than that, until somebody says that it goes on.
    #[test]
    fn an_error_of_a_send_does_not_end_all_sending() {
        let mut it = Fixture::new();
        for round in 0..3 {
            it.send(b"before");
            let nobody = [Sge { addr: 0, length: 64, lkey: 0xdead_beef }];
            let dest = UdDest { ah: &it.lease, qpn: it.b.qpn(), qkey: QKEY };
            let wr = SendWr::send(it.a.posted, &nobody).to(dest).flags(SendFlags::SIGNALED);
            it.a.qp.post_send(&[wr]).unwrap();
            it.a.posted += 1;
            it.network.run_until_idle(Duration::from_secs(1));
            assert_eq!(it.a.qp.state(), QpState::Sqe, "the device behaves");
            assert_eq!(it.a.reap().unwrap().errors, 1);
            for _ in 0..20 {
                it.send(b"afterwards");
            }
            assert_eq!(
                (it.received(), it.a.qp.state()),
                (16, QpState::Rts),
                "round {round}: as many as it has receives"
            );
            assert_eq!(it.a.posted, it.a.complete);
        }
    }

    /// What went out before something that the device refuses may ask for no completion: the next asks.
    #[test]
    fn a_list_that_is_taken_in_part_keeps_no_address_handles() {
        let mut it = Fixture::new();
        let foreign = it.foreign.clone();
        let to = PeerAddress { gid: it.local, qpn: it.b.qpn() };
        let mut list: Vec<Datagram> = [&it.lease, &it.lease, &foreign, &it.lease]
            .into_iter()
            .map(|lease| (lease.clone(), to, b"one of four".to_vec()))
            .collect();
        assert_eq!(it.a.post(&mut list, false), 2);
        it.network.run_until_idle(Duration::from_secs(1));
        it.a.reap().unwrap();
        assert_eq!((it.a.posted, it.a.complete), (2, 0), "nobody asked");
        it.a.post(&mut vec![(it.lease.clone(), to, b"the next".to_vec())], true);
        it.network.run_until_idle(Duration::from_secs(1));
        it.a.reap().unwrap();
        assert_eq!((it.a.posted, it.a.complete), (3, 3));
        assert!(it.a.leases.iter().all(Option::is_none));
    }

    /// A receive that the device would not take is offered again, and until then it is known that one is missing.
    #[test]
    fn receives_are_not_lost() {
        let mut it = Fixture::new();
        for _ in 0..16 {
            it.send(b"message");
        }
        // Somebody has taken the place of some.
        it.network.run_until_idle(Duration::from_secs(1));
        for slot in 0..4 {
            it.b.post_receive(slot).unwrap();
        }
        let (found, outcome) = it.b.receive(it.local, |_, _| {});
        assert!(found.datagrams == 16 && outcome.is_ok(), "{outcome:?}");
        let (found, outcome) = it.b.receive(it.local, |_, _| {});
        assert!(found.datagrams == 0 && outcome.is_err(), "{outcome:?}");
        assert!(it.b.is_short() && it.b.unposted.len() == 4, "{:?}", it.b.unposted);
        for _ in 0..4 {
            it.send(b"one more");
        }
        it.network.run_until_idle(Duration::from_secs(1));
        let mut wcs = [WorkCompletion::default(); 4];
        assert_eq!(it.b.recv_cq.poll(&mut wcs).unwrap(), 4);
        assert_eq!((it.received(), it.b.is_short()), (0, false), "they are offered again");
    }
}
