//! Transports: messages between endpoints, over queue pairs.
//!
//! | module | the question it answers |
//! |---|---|
//! | [`uct`] | what do all transports have in common? UCT's surface and contracts |
//! | [`rc_verbs`] | what does that take with RC queue pairs? |
//! | [`ud`] | how do datagrams become reliable messages? No I/O, no clock |
//! | [`ud_verbs`] | what does that take of a device? One UD queue pair, and leased address handles |

#![forbid(unsafe_code)]

mod local;
pub mod rc_verbs;
pub mod uct;
pub mod ud;
pub mod ud_verbs;
