//! An IO thread: the queue through which it is handed connections, and its completion queue.

use super::conn::Conn;
use super::inbox::Inbox;
use super::side::End;
use crate::failure::{Failure, Result};
use ferroce::{CompChannel, Context, Cq, QpInitAttr, QpType, WorkCompletion};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Completions that are taken at a time.
const BATCH: usize = 32;
/// Entries of a completion queue: two for each connection that is open or was closed a moment ago.
const CQE: u32 = 1 << 15;

/// What an IO thread is handed.
pub(super) enum Work {
    /// It is to be set up: queue pair, receive, connect or accept.
    SetUp(Arc<Conn>),
    /// The peer has granted it; the queue pair is to be moved.
    Establish(Arc<Conn>),
    /// It is established.
    Open(Arc<Conn>),
    /// The peer has ended it.
    Ended(Arc<Conn>),
}

/// What an IO thread shares with others.
pub(super) struct Lane {
    pub(super) inbox: Inbox<Work>,
    /// The connections whose completions come here, by queue pair number.
    conns: Mutex<HashMap<u32, Arc<Conn>>>,
    cq: Cq,
    channel: CompChannel,
}

impl Lane {
    pub(super) fn new(context: &Context) -> Result<Self> {
        let channel = context.create_comp_channel()?;
        // A device with less has room for those that are open; not all of it, as devices of rdma-core have places of their own in there.
        let cqe = CQE.min(context.query_device()?.max_cqe / 2);
        let cq = context.create_cq(cqe, Some(&channel))?;
        Ok(Self { inbox: Inbox::new()?, conns: Mutex::default(), cq, channel })
    }

    /// What a queue pair of this lane is made with.
    pub(super) fn queue_pair(&self) -> QpInitAttr {
        let mut attr = QpInitAttr::new(QpType::Rc, &self.cq);
        attr.cap.max_send_wr = 1;
        attr.cap.max_recv_wr = 1;
        attr
    }

    pub(super) fn enter(&self, qp_num: u32, conn: &Arc<Conn>) {
        self.conns.lock().insert(qp_num, conn.clone());
    }

    pub(super) fn leave(&self, qp_num: u32) {
        self.conns.lock().remove(&qp_num);
    }

    /// Handles what has completed; returns whether there was anything.
    pub(super) fn complete<E: End>(&self, end: &E) -> Result<bool> {
        let mut completions = [WorkCompletion::default(); BATCH];
        let mut any = false;
        loop {
            let taken = self.cq.poll(&mut completions)?;
            for wc in &completions[..taken] {
                // That of a queue pair which was closed is a flushed receive.
                let conn = self.conns.lock().get(&wc.qp_num).cloned();
                if let Some(conn) = conn {
                    end.completed(&conn, wc);
                }
            }
            any |= taken != 0;
            if taken < BATCH {
                return Ok(any);
            }
        }
    }

    /// Sleeps until there is something to do.
    fn sleep<E: End>(&self, end: &E) -> Result<()> {
        self.cq.req_notify(false)?;
        // What came before the queue was armed raises no event.
        if self.complete(end)? || !self.inbox.going_to_sleep() {
            return Ok(());
        }
        let bell = self.inbox.bell();
        let mut fds =
            [PollFd::new(&bell, PollFlags::IN), PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN)];
        let slept = poll(&mut fds, None);
        self.inbox.awake(fds[0].revents().contains(PollFlags::IN));
        if fds[1].revents().contains(PollFlags::IN) {
            while self.channel.try_event()?.is_some() {}
        }
        match slept {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Failure::environment(format!("an IO thread cannot sleep: {error}"))),
        }
    }
}

/// The IO thread.
pub(super) fn run<E: End>(end: &E, lane: usize) {
    if let Err(failure) = work(end, lane) {
        end.side().troubles.note(format!("an IO thread ended: {failure}"));
    }
}

fn work<E: End>(end: &E, lane: usize) -> Result<()> {
    let side = end.side();
    let lane = &side.lanes[lane];
    let mut works = Vec::new();
    let mut idle = 0;
    while !side.is_stopping() {
        lane.inbox.take(&mut works);
        let mut busy = !works.is_empty();
        for work in works.drain(..) {
            end.work(lane, work)?;
        }
        busy |= lane.complete(end)?;
        if busy {
            idle = 0;
        } else if idle < side.looks {
            idle += 1;
            std::thread::yield_now();
        } else {
            lane.sleep(end)?;
        }
    }
    Ok(())
}
