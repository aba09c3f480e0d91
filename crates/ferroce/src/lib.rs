//! RDMA on any Linux machine: the crate that a program depends on.
//!
//! [`open`] gives a [`Context`]; from there on everything is the verbs vocabulary of `ferroce-verbs`, which this crate
//! re-exports whole. Connections are managed by [`cm`]; [`transport`] sends messages without connections to manage.
//!
//! ```no_run
//! use ferroce::{Access, QpInitAttr, QpType};
//!
//! # fn main() -> ferroce::Result<()> {
//! let context = ferroce::open(None)?;
//! let pd = context.alloc_pd()?;
//! let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
//! let cq = context.create_cq(64, None)?;
//! let qp = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq))?;
//! println!("queue pair {:#08x}, {} bytes registered", qp.qp_num(), mr.len());
//! # Ok(())
//! # }
//! ```
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `FERROCE_DEVICE` | the device that [`open`] takes when it is given no name |
//! | `FERROCE_LINK` | `auto`, `udp` or `shm`: the link that the software device sends on |
//! | `FERROCE_CAPTURE` | a pcap file that gets every packet of the software device |
//! | `FERROCE_FAULT` | faults to inject, such as `loss=0.01,dup=0.001,reorder=0.01,corrupt=0.001,seed=7` |
//! | `FERROCE_AH_CACHE_TTL` | how long an address handle that nobody holds stays fit for use: `inf` (default), `0` for no cache, or a time such as `100ms`, `1s`, `5m` |
//! | `FERROCE_AH_CACHE_MAX_AGE` | how old an address handle in the cache gets: `inf` (default) or a time |
//! | `FERROCE_AH_CACHE_CAPACITY` | how many address handles the cache of a context has: `inf` (default) or a number |
//! | `FERROCE_RUNTIME_DIR` | where the software devices of one user find each other |
#![forbid(unsafe_code)]

mod device;
pub mod environment;

pub use device::{devices, open, open_with};
/// How connections begin and end: ids, event channels, events.
pub use ferroce_cm as cm;
pub use ferroce_soft::{FaultConfig, LinkMode, SoftConfig, SoftDevice};
/// Messages between endpoints: ud_verbs.
pub use ferroce_transport as transport;
pub use ferroce_verbs::provider::Device;
pub use ferroce_verbs::*;
