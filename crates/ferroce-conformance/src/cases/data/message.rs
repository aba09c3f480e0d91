//! Sends, writes and reads on RC and UC: operation × path MTU × signaled × inline × shape.

use super::shape;
use crate::failure::{Explain, ensure, ensure_eq};
use crate::fixture::{Build, Link, Memory, Pair, ok, pattern};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{Access, Data, Mtu, QpType, SendFlags, SendOp, SendWr, Sge, WcFlags, WcOpcode, WorkCompletion};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
}

impl Op {
    const RC: [Self; 6] = [Self::Send, Self::SendImm, Self::SendInv, Self::Write, Self::WriteImm, Self::Read];
    /// IBTA 9.8.2: UC has neither reads nor invalidation.
    const UC: [Self; 4] = [Self::Send, Self::SendImm, Self::Write, Self::WriteImm];

    fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send-imm",
            Self::SendInv => "send-inv",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
        }
    }

    /// What its own completion is called.
    fn opcode(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm | Self::SendInv => WcOpcode::Send,
            Self::Write | Self::WriteImm => WcOpcode::RdmaWrite,
            Self::Read => WcOpcode::RdmaRead,
        }
    }

    /// Whether the peer's receive gets the data.
    fn sends(self) -> bool {
        self.opcode() == WcOpcode::Send
    }

    /// Whether it completes a receive of the peer.
    fn receives(self) -> bool {
        self.sends() || self == Self::WriteImm
    }
}

/// One cell of the matrix; all shapes are tried in it.
#[derive(Clone, Copy, Debug)]
struct Cell {
    service: QpType,
    op: Op,
    mtu: Mtu,
    signaled: bool,
    inline: bool,
}

pub(super) fn add(all: &mut Vec<Case>) {
    for (service, ops) in [(QpType::Rc, &Op::RC[..]), (QpType::Uc, &Op::UC[..])] {
        for &op in ops {
            for mtu in Mtu::ALL {
                for inline in [false, true] {
                    for signaled in [true, false] {
                        // Inline data is copied in; a read has none to copy.
                        if !(inline && op == Op::Read) {
                            let cell = Cell { service, op, mtu, signaled, inline };
                            all.push(Case::new(cell.name(), move |env| cell.run(env)));
                        }
                    }
                }
            }
        }
    }
}

const MESSAGE: u64 = 0x1_0000_0001;
const CHASER: u64 = 0x2_0000_0002;
const CHASER_IMM: u32 = 0xc4a5_e4ff;
/// Where writes go to and reads come from: no multiple of anything, just before the end of a page.
const REMOTE: usize = 4093;

impl Cell {
    fn name(self) -> String {
        let Self { service, op, mtu, signaled, inline } = self;
        let service = if service == QpType::Rc { "rc" } else { "uc" };
        let data = if inline { "inline" } else { "sge" };
        let signaled = if signaled { "signaled" } else { "unsignaled" };
        format!("data/{service}/{}/mtu{mtu}/{data}/{signaled}", op.name())
    }

    fn run(self, env: &Env) -> CaseResult {
        if self.mtu > env.max_mtu() {
            return Err(Failure::not_applicable(format!("the port's MTU is {}", env.max_mtu())));
        }
        let device = env.both()?;
        let max_sge = device.max_sge.min(8) as usize;
        let max_inline = device.max_inline_data.min(1024) as usize;
        // A burst that nobody paces is not what UC is for.
        let largest = if self.service == QpType::Rc { 1 << 20 } else { 1 << 14 };
        let shapes: Vec<Vec<usize>> = if self.inline {
            if max_inline == 0 {
                return Err(Failure::not_applicable("the device has no inline data"));
            }
            shape::inline(max_inline).into_iter().map(|len| vec![len]).collect()
        } else {
            shape::local(self.mtu.bytes() as usize, max_sge, largest)
        };
        let build = Build::new(self.service).cap(|cap| {
            cap.max_send_sge = max_sge as u32;
            cap.max_recv_sge = max_sge as u32;
            cap.max_inline_data = if self.inline { max_inline as u32 } else { 0 };
        });
        let link = Link { mtu: Some(self.mtu), ..Link::default() };
        let mut pair = Pair::new(env, &build, &link)?;
        for (index, lengths) in shapes.iter().enumerate() {
            let data = pattern(index as u64 + 1, lengths.iter().sum());
            self.until_complete(env, &build, &link, &mut pair, lengths, &data)
                .explain(|| format!("elements of {lengths:?} bytes"))?;
        }
        Ok(())
    }

    /// One message; again on a new connection if it was lost and may be.
    fn until_complete(
        self,
        env: &Env,
        build: &Build,
        link: &Link,
        pair: &mut Pair,
        lengths: &[usize],
        data: &[u8],
    ) -> CaseResult {
        const ATTEMPTS: usize = 5;
        for _ in 0..ATTEMPTS {
            if self.transfer(pair, lengths, data)? {
                return Ok(());
            }
            *pair = Pair::new(env, build, link)?;
        }
        Err(Failure::new(format!("lost {ATTEMPTS} times in a row")))
    }

