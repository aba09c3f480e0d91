//! A server that is killed now and then, and started anew: what `--kill-every` asks for.

use super::SERVER;
use super::client::Client;
use super::control::Control;
use super::plan::Plan;
use super::run::prepare;
use crate::failure::{Failure, Result};
use crate::{child, tcp};
use parking_lot::{Condvar, Mutex};
use std::net::SocketAddr;
use std::time::Duration;

/// The servers of one run, one at a time.
pub(super) struct Kills {
    words: Vec<String>,
    every: Duration,
    timeout: Duration,
    current: Mutex<Current>,
    stopped: Mutex<bool>,
    stop: Condvar,
}

struct Current {
    control: Control,
    server: child::Server,
    kills: u64,
}

impl Kills {
    /// Starts the first server: this program with `words`.
    pub(super) fn new(words: &[String], every: Duration, timeout: Duration) -> Result<Self> {
        let (control, server) = start(words, timeout)?;
        Ok(Self {
            words: words.to_vec(),
            every,
            timeout,
            current: Mutex::new(Current { control, server, kills: 0 }),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
        })
    }

    /// Calls `f` with the control connection of the present server.
    pub(super) fn with_control<T>(&self, f: impl FnOnce(&Control) -> T) -> T {
        f(&self.current.lock().control)
    }

    /// How many servers were killed.
    pub(super) fn count(&self) -> u64 {
        self.current.lock().kills
    }

    /// Kills the server again and again until [`Self::stop`].
    pub(super) fn run(&self, client: &Client, plan: &Plan) {
        loop {
            {
                let mut stopped = self.stopped.lock();
                if !*stopped {
                    self.stop.wait_for(&mut stopped, self.every);
                }
                if *stopped {
                    return;
                }
            }
            if let Err(failure) = self.kill(client, plan) {
                client.give_up(format!("the server that was killed has no successor: {failure}"));
                return;
            }
        }
    }

    /// Kills the server, starts another one, and closes what the client still has with the first: as a program does that hears of
    /// the end of its peer from elsewhere, in whatever state each connection is.
    fn kill(&self, client: &Client, plan: &Plan) -> Result<()> {
        let mut current = self.current.lock();
        let orphans = client.target.lost();
        current.server.kill();
        let (control, server) = start(&self.words, self.timeout)?;
        let addr = first_addr(&prepare(&control, plan, false)?)?;
        *current = Current { control, server, kills: current.kills + 1 };
        drop(current);
        client.resume(addr);
        for conn in orphans.iter().filter_map(std::sync::Weak::upgrade) {
            client.interrupt(&conn);
        }
        Ok(())
    }

    /// Ends [`Self::run`] after what it is at.
    pub(super) fn stop(&self) {
        *self.stopped.lock() = true;
        self.stop.notify_all();
    }
}

fn start(words: &[String], timeout: Duration) -> Result<(Control, child::Server)> {
    let server = child::Server::start(words)?;
    let control = Control::new(tcp::connect("127.0.0.1", server.port(), SERVER)?, timeout)?;
    Ok((control, server))
}

/// Where a server listens that named `addrs`.
pub(super) fn first_addr(addrs: &[SocketAddr]) -> Result<SocketAddr> {
    addrs.first().copied().ok_or_else(|| Failure::run("the server named no address"))
}
