//! The handles of a context's objects, for events that name them.

use crate::cq::RdmaCq;
use crate::qp::RdmaQp;
use crate::srq::RdmaSrq;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

/// Objects by what names them. Nothing is kept alive.
pub(crate) struct Objects<K, T>(Mutex<HashMap<K, Weak<T>>>);

impl<K, T> Default for Objects<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, T> Objects<K, T> {
    pub(crate) fn insert(&self, key: K, object: &Arc<T>) {
        self.0.lock().insert(key, Arc::downgrade(object));
    }

    /// Called by the object as it goes, before anything else can have its name.
    pub(crate) fn remove(&self, key: &K) {
        self.0.lock().remove(key);
    }

    pub(crate) fn get(&self, key: &K) -> Option<Arc<T>> {
        self.find(key)?.upgrade()
    }

    /// As [`Self::get`], for whoever must not be the one who lets go of it last.
    pub(crate) fn find(&self, key: &K) -> Option<Weak<T>> {
        self.0.lock().get(key).cloned()
    }

    /// All that are alive. Dropping what is returned may destroy some.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}

/// The objects that asynchronous events are about, by their address.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) qps: Objects<usize, RdmaQp>,
    pub(crate) cqs: Objects<usize, RdmaCq>,
    pub(crate) srqs: Objects<usize, RdmaSrq>,
}
