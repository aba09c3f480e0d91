//! Registries of network namespaces that are gone. Nobody who ends can know that nobody comes after, so whoever comes first after
//! a while removes what others left behind.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Dir, OFlags};

use super::directory::{Directory, PREFIX};
use super::join::{FILE, NEW_FILE, in_use};
use super::lock::{self, Guard};
use super::segment;

/// For how long nobody may have joined a registry that is removed. A namespace may be held in ways that cannot be seen from here;
/// then its next context begins a new registry, and all that is lost is the GUID of the device.
const LEAST_AGE: Duration = Duration::from_secs(600);

/// Removes the registries of this user beside `own` whose namespace nobody is in any more, and nobody uses. What cannot be found
/// out or removed stays: the next one will try again.
pub(super) fn sweep(own: &Path) {
    if let Some(parent) = own.parent() {
        sweep_below(parent, own, &namespaces(), LEAST_AGE);
    }
}

fn sweep_below(parent: &Path, own: &Path, namespaces: &HashSet<u64>, least_age: Duration) {
    let prefix = format!("{PREFIX}{}-", rustix::process::geteuid().as_raw());
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path != own) {
        let name = path.file_name().and_then(|name| name.to_str());
        let namespace = name.and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
        if namespace.is_some_and(|namespace| !namespaces.contains(&namespace))
            && let Ok(directory) = Directory::existing(&path)
            && age(&directory).is_some_and(|age| age >= least_age)
        {
            remove(&directory);
        }
    }
}

/// Whether nobody joined the registry for long, or ever.
pub(super) fn is_idle(directory: &Directory) -> bool {
    age(directory).is_none_or(|age| age >= LEAST_AGE)
}

/// How long ago somebody last held the lock, and so joined or left.
fn age(directory: &Directory) -> Option<Duration> {
    let lock = directory.open_file(lock::FILE, OFlags::RDONLY).ok()?;
    let seconds = u64::try_from(rustix::fs::fstat(&lock).ok()?.st_mtime).ok()?;
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).ok()
}

/// Removes the directory with all that a registry consists of, unless somebody uses it. The lock goes last: with it gone, who
/// waits for it begins anew (see [`Guard::acquire`]).
fn remove(directory: &Directory) {
    let Ok(_lock) = Guard::acquire(directory, Duration::ZERO) else { return };
    if in_use(directory) {
        return;
    }
    let Ok(entries) = Dir::read_from(directory.fd().as_fd()) else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    for name in names.filter(|name| [FILE, NEW_FILE].contains(&&**name) || segment::parse_name(name).is_some()) {
        directory.remove(&name);
    }
    directory.remove(lock::FILE);
    // Fails if there is anything else, such as the lock of one who came meanwhile.
    let _ = rustix::fs::unlinkat(CWD, directory.path(), AtFlags::REMOVEDIR);
}

/// The network namespaces that a process is in or that are mounted somewhere, as far as this process can see.
fn namespaces() -> HashSet<u64> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let mut found: HashSet<u64> =
        numbered.filter_map(|entry| Some(rustix::fs::stat(entry.path().join("ns/net")).ok()?.st_ino)).collect();
    // A namespace that is mounted appears as `net:[4026531833]`.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    found.extend(mounts.split("net:[").skip(1).filter_map(|rest| rest.split("]").next()?.parse::<u64>().ok()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{JoinOptions, Registry};
    use std::path::PathBuf;

    /// A registry that `work` uses, and what is left of it.
    fn registry<T>(parent: &Path, namespace: u64, work: impl FnOnce(crate::host::Membership) -> T) -> (PathBuf, T) {
        let path = parent.join(format!("{PREFIX}{}-{namespace}", rustix::process::geteuid().as_raw()));
        let options = JoinOptions { directory: Some(path.clone()), ..JoinOptions::default() };
        let kept = work(Registry::join(&options).unwrap());
        (path, kept)
    }

    #[test]
    fn only_what_nobody_needs_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let (gone, ()) = registry(parent, 1, drop);
        let (killed, ()) = registry(parent, 2, |member| {
            // As a process that was killed leaves it: its files, which nobody locks any more.
            let directory = Directory::existing(member.directory()).unwrap();
            drop(member);
            let name = segment::file_name(3, 77);
            directory.open_file(&name, OFlags::RDWR | OFlags::CREATE).unwrap();
            directory.make_fifo(&segment::wake_name(3, 77)).unwrap();
        });
        let (inhabited, ()) = registry(parent, 3, drop);
        let (used, member) = registry(parent, 4, |member| member);
        let (own, ()) = registry(parent, 5, drop);
        let (strange, ()) = registry(parent, 6, drop);
        std::fs::write(strange.join("notes"), "mine").unwrap();
        let others = [parent.join("ferroce-x-1"), parent.join("ferroce-0-one")];
        others.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let namespaces = HashSet::from([3]);

        sweep_below(parent, &own, &namespaces, Duration::from_secs(3600));
        assert!(gone.exists() && killed.exists(), "somebody was here a moment ago");

        sweep_below(parent, &own, &namespaces, Duration::ZERO);
        assert!(!gone.exists() && !killed.exists());
        for kept in [&inhabited, &used, &own, &others[0], &others[1]] {
            assert!(kept.exists(), "{}", kept.display());
        }
        assert_eq!(std::fs::read_to_string(strange.join("notes")).unwrap(), "mine");
        assert!(member.is_alive(member.slot()));
        drop(member);
        sweep_below(parent, &own, &namespaces, Duration::ZERO);
        assert!(!used.exists());
    }

    /// A registry may be removed at any instant of another's join: that one begins it anew, and nobody is alone with a lock or a
    /// table that others do not see.
    #[test]
    fn joins_survive_the_removal() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let own = parent.join("none");
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sweeper = scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    sweep_below(parent, &own, &HashSet::new(), Duration::ZERO);
                }
            });
            let joiners: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..100 {
                            registry(parent, 1, |first| {
                                registry(parent, 1, |second| {
                                    assert_ne!(first.slot(), second.slot());
                                    assert!(first.is_alive(second.slot()) && second.is_alive(first.slot()));
                                });
                            });
                        }
                    })
                })
                .collect();
            let results: Vec<_> = joiners.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            sweeper.join().unwrap();
            results.into_iter().for_each(|result| result.unwrap());
        });
    }
}
