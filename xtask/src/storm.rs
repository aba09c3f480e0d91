//! The step `storm`: connections by the hundred thousand, as the tool is shipped, with nothing lost and no memory that grows.

use std::process::Command;

use serde_json::Value;

use crate::error::Error;
use crate::exec;
use crate::steps::{Context, build_binaries};
use crate::tally::Tally;

/// A storm that any thread may end a part of.
const STORM: &[&str] = &["storm", "--json", "--connections", "200000", "--io-threads", "8", "--cancel", "10"];

/// What is added: whether the server lives to the end.
const RUNS: &[(&[&str], bool)] = &[(&[], true), (&["--link", "udp"], true), (&["--kill-every", "1"], false)];

/// Memory is flat if the second half of a run takes no more than the first, but for this: allocators keep what they were given, and it
/// takes a while until each thread has had its share.
const SLACK_KIB: u64 = 8 * 1024;

pub(crate) fn step(context: &Context<'_>) -> Result<Tally, Error> {
    let mut build = build_binaries(context.workspace);
    let status = exec::stream(&mut build, context.log, |_| {})?;
    let mut tally = Tally::one(status.success(), || format!("`{}` ({status})", exec::shown(&build)));
    if tally.failed != 0 {
        return Ok(tally);
    }
    for (args, lives) in RUNS {
        let mut command = Command::new(context.workspace.target_dir().join("release/ferroce"));
        command.args(STORM).args(*args);
        let mut text = String::new();
        let status = exec::stream(&mut command, context.log, |line| {
            text.push_str(line);
            text.push('\n');
        })?;
        let shown = exec::shown(&command);
        // It fails if anything went wrong or is left.
        tally.add(Tally::one(status.success(), || format!("`{shown}` ({status})")));
        let ends: &[&str] = if *lives { &["client", "server"] } else { &["client"] };
        for end in ends {
            let outcome = growth(&text, end);
            tally.add(Tally::one(outcome.is_ok(), || format!("`{shown}`: {}", outcome.unwrap_err())));
        }
    }
    Ok(tally)
}

/// Whether the memory of one end was flat; if not, why not.
fn growth(text: &str, end: &str) -> Result<(), String> {
    let document: Value = serde_json::from_str(text).map_err(|error| format!("no JSON document: {error}"))?;
    let halves = &document["runs"][0]["memory_kib"][end];
    match (halves["first_half"].as_u64(), halves["second_half"].as_u64()) {
        (Some(first), Some(second)) if first != 0 && second <= first + SLACK_KIB => Ok(()),
        _ => Err(format!("the memory of the {end} is not flat: {halves}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_grows_is_noticed() {
        let document = |first: u64, second: u64| {
            format!(
                r#"{{"runs": [{{"memory_kib": {{"server": {{"first_half": {first}, "second_half": {second}}}}}}}]}}"#
            )
        };
        growth(&document(20_000, 20_100), "server").unwrap();
        assert!(growth(&document(20_000, 40_000), "server").unwrap_err().contains("40000"));
        assert!(growth(&document(0, 0), "server").is_err(), "nobody has looked");
        assert!(growth(&document(1, 1), "client").is_err());
        assert!(growth("error", "client").unwrap_err().contains("JSON"));
    }
}
