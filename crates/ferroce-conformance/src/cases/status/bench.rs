//! A fault on RC: good work before it, more work after it, and what becomes of all that.

use crate::failure::{Explain, ensure, ensure_eq};
use crate::fixture::{Build, Endpoint, Link, Memory, Pair, failed, ok};
use crate::{CaseResult, Env};
use ferroce_verbs::{QpState, QpType, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion};

/// What becomes of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    /// It goes on as if nothing had been.
    Unhurt,
    /// It is in the error state; its first receive ends with one of these, and the others are flushed.
    Fails(&'static [WcStatus]),
}

impl Peer {
    /// No receive was concerned, so all are flushed.
    pub(super) const FLUSHED: Self = Self::Fails(&[WcStatus::WrFlushErr]);
}

/// A faulty request.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) op: SendOp,
    pub(super) sges: Vec<Sge>,
    /// Whether the device may refuse it when it is posted instead.
    pub(super) refusable: bool,
}

impl Fault {
    pub(super) fn new(op: SendOp, sges: &[Sge]) -> Self {
        Self { op, sges: sges.to_vec(), refusable: false }
    }

    pub(super) fn refusable(self) -> Self {
        Self { refusable: true, ..self }
    }
}

/// Where faults are made: a connection, and memory at both ends that is fine.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) pair: Pair,
    pub(super) local: Memory,
    pub(super) remote: Memory,
    /// Elements of the receives that `b` posts.
    pub(super) receive: Vec<Sge>,
    /// What is fine, of 16 bytes of local memory.
    pub(super) good: SendOp,
}

pub(super) const LEN: usize = 8192;

impl Bench {
    pub(super) fn new(env: &Env, link: &Link) -> CaseResult<Self> {
        let build = Build::new(QpType::Rc).cap(|cap| {
            cap.max_send_sge = 2;
            cap.max_recv_sge = 2;
        });
        Self::of(Pair::new(env, &build, link)?)
    }

    pub(super) fn of(pair: Pair) -> CaseResult<Self> {
        let (local, remote) = (pair.a.memory(LEN)?, pair.b.memory(LEN)?);
        let receive = vec![remote.mr.sge(..)?];
        let good = SendOp::Write { remote_addr: remote.addr(0), rkey: remote.mr.rkey() };
        Ok(Self { pair, local, remote, receive, good })
    }

    /// Posts receives at both ends, a good request, the fault, and more good requests; checks every completion, the
    /// states, and that both ends work again after a reset.
    pub(super) fn run(&self, fault: &Fault, status: WcStatus, peer: Peer) -> CaseResult {
        const RECEIVES: u64 = 3;
        let Pair { a, b } = &self.pair;
        let (a_qp, b_qp) = (a.qp.qp_num(), b.qp.qp_num());
        for wr_id in 0..RECEIVES {
            b.post_recv(100 + wr_id, &self.receive)?;
            a.post_recv(200 + wr_id, &[])?;
        }
        let good = [self.local.mr.sge(..16)?];
        let opcode = match self.good {
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            _ => WcOpcode::RdmaWrite,
        };
        a.post(SendWr::new(1, self.good, &good))?;
        ok(&a.sent()?, 1, opcode)?;

        if let Err(refused) = a.qp.post_send(&[SendWr::new(2, fault.op, &fault.sges)]) {
            ensure!(fault.refusable, "refused when it was posted: {refused}");
            // Then nothing has happened.
            ensure_eq!(refused.index, 0, "index of the refused request");
            a.post(SendWr::new(3, self.good, &good))?;
            return ok(&a.sent()?, 3, opcode);
        }
        // Once the fault is found, these may be refused by nobody; they are flushed, signaled or not.
        for (wr_id, flags) in [(3, SendFlags::SIGNALED), (4, SendFlags::empty())] {
            a.post(SendWr::new(wr_id, self.good, &good).flags(flags))?;
        }
        failed(&a.sent()?, 2, status, a_qp)?;
        for wr_id in [3, 4] {
            failed(&a.sent()?, wr_id, WcStatus::WrFlushErr, a_qp)?;
        }
        for wr_id in 0..RECEIVES {
            failed(&a.received()?, 200 + wr_id, WcStatus::WrFlushErr, a_qp).explain(|| "receives at a".into())?;
        }
        a.reaches(QpState::Err)?;
        a.wait.nothing(&a.send_cq)?;

        match peer {
            Peer::Unhurt => {
                ensure_eq!(b.qp.state(), QpState::Rts, "state of the peer");
                b.wait.nothing(&b.recv_cq)?;
            }
            Peer::Fails(first) => {
                let wc = b.received().explain(|| "first receive of the peer".into())?;
                ensure_eq!((wc.wr_id, wc.qp_num), (100, b_qp), "first receive of the peer");
                ensure!(first.contains(&wc.status), "first receive of the peer: {:?}, not {first:?}", wc.status);
                for wr_id in 1..RECEIVES {
                    failed(&b.received()?, 100 + wr_id, WcStatus::WrFlushErr, b_qp)?;
                }
                b.reaches(QpState::Err)?;
            }
        }
        self.recovers()
    }

    /// After a reset and a new connection both ends work, and nothing old is left in their queues.
    pub(super) fn recovers(&self) -> CaseResult {
        self.pair.reconnect()?;
        for end in [&self.pair.a, &self.pair.b] {
            discard(end)?;
        }
        self.pair.round_trip().explain(|| "after a reset".into())
    }
}

/// Takes what is left of before a reset.
fn discard(end: &Endpoint) -> CaseResult {
    let mut out = [WorkCompletion::default(); 16];
    for cq in [&end.send_cq, &end.recv_cq] {
        while cq.poll(&mut out)? > 0 {}
    }
    Ok(())
}
