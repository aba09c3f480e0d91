//! Transports: messages between endpoints, over queue pairs.
//!
//! | module | the question it answers |
//! |---|---|
//! | [`uct`] | what do all transports have in common? UCT's surface and contracts |
//! | [`ud`] | how do datagrams become reliable messages? No I/O, no clock |
//! | [`ud_verbs`] | what does that take of a device? One UD queue pair, and leased address handles |

#![forbid(unsafe_code)]

pub mod uct;
pub mod ud;
pub mod ud_verbs;
