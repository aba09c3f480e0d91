//! What a packet carries: bytes that came with it or, between two processes of one host, bytes that are still with the sender.
//!
//! A reliable connection may *offer* a run of packets instead of copying their payload: the receiver copies it from the
//! sender's memory straight to where it belongs, once instead of twice (cross-memory attach, CMA). That works because a
//! sender's memory stays as it is until the peer has acknowledged it. Where that ends early, because the region is
//! deregistered or the queue pair stops, the sender changes a word that the offer names, and the receiver, which reads that
//! word after the bytes, takes the run for lost.

use ferroce_verbs::Region;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most packets in one offer: what one turn of a queue pair sends.
pub(crate) const MAX_OFFERED: u32 = 64;

/// Bytes of payload from which on an offer is cheaper than two copies: it costs the peer a system call.
pub(crate) const LEAST_OFFERED: u32 = 8 << 10;

/// A word that has one value as long as some memory may be read. Other processes read it where it is, which costs them time for each
/// page that they look at: so words are next to each other, in pages that are kept for ever.
#[derive(Debug)]
pub(crate) struct Grant(&'static AtomicU64);

/// Words of a page.
const WORDS: usize = 4096 / size_of::<AtomicU64>();

#[repr(align(4096))]
struct Page([AtomicU64; WORDS]);

/// Words that nobody has.
static FREE: Mutex<Vec<&'static AtomicU64>> = Mutex::new(Vec::new());

/// A grant as another process knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantName {
    /// Its address in its process.
    pub(crate) at: u64,
    /// What is there while it holds.
    pub(crate) value: u64,
}

impl Grant {
    pub(crate) fn new() -> Self {
        let mut free = FREE.lock();
        let word = free.pop().unwrap_or_else(|| {
            let page: &'static Page = Box::leak(Box::new(Page([const { AtomicU64::new(0) }; WORDS])));
            free.extend(page.0[1..].iter().rev());
            &page.0[0]
        });
        drop(free);
        word.store(unique(), Ordering::SeqCst);
        Self(word)
    }

    /// Whether it was not revoked.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Ends it for good; false if that was done before.
    pub(crate) fn revoke(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) != 0
    }

    /// Ends what it stood for; it stands for something new.
    pub(crate) fn renew(&self) {
        self.0.store(unique(), Ordering::SeqCst);
    }

    pub(crate) fn name(&self) -> GrantName {
        GrantName { at: &raw const *self.0 as u64, value: self.0.load(Ordering::Relaxed) }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.revoke();
        FREE.lock().push(self.0);
    }
}

/// Not zero, and what nothing else has that was ever at the same address: a word may be looked at after it was given to somebody
/// else. Nothing that the protocol does depends on the number.
fn unique() -> u64 {
    rand::random::<u64>() | 1
}

/// A run of packets whose payload is to be copied from the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// How many packets it is, and PSNs it takes.
    pub(crate) packets: u32,
    /// Bytes of payload.
    pub(crate) len: u32,
    /// Where they are.
    pub(crate) addr: u64,
    /// Their memory is registered.
    pub(crate) region: GrantName,
    /// They are still to be sent.
    pub(crate) send: GrantName,
}

/// The memory of the process that made an offer.
pub(crate) trait PeerMemory {
    /// Copies `len` bytes, from `from` bytes into the offer on, to `at` in `region`. False if they are not to be had (any more):
    /// then what is there now means nothing.
    fn copy(&self, offer: &Offer, from: u64, len: usize, region: &Region, at: usize) -> bool;
}

/// The payload of a packet, or of a run of packets.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    /// It came with the packet.
    Here(&'a [u8]),
    /// It is with the sender: `len` bytes from `from` bytes into the offer on.
    There { memory: &'a dyn PeerMemory, offer: &'a Offer, from: u64, len: usize },
}

impl<'a> Payload<'a> {
    /// All of an offer.
    pub(crate) fn offered(offer: &'a Offer, memory: &'a dyn PeerMemory) -> Self {
        Self::There { memory, offer, from: 0, len: offer.len as usize }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match *self {
            Self::Here(bytes) => bytes.len(),
            Self::There { len, .. } => len,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many packets' it is.
    #[inline]
    pub(crate) fn packets(&self) -> u32 {
        match self {
            Self::Here(_) => 1,
            Self::There { offer, .. } => offer.packets,
        }
    }

    /// The first `at` bytes, and the rest. `at` must not be beyond the end.
    #[inline]
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::Here(bytes) => {
                let (front, back) = bytes.split_at(at);
                (Self::Here(front), Self::Here(back))
            }
            Self::There { memory, offer, from, len } => (
                Self::There { memory, offer, from, len: at },
                Self::There { memory, offer, from: from + at as u64, len: len - at },
            ),
        }
    }

    /// Copies it to `at` in `region`; false if it is not to be had. That it fits has been checked.
    #[inline]
    pub(crate) fn copy_to(&self, region: &Region, at: usize) -> bool {
        match *self {
            Self::Here(bytes) => region.write(at, bytes).is_ok(),
            Self::There { memory, offer, from, len } => memory.copy(offer, from, len, region, at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_who_has_it() {
        let first = Grant::new();
        let name = first.name();
        assert!(first.holds() && name.value != 0 && name.at.is_multiple_of(8));
        first.renew();
        assert!(first.holds() && first.name().at == name.at && first.name().value != name.value);
        assert!(first.revoke() && !first.revoke() && !first.holds());
        drop(first);
        // More than a page of them: no two are the same.
        let many: Vec<Grant> = (0..1500).map(|_| Grant::new()).collect();
        let mut places: Vec<u64> = many.iter().map(|grant| grant.name().at).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 1500);
        assert!(many.iter().all(|grant| grant.holds() && grant.name() != name));
    }
}
