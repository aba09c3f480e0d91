//! Address handles: the cache beside a map under a spinlock.

use serde_json::Value;

use super::{Against, Bar, Group, Setting};
use crate::error::Error;

/// A figure of `ferroce bench ah`, of which all come out of one run.
fn ah(setting: &Setting, value: fn(&Value) -> Option<f64>) -> Result<f64, Error> {
    setting.document(&["bench", "ah", "--json", "--seconds", &setting.share().to_string()], value)
}

/// A figure of `ferroce bench reconnect`: the median cycle of the kind at `position`.
fn cycle_us(setting: &Setting, position: usize) -> Result<f64, Error> {
    let args = ["bench", "reconnect", "--json", "-n", &setting.times(5000.0)];
    setting.document(&args, |json| json["kinds"][position]["cycle_p50_us"].as_f64())
}

const SPINLOCK: &str = "hash map under a spinlock";

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "ah-hit",
        what: "get and put of an address handle that the cache has, one thread, one address",
        unit: "ns",
        ours: |setting| ah(setting, |json| json["hits"][0]["cache_ns"].as_f64()),
        against: &[
            Against::Alone(Bar::AtMost(25.0)),
            Against::Peer {
                name: SPINLOCK,
                bar: Some(Bar::AtMost(0.7)),
                run: |setting| ah(setting, |json| json["hits"][0]["spinlock_ns"].as_f64()),
            },
        ],
    },
    Group {
        name: "ah-hit-256",
        what: "the same, 256 addresses in turn",
        unit: "ns",
        ours: |setting| ah(setting, |json| json["hits"][2]["cache_ns"].as_f64()),
        against: &[Against::Peer {
            name: SPINLOCK,
            bar: Some(Bar::AtMost(0.7)),
            run: |setting| ah(setting, |json| json["hits"][2]["spinlock_ns"].as_f64()),
        }],
    },
    Group {
        name: "ah-hit-ttl",
        what: "the same, one address, with a TTL of a second",
        unit: "ns",
        ours: |setting| ah(setting, |json| json["ttl_1s_ns"].as_f64()),
        against: &[Against::Alone(Bar::AtMost(25.0))],
    },
    Group {
        name: "ah-two-threads",
        what: "hits of two threads on different addresses, as a multiple of one thread's",
        unit: "×",
        ours: |setting| ah(setting, |json| json["two_threads"]["cache"].as_f64()),
        against: &[Against::Alone(Bar::AtLeast(1.6))],
    },
    Group {
        name: "ah-slow-resolution",
        what: "gets of other addresses, the 99th percentile, while the resolution of one takes 3 s",
        unit: "ns",
        ours: |setting| ah(setting, |json| json["slow_resolution"]["p99_with_ns"].as_f64()),
        against: &[Against::Peer {
            name: "ferroce without it",
            bar: Some(Bar::AtMost(1.1)),
            run: |setting| ah(setting, |json| json["slow_resolution"]["p99_without_ns"].as_f64()),
        }],
    },
    Group {
        name: "ah-memory",
        what: "memory of an entry among 1,000,000, without what the device keeps",
        unit: "B",
        ours: |setting| ah(setting, |json| json["large"]["bytes_per_entry"].as_f64()),
        against: &[Against::Alone(Bar::AtMost(200.0))],
    },
    Group {
        name: "ah-million",
        what: "get and put of an entry at random among 1,000,000, which no cache of the processor holds",
        unit: "ns",
        ours: |setting| ah(setting, |json| json["large"]["get_ns"].as_f64()),
        against: &[
            Against::Peer {
                name: SPINLOCK,
                bar: None,
                run: |setting| ah(setting, |json| json["large"]["spinlock_get_ns"].as_f64()),
            },
            Against::Peer {
                name: "ferroce with 1,000 entries",
                bar: None,
                run: |setting| ah(setting, |json| json["large"]["get_of_1000_ns"].as_f64()),
            },
        ],
    },
    Group {
        name: "reconnect",
        what: "an endpoint of ud_verbs, its first message, and its end, where a resolution costs 100 µs (modelled)",
        unit: "µs",
        ours: |setting| cycle_us(setting, 0),
        against: &[Against::Peer {
            name: "ferroce without the cache (TTL 0)",
            bar: Some(Bar::AtMost(0.333)),
            run: |setting| cycle_us(setting, 1),
        }],
    },
];
