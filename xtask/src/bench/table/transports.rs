//! Active messages of the transports, beside plain verbs, UCX and libfabric.

use serde_json::Value;

use super::peers::{UCX_SHM, UCX_TCP, gb_per_s, latency, libfabric_latency, million_msgs_per_s, ucx};
use super::verbs::send_latency;
use super::{Against, Bar, Group, Setting};
use crate::bench::ours;
use crate::error::Error;

/// `ferroce perf am` over a transport.
fn am(
    setting: &Setting,
    transport: &str,
    args: &[&str],
    fault: Option<&str>,
    value: fn(&Value) -> Option<f64>,
) -> Result<f64, Error> {
    let args = [&["am", "--transport", transport], args].concat();
    setting.programs.perf(&args, fault, setting.time, value)
}

fn am_latency(setting: &Setting, transport: &str, link: &str) -> Result<f64, Error> {
    am(setting, transport, &["--lat", "--size", "8", "--link", link], None, ours::median_us)
}

fn am_rate(setting: &Setting, transport: &str, link: &str) -> Result<f64, Error> {
    am(setting, transport, &["--rate", "--size", "8", "--link", link], None, ours::million_msgs_per_s)
}

fn goodput(setting: &Setting, fault: Option<&str>) -> Result<f64, Error> {
    am(setting, "ud_verbs", &["--bw", "--size", "4000", "--link", "udp"], fault, ours::gb_per_s)
}

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "am-latency-shm",
        what: "active message of 8 bytes over ud_verbs and shared memory, half a round trip",
        unit: "µs",
        ours: |setting| am_latency(setting, "ud_verbs", "shm"),
        against: &[
            Against::Peer {
                name: "RC send over shared memory",
                bar: Some(Bar::AtMost(1.3)),
                run: |setting| send_latency(setting, "shm"),
            },
            Against::Peer {
                name: "ferroce over rc_verbs",
                bar: None,
                run: |setting| am_latency(setting, "rc_verbs", "shm"),
            },
            Against::Peer {
                name: "UCX posix, ucp_am_lat",
                bar: None,
                run: |setting| latency(&ucx(UCX_SHM, "ucp_am_lat", 8, 500_000), setting),
            },
        ],
    },
    Group {
        name: "am-latency-udp",
        what: "the same over UDP on the loopback interface",
        unit: "µs",
        ours: |setting| am_latency(setting, "ud_verbs", "udp"),
        against: &[
            Against::Peer {
                name: "RC send over UDP",
                bar: Some(Bar::AtMost(1.3)),
                run: |setting| send_latency(setting, "udp"),
            },
            Against::Peer {
                name: "ferroce over rc_verbs",
                bar: None,
                run: |setting| am_latency(setting, "rc_verbs", "udp"),
            },
            Against::Peer {
                name: "UCX tcp, ucp_am_lat",
                bar: Some(Bar::AtMost(0.999)),
                run: |setting| latency(&ucx(UCX_TCP, "ucp_am_lat", 8, 50_000), setting),
            },
            Against::Peer {
                name: "libfabric udp;ofi_rxd, fi_pingpong (mean)",
                bar: Some(Bar::AtMost(0.999)),
                run: libfabric_latency,
            },
        ],
    },
    Group {
        name: "am-rate-udp",
        what: "active messages of 8 bytes over ud_verbs and UDP on the loopback interface",
        unit: "M/s",
        ours: |setting| am_rate(setting, "ud_verbs", "udp"),
        against: &[
            Against::Peer {
                name: "UCX tcp, ucp_am_bw",
                bar: Some(Bar::AtLeast(1.001)),
                run: |setting| million_msgs_per_s(&ucx(UCX_TCP, "ucp_am_bw", 8, 500_000), setting),
            },
            Against::Peer {
                name: "ferroce over rc_verbs",
                bar: None,
                run: |setting| am_rate(setting, "rc_verbs", "udp"),
            },
        ],
    },
    Group {
        name: "am-goodput-loss",
        what: "active messages of 4,000 bytes, which fill a packet, over ud_verbs and UDP while each end loses 1 % of what it sends",
        unit: "GB/s",
        ours: |setting| goodput(setting, Some(&format!("loss=0.01,seed={}", setting.round))),
        against: &[
            Against::Peer {
                name: "ferroce without loss",
                bar: Some(Bar::AtLeast(0.8)),
                run: |setting| goodput(setting, None),
            },
            Against::Peer {
                name: "UCX tcp without loss, ucp_am_bw",
                bar: None,
                run: |setting| gb_per_s(&ucx(UCX_TCP, "ucp_am_bw", 4096, 200_000), setting),
            },
        ],
    },
];
