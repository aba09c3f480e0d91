use super::context::SoftContext;
use crate::engine::Av;
use ferroce_verbs::provider::AhOps;
use ferroce_verbs::{AhAttr, LinkLayer};
use std::sync::Arc;

/// An address handle: the attributes and the address that they resolved to.
pub(super) struct SoftAh {
    pub(super) attr: AhAttr,
    pub(super) av: Arc<Av>,
    pub(super) link: Option<LinkLayer>,
    pub(super) pd: u32,
    pub(super) context: Arc<SoftContext>,
}

impl Drop for SoftAh {
    fn drop(&mut self) {
        self.context.ahs.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

impl AhOps for SoftAh {
    fn attr(&self) -> &AhAttr {
        &self.attr
    }

    fn link_layer(&self) -> Option<LinkLayer> {
        self.link
    }
}
