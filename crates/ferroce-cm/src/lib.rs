//! How connections begin and end: InfiniBand communication management.
//!
//! [`proto`] is the protocol (IBTA volume 1, chapter 12) as a state machine without I/O.
#![forbid(unsafe_code)]

pub mod proto;
