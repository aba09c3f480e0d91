//! The tool from end to end: its binary, two processes, real devices.

mod arguments;
mod bench;
mod perf;
mod pingpong;
mod rdmacm;
mod storm;
mod support;
