//! How many bytes a test has allocated and not freed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

static LIVE: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator, counting. For a test program's `#[global_allocator]`; all its threads are counted together.
#[derive(Debug)]
pub struct Counting;

/// Bytes that are allocated and not freed, in a program whose allocator is [`Counting`].
#[must_use]
pub fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `dealloc`, and the memory is from `alloc` above.
        unsafe { System.dealloc(ptr, layout) }
    }
}
