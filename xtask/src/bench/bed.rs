//! What is measured inside the kernel test bed, which boots once for each figure: there both ends of a comparison have one machine.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::process;
use crate::error::Error;
use crate::exec;

/// Building, booting, and what the script may take.
const LIMIT: Duration = Duration::from_secs(900);

/// Begins the line with the result.
const RESULT: &str = "RESULT ";

/// Microseconds per connection, the sum over all steps of `vm/cmtime.sh` for one contender.
pub(super) fn us_per_connection(root: &Path, contender: &str) -> Result<f64, Error> {
    let xtask = std::env::current_exe().map_err(Error::io("find the program that runs"))?;
    let mut command = Command::new(xtask);
    command.current_dir(root).args(["vm", "--timeout", "400", "--script"]).arg(format!("vm/cmtime.sh {contender}"));
    let text = process::run(&mut command, LIMIT)?;
    sum(&text).ok_or_else(|| {
        let why = format!("no line {RESULT}... in it:\n{text}");
        Error::Output { command: exec::shown(&command), why }
    })
}

fn sum(text: &str) -> Option<f64> {
    let json = text.lines().find_map(|line| line.trim().strip_prefix(RESULT))?;
    serde_json::from_str::<Value>(json).ok()?["sum_us"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_found_among_other_lines() {
        assert_eq!(sum("PASS x\nRESULT {\"contender\": \"x\", \"sum_us\": 3.50}\n1 passed"), Some(3.5));
        assert_eq!(sum("PASS x"), None);
        assert_eq!(sum("RESULT {\"sum_us\": }"), None);
    }
}
