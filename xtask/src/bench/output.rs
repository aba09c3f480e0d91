//! What came out: for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::machine::Machine;
use super::measure::{Row, Samples};
use super::table::Bar;

/// All that is written down of a run.
pub(super) struct Document<'a> {
    pub(super) rows: &'a [Row],
    pub(super) machine: &'a Machine,
    pub(super) versions: &'a BTreeMap<&'static str, String>,
    pub(super) rounds: u32,
    /// Seconds of one run.
    pub(super) seconds: f64,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    name: &'a str,
    unit: &'a str,
    ours: f64,
    peer: Option<f64>,
    peer_name: Option<&'a str>,
    ratio: Option<f64>,
    bar: Option<String>,
    met: Option<bool>,
    machine: &'a Machine,
    versions: &'a BTreeMap<&'static str, String>,
}

/// Three digits that mean something, or all of a greater number.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        v if v < 1.0 => format!("{value:.3}"),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// More digits than a measurement has are noise.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn range(samples: &Samples) -> String {
    format!("{}..{}", figure(samples.min()), figure(samples.max()))
}

fn shown_bar(bar: Option<Bar>) -> String {
    bar.map_or_else(String::new, |bar| bar.to_string().replace("<=", "≤").replace(">=", "≥"))
}

fn shown_met(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "",
    }
}

/// One line for the terminal.
pub(super) fn line(row: &Row) -> String {
    let mut text = format!("{}: {} {}", row.name, figure(row.ours.median()), row.unit);
    if let (Some((name, peer)), Some(ratio)) = (&row.peer, row.ratio()) {
        let _ = write!(text, ", {name} {}, ratio {}", figure(peer.median()), figure(ratio));
    }
    match (row.bar, row.met()) {
        (Some(bar), Some(true)) => text + &format!(", bar {bar}: met"),
        (Some(bar), _) => text + &format!(", bar {bar}: MISSED"),
        (None, _) => text,
    }
}

