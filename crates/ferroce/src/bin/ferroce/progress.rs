//! Signs of life on stderr for what takes longer than a second: a bar on a terminal, now and then a line elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// How long a step may take before it is shown.
const QUIET: Duration = Duration::from_secs(1);
/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// One step of a command.
pub(crate) struct Progress {
    label: String,
    total: Option<u64>,
    started: Instant,
    lines: u32,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// The step `label`, of `total` operations if that is known.
    pub(crate) fn new(label: impl Into<String>, total: Option<u64>) -> Self {
        Self { label: label.into(), total, started: Instant::now(), lines: 0, bar: None }
    }

    /// Shows that `done` operations are complete.
    pub(crate) fn update(&mut self, done: u64) {
        let elapsed = self.started.elapsed();
        if elapsed < QUIET {
            return;
        }
        if stderr().is_terminal() {
            self.bar().set_position(done);
        } else if elapsed >= LINE_EVERY * (self.lines + 1) {
            self.lines += 1;
            eprintln!("{}: {done} done after {:.0} s", self.label, elapsed.as_secs_f64());
        }
    }

    fn bar(&mut self) -> &ProgressBar {
        self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(self.total, ProgressDrawTarget::stderr());
            let template = match self.total {
                Some(_) => "{msg} [{bar:30}] {percent}% {elapsed}",
                None => "{spinner} {msg} {human_pos} {elapsed}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.with_message(self.label.clone()).with_elapsed(self.started.elapsed())
        })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
