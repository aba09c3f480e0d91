use crate::log;
use crate::scenario::Options;
use crate::trace::TraceHash;
use ferroce_soft::memory::{MemoryNetwork, TraceEvent};
use ferroce_verbs::WorkCompletion;
use std::sync::{Arc, Mutex, PoisonError};

/// Watches a run: hashes it, and logs it if asked to.
pub(crate) struct Watch {
    hash: Arc<Mutex<TraceHash>>,
    log: bool,
}

impl Watch {
    pub(crate) fn new(network: &MemoryNetwork, options: &Options) -> Self {
        Self::with(network, options, |_| {})
    }

    /// As [`Self::new`], for a run that looks at what happens as well.
    pub(crate) fn with(
        network: &MemoryNetwork,
        options: &Options,
        mut look: impl FnMut(&TraceEvent<'_>) + Send + 'static,
    ) -> Self {
        let hash = Arc::new(Mutex::new(TraceHash::default()));
        let (sink, log) = (hash.clone(), options.log);
        network.observe(move |event| {
            sink.lock().unwrap_or_else(PoisonError::into_inner).event(event);
            look(event);
            if log {
                eprintln!("{}", log::line(event));
            }
        });
        Self { hash, log }
    }

    pub(crate) fn completion(&self, wc: &WorkCompletion) {
        self.hash.lock().unwrap_or_else(PoisonError::into_inner).completion(wc);
        if self.log {
            eprintln!("{:>20} {wc:?}", "completion");
        }
    }

    /// Notes something else that happened.
    pub(crate) fn note(&self, what: &str) {
        self.hash.lock().unwrap_or_else(PoisonError::into_inner).note(what);
        if self.log {
            eprintln!("{:>20} {what}", "note");
        }
    }

    pub(crate) fn hash(&self) -> TraceHash {
        *self.hash.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
