//! Cross-memory attach: copies from the memory of another process of this user, `process_vm_readv(2)`.
//!
//! The kernel copies from page to page, so a sender's bytes need not go through a ring. It allows that under the conditions of
//! `ptrace(2)`, which the same user's processes fulfil unless something forbids it.
#![allow(unsafe_code)]

use std::io;

use ferroce_verbs::Region;

/// Bytes of one word.
const WORD: usize = size_of::<u64>();
/// Two words are read at once if they and what is between them are no more words than this.
const NEAR: usize = 64;

/// Copies `len` bytes at address `from` in process `pid` to `at` in `region`, and after that reads the words at two more addresses
/// there, in this order.
///
/// Blocks for a page of the other process that is not in memory, as touching it there would, and for nothing else.
///
/// # Errors
///
/// `EFAULT` if some of it is not mapped there, and then part of `region` may be written; `EPERM` if the memory of that process may
/// not be read; `ESRCH` if there is no such process.
pub(crate) fn copy(
    pid: u32,
    from: u64,
    (region, at, len): (&Region, usize, usize),
    words: [u64; 2],
) -> io::Result<[u64; 2]> {
    let to = region.as_mut_ptr(at, len).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut found = [0_u64; NEAR];
    let low = words[0].min(words[1]);
    let [first, second] = words.map(|word| (word - low) as usize / WORD);
    // Each page that is looked at costs the kernel as much as copying one.
    if words[0].abs_diff(words[1]).is_multiple_of(WORD as u64) && first.max(second) < NEAR {
        let bytes = (first.max(second) + 1) * WORD;
        let local = [iovec(to as u64, len), iovec((&raw mut found) as u64, bytes)];
        // SAFETY: the kernel writes to `to`, which has `len` bytes that `region` keeps allocated and of which nobody makes
        // references, and to `found`, which is ours and long enough. What it reads is in the other process; it checks that itself.
        unsafe { readv(pid, &local, &[iovec(from, len), iovec(low, bytes)], len + bytes) }?;
        return Ok([found[first], found[second]]);
    }
    let local = [iovec(to as u64, len), iovec((&raw mut found) as u64, 2 * WORD)];
    let remote = [iovec(from, len), iovec(words[0], WORD), iovec(words[1], WORD)];
    // SAFETY: as above.
    unsafe { readv(pid, &local, &remote, len + 2 * WORD) }?;
    Ok([found[0], found[1]])
}

/// The word at address `at` in process `pid`.
///
/// # Errors
///
/// As for [`copy`].
pub(super) fn read_word(pid: u32, at: u64) -> io::Result<u64> {
    let mut found = 0_u64;
    // SAFETY: the kernel writes to `found`.
    unsafe { readv(pid, &[iovec((&raw mut found) as u64, WORD)], &[iovec(at, WORD)], WORD) }?;
    Ok(found)
}

fn iovec(at: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at as *mut _, iov_len: len }
}

/// # Safety
///
/// `local` names memory that may be written.
unsafe fn readv(pid: u32, local: &[libc::iovec], remote: &[libc::iovec], expected: usize) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (locals, remotes) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
    // SAFETY: both lists are valid for the call; what `local` names may be written by contract.
    let copied = unsafe { libc::process_vm_readv(pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0) };
    match usize::try_from(copied) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(copied) if copied == expected => Ok(()),
        // It stopped at a page that is not there.
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_verbs::Buffer;

    fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Option<i32> {
        result.unwrap_err().raw_os_error()
    }

    #[test]
    fn bytes_come_over_and_then_the_words() {
        let source: Vec<u8> = (0..20_000).map(|n| n as u8).collect();
        let words = [7_u64, 9, 11];
        let region = Region::owned(Buffer::zeroed(30_000).unwrap());
        let apart = Box::new([13_u64; 1000]);
        let at = words.each_ref().map(|word| (&raw const *word) as u64);
        let far = (&raw const apart[900]) as u64;
        let from = source.as_ptr() as u64;
        for (names, expected) in [
            ([at[0], at[1]], [7, 9]),
            ([at[2], at[0]], [11, 7]),
            ([at[1]; 2], [9, 9]),
            ([at[0], far], [7, 13]),
            ([far, at[2]], [13, 11]),
        ] {
            assert_eq!(copy(std::process::id(), from, (&region, 5_000, source.len()), names).unwrap(), expected);
        }
        let mut out = vec![0; 30_000];
        region.read(0, &mut out).unwrap();
        assert!(out[..5_000].iter().chain(&out[25_000..]).all(|byte| *byte == 0));
        assert_eq!(out[5_000..25_000], source);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let region = Region::owned(Buffer::zeroed(64).unwrap());
        let word = 1_u64;
        let (here, pid) = ((&raw const word) as u64, std::process::id());
        assert_eq!(errno(copy(pid, 16, (&region, 0, 64), [here; 2])), Some(libc::EFAULT));
        assert_eq!(errno(copy(pid, here, (&region, 0, 8), [here, 16])), Some(libc::EFAULT));
        assert_eq!(errno(copy(pid, here, (&region, 60, 8), [here; 2])), None);
        assert_eq!(errno(read_word(u32::MAX >> 1, here)), Some(libc::ESRCH));
        assert_eq!(read_word(pid, here).unwrap(), 1);
    }
}
