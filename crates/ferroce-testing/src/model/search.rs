//! Which orders of events are tried.

use super::is_releasing;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, MaxSteps, Runner};

/// One more preemption everywhere, and a hundred times the samples, if the environment has it: for an hour, not for every day.
const MORE: &str = "FERROCE_MODEL_MORE";

/// Steps of one run: more is a livelock.
const MOST_STEPS: usize = 20_000;

/// Runs `model` in every order with at most so many `preemptions`: switches from a thread that could go on. Switches from one that
/// waits or ends are free, to any other (Musuvathi and Qadeer, "Iterative context bounding", 2007).
pub fn exhaust(preemptions: usize, model: fn()) {
    let more = usize::from(std::env::var_os(MORE).is_some());
    let runs = run(Bounded { preemptions: preemptions + more, levels: Vec::new(), depth: 0, used: 0 }, model);
    println!("all {runs} orders with at most {} preemptions", preemptions + more);
    // Otherwise there was nothing to choose, and nothing is shown.
    assert!(runs > 10, "{runs} orders");
}

/// Runs `model` in so many random orders, of two kinds: every step by any thread, and by priorities that change three times
/// (Burckhardt and others, "A randomized scheduler with probabilistic guarantees of finding bugs", 2010).
pub fn sample(runs: usize, model: fn()) {
    assert!(runs >= 2, "half of the runs are of each kind");
    let runs = if std::env::var_os(MORE).is_some() { runs * 100 } else { runs };
    run(RandomScheduler::new_from_seed(1, runs / 2), model);
    run(PctScheduler::new_from_seed(2, 3, runs / 2), model);
}

fn run(scheduler: impl Scheduler + 'static, model: fn()) -> usize {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(model)
}

/// Depth-first search with a bound on preemptions.
struct Bounded {
    preemptions: usize,
    /// What was chosen where there was a choice, and among how many.
    levels: Vec<(usize, usize)>,
    /// Of this run: choices made, preemptions among them.
    depth: usize,
    used: usize,
}

impl Bounded {
    fn choose(&mut self, options: usize) -> usize {
        if options == 1 {
            return 0;
        }
        if self.depth == self.levels.len() {
            self.levels.push((0, options));
        }
        let (chosen, count) = self.levels[self.depth];
        assert_eq!(count, options, "the model depends on something else than the order");
        self.depth += 1;
        chosen
    }
}

impl Scheduler for Bounded {
    fn new_execution(&mut self) -> Option<Schedule> {
        if self.depth != 0 {
            assert_eq!(self.depth, self.levels.len(), "the model depends on something else than the order");
            while let Some((chosen, count)) = self.levels.pop() {
                if chosen + 1 < count {
                    self.levels.push((chosen + 1, count));
                    break;
                }
            }
            if self.levels.is_empty() {
                return None;
            }
        }
        (self.depth, self.used) = (0, 0);
        Some(Schedule::new(0))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, _is_yielding: bool) -> Option<TaskId> {
        let goes_on = current.filter(|current| runnable.iter().any(|task| task.id() == *current));
        let Some(current) = goes_on else {
            return Some(runnable[self.choose(runnable.len())].id());
        };
        if self.used == self.preemptions || is_releasing() {
            return Some(current);
        }
        match self.choose(runnable.len()) {
            0 => Some(current),
            other => {
                self.used += 1;
                runnable.iter().map(|task| task.id()).filter(|id| *id != current).nth(other - 1)
            }
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.choose(2) as u64
    }
}
