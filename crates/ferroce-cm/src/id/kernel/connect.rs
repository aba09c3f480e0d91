//! Connecting, accepting, rejecting, disconnecting.

use super::super::connect::DEPTH;
use super::super::{ConnParam, UDP_QKEY};
use super::{Depths, Id, IdCore, Phase, private};
use crate::kernel::{KernelId, KernelManager, refused};
use crate::{Error, Result};
use ferroce_abi::rdma_cm;
use ferroce_verbs::Qp;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Instant;

/// `IBV_EVENT_COMM_EST`.
const COMM_EST: u32 = 4;

/// Most private data of a request, its answer and a refusal: of connections, and of datagrams (IBTA 12.6, less the header of
/// annex A11).
const REQUEST: [usize; 2] = [56, 180];
const ANSWER: [usize; 2] = [196, 136];
const REFUSAL: [usize; 2] = [148, 136];

impl Id {
    pub(in crate::id) fn connect_by_kernel(&self, manager: &Arc<KernelManager>, param: &ConnParam<'_>) -> Result<()> {
        let core = self.core();
        let timeout = core.options.lock().connect_timeout;
        let private_data = private(param.private_data, core.most(REQUEST))?;
        let (id, request) = {
            let mut state = self.state()?;
            let id = state.kernel_id("connect", |phase| phase == Phase::RouteResolved)?;
            let (qp_num, srq) = if core.is_datagram() { (0, false) } else { state.queue_pair(param)? };
            let limits = manager.limits();
            let depths = Depths {
                responder_resources: param.responder_resources.unwrap_or(DEPTH).min(limits.responder_resources),
                initiator_depth: param.initiator_depth.unwrap_or(DEPTH).min(limits.initiator_depth),
            };
            // Before the command: the answer may be read before it returns.
            state.phase = Phase::Connecting;
            (id, core.to_kernel(param, (qp_num, srq), depths, private_data))
        };
        if let Some(deadline) = Instant::now().checked_add(timeout) {
            manager.set_deadline(id.uid(), deadline);
        }
        let asked = self
            .set_kernel_options(manager, &id)
            .and_then(|()| manager.device().connect(id.number(), &request).map_err(refused("connecting")));
        asked.inspect_err(|_| {
            manager.clear_deadline(id.uid());
            let mut state = core.state.lock();
            if state.phase == Phase::Connecting {
                state.phase = Phase::RouteResolved;
            }
        })
    }

    pub(in crate::id) fn accept_by_kernel(&self, manager: &Arc<KernelManager>, param: &ConnParam<'_>) -> Result<()> {
        let core = self.core();
        let private_data = private(param.private_data, core.most(ANSWER))?;
        if core.is_datagram() && param.qkey.is_some_and(|qkey| qkey != UDP_QKEY) {
            return Err(Error::Unsupported { what: "accepting in the port space UDP with a Q_Key of one's own" });
        }
        let setup = core.setup.lock();
        let (id, qp, answer) = {
            let mut state = self.state()?;
            let id = state.kernel_id("accept", |phase| phase == Phase::Requested)?;
            let qp = if param.qp_num.is_none() { state.qp.clone() } else { None };
            let (qp_num, srq) = if core.is_datagram() {
                let own = state.qp.as_ref().map(Qp::qp_num);
                let none = Error::Phase { call: "accepting without a queue pair", phase: state.phase };
                (param.qp_num.or(own).ok_or(none)?, false)
            } else {
                state.queue_pair(param)?
            };
            let (offered, limits) = (state.negotiated, manager.limits());
            let depths = Depths {
                responder_resources: param
                    .responder_resources
                    .unwrap_or(offered.responder_resources)
                    .min(limits.responder_resources),
                initiator_depth: param.initiator_depth.unwrap_or(offered.initiator_depth).min(limits.initiator_depth),
            };
            state.kernel.depths = Some(depths);
            (id, qp, core.to_kernel(param, (qp_num, srq), depths, private_data))
        };
        // The kernel has not taken them over from the listener.
        self.set_kernel_options(manager, &id)?;
        let connected = qp.filter(|_| !core.is_datagram());
        if let Some(qp) = &connected
            && let Err(error) = core.move_to_rts(qp, &setup)
        {
            core.abandon();
            return Err(error);
        }
        {
            let mut state = self.state()?;
            state.kernel_id("accept", |phase| phase == Phase::Requested)?;
            state.phase = if core.is_datagram() { Phase::Connected } else { Phase::Accepted };
        }
        // With it the kernel learns whose its events are.
        manager.device().accept(id.number(), id.uid(), &answer).map_err(|error| {
            let phase = {
                let mut state = core.state.lock();
                if state.phase != Phase::Destroyed {
                    state.phase = Phase::Disconnected;
                }
                state.phase
            };
            if let Some(qp) = &connected {
                IdCore::move_to_err(qp, &setup);
            }
            match Errno::from_io_error(&error) {
                // The peer has taken it back, of which the kernel has said nothing.
                Some(Errno::INVAL | Errno::NOTCONN) => Error::Phase { call: "accept", phase },
                _ => refused("accepting")(error),
            }
        })
    }

