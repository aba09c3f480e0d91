//! rc_verbs: one-sided operations, atomics and active messages over RC queue pairs.
//!
//! [`RcVerbs`] is an interface; its endpoints ([`RcEndpoint`]) have a queue pair each, and share a receive queue, a completion queue and the
//! transport's own buffers. They are connected by exchanged addresses ([`RcVerbs::create_endpoint`], [`RcEndpoint::connect_to_ep`]), or through the
//! connection manager ([`RcVerbs::connect`], [`RcListener`]). What can be done with them is [`crate::uct::Endpoint`], with its contracts.
//!
//! - *Flow control.* A peer may send as many messages as it was granted; a grant states a running total, so that one that comes twice grants
//!   nothing twice. Who has no credits left finds no resources.
//! - *Failure.* A queue pair that fails takes with it its endpoint and nothing else: what was posted completes once, whoever wanted to know is
//!   told once. What it failed of says the first completion with an error.
//! - *Teardown.* A dropped endpoint moves its queue pair to ERR and posts one more work request behind all others. The queue pair and
//!   all that it names exist until that one is complete (reports UCX 7080, 8461, 4815, 5754); nobody waits for it.
//!
//! # Threads
//!
//! Every call may be made from any thread. An endpoint's state has a lock of its own, which threads that use different endpoints do not share.

mod address;
mod clock;
mod connect;
mod core;
mod counters;
mod credits;
mod dispatch;
mod endpoint;
mod fate;
mod handlers;
mod interface;
mod keepalive;
mod options;
mod pool;
mod progress;
mod receives;
mod ring;
mod table;
mod wire;

pub use address::EndpointAddress;
pub use connect::{ConnectError, RcIncoming, RcListener};
pub use counters::RcCounters;
pub use endpoint::RcEndpoint;
pub use interface::RcVerbs;
pub use options::RcOptions;

use self::interface::Shared;

/// The transport's name.
const NAME: &str = "rc_verbs";
