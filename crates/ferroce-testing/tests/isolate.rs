//! Tests in network namespaces, for every user who may run tests.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

const NOBODY: u32 = 65534;

#[test]
fn a_namespace_has_only_its_loopback_interface() {
    ferroce_testing::isolate();
    let interfaces = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let names: Vec<_> = interfaces.lines().skip(2).filter_map(|line| line.trim().split(':').next()).collect();
    assert_eq!(names, ["lo"]);
    let up = Command::new("ip").args(["-brief", "address", "show", "up"]).output().unwrap();
    assert!(String::from_utf8_lossy(&up.stdout).contains("127.0.0.1/8"), "{up:?}");
}

/// Root plays another user, who runs the test above.
#[test]
fn whoever_is_not_root_has_one_too() {
    if std::fs::read_to_string("/proc/self/uid_map").unwrap().split_whitespace().ne(["0", "0", "4294967295"]) {
        return;
    }
    let as_nobody = |program: &std::path::Path| {
        let mut command = Command::new(program);
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    let allowed = as_nobody("unshare".as_ref()).args(["--user", "--net", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this system permits no user namespaces");
        return;
    }
    // Where the program is, others may not go.
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let run = as_nobody(&program)
        .current_dir("/")
        .args(["--exact", "a_namespace_has_only_its_loopback_interface"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}
