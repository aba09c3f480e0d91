//! What rdma-core's libibverbs is in memory: the types of its ABI, its inline verbs, and a loader; and what the kernel's connection manager is
//! as a file.
//!
//! Nothing here needs C headers or a C compiler to build, and nothing is linked: [`load`] opens the library when it is first
//! asked for. A program that uses this crate starts where no RDMA software is installed, and [`Unavailable`] says then what is
//! missing and how to get it.
//!
//! | module | the question it answers |
//! |---|---|
//! | [`types`] | what do the structures look like? Names, order and sizes are those of `infiniband/verbs.h` |
//! | [`inline`] | what are the verbs that the header implements itself, through tables of functions in the objects? |
//! | [`Library`] | what are the verbs that the library exports? |
//! | [`rdma_cm`] | how is the kernel's connection manager driven, through its device file? |
//! | [`Host`] | why is there no device: no library, no kernel support, no device, no device file, no permission? |
//!
//! The layouts are those of 64-bit Linux with any libc whose `pthread` types the `libc` crate knows; nothing was ever compared elsewhere,
//! so elsewhere this crate does not compile. A test compares
//! them with the installed headers where there are some.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the structures of libibverbs are known for 64-bit Linux only");

mod host;
pub mod inline;
mod library;
pub mod rdma_cm;
pub mod types;
mod unavailable;

pub use host::Host;
pub use library::{ENV_PATH, Library, load};
pub use unavailable::Unavailable;
