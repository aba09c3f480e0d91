use crate::failure::{Checked, Failure, ensure};
use ferroce_verbs::{QpType, WcStatus, WorkCompletion};
use std::collections::BTreeMap;

/// What was posted to a queue pair (or shared receive queue) and is not known to be complete, by `wr_id`: these count up, so
/// completions come in their order.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Whether each is signaled.
    sends: BTreeMap<u64, bool>,
    /// How many bytes each has room for.
    pub(super) receives: BTreeMap<u64, u64>,
    /// From before the queue pair was reset: they may complete, once, or not.
    forgotten: BTreeMap<u64, ()>,
}

impl Ledger {
    pub(super) fn sent(&mut self, wr_id: u64, signaled: bool) {
        self.sends.insert(wr_id, signaled);
    }

    pub(super) fn received(&mut self, wr_id: u64, room: u64) {
        self.receives.insert(wr_id, room);
    }

    /// The queue pair was reset: what was posted is gone.
    pub(super) fn reset(&mut self) {
        self.forgotten.extend(self.sends.keys().map(|&id| (id, ())));
        self.forgotten.extend(self.receives.keys().map(|&id| (id, ())));
        self.sends.clear();
        self.receives.clear();
    }

    /// A completion of a send or receive of this queue pair; returns false if it must be one of its shared receive queue.
    pub(super) fn complete(&mut self, wc: &WorkCompletion) -> Checked<bool> {
        let id = wc.wr_id;
        if self.forgotten.remove(&id).is_some() {
            return Ok(true);
        }
        if let Some(signaled) = self.sends.get(&id).copied() {
            ensure!(signaled || wc.status != WcStatus::Success, "{wc:?}: it was not signaled");
            let rest = self.sends.split_off(&(id + 1));
            self.sends.remove(&id);
            let left_out = self.sends.iter().find(|(_, signaled)| **signaled);
            ensure!(left_out.is_none(), "{wc:?}: {left_out:?} should have come before it");
            self.sends = rest;
            return Ok(true);
        }
        let Some((&first, &room)) = self.receives.first_key_value() else { return Ok(false) };
        if !self.receives.contains_key(&id) {
            return Ok(false);
        }
        ensure!(first == id, "{wc:?}: receive {first} should have come before it");
        self.receives.remove(&id);
        check_room(wc, room)?;
        Ok(true)
    }

    /// A completion of a shared receive queue.
    pub(super) fn complete_shared(&mut self, wc: &WorkCompletion) -> Checked {
        let Some(room) = self.receives.remove(&wc.wr_id) else {
            return Err(Failure::new(format!("{wc:?}: it was not posted, or completed before")));
        };
        check_room(wc, room)
    }

    /// All is over: that nothing is missing.
    pub(super) fn check_complete(&self, qp_type: QpType, shared: bool) -> Checked {
        let send = self.sends.iter().find(|(_, signaled)| **signaled);
        ensure!(send.is_none(), "a send of a {qp_type} queue pair never completed: {send:?}");
        let receive = self.receives.first_key_value();
        ensure!(shared || receive.is_none(), "a receive of a {qp_type} queue pair never completed: {receive:?}");
        Ok(())
    }
}

fn check_room(wc: &WorkCompletion, room: u64) -> Checked {
    use ferroce_verbs::WcOpcode;
    let fits = wc.status != WcStatus::Success || wc.opcode != WcOpcode::Recv || u64::from(wc.byte_len) <= room;
    ensure!(fits, "{wc:?}: it has room for {room} bytes");
    Ok(())
}
