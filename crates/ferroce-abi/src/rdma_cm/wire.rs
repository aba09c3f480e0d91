//! The structures of `rdma/rdma_user_cm.h`, under their own names without the prefix `rdma_ucm_`, and the numbers that go with them.
//!
//! There is no padding: what C would pad is a field. Addresses of memory are numbers here; see `file` for what keeps them right.
#![allow(missing_docs, reason = "names and meaning are the header's")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The length of a `struct sockaddr_storage`.
pub const SOCKADDR_STORAGE: usize = 128;
pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;
/// `RDMA_MAX_PRIVATE_DATA`.
pub const MAX_PRIVATE_DATA: usize = 256;

/// `RDMA_USER_CM_CMD_*`.
pub mod cmd {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const LEAVE_MCAST: u32 = 17;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
}

/// `RDMA_CM_EVENT_*`.
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const ROUTE_ERROR: u32 = 3;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const CONNECT_ERROR: u32 = 6;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const DEVICE_REMOVAL: u32 = 11;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const MULTICAST_ERROR: u32 = 13;
    pub const ADDR_CHANGE: u32 = 14;
    pub const TIMEWAIT_EXIT: u32 = 15;
}

pub const QUERY_ADDR: u32 = 0;
/// `RDMA_OPTION_ID` and its options.
pub const OPTION_ID: u32 = 0;
pub const OPTION_ID_TOS: u32 = 0;
pub const OPTION_ID_REUSEADDR: u32 = 1;
pub const OPTION_ID_ACK_TIMEOUT: u32 = 3;
/// `RDMA_MC_JOIN_FLAG_*`.
pub const JOIN_FULL_MEMBER: u16 = 0;
pub const JOIN_SEND_ONLY: u16 = 1;

/// Derives what structures of the ABI need.
macro_rules! abi {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
            pub struct $name { $(pub $field: $type),* }
        )*
    };
}

abi! {
    cmd_hdr { cmd: u32, len_in: u16, len_out: u16 }
    create_id { uid: u64, response: u64, ps: u16, qp_type: u8, reserved: [u8; 5] }
    /// Of `CREATE_ID` and `JOIN_MCAST`.
    create_id_resp { id: u32 }
    /// Of `DESTROY_ID` and `LEAVE_MCAST`.
    destroy_id { response: u64, id: u32, reserved: u32 }
    destroy_id_resp { events_reported: u32 }
    bind { id: u32, addr_size: u16, reserved: u16, addr: [u8; SOCKADDR_STORAGE] }
    resolve_addr {
        id: u32, timeout_ms: u32, src_size: u16, dst_size: u16, reserved: u32,
        src_addr: [u8; SOCKADDR_STORAGE], dst_addr: [u8; SOCKADDR_STORAGE],
    }
    resolve_route { id: u32, timeout_ms: u32 }
    query { response: u64, id: u32, option: u32 }
    /// `node_guid` is in network order.
    query_addr_resp {
        node_guid: u64, port_num: u8, reserved: u8, pkey: u16, src_size: u16, dst_size: u16,
        src_addr: [u8; SOCKADDR_STORAGE], dst_addr: [u8; SOCKADDR_STORAGE], ibdev_index: u32, reserved1: u32,
    }
    conn_param {
        qp_num: u32, qkey: u32, private_data: [u8; MAX_PRIVATE_DATA], private_data_len: u8, srq: u8,
        responder_resources: u8, initiator_depth: u8, flow_control: u8, retry_count: u8, rnr_retry_count: u8, valid: u8,
    }
    /// `struct ib_uverbs_ah_attr`, its `struct ib_uverbs_global_route` first. `flow_label` is in host order.
    ah_attr {
        dgid: [u8; 16], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8, grh_reserved: u8,
        dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8, reserved: u8,
    }
    ud_param {
        qp_num: u32, qkey: u32, ah_attr: ah_attr, private_data: [u8; MAX_PRIVATE_DATA], private_data_len: u8,
        reserved: [u8; 7],
    }
    /// Without `ece`, which kernels since 5.8 have behind it.
    connect { conn_param: conn_param, id: u32, reserved: u32 }
    listen { id: u32, backlog: u32 }
    /// Likewise.
    accept { uid: u64, conn_param: conn_param, id: u32, reserved: u32 }
    reject { id: u32, private_data_len: u8, reason: u8, reserved: [u8; 2], private_data: [u8; MAX_PRIVATE_DATA] }
    disconnect { id: u32 }
    init_qp_attr { response: u64, id: u32, qp_state: u32 }
    /// `struct ib_uverbs_qp_attr`.
    qp_attr {
        qp_attr_mask: u32, qp_state: u32, cur_qp_state: u32, path_mtu: u32, path_mig_state: u32, qkey: u32,
        rq_psn: u32, sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, ah_attr: ah_attr, alt_ah_attr: ah_attr,
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32,
        pkey_index: u16, alt_pkey_index: u16, en_sqd_async_notify: u8, sq_draining: u8, max_rd_atomic: u8,
        max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8,
        alt_port_num: u8, alt_timeout: u8, reserved: [u8; 5],
    }
    get_event { response: u64 }
    /// `param` is a [`conn_param`] or a [`ud_param`].
    event_resp {
        uid: u64, id: u32, event: u32, status: i32, param: [u8; 304], reserved: u32, ece: [u32; 2],
    }
    set_option { optval: u64, id: u32, level: u32, optname: u32, optlen: u32 }
    notify { id: u32, event: u32 }
    join_mcast {
        response: u64, uid: u64, id: u32, addr_size: u16, join_flags: u16, addr: [u8; SOCKADDR_STORAGE],
    }
}
