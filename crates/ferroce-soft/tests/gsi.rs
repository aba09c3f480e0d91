//! Queue pair 1: management datagrams find the context that they are for, whoever of the host receives them.

use ferroce_soft::host::Registry;
use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Ah, AhAttr, Context, Error, Gid, Gsi, MAD_LEN, MadHandler, MadOrigin, Pd, ServiceBinding};
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Mailbox {
    mads: Mutex<Vec<(MadOrigin, [u8; MAD_LEN])>>,
    expired: AtomicU32,
}

impl MadHandler for Mailbox {
    fn receive(&self, origin: &MadOrigin, mad: &[u8; MAD_LEN]) {
        self.mads.lock().unwrap().push((*origin, *mad));
    }

    fn expired(&self) {
        self.expired.fetch_add(1, Ordering::SeqCst);
    }
}

struct Agent {
    gsi: Gsi,
    mailbox: Arc<Mailbox>,
    ip: IpAddr,
    pd: Pd,
    gid_index: u32,
    /// The device runs when it is polled.
    cq: ferroce_verbs::Cq,
}

impl Agent {
    fn new(context: &Context, ip: &str) -> Self {
        let gsi = context.gsi().expect("the software device gives queue pair 1 away");
        let mailbox = Arc::new(Mailbox::default());
        let handler: Arc<dyn MadHandler> = mailbox.clone();
        gsi.set_handler(Arc::downgrade(&handler)).unwrap();
        let ip: IpAddr = ip.parse().unwrap();
        let pd = context.alloc_pd().unwrap();
        let gid_index = context.find_gid(1, ip).unwrap().index;
        Self { gsi, mailbox, ip, pd, gid_index, cq: context.create_cq(1, None).unwrap() }
    }

    fn to(&self, peer: &Self) -> Ah {
        self.pd.create_ah(&AhAttr::roce(Gid::from(peer.ip), self.gid_index)).unwrap()
    }

    fn taken(&self) -> Vec<[u8; MAD_LEN]> {
        self.cq.poll(&mut []).unwrap();
        std::mem::take(&mut *self.mailbox.mads.lock().unwrap()).into_iter().map(|(_, mad)| mad).collect()
    }
}

fn mad(attribute: u8, data: &[(usize, &[u8])]) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = attribute;
    for (at, bytes) in data {
        mad[24 + at..][..bytes.len()].copy_from_slice(bytes);
    }
    mad
}

const REQ: u8 = 0x10;
const REJ: u8 = 0x12;
const REP: u8 = 0x13;

fn request(service: u64) -> [u8; MAD_LEN] {
    mad(REQ, &[(8, &service.to_be_bytes())])
}

/// Waits until `agent` has `count` MADs, and lets `others` run and looks that they have none.
fn expect(agent: &Agent, count: usize, others: &[&Agent]) -> Vec<[u8; MAD_LEN]> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(agent.taken());
        for other in others {
            assert_eq!(other.taken(), [[0; MAD_LEN]; 0], "it is not for this one");
        }
        assert!(Instant::now() < deadline, "{} of {count} came", all.len());
    }
    all
}

