//! Becoming one of the contexts of a host.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Dir, OFlags};

use super::admin::{SlotInfo, slot_info};
use super::directory::Directory;
use super::error::{DirectoryError, JoinError};
use super::layout::{LAYOUT, MAGIC, Table};
use super::lock::Guard;
use super::map::Mapping;
use super::membership::Membership;
use super::segment::{self, Geometry, OwnSegment};
use super::{SLOTS, abandoned, ofd, reserve, sockets};
use crate::addr::local_eui64;

pub(super) const FILE: &str = "registry";
pub(super) const NEW_FILE: &str = "registry.new";

/// How to join.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// The runtime directory. `None`: what `FERROCE_RUNTIME_DIR` names, otherwise
    /// `/dev/shm/ferroce-<effective user id>-<network namespace>`.
    ///
    /// A directory that is named, here or there, is shared by all network namespaces that name it.
    pub directory: Option<PathBuf>,
    /// A name for people who list the contexts; cut at 64 bytes. Default: the program's name.
    pub name: String,
    /// Bytes of each inbound ring: a power of two from 256 KiB to 64 MiB. Default: 512 KiB. A ring takes memory only
    /// while a sender uses it.
    pub ring_bytes: usize,
    /// How long to wait for the registry's lock, which is normally held for less than a millisecond. Default: 5 s.
    pub patience: Duration,
}

impl Default for JoinOptions {
    fn default() -> Self {
        let program = std::env::args_os().next().map(PathBuf::from);
        let name = program.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        Self {
            directory: None,
            name: name.unwrap_or_default(),
            ring_bytes: 512 << 10,
            patience: Duration::from_secs(5),
        }
    }
}

/// The registry of the contexts that share one host's addresses.
#[derive(Debug)]
pub struct Registry {
    directory: Directory,
    table: Mapping,
}

impl Registry {
    /// Takes a slot. Slots of contexts that died are freed first.
    ///
    /// Slot numbers are handed out in turn, so that one is reused as late as possible. May wait for the lock, so it is
    /// nothing for an event loop.
    ///
    /// # Errors
    ///
    /// [`JoinError`] says what is wrong and what to do about it. Nothing is left behind.
    pub fn join(options: &JoinOptions) -> Result<Membership, JoinError> {
        let geometry = Geometry::new(options.ring_bytes).ok_or(JoinError::RingSize {
            bytes: options.ring_bytes,
            least: Geometry::LEAST_RING,
            most: Geometry::GREATEST_RING,
        })?;
        let (directory, lock, idle) = lock_directory(options)?;
        let table = open_table(&directory, &lock)?;
        let registry = Self { directory, table };
        let found_dead = !registry.reap(&lock).is_empty();
        let held = registry.sweep(&lock).map_err(|e| registry.error("list", "", e))?;

        let head = &registry.table().head;
        let slot = registry.choose(&held).ok_or_else(|| JoinError::Full { path: registry.directory.path().into() })?;
        // Taken before anything is named after it: a number is never used twice, whoever dies now.
        let incarnation = head.next_incarnation.fetch_add(1, Ordering::Relaxed);
        let made = registry.make_files(slot, incarnation, geometry);
        let (segment, wake) = match made {
            Ok(made) => made,
            Err(error) => {
                registry.remove_files(slot, incarnation);
                return Err(error);
            }
        };
        let word = Box::new(AtomicU64::new(rand::random()));
        if let Some(entry) = registry.table().entry(slot) {
            entry.pid.store(std::process::id(), Ordering::Relaxed);
            entry.udp_index.store(0, Ordering::Relaxed);
            entry.udp_inode.store(0, Ordering::Relaxed);
            entry.gsi.store(0, Ordering::Relaxed);
            entry.word_at.store(&raw const *word as u64, Ordering::Relaxed);
            entry.word.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            entry.set_name(&options.name);
            entry.publish(incarnation);
        }
        head.next_slot.store((u32::from(slot) + 1) % SLOTS as u32, Ordering::Relaxed);
        drop(lock);
        if idle && registry.directory.is_default() {
            abandoned::sweep(registry.directory.path());
        }
        Ok(Membership::new(registry, (slot, incarnation), (segment, wake, word), found_dead))
    }

