//! A verbs device without hardware: it speaks RoCEv2 from user space, with no NIC, no kernel module and no privilege.
//!
//! | module | the question it answers |
//! |---|---|
//! | `engine` | how do RC, UC and UD work? No I/O, no clock |
//! | [`link`] | how do packets travel? UDP, shared memory, and what can be put around them |
//! | [`host`] | which contexts share this machine's addresses? |
//! | [`addr`] | which addresses are those? |
//! | `driver` | who makes progress, and when? |
//! | [`memory`] | how does a device work without a machine? Virtual hosts and virtual time |
//! | `objects` | what stands behind a verbs handle? |

mod config;
mod device;
mod driver;
mod engine;
pub mod host;
pub mod link;
pub mod memory;
mod objects;
mod random;

pub use config::{FaultConfig, LinkMode, SoftConfig};
pub use device::SoftDevice;
/// Which addresses this machine has.
pub use ferroce_addr as addr;
