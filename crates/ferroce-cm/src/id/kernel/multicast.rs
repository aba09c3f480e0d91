//! Multicast groups.

use super::super::Membership;
use super::super::queue::Queued;
use super::attr::ah_attr;
use super::{Id, IdCore};
use crate::event::UdParam;
use crate::kernel::{KernelGroup, KernelManager, address, of_status};
use crate::{Error, Event, EventKind, Result};
use ferroce_abi::rdma_cm::{CmEvent, wire::event};
use ferroce_verbs::{Gid, Qp};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A group that an id is in, or about to be.
pub(super) struct Group {
    addr: IpAddr,
    /// What the outcome carries; 0 before the kernel is asked.
    uid: u64,
    membership: Membership,
    /// Once the kernel has said that it does what it can.
    kernel: Option<KernelGroup>,
    /// The queue pair that gets what is sent to the group.
    attached: Option<Attached>,
}

/// A queue pair in a group.
pub(in crate::id) struct Attached {
    qp: Qp,
    group: Gid,
}

impl Attached {
    /// The queue pair gets nothing from the group any more.
    pub(in crate::id) fn detach(self) {
        // It may have been detached by hand.
        let _ = self.qp.detach_mcast(self.group);
    }
}

impl Group {
    /// Leaves it. To be called without locks.
    pub(super) fn leave(self) {
        if let Some(attached) = self.attached {
            attached.detach();
        }
        drop(self.kernel);
    }

    pub(super) fn take_qp(&mut self) -> Option<Attached> {
        self.attached.take()
    }
}

impl Id {
    pub(in crate::id) fn join_by_kernel(
        &self,
        manager: &Arc<KernelManager>,
        group: IpAddr,
        membership: Membership,
    ) -> Result<()> {
        let core = self.core();
        let id = {
            let mut state = self.state()?;
            let Some(local) = state.local.filter(|_| core.is_datagram()) else {
                return Err(Error::Phase { call: "join_multicast", phase: state.phase });
            };
            let id = state.kernel_id("join_multicast", |_| true)?;
            let refuse = |why: &str| Err(Error::Address { addr: SocketAddr::new(group, 0), why: why.into() });
            if !group.is_multicast() {
                return refuse("it is no multicast group");
            }
            if group.is_ipv4() != local.is_ipv4() {
                return refuse("the id has an address of the other family");
            }
            if state.kernel.groups.iter().any(|member| member.addr == group) {
                return refuse("the id is a member already");
            }
            state.kernel.groups.push(Group { addr: group, uid: 0, membership, kernel: None, attached: None });
            id
        };
        let mut own = 0;
        let entered = |uid| {
            own = uid;
            if let Some(member) = core.state.lock().kernel.groups.iter_mut().find(|member| member.addr == group) {
                member.uid = uid;
            }
        };
        let send_only = membership == Membership::SendOnly;
        let joined = manager.join((Arc::downgrade(core), &id), group, send_only, entered);
        let mut state = core.state.lock();
        // By its uid: one that has failed already is gone, and another thread may have begun anew.
        let at = state.kernel.groups.iter().position(|member| member.uid == own);
        match (joined, at) {
            (Ok(joined), Some(at)) => {
                state.kernel.groups[at].kernel = Some(joined);
                Ok(())
            }
            (joined, None) => {
                drop(state);
                drop(joined);
                // Destroyed meanwhile; or a reader has delivered already that it failed.
                if core.is_destroyed() { Err(Error::Destroyed) } else { Ok(()) }
            }
            (Err(error), Some(at)) => {
                state.kernel.groups.remove(at);
                drop(state);
                let error = address(SocketAddr::new(group, 0), error);
                drop(core.push(Queued::Multicast { group, outcome: Err(error) }));
                Ok(())
            }
        }
    }

    pub(in crate::id) fn leave_by_kernel(&self, group: IpAddr) -> Result<()> {
        let mut state = self.state()?;
        let Some(at) = state.kernel.groups.iter().position(|member| member.addr == group) else {
            return Err(Error::Address { addr: SocketAddr::new(group, 0), why: "the id is not a member".into() });
        };
        if state.kernel.groups[at].kernel.is_none() {
            // Another thread is about to join.
            return Err(Error::Phase { call: "leave_multicast", phase: state.phase });
        }
        let member = state.kernel.groups.remove(at);
        drop(state);
        member.leave();
        Ok(())
    }
}

impl IdCore {
    /// The kernel has joined a group, or could not.
    pub(super) fn on_kernel_multicast(&self, id: Id, event: &CmEvent) -> Option<Event> {
        let of_event = |groups: &[Group]| groups.iter().position(|member| member.uid == event.uid);
        let param = event.param.ud();
        let (group, qp) = {
            let mut state = self.state.lock();
            // If it has left since, nothing is delivered.
            let at = of_event(&state.kernel.groups)?;
            let group = state.kernel.groups[at].addr;
            if event.event == event::MULTICAST_ERROR {
                let member = state.kernel.groups.remove(at);
                drop(state);
                member.leave();
                let error = address(SocketAddr::new(group, 0), of_status(event.status));
                return Some(Event::new(id, EventKind::MulticastError { group, error }, &[]));
            }
            let wanted = state.kernel.groups[at].membership == Membership::Full;
            (group, state.qp.clone().filter(|_| wanted))
        };
        if let Some(qp) = qp {
            // Without the lock: the device asks the kernel.
            let attached = Attached { group: Gid::from_bytes(param.ah_attr.dgid), qp };
            let outcome = attached.qp.attach_mcast(attached.group);
            let mut state = self.state.lock();
            let at = of_event(&state.kernel.groups);
            match (outcome, at) {
                (Ok(()), Some(_)) if state.qp.as_ref() != Some(&attached.qp) => {
                    drop(state);
                    // The id has lost it meanwhile, and whoever took it did not find it in the group.
                    attached.detach();
                }
                (Ok(()), Some(at)) => state.kernel.groups[at].attached = Some(attached),
                (Ok(()), None) => {
                    drop(state);
                    attached.detach();
                    return None;
                }
                (Err(error), at) => {
                    let member = at.map(|at| state.kernel.groups.remove(at));
                    drop(state);
                    member?.leave();
                    let error = Error::device("joining the group")(error);
                    return Some(Event::new(id, EventKind::MulticastError { group, error }, &[]));
                }
            }
        }
        let ud = UdParam { ah_attr: ah_attr(&param.ah_attr), qp_num: param.qp_num, qkey: param.qkey };
        Some(Event { ud: Some(ud), ..Event::new(id, EventKind::MulticastJoin { group }, &[]) })
    }
}
