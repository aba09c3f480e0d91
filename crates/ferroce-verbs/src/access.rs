use bitflags::bitflags;

bitflags! {
    /// What may be done to a memory region or through a queue pair (`ibv_access_flags`).
    ///
    /// Local read is always allowed. Remote write and remote atomic require [`Access::LOCAL_WRITE`] on a memory region
    /// (IBTA 10.6.3.2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local device may write: receives, read responses, atomic results.
        const LOCAL_WRITE = 1;
        /// A peer may RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may execute atomics.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

impl Access {
    /// Every right there is.
    pub const ALL: Self = Self::all();
}