impl Document<'_> {
    pub(super) fn json(&self) -> String {
        let rows: Vec<JsonRow<'_>> = self
            .rows
            .iter()
            .map(|row| JsonRow {
                name: row.name,
                unit: row.unit,
                ours: rounded(row.ours.median()),
                peer: row.peer.as_ref().map(|(_, samples)| rounded(samples.median())),
                peer_name: row.peer.as_ref().map(|(name, _)| *name),
                ratio: row.ratio().map(rounded),
                bar: row.bar.map(|bar| bar.to_string()),
                met: row.met(),
                machine: self.machine,
                versions: self.versions,
            })
            .collect();
        serde_json::to_string_pretty(&rows).expect("the result is plain data") + "\n"
    }

    pub(super) fn markdown(&self) -> String {
        let mut text = String::from(
            "# Benchmarks\n\n\
             Written by `cargo xtask bench`: run it again, on a machine that has nothing else to do, to measure again. \
             `cargo xtask bench --only NAME` measures one line, `--quick` shows that everything works.\n\n",
        );
        let _ = writeln!(
            text,
            "Each figure is the median of {} runs, of about {} s where a time is set; in brackets are the lowest and the highest. The runs \
             alternate: ferroce, its peers, ferroce again. The ratio is that of the medians, ferroce to the peer, and the bar is \
             for the ratio, or where there is no peer for the figure.\n",
            self.rounds, self.seconds
        );
        text.push_str("| name | ferroce | peer | | ratio | bar | met |\n|---|---|---|---|---|---|---|\n");
        for row in self.rows {
            let (peer_name, peer) = match &row.peer {
                Some((name, samples)) => (*name, format!("{} ({})", figure(samples.median()), range(samples))),
                None => ("", String::new()),
            };
            let _ = writeln!(
                text,
                "| {} | {} {} ({}) | {} | {} | {} | {} | {} |",
                row.name,
                figure(row.ours.median()),
                row.unit,
                range(&row.ours),
                peer_name,
                peer,
                row.ratio().map(figure).unwrap_or_default(),
                shown_bar(row.bar),
                shown_met(row.met()),
            );
        }
        text.push('\n');
        let mut named = "";
        for row in self.rows.iter().filter(|row| std::mem::replace(&mut named, row.name) != row.name) {
            let _ = writeln!(text, "- `{}`: {}.", row.name, row.what);
        }
        self.describe_setting(&mut text);
        text
    }

    fn describe_setting(&self, text: &mut String) {
        let machine = self.machine;
        let _ = writeln!(
            text,
            "\n## Machine\n\n{}, {} processors, {} GiB of memory{}; Linux {}. Before the first run other programs kept {} of its processors busy{}.\n\n## Versions\n",
            machine.cpu,
            machine.cpus,
            machine.memory_gib,
            if machine.virtual_machine { ", a virtual machine" } else { "" },
            machine.kernel,
            machine.busy,
            if machine.busy > 0.2 { ", so take the figures with care" } else { "" },
        );
        for (name, version) in self.versions {
            let _ = writeln!(text, "- {name} {version}");
        }
        let network = if machine.isolated {
            "a network namespace of their own"
        } else {
            "the network namespace of the machine, because a new one was not permitted"
        };
        let _ = writeln!(
            text,
            "\n## How\n\n\
             All programs run in {network}. Two processes of one machine exchange messages; nothing is bound to a processor. \
             Latency is the median, except where the name says mean. MB and GB are powers of ten.\n\n\
             - ferroce: `ferroce perf send --lat`, `write --bw` and `send --rate` with `--local`.\n\
             - connections: `ferroce storm`, with `--baseline tcp` beside the same churn over the kernel's TCP sockets.\n\
             - address handles: `ferroce bench ah` and `ferroce bench reconnect`. All of a round comes out of one run, which measures in turns.\n\
             - active messages: `ferroce perf am --transport` with `--local`.\n\
             - UCX: `ucx_perftest` of the Debian package ucx-utils, with `UCX_TLS=posix,cma,self` or `tcp,self`.\n\
             - libfabric: `fi_pingpong -p 'udp;ofi_rxd' -e rdm` of the Debian package libfabric-bin.\n\
             - raw UDP sockets: `cargo run --release -p ferroce-soft --example udp_link limit latency|bandwidth|rate`, which \
             only sends and receives as many bytes as RoCE packets have: between two processes for latency, otherwise two threads, checking nothing.\n\
             - test bed: `cargo xtask vm --script vm/cmtime.sh`, `ferroce cmtime` and librdmacm's `cmtime` of the Debian package rdmacm-utils, \
             one boot for each figure; `vm/storm.sh`, `ferroce storm` and the same in C (`vm/storm_rdmacm.c`), all in one boot.\n\
             - many queue pairs: `cargo run --release -p ferroce-soft --example many_qps`. Its head says how memory is counted."
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::tests::row;

    fn document(rows: &[Row], check: impl FnOnce(&Document<'_>)) {
        let machine = Machine::look(true).unwrap();
        let versions = BTreeMap::from([("ucx", "1.13.1".to_owned())]);
        check(&Document { rows, machine: &machine, versions: &versions, rounds: 5, seconds: 1.0 });
    }

    #[test]
    fn json_is_a_list_with_all_fields() {
        let rows = [
            row(&[0.5, 0.6, 0.7], Some(&[0.3, 0.4, 0.5]), Some(Bar::AtMost(1.0))),
            row(&[3.5], None, Some(Bar::AtMost(4.0))),
        ];
        document(&rows, |document| {
            let json: serde_json::Value = serde_json::from_str(&document.json()).unwrap();
            let first = &json[0];
            assert_eq!((first["name"].as_str(), first["unit"].as_str()), (Some("a-row"), Some("µs")));
            assert_eq!((first["ours"].as_f64(), first["peer"].as_f64()), (Some(0.6), Some(0.4)));
            assert_eq!((first["ratio"].as_f64(), first["peer_name"].as_str()), (Some(1.5), Some("somebody")));
            assert_eq!((first["bar"].as_str(), first["met"].as_bool()), (Some("<= 1"), Some(false)));
            assert_eq!(first["versions"]["ucx"], "1.13.1");
            assert!(first["machine"]["cpus"].is_u64());
            assert!(json[1]["peer"].is_null() && json[1]["ratio"].is_null() && json[1]["met"] == true);
        });
    }

    #[test]
    fn the_table_shows_ranges_and_what_is_missed() {
        let rows = [row(&[0.5, 0.6, 0.7], Some(&[0.3, 0.4, 0.5]), Some(Bar::AtMost(1.0)))];
        document(&rows, |document| {
            let text = document.markdown();
            let line = "| a-row | 0.600 µs (0.500..0.700) | somebody | 0.400 (0.300..0.500) | 1.50 | ≤ 1 | **no** |";
            assert!(text.lines().any(|other| other == line), "{text}");
            assert!(text.contains("cargo xtask bench") && text.contains("ucx 1.13.1"));
        });
        assert_eq!(line(&rows[0]), "a-row: 0.600 µs, somebody 0.400, ratio 1.50, bar <= 1: MISSED");
    }
}
