//! What a process has sent when it ends, and what it has captured, is not lost: neither if it closes its context nor if it just ends.
//!
//! The test binary starts itself again as the process that ends. (A message was lost whose work request was complete, when the socket had no
//! room for the end of it.)

use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_testing::tshark::{number, tshark};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Context, Cq, Mr, Mtu, Qp, QpAttr, QpInitAttr, QpType, RecvWr, SendOp, SendWr, WorkCompletion,
};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const ROLE: &str = "FERROCE_TEST_SENDER";
/// Bytes of a message, less than leave at a time.
const LEN: usize = 50_000;
/// Receives that are posted.
const RECEIVES: usize = 64;
/// A hang becomes a failure after this.
const PATIENCE: Duration = Duration::from_secs(60);

struct End {
    mr: Mr,
    qp: Qp,
    cq: Cq,
    gid_index: u32,
    context: Context,
}

impl End {
    fn open(link: &str, runtime_dir: Option<PathBuf>, capture: Option<PathBuf>) -> Self {
        let link = if link == "udp" { LinkMode::Udp } else { LinkMode::Auto };
        let config = SoftConfig { link, runtime_dir, capture, ..SoftConfig::default() };
        let context = SoftDevice::new(config).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, None).unwrap();
        let qp = pd.create_qp(&QpInitAttr::new(QpType::Uc, &cq)).unwrap();
        qp.modify(&QpAttr::init(Access::empty())).unwrap();
        let gid_index = context.find_gid(1, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap().index;
        Self { mr: pd.alloc_mr(RECEIVES * LEN, Access::LOCAL_WRITE).unwrap(), qp, cq, gid_index, context }
    }

    fn connect(&self, peer_qpn: u32) {
        let peer = self.context.query_gid(1, self.gid_index).unwrap().gid;
        let address = AhAttr::roce(peer, self.gid_index);
        self.qp.modify(&QpAttr::rtr_uc(address, Mtu::Mtu1024, peer_qpn, 0)).unwrap();
        self.qp.modify(&QpAttr::rts_unreliable(0)).unwrap();
    }

    fn post_recv(&self, slot: usize) {
        let sge = [self.mr.sge(slot * LEN..(slot + 1) * LEN).unwrap()];
        self.qp.post_recv(&[RecvWr::new(slot as u64, &sge)]).unwrap();
    }

    fn completion(&self) -> Option<WorkCompletion> {
        let mut wc = [WorkCompletion::default()];
        (self.cq.poll(&mut wc).unwrap() == 1).then(|| {
            assert!(wc[0].is_ok(), "{wc:?}");
            wc[0]
        })
    }

    fn counter(&self, wanted: &str) -> u64 {
        self.context.counters().into_iter().find(|(name, _)| *name == wanted).unwrap().1
    }
}

fn message(number: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at / 7) as u8 ^ (at >> 11) as u8 ^ number as u8).collect()
}

/// Sends messages, and ends as soon as one is complete that has to wait for room in the socket, or after `most`. Says how many it sent.
fn sender(role: &str) -> ! {
    let words: Vec<&str> = role.split(' ').collect();
    let [how, link, qpn, most, capture] = words[..] else { panic!("{role}") };
    let end = End::open(link, None, Some(capture.into()).filter(|path: &PathBuf| !path.as_os_str().is_empty()));
    end.connect(qpn.parse().unwrap());
    println!("qpn {}", end.qp.qp_num());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let mut sent = 0;
    while sent < most.parse().unwrap() && end.counter("udp_tx_waited") == 0 {
        end.mr.write(0, &message(sent)).unwrap();
        end.qp.post_send(&[SendWr::new(1, SendOp::Send, &[end.mr.sge(..LEN).unwrap()])]).unwrap();
        while end.completion().is_none() {
            std::thread::yield_now();
        }
        sent += 1;
    }
    println!("sent {sent}");
    match how {
        "closes" => drop(end),
        _ => std::mem::forget(end),
    }
    std::process::exit(0);
}

/// Keeps this thread, what it starts, and the timer by which the slow device goes on, on one processor: what two take out of the device at
/// a time the kernel may take in in another order.
fn stay_on_one_processor() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).unwrap();
}

