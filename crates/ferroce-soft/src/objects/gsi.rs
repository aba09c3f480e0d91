use super::ah::SoftAh;
use super::context::SoftContext;
use ferroce_verbs::provider::{AhOps, GsiOps};
use ferroce_verbs::{Error, MAD_LEN, MadHandler, Result, ServiceBinding};
use std::sync::{Arc, Weak};

/// A context's share of queue pair 1.
pub(super) struct SoftGsi(pub(super) Arc<SoftContext>);

impl GsiOps for SoftGsi {
    fn set_handler(&self, handler: Weak<dyn MadHandler>) -> Result<()> {
        self.0.engine.gsi.set_handler(handler)?;
        self.0.port.set_gsi();
        Ok(())
    }

    fn send(&self, to: &dyn AhOps, mad: &[u8; MAD_LEN]) -> Result<()> {
        let ah = to.as_any().downcast_ref::<SoftAh>().filter(|ah| Arc::ptr_eq(&ah.context, &self.0));
        let ah = ah.ok_or_else(|| Error::invalid("address handle", "it belongs to another device"))?;
        self.0.port.send_mad(&self.0.engine, &ah.av, mad);
        Ok(())
    }

    fn bind_service(&self, binding: ServiceBinding) -> Result<()> {
        self.0.port.bind_service(binding)
    }

    fn release_service(&self, binding: ServiceBinding) {
        self.0.port.release_service(binding);
    }

    fn comm_id_prefix(&self) -> u8 {
        self.0.engine.slot()
    }

    fn now(&self) -> u64 {
        self.0.port.refresh_now()
    }

    fn wake_at(&self, deadline: u64) {
        self.0.engine.wake_gsi_at(deadline);
    }
}
