use super::RawContext;
use super::live::Kind;
use ferroce_abi::Library;
use ferroce_abi::types::{ibv_ah, ibv_ah_attr, ibv_pd};
use ferroce_verbs::{Error, Result};
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain.
pub(crate) struct RawPd {
    context: Arc<RawContext>,
    pd: NonNull<ibv_pd>,
}

// SAFETY: the library's verbs may be called from any thread with any object.
unsafe impl Send for RawPd {}
// SAFETY: as above.
unsafe impl Sync for RawPd {}

impl RawPd {
    pub(crate) fn new(context: Arc<RawContext>) -> Result<Self> {
        // SAFETY: the context is open.
        let make = || unsafe { (context.library.alloc_pd)(context.as_ptr()) };
        let pd = super::made(&context, Kind::Pd, make)?;
        Ok(Self { context, pd })
    }

    pub(super) fn library(&self) -> &'static Library {
        self.context.library
    }

    pub(super) fn context(&self) -> &Arc<RawContext> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for RawPd {
    fn drop(&mut self) {
        // SAFETY: all that was made in the domain holds it, so there is nothing left.
        let number = unsafe { (self.context.library.dealloc_pd)(self.as_ptr()) };
        super::destroyed(&self.context, Kind::Pd, number);
    }
}

/// An address handle.
pub(crate) struct RawAh {
    pd: Arc<RawPd>,
    ah: Option<NonNull<ibv_ah>>,
}

// SAFETY: the library's verbs may be called from any thread with any object.
unsafe impl Send for RawAh {}
// SAFETY: as above.
unsafe impl Sync for RawAh {}

impl RawAh {
    /// May block while the neighbour is asked for its address.
    pub(crate) fn new(pd: Arc<RawPd>, mut attr: ibv_ah_attr) -> Result<Self> {
        // SAFETY: the domain is alive, and `attr` is only read.
        let make = || unsafe { (pd.library().create_ah)(pd.as_ptr(), &mut attr) };
        let ah = super::made(&pd.context, Kind::Ah, make)?;
        Ok(Self { pd, ah: Some(ah) })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_ah {
        self.ah.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    pub(crate) fn pd(&self) -> &Arc<RawPd> {
        &self.pd
    }

    /// Destroys it now. What drops it does so too, but has nobody to tell that it failed.
    pub(crate) fn destroy(&mut self) -> Result<(), Error> {
        let Some(ah) = self.ah.take() else { return Ok(()) };
        // SAFETY: work requests hold the address handles that they name, so none uses it; it is destroyed once.
        let number = unsafe { (self.pd.library().destroy_ah)(ah.as_ptr()) };
        super::let_go(&self.pd.context, Kind::Ah, number)
    }
}

impl Drop for RawAh {
    fn drop(&mut self) {
        // Whoever wants to know whether it failed has called it already.
        let _ = self.destroy();
    }
}
