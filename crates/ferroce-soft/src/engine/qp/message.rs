use super::Cx;
use crate::engine::payload::Payload;
use crate::engine::recv::{RecvWqe, Taken};
use crate::engine::sgl::{self, ScatterError};
use ferroce_verbs::{Access, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use ferroce_wire::{Ext, Headers, Operation, Position};

/// Assembles the sends and RDMA writes that a peer makes, packet by packet, for RC and UC alike.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    current: Option<Current>,
    /// The receive that the current message, or the one that failed, took.
    wqe: RecvWqe,
    held: bool,
}

#[derive(Clone, Copy, Debug)]
enum Current {
    Send { received: u64 },
    Write { va: u64, rkey: u32, len: u64, received: u64 },
}

/// Why a request is not executed (IBTA 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No receive is posted.
    NotReady,
    /// The message does not fit the receive.
    TooLong,
    /// The receive names memory that may not be written.
    LocalProtection,
    /// The peer may not do that to that memory.
    RemoteAccess,
    /// The packet makes no sense here.
    InvalidRequest,
    /// What the packet carries is not to be had: as if it had not come.
    Lost,
}

impl From<ScatterError> for Fault {
    fn from(error: ScatterError) -> Self {
        match error {
            ScatterError::Key => Self::LocalProtection,
            ScatterError::Lost => Self::Lost,
        }
    }
}

impl Incoming {
    /// Takes in the next packet, or run of packets, of the sequence; returns whether it ended a message.
    ///
    /// The headers of a run are those of the packet that it would be if packets could be that long.
    #[inline]
    pub(super) fn accept(&mut self, cx: &Cx<'_>, headers: &Headers, payload: Payload<'_>) -> Result<bool, Fault> {
        let opcode = headers.bth.opcode;
        let position = opcode.position();
        let mtu = cx.conn.mtu.bytes() as usize;
        // The last packet, be it of a run or by itself, may be short; only a message of one packet may be empty.
        let before = mtu * (payload.packets() - 1) as usize;
        let length_ok = match position {
            Position::First | Position::Middle => payload.len() == before + mtu,
            Position::Only if payload.is_empty() => before == 0,
            Position::Last | Position::Only => (before + 1..=before + mtu).contains(&payload.len()),
        };
        if !length_ok {
            return Err(Fault::InvalidRequest);
        }
        let begins = matches!(position, Position::First | Position::Only);
        if begins != self.current.is_none() {
            return Err(Fault::InvalidRequest);
        }
        match opcode.operation() {
            Operation::Send => self.accept_send(cx, headers, payload, begins),
            Operation::Write => self.accept_write(cx, headers, payload, begins),
            _ => Err(Fault::InvalidRequest),
        }
    }

    fn accept_send(
        &mut self,
        cx: &Cx<'_>,
        headers: &Headers,
        payload: Payload<'_>,
        begins: bool,
    ) -> Result<bool, Fault> {
        let received = match self.current {
            None => {
                self.take_recv(cx)?;
                0
            }
            Some(Current::Send { received }) => received,
            Some(Current::Write { .. }) => return Err(Fault::InvalidRequest),
        };
        let end = received + payload.len() as u64;
        if !payload.is_empty() {
            if end > self.wqe.capacity() {
                return Err(Fault::TooLong);
            }
            sgl::scatter(&cx.mrs, cx.qp.pd, &self.wqe.sges, received, payload)?;
        }
        let position = headers.bth.opcode.position();
        if matches!(position, Position::First | Position::Middle) {
            self.current = Some(Current::Send { received: end });
            return Ok(false);
        }
        debug_assert!(begins == (position == Position::Only));
        let mut wc = WorkCompletion::new(self.wqe.wr_id, WcOpcode::Recv, cx.qp.qpn);
        wc.byte_len = end as u32;
        match headers.ext {
            Ext::Imm(imm) => {
                wc.imm = imm;
                wc.flags = WcFlags::WITH_IMM;
            }
            Ext::Inv(rkey) => {
                cx.engine.mrs.invalidate(rkey, cx.qp.pd).map_err(|_| Fault::RemoteAccess)?;
                wc.imm = rkey;
                wc.flags = WcFlags::WITH_INV;
            }
            _ => {}
        }
        self.finish(cx, wc, headers.bth.solicited);
        Ok(true)
    }

