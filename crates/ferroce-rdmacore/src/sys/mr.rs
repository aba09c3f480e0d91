use super::RawPd;
use super::live::Kind;
use ferroce_abi::types::ibv_mr;
use ferroce_verbs::{Error, Region, Result};
use std::ptr::NonNull;
use std::sync::Arc;

/// A registered memory region. It keeps the memory for as long as the device may touch it.
pub(crate) struct RawMr {
    pd: Arc<RawPd>,
    mr: NonNull<ibv_mr>,
    region: Region,
}

// SAFETY: the library's verbs may be called from any thread with any object.
unsafe impl Send for RawMr {}
// SAFETY: as above.
unsafe impl Sync for RawMr {}

impl RawMr {
    pub(crate) fn new(pd: Arc<RawPd>, region: Region, access: u32) -> Result<Self> {
        let start = region.as_mut_ptr(0, region.len())?;
        // SAFETY: the domain is alive. The memory is allocated as long as `region` is, which is held until the device has let go of it;
        // the device reads and writes it as `Region` allows anybody to.
        let make = || unsafe { (pd.library().reg_mr)(pd.as_ptr(), start.cast(), region.len(), access as i32) };
        let mr = super::try_made(pd.context(), Kind::Mr, make).map_err(|number| match number {
            // Of a region that is borrowed.
            libc::EFAULT => Error::invalid("region", "its memory is not all mapped, or not writable"),
            number => pd.context().error(format!("registering {} bytes", region.len()), number),
        })?;
        Ok(Self { pd, mr, region })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr.as_ptr()).rkey }
    }
}

impl Drop for RawMr {
    fn drop(&mut self) {
        // SAFETY: it is registered, and is deregistered once. When this returns the device does not touch the memory any more, whatever
        // work requests still name the key.
        let number = unsafe { (self.pd.library().dereg_mr)(self.mr.as_ptr()) };
        if !super::destroyed(self.pd.context(), Kind::Mr, number) {
            // The device may still have it: better lost than overwritten.
            std::mem::forget(self.region.clone());
        }
    }
}
