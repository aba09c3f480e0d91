use super::flight::Resolution;
use crate::{Ah, AhAttr, Error, Pd, Result};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Makes address handles for the cache. The cache holds no lock while it does, asks for no address twice at a time, and may ask
/// for several at once, from any thread.
pub trait AhResolver: Send + Sync {
    /// Resolves the address. May block for as long as that takes.
    ///
    /// # Errors
    ///
    /// Everybody who waits for this address gets the error, and it is not kept.
    fn resolve(&self, pd: &Pd, attr: &AhAttr) -> Result<Ah>;

    /// Begins to resolve without blocking; whenever it is done, in any thread, [`Resolution::finish`] is called. It is what
    /// [`super::AhCache::try_get`] and [`super::AhCache::get_async`] use.
    ///
    /// By default a thread of its own calls [`Self::resolve`].
    fn start(&self, resolution: Resolution) {
        let place = Place::take();
        let Some(place) = place else {
            resolution
                .finish(Err(Error::Exhausted { what: "threads that resolve addresses", limit: MOST_THREADS as u64 }));
            return;
        };
        let spawned = std::thread::Builder::new().name("ferroce-resolve".into()).spawn(move || {
            let _place = place;
            resolution.run();
        });
        if let Err(error) = spawned {
            // The resolution went with the closure, and with it everybody who waits was told that it failed.
            tracing::warn!(%error, "no thread to resolve an address in");
        }
    }
}

/// Threads that resolve addresses at one time: more than this many addresses cannot be under way without blocking anybody.
const MOST_THREADS: usize = 512;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// One of [`MOST_THREADS`].
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let more = |threads| (threads < MOST_THREADS).then_some(threads + 1);
        THREADS.fetch_update(Relaxed, Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Relaxed);
    }
}

/// Resolves as the device does: [`Pd::create_ah`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceResolver;

impl AhResolver for DeviceResolver {
    fn resolve(&self, pd: &Pd, attr: &AhAttr) -> Result<Ah> {
        pd.create_ah(attr)
    }

    fn start(&self, resolution: Resolution) {
        if resolution.pd().ops().create_ah_blocks() {
            BlockingDevice.start(resolution);
        } else {
            resolution.run();
        }
    }
}

/// The same device, in a thread of its own.
struct BlockingDevice;

impl AhResolver for BlockingDevice {
    fn resolve(&self, pd: &Pd, attr: &AhAttr) -> Result<Ah> {
        pd.create_ah(attr)
    }
}
