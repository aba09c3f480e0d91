use crate::{Case, CaseReport, Env, Report, SkipList, Testbed, Verdict, matches};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How the suite is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Run only the cases whose name contains this, in which `*` stands for any text.
    pub filter: Option<String>,
    /// What the device cannot do.
    pub skip: SkipList,
    /// How long a case waits for something that must happen before it calls it a hang.
    pub deadline: Duration,
    /// After how long a case that does not return is given up: it is reported as failed, and its thread left behind.
    pub give_up: Duration,
    /// How many cases run at one time.
    pub workers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            filter: None,
            skip: SkipList::new(),
            deadline: Duration::from_secs(20),
            give_up: Duration::from_secs(240),
            workers: 1,
        }
    }
}

/// Runs `cases` one by one, each with its own contexts from `testbed`, and calls `progress` after each.
pub fn run(
    testbed: &Arc<dyn Testbed>,
    cases: Vec<Case>,
    options: &Options,
    progress: &(dyn Fn(&CaseReport) + Sync),
) -> Report {
    let unused_skips = options.skip.unused(cases.iter().map(Case::name));
    let chosen = cases
        .into_iter()
        .filter(|case| options.filter.as_ref().is_none_or(|part| matches(&format!("*{part}*"), case.name())));
    let queue: Mutex<VecDeque<(usize, Case)>> = Mutex::new(chosen.enumerate().collect());
    let done: Mutex<Vec<(usize, CaseReport)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..options.workers.max(1) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some((index, case)) = next else { break };
                    let report = one(testbed, case, options);
                    progress(&report);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((index, report));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    Report { cases: done.into_iter().map(|(_, report)| report).collect(), unused_skips }
}

fn one(testbed: &Arc<dyn Testbed>, case: Case, options: &Options) -> CaseReport {
    let name = case.name().to_owned();
    let start = Instant::now();
    let verdict = match options.skip.reason(&name) {
        Some(reason) => Verdict::Skipped(reason.into()),
        None => guarded(testbed, case, options),
    };
    CaseReport { name, verdict, elapsed: start.elapsed() }
}

/// Runs a case in a thread of its own, so that one that hangs or panics does not take the others with it.
fn guarded(testbed: &Arc<dyn Testbed>, case: Case, options: &Options) -> Verdict {
    let (sender, receiver) = channel();
    let (testbed, deadline) = (Arc::clone(testbed), options.deadline);
    let spawned = std::thread::Builder::new().name(case.name().chars().take(15).collect()).spawn(move || {
        let verdict = catch_unwind(AssertUnwindSafe(|| judge(testbed, &case, deadline)))
            .unwrap_or_else(|payload| Verdict::Failed(format!("panic: {}", message(payload.as_ref()))));
        // Nobody listens if the case was given up.
        let _ = sender.send(verdict);
    });
    if let Err(error) = spawned {
        return Verdict::Failed(format!("no thread to run it: {error}"));
    }
    match receiver.recv_timeout(options.give_up) {
        Ok(verdict) => verdict,
        Err(RecvTimeoutError::Timeout) => Verdict::Failed(format!("no end after {:?}", options.give_up)),
        Err(RecvTimeoutError::Disconnected) => Verdict::Failed("its thread ended without a verdict".into()),
    }
}

fn judge(testbed: Arc<dyn Testbed>, case: &Case, deadline: Duration) -> Verdict {
    let env = match Env::open(testbed, deadline) {
        Ok(env) => env,
        Err(error) => return Verdict::Failed(format!("opening the devices: {error}")),
    };
    match case.run(&env) {
        Ok(()) => Verdict::Passed,
        Err(failure) if failure.is_applicable() => Verdict::Failed(format!("{failure}{}", counters(&env))),
        Err(failure) => Verdict::Skipped(failure.what().into()),
    }
}

/// What the devices counted, for whoever looks into a failure.
fn counters(env: &Env) -> String {
    let mut text = String::new();
    for (end, side) in [("a", &env.a), ("b", &env.b)] {
        let counted = side.context.counters().into_iter().filter(|(_, value)| *value > 0);
        let words: Vec<_> = counted.map(|(name, value)| format!("{name}={value}")).collect();
        if !words.is_empty() {
            text += &format!("; counters of {end}: {}", words.join(" "));
        }
    }
    text
}

fn message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).into()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "of no text".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{End, Side};
    use ferroce_verbs::{Error, Result};

    struct Nothing;

    impl Testbed for Nothing {
        fn open(&self, _end: End) -> Result<Side> {
            Err(Error::Unsupported { what: "opening", by: "nothing" })
        }
    }

    #[test]
    fn what_cannot_be_opened_fails_and_what_is_skipped_is_not_opened() {
        let testbed: Arc<dyn Testbed> = Arc::new(Nothing);
        let cases = vec![Case::new("x/one", |_| Ok(())), Case::new("x/two", |_| Ok(())), Case::new("y", |_| Ok(()))];
        let skip = SkipList::new().skip("x/two", "why not").skip("gone", "old");
        let options = Options { filter: Some("x/".into()), skip, workers: 2, ..Options::default() };
        let report = run(&testbed, cases, &options, &|_| ());
        assert_eq!(report.cases.len(), 2);
        assert!(matches!(&report.cases[0].verdict, Verdict::Failed(why) if why.contains("opening")));
        assert_eq!(report.cases[1].verdict, Verdict::Skipped("why not".into()));
        assert_eq!(report.unused_skips, ["gone"]);
        assert!(!report.is_success());
        assert!(report.to_string().ends_with("0 passed, 1 skipped, 1 failed"));
    }
}
