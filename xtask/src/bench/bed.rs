//! What is measured inside the kernel test bed: there both ends of a comparison have one machine.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::process;
use crate::error::Error;
use crate::exec;

/// Building, booting, and what the script may take.
const LIMIT: Duration = Duration::from_secs(1800);

/// Begins the line with the result.
const RESULT: &str = "RESULT ";

/// Microseconds per connection, the sum over all steps of `vm/cmtime.sh` for one contender.
pub(super) fn us_per_connection(root: &Path, contender: &str) -> Result<f64, Error> {
    let (command, text) = run(root, &format!("vm/cmtime.sh {contender}"))?;
    sum(&text).ok_or_else(|| {
        let why = format!("no line {RESULT}... in it:\n{text}");
        Error::Output { command, why }
    })
}

/// What `vm/storm.sh` says of all its contenders.
pub(super) fn storm(root: &Path, (nic, factor): (&str, u32), connections: &str) -> Result<Value, Error> {
    let (_, text) = run(root, &format!("vm/storm.sh {nic} 8 {connections} {factor}"))?;
    Ok(Value::Array(results(&text).collect()))
}

/// Runs a script in a machine of its own. Returns how, and what it said.
fn run(root: &Path, script: &str) -> Result<(String, String), Error> {
    let xtask = std::env::current_exe().map_err(Error::io("find the program that runs"))?;
    let mut command = Command::new(xtask);
    command.current_dir(root).args(["vm", "--timeout", "1700", "--script", script]);
    let text = process::run(&mut command, LIMIT)?;
    Ok((exec::shown(&command), text))
}

fn results(text: &str) -> impl Iterator<Item = Value> {
    text.lines().filter_map(|line| serde_json::from_str(line.trim().strip_prefix(RESULT)?).ok())
}

fn sum(text: &str) -> Option<f64> {
    results(text).next()?["sum_us"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_found_among_other_lines() {
        assert_eq!(sum("PASS x\nRESULT {\"contender\": \"x\", \"sum_us\": 3.50}\n1 passed"), Some(3.5));
        let both = "RESULT {\"contender\": \"x\"}\nPASS x\n  RESULT {\"contender\": \"y\"}\n";
        assert_eq!(results(both).map(|it| it["contender"].to_string()).collect::<Vec<_>>(), ["\"x\"", "\"y\""]);
        assert_eq!(sum("PASS x"), None);
        assert_eq!(sum("RESULT {\"sum_us\": }"), None);
    }
}
