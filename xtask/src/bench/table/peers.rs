//! What the peers are asked to do.

use super::Setting;
use crate::bench::{libfabric, ucx};
use crate::error::Error;

/// UCX with everything that it has for processes of one machine.
pub(super) const UCX_SHM: &str = "posix,cma,self";
pub(super) const UCX_TCP: &str = "tcp,self";

pub(super) const fn ucx(transports: &'static str, name: &'static str, size: u64, iterations: u64) -> ucx::Test {
    ucx::Test { transports, name, size, iterations }
}

pub(super) fn latency(test: &ucx::Test, setting: &Setting) -> Result<f64, Error> {
    Ok(test.run(setting.share())?.median_us)
}

pub(super) fn gb_per_s(test: &ucx::Test, setting: &Setting) -> Result<f64, Error> {
    Ok(test.run(setting.share())?.msgs_per_s * test.size as f64 / 1e9)
}

pub(super) fn million_msgs_per_s(test: &ucx::Test, setting: &Setting) -> Result<f64, Error> {
    Ok(test.run(setting.share())?.msgs_per_s / 1e6)
}

pub(super) fn libfabric_latency(setting: &Setting) -> Result<f64, Error> {
    libfabric::latency((10_000.0 * setting.share()).ceil() as u64)
}
