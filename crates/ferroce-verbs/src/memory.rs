//! Memory that a device reads and writes while the program does too.
//!
//! Nothing here ever makes a reference to such memory: like a driver for a device with DMA, it copies through raw
//! pointers, so what a race can do is tear the bytes that race, and nothing else.
#![allow(unsafe_code)]

use crate::{Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Zeroed memory on pages of its own (of 4 KiB), to be handed to [`crate::Pd::reg_mr`]. Whatever a device or a `fork` does to pages (`MADV_DONTFORK`)
/// happens to nothing else.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// Of whole pages.
    layout: Layout,
}

// SAFETY: the allocation belongs to this value alone and has no thread affinity.
unsafe impl Send for Buffer {}
// SAFETY: a shared `Buffer` gives out its address and length only.
unsafe impl Sync for Buffer {}

impl Buffer {
    const PAGE: usize = 4096;

    /// `len` bytes of zeroes.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `len` is 0 or larger than an address space; [`Error::Os`] (`ENOMEM`) if the system does not
    /// have it.
    pub fn zeroed(len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::invalid("length", "a buffer has at least one byte"));
        }
        let layout = Layout::from_size_align(len, Self::PAGE)
            .map(|layout| layout.pad_to_align())
            .map_err(|_| Error::invalid("length", format!("{len} bytes are more than an address space")))?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(|| {
            let what = format!("allocating {len} bytes of memory; ask for less, or raise the limit (ulimit -v)");
            Error::os(what, std::io::ErrorKind::OutOfMemory)
        })?;
        Ok(Self { start, len, layout })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The bytes, while the buffer still belongs to the caller alone.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the allocation is at least `len` initialised bytes, and `&mut self` shows that nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `start` came from the allocator with this layout, and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len()).finish()
    }
}

/// A span of this process's memory together with whatever keeps it allocated.
///
/// Cloning shares the span. A device keeps a clone for as long as it may touch the memory.
#[derive(Clone)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    _keep: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: a `Region` is an address and a counted owner; all access goes through raw copies and atomics.
unsafe impl Send for Region {}
// SAFETY: as above; concurrent copies may tear bytes but make no references.
unsafe impl Sync for Region {}

impl Region {
    /// The memory of `buffer`, which now belongs to the region.
    pub fn owned(buffer: Buffer) -> Self {
        let (start, len) = (buffer.start, buffer.len());
        Self { start, len, _keep: Some(Arc::new(buffer)) }
    }

    /// Memory that belongs to somebody else.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `start` is null, `len` is 0, or the span wraps around the address space.
    ///
    /// # Safety
    ///
    /// `len` bytes at `start` must be allocated, readable and writable until the last clone of this region is gone: the
    /// last handle to a memory region over it is dropped and no work request that names it is outstanding. Until then
    /// a device may read and write them at any time, so no reference to them may exist while it does.
    pub unsafe fn borrowed(start: *mut u8, len: usize) -> Result<Self> {
        let start = NonNull::new(start).ok_or_else(|| Error::invalid("address", "it is null"))?;
        if len == 0 {
            return Err(Error::invalid("length", "a memory region has at least one byte"));
        }
        if (start.as_ptr() as usize).checked_add(len).is_none() {
            return Err(Error::invalid("length", "the span wraps around the address space"));
        }
        Ok(Self { start, len, _keep: None })
    }

