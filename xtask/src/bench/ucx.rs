//! UCX as a peer: `ucx_perftest` of the Debian package ucx-utils.

use std::process::Command;
use std::time::Duration;

use super::process;
use crate::error::Error;

/// How long one run may take. On an idle machine it is a few seconds.
const LIMIT: Duration = Duration::from_secs(180);

/// One test.
#[derive(Clone, Copy)]
pub(super) struct Test {
    /// The transports that UCX may use.
    pub(super) transports: &'static str,
    pub(super) name: &'static str,
    /// Bytes of a message.
    pub(super) size: u64,
    /// Messages of a run of about a second on an idle machine.
    pub(super) iterations: u64,
}

/// The last line of numbers that `ucx_perftest` prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// Median over the last iterations: for a latency test half a round trip.
    pub(super) median_us: f64,
    /// Messages per second over the whole run.
    pub(super) msgs_per_s: f64,
}

impl Test {
    /// Runs the test, with `share` of its iterations.
    pub(super) fn run(&self, share: f64) -> Result<Figures, Error> {
        let iterations = (self.iterations as f64 * share).ceil() as u64;
        let port = process::free_port()?;
        let mut client = self.command(port);
        client.args(["127.0.0.1", "-t", self.name, "-f", "-v"]);
        client.args(["-s", &self.size.to_string(), "-n", &iterations.to_string()]);
        let text = process::run_pair(&mut self.command(port), &mut client, port, LIMIT)?;
        parse(&text).ok_or_else(|| Error::Output {
            command: crate::exec::shown(&client),
            why: format!("there is no line of numbers in it:\n{}", text.trim_end()),
        })
    }

    fn command(&self, port: u16) -> Command {
        let mut command = Command::new("ucx_perftest");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("UCX_") {
                command.env_remove(name);
            }
        }
        command.env("UCX_TLS", self.transports).args(["-p", &port.to_string()]);
        command
    }
}

/// What `-f -v` prints: a line of column names, and a line of values in the same order.
fn parse(text: &str) -> Option<Figures> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("iterations,"));
    let names = lines.next()?;
    let values = lines.next()?;
    let column = |name: &str| -> Option<f64> {
        let at = names.split(',').position(|other| other == name)?;
        values.split(',').nth(at)?.trim().parse().ok()
    };
    Some(Figures { median_us: column("50.0_percentile_lat")?, msgs_per_s: column("overall_mr")? })
}

/// The version, as `ucx_info -v` says it.
pub(super) fn version() -> Result<String, Error> {
    let text = crate::exec::capture(Command::new("ucx_info").arg("-v"))?;
    parse_version(&text).ok_or_else(|| Error::Output { command: "ucx_info -v".into(), why: "no version in it".into() })
}

fn parse_version(text: &str) -> Option<String> {
    let version = text.lines().find_map(|line| {
        let line = line.trim_start_matches(['#', ' ']);
        line.strip_prefix("Version ").or_else(|| line.strip_prefix("Library version: "))
    })?;
    Some(version.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_latency_test() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    200000,0.299,6.308,3.238,1.21,2.36,158534,308797\n";
        assert_eq!(parse(text), Some(Figures { median_us: 0.299, msgs_per_s: 308_797.0 }));
    }

    #[test]
    fn reads_the_bandwidth_test_behind_warnings() {
        let text = "[1795986478.681773] [vm:16155:0]  ucp_context.c:1014 UCX  WARN  transport 'x' is not available\n\
                    iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    20000,3.040,21.350,21.350,2927.46,2927.46,46839,46839\n";
        assert_eq!(parse(text), Some(Figures { median_us: 3.04, msgs_per_s: 46_839.0 }));
    }

    #[test]
    fn what_is_no_result_is_none() {
        let names = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n";
        let error =
            "[1795986478.681815] [vm:16155:0]    perftest_run.c:334  UCX  ERROR Failed to run test: No such device\n";
        for text in ["", names, error, &format!("{names}{error}"), &format!("{names}200000,0.299\n")] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn reads_versions_old_and_new() {
        assert_eq!(
            parse_version("# Version 1.13.1\n# Git branch '<unknown>', revision 0000000\n"),
            Some("1.13.1".into())
        );
        assert_eq!(parse_version("# Library version: 1.15.0\n# Library path: /usr/lib\n"), Some("1.15.0".into()));
        assert_eq!(parse_version("what?"), None);
    }
}