/// The number that a sender says after `word`. The test harness may begin the line.
fn said(word: &str, output: &mut impl BufRead) -> usize {
    loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "no {word:?} from the sender");
        if let Some((_, number)) = line.trim_end().split_once(&format!("{word} ")) {
            return number.parse().unwrap();
        }
    }
}

/// Has a process send messages through a slow device and end; all must come whole.
fn sent_by_one_that(how: &str, test: &str, link: &str, most: usize, capture: &str) {
    if let Ok(role) = std::env::var(ROLE) {
        sender(&role);
    }
    // One at a time: they share a processor, and who does not run loses packets.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    ferroce_testing::isolate();
    stay_on_one_processor();
    // Unreliable as the connection is, nothing may be lost at the receiver, should it not run for a while: what its buffer holds comes in a
    // fifth of a second.
    let buffer: u64 = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap().trim().parse().unwrap();
    let rate = 5 * buffer.min(16 << 20);
    let tc = format!("qdisc add dev lo root tbf rate {rate}bps burst 64kb limit 64mb");
    assert!(Command::new("tc").args(tc.split(' ')).status().expect("tc, from the package iproute2").success());
    let directory = tempfile::Builder::new().prefix("ferroce-test-").tempdir_in("/dev/shm").unwrap();
    let directory = directory.path().join("run");
    let end = End::open(link, Some(directory.clone()), None);
    (0..RECEIVES).for_each(|slot| end.post_recv(slot));
    let mut sender = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, format!("{how} {link} {} {most} {capture}", end.qp.qp_num()))
        .env("FERROCE_RUNTIME_DIR", &directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(sender.stdout.take().unwrap());
    end.connect(said("qpn", &mut output) as u32);
    drop(sender.stdin.take());
    let (mut sent, mut received) = (None, 0);
    let deadline = Instant::now() + PATIENCE;
    while sent != Some(received) {
        if let Some(wc) = end.completion() {
            let slot = wc.wr_id as usize;
            let mut bytes = vec![0; LEN];
            end.mr.read(slot * LEN, &mut bytes).unwrap();
            assert!(wc.byte_len as usize == LEN && bytes == message(received), "message {received}");
            received += 1;
            end.post_recv(slot);
        } else if sent.is_none()
            && let Some(status) = sender.try_wait().unwrap()
        {
            assert!(status.success(), "{status}");
            sent = Some(said("sent", &mut output));
        } else if Instant::now() < deadline {
            std::thread::yield_now();
        } else {
            let counters: Vec<_> = end.context.counters().into_iter().filter(|(_, value)| *value != 0).collect();
            panic!("{received} messages came, sent {sent:?}; {counters:?}");
        }
    }
    sender.wait().unwrap();
    assert!(sent.unwrap() == most || most == usize::MAX, "{sent:?}");
}

#[test]
fn messages_of_a_process_that_closes_its_context_and_ends_arrive() {
    let test = "messages_of_a_process_that_closes_its_context_and_ends_arrive";
    sent_by_one_that("closes", test, "udp", usize::MAX, "");
}

#[test]
fn messages_of_a_process_that_just_ends_arrive() {
    sent_by_one_that("ends", "messages_of_a_process_that_just_ends_arrive", "udp", usize::MAX, "");
}

#[test]
fn messages_in_shared_memory_outlive_the_process_that_closes_its_context_and_ends() {
    let test = "messages_in_shared_memory_outlive_the_process_that_closes_its_context_and_ends";
    sent_by_one_that("closes", test, "shm", 100, "");
}

#[test]
fn messages_in_shared_memory_outlive_the_process_that_just_ends() {
    sent_by_one_that("ends", "messages_in_shared_memory_outlive_the_process_that_just_ends", "shm", 100, "");
}

#[test]
fn what_a_process_has_captured_when_it_just_ends_is_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    sent_by_one_that("ends", "what_a_process_has_captured_when_it_just_ends_is_written", "udp", 2, path);
    let packets = tshark(&std::fs::read(path).unwrap(), &["infiniband.bth.opcode"]);
    let opcodes: Vec<_> = packets.iter().map(|packet| number(packet, false)).collect();
    // UC SEND FIRST, MIDDLE and LAST (IBTA 9.2.1): 49 packets each.
    let mut message = vec![Some(0x21); LEN.div_ceil(1024)];
    (message[0], *message.last_mut().unwrap()) = (Some(0x20), Some(0x22));
    assert_eq!(opcodes, message.repeat(2));
}
