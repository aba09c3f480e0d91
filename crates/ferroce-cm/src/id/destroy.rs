//! The end of an id, at any time.

use super::kernel;
use super::multicast::Group;
use super::{Id, IdCore, Phase};
use crate::backend::Backend;
use crate::sync::atomic::Ordering;
use ferroce_verbs::Qp;
use std::sync::Arc;

impl Id {
    /// Destroys the id (`rdma_destroy_id`): at any time, from any thread, as often as one likes. Returns at once.
    ///
    /// What is under way ends: a request that was sent is taken back, one that came is rejected, the peer of a connection is told
    /// that it is over, a listener rejects what it has not delivered, multicast groups are left. What was delivered lives on, and as long as a
    /// request among it may come again, no other program of the host can have the listener's port. Unread events are dropped, and no reader begins to
    /// deliver another one. The id lets go of its queue pair, which lives as long as others hold it.
    pub fn destroy(&self) {
        self.core().destroy();
    }

    /// Takes the queue pair away from the id (`rdma_destroy_qp`): dropping what is returned destroys it, unless somebody else
    /// holds it. A transition that a reader is about to make with it fails or is made; nobody waits for it. It leaves its multicast
    /// groups, of which the id stays a member that only sends.
    pub fn take_qp(&self) -> Option<Qp> {
        let mut state = self.core().state.lock();
        let qp = state.qp.take();
        let attached: Vec<_> = state.groups.iter_mut().filter_map(Group::take_qp).collect();
        let detached = state.kernel.take_qps();
        drop(state);
        detached.into_iter().for_each(kernel::Attached::detach);
        attached.into_iter().for_each(Group::detach);
        qp
    }
}

impl IdCore {
    pub(crate) fn destroy(self: &Arc<Self>) {
        let (conn, sidr, listener, qp, context, groups, kernel) = {
            let mut state = self.state.lock();
            // With the lock: whoever else destroys it returns only once all calls see that it is.
            if state.phase == Phase::Destroyed {
                return;
            }
            state.phase = Phase::Destroyed;
            self.destroyed.store(true, Ordering::Release);
            let own = (
                state.qp.take(),
                state.context.take(),
                std::mem::take(&mut state.groups),
                std::mem::take(&mut state.kernel),
            );
            (state.conn.take(), state.sidr.take(), state.listener.take(), own.0, own.1, own.2, own.3)
        };
        // Requests that peers make from here on find the queue closed, or the listener.
        let unread = self.queue.close();
        let Backend::Native(manager) = &self.backend else {
            // The kernel tells the peer, once nobody is in the middle of a command with the id.
            kernel.end();
            drop((unread, qp, context));
            return;
        };
        manager.run(|protocol, now| {
            // A name that is stale already is one that the protocol has let go of.
            if let Some(conn) = conn {
                let _ = protocol.endpoint.destroy(now, conn);
            }
            if let Some(sidr) = sidr {
                Self::close_sidr(&mut protocol.endpoint, now, sidr);
            }
            if let Some(listener) = listener
                && let Ok(released) = protocol.endpoint.close_listener(now, listener)
            {
                protocol.services.closed(listener, released);
            }
            protocol.dismiss(self.cookie.load(Ordering::Relaxed));
        });
        groups.into_iter().for_each(Group::detach);
        // Without locks: with them may go ids, and the queue pair.
        drop((unread, qp, context));
    }
}