    pub(in crate::id) fn reject_by_kernel(&self, manager: &Arc<KernelManager>, private_data: &[u8]) -> Result<()> {
        let core = self.core();
        private(private_data, core.most(REFUSAL))?;
        let id = {
            let mut state = self.state()?;
            let id = state.kernel_id("reject", |phase| matches!(phase, Phase::Requested | Phase::Responding))?;
            state.phase = Phase::Disconnected;
            id
        };
        match manager.device().reject(id.number(), private_data) {
            // The peer has given up.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                Err(Error::Phase { call: "reject", phase: Phase::Disconnected })
            }
            outcome => outcome.map_err(refused("rejecting")),
        }
    }

    pub(in crate::id) fn notify_kernel(&self, manager: &Arc<KernelManager>) -> Result<()> {
        let accepted = |phase| matches!(phase, Phase::Accepted | Phase::Connected);
        let id = self.state()?.kernel_id("notify_established", accepted)?;
        match manager.device().notify(id.number(), COMM_EST) {
            // It knows.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::ISCONN) => Ok(()),
            outcome => outcome.map_err(refused("telling that data has come")),
        }
    }

    pub(in crate::id) fn disconnect_by_kernel(&self, manager: &Arc<KernelManager>) -> Result<()> {
        let core = self.core();
        // Not while the connection is granted or confirmed: the kernel would refuse, and it would not end.
        let setup = core.setup.lock();
        let (id, qp) = {
            let mut state = self.state()?;
            let was = state.phase;
            match (was, &state.kernel.id) {
                (_, _) if core.is_datagram() => {
                    let call = "disconnecting where there are datagrams only";
                    return Err(Error::Phase { call, phase: was });
                }
                (Phase::Disconnecting, _) | (Phase::Disconnected, None) => return Ok(()),
                (Phase::Connected | Phase::Accepted | Phase::Disconnected, Some(id)) => {
                    let id = id.clone();
                    if was != Phase::Disconnected {
                        state.phase = Phase::Disconnecting;
                    }
                    state.kernel.ends_when_established = was == Phase::Accepted;
                    (id, state.qp.clone())
                }
                (phase, _) => return Err(Error::Phase { call: "disconnect", phase }),
            }
        };
        core.end_in_kernel(manager, &id);
        if let Some(qp) = &qp {
            IdCore::move_to_err(qp, &setup);
        }
        Ok(())
    }
}

impl IdCore {
    /// Tells the kernel that the connection is over. That it is so already is fine. While the kernel waits for the peer's confirmation it does
    /// nothing of the kind, and does not say so (`rdma_disconnect` in cma.c).
    pub(super) fn end_in_kernel(&self, manager: &KernelManager, id: &KernelId) {
        if let Err(error) = manager.device().disconnect(id.number()) {
            tracing::debug!(%error, "the connection had ended");
        }
    }

    pub(in crate::id) fn confirm_by_kernel(
        self: &Arc<Self>,
        manager: &Arc<KernelManager>,
        qp: Option<&Qp>,
    ) -> Result<()> {
        let setup = self.setup.lock();
        if let Some(qp) = qp {
            self.move_to_rts(qp, &setup)?;
        }
        let id = {
            let mut state = self.state.lock();
            if state.phase == Phase::Destroyed {
                return Err(Error::Destroyed);
            }
            let id = state.kernel_id("establish", |phase| phase == Phase::Responding)?;
            state.phase = Phase::Connected;
            id
        };
        manager.device().establish(id.number()).map_err(|error| {
            let mut state = self.state.lock();
            if state.phase == Phase::Connected {
                state.phase = Phase::Responding;
            }
            // In a wrong state it is because the peer has ended it, of which an event tells. Otherwise the kernel has rejected it itself.
            state.kernel.rejected = Errno::from_io_error(&error) != Some(Errno::INVAL);
            refused("confirming")(error)
        })
    }

    /// Gives up what cannot be used. Whether that is its end: otherwise it is over already, and an event says so.
    pub(in crate::id) fn abandon_by_kernel(&self, manager: &KernelManager) -> bool {
        let (id, rejected) = {
            let mut state = self.state.lock();
            let waits = |phase| matches!(phase, Phase::Requested | Phase::Responding);
            let Ok(id) = state.kernel_id("reject", waits) else { return false };
            state.phase = Phase::Disconnected;
            (id, state.kernel.rejected)
        };
        manager.device().reject(id.number(), &[]).is_ok() || rejected
    }

    /// Which of the two it may be.
    fn most(&self, [connection, datagram]: [usize; 2]) -> usize {
        if self.is_datagram() { datagram } else { connection }
    }

    fn to_kernel(
        &self,
        param: &ConnParam<'_>,
        (qp_num, srq): (u32, bool),
        depths: Depths,
        private_data: rdma_cm::Private,
    ) -> rdma_cm::ConnParam {
        rdma_cm::ConnParam {
            qp_num,
            qkey: 0,
            private_data,
            srq,
            responder_resources: depths.responder_resources,
            initiator_depth: depths.initiator_depth,
            flow_control: true,
            retry_count: param.retry_count.unwrap_or(7).min(7),
            rnr_retry_count: param.rnr_retry_count.unwrap_or(7).min(7),
        }
    }
}
