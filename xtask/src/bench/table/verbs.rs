//! The software device: latency, bandwidth and rate of the verbs, and many queue pairs.

use serde_json::Value;

use super::peers::{UCX_SHM, UCX_TCP, gb_per_s, latency, libfabric_latency, million_msgs_per_s, ucx};
use super::{Against, Bar, Group, Setting};
use crate::bench::ours;
use crate::error::Error;

pub(super) fn send_latency(setting: &Setting, link: &str) -> Result<f64, Error> {
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
                run: libfabric_latency,
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
];
