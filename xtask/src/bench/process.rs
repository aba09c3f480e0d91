//! Child processes with a deadline, which never outlive what started them.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::error::Error;
use crate::exec;

/// How often a child is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(20);

/// A running child; it is killed and waited for when this is dropped.
pub(super) struct Running {
    child: Child,
    shown: String,
    out: NamedTempFile,
    err: NamedTempFile,
}

impl Running {
    pub(super) fn start(command: &mut Command) -> Result<Self, Error> {
        let shown = exec::shown(command);
        let file = || NamedTempFile::new().map_err(Error::io("create a temporary file"));
        let reopened = |file: &NamedTempFile| file.reopen().map_err(Error::io("open a temporary file"));
        let (out, err) = (file()?, file()?);
        let child = command
            .stdin(Stdio::null())
            .stdout(reopened(&out)?)
            .stderr(reopened(&err)?)
            .spawn()
            .map_err(exec::spawn_error(command))?;
        Ok(Self { child, shown, out, err })
    }

    /// Waits until it succeeded; returns what it printed on standard output.
    pub(super) fn finish(mut self, limit: Duration) -> Result<String, Error> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.child.try_wait().map_err(Error::io(format!("wait for `{}`", self.shown)))?;
            match status {
                Some(status) if status.success() => return read(&self.out),
                Some(status) => return Err(self.failed(status.to_string())),
                None if Instant::now() >= deadline => {
                    return Err(self.failed(format!("it was stopped after {} s", limit.as_secs())));
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// Waits until it listens on a TCP port.
    fn listens(&mut self, port: u16) -> Result<(), Error> {
        let deadline = Instant::now() + START;
        while !is_listening(port) {
            let status = self.child.try_wait().map_err(Error::io(format!("wait for `{}`", self.shown)))?;
            if let Some(status) = status {
                return Err(self.failed(format!("{status}, before it listened on port {port}")));
            }
            if Instant::now() >= deadline {
                return Err(self.failed(format!("it does not listen on port {port} after {} s", START.as_secs())));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn failed(&self, status: String) -> Error {
        let mut said = read(&self.err).unwrap_or_default();
        if said.trim().is_empty() {
            said = read(&self.out).unwrap_or_default();
        }
        Error::Failed { command: self.shown.clone(), status, stderr: said.trim_end().to_owned() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(file: &NamedTempFile) -> Result<String, Error> {
    let bytes = std::fs::read(file.path()).map_err(Error::io(format!("read {}", file.path().display())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs one program to its end.
pub(super) fn run(command: &mut Command, limit: Duration) -> Result<String, Error> {
    Running::start(command)?.finish(limit)
}

/// Runs a server and, once it listens on `port`, its client; returns what the client printed.
pub(super) fn run_pair(
    server: &mut Command,
    client: &mut Command,
    port: u16,
    limit: Duration,
) -> Result<String, Error> {
    let mut server = Running::start(server)?;
    server.listens(port)?;
    Running::start(client)?.finish(limit)
}

/// A TCP port of the loopback interface that nobody uses now.
pub(super) fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    Ok(listener.map_err(Error::io("find a free TCP port"))?.port())
}

/// Whether somebody listens on a TCP port of this network namespace. Asked of the kernel: a connection would be taken for the client.
fn is_listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|table| std::fs::read_to_string(table).is_ok_and(|table| lists_listener(&table, port)))
}

/// Each line of the table has, after its number, the local address, the remote address and the state, of which 0A is LISTEN.
fn lists_listener(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().is_some_and(|local| local.ends_with(&suffix));
        local && fields.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_listener_is_seen_and_a_connection_is_not() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:3419 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0\n   \
                     1: 0100007F:3420 0100007F:3419 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 0 10 -1\n";
        assert!(lists_listener(table, 0x3419));
        assert!(!lists_listener(table, 0x3420));
        assert!(!lists_listener(table, 0x19));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(is_listening(listener.local_addr().unwrap().port()));
    }

    #[test]
    fn a_failure_carries_what_the_program_said() {
        assert_eq!(run(Command::new("sh").args(["-c", "echo out; echo err >&2"]), LIMIT).unwrap(), "out\n");
        let error = run(Command::new("sh").args(["-c", "echo why >&2; exit 3"]), LIMIT).unwrap_err().to_string();
        assert!(error.contains("why") && error.contains('3'), "{error}");
    }

    #[test]
    fn what_hangs_is_killed() {
        let error = run(Command::new("sleep").arg("1000"), Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("stopped after"), "{error}");
    }

    #[test]
    fn a_server_that_ends_early_is_a_failure() {
        let port = free_port().unwrap();
        let mut server = Command::new("sh");
        server.args(["-c", "echo no device >&2; exit 1"]);
        let error = run_pair(&mut server, &mut Command::new("true"), port, LIMIT).unwrap_err().to_string();
        assert!(error.contains("no device"), "{error}");
    }
}
