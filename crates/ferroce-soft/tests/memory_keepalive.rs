//! An idle connection hears that its peer is gone, and only then.

use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, AsyncEvent, Context, Cq, EventType, Mr, Mtu, Qp, QpAttr, QpInitAttr, QpState, QpType, RecvWr,
    SendWr, WcStatus, WorkCompletion,
};
use std::net::IpAddr;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
/// The PSN that both start from, so that the one before it is of another turn.
const PSN: u32 = 0;

struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

impl End {
    fn new(network: &MemoryNetwork, last: u8) -> Self {
        let context = network.host(ip(last)).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let qp = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq)).unwrap();
        let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
        // A peer that grants no rights answers all the same.
        qp.modify(&QpAttr::init(Access::empty())).unwrap();
        Self { context, cq, qp, mr }
    }

    fn connect(&self, to: &Self, timeout: Option<u8>) {
        let gid = to.context.query_gid(1, 0).unwrap().gid;
        self.qp.modify(&QpAttr::rtr(AhAttr::roce(gid, 0), Mtu::Mtu1024, to.qp.qp_num(), PSN)).unwrap();
        self.qp.modify(&QpAttr { timeout: timeout.or(QpAttr::rts(PSN).timeout), ..QpAttr::rts(PSN) }).unwrap();
    }

    fn post_receive(&self) {
        self.qp.post_recv(&[RecvWr::new(5, &[self.mr.sge(..).unwrap()])]).unwrap();
    }

    fn state(&self) -> QpState {
        self.qp.query().unwrap().state.unwrap()
    }

    fn poll(&self) -> Option<WorkCompletion> {
        let mut wc = [WorkCompletion::default()];
        (self.cq.poll(&mut wc).unwrap() == 1).then(|| wc[0])
    }

    fn counter(&self, name: &str) -> u64 {
        self.context.counters().into_iter().find(|(known, _)| *known == name).expect("a counter").1
    }
}

fn pair(keepalive: Option<Duration>, timeout: Option<u8>) -> (MemoryNetwork, End, End) {
    let network = MemoryNetwork::new(MemoryConfig { keepalive, ..MemoryConfig::default() });
    let (a, b) = (End::new(&network, 1), End::new(&network, 2));
    a.connect(&b, timeout);
    b.connect(&a, timeout);
    (network, a, b)
}

/// What is sent afterwards arrives as if nobody had asked anything.
fn talk(network: &MemoryNetwork, from: &End, to: &End) {
    to.post_receive();
    from.qp.post_send(&[SendWr::send(7, &[from.mr.sge(..).unwrap()])]).unwrap();
    network.advance(Duration::from_secs(1));
    assert_eq!(to.poll().map(|wc| (wc.wr_id, wc.status)), Some((5, WcStatus::Success)));
    assert_eq!(from.poll().map(|wc| (wc.wr_id, wc.status)), Some((7, WcStatus::Success)));
}

#[test]
fn an_idle_connection_lives_as_long_as_its_peer() {
    let (network, a, b) = pair(Some(PATIENCE), None);
    for _ in 0..50 {
        network.advance(PATIENCE * 7);
        talk(&network, &a, &b);
        network.advance(PATIENCE * 7);
        talk(&network, &b, &a);
    }
    for end in [&a, &b] {
        assert_eq!(end.state(), QpState::Rts);
        assert!(end.counter("keepalive_probes") > 100);
        assert_eq!(end.counter("keepalive_failures"), 0);
        assert_eq!((end.counter("out_of_sequence"), end.counter("retransmitted_packets")), (0, 0));
        assert!(end.poll().is_none());
    }
}

#[test]
fn the_end_of_a_silent_peer_is_bounded() {
    for spoken in [false, true] {
        let (network, a, b) = pair(Some(PATIENCE), None);
        if spoken {
            talk(&network, &a, &b);
        }
        network.advance(PATIENCE * 5);
        a.post_receive();
        network.isolate(ip(2));
        network.advance(PATIENCE - Duration::from_secs(1));
        assert_eq!(a.state(), QpState::Rts, "it gave up too soon");
        // A look at the end of each patience, and as long again for the questions.
        network.advance(PATIENCE * 2 + Duration::from_secs(2));
        assert_eq!(a.state(), QpState::Err);
        assert_eq!(a.poll().map(|wc| (wc.wr_id, wc.status)), Some((5, WcStatus::WrFlushErr)));
        let event = a.context.next_async_event().unwrap();
        assert!(matches!(&event, Some(AsyncEvent::Qp(EventType::QpFatal, _))), "{event:?}");
        assert_eq!((a.counter("keepalive_failures"), b.state()), (1, QpState::Err));
    }
}

/// It finds out that its peer answers while it has better things to do.
#[test]
fn a_busy_connection_hears_of_the_end_too() {
    let (network, a, b) = pair(Some(PATIENCE), None);
    for _ in 0..PATIENCE.as_millis() / 4 {
        b.post_receive();
        a.qp.post_send(&[SendWr::send(7, &[a.mr.sge(..).unwrap()])]).unwrap();
        network.advance(Duration::from_millis(10));
        assert!(a.poll().is_some() && b.poll().is_some());
    }
    a.post_receive();
    network.isolate(ip(2));
    network.advance(PATIENCE * 3 + Duration::from_secs(2));
    assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
}

/// Its memory is gone, and it does not know the queue pair any more.
#[test]
fn a_peer_that_started_again_is_silent() {
    let (network, a, b) = pair(Some(PATIENCE), None);
    network.advance(PATIENCE * 3);
    drop(b);
    network.reboot(ip(2));
    let _again = End::new(&network, 2);
    network.advance(PATIENCE * 3);
    assert_eq!(a.state(), QpState::Err);
}

/// A device that does not acknowledge what it was never asked must not lose its connections.
#[test]
fn a_peer_that_never_answered_is_not_given_up() {
    let (network, a, b) = pair(Some(PATIENCE), None);
    network.isolate(ip(2));
    network.advance(PATIENCE * 100);
    assert_eq!(a.state(), QpState::Rts);
    let probes = a.counter("keepalive_probes");
    assert!((50..=401).contains(&probes), "{probes} probes");
    network.restore(ip(2));
    talk(&network, &a, &b);
}

#[test]
fn nobody_is_asked_without_a_timeout_or_a_keepalive() {
    for (keepalive, timeout) in [(None, None), (Some(PATIENCE), Some(0))] {
        let (network, a, b) = pair(keepalive, timeout);
        talk(&network, &a, &b);
        network.isolate(ip(2));
        network.advance(PATIENCE * 100);
        for end in [&a, &b] {
            assert_eq!((end.state(), end.counter("keepalive_probes")), (QpState::Rts, 0));
        }
        assert_eq!(network.next_event(), None, "a timer runs for nothing");
    }
}