fn services_and_ids(a: &Agent, b: &Agent, c: &Agent) {
    let any = |service_id| ServiceBinding { service_id, local: None };
    b.gsi.bind_service(any(77)).unwrap();
    c.gsi.bind_service(any(78)).unwrap();
    assert!(matches!(c.gsi.bind_service(any(77)), Err(Error::InUse { .. })));
    for (service, owner, other) in [(77, b, c), (78, c, b)] {
        a.gsi.send(&a.to(owner), &request(service)).unwrap();
        assert_eq!(expect(owner, 1, &[a, other]), [request(service)]);
    }
    let from = &b.mailbox;
    assert!(from.mads.lock().unwrap().is_empty());
    // An answer names its receiver by the top byte of the communication id.
    for (owner, other) in [(b, c), (c, b)] {
        let answer = mad(REP, &[(4, &[owner.gsi.comm_id_prefix(), 1, 2, 3])]);
        a.gsi.send(&a.to(owner), &answer).unwrap();
        assert_eq!(expect(owner, 1, &[a, other]), [answer]);
    }
    // Who gave up before it knew an id names nobody.
    let gave_up = mad(REJ, &[(0, &[1; 4])]);
    a.gsi.send(&a.to(b), &gave_up).unwrap();
    assert_eq!(expect(b, 1, &[]), [gave_up]);
    assert_eq!(expect(c, 1, &[]), [gave_up]);
    if a.ip == b.ip {
        assert_eq!(expect(a, 1, &[]), [gave_up]);
    }
    // A service, or an id, that nobody has goes to one of them, who can say so.
    b.gsi.release_service(any(77));
    const NOBODY: u8 = 200;
    for to_nobody in [request(77), mad(REP, &[(4, &[NOBODY, 1, 2, 3])])] {
        a.gsi.send(&a.to(b), &to_nobody).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut all = Vec::new();
        while all.is_empty() {
            all.extend([a, b, c].iter().flat_map(|agent| agent.taken()));
            assert!(Instant::now() < deadline, "nobody refuses");
        }
        assert_eq!(all, [to_nobody]);
    }
    c.gsi.bind_service(any(77)).unwrap();
}

fn on_this_machine(link: LinkMode) {
    ferroce_testing::isolate();
    let directory = tempfile::tempdir().unwrap();
    let open = |registry: &Path| {
        let config = SoftConfig { link, runtime_dir: Some(registry.into()), ..SoftConfig::default() };
        SoftDevice::new(config).open().unwrap()
    };
    let registry = directory.path().join("registry");
    // Without an agent of its own, and in the slot that queue pair 1 seems to belong to.
    let bystander = open(&registry);
    let contexts = [open(&registry), open(&registry), open(&registry)];
    assert_ne!(contexts[0].info().node_guid, 0);
    assert_eq!(contexts[0].info().node_guid, contexts[1].info().node_guid);
    let [a, b, c] = contexts.each_ref().map(|context| Agent::new(context, "127.0.0.1"));
    services_and_ids(&a, &b, &c);
    // The same with the first context gone. What comes to its socket as it closes is lost, as a datagram may be.
    drop(bystander);
    let deadline = Instant::now() + Duration::from_secs(20);
    while Registry::list(Some(&registry)).unwrap().len() > contexts.len() {
        assert!(Instant::now() < deadline, "it does not leave");
        std::thread::yield_now();
    }
    for binding in [77, 78].map(|service_id| ServiceBinding { service_id, local: None }) {
        c.gsi.release_service(binding);
    }
    services_and_ids(&a, &b, &c);
}

#[test]
fn over_shared_memory() {
    on_this_machine(LinkMode::Auto);
}

#[test]
fn over_udp() {
    on_this_machine(LinkMode::Udp);
}

#[test]
fn in_memory() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let open = |ip: &str| network.host(ip.parse().unwrap()).open().unwrap();
    let contexts = [open("10.0.0.1"), open("10.0.0.2"), open("10.0.0.2")];
    let a = Agent::new(&contexts[0], "10.0.0.1");
    let [b, c] = [&contexts[1], &contexts[2]].map(|context| Agent::new(context, "10.0.0.2"));
    services_and_ids(&a, &b, &c);
}

#[test]
fn time_comes_even_if_nobody_polls() {
    ferroce_testing::isolate();
    let directory = tempfile::tempdir().unwrap();
    let config = SoftConfig { runtime_dir: Some(directory.path().join("registry")), ..SoftConfig::default() };
    let context = SoftDevice::new(config).open().unwrap();
    let agent = Agent::new(&context, "127.0.0.1");
    let start = Instant::now();
    for round in 1..=3 {
        agent.gsi.wake_at(agent.gsi.now() + 60_000_000_000);
        agent.gsi.wake_at(agent.gsi.now() + 5_000_000);
        while agent.mailbox.expired.load(Ordering::SeqCst) < round {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(agent.mailbox.expired.load(Ordering::SeqCst), 3);
    let second: Arc<dyn MadHandler> = Arc::new(Mailbox::default());
    assert!(matches!(agent.gsi.set_handler(Arc::downgrade(&second)), Err(Error::Invalid { .. })));
}
