//! Runs the tool, with a deadline for everything.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// A hang becomes a failure after this.
const PATIENCE: Duration = Duration::from_secs(120);

/// The tool, with nothing in its environment that changes what it does.
pub(crate) fn ferroce(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroce"));
    for name in [
        "FERROCE_DEVICE",
        "FERROCE_LINK",
        "FERROCE_CAPTURE",
        "FERROCE_FAULT",
        "FERROCE_KEEPALIVE",
        "FERROCE_LOG",
        "FERROCE_AH_CACHE_TTL",
        "FERROCE_AH_CACHE_MAX_AGE",
        "FERROCE_AH_CACHE_CAPACITY",
    ] {
        command.env_remove(name);
    }
    command.args(args);
    command
}

/// How a run of the tool ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// Its one JSON document.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The same, after checking that it succeeded.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// The same, after checking that it failed with `code` and said `part`.
    pub(crate) fn failed(self, code: i32, part: &str) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.err.contains(part), "no {part:?} in {self:?}");
        self
    }
}

/// A process; it is killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    out: NamedTempFile,
    err: NamedTempFile,
}

pub(crate) fn start(mut command: Command) -> Running {
    let (out, err) = (NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap());
    let child =
        command.stdin(Stdio::null()).stdout(out.reopen().unwrap()).stderr(err.reopen().unwrap()).spawn().unwrap();
    Running { child, out, err }
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has said `part` on stderr.
    pub(crate) fn says(&mut self, part: &str) {
        let give_up = Instant::now() + PATIENCE;
        while !read(&self.err).contains(part) {
            let running = self.child.try_wait().unwrap().is_none();
            assert!(running || read(&self.err).contains(part), "ended without {part:?}: {}", read(&self.err));
            assert!(Instant::now() < give_up, "no {part:?} in {}", read(&self.err));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it has printed on stdout.
    pub(crate) fn output(&self) -> String {
        read(&self.out)
    }

    /// Waits until it has printed so many lines on stdout.
    pub(crate) fn prints_lines(&mut self, count: usize) {
        let give_up = Instant::now() + PATIENCE;
        while self.output().lines().count() < count {
            assert!(Instant::now() < give_up, "{}", self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> Ended {
        let give_up = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < give_up, "it hangs; so far: {} {}", read(&self.out), read(&self.err));
            std::thread::sleep(Duration::from_millis(5));
        };
        Ended { code: status.code(), out: read(&self.out), err: read(&self.err) }
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(file: &NamedTempFile) -> String {
    String::from_utf8_lossy(&std::fs::read(file.path()).unwrap()).into_owned()
}

/// Runs the tool to its end.
pub(crate) fn run(args: &[&str]) -> Ended {
    start(ferroce(args)).end()
}

/// A TCP port that nobody listens on.
pub(crate) fn free_port() -> String {
    TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port().to_string()
}

/// A server with `args` that is ready for a client on the port given.
pub(crate) fn server(args: &[&str], port: &str) -> Running {
    let mut server = start(ferroce(&[args, &["-p", port]].concat()));
    server.says("waiting for a client");
    server
}

/// Runs both ends: a server, and a client that reaches it at `host`.
pub(crate) fn both(server_args: &[&str], client_args: &[&str], host: &str) -> (Ended, Ended) {
    let port = free_port();
    let mut server = server(server_args, &port);
    let client = run(&[client_args, &["-p", &port, host]].concat());
    (server.end(), client)
}
