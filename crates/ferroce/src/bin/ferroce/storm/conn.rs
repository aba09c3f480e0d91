//! One connection of a storm, from the creation of its id to its destruction, and the memory that its message comes to.

use super::message::{self, LEN, Way, message};
use crate::failure::Result;
use ferroce::cm::Id;
use ferroce::{Access, Mr, Pd, RecvWr, Sge};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

/// Who may close a connection, and how: exactly one thread moves it on from each stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    /// It is being set up.
    Setup,
    /// It is established, and an IO thread's.
    Open,
    /// Somebody closes it.
    Closed,
}

pub(super) struct Conn {
    pub(super) id: Id,
    /// Its number at the client.
    pub(super) serial: u64,
    /// At the client: which server it is with, of those that there were.
    pub(super) generation: u64,
    /// Whose completion queue it has.
    pub(super) lane: usize,
    /// When the creation of its id began.
    pub(super) begun: Instant,
    pub(super) buffer: Buffer,
    stage: AtomicU8,
    /// The peer's message came. Of the IO thread.
    pub(super) received: AtomicBool,
    /// The message was sent. Of the IO thread.
    pub(super) sent: AtomicBool,
}

impl Conn {
    /// A connection whose id holds it: until it is destroyed.
    pub(super) fn new(
        id: Id,
        (serial, generation): (u64, u64),
        lane: usize,
        begun: Instant,
        buffer: Buffer,
    ) -> Arc<Self> {
        let conn = Arc::new(Self {
            id,
            serial,
            generation,
            lane,
            begun,
            buffer,
            stage: AtomicU8::new(Stage::Setup as u8),
            received: AtomicBool::new(false),
            sent: AtomicBool::new(false),
        });
        // Nobody else knows the id yet, or somebody has destroyed it: then the next call says so.
        let _ = conn.id.set_context(conn.clone());
        conn
    }

    pub(super) fn is(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::Acquire) == stage as u8
    }

    /// Moves it on; false if somebody else has.
    pub(super) fn advance(&self, from: Stage, to: Stage) -> bool {
        self.stage.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Closes it from whatever stage; false if somebody else has.
    pub(super) fn close(&self) -> bool {
        self.stage.swap(Stage::Closed as u8, Ordering::AcqRel) != Stage::Closed as u8
    }

    /// Posts the receive.
    pub(super) fn post_recv(&self, qp: &ferroce::Qp) -> Result<()> {
        Ok(qp.post_recv(&[RecvWr::new(self.serial, &[self.buffer.sge()?])])?)
    }

    /// What is wrong with the message that came, if anything.
    pub(super) fn check(&self, byte_len: u32, way: Way) -> Result<(), String> {
        let mut got = [0; LEN];
        self.buffer.mr.read(self.buffer.at, &mut got).map_err(|error| error.to_string())?;
        if byte_len as usize == LEN && got == message(self.serial, way) {
            return Ok(());
        }
        let of = message::serial_of(&got);
        Err(format!("connection {} received {byte_len} bytes that say they are of {of}, or are damaged", self.serial))
    }
}

/// Room for one message.
pub(super) struct Buffer {
    mr: Mr,
    at: usize,
    pool: Arc<Pool>,
}

impl Buffer {
    fn sge(&self) -> Result<Sge> {
        Ok(self.mr.sge(self.at..self.at + LEN)?)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.free.lock().push((self.mr.clone(), self.at));
    }
}

/// Rooms for messages; as many as are needed at a time.
pub(super) struct Pool {
    pd: Pd,
    free: Mutex<Vec<(Mr, usize)>>,
}

/// Rooms that are registered together.
const CHUNK: usize = 1024;

impl Pool {
    pub(super) fn new(pd: Pd) -> Arc<Self> {
        Arc::new(Self { pd, free: Mutex::default() })
    }

    pub(super) fn take(self: &Arc<Self>) -> Result<Buffer> {
        let free = self.free.lock().pop();
        let (mr, at) = match free {
            Some(free) => free,
            None => {
                let mr = self.pd.alloc_mr(CHUNK * LEN, Access::LOCAL_WRITE)?;
                self.free.lock().extend((1..CHUNK).map(|number| (mr.clone(), number * LEN)));
                (mr, 0)
            }
        };
        Ok(Buffer { mr, at, pool: self.clone() })
    }
}
