//! The queue pair: buffers for datagrams on their way out and in.

use super::options::UdOptions;
use crate::ud::PeerAddress;
use ferroce_verbs::{
    Access, AhLease, CompChannel, Context, Cq, Gid, Mr, Pd, Qp, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr,
    Result, SendFlags, SendOp, SendWr, UdDest, WorkCompletion,
};

/// The Q_Key of UCX's UD transport.
const QKEY: u32 = 0x1ee7_a330;
/// Bytes in front of a received datagram.
const GRH_LEN: usize = 40;
/// Bytes of a receive: the longest datagram that there can be, whatever this end's MTU is. One that does not fit would break the
/// queue pair (IBTA 10.7.3.1), at the whim of whoever sent it.
const RECEIVE_LEN: usize = GRH_LEN + 4096;
/// Completions taken at once.
const BATCH: usize = 16;
/// Datagrams between two that ask for a completion.
const SIGNAL_EVERY: u64 = 16;

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
    buffer: Box<[u8]>,
    /// Received datagrams that arming found, and nobody has looked at.
    stash: [WorkCompletion; BATCH],
    stashed: usize,
}

/// What a look at the completions found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub(super) datagrams: usize,
    pub(super) errors: usize,
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
            stash: [WorkCompletion::default(); BATCH],
            stashed: 0,
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

    fn post_receive(&self, slot: u64) -> Result<()> {
        let start = slot as usize * RECEIVE_LEN;
        let sge = self.receives.sge(start..start + RECEIVE_LEN)?;
        self.qp.post_recv(&[RecvWr::new(slot, &[sge])]).map_err(|failed| failed.error)
    }

    /// Whether another datagram can be posted.
    pub(super) fn has_room(&self) -> bool {
        self.posted - self.complete < self.leases.len() as u64
    }

    /// Posts a datagram. There must be room. Unless `more` follow at once its completion is asked for: what an idle interface sent last must
    /// not keep its address handle.
    pub(super) fn post(&mut self, lease: AhLease, to: PeerAddress, packet: &[u8], more: bool) -> Result<()> {
        let slot = (self.posted % self.leases.len() as u64) as usize;
        let dest = UdDest { ah: &lease, qpn: to.qpn, qkey: QKEY };
        // The last that fits has to say when there is room again.
        let last = self.posted + 1 - self.complete == self.leases.len() as u64;
        let signaled = last || !more || self.posted % SIGNAL_EVERY == SIGNAL_EVERY - 1;
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let number = self.posted;
        let posted = if packet.len() <= self.inline {
            self.qp.post_send(&[SendWr::inline(number, SendOp::Send, packet).to(dest).flags(flags)])
        } else {
            self.sends.write(slot * self.mtu, packet)?;
            let sge = [self.sends.sge(slot * self.mtu..slot * self.mtu + packet.len())?];
            self.qp.post_send(&[SendWr::send(number, &sge).to(dest).flags(flags)])
        };
        posted.map_err(|failed| failed.error)?;
        self.leases[slot] = Some(lease);
        self.posted += 1;
        Ok(())
    }

    /// Takes what was sent out of the queue, and lets go of its address handles.
    pub(super) fn reap(&mut self) -> Result<Found> {
        let mut found = Found::default();
        loop {
            let mut wcs = [WorkCompletion::default(); BATCH];
            let count = self.send_cq.poll(&mut wcs)?;
            for wc in &wcs[..count] {
                found.errors += usize::from(!wc.is_ok());
                // Datagrams of one queue pair complete in order, those included that do not say so.
                while self.complete <= wc.wr_id {
                    let slot = (self.complete % self.leases.len() as u64) as usize;
                    self.leases[slot] = None;
                    self.complete += 1;
                    found.datagrams += 1;
                }
            }
            if count < BATCH {
                return Ok(found);
            }
        }
    }

    /// Hands at most one batch of received datagrams to `take`: who sent it, and what.
    pub(super) fn receive(&mut self, local: Gid, mut take: impl FnMut(PeerAddress, &[u8])) -> Result<Found> {
        let mut wcs = [WorkCompletion::default(); BATCH];
        let mut count = std::mem::take(&mut self.stashed);
        if count != 0 {
            wcs = self.stash;
        } else {
            count = self.recv_cq.poll(&mut wcs)?;
        }
        let mut found = Found { datagrams: count, errors: 0 };
        for wc in &wcs[..count] {
            let len = (wc.byte_len as usize).min(RECEIVE_LEN);
            if !wc.is_ok() || len < GRH_LEN {
                found.errors += 1;
                continue;
            }
            self.receives.read(wc.wr_id as usize * RECEIVE_LEN, &mut self.buffer[..len])?;
            if let Some((grh, packet)) = self.buffer[..len].split_first_chunk::<GRH_LEN>() {
                let (gid, dgid) = Gid::of_grh(grh);
                // A datagram to another address of this port is for another interface's peer (`UD_ETH_DGID_CHECK` of UCX).
                if dgid == local {
                    take(PeerAddress { gid, qpn: wc.src_qp }, packet);
                }
            }
            self.post_receive(wc.wr_id)?;
        }
        Ok(found)
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
