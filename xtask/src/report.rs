//! What a run found, as a table and as JSON.

use std::time::Duration;

use serde::Serialize;

use crate::tally::Tally;

/// How one step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    Passed,
    Failed,
    /// An earlier step failed, so this one was not started.
    NotRun,
}

/// One line of the table.
#[derive(Debug)]
pub(crate) struct StepResult {
    pub(crate) name: &'static str,
    pub(crate) status: Status,
    pub(crate) time: Duration,
    pub(crate) tally: Tally,
}

/// All steps of a run, in order.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) steps: Vec<StepResult>,
}

#[derive(Serialize)]
struct JsonStep<'a> {
    name: &'a str,
    status: Status,
    seconds: f64,
    passed: u64,
    failed: u64,
    ignored: u64,
    failures: &'a [String],
}

#[derive(Serialize)]
struct JsonReport<'a> {
    passed: u64,
    failed: u64,
    seconds: f64,
    steps: Vec<JsonStep<'a>>,
}

impl Report {
    /// Checks that passed and that failed, over all steps. A check is a test, a case of a script, or a step that has no parts.
    pub(crate) fn totals(&self) -> (u64, u64) {
        self.steps
            .iter()
            .fold((0, 0), |(passed, failed), step| (passed + step.tally.passed, failed + step.tally.failed))
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.steps.iter().all(|step| step.status == Status::Passed)
    }

    fn time(&self) -> Duration {
        self.steps.iter().map(|step| step.time).sum()
    }

    pub(crate) fn table(&self) -> String {
        let width = self.steps.iter().map(|step| step.name.len()).max().unwrap_or(0).max(5);
        let mut text = format!(
            "{:<width$}  {:<7}  {:>9}  {:>6}  {:>6}  {:>7}\n",
            "step", "result", "time", "passed", "failed", "ignored"
        );
        for step in &self.steps {
            if step.status == Status::NotRun {
                text.push_str(&format!("{:<width$}  not run\n", step.name));
                continue;
            }
            let result = if step.status == Status::Passed { "ok" } else { "FAILED" };
            text.push_str(&format!(
                "{:<width$}  {result:<7}  {:>9}  {:>6}  {:>6}  {:>7}\n",
                step.name,
                shown_time(step.time),
                step.tally.passed,
                step.tally.failed,
                step.tally.ignored,
            ));
        }
        text.push_str(&format!("{:<width$}  {:<7}  {:>9}\n", "total", "", shown_time(self.time())));
        for step in &self.steps {
            for failure in &step.tally.failures {
                text.push_str(&format!("\nfailed in {}: {failure}", step.name));
            }
        }
        text.trim_end().to_owned()
    }

    pub(crate) fn json(&self) -> String {
        let (passed, failed) = self.totals();
        let report = JsonReport {
            passed,
            failed,
            seconds: seconds(self.time()),
            steps: self
                .steps
                .iter()
                .map(|step| JsonStep {
                    name: step.name,
                    status: step.status,
                    seconds: seconds(step.time),
                    passed: step.tally.passed,
                    failed: step.tally.failed,
                    ignored: step.tally.ignored,
                    failures: &step.tally.failures,
                })
                .collect(),
        };
        serde_json::to_string_pretty(&report).expect("the report is plain data")
    }
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

fn shown_time(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} m {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut failing = Tally::one(true, String::new);
        failing.fail("a::b");
        Report {
            steps: vec![
                StepResult {
                    name: "one",
                    status: Status::Passed,
                    time: Duration::from_millis(1500),
                    tally: Tally::one(true, String::new),
                },
                StepResult { name: "two", status: Status::Failed, time: Duration::from_secs(62), tally: failing },
                StepResult { name: "three", status: Status::NotRun, time: Duration::ZERO, tally: Tally::default() },
            ],
        }
    }

    #[test]
    fn the_table_shows_every_step_and_what_failed() {
        let table = report().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "one    ok           1.5 s       1       0        0");
        assert_eq!(lines[2], "two    FAILED    1 m 02 s       1       1        0");
        assert_eq!(lines[3], "three  not run");
        assert_eq!(lines.last(), Some(&"failed in two: a::b"));
    }

    #[test]
    fn json_has_the_same_content() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(json["passed"], 2);
        assert_eq!(json["failed"], 1);
        assert_eq!(json["steps"][1]["failures"][0], "a::b");
        assert_eq!(json["steps"][2]["status"], "not-run");
        assert!(!report().succeeded());
    }
}
