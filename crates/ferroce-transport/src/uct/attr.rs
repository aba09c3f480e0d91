use bitflags::bitflags;

/// How much one operation moves, in bytes. 0 where there is no such operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpLimits {
    /// Most that goes as *short*: copied into the work request.
    pub max_short: usize,
    /// Most that goes as *bcopy*: packed into memory of the transport.
    pub max_bcopy: usize,
    /// Most that goes as *zcopy*: from, or to, registered memory of the program. The header of an active message counts.
    pub max_zcopy: usize,
    /// Pieces of registered memory that one zcopy takes.
    pub max_iov: usize,
    /// Most bytes of the header of a zcopy active message.
    pub max_header: usize,
}

bitflags! {
    /// Atomic operations on the memory of a peer (`UCT_ATOMIC_OP_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AtomicOps: u8 {
        /// Add, with or without the old value.
        const ADD = 1;
        /// And.
        const AND = 1 << 1;
        /// Or.
        const OR = 1 << 2;
        /// Exclusive or.
        const XOR = 1 << 3;
        /// Swap.
        const SWAP = 1 << 4;
        /// Compare and swap.
        const CSWAP = 1 << 5;
    }
}

bitflags! {
    /// What else an interface does (`UCT_IFACE_FLAG_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InterfaceFlags: u32 {
        /// Requests can wait for resources: [`super::Endpoint::pending_add`].
        const PENDING = 1;
        /// Endpoints connect to an interface's address.
        const CONNECT_TO_IFACE = 1 << 1;
        /// Endpoints connect to an endpoint's address.
        const CONNECT_TO_EP = 1 << 2;
        /// Endpoints connect to a socket address.
        const CONNECT_TO_SOCKADDR = 1 << 3;
        /// [`super::Endpoint::check`] asks the peer for a sign of life.
        const EP_CHECK = 1 << 4;
        /// Endpoints ask for signs of life by themselves, if told to.
        const EP_KEEPALIVE = 1 << 5;
        /// The death of a peer is an error of its endpoint and of nothing else.
        const ERRHANDLE_PEER_FAILURE = 1 << 6;
        /// So is memory that the peer does not give.
        const ERRHANDLE_REMOTE_MEM = 1 << 7;
        /// [`super::FlushKind::Remote`] differs from [`super::FlushKind::Local`].
        const FLUSH_REMOTE = 1 << 8;
        /// Peers may be on other machines.
        const INTER_NODE = 1 << 9;
    }
}

bitflags! {
    /// What makes an armed descriptor readable (`UCT_IFACE_FLAG_EVENT_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct EventCaps: u8 {
        /// A send is complete.
        const SEND_COMP = 1;
        /// A message arrived.
        const RECV = 1 << 1;
        /// A timer is due: a retransmission, a sign of life.
        const TIMER = 1 << 2;
        /// There is a descriptor.
        const FD = 1 << 3;
    }
}

/// What an interface can do (`uct_iface_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceAttr {
    /// The transport's name.
    pub name: &'static str,
    /// Active messages.
    pub am: OpLimits,
    /// Writing to a peer's memory.
    pub put: OpLimits,
    /// Reading a peer's memory.
    pub get: OpLimits,
    /// Atomics on 32 bits whose old value is not asked for.
    pub atomic32_post: AtomicOps,
    /// Atomics on 32 bits.
    pub atomic32_fetch: AtomicOps,
    /// Atomics on 64 bits whose old value is not asked for.
    pub atomic64_post: AtomicOps,
    /// Atomics on 64 bits.
    pub atomic64_fetch: AtomicOps,
    /// What else it does.
    pub flags: InterfaceFlags,
    /// What it wakes up for.
    pub events: EventCaps,
    /// Bytes of an interface's address.
    pub iface_addr_len: usize,
    /// Bytes of an endpoint's address; 0 if endpoints have none.
    pub ep_addr_len: usize,
}
