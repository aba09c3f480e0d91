use crate::failure::Failure;
use crate::scenario::{Options, Outcome, Scenario};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

/// Many seeds of one scenario.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The scenario.
    pub scenario: Scenario,
    /// The seeds.
    pub seeds: Range<u64>,
    /// Threads to run them on. Each seed runs on one thread, so this changes nothing but the time it takes.
    pub jobs: usize,
    /// Run each seed twice and compare what happened.
    pub twice: bool,
    /// How each run is watched.
    pub options: Options,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct SweepResult {
    /// The sums of all runs that succeeded. The trace is that of none of them.
    pub total: Outcome,
    /// The runs that failed, by seed.
    pub failed: Vec<Failed>,
}

/// A run that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The scenario.
    pub scenario: Scenario,
    /// Its seed.
    pub seed: u64,
    /// Which invariant did not hold.
    pub why: Failure,
}

impl fmt::Display for Failed {
    /// What failed, and on a line of its own the command that repeats it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, seed, why } = self;
        writeln!(f, "{scenario}, seed {seed}: {why}")?;
        write!(f, "  cargo run -p ferroce-sim --release -- --seed {seed} --scenario {scenario} --log")
    }
}

impl Sweep {
    /// How many seeds of each scenario a test runs: `usual`, or what the environment variable `FERROCE_SIM_SEEDS` says.
    ///
    /// # Panics
    ///
    /// If it says something that is not a number.
    #[must_use]
    pub fn seeds_to_test(usual: u64) -> u64 {
        let Ok(text) = std::env::var("FERROCE_SIM_SEEDS") else { return usual };
        text.parse().unwrap_or_else(|_| panic!("FERROCE_SIM_SEEDS is {text:?}, not a number of seeds"))
    }

    /// Runs all seeds; calls `done` after each of them, with the failure if it failed.
    pub fn run(&self, done: &(dyn Fn(Option<&Failed>) + Sync)) -> SweepResult {
        let next = AtomicU64::new(self.seeds.start);
        let result = Mutex::new(SweepResult::default());
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= self.seeds.end {
                            break;
                        }
                        let run = self.run_one(seed);
                        let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
                        match run {
                            Ok(outcome) => {
                                result.total.add(&outcome);
                                done(None);
                            }
                            Err(why) => {
                                let failed = Failed { scenario: self.scenario, seed, why };
                                done(Some(&failed));
                                result.failed.push(failed);
                            }
                        }
                    }
                });
            }
        });
        let mut result = result.into_inner().unwrap_or_else(PoisonError::into_inner);
        result.failed.sort_by_key(|failed| failed.seed);
        result
    }

    fn run_one(&self, seed: u64) -> Result<Outcome, Failure> {
        let outcome = self.caught(seed)?;
        if self.twice {
            let again = self.caught(seed)?;
            if again != outcome {
                return Err(Failure::new(format!("two runs differ: {outcome:?} and {again:?}")));
            }
        }
        Ok(outcome)
    }

    /// A panic in the device is a failure like any other.
    fn caught(&self, seed: u64) -> Result<Outcome, Failure> {
        catch_unwind(AssertUnwindSafe(|| self.scenario.run(seed, &self.options))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Failure::new(format!("it panicked: {text}")))
        })
    }
}
