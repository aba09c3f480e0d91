//! Where the server of a run is. With `--kill-every` it is now and then none, and then another one.

use super::conn::Conn;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

pub(super) struct Target(Mutex<Inner>);

struct Inner {
    addr: Option<SocketAddr>,
    /// Which server, of those that there were.
    generation: u64,
    /// Connections that wanted to begin while there was none.
    waiting: u64,
    /// Those with the present server, if it is to be killed.
    conns: Option<Vec<Weak<Conn>>>,
}

/// So many that ended are remembered before they are forgotten.
const FORGET: usize = 4096;

impl Target {
    /// A server at `addr` that may be `killed`.
    pub(super) fn new(addr: SocketAddr, killed: bool) -> Self {
        Self(Mutex::new(Inner { addr: Some(addr), generation: 0, waiting: 0, conns: killed.then(Vec::new) }))
    }

    /// Where to connect to, and which server that is; `None` if there is none, and [`Self::found`] will say so.
    pub(super) fn aim(&self) -> Option<(SocketAddr, u64)> {
        let mut inner = self.0.lock();
        if inner.addr.is_none() {
            inner.waiting += 1;
        }
        inner.addr.map(|addr| (addr, inner.generation))
    }

    /// Remembers a connection; false if its server has been killed meanwhile.
    pub(super) fn enter(&self, conn: &Arc<Conn>) -> bool {
        let mut inner = self.0.lock();
        if conn.generation != inner.generation {
            return false;
        }
        if let Some(conns) = &mut inner.conns {
            if conns.len() >= FORGET {
                conns.retain(|conn| conn.strong_count() != 0);
            }
            conns.push(Arc::downgrade(conn));
        }
        true
    }

    /// Whether the server of a connection has been killed.
    pub(super) fn is_gone(&self, conn: &Conn) -> bool {
        conn.generation != self.0.lock().generation
    }

    /// The server is about to be killed. Returns the connections with it.
    pub(super) fn lost(&self) -> Vec<Weak<Conn>> {
        let mut inner = self.0.lock();
        inner.addr = None;
        inner.generation += 1;
        inner.conns.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// There is another server. Returns how many connections wait for it.
    pub(super) fn found(&self, addr: SocketAddr) -> u64 {
        let mut inner = self.0.lock();
        inner.addr = Some(addr);
        std::mem::take(&mut inner.waiting)
    }
}
