//! The memory of one end, and the check that what arrived is what was sent.
//!
//! It has two areas: from the *own* area this end sends, and into it this end reads; the *open* area is what the peer's
//! sends, writes, reads and atomics meet.

use super::plan::{Mode, Op, Plan};
use crate::failure::{Failure, Result};
use ferroce::transport::uct::Iov;
use ferroce::{Access, Mr, Pd, Sge};

/// What memory is overwritten with before something is to arrive in it; `pattern` differs from it where it is checked.
const POISON: u8 = 0xee;
/// Areas start at multiples of this.
const ALIGN: usize = 4096;

pub(crate) struct Areas {
    mr: Mr,
    /// Where the open area starts.
    open: usize,
    /// What is sent.
    pub(crate) pattern: Vec<u8>,
}

/// The bytes that are sent. Their period is a prime, so that a packet in the wrong place shows.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ 0x5a).collect()
}

impl Areas {
    pub(crate) fn new(pd: &Pd, plan: &Plan) -> Result<Self> {
        let size = plan.max_size() as usize;
        let open = size.next_multiple_of(ALIGN);
        let mr = pd.alloc_mr(open + size, Access::ALL)?;
        Ok(Self { mr, open, pattern: pattern(size) })
    }

    /// The own area's first `size` bytes.
    pub(crate) fn own(&self, size: u32) -> Result<Sge> {
        Ok(self.mr.sge(..size as usize)?)
    }

    /// The same, for a transport.
    pub(crate) fn own_iov(&self, size: u32) -> Iov<'_> {
        Iov::new(&self.mr, 0..size as usize)
    }

    /// The whole open area, for receives.
    pub(crate) fn open(&self) -> Result<Sge> {
        Ok(self.mr.sge(self.open..)?)
    }

    /// Where the open area is, for the peer.
    pub(crate) fn open_addr(&self) -> (u64, u32) {
        (self.mr.addr() + self.open as u64, self.mr.rkey())
    }

    /// Stores the last byte of the own area's first `size` bytes.
    #[inline]
    pub(crate) fn set_own_last(&self, size: u32, value: u8) -> Result<()> {
        Ok(self.mr.region().store_u8(size as usize - 1, value)?)
    }

    /// Reads the last byte of the open area's first `size` bytes.
    #[inline]
    pub(crate) fn open_last(&self, size: u32) -> Result<u8> {
        Ok(self.mr.region().load_u8(self.open + size as usize - 1)?)
    }

    /// Makes both areas ready for a run: what is to be sent is there, and what is to arrive is not.
    pub(crate) fn prepare(&self, plan: &Plan, size: u32, client: bool) -> Result<()> {
        let bytes = &self.pattern[..size as usize];
        let poison = vec![POISON; size as usize];
        match (plan.op, client) {
            (Op::Am, _) => {}
            (Op::Send | Op::Write | Op::Put, _) => {
                self.mr.write(0, bytes)?;
                self.mr.write(self.open, &poison)?;
                self.mr.write(self.open + size as usize - 1, &[0])?;
            }
            (Op::Read | Op::Get, true) => self.mr.write(0, &poison)?,
            (Op::Read | Op::Get, false) => self.mr.write(self.open, bytes)?,
            (Op::Atomic, _) => self.mr.write(self.open, &[0; 8])?,
        }
        Ok(())
    }

    /// Checks what has arrived here after `messages` messages.
    pub(crate) fn verify(&self, plan: &Plan, size: u32, client: bool, messages: u64) -> Result<()> {
        let len = size as usize;
        match (plan.op, plan.mode, client) {
            // The last byte is the count by which the ends see each other's writes.
            (Op::Write | Op::Put, Mode::Lat, _) => {
                self.compare(self.open, len - 1)?;
                let (got, want) = (self.open_last(size)?, messages as u8);
                if got == want { Ok(()) } else { Err(wrong(len - 1, got, want)) }
            }
            (Op::Send, Mode::Lat, _) | (Op::Send | Op::Write | Op::Put, _, false) => self.compare(self.open, len),
            (Op::Read | Op::Get, _, true) => self.compare(0, len),
            (Op::Atomic, _, false) => {
                let mut word = [0; 8];
                self.mr.read(self.open, &mut word)?;
                let sum = u64::from_ne_bytes(word);
                if sum == messages {
                    return Ok(());
                }
                Err(Failure::run(format!("the data is wrong: {messages} atomics added 1 and the sum is {sum}"))
                    .hint("this is a fault of one of the devices"))
            }
            _ => Ok(()),
        }
    }

    fn compare(&self, start: usize, len: usize) -> Result<()> {
        let mut chunk = vec![0; len.min(1 << 16)];
        for at in (0..len).step_by(chunk.len().max(1)) {
            let now = chunk.len().min(len - at);
            self.mr.read(start + at, &mut chunk[..now])?;
            let want = &self.pattern[at..at + now];
            if let Some(bad) = chunk[..now].iter().zip(want).position(|(got, want)| got != want) {
                return Err(wrong(at + bad, chunk[bad], want[bad]));
            }
        }
        Ok(())
    }
}

fn wrong(at: usize, got: u8, want: u8) -> Failure {
    Failure::run(format!("the data is wrong from byte {at} on: {got:#04x} in place of {want:#04x}"))
        .hint("this is a fault of one of the devices or of the network; RoCE packets carry a checksum")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_shows_what_is_missing() {
        let bytes = pattern(1 << 16);
        let equal_to_poison = bytes.iter().filter(|&&byte| byte == POISON).count();
        assert!(equal_to_poison * 200 < bytes.len());
        assert_ne!(bytes[0], POISON);
        assert_ne!(bytes[..1024], bytes[1024..2048]);
    }
}
