//! The bytes that are exchanged, and how they are checked.
//!
//! The C programs fill the buffer with one byte and, with `-c`, the client zeroes the first byte of each page; the
//! server sends back what it received and looks at these bytes when all is over. With `-c`, `ferroce` looks at every
//! byte: it receives into memory that it has overwritten before, so that what is there has come from the peer.

use super::Plan;
use crate::failure::{Failure, Result};
use ferroce::{Access, Mr, Pd, QpType, Sge};

/// Bytes before a datagram in its receive buffer.
pub(crate) const GRH: usize = 40;
/// The page size that the C programs use on this machine's kind.
const PAGE: usize = 4096;
/// What receive memory is overwritten with: neither of the bytes that a peer sends.
const POISON: u8 = 0x55;

/// The registered memory of one end.
pub(crate) struct Data {
    mr: Mr,
    size: usize,
    /// Where the payload of a send is.
    send_at: usize,
    /// Where a receive starts, and how long it is.
    recv_at: usize,
    recv_len: usize,
    /// What is checked for, if anything is.
    expected: Option<Vec<u8>>,
    /// A copy of what arrived, or of what goes out inline.
    scratch: Vec<u8>,
    poison: Vec<u8>,
}

impl Data {
    pub(crate) fn new(pd: &Pd, plan: &Plan) -> Result<Self> {
        let size = plan.size as usize;
        let grh = if plan.qp_type == QpType::Ud { GRH } else { 0 };
        let recv_len = size + grh;
        // Unchecked, what arrives is what goes back, as in the C programs. Checked, each has memory of its own.
        let (len, send_at) = if plan.check { (2 * recv_len, recv_len + grh) } else { (recv_len, grh) };
        let mr = pd.alloc_mr(len, Access::LOCAL_WRITE)?;
        let pattern = pattern(size, plan);
        let poison = vec![POISON; recv_len];
        if plan.check {
            mr.write(0, &poison)?;
        }
        mr.write(send_at, &pattern)?;
        Ok(Self {
            mr,
            size,
            send_at,
            recv_at: 0,
            recv_len,
            expected: plan.check.then_some(pattern),
            scratch: vec![0; size],
            poison,
        })
    }

    pub(crate) fn send_sge(&self) -> Result<Sge> {
        Ok(self.mr.sge(self.send_at..self.send_at + self.size)?)
    }

    pub(crate) fn recv_sge(&self) -> Result<Sge> {
        Ok(self.mr.sge(self.recv_at..self.recv_at + self.recv_len)?)
    }

    /// The bytes to send next, for inline sends.
    pub(crate) fn outgoing(&mut self) -> Result<&[u8]> {
        self.mr.read(self.send_at, &mut self.scratch)?;
        Ok(&self.scratch)
    }

    /// Checks a message that has arrived. With `alone`, no other message can be on its way here, and the memory is made
    /// ready to show that the next one arrives too.
    pub(crate) fn check(&mut self, message: u64, alone: bool) -> Result<()> {
        let Some(expected) = &self.expected else { return Ok(()) };
        self.mr.read(self.recv_at + self.recv_len - self.size, &mut self.scratch)?;
        if let Some(at) = self.scratch.iter().zip(expected).position(|(got, want)| got != want) {
            return Err(Failure::run(format!(
                "message {message} is wrong from byte {at} on: {:#04x} in place of {:#04x}",
                self.scratch[at], expected[at]
            ))
            .hint("was -c given to the client too? otherwise the data was damaged on the way"));
        }
        if alone {
            self.mr.write(self.recv_at, &self.poison)?;
        }
        Ok(())
    }
}

/// What the client sends first, and everybody afterwards.
fn pattern(size: usize, plan: &Plan) -> Vec<u8> {
    let filler = if plan.srq { 0 } else { 0x7b };
    let mut bytes = vec![filler; size];
    if plan.check {
        bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::tests::plan;
    use super::*;

    #[test]
    fn the_pattern_is_that_of_the_c_programs() {
        let mut plan = plan();
        assert_eq!(pattern(3, &plan), [0x7b; 3]);
        plan.check = true;
        let bytes = pattern(8194, &plan);
        assert_eq!((bytes[0], bytes[1], bytes[4096], bytes[4097], bytes[8192]), (0, 0x7b, 0, 0x7b, 0));
        plan.srq = true;
        assert!(pattern(8194, &plan).iter().all(|&byte| byte == 0));
    }
}
