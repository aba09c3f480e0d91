//! Shared mappings of files, and typed views of them.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A type that may be laid over shared memory of any content.
///
/// # Safety
///
/// The type consists of atomics only (and arrays and structures of such), is valid for every bit pattern and has no
/// padding that matters. References to it stay sound while other processes write.
pub(crate) unsafe trait Shared {}

// SAFETY: an atomic integer is valid for every bit pattern.
unsafe impl Shared for AtomicU32 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU64 {}
// SAFETY: an array of what may be shared may be shared.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// A readable, writable, shared mapping of part of a file.
///
/// Whoever makes one has reserved the storage below the parts that are touched (see [`super::reserve`]); otherwise a
/// touch on a full file system would end the process with SIGBUS.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory without thread affinity. It is reached through `&impl Shared`, which is made of
// atomics, or through raw pointers whose users argue for themselves.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of `file` from `offset`, which must be a multiple of the page size.
    ///
    /// The mapping is not inherited by forked children: they are not members.
    ///
    /// # Errors
    ///
    /// What the kernel says, for instance `ENOMEM`.
    pub(crate) fn new(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this program.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                offset,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { base, bytes };
        // SAFETY: the range is exactly this mapping; the advice only changes what a fork does.
        unsafe { rustix::mm::madvise(mapping.base.as_ptr().cast(), bytes, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    /// Asks the kernel to enter a range in the page tables now, so that the first touch is no page fault.
    ///
    /// A hint: kernels before 5.14 do not know it, and nothing depends on it.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset);
        // SAFETY: the range lies within this mapping. The advice makes pages present; it changes no content.
        let _ =
            unsafe { rustix::mm::madvise(self.base.as_ptr().add(offset).cast(), bytes, Advice::LinuxPopulateWrite) };
    }

    /// A typed view of the bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If the view would leave the mapping or is misaligned. Offsets come from layouts, never from shared memory.
    pub(crate) fn view<T: Shared>(&self, offset: usize) -> &T {
        let end = offset.checked_add(size_of::<T>());
        assert!(end.is_some_and(|end| end <= self.bytes) && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: in bounds and aligned (the base is page aligned) as just checked, valid for every content and sound
        // under concurrent writes by the contract of `Shared`; lives as long as the mapping does.
        unsafe { self.base.add(offset).cast().as_ref() }
    }

    /// The address of the byte at `offset`, from which `bytes` bytes lie within the mapping.
    ///
    /// # Panics
    ///
    /// If that range would leave the mapping.
    pub(crate) fn range(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset);
        // SAFETY: within the mapping as just checked.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are what mmap returned, and every reference into the mapping borrows from `self`
        // or is kept beside an `Arc` of it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
