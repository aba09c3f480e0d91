use super::{
    AtomicOps, Completion, EndpointId, Failure, FailureHandler, OpError, Packer, PendingError, PendingRequest,
};
use ferroce_verbs::{Error, Mr, Sge};
use std::ops::Range;

/// An operation was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is over: memory that it used is the caller's again, and its completion is not called.
    Done,
    /// Its completion will be called.
    InProgress,
}

/// What a flush waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushKind {
    /// All operations are complete: their memory is the caller's again, and the peer's device has acknowledged them.
    Local,
    /// The same, and what they wrote is in the peer's memory.
    Remote,
    /// Nothing: what is outstanding is canceled, and the flush is over once the device has let go of it. The endpoint can only be dropped
    /// afterwards.
    Cancel,
}

/// A piece of registered memory.
#[derive(Clone, Debug)]
pub struct Iov<'a> {
    /// The memory region. It has to stay registered until the operation is over, or the operation fails and the endpoint with it.
    pub mr: &'a Mr,
    /// Which part of it.
    pub range: Range<usize>,
}

impl<'a> Iov<'a> {
    /// A part of a memory region.
    pub const fn new(mr: &'a Mr, range: Range<usize>) -> Self {
        Self { mr, range }
    }

    pub(crate) fn sge(&self) -> Result<Sge, Error> {
        self.mr.sge(self.range.clone())
    }
}

/// A place in a peer's memory: what the peer gives away of a memory region (`uct_md_mkey_pack`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address, in the peer's address space.
    pub addr: u64,
    /// The peer's key.
    pub rkey: u32,
}

impl Remote {
    /// Length of the bytes.
    pub const LEN: usize = 12;

    /// The start of a memory region, to be given to peers.
    pub fn of(mr: &Mr) -> Self {
        Self { addr: mr.addr(), rkey: mr.rkey() }
    }

    /// The place `offset` bytes further on.
    #[must_use]
    pub const fn at(self, offset: u64) -> Self {
        Self { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }

    /// As bytes, in network order.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// From bytes. Whether there is such memory only the peer knows.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let (addr, rkey) = bytes.split_at(8);
        Self {
            addr: u64::from_be_bytes(addr.try_into().unwrap_or_default()),
            rkey: u32::from_be_bytes(rkey.try_into().unwrap_or_default()),
        }
    }
}

/// An atomic operation with one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Add.
    Add,
    /// And.
    And,
    /// Or.
    Or,
    /// Exclusive or.
    Xor,
    /// Swap.
    Swap,
}

impl AtomicOp {
    /// As a capability.
    pub const fn cap(self) -> AtomicOps {
        match self {
            Self::Add => AtomicOps::ADD,
            Self::And => AtomicOps::AND,
            Self::Or => AtomicOps::OR,
            Self::Xor => AtomicOps::XOR,
            Self::Swap => AtomicOps::SWAP,
        }
    }
}

/// An endpoint: sends to one peer (`uct_ep`). Every call may be made from any thread, and none blocks. Messages of one endpoint come in
/// order; other operations start in order, and see [`Endpoint::fence`]. See the [contracts](crate::uct).
///
/// All operations end in [`OpError::NoResource`] when they have to wait, in [`OpError::Failed`] or [`OpError::Canceled`] when the endpoint is over, and
/// in [`OpError::Unsupported`] where the transport does not have them. What they have not begun then, they never do.
pub trait Endpoint: Send + Sync {
    /// Its name within its interface.
    fn id(&self) -> EndpointId;

    /// Why it failed, if it did.
    fn failure(&self) -> Option<Failure>;

    /// Has `told` called, once, if the endpoint fails before it is dropped, by the thread that makes progress; in place of who would have been
    /// told before. If it has failed already, at once.
    fn on_failure(&self, told: FailureHandler);

    /// Whether it is connected to the interface, or endpoint, with this address. Compares identities, never address handles or link-layer
    /// addresses.
    fn is_connected(&self, address: &[u8]) -> bool;

    /// Sends an active message: `payload` to the peer's handler of id `am`. It was copied when this returns.
    ///
    /// # Errors
    ///
    /// See above.
    fn am_short(&self, am: u8, payload: &[u8]) -> Result<(), OpError>;

