//! Writes initial RAM disks: `newc` cpio archives, as the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst` has them.
//!
//! Archives may follow one another in one file; what comes later replaces what came before.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

const DIRECTORY: u32 = 0o040_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const REGULAR: u32 = 0o100_000;
const SYMBOLIC_LINK: u32 = 0o120_000;

/// An archive that is being written. Paths have no leading slash; directories above a path are created.
pub(super) struct Archive<W> {
    out: W,
    written: u64,
    inode: u32,
    directories: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, written: 0, inode: 0, directories: BTreeSet::new() }
    }

    pub(super) fn directory(&mut self, path: &str) -> io::Result<()> {
        if path.is_empty() || !self.directories.insert(path.to_owned()) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, DIRECTORY | 0o755, (0, 0), &[])
    }

    /// A file with these permissions and this content. Bound: 4 GiB, the format's.
    pub(super) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, REGULAR | permissions, (0, 0), content)
    }

    /// Copies a file with the permissions it has; follows symbolic links.
    pub(super) fn copy(&mut self, path: &str, from: &Path) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let permissions = std::fs::metadata(from)?.permissions().mode() & 0o755;
        self.file(path, permissions, &std::fs::read(from)?)
    }

    pub(super) fn symlink(&mut self, path: &str, to: &str) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, SYMBOLIC_LINK | 0o777, (0, 0), to.as_bytes())
    }

    pub(super) fn character_device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// Ends the archive and returns what it was written to.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        self.pad(512)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        match path.rsplit_once('/') {
            Some((parent, _)) => self.directory(parent),
            None => Ok(()),
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        let too_big = |_| io::Error::new(io::ErrorKind::InvalidInput, format!("{path} is too big for a cpio archive"));
        let size = u32::try_from(content.len()).map_err(too_big)?;
        let name_size = u32::try_from(path.len() + 1).map_err(too_big)?;
        self.inode += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        // Inode, mode, owner, group, links, time, size, device of the file, device that it is, name size, checksum.
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.put(b"070701")?;
        for field in fields {
            self.put(format!("{field:08X}").as_bytes())?;
        }
        self.put(path.as_bytes())?;
        self.put(b"\0")?;
        self.pad(4)?;
        self.put(content)?;
        self.pad(4)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self, to: u64) -> io::Result<()> {
        let missing = self.written.next_multiple_of(to) - self.written;
        self.put(&vec![0; missing as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(entry: &[u8], index: usize) -> u32 {
        let start = 6 + 8 * index;
        u32::from_str_radix(std::str::from_utf8(&entry[start..start + 8]).unwrap(), 16).unwrap()
    }

    /// Names, modes and contents of an archive, read independently of how it is written.
    fn entries(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let (mode, size, name_size) = (field(bytes, 1), field(bytes, 6) as usize, field(bytes, 11) as usize);
            let name = String::from_utf8(bytes[110..110 + name_size - 1].to_vec()).unwrap();
            let content = (110 + name_size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return entries;
            }
            entries.push((name, mode, bytes[content..content + size].to_vec()));
            bytes = &bytes[(content + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn creates_the_directories_above_once() {
        let mut archive = Archive::new(Vec::new());
        archive.file("a/b/c", 0o644, b"12345").unwrap();
        archive.symlink("a/b/d", "c").unwrap();
        archive.character_device("dev/console", 5, 1).unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 512, 0);
        let expected = [
            ("a", 0o040_755, &b""[..]),
            ("a/b", 0o040_755, b""),
            ("a/b/c", 0o100_644, b"12345"),
            ("a/b/d", 0o120_777, b"c"),
            ("dev", 0o040_755, b""),
            ("dev/console", 0o020_600, b""),
        ];
        let expected: Vec<_> =
            expected.iter().map(|(name, mode, content)| ((*name).to_owned(), *mode, content.to_vec())).collect();
        assert_eq!(entries(&bytes), expected);
    }
}
