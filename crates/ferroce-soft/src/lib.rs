//! A verbs device without hardware: it speaks RoCEv2 from user space, with no NIC, no kernel module and no privilege.

pub mod addr;
mod config;
mod device;
mod driver;
mod engine;
pub mod host;
pub mod link;
pub mod memory;
mod objects;

pub use config::{FaultConfig, LinkMode, SoftConfig};
pub use device::SoftDevice;
