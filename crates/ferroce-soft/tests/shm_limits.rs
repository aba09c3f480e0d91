//! What must be refused, and what must be survived: other users, full file systems, other versions, mad peers.

mod shm_support;

use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ferroce_soft::host::{DirectoryError, JoinError, JoinOptions, LockError, Registry};
use ferroce_soft::link::shm::AttachError;
use shm_support::{Context, Scratch, command, join, options, role, watchdog};

/// A user who is not this one.
const NOBODY: u32 = 65534;

fn refusal(directory: &Path) -> JoinError {
    Registry::join(&options(directory)).unwrap_err()
}

/// As root, another user is refused by name, and cannot open the files even without asking the library.
#[test]
fn another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let scratch = Scratch::new();
    let member = join(&scratch.path());
    // So that not the directory above protects it.
    std::fs::set_permissions(scratch.path().parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    let error = as_nobody(|| refusal(&scratch.path()));
    assert!(matches!(error, JoinError::Directory(DirectoryError::NotOwner { owner: 0, user: NOBODY, .. })), "{error}");
    for file in scratch.files() {
        let opened = as_nobody(|| std::fs::File::open(scratch.path().join(&file)));
        assert_eq!(opened.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    }
    // Nor do the files' own permissions let others in, should the directory be opened by mistake.
    for file in scratch.files() {
        let mode = std::fs::metadata(scratch.path().join(&file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let error = as_nobody(|| refusal(&scratch.path()));
    assert!(matches!(error, JoinError::Directory(DirectoryError::NotOwner { .. })), "{error}");
    let error = refusal(&scratch.path());
    assert!(matches!(error, JoinError::Directory(DirectoryError::Exposed { mode: 0o755, .. })), "{error}");
    // Nobody is to be told just to close /tmp to all others.
    assert!(error.to_string().contains("serves nothing else, run: chmod go-rwx"), "{error}");
    drop(member);
    // A directory of somebody else, in which this user may do everything, is not trusted either.
    std::os::unix::fs::chown(scratch.path(), Some(NOBODY), None).unwrap();
    let error = refusal(&scratch.path());
    assert!(matches!(error, JoinError::Directory(DirectoryError::NotOwner { owner: NOBODY, .. })), "{error}");
}

/// Runs `work` in a thread that has become another user; the rest of the process has not.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let nobody = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

#[test]
fn a_directory_that_is_none() {
    let scratch = Scratch::new();
    let real = join(&scratch.path());
    let link = scratch.path().with_file_name("link");
    symlink(scratch.path(), &link).unwrap();
    assert!(matches!(refusal(&link), JoinError::Directory(DirectoryError::NotADirectory { .. })));
    let file = scratch.path().with_file_name("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(refusal(&file), JoinError::Directory(DirectoryError::NotADirectory { .. })));
    let missing = scratch.path().with_file_name("missing").join("too deep");
    assert!(matches!(refusal(&missing), JoinError::Directory(DirectoryError::Io { .. })));
    drop(real);
    // A registry that is a link leads nowhere.
    std::fs::rename(scratch.path().join("registry"), scratch.path().with_file_name("elsewhere")).unwrap();
    symlink("../elsewhere", scratch.path().join("registry")).unwrap();
    assert!(matches!(refusal(&scratch.path()), JoinError::Directory(DirectoryError::Io { .. })));
}

#[test]
fn a_registry_of_another_version() {
    let scratch = Scratch::new();
    assert!(Registry::list(Some(&scratch.path())).unwrap().is_empty());
    let path = scratch.path().join("registry");
    drop(join(&scratch.path()));
    let good = std::fs::read(&path).unwrap();
    let user = join(&scratch.path());

    let mut other = good.clone();
    other[8..12].copy_from_slice(&77_u32.to_ne_bytes());
    std::fs::write(&path, &other).unwrap();
    let error = refusal(&scratch.path());
    assert!(matches!(error, JoinError::Layout { found: 77, .. }), "{error}");
    assert!(error.to_string().contains("remove the directory"));
    assert!(matches!(Registry::list(Some(&scratch.path())), Err(JoinError::Layout { .. })));
    // It may be shorter or longer than this version's.
    std::fs::write(&path, &other[..100]).unwrap();
    assert!(matches!(refusal(&scratch.path()), JoinError::Layout { found: 77, .. }));
    // Nobody uses it any more: it is replaced.
    drop(user);
    assert!(Registry::list(Some(&scratch.path())).unwrap().is_empty());
    drop(join(&scratch.path()));
    assert_eq!(std::fs::read(&path).unwrap().len(), good.len());

    for damaged in [&good[..0], &good[..11], &good[..100], &[0; 5000], &[good.clone(), vec![0]].concat()] {
        std::fs::write(&path, damaged).unwrap();
        let error = refusal(&scratch.path());
        assert!(matches!(error, JoinError::Damaged { .. }), "{error}");
    }
    std::fs::write(&path, &good).unwrap();
    assert_eq!(join(&scratch.path()).slot(), 1);
}

#[test]
fn a_segment_of_another_version() {
    let scratch = Scratch::new();
    let context = Context::join(&scratch.path());
    let peer = join(&scratch.path());
    let path = scratch.path().join(format!("slot-1-{}", peer.incarnation()));
    let segment = std::fs::File::options().write(true).open(path).unwrap();
    for (offset, value) in [(8, 77_u32), (24, 12_345), (0, 1)] {
        let mut good = [0; 4];
        segment_read(&scratch, &peer).read_exact_at(&mut good, offset).unwrap();
        segment.write_all_at(&value.to_ne_bytes(), offset).unwrap();
        assert!(matches!(context.sender.lane(1), Err(AttachError::Damaged { slot: 1, .. })));
        segment.write_all_at(&good, offset).unwrap();
    }
    context.sender.lane(1).unwrap();
}

fn segment_read(scratch: &Scratch, member: &ferroce_soft::host::Membership) -> std::fs::File {
    let name = format!("slot-{}-{}", member.slot(), member.incarnation());
    std::fs::File::open(scratch.path().join(name)).unwrap()
}

#[test]
fn a_lock_that_is_held() {
    let scratch = Scratch::new();
    let member = join(&scratch.path());
    let impatient = JoinOptions { patience: Duration::from_millis(20), ..options(&scratch.path()) };
    let error = member
        .with_admin_lock(Duration::ZERO, |admin| {
            assert_eq!(admin.membership().slot(), 0);
            assert!(admin.reap().is_empty());
            assert!(matches!(member.reap(), Err(LockError::Busy { .. })));
            Registry::join(&impatient).unwrap_err()
        })
        .unwrap();
    match error {
        JoinError::Lock(LockError::Busy { holder, waited, .. }) => {
            assert_eq!(holder, Some(std::process::id()));
            assert!(waited >= impatient.patience);
        }
        other => panic!("{other}"),
    }
    Registry::join(&impatient).unwrap();
}

#[test]
fn sizes_that_are_none() {
    let scratch = Scratch::new();
    for ring_bytes in [0, 1, 128 << 10, 300_000, 128 << 20] {
        let options = JoinOptions { ring_bytes, ..options(&scratch.path()) };
        assert!(matches!(Registry::join(&options), Err(JoinError::RingSize { .. })));
    }
    // Each receiver chooses its own.
    let small = JoinOptions { ring_bytes: 256 << 10, ..options(&scratch.path()) };
    let small = std::sync::Arc::new(Registry::join(&small).unwrap());
    let mut receiver = ferroce_soft::link::shm::ShmReceiver::new(small.clone()).unwrap();
    let context = Context::join(&scratch.path());
    for round in 0..20_u32 {
        assert!(context.send(small.slot(), 70 << 10, round, |room| room.fill(round as u8)));
        let mut seen = 0;
        receiver.poll(10, &mut |_, tag, bytes| {
            assert_eq!((tag, bytes), (round, &vec![round as u8; 70 << 10][..]));
            seen += 1;
        });
        assert_eq!(seen, 1);
    }
}

/// A peer that writes nonsense loses its own ring; the others do not notice.
#[test]
fn nonsense_in_a_ring() {
    let scratch = Scratch::new();
    let mut context = Context::join(&scratch.path());
    let honest = Context::join(&scratch.path());
    let name = format!("slot-0-{}", context.member.incarnation());
    let segment = std::fs::File::options().write(true).open(scratch.path().join(name)).unwrap();
    let stride = 4096 + (512 << 10);
    // The header of a frame: beyond the ring, of no kind, a skip to itself, a greeting that is too long.
    let headers = [1_u64 << 56 | 600_000, 9 << 56 | 8, 2 << 56, 3 << 56 | 80, u64::MAX];
    for (nth, header) in (1..).zip(headers) {
        let mad = join(&scratch.path());
        let at = 4096 + u64::from(mad.slot()) * stride;
        segment.write_all_at(&header.to_ne_bytes(), at + 4096).unwrap();
        // And it says that there is a ring.
        let slot = mad.slot();
        let mut word = [0; 1];
        segment_read(&scratch, &context.member).read_exact_at(&mut word, 256 + u64::from(slot / 8)).unwrap();
        segment.write_all_at(&[word[0] | 1 << (slot % 8)], 256 + u64::from(slot / 8)).unwrap();
        honest.send(0, 5, 9, |room| room.copy_from_slice(b"still"));
        let mut seen = Vec::new();
        context.receiver.poll_frames(10, |frame| seen.push((frame.slot, frame.bytes.to_vec())));
        assert_eq!(seen, [(honest.member.slot(), b"still".to_vec())]);
        assert_eq!(context.receiver.counters().rings_shut, nth);
        // There is nothing to poll for in a ring that is shut.
        assert!(context.receiver.prepare_sleep());
        context.receiver.cancel_sleep();
        drop(mad);
        // When the mad one is gone, its ring is as new.
        assert_eq!(context.receiver.retire_dead(), 1);
    }
}

/// On a file system of any small size, joining and attaching say that there is no room, and nobody gets SIGBUS.
#[test]
fn no_room() {
    watchdog();
    if let Some((role, directory)) = role() {
        return fill_up(&directory, &role);
    }
    let scratch = Scratch::new();
    let mount = scratch.path();
    std::fs::create_dir(&mount).unwrap();
    // Only an own mount namespace, and for those who are not root an own user namespace, permits to mount.
    let unshare: &[&str] =
        if rustix::process::geteuid().is_root() { &["--mount"] } else { &["--mount", "--map-root-user"] };
    let script = r#"mount -t tmpfs -o size=$1,mode=700 none "$0" && shift && exec "$@""#;
    let inside = |size: &str, run: &Command| {
        let mut command = Command::new("unshare");
        command.args(unshare).args(["sh", "-c", script]).arg(&mount).arg(size);
        command.arg(run.get_program()).args(run.get_args());
        command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.status()
    };
    if !inside("1m", &Command::new("true")).is_ok_and(|status| status.success()) {
        eprintln!("skipped: this system does not permit mounting a file system");
        return;
    }
    let directory = mount.join("ferroce");
    for kib in [4, 8, 16, 32, 64, 72, 76, 80, 84, 88, 92, 100, 128, 512, 600, 700, 1200] {
        let run = command("no_room", &format!("{kib}"), &directory);
        let status = inside(&format!("{kib}k"), &run).unwrap();
        assert!(status.success(), "with {kib} KiB: {status}");
    }
}

/// Takes what there is of a file system of `kib` KiB.
fn fill_up(directory: &Path, kib: &str) {
    let kib: usize = kib.parse().unwrap();
    let mut contexts: Vec<Context> = Vec::new();
    let error = loop {
        match Registry::join(&options(directory)) {
            Ok(member) => {
                let member = std::sync::Arc::new(member);
                contexts.push(Context {
                    sender: ferroce_soft::link::shm::ShmSender::new(member.clone()).unwrap(),
                    receiver: ferroce_soft::link::shm::ShmReceiver::new(member.clone()).unwrap(),
                    member,
                });
            }
            Err(error) => break error,
        }
        // Rings too, as long as there is room.
        let (count, sender) = (contexts.len(), &contexts[0].sender);
        match sender.lane(contexts[count - 1].member.slot()) {
            Ok(_) => {
                let slot = contexts[count - 1].member.slot();
                assert!(contexts[0].send(slot, 1000, 1, |room| room.fill(1)));
                let last = contexts.last_mut().unwrap();
                let mut seen = 0;
                while last.receiver.poll(10, &mut |_, _, bytes| seen += bytes.len()) > 0 {}
                assert_eq!(seen, 1000);
            }
            Err(error) => assert!(matches!(error, AttachError::NoSpace { .. }), "{error}"),
        }
    };
    assert!(matches!(error, JoinError::NoSpace { .. }) || contexts.is_empty(), "{error}");
    assert!(error.to_string().contains("FERROCE_RUNTIME_DIR") || contexts.is_empty(), "{error}");
    let (count, rings) = (contexts.len(), kib / 600);
    // The registry itself takes 76 KiB.
    assert!(kib < 100 || count > 0, "nobody could join in {kib} KiB: {error}");
    assert!(kib < 100 || count < 254);
    // The memory of one who leaves is there for the next.
    if contexts.len() > rings {
        contexts.pop();
        Registry::join(&options(directory)).unwrap();
    }
}
