//! What many connected queue pairs cost: memory, and the time of a post.
//!
//! ```text
//! cargo run --release -p ferroce-soft --example many_qps memory QPS
//! cargo run --release -p ferroce-soft --example many_qps post QPS SECONDS
//! ```
//!
//! Two contexts of one process have `QPS` RC queue pairs each, connected over shared memory in pairs, and every queue pair has
//! sent and received one message. The result is one JSON document.
//!
//! `memory` runs twice, with rings of 16 and of 32 work requests each way, as processes of their own. The difference is what
//! 16 more cost, so that what is left at 16 without them is the memory of a queue pair "beyond the rings asked for". It is
//! told as the growth of the resident set and as what was asked of the allocator; `bytes_per_qp` is the greater one.
//!
//! `post` measures posting an 8-byte RDMA write and polling for its completion, both ends in one thread, in that thread's
//! processor time, the median of many samples: on 8 queue pairs in turn, and on all of them in turn.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Context, Cq, Mr, Mtu, Pd, Qp, QpAttr, QpCap, QpInitAttr, QpType, RecvWr, SendFlags, SendOp, SendWr,
    WorkCompletion,
};

/// Bytes that are allocated now.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is passed on to the system's allocator as it came; the counter is of no influence.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller got `ptr` from `alloc` above with this layout, so the system's allocator made it.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["memory", qps] => memory(number(qps)),
        ["grown", qps, ring] => grown(number(qps), number(ring) as u32),
        ["post", qps, seconds] => {
            post(number(qps), Duration::from_secs_f64(seconds.parse().expect("seconds")));
        }
        _ => panic!("say `memory QPS` or `post QPS SECONDS`"),
    }
}

fn number(text: &str) -> usize {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// A hang becomes a failure after this.
const PATIENCE: Duration = Duration::from_secs(20);

struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
    gid_index: u32,
}

impl End {
    fn open() -> Self {
        let config = SoftConfig { link: LinkMode::Shm, ..SoftConfig::default() };
        let context = SoftDevice::new(config).open().expect("a device");
        let gid_index = context.find_gid(1, "127.0.0.1".parse().expect("an address")).expect("a GID").index;
        let pd = context.alloc_pd().expect("a PD");
        let mr = pd.alloc_mr(4096, Access::ALL).expect("an MR");
        let cq = context.create_cq(1024, None).expect("a CQ");
        Self { context, pd, cq, mr, qps: Vec::new(), gid_index }
    }

    fn create(&mut self, count: usize, ring: u32) {
        let cap = QpCap { max_send_wr: ring, max_recv_wr: ring, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let attr = QpInitAttr { cap, ..QpInitAttr::new(QpType::Rc, &self.cq) };
        for _ in 0..count {
            let qp = self.pd.create_qp(&attr).expect("a queue pair");
            qp.modify(&QpAttr::init(Access::ALL)).expect("INIT");
            self.qps.push(qp);
        }
    }

    fn connect(&self, peer: &Self) {
        let gid = peer.context.query_gid(1, peer.gid_index).expect("a GID").gid;
        for (qp, remote) in self.qps.iter().zip(&peer.qps) {
            let ah = AhAttr::roce(gid, self.gid_index);
            qp.modify(&QpAttr::rtr(ah, Mtu::Mtu1024, remote.qp_num(), 0)).expect("RTR");
            qp.modify(&QpAttr::rts(0)).expect("RTS");
        }
    }
}

/// Both ends of `count` connections, of which each has been used once each way.
struct Pair {
    a: End,
    b: End,
}

impl Pair {
    fn open() -> Self {
        Self { a: End::open(), b: End::open() }
    }