    fn accept_write(
        &mut self,
        cx: &Cx<'_>,
        headers: &Headers,
        payload: Payload<'_>,
        begins: bool,
    ) -> Result<bool, Fault> {
        let (va, rkey, len, received) = if begins {
            let reth = headers.ext.reth().ok_or(Fault::InvalidRequest)?;
            let len = u64::from(reth.len);
            if !cx.conn.access.contains(Access::REMOTE_WRITE) {
                // Not a matter of memory: the queue pair does not take such requests at all (IBTA 9.7.4.1.3).
                return Err(Fault::InvalidRequest);
            }
            if len != 0 {
                cx.mrs
                    .with(reth.rkey, cx.qp.pd, reth.va, len, Access::REMOTE_WRITE, |_, _| ())
                    .map_err(|_| Fault::RemoteAccess)?;
            }
            (reth.va, reth.rkey, len, 0)
        } else {
            match self.current {
                Some(Current::Write { va, rkey, len, received }) => (va, rkey, len, received),
                _ => return Err(Fault::InvalidRequest),
            }
        };
        let end = received + payload.len() as u64;
        let last = matches!(headers.bth.opcode.position(), Position::Last | Position::Only);
        // The request said how long it is: the last packet must end it, and no other may.
        if if last { end != len } else { end >= len } {
            return Err(Fault::InvalidRequest);
        }
        let imm = headers.ext.imm();
        if imm.is_some() {
            self.take_recv(cx)?;
        }
        if !payload.is_empty() {
            let to = va.wrapping_add(received);
            let copied = cx
                .mrs
                .with(rkey, cx.qp.pd, to, payload.len() as u64, Access::REMOTE_WRITE, |region, at| {
                    payload.copy_to(region, at)
                })
                .map_err(|_| Fault::RemoteAccess)?;
            if !copied {
                return Err(Fault::Lost);
            }
        }
        if !last {
            self.current = Some(Current::Write { va, rkey, len, received: end });
            return Ok(false);
        }
        self.current = None;
        if let Some(imm) = imm {
            let mut wc = WorkCompletion::new(self.wqe.wr_id, WcOpcode::RecvRdmaWithImm, cx.qp.qpn);
            wc.byte_len = len as u32;
            wc.imm = imm;
            wc.flags = WcFlags::WITH_IMM;
            self.finish(cx, wc, headers.bth.solicited);
        }
        Ok(true)
    }

    fn take_recv(&mut self, cx: &Cx<'_>) -> Result<(), Fault> {
        if self.held {
            return Ok(());
        }
        match cx.qp.rq.take(&mut self.wqe) {
            Taken::Empty => return Err(Fault::NotReady),
            Taken::Yes => {}
            Taken::BelowLimit => cx.qp.srq_limit(cx.engine),
        }
        self.held = true;
        Ok(())
    }

    fn finish(&mut self, cx: &Cx<'_>, wc: WorkCompletion, solicited: bool) {
        self.current = None;
        self.held = false;
        cx.qp.recv_cq.push(wc, solicited);
    }

    /// Drops the message that is under way; its receive is used for the next one (UC: IBTA 9.8.2.2).
    pub(super) fn abandon(&mut self) {
        debug_assert!(self.current.is_none() || self.held || matches!(self.current, Some(Current::Write { .. })));
        self.current = None;
    }

    pub(super) fn in_message(&self) -> bool {
        self.current.is_some()
    }

    /// Completes the receive that is held, if one is, with `status`.
    pub(super) fn fail(&mut self, cx: &Cx<'_>, status: WcStatus) {
        self.current = None;
        if std::mem::take(&mut self.held) {
            let mut wc = WorkCompletion::new(self.wqe.wr_id, WcOpcode::Recv, cx.qp.qpn);
            wc.status = status;
            cx.qp.recv_cq.push(wc, true);
        }
    }

    /// Forgets everything.
    pub(super) fn reset(&mut self) {
        self.current = None;
        self.held = false;
    }
}
