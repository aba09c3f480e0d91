//! A network that exists only in memory, with a clock of its own: for unit tests of programs that use verbs, and for
//! the simulator.
//!
//! Nothing here has threads, sockets or waits. A [`MemoryNetwork`] holds packets in flight and what the engines of its hosts
//! wait for; [`MemoryNetwork::step`] takes the next event in order of virtual time, so a seed reproduces a run
//! exactly. Packets are RoCEv2 packets as they are on a wire, ICRC included: a bit that the network flips is
//! caught where a real one would be.
//!
//! ```
//! use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
//! use ferroce_verbs::provider::Device;
//! use ferroce_verbs::{Access, AhAttr, Mtu, QpAttr, QpInitAttr, QpType, RecvWr, SendWr, WorkCompletion};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let network = MemoryNetwork::new(MemoryConfig::default());
//! let mut ends = Vec::new();
//! for ip in ["10.0.0.1", "10.0.0.2"] {
//!     let context = network.host(ip.parse()?).open()?;
//!     let pd = context.alloc_pd()?;
//!     let cq = context.create_cq(16, None)?;
//!     let qp = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq))?;
//!     qp.modify(&QpAttr::init(Access::empty()))?;
//!     ends.push((context.query_gid(1, 0)?.gid, qp, cq, pd.alloc_mr(64, Access::LOCAL_WRITE)?));
//! }
//! let [a, b] = &ends[..] else { unreachable!() };
//! for (from, to) in [(a, b), (b, a)] {
//!     from.1.modify(&QpAttr::rtr(AhAttr::roce(to.0, 0), Mtu::Mtu1024, to.1.qp_num(), 0))?;
//!     from.1.modify(&QpAttr::rts(0))?;
//! }
//! b.1.post_recv(&[RecvWr::new(1, &[b.3.sge(..)?])])?;
//! a.1.post_send(&[SendWr::send(2, &[a.3.sge(..)?])])?;
//! let mut wc = [WorkCompletion::default()];
//! assert_eq!(b.2.poll(&mut wc)?, 1);
//! assert_eq!((wc[0].wr_id, wc[0].byte_len), (1, 64));
//! # Ok(())
//! # }
//! ```

mod config;
mod device;
mod faults;
mod network;
mod port;
mod queue;
mod trace;
mod traffic;

pub use crate::random::Random;
pub use config::{Clock, MemoryConfig};
pub use device::MemoryDevice;
pub use faults::{Arrival, Fate, FaultPolicy, Flips, InFlight, MemoryFaults, RandomFaults};
pub use network::MemoryNetwork;
pub(crate) use port::{MemoryPlace, MemoryPort};
pub use trace::{MemoryStats, TraceEvent, TraceKind};
