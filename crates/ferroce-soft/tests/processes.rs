//! Processes on one address, some of which are killed at random moments: those that live on must not notice.
//!
//! The test binary starts itself again as its workers. Two of them, the survivors, exchange checked messages from beginning to end;
//! round after round two others, the victims, are started, connected to each other and killed, one or both, anywhere from
//! before they joined to the middle of their traffic. The first context of the machine is a victim too.

use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Context, Cq, Gid, Mr, Mtu, Qp, QpAttr, QpInitAttr, QpType, RecvWr, SendOp, SendWr, WcStatus,
    WorkCompletion,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ROLE: &str = "FERROCE_TEST_WORKER";
const BUFFER: usize = 1 << 15;
/// A hang becomes a failure after this.
const PATIENCE: Duration = Duration::from_secs(60);

// ---- the worker ----

struct Worker {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

/// The length and content of message `number`, the same at both ends.
fn message(number: u64) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(number);
    let len = rng.random_range(0..BUFFER);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes[..]);
    bytes
}

impl Worker {
    fn post_recv(&self) {
        self.qp.post_recv(&[RecvWr::new(1, &[self.mr.sge(..BUFFER).unwrap()])]).unwrap();
    }

    fn send(&self, number: u64) {
        let bytes = message(number);
        self.mr.write(BUFFER, &bytes).unwrap();
        let sge = [self.mr.sge(BUFFER..BUFFER + bytes.len()).unwrap()];
        self.qp.post_send(&[SendWr::new(2, SendOp::SendImm(number as u32), &sge)]).unwrap();
    }

    /// Exchanges messages until the one whose number `stop` says; `Err` when the peer is gone.
    fn run(&self, stop: &AtomicU64) -> Result<u64, WcStatus> {
        // The peer may be one message ahead: it has ours, and we wait for the acknowledgement.
        let (mut sent_done, mut received) = (true, 0);
        let mut number = 0;
        let mut asked = false;
        let mut last = Instant::now();
        loop {
            if sent_done && received >= number {
                if number >= stop.load(Ordering::Relaxed) {
                    return Ok(number);
                }
                if number % 64 == 0 {
                    println!("progress {number}");
                }
                number += 1;
                sent_done = false;
                self.send(number);
                last = Instant::now();
            }
            let mut wcs = [WorkCompletion::default(); 4];
            let count = self.cq.poll(&mut wcs).unwrap();
            for wc in &wcs[..count] {
                if !wc.is_ok() {
                    return Err(wc.status);
                }
                match wc.wr_id {
                    2 => sent_done = true,
                    3 => asked = false,
                    _ => {}
                }
                if wc.wr_id != 1 {
                    continue;
                }
                received += 1;
                let expected = message(received);
                let mut bytes = vec![0; wc.byte_len as usize];
                self.mr.read(0, &mut bytes).unwrap();
                assert_eq!(wc.imm_data(), Some(received as u32));
                assert!(bytes == expected, "message {received} is not what was sent");
                self.post_recv();
            }
            if count == 0 {
                // A peer that died silently is noticed by who has something outstanding: an empty write asks.
                if sent_done && !asked && last.elapsed() > Duration::from_millis(20) {
                    asked = true;
                    let op = SendOp::Write { remote_addr: 0, rkey: 0 };
                    self.qp.post_send(&[SendWr::new(3, op, &[])]).unwrap();
                }
                if last.elapsed() > PATIENCE {
                    let counters = self.context.counters().into_iter().filter(|(_, value)| *value != 0);
                    let counters: Vec<_> = counters.collect();
                    panic!("message {number} hangs; sent {sent_done}, received {received}; {counters:?}");
                }
                std::thread::yield_now();
            }
        }
    }
}

fn worker(role: &str) {
    let link = if role == "udp" { LinkMode::Udp } else { LinkMode::Auto };
    let context = SoftDevice::new(SoftConfig { link, ..SoftConfig::default() }).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None).unwrap();
    let qp = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq)).unwrap();
    let mr = pd.alloc_mr(2 * BUFFER, Access::ALL).unwrap();
    let gid = context.find_gid(1, "127.0.0.1".parse().unwrap()).unwrap();
    let worker = Worker { context, cq, qp, mr };
    worker.qp.modify(&QpAttr::init(Access::ALL)).unwrap();
    worker.post_recv();
    println!("qpn {}", worker.qp.qp_num());

    let mut lines = BufReader::new(std::io::stdin()).lines();
    let peer: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    let dgid = Gid::from(std::net::Ipv4Addr::LOCALHOST);
    let rtr = QpAttr::rtr(AhAttr::roce(dgid, gid.index), Mtu::Mtu1024, peer, 0xff_ff00);
    worker.qp.modify(&QpAttr { min_rnr_timer: Some(1), ..rtr }).unwrap();
    // 4 ms: a victim's partner is to notice soon. The survivors must live with stalls of a loaded machine.
    let timeout = if role == "victim" { 10 } else { 16 };
    worker.qp.modify(&QpAttr { timeout: Some(timeout), ..QpAttr::rts(0xff_ff00) }).unwrap();

    let stop = Arc::new(AtomicU64::new(u64::MAX));
    let told = stop.clone();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            told.store(line.parse().unwrap(), Ordering::Relaxed);
        }
    });
    match worker.run(&stop) {
        Ok(number) => println!("done {number}"),
        Err(status) if role == "victim" && matches!(status, WcStatus::RetryExcErr | WcStatus::WrFlushErr) => {
            println!("gone");
        }
        Err(status) => panic!("{role}: {status}"),
    }
    // The peer may still wait for an acknowledgement of its last message.
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        let _ = worker.cq.poll(&mut []);
        std::thread::sleep(Duration::from_millis(1));
    }
}

