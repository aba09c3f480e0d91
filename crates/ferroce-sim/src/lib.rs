//! What if the network is hostile and time is ours?
#![forbid(unsafe_code)]
pub mod log;
