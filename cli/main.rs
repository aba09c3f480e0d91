//! The tool, run as its users run it.

mod arguments;
mod perf;
mod pingpong;
mod support;
