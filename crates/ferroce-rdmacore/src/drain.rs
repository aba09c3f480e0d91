//! Queue pairs that nobody holds any more and whose work is not all reported yet.
//!
//! By the contract a queue pair that is dropped flushes what is outstanding to its completion queues. The library's `ibv_destroy_qp` takes
//! what was not polled away instead. So a queue pair with work goes to the error state, has a last request posted to each of its
//! queues, and is destroyed when these markers are polled: all that was posted before came out before. Its completion queues keep it
//! until then; when one of them goes, nobody can miss the rest.

use crate::sys::{RawQp, RecvList, SendList};
use ferroce_abi::types::ibv_wc;
use ferroce_verbs::{Ah, RecvWr, SendWr, UdDest};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Places that a completion queue has for markers, beyond those that its owner asked for.
pub(crate) const ROOM: u32 = 64;

/// What markers carry. Only completions of queue pairs that are draining are compared with it.
const SEND_MARKER: u64 = 0xfe22_0ce0_0000_0001;
const RECV_MARKER: u64 = 0xfe22_0ce0_0000_0002;

/// A queue pair that drains.
pub(crate) struct Drained {
    qp: RawQp,
    /// An address to send the marker of a datagram queue pair to; it goes nowhere.
    ah: Option<Ah>,
    /// What its datagrams hold: see [`crate::sent_to`].
    _sent_to: Vec<Ah>,
    /// The send queue was full: the marker is posted when something of it was polled.
    send_marker_due: Mutex<bool>,
}

impl Drained {
    pub(crate) fn new(qp: RawQp, mut sent_to: Vec<Ah>) -> Self {
        let ah = sent_to.pop();
        Self { qp, ah, _sent_to: sent_to, send_marker_due: Mutex::new(true) }
    }

    pub(crate) fn qp(&self) -> &RawQp {
        &self.qp
    }

    /// Posts the last receive; the queue pair is not yet in the error state, as not all devices look at receives that come after.
    /// Whatever completes it, all receives before it are complete.
    pub(crate) fn post_recv_marker(&self) -> bool {
        let mut list = RecvList::new();
        list.push(&RecvWr::new(RECV_MARKER, &[]));
        list.post(&self.qp).is_ok()
    }

    /// Posts the last send, if it is due; the queue pair is in the error state.
    pub(crate) fn post_send_marker(&self) {
        let mut due = self.send_marker_due.lock();
        if *due {
            let dest = self.ah.as_ref().map(|ah| UdDest { ah, qpn: 0, qkey: 0 });
            let wr = SendWr { ud: dest, ..SendWr::send(SEND_MARKER, &[]) };
            let ah = self.ah.as_ref().and_then(|ah| (**ah.ops()).as_any().downcast_ref::<crate::ah::RdmaAh>());
            let mut list = SendList::new();
            list.push(&wr, ah.map(|ah| &ah.raw));
            *due = list.post(&self.qp).is_err();
        }
    }
}

/// The queue pairs that drain into one completion queue.
#[derive(Default)]
pub(crate) struct Drains {
    pairs: Mutex<HashMap<u32, Draining>>,
    count: AtomicUsize,
    /// Places that markers have taken.
    taken: AtomicU32,
}

struct Draining {
    qp: Arc<Drained>,
    markers: Markers,
}

/// Which markers a completion queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Markers {
    pub(crate) send: bool,
    pub(crate) recv: bool,
}

impl Markers {
    fn count(self) -> u32 {
        u32::from(self.send) + u32::from(self.recv)
    }
}

impl Drains {
    /// Whether there are any: what the data path looks at.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Takes the places for markers, if there are so many.
    pub(crate) fn reserve(&self, markers: Markers) -> bool {
        let add = |taken: u32| Some(taken + markers.count()).filter(|&taken| taken <= ROOM);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Gives them back.
    pub(crate) fn release(&self, markers: Markers) {
        self.taken.fetch_sub(markers.count(), Ordering::Relaxed);
    }

    /// Keeps a queue pair until its markers, whose places are reserved, come out.
    pub(crate) fn keep(&self, qp: &Arc<Drained>, markers: Markers) {
        self.pairs.lock().insert(qp.qp().qp_num(), Draining { qp: qp.clone(), markers });
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Lets go of it: its markers will not come.
    pub(crate) fn forget(&self, qp_num: u32) {
        if let Some(gone) = self.pairs.lock().remove(&qp_num) {
            self.count.fetch_sub(1, Ordering::Release);
            self.release(gone.markers);
        }
    }

    /// Looks at a completion; says whether it is a marker. With the last one the queue pair goes.
    #[cold]
    pub(crate) fn take(&self, wc: &ibv_wc) -> bool {
        let mut pairs = self.pairs.lock();
        let Some(draining) = pairs.get_mut(&wc.qp_num) else { return false };
        let marker = match wc.wr_id {
            SEND_MARKER if draining.markers.send => Markers { send: true, recv: false },
            RECV_MARKER if draining.markers.recv => Markers { send: false, recv: true },
            _ => {
                // There is room in its queue now.
                let qp = draining.qp.clone();
                drop(pairs);
                qp.post_send_marker();
                return false;
            }
        };
        draining.markers.send &= !marker.send;
        draining.markers.recv &= !marker.recv;
        let done = draining.markers.count() == 0;
        let gone = if done { pairs.remove(&wc.qp_num) } else { None };
        drop(pairs);
        self.release(marker);
        if gone.is_some() {
            self.count.fetch_sub(1, Ordering::Release);
        }
        // The other completion queue may still wait for its own.
        drop(gone);
        true
    }
}
