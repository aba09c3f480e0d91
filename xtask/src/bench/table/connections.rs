//! Connections: what one costs, and what those who close them cost those who set them up.

use serde_json::Value;

use super::{Against, Bar, Group, Setting};
use crate::bench::bed;
use crate::error::Error;

/// The groups that need the test bed.
pub(in crate::bench) const BED: &[&str] = &[
    CONNECT_BED,
    STORM_BED,
    STORM_BED_SETUP,
    STORM_BED_SLOW,
    STORM_BED_SLOW_SETUP,
    STORM_BED_SLOWER,
    STORM_BED_SLOWER_SETUP,
];
const CONNECT_BED: &str = "connect-bed";
const STORM_BED: &str = "storm-bed";
const STORM_BED_SETUP: &str = "storm-bed-setup";
const STORM_BED_SLOW: &str = "storm-bed-slow-nic";
const STORM_BED_SLOW_SETUP: &str = "storm-bed-slow-nic-setup";
const STORM_BED_SLOWER: &str = "storm-bed-slow-nic-10";
const STORM_BED_SLOWER_SETUP: &str = "storm-bed-slow-nic-10-setup";

/// A storm in the bed.
struct BedStorm {
    /// What it does with the NIC, and by how much longer that takes.
    nic: (&'static str, u32),
    /// Emulated programs are slow as long as their code is new, so there are as many as there is time for.
    connections: f64,
}

const NO_NIC: BedStorm = BedStorm { nic: ("none", 1), connections: 4000.0 };
const SLOW_NIC: BedStorm = BedStorm { nic: ("slow", 1), connections: 3000.0 };
/// As much slower than a NIC as the emulated processor is at least than this one (a connection takes 13 times as long there).
const SLOWER_NIC: BedStorm = BedStorm { nic: ("slow", 10), connections: 1000.0 };

/// `ferroce storm`, of `connections` connections.
fn storm(setting: &Setting, connections: f64, args: &[&str], value: fn(&Value) -> Option<f64>) -> Result<f64, Error> {
    let connections = setting.times(connections);
    let args = [&["storm", "--json", "-n", &connections], args].concat();
    // Figures of a run in which something went wrong are worth nothing; the program's status says so.
    setting.document(&args, value)
}

fn setup_mean_us(json: &Value) -> Option<f64> {
    json["runs"][0]["setup_us"]["mean"].as_f64()
}

fn setup_p99_us(json: &Value) -> Option<f64> {
    json["runs"][0]["setup_us"]["p99"].as_f64()
}

fn processor_us(json: &Value) -> Option<f64> {
    json["runs"][0]["cpu_us_per_connection"].as_f64()
}

fn processor_us_of_tcp(json: &Value) -> Option<f64> {
    json["tcp"]["runs"][0]["cpu_us_per_connection"].as_f64()
}

/// The calls of a queue pair take as long as on a NIC.
fn slow(setting: &Setting, policy: &str, threads: &str, setup: &str) -> Result<f64, Error> {
    let args = ["--nic", "slow", "--policy", policy, "--io-threads", threads, "--setup-in", setup];
    storm(setting, 1500.0, &args, setup_mean_us)
}

fn beside_tcp(setting: &Setting, link: &str, value: fn(&Value) -> Option<f64>) -> Result<f64, Error> {
    storm(setting, 20_000.0, &["--link", link, "--io-threads", "1", "--baseline", "tcp"], value)
}

/// So many that what follows from opening those that are held (their timers, most of all) is no part of what a connection costs.
fn held(setting: &Setting, open: &str) -> Result<f64, Error> {
    storm(setting, 200_000.0, &["--io-threads", "2", "--hold", open], processor_us)
}

/// A figure of one contender of `vm/storm.sh`; all of all contenders are measured in one boot.
fn in_bed(
    setting: &Setting,
    BedStorm { nic, connections }: &BedStorm,
    contender: &str,
    figure: &str,
) -> Result<f64, Error> {
    let connections = setting.times(*connections);
    let run = || bed::storm(&setting.programs.root, *nic, &connections);
    setting.once(format!("vm/storm.sh {nic:?}"), run, |results| {
        results.as_array()?.iter().find(|it| it["contender"] == contender)?[figure].as_f64()
    })
}

/// A figure of a storm in the bed beside the same of librdmacm, used in the two ways that keep IO threads from destroying what the event
/// thread uses.
macro_rules! bed_group {
    ($name:expr, $what:expr, $unit:literal of $figure:literal in $storm:expr, $bar:expr) => {
        Group {
            name: $name,
            what: $what,
            unit: $unit,
            ours: |setting| in_bed(setting, &$storm, "ferroce", $figure),
            against: &[
                Against::Peer {
                    name: "librdmacm, the event thread closes",
                    bar: $bar,
                    run: |setting| in_bed(setting, &$storm, "librdmacm deferred", $figure),
                },
                Against::Peer {
                    name: "librdmacm, one lock for the channel",
                    bar: $bar,
                    run: |setting| in_bed(setting, &$storm, "librdmacm channel-lock", $figure),
                },
            ],
        }
    };
}

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "setup-slow-nic-1",
        what: "mean setup of a connection that one IO thread closes, where the calls of a queue pair take as long as \
               public reports say of NICs (modelled)",
        unit: "µs",
        ours: |setting| slow(setting, "per-id", "1", "event"),
        against: &[
            Against::Peer {
                name: "the event thread closes",
                bar: Some(Bar::AtMost(0.116)),
                run: |setting| slow(setting, "deferred", "1", "event"),
            },
            Against::Peer {
                name: "one lock for the channel",
                bar: Some(Bar::AtMost(0.2)),
                run: |setting| slow(setting, "channel-lock", "1", "event"),
            },
        ],
    },
    Group {
        name: "setup-slow-nic-8",
        what: "the same with 8 IO threads",
        unit: "µs",
        ours: |setting| slow(setting, "per-id", "8", "event"),
        against: &[
            Against::Peer {
                name: "the event thread closes",
                bar: Some(Bar::AtMost(0.434)),
                run: |setting| slow(setting, "deferred", "8", "event"),
            },
            Against::Peer {
                name: "one lock for the channel",
                bar: Some(Bar::AtMost(0.416)),
                run: |setting| slow(setting, "channel-lock", "8", "event"),
            },
        ],
    },
    Group {
        name: "setup-slow-nic-8-io",
        what: "the same where the IO threads create and move the queue pairs, too",
        unit: "µs",
        ours: |setting| slow(setting, "per-id", "8", "io"),
        against: &[Against::Peer {
            name: "the event thread moves them",
            bar: Some(Bar::AtMost(0.999)),
            run: |setting| slow(setting, "per-id", "8", "event"),
        }],
    },
    Group {
        name: "connect-udp",
        what: "processor time of both processes for a whole connection over UDP, a message each way",
        unit: "µs",
        ours: |setting| beside_tcp(setting, "udp", processor_us),
        against: &[Against::Peer {
            name: "kernel TCP",
            bar: Some(Bar::AtMost(1.0)),
            run: |setting| beside_tcp(setting, "udp", processor_us_of_tcp),
        }],
    },
    Group {
        name: "connect-shm",
        what: "the same between processes of one host",
        unit: "µs",
        ours: |setting| beside_tcp(setting, "shm", processor_us),
        against: &[Against::Peer {
            name: "kernel TCP",
            bar: Some(Bar::AtMost(0.5)),
            run: |setting| beside_tcp(setting, "shm", processor_us_of_tcp),
        }],
    },
    Group {
        name: "connect-10000-open",
        what: "the same while 10,000 connections are open",
        unit: "µs",
        ours: |setting| held(setting, "10000"),
        against: &[Against::Peer {
            name: "ferroce with 10 open",
            bar: Some(Bar::AtMost(1.2)),
            run: |setting| held(setting, "10"),
        }],
    },
    Group {
        name: "setup-p99",
        what: "setup, the 99th percentile, while 8 IO threads close connections",
        unit: "µs",
        ours: |setting| storm(setting, 20_000.0, &[], setup_p99_us),
        against: &[Against::Peer {
            name: "ferroce when nothing is closed",
            bar: Some(Bar::AtMost(1.5)),
            run: |setting| storm(setting, 20_000.0, &["--keep"], setup_p99_us),
        }],
    },
    Group {
        name: CONNECT_BED,
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
    bed_group!(
        STORM_BED,
        "connections that 8 IO threads close, over the kernel's connection manager and Soft-RoCE, in one boot of the test bed",
        "/s" of "rate_per_s" in NO_NIC,
        Some(Bar::AtLeast(1.0))
    ),
    bed_group!(
        STORM_BED_SLOW,
        "the same where the calls of a queue pair take as long as public reports say of NICs (modelled, alike for all)",
        "/s" of "rate_per_s" in SLOW_NIC,
        Some(Bar::AtLeast(1.5))
    ),
    bed_group!(
        STORM_BED_SLOWER,
        "the same where they take ten times as long: the emulated processor is that much slower than this one, or more, and hides a NIC \
         that is not",
        "/s" of "rate_per_s" in SLOWER_NIC,
        Some(Bar::AtLeast(1.5))
    ),
    bed_group!(STORM_BED_SETUP, "mean setup of a connection of `storm-bed`", "µs" of "setup_mean_us" in NO_NIC, None),
    bed_group!(STORM_BED_SLOW_SETUP, "mean setup of one of `storm-bed-slow-nic`", "µs" of "setup_mean_us" in SLOW_NIC, None),
    bed_group!(
        STORM_BED_SLOWER_SETUP,
        "mean setup of one of `storm-bed-slow-nic-10`",
        "µs" of "setup_mean_us" in SLOWER_NIC,
        None
    ),
];
