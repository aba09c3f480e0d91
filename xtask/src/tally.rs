//! Counts checks from what test programs print.

/// How many checks passed and failed, and which ones failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    /// Names of failed checks; may be shorter than `failed` where a program did not name them.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// One check, named only if it failed.
    pub(crate) fn one(passed: bool, name: impl FnOnce() -> String) -> Self {
        let mut tally = Self::default();
        if passed {
            tally.pass();
        } else {
            tally.fail(name());
        }
        tally
    }

    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, name: impl Into<String>) {
        self.failed += 1;
        self.failures.push(name.into());
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.failures.extend(other.failures);
    }

    /// Takes in one line of a Rust test program's output.
    ///
    /// The counts come from its last line (`test result: ok. 3 passed; 0 failed; 1 ignored; ...`), the names of failed tests from
    /// `test name ... FAILED`. A test program that left tests out was started by a test, to run one of its tests elsewhere: it is a part of that
    /// test.
    pub(crate) fn libtest_line(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            if !counts.contains(" 0 filtered out") {
                return;
            }
            for field in counts.split([';', '.']) {
                let mut words = field.split_whitespace();
                let (Some(number), Some(what)) = (words.next(), words.next()) else {
                    continue;
                };
                let Ok(number) = number.parse::<u64>() else {
                    continue;
                };
                match what {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_owned());
        }
    }

    /// Takes in one line of a script of the kernel test bed: `PASS name`, `FAIL name`.
    pub(crate) fn script_line(&mut self, line: &str) {
        if line.starts_with("PASS ") {
            self.pass();
        } else if let Some(name) = line.strip_prefix("FAIL ") {
            self.fail(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_summaries_of_several_test_programs() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test a::c ... FAILED",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 1.25s",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 10 filtered out; finished in 0.02s",
        ] {
            tally.libtest_line(line);
        }
        assert_eq!((tally.passed, tally.failed, tally.ignored), (7, 1, 2));
        assert_eq!(tally.failures, ["a::c"]);
    }

    #[test]
    fn counts_the_cases_of_a_script() {
        let mut tally = Tally::default();
        for line in ["PASS rc 1", "  FAIL indented", "FAIL rc 2 (client 1)", "PASSED", "noise"] {
            tally.script_line(line);
        }
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert_eq!(tally.failures, ["rc 2 (client 1)"]);
    }
}
