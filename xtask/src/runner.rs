//! Runs the steps of `cargo xtask test`.

use std::time::{Duration, Instant};

use crate::cli::TestArgs;
use crate::error::{self, Error};
use crate::exec::Log;
use crate::report::{Report, Status, StepResult};
use crate::steps::{Context, STEPS, Step};
use crate::tally::Tally;
use crate::workspace::Workspace;

/// Runs the steps that were asked for; `false` if any of them failed.
pub(crate) fn test(workspace: &Workspace, args: &TestArgs) -> Result<bool, Error> {
    let selected = select(&args.only)?;
    if args.list {
        for step in selected {
            println!("{:<14} {}", step.name, step.what);
        }
        return Ok(true);
    }
    let log = if args.json { Log::Stderr } else { Log::Stdout };
    let context = Context { workspace, log, keep_going: args.keep_going };
    let report = run(&selected, &context);
    log.line("");
    log.line(&report.table());
    let (passed, failed) = report.totals();
    log.line("");
    log.line(&format!("{passed} passed, {failed} failed"));
    if args.json {
        println!("{}", report.json());
    }
    Ok(report.succeeded())
}

/// The named steps in the order of the table, or all of them.
fn select(only: &[String]) -> Result<Vec<&'static Step>, Error> {
    for name in only {
        if !STEPS.iter().any(|step| step.name == name) {
            return Err(Error::NoSuchStep(name.clone()));
        }
    }
    Ok(STEPS.iter().filter(|step| only.is_empty() || only.iter().any(|name| name == step.name)).collect())
}

fn run(steps: &[&'static Step], context: &Context<'_>) -> Report {
    let mut report = Report::default();
    let mut stopped = false;
    for step in steps {
        if stopped {
            report.steps.push(StepResult {
                name: step.name,
                status: Status::NotRun,
                time: Duration::ZERO,
                tally: Tally::default(),
            });
            continue;
        }
        context.log.line(&format!("\n=== {}: {}", step.name, step.what));
        let start = Instant::now();
        let tally = (step.run)(context).unwrap_or_else(|error| {
            let mut tally = Tally::default();
            tally.fail(error::chain(&error));
            tally
        });
        let status = if tally.failed == 0 { Status::Passed } else { Status::Failed };
        stopped = status == Status::Failed && !context.keep_going;
        report.steps.push(StepResult { name: step.name, status, time: start.elapsed(), tally });
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Step = Step { name: "good", what: "passes", run: |_| Ok(Tally::one(true, String::new)) };
    const BAD: Step = Step { name: "bad", what: "cannot run", run: |_| Err(Error::NoSuchStep("x".into())) };

    fn statuses(keep_going: bool) -> Vec<Status> {
        let workspace = Workspace::locate().unwrap();
        let context = Context { workspace: &workspace, log: Log::Nowhere, keep_going };
        let report = run(&[&GOOD, &BAD, &GOOD], &context);
        assert!(!report.succeeded());
        report.steps.iter().map(|step| step.status).collect()
    }

    #[test]
    fn stops_at_the_first_failure_unless_told_otherwise() {
        assert_eq!(statuses(false), [Status::Passed, Status::Failed, Status::NotRun]);
        assert_eq!(statuses(true), [Status::Passed, Status::Failed, Status::Passed]);
    }

    #[test]
    fn steps_are_selected_by_name_in_table_order() {
        let names = |only: &[&str]| -> Vec<&str> {
            let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
            select(&only).unwrap().iter().map(|step| step.name).collect()
        };
        assert_eq!(names(&["vm", "format"]), ["format", "vm"]);
        assert_eq!(names(&[]).len(), STEPS.len());
        assert!(matches!(select(&["nonsense".into()]), Err(Error::NoSuchStep(_))));
    }
}
