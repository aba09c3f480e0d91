use super::OpFailure;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How an operation ended: with what it fetched (nothing, unless it is a get of the kind bcopy, or an atomic), or why it did not happen.
pub type Outcome<'a> = Result<&'a [u8], OpFailure>;

/// Whoever is told of the ends of operations.
pub trait OnCompletion: Send + Sync {
    /// The operation that was begun with `tag` is over.
    fn complete(&self, tag: u64, outcome: Outcome<'_>);
}

/// A token that is called exactly once when an operation is over; see the [contracts](crate::uct). Whoever loses one calls it: dropped, it says
/// [`OpFailure::Canceled`].
///
/// One made by [`Completion::new`] allocates nothing.
pub struct Completion(Option<Inner>);

enum Inner {
    Shared(Arc<dyn OnCompletion>, u64),
    Once(Box<dyn FnOnce(Outcome<'_>) + Send>),
}

impl Completion {
    /// Calls `target` with `tag`.
    pub fn new(target: &Arc<impl OnCompletion + 'static>, tag: u64) -> Self {
        Self(Some(Inner::Shared(target.clone(), tag)))
    }

    /// Calls a closure.
    pub fn once(call: impl FnOnce(Outcome<'_>) + Send + 'static) -> Self {
        Self(Some(Inner::Once(Box::new(call))))
    }

    /// The operation is over. For transports.
    pub fn complete(mut self, outcome: Outcome<'_>) {
        self.call(outcome);
    }

    /// The operation was answered by its return value, so nobody is to be called. For transports.
    pub fn disarm(mut self) {
        self.0 = None;
    }

    fn call(&mut self, outcome: Outcome<'_>) {
        match self.0.take() {
            Some(Inner::Shared(target, tag)) => target.complete(tag, outcome),
            Some(Inner::Once(call)) => call(outcome),
            None => {}
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.call(Err(OpFailure::Canceled));
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(Inner::Shared(_, tag)) => write!(f, "Completion({tag})"),
            _ => f.write_str("Completion"),
        }
    }
}

/// Counts operations and their ends (`uct_completion_t`). Shared by an `Arc`; all calls may be made from any thread.
#[derive(Debug, Default)]
pub struct CompletionCounter {
    begun: AtomicUsize,
    succeeded: AtomicUsize,
    canceled: AtomicUsize,
    failed: AtomicUsize,
}

impl CompletionCounter {
    /// A new one.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A token for one more operation. One that was answered at once is to be taken back with [`Self::answered`].
    pub fn token(self: &Arc<Self>) -> Completion {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Completion::new(self, 0)
    }

    /// The operation of a token was over when it was begun, or could not be begun: its return value said so.
    pub fn answered(&self) {
        self.begun.fetch_sub(1, Ordering::Relaxed);
    }

    /// Operations that are not over.
    pub fn outstanding(&self) -> usize {
        let over = self.succeeded() + self.canceled() + self.failed();
        self.begun.load(Ordering::Relaxed).saturating_sub(over)
    }

    /// Operations that did what they say.
    pub fn succeeded(&self) -> usize {
        self.succeeded.load(Ordering::Acquire)
    }

    /// Operations that were canceled.
    pub fn canceled(&self) -> usize {
        self.canceled.load(Ordering::Acquire)
    }

    /// Operations that failed with their endpoint.
    pub fn failed(&self) -> usize {
        self.failed.load(Ordering::Acquire)
    }
}

impl OnCompletion for CompletionCounter {
    fn complete(&self, _tag: u64, outcome: Outcome<'_>) {
        let counter = match outcome {
            Ok(_) => &self.succeeded,
            Err(OpFailure::Canceled) => &self.canceled,
            Err(OpFailure::Failed(_)) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_token_is_called_once_however_it_ends() {
        let counter = CompletionCounter::new();
        counter.token().complete(Ok(&[]));
        drop(counter.token());
        counter.token().disarm();
        assert_eq!((counter.succeeded(), counter.canceled(), counter.outstanding()), (1, 1, 1));
        counter.answered();
        assert_eq!(counter.outstanding(), 0);
        let (told, heard) = mpsc::channel();
        let other = told.clone();
        Completion::once(move |outcome| told.send(outcome.map(<[u8]>::to_vec)).unwrap()).complete(Ok(&[7]));
        assert_eq!(heard.try_recv(), Ok(Ok(vec![7])));
        drop(Completion::once(move |outcome| other.send(outcome.map(<[u8]>::to_vec)).unwrap()));
        assert_eq!(heard.try_recv(), Ok(Err(OpFailure::Canceled)));
        assert!(heard.try_recv().is_err());
    }
}
