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
//! # A message over a connection
//!
//! Receives are posted before the peer can send: in the closure that both ends pass. There, errors are those of [`cm`].
//!
//! ```no_run
//! use ferroce::cm::{Connection, ConnectionManager, Endpoint, Listener};
//! use ferroce::{Access, Cq, QpInitAttr, QpType, RecvWr, SendWr, WorkCompletion};
//! use std::time::Duration;
//!
//! fn wait(cq: &Cq) -> ferroce::Result<WorkCompletion> {
//!     let mut completion = [WorkCompletion::default()];
//!     while cq.poll(&mut completion)? == 0 {}
//!     Ok(completion[0])
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = ferroce::open(None)?;
//! let cq = context.create_cq(64, None)?;
//! let (cm, pd) = (ConnectionManager::new(&context)?, context.alloc_pd()?);
//! let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
//! let endpoint = Endpoint { cm, pd, qp: QpInitAttr::new(QpType::Rc, &cq) };
//! let patience = Duration::from_secs(5);
//! if std::env::args().any(|arg| arg == "--serve") {
//!     let listener = Listener::bind(&endpoint, "0.0.0.0:7471".parse()?, 0)?;
//!     let incoming = listener.incoming(patience)?.ok_or("nobody came")?;
//!     let buffer = [mr.sge(..)?];
//!     let connection = incoming.accept(b"", patience, |qp| Ok(qp.post_recv(&[RecvWr::new(1, &buffer)])?))?;
//!     let received = wait(&cq)?;
//!     let mut message = vec![0; received.byte_len as usize];
//!     mr.read(0, &mut message)?;
//!     println!("{}: {}", received.status, String::from_utf8_lossy(&message));
//!     connection.wait_closed(patience)?;
//! } else {
//!     let connection = Connection::connect(&endpoint, "127.0.0.1:7471".parse()?, b"", patience, |_qp| Ok(()))?;
//!     mr.write(0, b"a message")?;
//!     connection.qp().post_send(&[SendWr::send(1, &[mr.sge(..9)?])])?;
//!     println!("{}", wait(&cq)?.status);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `FERROCE_DEVICE` | the device that [`open`] takes when it is given no name: `soft0`, or one of rdma-core such as `mlx5_0` or `rxe0` |
//! | `FERROCE_LIBIBVERBS` | the file of rdma-core's library, `libibverbs.so.1` by default |
//! | `FERROCE_LINK` | `auto`, `udp` or `shm`: the link that the software device sends on |
//! | `FERROCE_CAPTURE` | a pcap file that gets every packet of the software device |
//! | `FERROCE_FAULT` | faults to inject, such as `loss=0.01,dup=0.001,reorder=0.01,corrupt=0.001,seed=7` |
//! | `FERROCE_KEEPALIVE` | how long an idle peer may be silent until the software device asks it for a sign of life: `20s` by default, `inf` for never |
//! | `FERROCE_AH_CACHE_TTL` | how long an address handle that nobody holds stays fit for use: `inf` (default), `0` for no cache, or a time such as `100ms`, `1s`, `5m` |
//! | `FERROCE_AH_CACHE_MAX_AGE` | how old an address handle in the cache gets: `inf` (default) or a time |
//! | `FERROCE_AH_CACHE_CAPACITY` | how many address handles the cache of a context has: `inf` (default) or a number |
//! | `FERROCE_RUNTIME_DIR` | where the software devices of one user find each other |
#![forbid(unsafe_code)]

mod device;
pub mod environment;

pub use device::{devices, open, open_with};
#[doc(inline)]
pub use ferroce_cm as cm;
/// The devices that rdma-core's libibverbs drives.
pub use ferroce_rdmacore::{DeviceGone, RdmaDevice, Unavailable, devices as rdma_core_devices};
pub use ferroce_soft::{FaultConfig, LinkMode, SoftConfig, SoftDevice};
/// Messages between endpoints, and one-sided operations: ud_verbs and rc_verbs, and what they have in common.
pub use ferroce_transport as transport;
pub use ferroce_verbs::provider::Device;
pub use ferroce_verbs::*;

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