// ---- the one that starts and kills ----

struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: std::sync::mpsc::Receiver<String>,
    progress: Arc<AtomicU64>,
}

impl Process {
    fn start(role: &str, directory: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed_processes_hurt_nobody_else", "--nocapture"])
            .env(ROLE, role)
            .env("FERROCE_RUNTIME_DIR", directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let progress = Arc::new(AtomicU64::new(0));
        let (tell, lines) = std::sync::mpsc::channel();
        let seen = progress.clone();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(number) = line.strip_prefix("progress ") {
                    seen.store(number.parse().unwrap(), Ordering::Relaxed);
                } else if tell.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, stdin, lines, progress }
    }

    /// The rest of the next line that begins with `word`; `None` if the process ended before that.
    fn expect(&self, word: &str) -> Option<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    // The test harness prefixes the first line of a test with its name.
                    if let Some(at) = line.find(word) {
                        return Some(line[at + word.len()..].trim().to_owned());
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("no {word:?} from a worker"),
            }
        }
    }

    fn tell(&mut self, line: &str) {
        // A victim may be dead already.
        let _ = writeln!(self.stdin, "{line}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn finish(mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "a worker failed: {status}");
                return;
            }
            assert!(Instant::now() < deadline, "a worker does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn introduce(a: &mut Process, b: &mut Process) -> bool {
    let (Some(qpn_a), Some(qpn_b)) = (a.expect("qpn"), b.expect("qpn")) else { return false };
    a.tell(&qpn_b);
    b.tell(&qpn_a);
    true
}

#[test]
fn killed_processes_hurt_nobody_else() {
    if let Ok(role) = std::env::var(ROLE) {
        return worker(&role);
    }
    ferroce_testing::isolate();
    let rounds: u32 = std::env::var("FERROCE_TEST_ROUNDS").map_or(100, |rounds| rounds.parse().unwrap());
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let directory = tempfile::Builder::new().prefix("ferroce-test-").tempdir_in("/dev/shm").unwrap();
    let directory = directory.path().join("run");
    // The first of all contexts is a victim, so that no survivor has a place of honour.
    let mut first = Some(Process::start("victim", &directory));
    first.as_ref().unwrap().expect("qpn").unwrap();
    let mut survivors = Vec::new();
    for role in ["udp", "shm"] {
        let (mut a, mut b) = (Process::start(role, &directory), Process::start(role, &directory));
        assert!(introduce(&mut a, &mut b));
        survivors.extend([a, b]);
    }
    for round in 0..rounds {
        let before: Vec<u64> = survivors.iter().map(|process| process.progress.load(Ordering::Relaxed)).collect();
        let (mut a, mut b) = (Process::start("victim", &directory), Process::start("victim", &directory));
        let connected = rng.random_bool(0.7) && introduce(&mut a, &mut b);
        std::thread::sleep(Duration::from_micros(rng.random_range(0..20_000)));
        if let Some(first) = first.take() {
            first.kill();
        }
        a.kill();
        if connected && rng.random_bool(0.5) {
            b.expect("gone").expect("the partner of a killed process says that it is gone");
            b.finish();
        } else {
            b.kill();
        }
        // Every survivor got on since this round began.
        let deadline = Instant::now() + PATIENCE;
        for (process, before) in survivors.iter_mut().zip(before) {
            while process.progress.load(Ordering::Relaxed) == before {
                assert!(process.child.try_wait().unwrap().is_none(), "a survivor ended in round {round}");
                assert!(Instant::now() < deadline, "a survivor stands still in round {round}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    // Both ends of a pair stop at the same message, one that neither has reached.
    let last = survivors.iter().map(|process| process.progress.load(Ordering::Relaxed)).max().unwrap() + 5000;
    for process in &mut survivors {
        process.tell(&last.to_string());
    }
    for process in survivors {
        process.finish();
    }
    // Whoever joins next clears away what the killed ones left.
    let context = SoftDevice::new(SoftConfig { runtime_dir: Some(directory.clone()), ..SoftConfig::default() });
    drop(context.open().unwrap());
    let live = ferroce_soft::host::Registry::list(Some(&directory)).unwrap();
    assert!(live.len() <= 1, "slots were not reclaimed: {live:?}");
    let files =
        std::fs::read_dir(&directory).unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let segments: Vec<String> = files.filter(|name| name.starts_with("slot-")).collect();
    assert!(segments.len() <= 2, "files were not reclaimed: {segments:?}");
}
