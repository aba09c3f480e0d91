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

/// What else the second half may take, for each connection that is in timewait then and was not in the first half: its entry, and its
/// places in tables that double. Timewait is a second; a machine that makes 30,000 connections in the one and 80,000 in the next takes
/// 15 MiB more though nothing piles up. (How many are remembered is bounded: `Limits::timewait`.)
const REMEMBERED_BYTES: u64 = 320;

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
    let run = &document["runs"][0];
    let halves = |of: &str| {
        let halves = &run[of][end];
        halves["first_half"].as_u64().zip(halves["second_half"].as_u64())
    };
    let (memory, timewait) = (&run["memory_kib"][end], &run["timewait"][end]);
    match (halves("memory_kib"), halves("timewait")) {
        (Some((first, second)), Some((before, remembered)))
            if first != 0
                && second <= first + SLACK_KIB + remembered.saturating_sub(before) * REMEMBERED_BYTES / 1024 =>
        {
            Ok(())
        }
        _ => Err(format!("the memory of the {end} is not flat: {memory}, with {timewait} in timewait")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn memory_that_grows_is_noticed() {
        let document = |kib: [u64; 2], timewait: [u64; 2]| {
            let halves = |[first, second]: [u64; 2]| json!({"server": {"first_half": first, "second_half": second}});
            json!({"runs": [{"memory_kib": halves(kib), "timewait": halves(timewait)}]}).to_string()
        };
        growth(&document([20_000, 20_100], [0, 0]), "server").unwrap();
        assert!(growth(&document([20_000, 40_000], [0, 0]), "server").unwrap_err().contains("40000"));
        // What is remembered takes memory, but only so much, and only if it is more than it was.
        growth(&document([20_000, 40_000], [10_000, 60_000]), "server").unwrap();
        growth(&document([20_000, 44_000], [10_000, 60_000]), "server").unwrap_err();
        growth(&document([20_000, 40_000], [60_000, 60_000]), "server").unwrap_err();
        growth(&document([20_000, 40_000], [60_000, 10_000]), "server").unwrap_err();
        assert!(growth(&document([0, 0], [0, 0]), "server").is_err(), "nobody has looked");
        assert!(growth(&document([1, 1], [0, 0]), "client").is_err());
        assert!(growth("error", "client").unwrap_err().contains("JSON"));
    }
}
