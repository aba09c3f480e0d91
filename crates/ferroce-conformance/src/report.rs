use std::fmt;
use std::time::Duration;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The device does what it must.
    Passed,
    /// It was not tried, or the device says that it has no such feature; with the reason.
    Skipped(String),
    /// The device does something else; with what it did.
    Failed(String),
}

/// A case and how it ended.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// The case's name.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub elapsed: Duration,
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, verdict, elapsed } = self;
        match verdict {
            Verdict::Passed => write!(f, "ok    {name} ({} ms)", elapsed.as_millis()),
            Verdict::Skipped(why) => write!(f, "skip  {name}: {why}"),
            Verdict::Failed(why) => write!(f, "FAIL  {name}: {why}"),
        }
    }
}

/// How a run of the suite ended.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every case that the filter let through, in the suite's order.
    pub cases: Vec<CaseReport>,
    /// Entries of the skip list that match no case of the suite.
    pub unused_skips: Vec<String>,
}

impl Report {
    /// The cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| matches!(case.verdict, Verdict::Failed(_)))
    }

    /// The cases that were not tried.
    pub fn skipped(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| matches!(case.verdict, Verdict::Skipped(_)))
    }

    /// How many cases passed.
    pub fn passed(&self) -> usize {
        self.cases.iter().filter(|case| case.verdict == Verdict::Passed).count()
    }

    /// Whether something was tried, nothing failed, and the skip list is up to date.
    pub fn is_success(&self) -> bool {
        self.passed() > 0 && self.failures().next().is_none() && self.unused_skips.is_empty()
    }
}

impl fmt::Display for Report {
    /// What was skipped and why, what failed and how, and the numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in self.skipped().chain(self.failures()) {
            writeln!(f, "{case}")?;
        }
        for pattern in &self.unused_skips {
            writeln!(f, "FAIL  the skip list names {pattern}, which matches no case")?;
        }
        let (skipped, failed) = (self.skipped().count(), self.failures().count());
        write!(f, "{} passed, {skipped} skipped, {failed} failed", self.passed())
    }
}
