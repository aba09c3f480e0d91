use crate::pd::RdmaPd;
use crate::sys::RawAh;
use ferroce_verbs::provider::{AhOps, ContextOps};
use ferroce_verbs::{AhAttr, LinkLayer};
use std::sync::Arc;

/// An address handle.
pub(crate) struct RdmaAh {
    pub(crate) raw: RawAh,
    pub(crate) attr: AhAttr,
    pub(crate) link: Option<LinkLayer>,
    pub(crate) pd: Arc<RdmaPd>,
}

impl Drop for RdmaAh {
    fn drop(&mut self) {
        if let Err(error) = self.raw.destroy() {
            self.pd.context.base().report_ah_destroy_failure(&error);
        }
    }
}

impl AhOps for RdmaAh {
    fn attr(&self) -> &AhAttr {
        &self.attr
    }

    fn link_layer(&self) -> Option<LinkLayer> {
        self.link
    }
}