    /// Lists the contexts of a runtime directory, the default one if `None`, without becoming one of them. Nothing is
    /// reaped: slots whose owner died are in the list with `alive` false.
    ///
    /// # Errors
    ///
    /// As for [`Self::join`]. That there is no registry yet is an empty list.
    pub fn list(directory: Option<&Path>) -> Result<Vec<SlotInfo>, JoinError> {
        let directory = Directory::open(directory)?;
        match existing_table(&directory) {
            Ok(table) => {
                let registry = Self { directory, table };
                Ok(registry.live().map(|(slot, incarnation)| slot_info(&registry, slot, incarnation)).collect())
            }
            Err(JoinError::Directory(error)) if error.is_not_found() => Ok(Vec::new()),
            Err(JoinError::Layout { .. }) if !in_use(&directory) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn table(&self) -> &Table {
        self.table.view(0)
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Occupied slots and who occupies them.
    pub(super) fn live(&self) -> impl Iterator<Item = (u8, u64)> {
        self.table().entries().filter_map(|(slot, entry)| Some((slot, entry.live()?)))
    }

    /// Whether the owner of a slot still exists. What cannot be found out counts as alive: a slot that is freed late
    /// costs nothing, one that is freed early is taken from a living context.
    pub(super) fn owner_exists(&self, slot: u8, incarnation: u64) -> bool {
        match self.directory.open_file(&segment::file_name(slot, incarnation), OFlags::RDWR) {
            Ok(file) => ofd::is_locked(file.as_fd()).unwrap_or(true),
            Err(error) => !error.is_not_found(),
        }
    }

    /// Frees the slots whose owners are gone.
    pub(super) fn reap(&self, _lock: &Guard) -> Vec<(u8, u64)> {
        let dead = self.live().filter(|(slot, incarnation)| !self.owner_exists(*slot, *incarnation));
        dead.inspect(|(slot, incarnation)| {
            // Of several that died the kernel may have closed the sockets in another order: probes tell.
            sockets::remove(self.table(), *slot);
            if let Some(entry) = self.table().entry(*slot) {
                entry.clear(*incarnation);
            }
            self.remove_files(*slot, *incarnation);
        })
        .collect()
    }

    /// Removes the files of those who died while they joined or left: nobody can be joining now, so a file that no
    /// entry names is nobody's, unless somebody holds its lock.
    ///
    /// Such a holder may be leaving just now, or may have lost its entry because somebody removed the registry below
    /// it. The slots of such are returned and not handed out.
    fn sweep(&self, _lock: &Guard) -> io::Result<[bool; 256]> {
        let mut held = [false; 256];
        let mut orphans = Vec::new();
        for entry in Dir::read_from(self.directory.fd())? {
            let entry = entry?;
            let Some((slot, incarnation)) = entry.file_name().to_str().ok().and_then(segment::parse_name) else {
                continue;
            };
            let owned = self.table().entry(slot).is_some_and(|entry| entry.live() == Some(incarnation));
            if !owned {
                orphans.push((slot, incarnation));
            }
        }
        for (slot, incarnation) in orphans {
            if self.owner_exists(slot, incarnation) {
                held[usize::from(slot)] = true;
            } else {
                self.remove_files(slot, incarnation);
            }
        }
        Ok(held)
    }

    fn choose(&self, held: &[bool; 256]) -> Option<u8> {
        let table = self.table();
        let first = table.head.next_slot.load(Ordering::Relaxed) as usize % SLOTS;
        (first..SLOTS)
            .chain(0..first)
            .filter_map(|slot| u8::try_from(slot).ok())
            .find(|slot| !held[usize::from(*slot)] && table.entry(*slot).is_some_and(|entry| entry.live().is_none()))
    }

    fn make_files(
        &self,
        slot: u8,
        incarnation: u64,
        geometry: Geometry,
    ) -> Result<(OwnSegment, std::os::fd::OwnedFd), JoinError> {
        let segment = OwnSegment::create(&self.directory, slot, incarnation, geometry)
            .map_err(|(what, error)| self.error(what, &segment::file_name(slot, incarnation), error))?;
        let name = segment::wake_name(slot, incarnation);
        self.directory.make_fifo(&name).map_err(|e| self.error("create", &name, e))?;
        let wake = self.directory.open_fifo(&name)?;
        Ok((segment, wake))
    }

    pub(super) fn remove_files(&self, slot: u8, incarnation: u64) {
        self.directory.remove(&segment::wake_name(slot, incarnation));
        self.directory.remove(&segment::file_name(slot, incarnation));
    }

    fn error(&self, what: &'static str, name: &str, source: io::Error) -> JoinError {
        io_error(&self.directory, what, name, rustix::param::page_size() as u64, source)
    }
}

fn io_error(directory: &Directory, what: &'static str, name: &str, bytes: u64, source: io::Error) -> JoinError {
    let path = if name.is_empty() { directory.path().into() } else { directory.path_of(name) };
    if segment::no_space(&source) {
        return JoinError::NoSpace { path, bytes, source };
    }
    DirectoryError::Io { what, path, source }.into()
}

/// Opens the runtime directory and takes its lock; says whether nobody did for long. Until it is locked, somebody who finds it
/// abandoned may remove it.
fn lock_directory(options: &JoinOptions) -> Result<(Directory, Guard, bool), JoinError> {
    loop {
        let directory = match Directory::open(options.directory.as_deref()) {
            Err(error) if error.is_not_found() && error.is_opening() => continue,
            other => other?,
        };
        let idle = abandoned::is_idle(&directory);
        match Guard::acquire(&directory, options.patience) {
            _ if directory.is_removed() => {}
            Ok(lock) => return Ok((directory, lock, idle)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens the registry, or makes it.
fn open_table(directory: &Directory, _lock: &Guard) -> Result<Mapping, JoinError> {
    match existing_table(directory) {
        Err(JoinError::Directory(error)) if error.is_not_found() => {}
        // What an older or newer library left behind, and nobody uses any more.
        Err(JoinError::Layout { .. }) if !in_use(directory) => directory.remove(FILE),
        other => return other,
    }
    // It gets its name when it is complete: who dies on the way leaves a file that the next one overwrites.
    let bytes = size_of::<Table>();
    let io = |what, source| io_error(directory, what, NEW_FILE, bytes as u64, source);
    directory.remove(NEW_FILE);
    let file = directory
        .open_file(NEW_FILE, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
        .map_err(|e| io("create", e.into_io()))?;
    let made = reserve::set_length(file.as_fd(), bytes as u64)
        .and_then(|()| reserve::reserve(file.as_fd(), 0, bytes as u64))
        .and_then(|()| Mapping::new(file.as_fd(), 0, bytes));
    let map = made.map_err(|error| {
        directory.remove(NEW_FILE);
        io("reserve room in", error)
    })?;
    let head = &map.view::<Table>(0).head;
    head.layout.store(LAYOUT, Ordering::Relaxed);
    head.nonce.store(rand::random(), Ordering::Relaxed);
    head.guid.store(local_eui64(rand::random()), Ordering::Relaxed);
    head.next_incarnation.store(1, Ordering::Relaxed);
    head.magic.store(MAGIC, Ordering::Release);
    rustix::fs::renameat(directory.fd(), NEW_FILE, directory.fd(), FILE).map_err(|e| io("rename", e.into()))?;
    Ok(map)
}

/// Whether any context is alive, whatever its registry looks like: segments are named and locked alike in all layouts.
pub(super) fn in_use(directory: &Directory) -> bool {
    let Ok(entries) = Dir::read_from(directory.fd()) else { return true };
    entries.flatten().any(|entry| {
        let name = entry.file_name().to_str().unwrap_or("");
        segment::parse_name(name).is_some()
            && !name.ends_with(".wake")
            && directory.open_file(name, OFlags::RDWR).is_ok_and(|file| ofd::is_locked(file.as_fd()).unwrap_or(true))
    })
}

fn existing_table(directory: &Directory) -> Result<Mapping, JoinError> {
    let path = || directory.path_of(FILE);
    let file = directory.open_file(FILE, OFlags::RDWR)?;
    let io = |what, source| JoinError::from(DirectoryError::Io { what, path: path(), source });
    let length = rustix::fs::fstat(&file).map_err(|e| io("examine", e.into()))?.st_size;
    // The head is read before it is mapped: another layout may be shorter than this one's table.
    let mut head = [0; 12];
    let read = rustix::io::pread(&file, &mut head, 0).map_err(|e| io("read", e.into()))?;
    let (magic, layout) = head.split_at(8);
    if read < head.len() || magic != MAGIC.to_ne_bytes() {
        return Err(JoinError::Damaged { path: path(), why: "it does not begin like a registry" });
    }
    let found = u32::from_ne_bytes([layout[0], layout[1], layout[2], layout[3]]);
    if found != LAYOUT {
        return Err(JoinError::Layout { path: path(), found, expected: LAYOUT });
    }
    if usize::try_from(length) != Ok(size_of::<Table>()) {
        return Err(JoinError::Damaged { path: path(), why: "its length is wrong" });
    }
    Mapping::new(file.as_fd(), 0, size_of::<Table>()).map_err(|e| io("map", e))
}
