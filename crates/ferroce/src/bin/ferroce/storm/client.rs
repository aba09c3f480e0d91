//! The client of one run: begins connections, as many at a time as the window allows. Whoever ends one begins the next.

use super::conn::{Conn, Stage};
use super::lane::{Lane, Work};
use super::message::{Way, message};
use super::plan::{Plan, Setup};
use super::score::Score;
use super::side::{End, Side, choose_setup};
use super::target::Target;
use super::timer::Timer;
use crate::args::Common;
use crate::failure::Result;
use crate::local;
use ferroce::cm::{ConnParam, Error, Event, EventKind, PortSpace};
use ferroce::{SendOp, SendWr, WcOpcode, WorkCompletion};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(super) struct Client {
    pub(super) side: Side,
    pub(super) score: Score,
    pub(super) timer: Timer,
    local: SocketAddr,
    pub(super) target: Target,
    /// Those that stay open to the end of the run.
    kept: Mutex<Vec<Arc<Conn>>>,
    more: Condvar,
    /// The run is over, and what is destroyed now has ended before.
    over: AtomicBool,
}

/// The number of the first connection that is open from before the run. Others are far below.
const HELD: u64 = 1 << 63;

impl Client {
    /// Connects to `target` from the address that the command line names, else from `reached_from`.
    pub(super) fn new(common: &Common, plan: Plan, reached_from: Option<IpAddr>, target: Target) -> Result<Self> {
        let side = Side::new(common, plan)?;
        let local = local::pick_gid(&side.context, 1, common.gid_index, reached_from)?.ip();
        Ok(Self {
            side,
            score: Score::new(plan.connections, plan.cancel),
            timer: Timer::default(),
            local: SocketAddr::new(local, 0),
            target,
            kept: Mutex::default(),
            more: Condvar::new(),
            over: AtomicBool::new(false),
        })
    }

    /// Lets go of all but what both ends have and what was counted.
    pub(super) fn into_parts(self) -> (Side, Score) {
        (self.side, self.score)
    }

    /// Opens the connections that stay open, `window` at a time. Returns whether all are within `patience` for each lot.
    pub(super) fn hold(&self, patience: Duration) -> bool {
        let (total, window) = (self.side.plan.hold as usize, self.side.plan.window as usize);
        for first in (0..total).step_by(window) {
            let end = total.min(first + window);
            for number in first..end {
                let Some(target) = self.target.aim() else { return false };
                if let Err(failure) = self.begin_one(HELD + number as u64, target) {
                    self.trouble(format!("a connection that is to be held did not begin: {failure}"));
                    return false;
                }
            }
            let mut kept = self.kept.lock();
            if self.more.wait_while_for(&mut kept, |kept| kept.len() < end, patience).timed_out() {
                return false;
            }
        }
        true
    }

    fn keep(&self, conn: &Arc<Conn>) {
        self.kept.lock().push(conn.clone());
        self.more.notify_all();
    }

    /// Closes what stayed open.
    pub(super) fn let_go(&self) {
        self.over.store(true, Ordering::Relaxed);
        for conn in std::mem::take(&mut *self.kept.lock()) {
            if conn.close() {
                self.side.tear_down(self, &conn);
            }
        }
    }

    /// Begins the next connection, if there is to be one.
    pub(super) fn begin(&self) {
        while let Some(target) = self.target.aim()
            && let Some(serial) = self.score.start()
        {
            match self.begin_one(serial, target) {
                Ok(()) => return,
                Err(failure) => {
                    self.trouble(format!("connection {serial} did not begin: {failure}"));
                    self.score.ended();
                }
            }
        }
    }

    fn begin_one(&self, serial: u64, (peer, generation): (SocketAddr, u64)) -> Result<()> {
        let lane = (serial % self.side.lanes.len() as u64) as usize;
        let buffer = self.side.pool.take()?;
        let doom = if serial < HELD { self.score.doom(serial) } else { None };
        let begun = Instant::now();
        let _channel = self.side.enter();
        let id = self.side.cm.create_id(&self.side.channel, PortSpace::Tcp);
        let conn = Conn::new(id, (serial, generation), lane, begun, buffer);
        if let Some(delay) = doom {
            self.timer.set(begun + delay, conn.clone());
        }
        if !self.target.enter(&conn) {
            self.interrupt(&conn);
            return Ok(());
        }
        let step =
            choose_setup(&conn.id, self.side.plan.setup_in).and_then(|()| conn.id.resolve_addr(Some(self.local), peer));
        // It may be cancelled already.
        self.step(&conn, "resolving the address", step);
        Ok(())
    }

    /// A call for the connection was made: if it failed, and not because the connection was closed meanwhile, that is an error.
    fn step(&self, conn: &Arc<Conn>, what: &str, outcome: Result<(), Error>) {
        match outcome {
            Ok(()) => {}
            Err(_) if conn.is(Stage::Closed) => {}
            Err(error) => self.fail(conn, format!("{what}: {error}")),
        }
    }

    fn fail(&self, conn: &Arc<Conn>, why: impl fmt::Display) {
        if self.target.is_gone(conn) {
            self.interrupt(conn);
        } else if conn.close() {
            self.trouble(format!("connection {}: {why}", conn.serial));
            self.side.tear_down(self, conn);
        }
    }

    /// The connection's server was killed.
    pub(super) fn interrupt(&self, conn: &Arc<Conn>) {
        if conn.close() {
            self.score.interrupted();
            self.side.tear_down(self, conn);
        }
    }

