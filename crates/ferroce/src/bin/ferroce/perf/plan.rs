//! What is to be measured. The client decides it and tells the server, which checks it as the client did.

use super::transport::{self, Transport};
use crate::args::Link;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// Send and receive
    Send,
    /// RDMA write
    Write,
    /// RDMA read
    Read,
    /// 64-bit fetch-and-add
    Atomic,
    /// Active messages, of a transport
    Am,
    /// Write to the peer's memory, by a transport
    Put,
    /// Read the peer's memory, by a transport
    Get,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
            Self::Am => "am",
            Self::Put => "put",
            Self::Get => "get",
        }
    }

    /// Whether both ends send in turn when latency is measured.
    pub(crate) fn both_ends(self) -> bool {
        matches!(self, Self::Send | Self::Write | Self::Am | Self::Put)
    }
}

/// What is measured of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Lat,
    Bw,
    Rate,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lat => "lat",
            Self::Bw => "bw",
            Self::Rate => "rate",
        }
    }

    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::Lat => "--lat",
            Self::Bw => "--bw",
            Self::Rate => "--rate",
        }
    }
}

/// Bounds that both ends enforce.
pub(crate) const MAX_QPS: u32 = 1024;
const MAX_SIZE: u32 = 1 << 30;
const MAX_SIZES: usize = 64;
const MAX_DEPTH: u32 = 1 << 14;
const MAX_INLINE: u32 = 1 << 16;

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub(crate) op: Op,
    pub(crate) mode: Mode,
    pub(crate) link: Link,
    /// Of its operations; `None` for those of queue pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<Transport>,
    pub(crate) sizes: Vec<u32>,
    /// Work requests that may be outstanding on a queue pair.
    pub(crate) depth: u32,
    pub(crate) qps: u32,
    /// Iterations of each size; `None` for as many as the duration allows.
    pub(crate) iters: Option<u64>,
    pub(crate) duration_ms: u64,
    pub(crate) warmup: Option<u64>,
    pub(crate) events: bool,
    /// The path MTU in bytes; `None` for the largest that both ends carry.
    pub(crate) mtu: Option<u32>,
    /// Messages up to this size are sent inline.
    pub(crate) inline: u32,
    /// Work requests in one call.
    pub(crate) post_list: u32,
    /// Every so many-th work request is signaled.
    pub(crate) cq_mod: u32,
}

impl Plan {
    /// The defaults of a mode.
    pub(crate) fn new(op: Op, mode: Mode) -> Self {
        let (size, depth, post_list, cq_mod) = match mode {
            Mode::Lat => (8, 64, 1, if op.both_ends() { 32 } else { 1 }),
            Mode::Bw => (65536, 128, 1, 8),
            Mode::Rate => (8, 256, 32, 32),
        };
        Self {
            op,
            mode,
            link: Link::Auto,
            transport: None,
            sizes: vec![if op == Op::Atomic { 8 } else { size }],
            depth,
            qps: 1,
            iters: None,
            duration_ms: 1000,
            warmup: None,
            events: false,
            mtu: None,
            inline: 64,
            post_list,
            cq_mod,
        }
    }

    /// Checks every bound; says in a sentence what is wrong.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let wrong = |wrong: bool, why: &str| if wrong { Err(why.to_string()) } else { Ok(()) };
        match self.transport {
            Some(transport) => transport::validate(transport, self.op)?,
            None => wrong(matches!(self.op, Op::Am | Op::Put | Op::Get), "am, put and get are done by a transport")?,
        }
        wrong(self.transport.is_some() && self.qps != 1, "a transport is measured on one endpoint")?;
        wrong(self.sizes.is_empty() || self.sizes.len() > MAX_SIZES, "there are 1 to 64 message sizes")?;
        wrong(self.sizes.iter().any(|&size| size == 0 || size > MAX_SIZE), "a message size is from 1 byte to 1 GiB")?;
        wrong(self.op == Op::Atomic && self.sizes != [8], "an atomic has 8 bytes: leave --size out")?;
        wrong(self.qps == 0 || self.qps > MAX_QPS, "there are 1 to 1024 queue pairs")?;
        wrong(self.mode == Mode::Lat && self.qps != 1, "latency is measured on one queue pair")?;
        wrong(self.depth == 0 || self.depth > MAX_DEPTH, "the depth is from 1 to 16384")?;
        wrong(
            self.cq_mod == 0 || self.cq_mod > self.depth,
            "--cq-mod is from 1 to the depth: with none of the outstanding work requests signaled nothing would end",
        )?;
        wrong(
            self.mode == Mode::Lat && !self.op.both_ends() && self.cq_mod != 1,
            "the latency of reads and atomics is that of their completions: leave --cq-mod out",
        )?;
        wrong(self.post_list == 0 || self.post_list > self.depth, "--post-list is from 1 to the depth")?;
        wrong(self.iters == Some(0), "there is at least one iteration")?;
        wrong(self.duration_ms == 0 || self.duration_ms > 86_400_000, "the duration is from 1 ms to a day")?;
        wrong(self.inline > MAX_INLINE, "inline data has at most 64 KiB")?;
        wrong(
            self.mtu.is_some_and(|mtu| ferroce::Mtu::from_bytes(mtu).is_none()),
            "the path MTU is one of 256, 512, 1024, 2048, 4096",
        )?;
        wrong(
            self.events && matches!(self.op, Op::Write | Op::Put) && self.mode == Mode::Lat,
            "the latency of writes and puts polls memory, in which there are no events: leave --events out",
        )
    }

    /// The largest message.
    pub(crate) fn max_size(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(8)
    }

    /// Iterations before the measurement of `size`.
    pub(crate) fn warmup(&self, size: u32) -> u64 {
        /// Bytes that the warm-up moves at most.
        const BUDGET: u64 = 64 << 20;
        let most = self.iters.unwrap_or(u64::MAX);
        self.warmup.unwrap_or_else(|| (BUDGET / u64::from(size)).clamp(16, 1000).min(most))
    }

    /// Receives that a queue pair has posted. A message is acknowledged when the device has received it, so a sender can be
    /// further ahead of the receiving thread than its own depth, by as long as that thread does not get a processor.
    pub(crate) fn rx_depth(&self) -> u32 {
        (self.depth * 4).clamp(128, MAX_DEPTH)
    }

    /// Whether this end's queue pairs take receives.
    pub(crate) fn receives(&self) -> bool {
        self.op == Op::Send
    }

    /// Whether a message of `size` goes inline; `limit` is what the queue pair takes.
    pub(crate) fn is_inline(&self, size: u32, limit: u32) -> bool {
        self.op.both_ends() && size <= self.inline.min(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_the_wire_and_unknown_fields_do_not() {
        let plan = Plan::new(Op::Write, Mode::Bw);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
        let text = text.replacen('{', "{\"colour\":1,", 1);
        assert!(serde_json::from_str::<Plan>(&text).is_err());
    }

    #[test]
    fn warm_up_is_bounded() {
        let mut plan = Plan::new(Op::Write, Mode::Bw);
        assert_eq!(plan.warmup(8), 1000);
        assert_eq!(plan.warmup(8 << 20), 16);
        plan.iters = Some(5);
        assert_eq!(plan.warmup(8), 5);
        plan.warmup = Some(0);
        assert_eq!(plan.warmup(8), 0);
    }
}
