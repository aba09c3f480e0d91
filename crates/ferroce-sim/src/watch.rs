use crate::log;
use crate::scenario::Options;
use crate::trace::TraceHash;
use ferroce_soft::memory::MemoryNetwork;
use ferroce_verbs::WorkCompletion;
use std::sync::{Arc, Mutex, PoisonError};

/// Watches a run: hashes it, and logs it if asked to.
pub(crate) struct Watch {
    hash: Arc<Mutex<TraceHash>>,
    log: bool,
}

impl Watch {
    pub(crate) fn new(network: &MemoryNetwork, options: &Options) -> Self {
        let hash = Arc::new(Mutex::new(TraceHash::default()));
        let (sink, log) = (hash.clone(), options.log);
        network.observe(move |event| {
            sink.lock().unwrap_or_else(PoisonError::into_inner).event(event);
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
        if self.log {
            eprintln!("{:>20} {what}", "note");
        }
    }

    pub(crate) fn hash(&self) -> TraceHash {
        *self.hash.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
