//! How connections begin and end: InfiniBand communication management, with the vocabulary of rdma_cm.
//!
//! The short path is [`Connection`] and [`Listener`]; below it are [`EventChannel`]s, [`Id`]s and [`Event`]s, as in librdmacm but for
//! one thing: every call may be made from any thread at any time. One thread may read events while others destroy queue pairs and
//! ids, before, during and after connection setup. Nothing waits for an event to be acknowledged, because events are counted
//! references; nothing is freed under anybody, because ids and queue pairs are too.
//!
//! Ids of the port space UDP have no connections: a client asks which queue pair of the peer serves a port (SIDR), and is told number,
//! Q_Key and address. The calls and events are the same. They may also join multicast groups.
//!
//! # Rules
//!
//! - After [`Id::destroy`] has returned, no reader begins to deliver an event for the id.
//! - Calls on an id that another thread destroys either take effect before that or return [`Error::Destroyed`]. A call of several steps
//!   ([`Id::create_qp`], [`Id::resolve_addr`], [`Id::listen`], [`Id::accept`], [`Id::establish`], [`Id::join_multicast`]) that finds it destroyed between
//!   two of them returns that, too, and leaves nothing behind: neither a queue pair, nor a port, nor a membership; what it had begun with the
//!   peer, destroying ends.
//! - To close a channel is not to destroy its ids: calls on them go on as before, only that nobody is told what follows.
//! - The events of one id are processed in order, whatever the number of readers.
//! - The transitions of an id's queue pair exclude each other; they exclude nothing else. No lock that [`Id::destroy`] would wait for is held
//!   across a transition, or across anything that may block. What this crate's own protocol has to say leaves under the lock of the id that
//!   says it, so that its messages leave in order: sending them does not block, nor does finding the peer in the kernel's tables.
//! - Wakers are called with no lock held: they may call anything of this crate.
//!
//! [`proto`] is the protocol itself (IBTA volume 1, chapter 12) as a state machine without I/O.
#![forbid(unsafe_code)]

mod alarm;
mod backend;
mod channel;
mod connection;
mod error;
mod event;
mod id;
mod kernel;
mod later;
mod manager;
#[cfg(test)]
mod model;
pub mod proto;
mod services;
mod sync;

pub use backend::ConnectionManager;
pub use channel::{EventChannel, NextEvent};
pub use connection::{Connection, Endpoint, Incoming, Listener};
pub use error::{Error, Refusal, Result};
pub use event::{Event, EventKind, Offer, UdParam};
pub use id::{ConnParam, Id, Membership, Options, Phase, SetupIn, UDP_QKEY};

/// The port spaces of rdma_cm, which keep connections and datagram services apart.
pub use ferroce_wire::cm::{PortSpace, RejectReason};
