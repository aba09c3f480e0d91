//! Multicast groups of datagram ids. On RoCE nobody has to be asked: a group is an IP address, and whoever joins tells the network
//! (IGMP, MLD) by way of the kernel.

use super::resolve::path;
use super::{Id, IdCore, UDP_QKEY};
use crate::backend::Backend;
use crate::event::UdParam;
use crate::id::queue::Queued;
use crate::{Error, Event, EventKind, Result};
use ferroce_verbs::{Gid, Qp};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The queue pair number of datagrams to a group (IBTA 9.6.1.4).
const MULTICAST_QPN: u32 = 0xff_ffff;

/// What a member of a group does (`RDMA_MC_JOIN_FLAG_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Membership {
    /// It sends and receives.
    #[default]
    Full,
    /// It only sends.
    SendOnly,
}

/// A group that an id is in.
pub(super) struct Group {
    pub(super) addr: IpAddr,
    /// The queue pair that receives what is sent to it.
    pub(super) qp: Option<Qp>,
    /// A thread is about to join or to leave it: nobody else does meanwhile, or the one's attaching would be undone by the other.
    busy: bool,
}

impl Group {
    /// The part of a membership that goes with the queue pair.
    pub(super) fn take_qp(&mut self) -> Option<Self> {
        let qp = self.qp.take()?;
        Some(Self { addr: self.addr, qp: Some(qp), busy: false })
    }

    /// The queue pair gets nothing from the group any more.
    pub(super) fn detach(self) {
        if let Some(qp) = self.qp {
            // It may have been detached by hand.
            let _ = qp.detach_mcast(Gid::from(self.addr));
        }
    }
}

impl Id {
    /// Joins a multicast group (`rdma_join_multicast`, `rdma_join_multicast_ex`): attaches the id's queue pair, if it has one and
    /// `membership` is full, in the calling thread. The outcome comes as an event: [`EventKind::MulticastJoin`], whose
    /// [`Event::ud_param`] says where datagrams to the group go, or [`EventKind::MulticastError`]. The queue pairs of other ids, of a
    /// peer's say, are told its Q_Key there: [`UDP_QKEY`].
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] unless the id is of the port space UDP and has a local address, which [`Id::bind_addr`] and
    /// [`Id::resolve_addr`] give it; [`Error::Address`] if `group` is no group of that address's family, or the id is a member already,
    /// or not quite one any more because another thread is about to leave.
    pub fn join_multicast(&self, group: IpAddr, membership: Membership) -> Result<()> {
        if let Backend::Kernel(manager) = &self.core().backend {
            return self.join_by_kernel(manager, group, membership);
        }
        let core = self.core();
        let tos = core.options.lock().tos;
        let (gid, qp) = {
            let mut state = self.state()?;
            let (true, Some(gid)) = (core.is_datagram(), state.gid.clone()) else {
                return Err(Error::Phase { call: "join_multicast", phase: state.phase });
            };
            let refuse = |why: &str| Err(Error::Address { addr: SocketAddr::new(group, 0), why: why.into() });
            if !group.is_multicast() {
                return refuse("it is no multicast group");
            }
            if group.is_ipv4() != gid.ip().is_ipv4() {
                return refuse("the id has an address of the other family");
            }
            if state.groups.iter().any(|member| member.addr == group) {
                return refuse("the id is a member already");
            }
            state.groups.push(Group { addr: group, qp: None, busy: true });
            (gid, state.qp.clone().filter(|_| membership == Membership::Full))
        };
        // Without the lock: the device asks the kernel.
        let attached = qp.as_ref().map_or(Ok(()), |qp| qp.attach_mcast(Gid::from(group)));
        let mut joined = Group { addr: group, qp: qp.filter(|_| attached.is_ok()), busy: false };
        let mut taken = None;
        {
            let mut state = core.state.lock();
            let Some(at) = state.groups.iter().position(|member| member.addr == group) else {
                // Destroyed meanwhile.
                drop(state);
                joined.detach();
                return Err(Error::Destroyed);
            };
            if joined.qp != state.qp {
                // The id has lost it meanwhile, and whoever took it did not find it in the group.
                taken = joined.take_qp();
            }
            if attached.is_ok() {
                state.groups[at] = joined;
            } else {
                state.groups.remove(at);
            }
        }
        taken.into_iter().for_each(Group::detach);
        let outcome = attached.map_err(Error::device("joining the group")).map(|()| UdParam {
            ah_attr: path(gid.index, Gid::from(group), 0, tos),
            qp_num: MULTICAST_QPN,
            qkey: UDP_QKEY,
        });
        drop(core.push(Queued::Multicast { group, outcome }));
        Ok(())
    }

    /// Leaves a multicast group (`rdma_leave_multicast`). Once it has returned, no reader begins to deliver the event that the id has
    /// joined.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the id is no member, [`Error::Phase`] if another thread is about to join or to leave.
    pub fn leave_multicast(&self, group: IpAddr) -> Result<()> {
        if matches!(self.core().backend, Backend::Kernel(_)) {
            return self.leave_by_kernel(group);
        }
        let mut state = self.state()?;
        let Some(at) = state.groups.iter().position(|member| member.addr == group) else {
            return Err(Error::Address { addr: SocketAddr::new(group, 0), why: "the id is not a member".into() });
        };
        if state.groups[at].busy {
            return Err(Error::Phase { call: "leave_multicast", phase: state.phase });
        }
        let member = std::mem::replace(&mut state.groups[at], Group { addr: group, qp: None, busy: true });
        drop(state);
        // Without the lock: the device asks the kernel.
        member.detach();
        // Destroyed meanwhile, it has no groups.
        self.core().state.lock().groups.retain(|member| member.addr != group);
        Ok(())
    }
}

impl IdCore {
    /// What a reader delivers of the outcome of joining. Nothing if the id has left since.
    pub(super) fn on_multicast(self: &Arc<Self>, id: Id, group: IpAddr, outcome: Result<UdParam>) -> Option<Event> {
        match outcome {
            Ok(ud) => {
                let is_member = self.state.lock().groups.iter().any(|member| member.addr == group && !member.busy);
                is_member.then(|| Event { ud: Some(ud), ..Event::new(id, EventKind::MulticastJoin { group }, &[]) })
            }
            Err(error) => Some(Event::new(id, EventKind::MulticastError { group, error }, &[])),
        }
    }
}
