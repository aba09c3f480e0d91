//! Queue pairs that nobody holds any more and whose work is not all reported yet.
//!
//! By the contract a queue pair that is dropped flushes what is outstanding to its completion queues. The library's `ibv_destroy_qp` takes
//! what was not polled away instead. So a queue pair with work goes to the error state, has a last request posted to each of its
//! queues, and is destroyed when these markers are polled: all that was posted before came out before. Its completion queues keep it
//! until then; when one of them goes, nobody can miss the rest.

use crate::ah::RdmaAh;
use crate::attr;
use crate::sys::{RawQp, RecvList, SendList, Stopped};
use ferroce_abi::types::ibv_wc;
use ferroce_verbs::{Ah, RecvWr, SendWr, UdDest};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Places that a completion queue has for markers, beyond those that its owner asked for.
pub(crate) const ROOM: u32 = 64;

/// What markers carry. Only completions of queue pairs that are draining are compared with it.
const SEND_MARKER: u64 = 0xfe22_0ce0_0000_0001;
const RECV_MARKER: u64 = 0xfe22_0ce0_0000_0002;

/// A queue pair that drains.
pub(crate) struct Drained {
    qp: Arc<RawQp>,
    /// An address to send the marker of a datagram queue pair to; it goes nowhere.
    ah: Option<Ah>,
    /// What its datagrams hold: see [`crate::sent_to`].
    _sent_to: VecDeque<Ah>,
    /// Markers for which there was no room: they are posted when something of the queue pair was polled.
    due: Mutex<Markers>,
}

impl Drained {
    pub(crate) fn new(qp: Arc<RawQp>, mut sent_to: VecDeque<Ah>) -> Self {
        let ah = sent_to.pop_back();
        Self { qp, ah, _sent_to: sent_to, due: Mutex::new(Markers { send: false, recv: false }) }
    }

    fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// Stops the queue pair with a last request in those of its queues that `markers` names.
    ///
    /// The last receive is posted before the queue pair goes to the error state, as not all devices look at receives that come after;
    /// whatever then completes it, all receives before it are complete. The last send is posted after, so that it goes nowhere.
    pub(crate) fn stop(&self, markers: Markers) -> Result<(), i32> {
        let mut due = self.due.lock();
        due.recv = markers.recv && self.post_receive().is_err();
        self.to_error()?;
        due.send = markers.send && self.post_send().is_err();
        Ok(())
    }

    /// Posts what there was no room for.
    fn post_due(&self) {
        let mut due = self.due.lock();
        due.send = due.send && self.post_send().is_err();
        if due.recv && self.post_receive().is_ok() {
            due.recv = false;
            // For the devices that look at receives only then. If it is gone, nothing comes any more, and nobody waits.
            let _ = self.to_error();
        }
    }

    fn to_error(&self) -> Result<(), i32> {
        let (values, mask) = attr::error_state();
        self.qp.modify(values, mask)
    }

    fn post_receive(&self) -> Result<(), Stopped> {
        let mut list = RecvList::new();
        list.push(&RecvWr::new(RECV_MARKER, &[]));
        list.post(&self.qp)
    }

    fn post_send(&self) -> Result<(), Stopped> {
        let dest = self.ah.as_ref().map(|ah| UdDest { ah, qpn: 0, qkey: 0 });
        let ah = self.ah.as_ref().and_then(|ah| (**ah.ops()).as_any().downcast_ref::<RdmaAh>());
        let mut list = SendList::new();
        list.push(&SendWr { ud: dest, ..SendWr::send(SEND_MARKER, &[]) }, ah.map(|ah| &ah.raw));
        list.post(&self.qp)
    }
}

/// The queue pairs that drain into one completion queue.
pub(crate) struct Drains {
    pairs: Mutex<HashMap<u32, Draining>>,
    count: AtomicUsize,
    /// Places that are left for markers.
    room: AtomicU32,
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
    pub(crate) fn any(self) -> bool {
        self.send || self.recv
    }

    fn count(self) -> u32 {
        u32::from(self.send) + u32::from(self.recv)
    }
}

impl Drains {
    /// For a completion queue with so many places for markers.
    pub(crate) fn new(room: u32) -> Self {
        Self { pairs: Mutex::default(), count: AtomicUsize::new(0), room: AtomicU32::new(room) }
    }

    /// Whether there are any: what the data path looks at.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Takes the places for markers, if there are so many.
    pub(crate) fn reserve(&self, markers: Markers) -> bool {
        let left = |room: u32| room.checked_sub(markers.count());
        self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }

    /// Gives them back.
    pub(crate) fn release(&self, markers: Markers) {
        self.room.fetch_add(markers.count(), Ordering::Relaxed);
    }

    /// Keeps a queue pair until its markers, whose places are reserved, come out.
    pub(crate) fn keep(&self, qp: &Arc<Drained>, markers: Markers) {
        self.pairs.lock().insert(qp.qp_num(), Draining { qp: qp.clone(), markers });
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
                qp.post_due();
                return false;
            }
        };
        let gone = self.came(&mut pairs, wc.qp_num, marker);
        drop(pairs);
        // The other completion queue may still wait for its own.
        drop(gone);
        true
    }

    /// A marker came, or never will; returns the queue pair if that was the last.
    fn came(&self, pairs: &mut HashMap<u32, Draining>, qp_num: u32, marker: Markers) -> Option<Draining> {
        let draining = pairs.get_mut(&qp_num)?;
        draining.markers.send &= !marker.send;
        draining.markers.recv &= !marker.recv;
        self.release(marker);
        if draining.markers.any() {
            return None;
        }
        self.count.fetch_sub(1, Ordering::Release);
        pairs.remove(&qp_num)
    }
}
