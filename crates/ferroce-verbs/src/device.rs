use crate::{Gid, Mtu};
use std::net::IpAddr;

/// How a device executes atomics (`ibv_atomic_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicCap {
    /// No atomics.
    None,
    /// Atomic among all queue pairs of this device.
    Device,
    /// Atomic against the host's processors too.
    Global,
}

/// What a device is called, before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, as `--device` takes it.
    pub name: String,
    /// Which provider drives it: `soft`, `rdma-core`.
    pub provider: &'static str,
    /// The node GUID, in host order; 0 for a device that has one only while it is open.
    pub node_guid: u64,
}

/// What a device can do (`ibv_device_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Firmware or software version.
    pub fw_ver: String,
    /// The node GUID, in host order.
    pub node_guid: u64,
    /// Largest memory region, in bytes.
    pub max_mr_size: u64,
    /// Queue pairs per context.
    pub max_qp: u32,
    /// Outstanding work requests of one queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of one work request.
    pub max_sge: u32,
    /// Completion queues per context.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions per context.
    pub max_mr: u32,
    /// Protection domains per context.
    pub max_pd: u32,
    /// RDMA reads and atomics that a queue pair answers at one time.
    pub max_qp_rd_atom: u8,
    /// RDMA reads and atomics that a queue pair has outstanding at one time.
    pub max_qp_init_rd_atom: u8,
    /// How atomics execute.
    pub atomic_cap: AtomicCap,
    /// Shared receive queues per context.
    pub max_srq: u32,
    /// Outstanding work requests of one shared receive queue.
    pub max_srq_wr: u32,
    /// Most bytes of inline data.
    pub max_inline_data: u32,
    /// Multicast groups per context.
    pub max_mcast_grp: u32,
    /// Address handles per context.
    pub max_ah: u32,
    /// Ports.
    pub phys_port_cnt: u8,
}

/// The state of a port (`ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No traffic can pass.
    Down,
    /// The link is up but not configured.
    Init,
    /// Configured but not active.
    Armed,
    /// Traffic passes.
    Active,
}

/// What a port is at the moment (`ibv_port_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// Its state.
    pub state: PortState,
    /// The largest MTU that the device supports.
    pub max_mtu: Mtu,
    /// The largest MTU that every address of the port can use.
    pub active_mtu: Mtu,
    /// Length of the GID table, holes included.
    pub gid_tbl_len: u32,
    /// Length of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Largest message, in bytes.
    pub max_msg_sz: u32,
    /// The local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Whether the link layer is Ethernet.
    pub ethernet: bool,
}

/// One entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index, which work requests and address handles name. An entry keeps its index for as long as it exists.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// The network device that has the address.
    pub netdev: String,
    /// The kernel's index of that network device.
    pub ifindex: u32,
    /// The largest path MTU that the network device carries.
    pub mtu: Mtu,
    /// Whether the address reaches only this machine.
    pub loopback: bool,
}

impl GidEntry {
    /// The IP address of the entry.
    pub fn ip(&self) -> IpAddr {
        self.gid.ip()
    }
}