    /// There is another server, at `addr`: begins what waited for it.
    pub(super) fn resume(&self, addr: SocketAddr) {
        for _ in 0..self.target.found(addr) {
            self.begin();
        }
    }

    /// The storm cannot go on.
    pub(super) fn give_up(&self, why: impl fmt::Display) {
        self.side.troubles.note(why);
        self.score.give_up();
    }

    fn trouble(&self, what: impl fmt::Display) {
        if self.side.troubles.note(what) {
            self.score.give_up();
        }
    }

    /// The timer thread: a connection's time has come.
    pub(super) fn expired(&self, conn: &Arc<Conn>) {
        let cancelled = conn.advance(Stage::Setup, Stage::Closed);
        self.score.doomsday(cancelled);
        if cancelled {
            self.side.tear_down(self, conn);
        }
    }

    /// Creates the queue pair and asks the peer.
    fn set_up(&self, conn: &Arc<Conn>) {
        let _channel = self.side.enter();
        let outcome = self.side.equip(conn).and_then(|_qp| {
            let private_data = conn.serial.to_be_bytes();
            conn.id.connect(&ConnParam { private_data: &private_data, ..ConnParam::default() })
        });
        self.step(conn, "connecting", outcome);
    }

    /// The connection is established: false if it was closed before.
    fn opened(&self, conn: &Conn) -> bool {
        let opened = conn.advance(Stage::Setup, Stage::Open);
        if opened && conn.serial < HELD {
            self.score.established(conn.begun.elapsed());
        }
        opened
    }

    /// Whether the server has had the message, as it answered, though it may be gone before it could say so.
    fn is_answered(&self, conn: &Conn) -> bool {
        !self.side.plan.keep && conn.received.load(Ordering::Relaxed)
    }

    /// Both messages have arrived.
    fn exchanged(&self, conn: &Arc<Conn>) {
        if self.side.plan.keep {
            self.score.exchanged();
            self.keep(conn);
            self.score.ended();
            self.begin();
        } else if conn.close() {
            self.score.exchanged();
            self.side.tear_down(self, conn);
        }
    }

    /// Sends the message.
    fn talk(&self, conn: &Arc<Conn>) {
        if conn.serial >= HELD {
            return self.keep(conn);
        }
        let bytes = message(conn.serial, Way::ToServer);
        // Its completion is waited for: devices destroy a queue pair of which all is out with less ado.
        let wr = SendWr::inline(conn.serial, SendOp::Send, &bytes);
        match conn.id.qp() {
            Some(qp) => {
                if let Err(error) = qp.post_send(&[wr]) {
                    self.fail(conn, format!("sending: {error}"));
                }
            }
            None => self.fail(conn, "it has no queue pair"),
        }
    }
}

impl End for Client {
    fn side(&self) -> &Side {
        &self.side
    }

    fn event(&self, event: Event) {
        let Some(conn) = event.id().context::<Conn>() else { return };
        let side = &self.side;
        match event.kind() {
            EventKind::AddrResolved => {
                let _channel = side.enter();
                self.step(&conn, "resolving the route", conn.id.resolve_route());
            }
            EventKind::RouteResolved => match side.plan.setup_in {
                Setup::Event => self.set_up(&conn),
                Setup::Io => side.lane(&conn).inbox.push(Work::SetUp(conn)),
            },
            EventKind::ConnectResponse(_) => side.lane(&conn).inbox.push(Work::Establish(conn)),
            EventKind::Established => {
                if self.opened(&conn) {
                    side.lane(&conn).inbox.push(Work::Open(conn));
                }
            }
            EventKind::Disconnected(_) => side.lane(&conn).inbox.push(Work::Ended(conn)),
            EventKind::TimewaitExit => {}
            other => self.fail(&conn, format!("{other:?}")),
        }
    }

    fn work(&self, lane: &Lane, work: Work) -> Result<()> {
        match work {
            Work::SetUp(conn) => self.set_up(&conn),
            Work::Establish(conn) => {
                let outcome = {
                    let _channel = self.side.enter();
                    conn.id.establish()
                };
                let established = outcome.is_ok();
                self.step(&conn, "establishing", outcome);
                if established && self.opened(&conn) {
                    self.talk(&conn);
                }
            }
            Work::Open(conn) => self.talk(&conn),
            Work::Ended(conn) => {
                // The peer ends it once its message is acknowledged: then it has come, and may be unread.
                lane.complete(self)?;
                if self.is_answered(&conn) {
                    self.exchanged(&conn);
                } else {
                    self.fail(&conn, "the peer ended it before its message came");
                }
            }
        }
        Ok(())
    }

    fn completed(&self, conn: &Arc<Conn>, wc: &WorkCompletion) {
        if conn.is(Stage::Closed) {
            return;
        }
        if !wc.is_ok() {
            if self.is_answered(conn) {
                return self.exchanged(conn);
            }
            return self.fail(conn, format!("a work request failed: {}", wc.status));
        }
        if wc.opcode == WcOpcode::Recv {
            if let Err(why) = conn.check(wc.byte_len, Way::ToClient) {
                return self.fail(conn, why);
            }
            conn.received.store(true, Ordering::Relaxed);
        } else {
            conn.sent.store(true, Ordering::Relaxed);
        }
        if conn.sent.load(Ordering::Relaxed) && conn.received.load(Ordering::Relaxed) {
            self.exchanged(conn);
        }
    }

    fn destroyed(&self, conn: &Conn) {
        // What is closed after the run has ended before.
        let counted = conn.serial < HELD && !self.over.load(Ordering::Relaxed);
        if counted {
            self.score.ended();
            self.begin();
        }
    }
}
