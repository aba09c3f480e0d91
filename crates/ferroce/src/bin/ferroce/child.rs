//! A second process of this program on this machine: the server of `perf --local` and of `demo`.
//!
//! The two are tied by pipes. The child says on its stdout on which port it listens; when its stdin ends, because the
//! parent ended in whatever way, it ends too.

use crate::failure::{Failure, Result};
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// What the child prints before its port number.
const READY: &str = "listening on port ";
/// How long it may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A child server; dropping it ends it.
pub(crate) struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts this program with `args`.
    pub(crate) fn start(args: &[String]) -> Result<Self> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::environment(format!("this program cannot find itself: {error}")))?;
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::environment(format!("a second process cannot be started: {error}")))?;
        let mut server = Self { child, port: 0 };
        server.port = server.wait_for_port()?;
        Ok(server)
    }

    fn wait_for_port(&mut self) -> Result<u16> {
        let died = || Failure::run("the second process ended before it was ready").hint("its own message is above");
        let out = self.child.stdout.take().ok_or_else(died)?;
        let (line_read, line) = mpsc::channel();
        std::thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut text = String::new();
            let _ = out.by_ref().take(256).read_line(&mut text);
            let _ = line_read.send(text);
            // Whatever it says later is of no interest, but the pipe must not fill.
            let _ = std::io::copy(&mut out, &mut std::io::sink());
        });
        let text = line.recv_timeout(START_TIMEOUT).map_err(|_| died())?;
        text.trim().strip_prefix(READY).and_then(|port| port.parse().ok()).ok_or_else(died)
    }

    /// The TCP port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Server {
    /// Ends it with SIGKILL and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// In the child: says that it is ready, and from now on ends when the parent does.
pub(crate) fn announce(port: u16) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{READY}{port}")
        .and_then(|()| out.flush())
        .map_err(|error| Failure::run(format!("the parent process is gone: {error}")))?;
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut stdin().lock(), &mut std::io::sink());
        std::process::exit(1);
    });
    Ok(())
}
