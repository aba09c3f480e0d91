//! Judges a run: statuses of scripts, their cases, the kernel's complaints, how it ended.

use crate::exec::Log;
use crate::tally::Tally;

use super::console;
use super::machine::{Ending, Record};
use super::script::Script;

/// Lines of the console that are shown when the machine did not end as it should.
const TAIL: usize = 40;

/// Counts what passed and failed, and logs what a person needs to see of failures.
pub(super) fn judge(record: &Record, scripts: &[Script], log: Log) -> Tally {
    let mut tally = Tally::default();
    for (script, ended) in scripts.iter().zip(&record.scripts) {
        let counted = ended.cases.passed + ended.cases.failed;
        for failure in &ended.cases.failures {
            tally.fail(format!("{}: {failure}", script.shown()));
        }
        tally.passed += ended.cases.passed;
        match ended.status {
            0 if counted == 0 => tally.pass(),
            0 => {}
            124 | 137 => tally.fail(format!("{}: not finished after {} s", script.shown(), ended.time.as_secs())),
            // Its cases have told why.
            _ if ended.cases.failed > 0 => {}
            status => tally.fail(format!("{}: status {status}", script.shown())),
        }
    }
    for script in &scripts[record.scripts.len().min(scripts.len())..] {
        tally.fail(format!("{}: did not end", script.shown()));
    }
    let faults = console::faults(&record.console);
    for fault in &faults {
        tally.fail(format!("the kernel complained during {}: {}", fault.during, fault.line));
    }
    let trouble = match &record.ending {
        Ending::Complete => None,
        Ending::TimedOut(what) => Some(format!("the virtual machine hung while {what}")),
        Ending::Died(what) => Some(format!("the virtual machine ended while {what}")),
    };
    if let Some(trouble) = &trouble {
        tally.fail(trouble.clone());
    }
    if trouble.is_some() || !faults.is_empty() {
        log.line("the kernel's last messages:");
        for line in console::tail(&record.console, TAIL) {
            log.line(&format!("  {line}"));
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::machine::ScriptRecord;
    use super::*;

    fn scripts(count: usize) -> Vec<Script> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.sh"), "").unwrap();
        (0..count).map(|_| Script::parse("a.sh", directory.path(), 1).unwrap()).collect()
    }

    fn ended(status: i32, lines: &[&str]) -> ScriptRecord {
        let mut cases = Tally::default();
        lines.iter().for_each(|line| cases.script_line(line));
        ScriptRecord { status, time: Duration::from_secs(1), cases }
    }

    fn counts(records: Vec<ScriptRecord>, ending: Ending, console: &str) -> (u64, u64) {
        let scripts = scripts(records.len());
        counts_of(&scripts, records, ending, console)
    }

    fn counts_of(scripts: &[Script], records: Vec<ScriptRecord>, ending: Ending, console: &str) -> (u64, u64) {
        let record = Record { scripts: records, ending, console: console.into(), captures: Vec::new() };
        let tally = judge(&record, scripts, Log::Nowhere);
        (tally.passed, tally.failed)
    }

    #[test]
    fn a_script_passes_by_its_status_and_its_cases() {
        let complete = |record| counts(vec![record], Ending::Complete, "");
        assert_eq!(complete(ended(0, &[])), (1, 0));
        assert_eq!(complete(ended(0, &["PASS a", "PASS b"])), (2, 0));
        // A failed case counts even if the script forgets about it.
        assert_eq!(complete(ended(0, &["PASS a", "FAIL b"])), (1, 1));
        assert_eq!(complete(ended(1, &["PASS a", "FAIL b"])), (1, 1));
        // A status counts even if no case failed.
        assert_eq!(complete(ended(2, &["PASS a"])), (1, 1));
        assert_eq!(complete(ended(124, &["PASS a", "FAIL b"])), (1, 2));
    }

    #[test]
    fn complaints_hangs_and_missing_scripts_are_failures() {
        assert_eq!(counts(vec![ended(0, &[])], Ending::Complete, "Oops: 0002\n"), (1, 1));
        let hung = Ending::TimedOut("a.sh".into());
        assert_eq!(counts_of(&scripts(2), vec![ended(0, &[])], hung, ""), (1, 2));
        assert_eq!(counts_of(&scripts(1), vec![], Ending::Died("booting".into()), ""), (0, 2));
    }
}
