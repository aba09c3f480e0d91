//! What is measured, against whom, and how good it has to be. Everything that one may want to change is in this file.

use std::time::Duration;

use serde_json::Value;

use super::ours::{self, Programs};
use super::{bed, libfabric, ucx};
use crate::error::Error;

/// What the run of a contender may use.
pub(super) struct Setting {
    pub(super) programs: Programs,
    /// How long one run measures.
    pub(super) time: Duration,
    /// Which round it is, from 0: a seed for what is random.
    pub(super) round: u32,
}

impl Setting {
    /// The measured time as a share of a second.
    fn share(&self) -> f64 {
        self.time.as_secs_f64()
    }
}

/// Measures once; the figure is in the unit of the group.
pub(super) type Run = fn(&Setting) -> Result<f64, Error>;

/// Figures that are measured alternately.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    pub(super) ours: Run,
    pub(super) against: &'static [Against],
}

/// What our figure is compared with.
pub(super) enum Against {
    /// Another program, or ourselves under other conditions. The bar is for the ratio, ours to the peer's.
    Peer { name: &'static str, bar: Option<Bar>, run: Run },
    /// Nothing: the bar is for our figure.
    Alone(Bar),
}

/// How good it has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    pub(super) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "<= {limit}"),
            Self::AtLeast(limit) => write!(f, ">= {limit}"),
        }
    }
}

/// UCX with everything that it has for processes of one machine.
const UCX_SHM: &str = "posix,cma,self";
const UCX_TCP: &str = "tcp,self";

const fn ucx(transports: &'static str, name: &'static str, size: u64, iterations: u64) -> ucx::Test {
    ucx::Test { transports, name, size, iterations }
}

fn latency(test: &ucx::Test, setting: &Setting) -> Result<f64, Error> {
    Ok(test.run(setting.share())?.median_us)
}

fn gb_per_s(test: &ucx::Test, setting: &Setting) -> Result<f64, Error> {
    Ok(test.run(setting.share())?.msgs_per_s * test.size as f64 / 1e9)
}

fn million_msgs_per_s(test: &ucx::Test, setting: &Setting) -> Result<f64, Error> {
    Ok(test.run(setting.share())?.msgs_per_s / 1e6)
}

fn send_latency(setting: &Setting, link: &str) -> Result<f64, Error> {
    setting.programs.perf(&["send", "--lat", "--size", "8", "--link", link], None, setting.time, ours::median_us)
}

fn write_bandwidth(setting: &Setting, link: &str, fault: Option<&str>) -> Result<f64, Error> {
    setting.programs.perf(&["write", "--bw", "--size", "64K", "--link", link], fault, setting.time, ours::gb_per_s)
}

fn send_rate(setting: &Setting, link: &str) -> Result<f64, Error> {
    setting.programs.perf(
        &["send", "--rate", "--size", "8", "--link", link],
        None,
        setting.time,
        ours::million_msgs_per_s,
    )
}

/// Many queue pairs, and few to compare with.
const MANY: &str = "10000";
const FEW: &str = "10";

fn post_cost(setting: &Setting, qps: &str, value: fn(&Value) -> Option<f64>) -> Result<f64, Error> {
    setting.programs.many_qps(&["post", qps, &setting.share().to_string()], value)
}

fn on_few(json: &Value) -> Option<f64> {
    json["ns_per_post"].as_f64()
}

