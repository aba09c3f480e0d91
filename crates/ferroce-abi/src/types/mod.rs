//! The structures of `infiniband/verbs.h`, under their own names. What a field means is in the manual pages of libibverbs.
//!
//! Enumerations are integers, as C may store a value in them that a Rust `enum` does not have; their values are in [`value`].
#![allow(missing_docs, non_camel_case_types, clippy::use_self)]

mod address;
mod context;
mod device;
mod event;
mod extended;
mod object;
mod queue;
pub mod value;
mod work;

pub use address::{ibv_ah, ibv_ah_attr, ibv_gid, ibv_gid_entry, ibv_global_route, ibv_grh};
pub use context::{ibv_context, ibv_context_ops, verbs_context};
pub use device::{_ibv_device_ops, ibv_device, ibv_device_attr, ibv_port_attr};
pub use event::{ibv_async_event, ibv_async_event_element, ibv_comp_channel};
pub use extended::{
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_data_buf, ibv_poll_cq_attr, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_rx_hash_conf,
    ibv_wc_tm_info,
};
pub use object::{ibv_cq, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp, ibv_srq};
pub use queue::{ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_srq_attr, ibv_srq_init_attr};
pub use work::{
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc, ibv_wr_atomic, ibv_wr_bind_mw, ibv_wr_extra, ibv_wr_rdma, ibv_wr_tso,
    ibv_wr_ud, ibv_wr_wr,
};

/// A structure that is only ever handled by address.
#[repr(C)]
#[derive(Debug)]
pub struct Opaque {
    _private: [u8; 0],
}
