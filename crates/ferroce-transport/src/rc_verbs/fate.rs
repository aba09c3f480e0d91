//! How an endpoint is connected, canceled and closed. The transitions of its queue pair are made with no lock held: on a NIC they take long.

use super::address::EndpointAddress;
use super::core::{Phase, State};
use super::endpoint::RcEndpoint;
use super::wire::Control;
use super::{RcVerbs, clock};
use crate::uct::{Completion, OpError, OpFailure, Posted};
use ferroce_verbs::{AhAttr, Error, QpAttr, QpState, Result};
use std::sync::atomic::Ordering;

impl RcEndpoint {
    /// Where the peer's endpoint can connect to this one.
    pub fn address(&self) -> EndpointAddress {
        let shared = &self.interface.0;
        EndpointAddress {
            gid: shared.local.gid,
            qpn: self.core.qpn(),
            psn: self.core.psn,
            mtu: shared.local.mtu,
            terms: shared.terms(),
        }
    }

    /// Connects it with the endpoint at `peer`, which has to be connected with this one. It can be sent to at once; the peer may be not there
    /// yet for as long as retries last.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is connected, or over; else what the device says of the address.
    pub fn connect_to_ep(&self, peer: &EndpointAddress) -> Result<()> {
        {
            let mut state = self.core.lock();
            if state.phase != Phase::Init {
                return Err(Error::invalid("endpoint", "it is connected already, or over: make another one"));
            }
            state.phase = Phase::Connecting;
            state.set_terms(&self.core, peer.terms);
            state.peer = Some((peer.gid, peer.qpn));
        }
        let outcome = self.move_to(peer);
        // Still in INIT, another address can be tried. Beyond it cannot: messages may have come, and a reset takes their receives with it.
        let again = outcome.is_err() && self.core.qp.state() == QpState::Init;
        let mut state = self.core.lock();
        // It may have been canceled meanwhile.
        if state.phase == Phase::Connecting {
            if outcome.is_ok() {
                state.phase = Phase::Ready;
                state.life.last_ack = clock::now();
                self.interface.0.watch(&self.core, &mut state);
                self.interface.0.look_at(!state.pending.is_empty());
            } else {
                state.phase = if again { Phase::Init } else { Phase::Canceled };
                state.peer = None;
            }
        }
        outcome
    }

    fn move_to(&self, peer: &EndpointAddress) -> Result<()> {
        let shared = &self.interface.0;
        let (qp, options) = (&self.core.qp, &shared.options);
        let ah_attr = AhAttr { port_num: options.port, ..AhAttr::roce(peer.gid, shared.local.index) };
        qp.modify(&QpAttr::rtr(ah_attr, peer.mtu.min(shared.local.mtu), peer.qpn, peer.psn))?;
        qp.modify(&QpAttr {
            timeout: Some(options.ack_timeout.min(31)),
            retry_cnt: Some(options.retry_count.min(7)),
            ..QpAttr::rts(self.core.psn)
        })
    }

    /// Cancels what is outstanding.
    pub(super) fn cancel(&self, mut completion: Option<Completion>) -> Result<Posted, OpError> {
        let phase = {
            let mut state = self.core.lock();
            let phase = state.phase;
            self.say_closed(&mut state);
            if !matches!(phase, Phase::Failed(_)) {
                state.phase = Phase::Canceled;
            }
            phase
        };
        let answer = match phase {
            // Nothing was ever posted.
            Phase::Init => Ok(Posted::Done),
            _ => self.stop(&mut completion),
        };
        if let Some(completion) = completion {
            completion.disarm();
        }
        answer
    }

    /// Stops the queue pair, and posts what comes last.
    fn stop(&self, completion: &mut Option<Completion>) -> Result<Posted, OpError> {
        self.core.qp.modify(&QpAttr::to(QpState::Err))?;
        let mut state = self.core.lock();
        if state.ring.outstanding() == 0 && !state.closed {
            return Ok(Posted::Done);
        }
        // One marker for each flush: there is room for some, and the last is the one that counts.
        if state.is_full(&self.core) {
            return Err(OpError::NoResource);
        }
        state.mark(&self.core, completion)?;
        Ok(Posted::InProgress)
    }

    /// Tells the peer, once, that nothing more comes. It leaves before the queue pair stops, unless something holds it up: then the peer finds out
    /// otherwise (report 8151).
    fn say_closed(&self, state: &mut State) {
        if let Ok(mut ready) = state.ready(&self.core, &self.interface.0) {
            let _ = ready.control(Control::Closed);
        }
    }

    /// The program lets go of it.
    pub(super) fn close(&self) {
        let shared = &self.interface.0;
        let mut state = self.core.lock();
        state.closed = true;
        shared.closes.fetch_add(1, Ordering::SeqCst);
        // Nobody wants to know any more.
        let (told, pending, connection) =
            (state.told.take(), std::mem::take(&mut state.pending), state.connection.take());
        let phase = state.phase;
        self.say_closed(&mut state);
        if !matches!(phase, Phase::Failed(_)) {
            state.phase = Phase::Canceled;
        }
        drop(state);
        // Other people's destructors run in them.
        drop((told, pending));
        if phase == Phase::Init || self.drain().is_err() {
            // Nothing was posted, or the device does not say any more what became of it.
            let gone = shared.table.write().remove(self.core.id());
            drop(gone);
        }
        drop(connection);
    }

    fn drain(&self) -> Result<(), OpError> {
        self.core.qp.modify(&QpAttr::to(QpState::Err))?;
        let mut state = self.core.lock();
        state.mark(&self.core, &mut None)
    }
}

impl RcVerbs {
    /// The outcome of an operation that its queue pair did not do.
    pub(super) fn outcome(phase: Phase) -> OpFailure {
        match phase {
            Phase::Failed(failure) => OpFailure::Failed(failure),
            _ => OpFailure::Canceled,
        }
    }
}
