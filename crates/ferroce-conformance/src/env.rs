use crate::fixture::Wait;
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Context, DeviceAttr, Error, GidEntry, Mtu, Result};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// One of the two ends that every case has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that mostly sends.
    A,
    /// The end that mostly receives.
    B,
}

/// An open device and the address it is reached by.
#[derive(Clone, Debug)]
pub struct Side {
    /// The device.
    pub context: Context,
    /// The port, from 1.
    pub port: u8,
    /// The local address to send from and to be sent to.
    pub gid: GidEntry,
}

/// Where the two ends come from: one device opened twice, or two devices that reach each other.
pub trait Testbed: Send + Sync {
    /// Opens the device of `end`. Each call gives a context of its own.
    ///
    /// # Errors
    ///
    /// Whatever the device says.
    fn open(&self, end: End) -> Result<Side>;
}

/// Both ends on one device.
pub struct OneDevice {
    device: Arc<dyn Device>,
    ip: Option<IpAddr>,
}

impl OneDevice {
    /// Opens `device` for both ends. They talk over the local address `ip`, or over the one whose network device carries
    /// the largest packets.
    pub fn new(device: Arc<dyn Device>, ip: Option<IpAddr>) -> Self {
        Self { device, ip }
    }
}

impl Testbed for OneDevice {
    fn open(&self, _end: End) -> Result<Side> {
        const PORT: u8 = 1;
        let context = self.device.open()?;
        let gid = match self.ip {
            Some(ip) => context.find_gid(PORT, ip)?,
            None => {
                let table = context.gid_table(PORT)?;
                // A link-local address says nothing without its scope, so it is the last choice. Of equals the first.
                let best = table.into_iter().rev().max_by_key(|entry| (!is_link_local(entry.ip()), entry.mtu));
                best.ok_or_else(|| Error::NotFound {
                    what: "GID",
                    name: "to send from".into(),
                    hint: "the device has no address: bring a network interface up".into(),
                })?
            }
        };
        Ok(Side { context, port: PORT, gid })
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => Ipv6Addr::is_unicast_link_local(&ip),
    }
}

/// What a case works with: two ends that nobody else uses.
pub struct Env {
    /// One end.
    pub a: Side,
    /// The other end.
    pub b: Side,
    /// How to wait for something that must happen.
    pub wait: Wait,
    testbed: Arc<dyn Testbed>,
}

impl Env {
    /// Opens both ends.
    ///
    /// # Errors
    ///
    /// Whatever the devices say.
    pub fn open(testbed: Arc<dyn Testbed>, deadline: Duration) -> Result<Self> {
        let (a, b) = (testbed.open(End::A)?, testbed.open(End::B)?);
        Ok(Self { a, b, wait: Wait::new(deadline), testbed })
    }

    /// Opens the device of `end` once more.
    ///
    /// # Errors
    ///
    /// Whatever the device says.
    pub fn open_again(&self, end: End) -> Result<Side> {
        self.testbed.open(end)
    }

    /// The largest MTU that both ends can use to each other.
    pub fn max_mtu(&self) -> Mtu {
        self.a.gid.mtu.min(self.b.gid.mtu)
    }

    /// What the devices of both ends can do, as far as queue pairs are concerned that both create alike.
    ///
    /// # Errors
    ///
    /// Whatever the devices say.
    pub fn both(&self) -> Result<DeviceAttr> {
        let (a, b) = (self.a.context.query_device()?, self.b.context.query_device()?);
        Ok(DeviceAttr {
            max_sge: a.max_sge.min(b.max_sge),
            max_qp_wr: a.max_qp_wr.min(b.max_qp_wr),
            max_inline_data: a.max_inline_data.min(b.max_inline_data),
            ..a
        })
    }

    /// What the device of `a` can do.
    ///
    /// # Errors
    ///
    /// Whatever the device says.
    pub fn device(&self) -> Result<DeviceAttr> {
        self.a.context.query_device()
    }
}
