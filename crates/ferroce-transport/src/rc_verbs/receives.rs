//! The shared receive queue: buffers for messages on their way in.

use ferroce_verbs::{Access, Mr, Pd, PostError, RecvWr, Result, Sge, Srq, SrqInitAttr};

/// The bit of a work request's number that tells receives from sends.
pub(super) const RECEIVE: u64 = 1 << 63;

/// Receives are posted again so many at a time, at most.
pub(super) const BATCH: usize = 16;

/// The buffers and their queue.
pub(super) struct Receives {
    pub(super) srq: Srq,
    mr: Mr,
    slot_len: usize,
    first: Sge,
}

impl Receives {
    pub(super) fn new(pd: &Pd, count: u32, slot_len: usize) -> Result<Self> {
        let srq = pd.create_srq(&SrqInitAttr { max_wr: count, max_sge: 1 })?;
        let mr = pd.alloc_mr(count as usize * slot_len, Access::LOCAL_WRITE)?;
        let receives = Self { first: mr.sge(..slot_len)?, srq, mr, slot_len };
        let all: Vec<u32> = (0..count).collect();
        for slots in all.chunks(BATCH) {
            receives.post(slots).1?;
        }
        Ok(receives)
    }

    #[inline]
    fn sge(&self, slot: u32) -> Sge {
        Sge { addr: self.first.addr + u64::from(slot) * self.slot_len as u64, ..self.first }
    }

    pub(super) fn slot_len(&self) -> usize {
        self.slot_len
    }

    /// Lets messages come to these buffers, at most [`BATCH`] of them; how many of them the device took.
    pub(super) fn post(&self, slots: &[u32]) -> (usize, Result<()>) {
        match self.offer(slots) {
            Ok(()) => (slots.len(), Ok(())),
            Err(failed) => (failed.index, Err(failed.error)),
        }
    }

    fn offer(&self, slots: &[u32]) -> Result<(), PostError> {
        // What comes one at a time is what has to be quick.
        if let &[slot] = slots {
            let wr = RecvWr { wr_id: RECEIVE | u64::from(slot), sges: &[self.sge(slot)] };
            return self.srq.post_recv(&[wr]);
        }
        let mut sges = [[Sge::default()]; BATCH];
        for (sge, &slot) in sges.iter_mut().zip(slots) {
            sge[0] = self.sge(slot);
        }
        let wrs: [RecvWr<'_>; BATCH] = std::array::from_fn(|at| {
            RecvWr::new(RECEIVE | slots.get(at).map_or(0, |&slot| u64::from(slot)), &sges[at])
        });
        self.srq.post_recv(&wrs[..slots.len()])
    }

    /// Copies out what came to a buffer.
    #[inline]
    pub(super) fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        self.mr.read(slot as usize * self.slot_len, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
    use ferroce_verbs::provider::Device;
    use std::net::IpAddr;

    /// What the device does not take is known, so that nobody loses it.
    #[test]
    fn what_the_device_does_not_take_is_told() {
        let network = MemoryNetwork::new(MemoryConfig::default());
        let context = network.host(IpAddr::from([10, 0, 0, 1])).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let receives = Receives::new(&pd, 16, 64).unwrap();
        for slots in [&[3][..], &[1, 2]] {
            let (posted, outcome) = receives.post(slots);
            assert!(posted == 0 && outcome.is_err(), "it is full: {posted}, {outcome:?}");
        }
    }
}