    /// Moves `data`, whose local elements are `lengths`, and checks all there is to see. False if it was lost.
    fn transfer(self, pair: &Pair, lengths: &[usize], data: &[u8]) -> CaseResult<bool> {
        let Pair { a, b } = pair;
        let max_sge = b.qp.cap().max_recv_sge as usize;
        let local = a.memory(shape::room(data.len()))?;
        let remote = b.memory(shape::room(data.len()) + REMOTE)?;
        let landing = shape::receive(data.len(), max_sge);

        if self.op == Op::Read {
            remote.mr.write(REMOTE, data)?;
        } else {
            local.scatter(1, lengths, data)?;
        }
        if self.op.receives() {
            // A write with immediate leaves the receive's buffers alone.
            let target = remote.sges(1, &landing)?;
            b.post_recv(MESSAGE, &target)?;
        }

        // Only a success says that a write arrived on UC, so something that comes after it must be seen to arrive.
        let chased = !self.signaled || self.service == QpType::Uc;
        let stale = b.pd.alloc_mr(64, Access::ALL)?;
        let op = self.operation(&remote, stale.rkey());
        let sges: Vec<Sge> = local.sges(1, lengths)?;
        let payload = if self.inline { Data::Inline(data) } else { Data::Sges(&sges) };
        let signaled = if self.signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        a.post(SendWr { wr_id: MESSAGE, op, data: payload, flags: signaled, ud: None })?;
        if chased {
            let (remote_addr, rkey) = (remote.addr(0), remote.mr.rkey());
            let op = match self.service {
                QpType::Rc => SendOp::Write { remote_addr, rkey },
                QpType::Uc | QpType::Ud => SendOp::WriteImm { remote_addr, rkey, imm: CHASER_IMM },
            };
            if self.service == QpType::Uc {
                b.post_recv(CHASER, &[])?;
            }
            a.post(SendWr::new(CHASER, op, &[]))?;
        }

        if self.signaled {
            let wc = a.sent()?;
            ok(&wc, MESSAGE, self.op.opcode())?;
            ensure_eq!(wc.qp_num, a.qp.qp_num(), "qp_num of the send's completion");
            if self.op == Op::Read {
                ensure_eq!(wc.byte_len as usize, data.len(), "byte_len of the read");
            }
        }
        if chased {
            // Without a completion of its own, the message must not have one.
            ok(&a.sent()?, CHASER, WcOpcode::RdmaWrite)?;
        }
        a.wait.nothing(&a.send_cq)?;

        if self.op.receives() {
            let Some(wc) = self.arrival(pair)? else { return Ok(false) };
            if wc.flags.contains(WcFlags::WITH_IMM) && wc.imm == CHASER_IMM {
                return Ok(false);
            }
            self.check_receive(pair, &wc, data.len(), stale.rkey())?;
        }
        if self.service == QpType::Uc {
            let Some(wc) = self.arrival(pair)? else { return Ok(false) };
            ok(&wc, CHASER, WcOpcode::RecvRdmaWithImm)?;
        }
        b.wait.nothing(&b.recv_cq)?;

        let landed = match self.op {
            Op::Send | Op::SendImm | Op::SendInv => remote.expect(1, &landing, data),
            Op::Write | Op::WriteImm => remote.expect(REMOTE, &[data.len()], data),
            Op::Read => local.expect(1, lengths, data),
        };
        if self.service == QpType::Uc && self.op == Op::Write && landed.is_err() {
            return Ok(false);
        }
        landed?;
        // The side that was read from is as it was.
        match self.op {
            Op::Read => remote.expect(REMOTE, &[data.len()], data)?,
            _ => local.expect(1, lengths, data)?,
        }
        Ok(true)
    }

    fn operation(self, remote: &Memory, stale: u32) -> SendOp {
        let (remote_addr, rkey) = (remote.addr(REMOTE), remote.mr.rkey());
        match self.op {
            Op::Send => SendOp::Send,
            Op::SendImm => SendOp::SendImm(0x0102_0304),
            Op::SendInv => SendOp::SendInv(stale),
            Op::Write => SendOp::Write { remote_addr, rkey },
            Op::WriteImm => SendOp::WriteImm { remote_addr, rkey, imm: u32::MAX - 1 },
            Op::Read => SendOp::Read { remote_addr, rkey },
        }
    }

    /// The peer's next receive completion; `None` if it does not come and need not.
    fn arrival(self, pair: &Pair) -> CaseResult<Option<WorkCompletion>> {
        if self.service == QpType::Rc {
            return pair.b.received().map(Some);
        }
        let mut out = [WorkCompletion::default()];
        let limit = pair.b.wait.deadline() / 10;
        let got = pair.b.wait.within(limit, || Ok((pair.b.recv_cq.poll(&mut out)? == 1).then_some(())))?;
        Ok(got.map(|()| out[0]))
    }

    fn check_receive(self, pair: &Pair, wc: &WorkCompletion, len: usize, stale: u32) -> CaseResult {
        let opcode = if self.op.sends() { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        ok(wc, MESSAGE, opcode)?;
        ensure_eq!(wc.byte_len as usize, len, "byte_len of the receive");
        ensure_eq!(wc.qp_num, pair.b.qp.qp_num(), "qp_num of the receive's completion");
        let (imm, invalidated) = match self.op {
            Op::SendImm => (Some(0x0102_0304), None),
            Op::WriteImm => (Some(u32::MAX - 1), None),
            Op::SendInv => (None, Some(stale)),
            Op::Send | Op::Write | Op::Read => (None, None),
        };
        ensure_eq!(wc.imm_data(), imm, "immediate data");
        ensure_eq!(wc.invalidated_rkey(), invalidated, "invalidated rkey");
        ensure!(!wc.flags.contains(WcFlags::GRH), "a connected receive says that it has a GRH");
        Ok(())
    }
}