fn on_all(json: &Value) -> Option<f64> {
    json["ns_per_post_on_all"].as_f64()
}

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "send-latency-shm",
        what: "RC send of 8 bytes over shared memory, half a round trip, both ends polling",
        unit: "µs",
        ours: |setting| send_latency(setting, "shm"),
        against: &[Against::Peer {
            name: "UCX posix, ucp_am_lat",
            bar: Some(Bar::AtMost(1.0)),
            run: |setting| latency(&ucx(UCX_SHM, "ucp_am_lat", 8, 500_000), setting),
        }],
    },
    Group {
        name: "send-latency-udp",
        what: "RC send of 8 bytes over UDP on the loopback interface, half a round trip, both ends polling",
        unit: "µs",
        ours: |setting| send_latency(setting, "udp"),
        against: &[
            Against::Peer {
                name: "raw UDP sockets",
                bar: Some(Bar::AtMost(1.5)),
                run: |setting| setting.programs.limit("latency", setting.time),
            },
            Against::Peer {
                name: "UCX tcp, ucp_am_lat",
                bar: Some(Bar::AtMost(1.0)),
                run: |setting| latency(&ucx(UCX_TCP, "ucp_am_lat", 8, 50_000), setting),
            },
            Against::Peer {
                name: "libfabric udp;ofi_rxd, fi_pingpong (mean)",
                bar: Some(Bar::AtMost(1.0)),
                run: |setting| libfabric::latency((10_000.0 * setting.share()).ceil() as u64),
            },
        ],
    },
    Group {
        name: "write-bandwidth-shm",
        what: "RDMA writes of 64 KiB over shared memory",
        unit: "GB/s",
        ours: |setting| write_bandwidth(setting, "shm", None),
        against: &[Against::Peer {
            name: "UCX posix/cma, ucp_am_bw",
            bar: Some(Bar::AtLeast(1.0)),
            run: |setting| gb_per_s(&ucx(UCX_SHM, "ucp_am_bw", 65_536, 100_000), setting),
        }],
    },
    Group {
        name: "write-bandwidth-udp",
        what: "RDMA writes of 64 KiB over UDP on the loopback interface",
        unit: "GB/s",
        ours: |setting| write_bandwidth(setting, "udp", None),
        against: &[
            Against::Peer {
                name: "UCX tcp, ucp_am_bw",
                bar: Some(Bar::AtLeast(2.0)),
                run: |setting| gb_per_s(&ucx(UCX_TCP, "ucp_am_bw", 65_536, 20_000), setting),
            },
            Against::Peer {
                name: "raw UDP sockets with GSO and GRO",
                bar: None,
                run: |setting| setting.programs.limit("bandwidth", setting.time),
            },
        ],
    },
    Group {
        name: "send-rate-shm",
        what: "RC sends of 8 bytes over shared memory",
        unit: "M/s",
        ours: |setting| send_rate(setting, "shm"),
        against: &[Against::Peer {
            name: "UCX posix, ucp_am_bw",
            bar: Some(Bar::AtLeast(1.0)),
            run: |setting| million_msgs_per_s(&ucx(UCX_SHM, "ucp_am_bw", 8, 5_000_000), setting),
        }],
    },
    Group {
        name: "send-rate-udp",
        what: "RC sends of 8 bytes over UDP on the loopback interface",
        unit: "M/s",
        ours: |setting| send_rate(setting, "udp"),
        against: &[
            Against::Peer {
                name: "UCX tcp, ucp_am_bw",
                bar: Some(Bar::AtLeast(5.0)),
                run: |setting| million_msgs_per_s(&ucx(UCX_TCP, "ucp_am_bw", 8, 500_000), setting),
            },
            Against::Peer {
                name: "raw UDP sockets with GSO and GRO",
                bar: None,
                run: |setting| setting.programs.limit("rate", setting.time),
            },
        ],
    },
    Group {
        name: "goodput-loss",
        what: "RDMA writes of 64 KiB over UDP while each end loses 1 % of what it sends",
        unit: "GB/s",
        ours: |setting| {
            let fault = format!("loss=0.01,seed={}", setting.round);
            write_bandwidth(setting, "udp", Some(&fault))
        },
        against: &[Against::Peer {
            name: "ferroce without loss",
            bar: Some(Bar::AtLeast(0.5)),
            run: |setting| write_bandwidth(setting, "udp", None),
        }],
    },
    Group {
        name: "qp-memory",
        what: "memory of a connected idle RC queue pair among 10,000, beyond the rings asked for",
        unit: "KiB",
        ours: |setting| {
            setting.programs.many_qps(&["memory", MANY], |json| Some(json["bytes_per_qp"].as_f64()? / 1024.0))
        },
        against: &[Against::Alone(Bar::AtMost(4.0))],
    },
    Group {
        name: "qp-post",
        what: "post and completion of an 8-byte RDMA write, on 8 queue pairs in turn, while 10,000 are connected",
        unit: "ns",
        ours: |setting| post_cost(setting, MANY, on_few),
        against: &[Against::Peer {
            name: "ferroce with 10 queue pairs",
            bar: Some(Bar::AtMost(1.3)),
            run: |setting| post_cost(setting, FEW, on_few),
        }],
    },
    Group {
        name: "qp-post-all",
        what: "the same on all 10,000 in turn, which the processor's caches may not hold",
        unit: "ns",
        ours: |setting| post_cost(setting, MANY, on_all),
        against: &[Against::Peer {
            name: "ferroce with 10 queue pairs",
            bar: None,
            run: |setting| post_cost(setting, FEW, on_all),
        }],
    },
    Group {
        name: BED,
        what: "all steps of one of 1000 connections within one host, in the emulated machine of the test bed",
        unit: "µs",
        ours: |setting| bed::us_per_connection(&setting.programs.root, "ferroce"),
        against: &[
            Against::Peer {
                name: "librdmacm over the kernel's ib_cm and Soft-RoCE",
                bar: Some(Bar::AtMost(0.2)),
                run: |setting| bed::us_per_connection(&setting.programs.root, "librdmacm"),
            },
            Against::Peer {
                name: "ferroce over UDP",
                bar: None,
                run: |setting| bed::us_per_connection(&setting.programs.root, "ferroce-udp"),
            },
        ],
    },
];

/// The one group that needs the test bed.
pub(super) const BED: &str = "connect-bed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_include_their_limit() {
        assert!(Bar::AtMost(1.5).is_met(1.5) && !Bar::AtMost(1.5).is_met(1.51));
        assert!(Bar::AtLeast(0.5).is_met(0.5) && !Bar::AtLeast(0.5).is_met(0.49));
        assert!(!Bar::AtLeast(0.5).is_met(f64::NAN) && !Bar::AtMost(0.5).is_met(f64::NAN));
        assert_eq!((Bar::AtMost(1.0).to_string(), Bar::AtLeast(0.5).to_string()), ("<= 1".into(), ">= 0.5".into()));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = GROUPS.iter().map(|group| group.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), GROUPS.len());
    }
}
