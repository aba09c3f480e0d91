//! What connections must do whoever manages them: tests run these cases on the software device, and the kernel test bed on one of the
//! kernel.
#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod datagrams;
pub(crate) mod deciding;
pub(crate) mod lifecycle;
pub(crate) mod overload;
pub(crate) mod races;
pub(crate) mod short_path;
