use crate::sys::RawMr;
use ferroce_verbs::provider::MrOps;
use ferroce_verbs::{Access, Region};

/// A registered memory region.
pub(crate) struct RdmaMr {
    pub(crate) raw: RawMr,
    pub(crate) access: Access,
}

impl MrOps for RdmaMr {
    fn region(&self) -> &Region {
        self.raw.region()
    }

    fn lkey(&self) -> u32 {
        self.raw.lkey()
    }

    fn rkey(&self) -> u32 {
        self.raw.rkey()
    }

    fn access(&self) -> Access {
        self.access
    }
}
