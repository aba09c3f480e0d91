//! A port whose addresses and interfaces come and go while a context is open.

#[path = "udp_common/namespace.rs"]
mod namespace;

use ferroce_soft::{SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{AsyncEvent, Context, EventType, Gid, PortState, Qp, QpInitAttr, QpType};
use namespace::{address, ifindex, in_namespace, ip, is_inside, wire};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A context in a network namespace of its own, which holds its registry.
fn open() -> Context {
    ferroce_testing::isolate();
    SoftDevice::new(SoftConfig::default()).open().unwrap()
}

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn wait_event(context: &Context, wanted: EventType) {
    wait(
        &format!("{wanted:?}"),
        || matches!(context.next_async_event().unwrap(), Some(AsyncEvent::Port(kind, 1)) if kind == wanted),
    );
}

/// A program that waits for a port to come back is told, and what it is told agrees with what it can ask.
#[test]
fn a_port_without_addresses_is_down() {
    let context = open();
    let state = || context.query_port(1).unwrap().state;
    assert_eq!(state(), PortState::Active);
    ip("link set lo down");
    wait_event(&context, EventType::PortErr);
    assert_eq!(state(), PortState::Down);
    ip("link set lo up");
    wait_event(&context, EventType::PortActive);
    assert_eq!(state(), PortState::Active);
}

/// While a process has no descriptor left its addresses cannot be read; they are once it has.
#[test]
fn a_change_that_could_not_be_read_is_read_later() {
    // In a process of its own, for the limit is the process's.
    in_namespace("inside_without_descriptors");
}

#[test]
fn inside_without_descriptors() {
    if !is_inside("inside_without_descriptors") {
        return;
    }
    let context = open();
    let mut shell = Command::new("sh")
        .args(["-c", "read _; ip address add 127.0.0.2/8 dev lo"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
    writeln!(shell.stdin.take().unwrap()).unwrap();
    assert!(shell.wait().unwrap().success());
    std::thread::sleep(Duration::from_millis(100));
    setrlimit(Resource::Nofile, before).unwrap();
    wait("127.0.0.2", || context.find_gid(1, address("127.0.0.2")).is_ok());
}

fn datagrams(context: &Context) -> Qp {
    let cq = context.create_cq(4, None).unwrap();
    context.alloc_pd().unwrap().create_qp(&QpInitAttr::new(QpType::Ud, &cq)).unwrap()
}

/// The groups that the kernel knows sockets to have joined on an interface.
fn joined(interface: &str, group: IpAddr) -> bool {
    let out = Command::new("ip").args(["maddress", "show", "dev", interface]).output().expect("ip");
    String::from_utf8_lossy(&out.stdout).split_whitespace().any(|word| word == group.to_string())
}

/// A group is joined on interfaces that come later, and left on those whose address has gone.
#[test]
fn groups_follow_the_interfaces() {
    let context = open();
    let group = address("239.7.7.7");
    let gid = Gid::from(group);
    let (first, second) = (datagrams(&context), datagrams(&context));
    first.attach_mcast(gid).unwrap();
    second.attach_mcast(gid).unwrap();
    wire();
    wait("the group on the new interface", || joined("here", group));
    assert!(ifindex("here") > 1);
    first.detach_mcast(gid).unwrap();
    assert!(joined("here", group) && joined("lo", group), "a member is left");
    ip("address flush dev here");
    wait("the end of the address", || context.find_gid(1, address("10.9.0.1")).is_err());
    drop(second);
    assert!(!joined("here", group) && !joined("lo", group), "nobody is in it");
    // What was not left could not be joined again.
    ip("address add 10.9.0.1/24 dev here");
    wait("the address", || context.find_gid(1, address("10.9.0.1")).is_ok());
    first.attach_mcast(gid).unwrap();
    assert!(joined("here", group) && joined("lo", group));
}

/// One comes while another leaves: whichever is first, the one that came is in.
#[test]
fn a_group_is_joined_while_another_member_leaves() {
    const ROUNDS: u32 = 20_000;
    let context = open();
    let group = address("239.7.7.8");
    let gid = Gid::from(group);
    let (first, second) = (datagrams(&context), datagrams(&context));
    second.attach_mcast(gid).unwrap();
    // What `ip maddress` reads, in a fraction of its time: the group as the kernel has it in memory.
    let in_group = || std::fs::read_to_string("/proc/thread-self/net/igmp").unwrap().contains("080707EF");
    let turn = Barrier::new(2);
    let (mut lost, refused) = (0, AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let comes = if round % 2 == 0 { &first } else { &second };
                turn.wait();
                // Counted rather than unwrapped: a thread that ends early would leave the other one waiting.
                refused.fetch_add(u32::from(comes.attach_mcast(gid).is_err()), Ordering::Relaxed);
                turn.wait();
            }
        });
        for round in 0..ROUNDS {
            let leaves = if round % 2 == 0 { &second } else { &first };
            turn.wait();
            refused.fetch_add(u32::from(leaves.detach_mcast(gid).is_err()), Ordering::Relaxed);
            turn.wait();
            lost += u32::from(!in_group());
        }
    });
    assert_eq!((lost, refused.into_inner()), (0, 0), "of {ROUNDS} times");
}
