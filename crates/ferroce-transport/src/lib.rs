//! Transports: messages between endpoints, over queue pairs.
//!
//! | module | the question it answers |
//! |---|---|
//! | [`ud`] | how do datagrams become reliable messages? No I/O, no clock |

#![forbid(unsafe_code)]

pub mod ud;
