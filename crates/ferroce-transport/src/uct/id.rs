use std::fmt;

/// Names an endpoint of one interface: a slot, and a generation that tells apart who had it one after the other (reports UCX 11107, 8743).
/// What names an endpoint that is gone names nothing: the generations of rc_verbs are a count that never repeats; those of ud_verbs, which peers
/// must not guess, are 40 random bits, so that one comes again in one of about 10^12 cases.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    slot: u32,
    generation: u64,
}

impl EndpointId {
    pub(crate) const fn new(slot: u32, generation: u64) -> Self {
        Self { slot, generation }
    }

    /// The slot, which is used again.
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// Who has the slot.
    pub const fn generation(self) -> u64 {
        self.generation
    }
}

impl fmt::Debug for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:x}", self.slot, self.generation)
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
