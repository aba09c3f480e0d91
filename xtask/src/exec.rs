//! Runs programs and passes on what they print.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};

use crate::error::Error;

/// Where lines meant for a person go.
///
/// With `--json`, standard output carries the JSON document alone, and everything else goes to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    Stdout,
    Stderr,
    /// Unit tests log nothing.
    #[cfg(test)]
    Nowhere,
}

impl Log {
    pub(crate) fn line(self, line: &str) {
        // A reader that has gone away (`| head`) must not fail the checks.
        let _ = match self {
            Self::Stdout => writeln!(std::io::stdout().lock(), "{line}"),
            Self::Stderr => writeln!(std::io::stderr().lock(), "{line}"),
            #[cfg(test)]
            Self::Nowhere => Ok(()),
        };
    }
}

/// A command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| {
        let arg = arg.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
        if !arg.is_empty() && arg.chars().all(plain) { arg.into_owned() } else { format!("'{arg}'") }
    }));
    // The path of cargo itself is of no interest.
    if let Some(name) = words[0].rsplit('/').next().map(str::to_owned) {
        words[0] = name;
    }
    words.join(" ")
}

pub(crate) fn spawn_error(command: &Command) -> impl FnOnce(std::io::Error) -> Error {
    let program = command.get_program().to_string_lossy().into_owned();
    move |source| Error::Spawn { program, source }
}

/// Runs a command, logging its standard output line by line and showing each line to `on_line`; its standard error is ours.
pub(crate) fn stream(command: &mut Command, log: Log, mut on_line: impl FnMut(&str)) -> Result<ExitStatus, Error> {
    log.line(&format!("$ {}", shown(command)));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(spawn_error(command))?;
    let stdout = child.stdout.take().expect("standard output was asked for as a pipe");
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.map_err(Error::io(format!("read the output of `{}`", shown(command))))?;
        let line = String::from_utf8_lossy(&line);
        log.line(&line);
        on_line(&line);
    }
    child.wait().map_err(Error::io(format!("wait for `{}`", shown(command))))
}

/// Runs a command that must succeed, and returns what it printed on standard output.
pub(crate) fn capture(command: &mut Command) -> Result<String, Error> {
    let output = command.stdin(Stdio::null()).output().map_err(spawn_error(command))?;
    if !output.status.success() {
        return Err(Error::Failed {
            command: shown(command),
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_a_command_as_one_types_it() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["test", "--test", "*", "-p", "a-b"]);
        assert_eq!(shown(&command), "cargo test --test '*' -p a-b");
    }

    #[test]
    fn streams_lines_and_reports_the_status() {
        let mut lines = Vec::new();
        let status = stream(Command::new("sh").args(["-c", "echo one; printf two; exit 3"]), Log::Nowhere, |line| {
            lines.push(line.to_owned());
        })
        .unwrap();
        assert_eq!(lines, ["one", "two"]);
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_missing_program_and_a_failing_one_are_told_apart() {
        let missing = capture(&mut Command::new("/nonexistent/program")).unwrap_err();
        assert!(matches!(missing, Error::Spawn { .. }), "{missing}");
        let failing = capture(Command::new("sh").args(["-c", "echo why >&2; exit 1"])).unwrap_err();
        assert!(failing.to_string().contains("why"), "{failing}");
    }
}
