//! What was posted to a queue pair and is not complete.

use crate::uct::Completion;

/// An operation.
#[derive(Debug, Default)]
pub(super) struct Op {
    pub(super) completion: Option<Completion>,
    /// The buffer that it uses.
    pub(super) bounce: Option<u32>,
    /// Bytes at its start that the completion is given.
    pub(super) fetched: u32,
    /// Bytes of registered memory that it moves.
    pub(super) len: u32,
    pub(super) signaled: bool,
    /// Posted after the queue pair went to ERR: that it is flushed is what it is for.
    pub(super) marker: bool,
}

/// Operations in the order in which they were posted, which is that in which they complete. Positions count up for ever; the low 32 bits of one
/// are in its work request's number.
#[derive(Debug)]
pub(super) struct Ring {
    ops: Box<[Op]>,
    head: u64,
    tail: u64,
    /// Since the last one that asked for a completion.
    unsignaled: u32,
    /// Those that did.
    signaled: u32,
    /// Bytes of registered memory that all of them move.
    bytes: u64,
}

impl Ring {
    /// Room for `most` at least.
    pub(super) fn new(most: u32) -> Self {
        let ops = (0..most.next_power_of_two()).map(|_| Op::default()).collect();
        Self { ops, head: 0, tail: 0, unsignaled: 0, signaled: 0, bytes: 0 }
    }

    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    /// Completions that will come by themselves.
    pub(super) fn signaled(&self) -> u32 {
        self.signaled
    }

    #[inline]
    pub(super) fn unsignaled(&self) -> u32 {
        self.unsignaled
    }

    /// Bytes of registered memory that are on their way.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the oldest is.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Where the next one goes.
    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Adds one that was posted. There must be room.
    #[inline]
    pub(super) fn push(&mut self, op: Op) {
        if op.signaled {
            self.unsignaled = 0;
            self.signaled += 1;
        } else {
            self.unsignaled += 1;
        }
        self.bytes += u64::from(op.len);
        let mask = self.ops.len() as u64 - 1;
        self.ops[(self.tail & mask) as usize] = op;
        self.tail += 1;
    }

    /// The position that `low` stands for, if it is that of one that is outstanding.
    pub(super) fn position(&self, low: u32) -> Option<u64> {
        let ahead = low.wrapping_sub(self.head as u32);
        (ahead < self.outstanding()).then(|| self.head + u64::from(ahead))
    }

    /// Takes the oldest out if it is not after `position`.
    #[inline]
    pub(super) fn pop_through(&mut self, position: u64) -> Option<(u64, Op)> {
        if self.head > position || self.head == self.tail {
            return None;
        }
        let mask = self.ops.len() as u64 - 1;
        let op = std::mem::take(&mut self.ops[(self.head & mask) as usize]);
        let at = self.head;
        self.head += 1;
        self.signaled -= u32::from(op.signaled);
        self.bytes -= u64::from(op.len);
        Some((at, op))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outstanding_is_found_and_nothing_else() {
        let mut ring = Ring::new(5);
        for round in 0..100_u32 {
            ring.push(Op { fetched: round, ..Op::default() });
            ring.push(Op { fetched: round, signaled: true, ..Op::default() });
            assert_eq!((ring.outstanding(), ring.signaled(), ring.unsignaled()), (2, 1, 0));
            assert_eq!(ring.position(2 * round + 2), None);
            assert_eq!(ring.position((2 * round).wrapping_sub(1)), None);
            let last = ring.position(2 * round + 1).unwrap();
            assert_eq!(ring.pop_through(last).unwrap().1.fetched, round);
            assert_eq!(ring.pop_through(last).unwrap().0, last);
            assert!(ring.pop_through(last).is_none());
        }
        assert_eq!(ring.position(200), None);
    }
}
