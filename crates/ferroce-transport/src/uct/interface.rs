use super::{EndpointId, Failure, InterfaceAttr, OpError, Unreachable};
use ferroce_verbs::Result;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// A message that arrived, for the handler of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The endpoint that it came to. Where endpoints only send (ud_verbs), it is the peer's session with this interface.
    pub endpoint: EndpointId,
    /// What was sent.
    pub payload: &'a [u8],
}

/// Whom messages of an id are handed to, with no lock held, by the thread that makes progress.
pub type AmHandler = Arc<dyn Fn(Message<'_>) + Send + Sync>;

/// Who is told, once, that an endpoint failed.
pub type FailureHandler = Box<dyn FnOnce(Failure) + Send>;

/// Whether the descriptor will become readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// It will, at the next event.
    Armed,
    /// There is something to be done already: make progress, and arm again.
    Busy,
}

/// An interface (`uct_iface`). Every call may be made from any thread, and none blocks.
pub trait Interface: Send + Sync {
    /// What it can do.
    fn attr(&self) -> &InterfaceAttr;

    /// Where peers find it, as bytes to be given to them.
    fn address_bytes(&self) -> Vec<u8>;

    /// Whether the interface or endpoint with this address can be connected to, as far as it shows from here and now.
    ///
    /// # Errors
    ///
    /// Why not.
    fn is_reachable(&self, address: &[u8]) -> Result<(), Unreachable>;

    /// Has messages with this id handed to `handler` from now on, or dropped and counted.
    ///
    /// # Errors
    ///
    /// [`OpError::AmId`].
    fn set_am(&self, am: u8, handler: Option<AmHandler>) -> Result<(), OpError>;

    /// Takes in what came, sends what waits, and calls whom it concerns; returns how many events there were. To be called again and again: nothing
    /// else makes progress. One thread at a time does; another that calls meanwhile finds nothing to do.
    ///
    /// # Errors
    ///
    /// What the device says.
    fn progress(&self) -> Result<usize>;

    /// How long [`Self::progress`] need not be called if nothing comes; `None`: until something comes.
    fn next_timeout(&self) -> Option<Duration>;

    /// Whether all that was begun on all endpoints is over ([`super::FlushKind::Local`]). Make progress and call again. What endpoints that
    /// failed or were canceled had begun is over.
    fn flush(&self) -> bool;

    /// A descriptor that becomes readable when there is something to be done, if [`Self::arm`]ed. Close it with the interface; do not read it.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Makes the descriptor unreadable, and has it become readable at the next event: something came, or a timer is due, or another thread made
    /// work. It stays so until it is armed again. Wake-ups for nothing are possible.
    ///
    /// # Errors
    ///
    /// What the device or the system says.
    fn arm(&self) -> Result<Arm>;
}
