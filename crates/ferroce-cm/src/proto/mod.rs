//! The protocol of communication management (IBTA volume 1, chapter 12) as a state machine without I/O.
//!
//! An [`Endpoint`] is given messages, time and calls, and gives messages and events:
//!
//! ```text
//! connect, listen, accept, ... ──►┌──────────┐──► poll_event     tell the user
//! handle_mad(now, from, mad) ────►│ Endpoint │──► poll_transmit  send from QP 1 to QP 1
//! handle_timeout(now) ───────────►└──────────┘──► poll_timeout   call handle_timeout then
//! ```
//!
//! After each call, take what there is to send and the events, and set the timer. It never waits, and never fails because
//! of what a peer sends. An endpoint is not synchronised: whoever shares one puts a lock around it.
//!
//! # How connections begin and end
//!
//! ```text
//! active side                                     passive side
//! connect            REQ  ──────────────────────► ConnectRequest
//!                         ◄────────────────── MRA (it takes longer, if the REQ comes again meanwhile)
//! Response                ◄────────────────── REP accept
//! establish          RTU  ──────────────────────► Established
//! disconnect         DREQ ──────────────────────► Disconnected
//! Disconnected            ◄───────────────── DREP disconnect
//! TimewaitExit                                    TimewaitExit
//! destroy                                         destroy
//! ```
//!
//! Each side may `destroy` at any time, and then needs not do anything else. The peer is told whatever it takes.
//!
//! ```
//! use ferroce_cm::proto::*;
//! use ferroce_wire::cm::{PortSpace, ServiceId, TransportService};
//! use rand::{SeedableRng, rngs::StdRng};
//! use std::net::Ipv4Addr;
//!
//! // In production StdRng::from_os_rng().
//! let mut client = Endpoint::new(Config::new(0xc, 1), StdRng::seed_from_u64(1));
//! let mut server = Endpoint::new(Config::new(0x5, 1), StdRng::seed_from_u64(2));
//! let (here, there) = (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into());
//! let address = Address { local: here, remote: there, scope_id: 0 };
//! let service_id = ServiceId::from_port(PortSpace::Tcp, 7471);
//!
//! let bind = Bind::Any;
//! server.listen(&ListenParams { bind, service_id, service: Service::Connection, backlog: 0, cookie: 0 })?;
//! let psn = client.random_psn();
//! client.connect(0, &ConnectParams {
//!     address,
//!     service_id,
//!     transport: TransportService::Rc,
//!     qpn: 0x11,
//!     psn,
//!     responder_resources: 1,
//!     initiator_depth: 1,
//!     retry_count: 7,
//!     rnr_retry_count: 7,
//!     srq: false,
//!     pkey: 0xffff,
//!     path_mtu: 3,
//!     ack_timeout: 14,
//!     traffic_class: 0,
//!     flow_label: 0,
//!     hop_limit: 64,
//!     ece: None,
//!     private_data: b"hello",
//!     deadline: 5_000_000_000,
//!     cookie: 0,
//! })?;
//! // The network.
//! let req = client.poll_transmit().unwrap();
//! let from = Address { local: there, remote: here, scope_id: 0 };
//! server.handle_mad(10_000, &from, &req.mad);
//!
//! let Some(Event::ConnectRequest(request)) = server.poll_event() else { panic!() };
//! assert_eq!((request.remote_qpn, request.private_data.as_slice()), (0x11, &b"hello"[..]));
//! # Ok::<(), CmError>(())
//! ```
//!
//! # Where it differs from the kernel's ib_cm, with which it interoperates
//!
//! - A REQ that comes again while the REP is on its way is answered with the REP at once. While the user decides, it is
//!   answered with an MRA.
//! - What a connection was called is remembered until timewait is over: a late REQ does not become a new request.
//! - A full backlog is answered, and so is a REP that nobody waits for.
//! - Retries begin at 100 ms instead of 4.6 s, double, and have jitter. What limits them is a deadline.
//! - A destroyed connection sends its DREQ until it is answered.
//! - An RTU for a connection that is over, and a DREQ that overtakes its REP, are answered so that the peer does not take
//!   for established what has ended.
//! - Peers are told apart by address and GUID; a message from another address than the connection's is ignored.
//! - A REP that shows an older connection to be stale ends that one, and not the one that it is for.

mod comm_id;
mod config;
mod counters;
mod endpoint;
mod error;
mod event;
mod half_open;
mod index;
mod listen;
mod name;
mod params;
mod reject;
mod request;
mod response;
mod sidr;
mod slab;
mod state;
mod teardown;
mod timeout;
mod timers;
mod timewait;
mod wire;

pub use config::{Config, Limits, RetryPolicy};
pub use counters::{Counters, MessageCounts, Usage};
pub use endpoint::{Endpoint, Transmit};
pub use error::CmError;
pub use event::{ConnectRequest, DisconnectCause, Event, Rejected, Response, SidrRequest, SidrResponse, Unreachable};
pub use listen::{Bind, ListenParams, Service};
pub use name::{Address, ConnId, ListenId, SidrId};
pub use params::{AcceptParams, ConnectParams, Ece, ReceivedData, ResolveParams};
pub use sidr::SidrAnswer;
pub use state::State;

pub(crate) use request::nanos;
use state::Conn;

/// Nanoseconds since any moment that is the same for all calls of an endpoint.
pub type Nanos = u64;
