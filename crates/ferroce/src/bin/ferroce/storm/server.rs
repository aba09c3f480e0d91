//! The server of one run: accepts what comes, answers the message of each connection, and closes.

use super::conn::{Conn, Stage};
use super::lane::{Lane, Work};
use super::message::{Way, message};
use super::plan::{Plan, Setup};
use super::side::{End, Side, choose_setup};
use crate::args::Common;
use crate::failure::Result;
use crate::local;
use ferroce::cm::{ConnParam, Error, Event, EventKind, Id, PortSpace};
use ferroce::{SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

pub(super) struct Server {
    pub(super) side: Side,
    listener: Id,
    next_lane: AtomicUsize,
    /// Messages that were answered.
    answered: AtomicU64,
}

impl Server {
    /// Listens at the address that the command line names, else at the one that the client has reached.
    pub(super) fn new(common: &Common, plan: Plan, reached_at: Option<IpAddr>) -> Result<Self> {
        let side = Side::new(common, plan)?;
        let local = local::pick_gid(&side.context, 1, common.gid_index, reached_at)?.ip();
        let listener = side.cm.create_id(&side.channel, PortSpace::Tcp);
        choose_setup(&listener, plan.setup_in)?;
        listener.bind_addr(SocketAddr::new(local, 0))?;
        listener.listen(0)?;
        Ok(Self { side, listener, next_lane: AtomicUsize::new(0), answered: AtomicU64::new(0) })
    }

    pub(super) fn addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes no connections any more.
    pub(super) fn close(&self) {
        let _channel = self.side.enter();
        self.listener.destroy();
    }

    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Lets go of all but what both ends have.
    pub(super) fn into_side(self) -> Side {
        self.side
    }

    /// A peer asks for a connection.
    fn requested(&self, id: Id, private_data: &[u8]) -> Result<()> {
        let Some(serial) = private_data.first_chunk().copied().map(u64::from_be_bytes) else {
            self.side.troubles.note(format!("a request with {} bytes of private data", private_data.len()));
            return Ok(());
        };
        let lane = self.next_lane.fetch_add(1, Ordering::Relaxed) % self.side.lanes.len();
        let conn = Conn::new(id, (serial, 0), lane, Instant::now(), self.side.pool.take()?);
        match self.side.plan.setup_in {
            Setup::Event => self.set_up(&conn),
            Setup::Io => self.side.lane(&conn).inbox.push(Work::SetUp(conn)),
        }
        Ok(())
    }

    /// Creates the queue pair and accepts.
    fn set_up(&self, conn: &Arc<Conn>) {
        let _channel = self.side.enter();
        let outcome = self.side.equip(conn).and_then(|_qp| conn.id.accept(&ConnParam::default()));
        match outcome {
            Ok(()) => {}
            // The peer has taken its request back.
            Err(Error::Destroyed | Error::Phase { .. }) => self.close_conn(conn),
            Err(error) => self.fail(conn, format!("accepting: {error}")),
        }
    }

    fn fail(&self, conn: &Arc<Conn>, why: impl fmt::Display) {
        if conn.close() {
            self.side.troubles.note(format!("connection {} at the server: {why}", conn.serial));
            self.side.tear_down(self, conn);
        }
    }

    fn close_conn(&self, conn: &Arc<Conn>) {
        if conn.close() {
            self.side.tear_down(self, conn);
        }
    }

    /// Answers, if the message came and the connection is established.
    fn answer(&self, conn: &Arc<Conn>) {
        if !conn.is(Stage::Open) || !conn.received.load(Ordering::Relaxed) || conn.sent.swap(true, Ordering::Relaxed) {
            return;
        }
        let bytes = message(conn.serial, Way::ToClient);
        // Without a queue pair somebody closes it.
        if let Some(qp) = conn.id.qp() {
            match qp.post_send(&[SendWr::inline(conn.serial, SendOp::Send, &bytes)]) {
                Ok(()) => {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => self.fail(conn, format!("sending: {error}")),
            }
        }
    }
}

impl End for Server {
    fn side(&self) -> &Side {
        &self.side
    }

    fn event(&self, event: Event) {
        let (id, kind, private_data) = event.into_parts();
        if let EventKind::ConnectRequest { id, .. } = kind {
            if let Err(failure) = self.requested(id, &private_data) {
                self.side.troubles.note(format!("a request: {failure}"));
            }
            return;
        }
        let Some(conn) = id.context::<Conn>() else { return };
        match kind {
            EventKind::Established => {
                if conn.advance(Stage::Setup, Stage::Open) {
                    self.side.lane(&conn).inbox.push(Work::Open(conn));
                }
            }
            // The client has cancelled it, or is through with it.
            EventKind::Disconnected(_) | EventKind::Rejected { .. } => {
                self.side.lane(&conn).inbox.push(Work::Ended(conn));
            }
            // It has cancelled it, and word of that was lost.
            EventKind::Unreachable { .. } if self.side.plan.cancel != 0 => {
                self.side.lane(&conn).inbox.push(Work::Ended(conn));
            }
            EventKind::TimewaitExit => {}
            other => self.fail(&conn, format!("{other:?}")),
        }
    }

    fn work(&self, _: &Lane, work: Work) -> Result<()> {
        match work {
            Work::SetUp(conn) => self.set_up(&conn),
            Work::Open(conn) => self.answer(&conn),
            Work::Ended(conn) => self.close_conn(&conn),
            Work::Establish(conn) => self.fail(&conn, "it was granted by a client"),
        }
        Ok(())
    }

    fn completed(&self, conn: &Arc<Conn>, wc: &WorkCompletion) {
        if conn.is(Stage::Closed) {
            return;
        }
        if conn.sent.load(Ordering::Relaxed) {
            // The answer is acknowledged; or the client has it, and is gone before it said so.
            if !self.side.plan.keep || !wc.is_ok() {
                self.close_conn(conn);
            }
            return;
        }
        if wc.status == WcStatus::WrFlushErr {
            // The client has cancelled it: the event that says so is on its way.
            return self.close_conn(conn);
        }
        if !wc.is_ok() || wc.opcode != WcOpcode::Recv {
            return self.fail(conn, format!("a work request failed: {}", wc.status));
        }
        if let Err(why) = conn.check(wc.byte_len, Way::ToServer) {
            return self.fail(conn, why);
        }
        conn.received.store(true, Ordering::Relaxed);
        if conn.is(Stage::Setup) {
            // The client uses the connection: so it is established, whatever became of its message that says so.
            let _channel = self.side.enter();
            let _ = conn.id.notify_established();
        }
        self.answer(conn);
    }

    fn destroyed(&self, _: &Conn) {}
}
