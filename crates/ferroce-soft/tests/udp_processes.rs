//! Several processes on one port.
//!
//! A test starts this very program again, as the test `child`, which does what its standard input says and
//! reports on its standard output in lines that begin with `@`.

mod udp_common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use ferroce_soft::link::udp::{
    PortOwner, Received, RxBuffers, UdpConfig, UdpDst, UdpOpenError, UdpPort, steering_program,
};
use udp_common::{ephemeral, pattern};

/// Names the port to the child.
const PORT: &str = "FERROCE_TEST_UDP_PORT";
const PATIENCE: Duration = Duration::from_secs(20);

/// Not a test by itself.
#[test]
fn child() {
    let Ok(port) = std::env::var(PORT) else {
        return;
    };
    let config = UdpConfig { port: port.parse().expect("port"), ..UdpConfig::default() };
    let port = match UdpPort::open(&config) {
        Ok(port) => port,
        Err(UdpOpenError::InUse { owner, .. }) => {
            println!("\n@in use {owner:?}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    println!("\n@open {}", port.local_port());
    let (commands, inbox) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let _ = commands.send(line.expect("line"));
        }
    });
    let mut bufs = RxBuffers::default();
    loop {
        let seen = port
            .recv(&mut bufs, 16, &mut |received| match received {
                Received::Probe { index, nonce } => println!("\n@probe {index} {nonce}"),
                Received::Packet { packet, .. } => println!("\n@packet {}", packet[5]),
            })
            .expect("recv");
        match inbox.try_recv() {
            Ok(line) => obey(&port, &line),
            Err(mpsc::TryRecvError::Disconnected) => return,
            Err(mpsc::TryRecvError::Empty) if seen == 0 => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(mpsc::TryRecvError::Empty) => {}
        }
    }
}

fn obey(port: &UdpPort, line: &str) {
    let words: Vec<u64> = line.split(' ').skip(1).map(|w| w.parse().expect("number")).collect();
    match line.split(' ').next() {
        Some("calibrate") => {
            port.attach_steering(&steering_program(&[])).expect("attach");
            for index in 0..words[0] {
                port.send_probe(index as u16, words[1]).expect("probe");
            }
        }
        Some("steer") => {
            let table: Vec<_> = words.chunks(2).map(|e| (e[0] as u8, e[1] as u16)).collect();
            port.attach_steering(&steering_program(&table)).expect("attach");
            println!("\n@steering");
        }
        _ => panic!("{line}"),
    }
}

struct Member {
    slot: u8,
    process: Child,
    reports: Receiver<String>,
}

impl Member {
    fn start(port: u16, slot: u8) -> Self {
        Self::from_command(Command::new(std::env::current_exe().expect("path")), port, slot)
    }