    /// Where it starts.
    pub fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether `len` bytes at address `addr` lie inside.
    #[inline]
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        let start = self.addr();
        // `addr - start` cannot wrap once `addr >= start`, and the sum is compared by subtraction.
        addr >= start && len <= self.len as u64 && addr - start <= self.len as u64 - len
    }

    /// The address of `len` bytes from `offset` on, for a copy that the kernel makes. They stay allocated while this region, or a
    /// clone of it, exists.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the range is not inside the region.
    #[inline]
    pub fn as_mut_ptr(&self, offset: usize, len: usize) -> Result<*mut u8> {
        self.check(offset, len)
    }

    fn check(&self, offset: usize, len: usize) -> Result<*mut u8> {
        if len > self.len || offset > self.len - len {
            return Err(Error::invalid(
                "range",
                format!("{len} bytes at offset {offset} are not inside a region of {} bytes", self.len),
            ));
        }
        // SAFETY: `offset` is inside the allocation, as just checked.
        Ok(unsafe { self.start.as_ptr().add(offset) })
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the range is not inside the region.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let from = self.check(offset, out.len())?;
        // SAFETY: `from` has `out.len()` readable bytes (checked; the region keeps them allocated), and `out` is a
        // unique reference, so the two cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the range is not inside the region.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let to = self.check(offset, bytes.len())?;
        // SAFETY: `to` has `bytes.len()` writable bytes (checked; the region keeps them allocated). `copy` rather than
        // `copy_nonoverlapping`, as a borrowed region might be where `bytes` came from.
        unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// The offset of address `addr`.
    #[inline]
    pub fn offset_of(&self, addr: u64) -> usize {
        addr.wrapping_sub(self.addr()) as usize
    }

    /// Reads one byte with acquire ordering: what was written before it by a device is visible afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the offset is not inside the region.
    #[inline]
    pub fn load_u8(&self, offset: usize) -> Result<u8> {
        let at = self.check(offset, 1)?;
        // SAFETY: `at` is one allocated byte, any address is aligned for it, and devices write it through copies that
        // are at least as strong as a relaxed byte store on every supported machine.
        Ok(unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Acquire))
    }

    /// Stores one byte with release ordering.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the offset is not inside the region.
    #[inline]
    pub fn store_u8(&self, offset: usize, value: u8) -> Result<()> {
        let at = self.check(offset, 1)?;
        // SAFETY: as in `load_u8`.
        unsafe { AtomicU8::from_ptr(at) }.store(value, Ordering::Release);
        Ok(())
    }

    /// Replaces the aligned 64-bit word at `offset` by `f(word)` in one atomic step, and returns the old word; `f` returning
    /// `None` leaves it alone.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the word is not inside the region or its address is no multiple of 8.
    pub fn update_u64(&self, offset: usize, mut f: impl FnMut(u64) -> Option<u64>) -> Result<u64> {
        let at = self.check(offset, 8)?;
        if !(at as usize).is_multiple_of(8) {
            return Err(Error::invalid("address", "a 64-bit atomic needs a multiple of 8"));
        }
        // SAFETY: eight allocated bytes at an aligned address.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        Ok(word.fetch_update(Ordering::AcqRel, Ordering::Acquire, &mut f).unwrap_or_else(|old| old))
    }

    /// The range of offsets as addresses, after checking that it is inside.
    pub(crate) fn span(&self, range: Range<usize>) -> Result<(u64, u32)> {
        let len =
            range.end.checked_sub(range.start).ok_or_else(|| Error::invalid("range", "it ends before it starts"))?;
        let at = self.check(range.start, len)?;
        let len = u32::try_from(len).map_err(|_| Error::invalid("range", "it is longer than 4 GiB"))?;
        Ok((at as u64, len))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("addr", &self.start).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_shares_no_page() {
        let buffer = Buffer::zeroed(5).unwrap();
        assert_eq!((buffer.len(), buffer.layout.size(), buffer.layout.align()), (5, Buffer::PAGE, Buffer::PAGE));
        assert!(Buffer::zeroed(isize::MAX as usize).is_err());
    }

    #[test]
    fn bounds_are_exact() {
        let region = Region::owned(Buffer::zeroed(16).unwrap());
        assert!(region.write(8, &[1; 8]).is_ok());
        assert!(region.write(9, &[1; 8]).is_err());
        assert!(region.write(usize::MAX, &[1; 8]).is_err());
        assert!(region.contains(region.addr(), 16));
        assert!(region.contains(region.addr() + 16, 0));
        assert!(!region.contains(region.addr(), 17));
        assert!(!region.contains(region.addr() - 1, 1));
        assert!(!region.contains(u64::MAX, 2));
        assert!(!region.contains(region.addr() + 8, u64::MAX));
        let mut out = [0; 8];
        region.read(8, &mut out).unwrap();
        assert_eq!(out, [1; 8]);
    }

    /// A length that comes from elsewhere is no reason to end the process.
    #[test]
    fn memory_that_the_system_does_not_have_is_an_error() {
        let error = Buffer::zeroed(isize::MAX as usize - 4096).unwrap_err();
        assert!(
            matches!(&error, Error::Os { source, .. } if source.kind() == std::io::ErrorKind::OutOfMemory),
            "{error}"
        );
        assert!(matches!(Buffer::zeroed(usize::MAX), Err(Error::Invalid { .. })));
        assert!(matches!(Buffer::zeroed(0), Err(Error::Invalid { .. })));
    }

    #[test]
    fn words_are_updated_atomically_and_only_when_aligned() {
        let region = Region::owned(Buffer::zeroed(32).unwrap());
        assert_eq!(region.update_u64(8, |old| Some(old + 5)).unwrap(), 0);
        assert_eq!(region.update_u64(8, |_| None).unwrap(), 5);
        assert!(region.update_u64(12, Some).is_err());
        assert!(region.update_u64(32, Some).is_err());
    }
}
