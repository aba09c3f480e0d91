//! The timer thread: closes connections that are not established, at moments that were drawn for them.

use super::conn::Conn;
use parking_lot::{Condvar, Mutex};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

#[derive(Default)]
pub(super) struct Timer {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    due: BinaryHeap<Due>,
    stopped: bool,
}

struct Due {
    at: Instant,
    conn: Arc<Conn>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// The earliest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.conn.serial).cmp(&(self.at, self.conn.serial))
    }
}

impl Timer {
    pub(super) fn set(&self, at: Instant, conn: Arc<Conn>) {
        let mut inner = self.inner.lock();
        let first = inner.due.peek().is_none_or(|due| at < due.at);
        inner.due.push(Due { at, conn });
        drop(inner);
        if first {
            self.changed.notify_one();
        }
    }

    pub(super) fn stop(&self) {
        self.inner.lock().stopped = true;
        self.changed.notify_one();
    }

    /// The thread: calls `expired` for each connection when it is due, until it is stopped.
    pub(super) fn run(&self, expired: impl Fn(&Arc<Conn>)) {
        let mut inner = self.inner.lock();
        while !inner.stopped {
            match inner.due.peek().map(|due| due.at) {
                None => self.changed.wait(&mut inner),
                Some(at) if at > Instant::now() => {
                    self.changed.wait_until(&mut inner, at);
                }
                Some(_) => {
                    let Some(due) = inner.due.pop() else { continue };
                    drop(inner);
                    expired(&due.conn);
                    drop(due);
                    inner = self.inner.lock();
                }
            }
        }
    }
}
