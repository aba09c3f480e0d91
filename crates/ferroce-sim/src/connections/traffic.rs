//! The messages that connections carry: one each way, checked.

use super::act::{Act, MESSAGE, tag};
use super::world::World;
use crate::failure::{Checked, Failure, ensure};
use ferroce_verbs::{SendFlags, SendWr, WcStatus, WorkCompletion};
use std::time::Duration;

/// In work request ids: a send, not a receive.
const SEND: u64 = 1 << 63;

impl World {
    /// Sends the one message of a side.
    pub(super) fn send(&mut self, number: usize) -> Checked {
        let side = &self.sides[number];
        let (Some(id), Some(mr)) = (&side.id, &side.mr) else { return Ok(()) };
        let Some(qp) = id.qp() else { return Ok(()) };
        mr.write(0, &message(side.attempt, side.active))?;
        let sge = [mr.sge(..MESSAGE)?];
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::send(SEND | number as u64, &sge) };
        qp.post_send(&[wr]).map_err(Failure::new)?;
        Ok(())
    }

    /// Takes the completions of a program.
    pub(super) fn poll(&mut self, place: usize) -> Checked {
        let mut wcs = [WorkCompletion::default(); 16];
        loop {
            let Some(program) = &self.programs[place] else { return Ok(()) };
            let count = program.cq.poll(&mut wcs)?;
            for wc in &wcs[..count] {
                self.watch.completion(wc);
                self.complete(place, wc)?;
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    fn complete(&mut self, place: usize, wc: &WorkCompletion) -> Checked {
        let number = (wc.wr_id & !SEND) as usize;
        let side = &mut self.sides[number];
        ensure!(side.place == place, "place {place} gets a completion of side {number}");
        let Some(mr) = side.mr.as_ref().filter(|_| !side.destroyed) else { return Ok(()) };
        if wc.status != WcStatus::Success {
            if side.ended.is_none() {
                // The connection is of no use any more.
                self.after(Duration::from_secs(1), Act::Disconnect(number));
            }
            return Ok(());
        }
        if wc.wr_id & SEND != 0 {
            return Ok(());
        }
        let mut got = [0; MESSAGE];
        mr.read(MESSAGE, &mut got)?;
        let wanted = message(side.attempt, !side.active);
        ensure!(got == wanted && wc.byte_len as usize == MESSAGE, "side {number} got {got:02x?}, not {wanted:02x?}");
        ensure!(!side.received, "side {number} got its message twice");
        side.received = true;
        self.outcome.bytes += MESSAGE as u64;
        if !self.sides[number].active {
            // It may be the first to know that it is established.
            if !self.sides[number].established
                && self.random.chance(0.5)
                && let Some(id) = &self.sides[number].id
            {
                // That it has ended meanwhile is no error of the program's.
                let _ = id.notify_established();
                self.touch(place);
            }
            self.send(number)?;
        }
        Ok(())
    }
}

/// What the active or the passive side of an attempt sends.
fn message(attempt: usize, active: bool) -> [u8; MESSAGE] {
    let mut message = [u8::from(active); MESSAGE];
    message[..4].copy_from_slice(&tag(attempt));
    message
}
