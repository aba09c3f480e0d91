//! What the kernel says, in Rust's terms.

use super::wire::{self, MAX_PRIVATE_DATA, event, query_addr_resp};
use super::{sockaddr, wire::conn_param, wire::ud_param};
use std::fmt;
use std::net::SocketAddr;
use zerocopy::{FromBytes, IntoBytes};

/// Private data: at most 255 bytes.
#[derive(Clone, Copy)]
pub struct Private {
    bytes: [u8; MAX_PRIVATE_DATA],
    len: u8,
}

impl Private {
    /// `None`: there are more than 255.
    #[must_use]
    pub fn new(data: &[u8]) -> Option<Self> {
        let len = u8::try_from(data.len()).ok()?;
        let mut bytes = [0; MAX_PRIVATE_DATA];
        bytes[..data.len()].copy_from_slice(data);
        Some(Self { bytes, len })
    }

    /// As they were.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for Private {
    fn default() -> Self {
        Self { bytes: [0; MAX_PRIVATE_DATA], len: 0 }
    }
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// What a side offers (`struct rdma_ucm_conn_param`).
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "as in rdma_conn_param")]
pub struct ConnParam {
    pub qp_num: u32,
    pub qkey: u32,
    pub private_data: Private,
    pub srq: bool,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
}

impl ConnParam {
    pub(super) fn to_wire(self) -> conn_param {
        conn_param {
            qp_num: self.qp_num,
            qkey: self.qkey,
            private_data: self.private_data.bytes,
            private_data_len: self.private_data.len,
            srq: self.srq.into(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            valid: 1,
        }
    }

    fn from_wire(param: &conn_param) -> Self {
        Self {
            qp_num: param.qp_num,
            qkey: param.qkey,
            private_data: Private { bytes: param.private_data, len: param.private_data_len },
            srq: param.srq != 0,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
        }
    }
}

/// Where datagrams go (`struct rdma_ucm_ud_param`).
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as in rdma_ud_param")]
pub struct UdParam {
    pub qp_num: u32,
    pub qkey: u32,
    pub ah_attr: wire::ah_attr,
    pub private_data: Private,
}

/// The addresses of an id, and its device.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The device's, in host order; 0 if the id has none.
    pub node_guid: u64,
    /// The device's port.
    pub port_num: u8,
    /// Of this side.
    pub local: Option<SocketAddr>,
    /// Of the peer.
    pub peer: Option<SocketAddr>,
}

impl Addresses {
    pub(super) fn from_wire(resp: &query_addr_resp) -> Self {
        Self {
            node_guid: u64::from_be(resp.node_guid),
            port_num: resp.port_num,
            local: sockaddr::decode(&resp.src_addr),
            peer: sockaddr::decode(&resp.dst_addr),
        }
    }
}

/// What moves a queue pair; which of it counts is in `qp_attr_mask` (`IBV_QP_*`).
pub type QpAttr = wire::qp_attr;

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct CmEvent {
    /// Of the id or the membership; of a request for a connection that of the listener.
    pub uid: u64,
    /// The kernel's number; of a request for a connection that of the new id.
    pub id: u32,
    /// `RDMA_CM_EVENT_*`.
    pub event: u32,
    /// A negative error number, or the reason of a refusal.
    pub status: i32,
    /// What comes with it. Which of the two it is only the port space says.
    pub param: CmEventParam,
}

/// What comes with an event, as it was written.
#[derive(Clone, Copy)]
pub struct CmEventParam([u8; 304]);

impl CmEventParam {
    /// For events that somebody makes up.
    #[must_use]
    pub fn of_conn(param: &ConnParam) -> Self {
        let mut bytes = [0; 304];
        bytes[..size_of::<conn_param>()].copy_from_slice(param.to_wire().as_bytes());
        Self(bytes)
    }

    /// As events of connections have it.
    #[must_use]
    pub fn conn(&self) -> ConnParam {
        conn_param::read_from_prefix(&self.0)
            .map_or_else(|_| ConnParam::default(), |(param, _)| ConnParam::from_wire(&param))
    }

    /// As events of datagrams have it.
    #[must_use]
    pub fn ud(&self) -> UdParam {
        let param =
            ud_param::read_from_prefix(&self.0).map_or_else(|_| zerocopy::FromZeros::new_zeroed(), |(param, _)| param);
        UdParam {
            qp_num: param.qp_num,
            qkey: param.qkey,
            ah_attr: param.ah_attr,
            private_data: Private { bytes: param.private_data, len: param.private_data_len },
        }
    }
}

impl fmt::Debug for CmEventParam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.conn().fmt(f)
    }
}

impl CmEvent {
    pub(super) fn from_wire(resp: &wire::event_resp) -> Self {
        Self { uid: resp.uid, id: resp.id, event: resp.event, status: resp.status, param: CmEventParam(resp.param) }
    }

    /// Whether it has brought a new id, which its reader must destroy in the end.
    #[must_use]
    pub fn brings_id(&self) -> bool {
        self.event == event::CONNECT_REQUEST
    }

    /// Whether it is an answer to a request for a connection, or its end: nothing else need be waited for.
    #[must_use]
    pub fn answers(&self) -> bool {
        matches!(
            self.event,
            event::ADDR_ERROR
                | event::CONNECT_RESPONSE
                | event::CONNECT_ERROR
                | event::UNREACHABLE
                | event::REJECTED
                | event::ESTABLISHED
                | event::DISCONNECTED
                | event::DEVICE_REMOVAL
        )
    }
}