    /// Sends an active message that `pack` writes into the transport's memory; returns its length.
    ///
    /// # Errors
    ///
    /// See above. `pack` may have been called all the same.
    fn am_bcopy(&self, am: u8, pack: &mut dyn FnMut(&mut Packer<'_>)) -> Result<usize, OpError>;

    /// Sends an active message of `header`, which is copied, and registered memory.
    ///
    /// # Errors
    ///
    /// See above.
    fn am_zcopy(
        &self,
        am: u8,
        header: &[u8],
        iov: &[Iov<'_>],
        completion: Option<Completion>,
    ) -> Result<Posted, OpError>;

    /// Writes `bytes`, which are copied, to the peer's memory.
    ///
    /// # Errors
    ///
    /// See above.
    fn put_short(&self, bytes: &[u8], remote: Remote) -> Result<(), OpError>;

    /// Writes what `pack` packs to the peer's memory; returns how much.
    ///
    /// # Errors
    ///
    /// See above.
    fn put_bcopy(&self, pack: &mut dyn FnMut(&mut Packer<'_>), remote: Remote) -> Result<usize, OpError>;

    /// Writes registered memory to the peer's memory.
    ///
    /// # Errors
    ///
    /// See above.
    fn put_zcopy(&self, iov: &[Iov<'_>], remote: Remote, completion: Option<Completion>) -> Result<Posted, OpError>;

    /// Reads `len` bytes of the peer's memory; the completion is given them.
    ///
    /// # Errors
    ///
    /// See above.
    fn get_bcopy(&self, len: usize, remote: Remote, completion: Completion) -> Result<Posted, OpError>;

    /// Reads the peer's memory into registered memory.
    ///
    /// # Errors
    ///
    /// See above.
    fn get_zcopy(&self, iov: &[Iov<'_>], remote: Remote, completion: Option<Completion>) -> Result<Posted, OpError>;

    /// Does `op` with `value` on the 64-bit word at `remote`.
    ///
    /// # Errors
    ///
    /// See above.
    fn atomic64_post(&self, op: AtomicOp, value: u64, remote: Remote) -> Result<(), OpError>;

    /// The same; the completion is given the old value, 8 bytes in the machine's order.
    ///
    /// # Errors
    ///
    /// See above.
    fn atomic64_fetch(
        &self,
        op: AtomicOp,
        value: u64,
        remote: Remote,
        completion: Completion,
    ) -> Result<Posted, OpError>;

    /// Stores `swap` in the 64-bit word at `remote` if it is `compare`; the completion is given the old value.
    ///
    /// # Errors
    ///
    /// See above.
    fn atomic64_cswap(
        &self,
        compare: u64,
        swap: u64,
        remote: Remote,
        completion: Completion,
    ) -> Result<Posted, OpError>;

    /// Does `op` with `value` on the 32-bit word at `remote`. No transport has it unless [`super::InterfaceAttr::atomic32_post`] says so.
    ///
    /// # Errors
    ///
    /// See above.
    fn atomic32_post(&self, op: AtomicOp, value: u32, remote: Remote) -> Result<(), OpError> {
        let _ = (op, value, remote);
        Err(OpError::Unsupported("an atomic on 32 bits", "this transport"))
    }

    /// Waits for what was begun before; see [`FlushKind`]. A flush of pending requests is not the transport's: it knows only what was begun.
    ///
    /// # Errors
    ///
    /// See above; [`FlushKind::Cancel`] also works on an endpoint that has failed.
    fn flush(&self, kind: FlushKind, completion: Option<Completion>) -> Result<Posted, OpError>;

    /// What follows is not executed at the peer before all that was begun before.
    ///
    /// # Errors
    ///
    /// See above.
    fn fence(&self) -> Result<(), OpError>;

    /// Asks the peer for a sign of life; the endpoint fails if none comes in time.
    ///
    /// # Errors
    ///
    /// See above.
    fn check(&self) -> Result<(), OpError>;

    /// Has `request` called when there are resources; see the [contracts](crate::uct).
    ///
    /// # Errors
    ///
    /// [`PendingError`] has the request.
    fn pending_add(&self, request: PendingRequest) -> Result<(), PendingError>;

    /// Hands all pending requests back, in order. One whose callback runs just now, in another thread, is not among them.
    fn pending_purge(&self, take: &mut dyn FnMut(PendingRequest));
}
