//! The objects behind the verbs handles.

mod ah;
mod channel;
mod context;
mod cq;
mod events;
mod gsi;
mod pd;
mod port;
mod qp;
mod srq;

pub(crate) use context::SoftContext;

use ferroce_verbs::{Error, Result};
use std::sync::Arc;

/// The soft device's own object behind one that the contract hands us.
fn own<T: Send + Sync + 'static>(object: Arc<dyn std::any::Any + Send + Sync>, what: &'static str) -> Result<Arc<T>> {
    object.downcast().map_err(|_| Error::invalid(what, "it belongs to another device"))
}