    fn from_command(mut command: Command, port: u16, slot: u8) -> Self {
        let mut process = command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(PORT, port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn");
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, reports) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(report) = line.strip_prefix('@') {
                    let _ = sender.send(report.to_owned());
                }
            }
        });
        Self { slot, process, reports }
    }

    fn say(&mut self, line: &str) {
        let stdin = self.process.stdin.as_mut().expect("piped");
        writeln!(stdin, "{line}").expect("write");
    }

    /// The rest of the next report, which must begin with `what`.
    fn hear(&self, what: &str) -> String {
        let report = self.reports.recv_timeout(PATIENCE).expect("a report");
        let rest = report.strip_prefix(what).unwrap_or_else(|| panic!("{report}, not {what}"));
        rest.trim_start().to_owned()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Lets the members learn their indices and steers by them. Which member has which is the kernel's choice.
fn calibrate(members: &mut [Member], nonce: u64) {
    let count = members.len();
    members[0].say(&format!("calibrate {count} {nonce}"));
    let mut indices = BTreeMap::new();
    for member in &*members {
        let report = member.hear("probe");
        let (index, heard) = report.split_once(' ').expect("two numbers");
        assert_eq!(heard, nonce.to_string());
        indices.insert(index.parse::<usize>().expect("number"), member.slot);
    }
    assert_eq!(indices.keys().copied().collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
    let table: Vec<_> = indices.iter().map(|(index, slot)| format!("{slot} {index}")).collect();
    members[0].say(&format!("steer {}", table.join(" ")));
    members[0].hear("steering");
}

/// Sends packets to every slot, from several addresses, and checks that each comes to its owner.
fn check_steering(members: &[Member], port: u16) {
    const EACH: usize = 20;
    let sources =
        [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::new(127, 1, 2, 3)), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let from: Vec<_> = (0..4).map(|_| ephemeral()).collect();
    for from in &from {
        let mut batch = from.sender().batch();
        for ip in sources {
            let dst = UdpDst { remote: SocketAddr::new(ip, port), local: ip, tos: 0, ttl: 0 };
            for member in members {
                for i in 0..EACH {
                    let mut packet = pattern(i, 24);
                    packet[5] = member.slot;
                    batch.reserve(&dst, 24).copy_from_slice(&packet);
                    batch.commit();
                }
            }
        }
        assert_eq!(batch.flush().lost(), 0);
    }
    for member in members {
        for _ in 0..EACH * sources.len() * from.len() {
            assert_eq!(member.hear("packet"), member.slot.to_string());
        }
    }
}

#[test]
fn packets_reach_the_process_whose_slot_they_name() {
    let first = Member::start(0, 7);
    let port: u16 = first.hear("open").parse().expect("port");
    let mut members = vec![first];
    for slot in [200, 3] {
        let member = Member::start(port, slot);
        assert_eq!(member.hear("open"), port.to_string());
        members.push(member);
    }
    calibrate(&mut members, 1);
    check_steering(&members, port);

    // SIGKILL. The kernel moves the last socket to the place of the first.
    drop(members.remove(0));
    calibrate(&mut members, 2);
    check_steering(&members, port);

    let joins = Member::start(port, 253);
    joins.hear("open");
    members.push(joins);
    calibrate(&mut members, 3);
    check_steering(&members, port);
}

#[test]
fn an_unknown_slot_still_reaches_somebody() {
    let first = Member::start(0, 1);
    let port: u16 = first.hear("open").parse().expect("port");
    let second = Member::start(port, 2);
    second.hear("open");
    let mut members = vec![first, second];
    calibrate(&mut members, 1);
    let from = ephemeral();
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let dst = UdpDst { remote: SocketAddr::new(ip, port), local: ip, tos: 0, ttl: 0 };
    let mut batch = from.sender().batch();
    let mut packet = pattern(0, 24);
    packet[5] = 99;
    batch.reserve(&dst, 24).copy_from_slice(&packet);
    batch.commit();
    assert_eq!(batch.flush().sent, 1);
    let start = std::time::Instant::now();
    let heard = loop {
        if let Some(report) = members.iter().find_map(|member| member.reports.try_recv().ok()) {
            break report;
        }
        assert!(start.elapsed() < PATIENCE, "nobody got it");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(heard, "packet 99");
}

#[test]
fn a_socket_that_does_not_share_is_named() {
    let foreign = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let port = foreign.local_addr().expect("address").port();
    let e = UdpPort::open(&UdpConfig { port, ..UdpConfig::default() }).expect_err("taken");
    let text = e.to_string();
    let UdpOpenError::InUse { port: taken, owner: PortOwner::Process { pid, .. }, .. } = e else {
        panic!("{e:?}");
    };
    assert_eq!((taken, pid), (port, std::process::id()));
    assert!(text.contains(&format!("process {pid}")), "{text}");
}

#[test]
fn an_address_of_another_host_is_refused() {
    for ip in ["192.0.2.77", "2001:db8::77"] {
        let bind = Some(ip.parse().expect("address"));
        let e = UdpPort::open(&UdpConfig { port: 0, bind, ..UdpConfig::default() });
        assert!(matches!(e, Err(UdpOpenError::NotLocal { .. })), "{e:?}");
    }
}

/// Needs root, who alone can become somebody else.
#[test]
fn another_user_is_kept_out_and_told_why() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: cannot run a process of another user");
        return;
    }
    const NOBODY: u32 = 65_534;
    let port = ephemeral();
    // Where this program is others may not look.
    let dir =
        tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir().expect("directory");
    let program = dir.path().join("child");
    // Not by this process, whose other tests fork: a program that somebody has open for writing cannot be run.
    let exe = std::env::current_exe().expect("path");
    let status = Command::new("cp").args([&exe, &program]).status().expect("cp");
    assert!(status.success());
    let mut command = Command::new(&program);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let other = Member::from_command(command, port.local_port(), 0);
    assert_eq!(other.hear("in use"), "User { uid: 0 }");
}
