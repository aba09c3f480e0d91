//! Runs QEMU, follows its scripts and enforces deadlines.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::exec::Log;
use crate::tally::Tally;

use super::capture::Capture;
use super::protocol::{Line, Nonce};
use super::script::Script;

/// From the start of QEMU until the first script runs. Some four seconds on an idle machine.
const BOOT: Duration = Duration::from_secs(180);

/// Beyond a script's own limit, which is enforced inside.
const GRACE: Duration = Duration::from_secs(45);

/// To switch off.
const SHUTDOWN: Duration = Duration::from_secs(60);

const MEMORY_MIB: u32 = 1024;

/// A virtual machine to be.
pub(super) struct Machine<'a> {
    pub(super) kernel: &'a Path,
    pub(super) initrd: &'a Path,
    /// Where the kernel's messages go.
    pub(super) console: &'a Path,
    /// Where what the scripts print goes, beside the log.
    pub(super) output: &'a Path,
    pub(super) log: Log,
}

/// How one script ended.
#[derive(Debug)]
pub(super) struct ScriptRecord {
    pub(super) status: i32,
    pub(super) time: Duration,
    /// The cases that it named.
    pub(super) cases: Tally,
}

/// How a run ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// All scripts ran and the machine switched itself off.
    Complete,
    /// A deadline passed: of what.
    TimedOut(String),
    /// QEMU ended before the scripts did.
    Died(String),
}

/// All that is known after a run.
#[derive(Debug)]
pub(super) struct Record {
    /// Of the scripts that ended, in order.
    pub(super) scripts: Vec<ScriptRecord>,
    pub(super) ending: Ending,
    /// The kernel's messages.
    pub(super) console: String,
    /// What scripts have captured.
    pub(super) captures: Vec<Capture>,
}

/// Ends QEMU when we return early.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machine<'_> {
    fn command(&self) -> Command {
        // If we are killed, QEMU goes, too.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
            .args(["-m", &MEMORY_MIB.to_string()])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            // The first port is the kernel's console, the second one is the scripts'.
            .arg("-serial")
            .arg(format!("file:{}", self.console.display()))
            .args(["-serial", "stdio"])
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(self.initrd)
            // Level 5 shows warnings. A panic reboots, which `-no-reboot` turns into the end. Whether the timer ticks is not looked at while
            // booting: an emulator that has to wait for a processor is too late for that.
            .args(["-append", "console=ttyS0 loglevel=5 panic=-1 oops=panic no_timer_check"]);
        command
    }

    /// Boots and runs all scripts.
    pub(super) fn run(&self, nonce: &Nonce, scripts: &[Script]) -> Result<Record, Error> {
        let mut command = self.command();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| Error::Spawn { program: "setpriv qemu-system-x86_64".into(), source })?;
        let stdout = child.stdout.take().expect("standard output was asked for as a pipe");
        let mut qemu = Qemu(child);
        let lines = read_lines(stdout);
        let mut output = File::create(self.output).map_err(Error::io(format!("create {}", self.output.display())))?;
        let mut captures = Vec::new();
        let (records, ending) = self.follow(&lines, nonce, scripts, &mut output, &mut captures);
        let ending = match ending {
            Ending::Complete => match wait(&mut qemu.0, SHUTDOWN) {
                true => Ending::Complete,
                false => Ending::TimedOut("switching off".into()),
            },
            other => other,
        };
        drop(qemu);
        let console = std::fs::read(self.console).map_err(Error::io(format!("read {}", self.console.display())))?;
        let console = String::from_utf8_lossy(&console).replace('\r', "");
        Ok(Record { scripts: records, ending, console, captures })
    }

    /// Reads until all scripts have ended, the machine is gone, or a deadline passes.
    fn follow(
        &self,
        lines: &Receiver<String>,
        nonce: &Nonce,
        scripts: &[Script],
        output: &mut File,
        captures: &mut Vec<Capture>,
    ) -> (Vec<ScriptRecord>, Ending) {
        let mut records: Vec<ScriptRecord> = Vec::new();
        let mut cases = Tally::default();
        let mut started = Instant::now();
        let mut deadline = started + BOOT;
        let mut doing = "booting".to_owned();
        // A marker follows an empty line, so that it begins a line whatever the script printed last. That one is not shown.
        let mut empty = false;
        loop {
            let line = match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return (records, Ending::TimedOut(doing)),
                Err(RecvTimeoutError::Disconnected) => return (records, Ending::Died(doing)),
            };
            // The log is for people; what matters has been taken from the pipe.
            let _ = writeln!(output, "{line}");
            let held = std::mem::take(&mut empty);
            match Line::parse(nonce, &line) {
                Line::Ready { uptime } => {
                    self.log.line(&format!(
                        "booted in {:.1} s ({uptime} s by its own clock)",
                        started.elapsed().as_secs_f64()
                    ));
                    deadline = Instant::now() + GRACE;
                }
                Line::Begin { index } if index == records.len() && index < scripts.len() => {
                    let script = &scripts[index];
                    self.log.line(&format!("--- {}", script.shown()));
                    started = Instant::now();
                    deadline = started + Duration::from_secs(script.seconds()) + GRACE;
                    doing = script.shown().to_owned();
                    cases = Tally::default();
                }
                Line::End { index, status } if index == records.len() && index < scripts.len() => {
                    let time = started.elapsed();
                    self.log.line(&format!("--- {}: status {status}, {:.1} s", doing, time.as_secs_f64()));
                    records.push(ScriptRecord { status, time, cases: std::mem::take(&mut cases) });
                    deadline = Instant::now() + GRACE;
                }
                Line::Capture { name, bytes } => match captures.iter_mut().find(|capture| capture.name == name) {
                    Some(capture) => capture.bytes.extend(bytes),
                    None => captures.push(Capture { name: name.to_owned(), bytes }),
                },
                Line::Bye if records.len() == scripts.len() => return (records, Ending::Complete),
                // A marker out of order means that the protocol is broken: show it like any line, and let the deadline end it.
                Line::Begin { .. } | Line::End { .. } | Line::Bye => self.log.line(&line),
                Line::Output(text) => {
                    if held {
                        self.log.line("");
                    }
                    empty = text.is_empty();
                    if !empty {
                        self.log.line(text);
                        cases.script_line(text);
                    }
                }
            }
        }
    }
}

fn read_lines(stdout: std::process::ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Waits for a child to end by itself; `false` if it does not in time.
fn wait(child: &mut Child, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
