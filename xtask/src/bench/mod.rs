//! `cargo xtask bench`: ferroce and its peers, side by side.
//!
//! | module | the question it answers |
//! |---|---|
//! | `table` | what is measured, against whom, and how good must it be? |
//! | `measure` | in which order, and what is the sum of it? |
//! | `ours`, `ucx`, `libfabric` | how is a program run, and what does it say? |
//! | `bed` | how is something measured inside the kernel test bed? |
//! | `process` | how is a child started, and surely ended? |
//! | `isolation` | which network do the programs see? |
//! | `machine` | on what, and with which versions? |
//! | `output` | what came out? |

mod bed;
mod isolation;
mod libfabric;
mod machine;
mod measure;
mod ours;
mod output;
mod process;
mod table;
mod ucx;

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::BenchArgs;
use crate::error::Error;
use crate::exec::Log;
use crate::packages;
use crate::vm;
use crate::workspace::Workspace;
use machine::Machine;
use measure::Row;
use output::Document;
use table::{Group, Setting};

/// Debian packages with the peers, and with `ip`.
const PACKAGES: &[&str] = &["ucx-utils", "libfabric-bin", "iproute2"];

const ROUNDS: u32 = 5;
/// How long one run measures.
const TIME: Duration = Duration::from_secs(1);
const QUICK_TIME: Duration = Duration::from_millis(100);

/// Measures, and writes the result. `false` if something could not be measured; a missed bar is not a failure.
pub(crate) fn command(workspace: &Workspace, args: &BenchArgs) -> Result<bool, Error> {
    let groups = select(&args.only)?;
    if args.list {
        for group in groups {
            println!("{:<20} {}", group.name, group.what);
        }
        return Ok(true);
    }
    let log = Log::Stderr;
    if !args.isolated {
        // Both may need the network, which is out of reach later.
        packages::require(PACKAGES, log)?;
        ours::Programs::build(workspace, log)?;
        if groups.iter().any(|group| table::BED.contains(&group.name)) {
            vm::prepare(log)?;
        }
        isolation::enter(log)?;
    }
    let machine = Machine::look(args.isolated)?;
    let versions = machine::versions(workspace)?;
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { ROUNDS });
    let time = if args.quick { QUICK_TIME } else { TIME };
    let mut setting = Setting::new(ours::Programs::find(workspace), time);
    let (rows, failures) = measure_all(&groups, rounds, &mut setting, log);
    let document =
        Document { rows: &rows, machine: &machine, versions: &versions, rounds, seconds: time.as_secs_f64() };
    for failure in &failures {
        log.line(&format!("not measured: {failure}"));
    }
    // What is incomplete or too short must not take the place of a whole result.
    let default = if args.quick || !args.only.is_empty() || !failures.is_empty() {
        workspace.target_dir().join("bench")
    } else {
        workspace.root().join("docs")
    };
    write(args.output.as_deref().unwrap_or(&default), &document, log)?;
    let missed = rows.iter().filter(|row| row.met() == Some(false)).count();
    let bars = rows.iter().filter(|row| row.bar.is_some()).count();
    log.line(&format!("{} of {bars} bars met", bars - missed));
    Ok(failures.is_empty())
}

fn select(only: &[String]) -> Result<Vec<&'static Group>, Error> {
    if let Some(unknown) = only.iter().find(|name| table::groups().all(|group| group.name != **name)) {
        return Err(Error::NoSuchBenchmark(unknown.clone()));
    }
    Ok(table::groups().filter(|group| only.is_empty() || only.iter().any(|name| name == group.name)).collect())
}

/// Measures one group after the other; also those after one that failed. Returns the lines, and what failed.
fn measure_all(groups: &[&Group], rounds: u32, setting: &mut Setting, log: Log) -> (Vec<Row>, Vec<String>) {
    let total = groups.iter().map(|group| measure::runs(group, rounds)).sum();
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("[{bar:30}] {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_secs(1));
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    let mut done = 0;
    for group in groups {
        bar.set_position(done);
        done += measure::runs(group, rounds);
        let mut started = false;
        let measured = measure::group(group, rounds, setting, |contender, round| {
            if std::mem::replace(&mut started, true) {
                bar.inc(1);
            }
            bar.set_message(format!("{}, round {}: {contender}", group.name, round + 1));
        });
        match measured {
            Ok(measured) => {
                for row in &measured {
                    bar.suspend(|| log.line(&output::line(row)));
                }
                rows.extend(measured);
            }
            Err(error) => {
                let failure = format!("{}: {}", group.name, crate::error::chain(&error));
                bar.suspend(|| log.line(&format!("not measured: {failure}")));
                failures.push(failure);
            }
        }
    }
    bar.finish_and_clear();
    (rows, failures)
}

fn write(directory: &Path, document: &Document<'_>, log: Log) -> Result<(), Error> {
    std::fs::create_dir_all(directory).map_err(Error::io(format!("create {}", directory.display())))?;
    for (name, text) in [("benchmarks.md", document.markdown()), ("benchmarks.json", document.json())] {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(Error::io(format!("write {}", path.display())))?;
        log.line(&format!("written: {}", path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For tests in which nothing is run.
    pub(super) fn setting() -> Setting {
        Setting::new(ours::Programs::find(&Workspace::locate().unwrap()), TIME)
    }

    #[test]
    fn groups_are_selected_by_name() {
        assert_eq!(select(&[]).unwrap().len(), table::groups().count());
        let names: Vec<_> =
            select(&["qp-post".into(), "send-rate-udp".into()]).unwrap().iter().map(|g| g.name).collect();
        assert_eq!(names, ["send-rate-udp", "qp-post"]);
        assert!(matches!(select(&["nonsense".into()]), Err(Error::NoSuchBenchmark(_))));
    }
}