    fn connect(&mut self, count: usize, ring: u32) {
        self.a.create(count, ring);
        self.b.create(count, ring);
        self.a.connect(&self.b);
        self.b.connect(&self.a);
        for (from, to) in [(&self.a, &self.b), (&self.b, &self.a)] {
            for (sender, receiver) in from.qps.iter().zip(&to.qps) {
                let (own, peers) = ([from.mr.sge(..8).expect("8 bytes")], [to.mr.sge(..8).expect("8 bytes")]);
                receiver.post_recv(&[RecvWr::new(0, &peers)]).expect("post");
                sender.post_send(&[SendWr::new(0, SendOp::Send, &own)]).expect("post");
                take(&to.cq, &from.cq);
                take(&from.cq, &to.cq);
            }
        }
    }
}

/// Waits for one completion of `cq`, while `other` makes progress too.
fn take(cq: &Cq, other: &Cq) {
    let mut wcs = [WorkCompletion::default()];
    let mut start = None;
    while cq.poll(&mut wcs).expect("poll") == 0 {
        other.poll(&mut []).expect("poll");
        assert!(start.get_or_insert_with(Instant::now).elapsed() < PATIENCE, "no completion");
    }
    assert!(wcs[0].is_ok(), "{:?}", wcs[0]);
}

/// Bytes of the resident set.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = number(statm.split_whitespace().nth(1).expect("the second field"));
    pages * rustix::param::page_size()
}

/// Prints by how many bytes the resident set and the heap grow with `2 * qps` queue pairs.
fn grown(qps: usize, ring: u32) {
    let mut pair = Pair::open();
    for end in [&mut pair.a, &mut pair.b] {
        end.qps.reserve(qps);
    }
    let before = (resident(), ALLOCATED.load(Ordering::Relaxed));
    pair.connect(qps, ring);
    let after = (resident(), ALLOCATED.load(Ordering::Relaxed));
    println!("{} {}", after.0 - before.0, after.1 - before.1);
}

fn memory(qps: usize) {
    const RING: u32 = 16;
    let grown = |ring: u32| {
        let program = std::env::current_exe().expect("this program");
        let output =
            Command::new(program).args(["grown", &qps.to_string(), &ring.to_string()]).output().expect("a child");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("numbers");
        let numbers: Vec<f64> = text.split_whitespace().map(|word| number(word) as f64 / (2 * qps) as f64).collect();
        (numbers[0], numbers[1])
    };
    let (small, large) = (grown(RING), grown(2 * RING));
    let beyond = |small: f64, large: f64| (2.0 * small - large).round();
    let (resident, heap) = (beyond(small.0, large.0), beyond(small.1, large.1));
    println!(
        "{{\"qps\":{qps},\"bytes_per_qp\":{},\"resident_bytes_per_qp\":{resident},\"heap_bytes_per_qp\":{heap},\
         \"heap_bytes_with_rings_of_{RING}\":{}}}",
        resident.max(heap),
        small.1.round()
    );
}

fn post(qps: usize, time: Duration) {
    let mut pair = Pair::open();
    pair.connect(qps, 16);
    let few: Vec<&Qp> = pair.a.qps.iter().step_by((qps / 8).max(1)).take(8).collect();
    let all: Vec<&Qp> = pair.a.qps.iter().collect();
    let (few, all) = (cost(&pair, &few, time), cost(&pair, &all, time));
    println!("{{\"qps\":{qps},\"ns_per_post\":{few:.1},\"ns_per_post_on_all\":{all:.1}}}");
}

/// Processor time in ns of a post and its completion, on `qps` in turn.
fn cost(pair: &Pair, qps: &[&Qp], time: Duration) -> f64 {
    const SAMPLE: u32 = 256;
    let sges = [pair.a.mr.sge(..8).expect("8 bytes")];
    let op = SendOp::Write { remote_addr: pair.b.mr.addr(), rkey: pair.b.mr.rkey() };
    let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(0, op, &sges) };
    let mut next = qps.iter().cycle();
    let mut samples = Vec::new();
    let end = Instant::now() + time;
    // The first sample warms up.
    while samples.len() < 2 || Instant::now() < end {
        let start = processor_time();
        for _ in 0..SAMPLE {
            let qp = next.next().expect("a queue pair");
            qp.post_send(&[wr]).expect("post");
            pair.b.cq.poll(&mut []).expect("poll");
            take(&pair.a.cq, &pair.b.cq);
        }
        samples.push((processor_time() - start) / f64::from(SAMPLE));
    }
    samples.remove(0);
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Of this thread, in ns.
fn processor_time() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}
