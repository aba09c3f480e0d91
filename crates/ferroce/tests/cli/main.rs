//! The tool from end to end: its binary, two processes, real devices.

mod arguments;
mod bench;
mod perf;
mod pingpong;
mod rdmacm;
mod rping;
mod storm;
mod support;
