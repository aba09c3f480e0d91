//! Tests in a network namespace of their own, with a wire to play with.
//!
//! A test starts its own program again inside a namespace, as one of the tests `inside_...`, which do nothing
//! otherwise. Needed are `unshare` (util-linux), `ip` (iproute2) and either root or the permission to create user
//! namespaces; without that permission there is nothing to check and the tests say so.
#![allow(dead_code, unreachable_pub, reason = "not every test needs all of it")]

use std::net::IpAddr;
use std::process::Command;

/// Tells the program which test it is inside.
pub const INSIDE: &str = "FERROCE_TEST_INSIDE";

/// Addresses of the device `here`.
pub const HERE: [&str; 2] = ["10.9.0.1", "fd09::1"];

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.arg("--net");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.arg("--");
    command
}

/// Runs the test `name` of this program in a network namespace of its own.
pub fn in_namespace(name: &str) {
    let allowed = unshare().arg("true").status().is_ok_and(|status| status.success());
    if !allowed {
        eprintln!("no network namespaces for this user: nothing checked");
        return;
    }
    let exe = std::env::current_exe().expect("path");
    let status = unshare()
        .arg(exe)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, name)
        .status()
        .expect("unshare");
    assert!(status.success(), "{name} failed inside, see above");
}

pub fn is_inside(name: &str) -> bool {
    std::env::var(INSIDE).is_ok_and(|inside| inside == name)
}

pub fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().expect("ip of iproute2");
    assert!(status.success(), "ip {args}");
}

pub fn address(text: &str) -> IpAddr {
    text.parse().expect("address")
}

/// The device `here`, which carries the addresses [`HERE`]; the other end of the wire is `there`.
pub fn wire() {
    ip("link set lo up");
    ip("link add here type veth peer name there");
    ip("link set here mtu 9000 up");
    ip("link set there mtu 9000 up");
    ip("address add 10.9.0.1/24 dev here");
    ip("address add fd09::1/64 dev here nodad");
}

/// Index of a network device.
pub fn ifindex(name: &str) -> u32 {
    let path = format!("/proc/thread-self/net/dev_snmp6/{name}");
    let text = std::fs::read_to_string(path).expect("device");
    let index = text.split_ascii_whitespace().nth(1).expect("index");
    index.parse().expect("number")
}
