use super::tx::Av;
use ferroce_verbs::{Data, Error, QpCap, QpType, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus};
use std::sync::Arc;

/// A send that was posted and is not complete.
#[derive(Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    /// Bytes of the message.
    pub(crate) len: u32,
    sges: u8,
    inline: bool,
    /// The PSN of its first packet, and how many it takes (those of the response for a read).
    pub(crate) first_psn: u32,
    pub(crate) packets: u32,
    /// How it failed before it could be sent in full; reported when all before it are complete.
    pub(crate) failed: Option<WcStatus>,
    /// The destination of a datagram. Holds the address until the send is complete.
    pub(crate) dest: Option<Datagram>,
}

/// Where a datagram goes.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) av: Arc<Av>,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

impl SendWqe {
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.op, SendOp::Read { .. })
    }

    /// A read or atomic: it is complete when its response came, not when it is acknowledged.
    pub(crate) fn has_response(&self) -> bool {
        self.op.has_response()
    }

    /// The peer must have a receive for it.
    pub(crate) fn takes_receive(&self) -> bool {
        !self.has_response() && !matches!(self.op, SendOp::Write { .. })
    }

    pub(crate) fn wc_opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => WcOpcode::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        }
    }
}

/// The send queue: a ring of work requests. Positions count up for ever and are masked for use.
pub(crate) struct SendQueue {
    ring: Box<[SendWqe]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    mask: u32,
    limit: u32,
    max_sge: u32,
    max_inline: u32,
    /// The oldest that is not complete.
    pub(crate) head: u32,
    /// The next to be sent from.
    pub(crate) next: u32,
    /// Where the next one is posted.
    pub(crate) tail: u32,
}

impl SendQueue {
    pub(crate) fn new(cap: &QpCap) -> Self {
        let size = cap.max_send_wr.next_power_of_two();
        let empty = || SendWqe {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::empty(),
            len: 0,
            sges: 0,
            inline: false,
            first_psn: 0,
            packets: 0,
            failed: None,
            dest: None,
        };
        Self {
            ring: (0..size).map(|_| empty()).collect(),
            sges: vec![Sge::default(); (size * cap.max_send_sge) as usize].into(),
            inline: vec![0; (size * cap.max_inline_data) as usize].into(),
            mask: size - 1,
            limit: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            head: 0,
            next: 0,
            tail: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    #[inline]
    pub(crate) fn get(&self, position: u32) -> &SendWqe {
        &self.ring[(position & self.mask) as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, position: u32) -> &mut SendWqe {
        &mut self.ring[(position & self.mask) as usize]
    }

    /// Takes the oldest out, which is to be reported or forgotten now, and lets go of its destination.
    #[inline]
    pub(crate) fn take_head(&mut self) -> &SendWqe {
        let at = (self.head & self.mask) as usize;
        self.head = self.head.wrapping_add(1);
        let wqe = &mut self.ring[at];
        wqe.dest = None;
        wqe
    }

    /// The scatter/gather list of the send at `position`.
    #[inline]
    pub(crate) fn sges(&self, position: u32) -> &[Sge] {
        let at = (position & self.mask) as usize;
        let first = at * self.max_sge as usize;
        &self.sges[first..first + self.ring[at].sges as usize]
    }

    /// The inline data of the send at `position`, if that is what it carries.
    #[inline]
    pub(crate) fn inline(&self, position: u32) -> Option<&[u8]> {
        let at = (position & self.mask) as usize;
        let wqe = &self.ring[at];
        let first = at * self.max_inline as usize;
        wqe.inline.then(|| &self.inline[first..first + wqe.len as usize])
    }

    /// Checks `wr` and adds it. Its PSNs begin at `psn`, one for each `1 << mtu_shift` bytes.
    pub(crate) fn push(
        &mut self,
        qp_type: QpType,
        wr: &SendWr<'_>,
        dest: Option<Datagram>,
        psn: u32,
        mtu_shift: u32,
    ) -> Result<u32, Error> {
        if self.tail.wrapping_sub(self.head) >= self.limit {
            return Err(Error::QueueFull { queue: "send queue", capacity: self.limit });
        }
        wr.check(qp_type)?;
        let at = (self.tail & self.mask) as usize;
        let (mut len, mut count) = (0_u64, 0);
        match wr.data {
            Data::Sges(sges) => {
                if sges.len() > self.max_sge as usize {
                    let why = format!("{} elements, the queue pair was made for {}", sges.len(), self.max_sge);
                    return Err(Error::invalid("sges", why));
                }
                let first = at * self.max_sge as usize;
                self.sges[first..first + sges.len()].copy_from_slice(sges);
                len = sges.iter().map(|sge| u64::from(sge.length)).sum();
                count = sges.len() as u8;
            }
            Data::Inline(bytes) => {
                if bytes.len() > self.max_inline as usize {
                    let why = format!("{} bytes, the queue pair was made for {}", bytes.len(), self.max_inline);
                    return Err(Error::invalid("inline data", why));
                }
                let first = at * self.max_inline as usize;
                self.inline[first..first + bytes.len()].copy_from_slice(bytes);
                len += bytes.len() as u64;
            }
        }
        if len > u64::from(super::MAX_MSG_SIZE) {
            return Err(Error::invalid("sges", format!("{len} bytes are more than a message of 2^30 bytes")));
        }
        let mut len = len as u32;
        let mut packets = len.div_ceil(1 << mtu_shift).max(1);
        if matches!(wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
            if len < 8 {
                return Err(Error::invalid("sges", "an atomic needs 8 bytes for the old value"));
            }
            len = 8;
            packets = 1;
        }
        let wqe = &mut self.ring[at];
        wqe.wr_id = wr.wr_id;
        wqe.op = wr.op;
        wqe.flags = wr.flags;
        wqe.len = len;
        wqe.sges = count;
        wqe.inline = matches!(wr.data, Data::Inline(_));
        wqe.first_psn = psn;
        wqe.packets = packets;
        wqe.failed = None;
        wqe.dest = dest;
        self.tail = self.tail.wrapping_add(1);
        Ok(packets)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        for wqe in &mut self.ring {
            wqe.dest = None;
        }
        (self.head, self.next, self.tail) = (0, 0, 0);
    }
}
