use super::MemoryNetwork;
use crate::addr::local_eui64;
use crate::objects::SoftContext;
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Context, DeviceInfo, Result};
use std::net::IpAddr;

/// A host's device on a network in memory. Each context that is opened gets a slot of its own, as processes do on a real
/// host.
#[derive(Clone, Debug)]
pub struct MemoryDevice {
    network: MemoryNetwork,
    ip: IpAddr,
}

impl MemoryDevice {
    /// Its name.
    pub const NAME: &'static str = "memory0";

    pub(super) fn new(network: MemoryNetwork, ip: IpAddr) -> Self {
        Self { network, ip }
    }

    /// Of the host, by its address.
    fn node_guid(&self) -> u64 {
        let bits = match self.ip {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits() as u64 ^ (ip.to_bits() >> 64) as u64,
        };
        local_eui64(bits)
    }

    /// The host's address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }
}

impl Device for MemoryDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: Self::NAME.into(), provider: "soft", node_guid: self.node_guid() }
    }

    /// # Errors
    ///
    /// [`ferroce_verbs::Error::Exhausted`] when the host has 255 contexts already.
    fn open(&self) -> Result<Context> {
        let place = self.network.claim(self.ip)?;
        Ok(Context::from_ops(SoftContext::in_memory(self.info(), place)?))
    }
}
