//! Two ends on a host of their own, and one that follows the events.
#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod bed;

use ferroce_cm::proto::Config;
use ferroce_cm::{ConnParam, ConnectionManager, Event, EventChannel, EventKind, Id, PortSpace};
use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Access, Context, Cq, Mr, Pd, QpInitAttr, QpType, RecvWr, SendWr, WcStatus, WorkCompletion};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A hang becomes a failure after this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A host: contexts that are opened on it share its registry.
pub(crate) struct Host {
    registry: TempDir,
    link: LinkMode,
}

impl Host {
    /// In a network namespace of its own, which the calling thread enters.
    pub(crate) fn new(link: LinkMode) -> Self {
        ferroce_testing::isolate();
        Self { registry: tempfile::tempdir().unwrap(), link }
    }

    pub(crate) fn open(&self) -> Side {
        self.open_with(|_| {})
    }

    pub(crate) fn open_with(&self, change: impl FnOnce(&mut Config)) -> Side {
        let runtime_dir = Some(self.registry.path().join("registry"));
        let config = SoftConfig { link: self.link, runtime_dir, ..SoftConfig::default() };
        let context = SoftDevice::new(config).open().unwrap();
        let cm = ConnectionManager::with_config(&context, change).unwrap();
        Side::new(context, cm, Ipv4Addr::LOCALHOST.into())
    }
}

/// One program.
pub(crate) struct Side {
    pub(crate) cm: ConnectionManager,
    pub(crate) channel: EventChannel,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    /// Where its listeners listen.
    pub(crate) ip: IpAddr,
}

impl Side {
    pub(crate) fn new(context: Context, cm: ConnectionManager, ip: IpAddr) -> Self {
        let pd = context.alloc_pd().unwrap();
        Self {
            cm,
            ip,
            channel: EventChannel::new().unwrap(),
            cq: context.create_cq(1024, None).unwrap(),
            mr: pd.alloc_mr(4096, Access::ALL).unwrap(),
            pd,
        }
    }

    pub(crate) fn id(&self) -> Id {
        self.id_in(PortSpace::Tcp)
    }

    pub(crate) fn id_in(&self, port_space: PortSpace) -> Id {
        self.cm.create_id(&self.channel, port_space)
    }

    pub(crate) fn listen(&self) -> (Id, SocketAddr) {
        self.listen_in(PortSpace::Tcp)
    }

    pub(crate) fn listen_in(&self, port_space: PortSpace) -> (Id, SocketAddr) {
        self.listen_at(port_space, &SocketAddr::new(self.ip, 0).to_string())
    }

    /// Waits until so many peers ask and have no answer, those included whom nobody has read. Where the kernel manages connections all that
    /// shows is how many ids there are, so it takes the number of `others`.
    pub(crate) fn is_asked(&self, by: usize, others: usize) {
        let by_kernel = self.cm.context().gsi().is_none();
        let deadline = Instant::now() + PATIENCE;
        let asks = || {
            let usage = self.cm.usage();
            if by_kernel { self.cm.id_count().saturating_sub(others) } else { usage.half_open.max(usage.sidr_received) }
        };
        while asks() < by {
            assert!(Instant::now() < deadline, "they do not come");
            std::thread::yield_now();
        }
    }

    pub(crate) fn listen_at(&self, port_space: PortSpace, addr: &str) -> (Id, SocketAddr) {
        let id = self.id_in(port_space);
        id.bind_addr(addr.parse().unwrap()).unwrap();
        id.listen(0).unwrap();
        let addr = id.local_addr().unwrap();
        (id, addr)
    }

    pub(crate) fn give_qp(&self, id: &Id) {
        let qp_type = if id.port_space() == PortSpace::Udp { QpType::Ud } else { QpType::Rc };
        id.create_qp(&self.pd, &QpInitAttr::new(qp_type, &self.cq)).unwrap();
    }

    /// An id with a queue pair that is about to connect.
    pub(crate) fn resolved(&self, peer: SocketAddr) -> Id {
        self.resolved_in(PortSpace::Tcp, peer)
    }

    pub(crate) fn resolved_in(&self, port_space: PortSpace, peer: SocketAddr) -> Id {
        let id = self.id_in(port_space);
        id.resolve_addr(None, peer).unwrap();
        assert!(matches!(self.event().kind(), EventKind::AddrResolved));
        id.resolve_route().unwrap();
        assert!(matches!(self.event().kind(), EventKind::RouteResolved));
        self.give_qp(&id);
        id
    }

    pub(crate) fn connect(&self, peer: SocketAddr, private_data: &[u8]) -> Id {
        let id = self.resolved(peer);
        id.connect(&ConnParam { private_data, ..ConnParam::default() }).unwrap();
        id
    }

    pub(crate) fn event(&self) -> Event {
        let event = self.channel.next_timeout(PATIENCE).unwrap();
        event.expect("no event came")
    }

    /// The next request for a connection, with a queue pair.
    pub(crate) fn request(&self) -> (Id, Vec<u8>) {
        let (_, kind, private_data) = self.event().into_parts();
        let EventKind::ConnectRequest { id, .. } = kind else { panic!("{kind:?}") };
        self.give_qp(&id);
        (id, private_data)
    }

    pub(crate) fn completion(&self) -> WorkCompletion {
        let deadline = Instant::now() + PATIENCE;
        let mut wcs = [WorkCompletion::default()];
        while self.cq.poll(&mut wcs).unwrap() == 0 {
            assert!(Instant::now() < deadline, "nothing completes");
        }
        wcs[0]
    }

    /// Waits until nothing is left of anything.
    pub(crate) fn is_clean(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let usage = self.cm.usage();
            let left = usage.connections + usage.lingering + usage.half_open + usage.listeners + usage.timewait;
            let left = left + usage.sidr_sent + usage.sidr_received + usage.events;
            if left + self.cm.id_count() == 0 {
                break;
            }
            assert!(Instant::now() < deadline, "left: {usage:?} and {} ids", self.cm.id_count());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A connection between two programs, established at both ends.
pub(crate) fn connected(a: &Side, b: &Side) -> (Id, Id) {
    let (listener, addr) = b.listen();
    let active = a.connect(addr, b"");
    let (passive, _) = b.request();
    passive.accept(&ConnParam::default()).unwrap();
    assert!(matches!(a.event().kind(), EventKind::Established));
    assert!(matches!(b.event().kind(), EventKind::Established));
    drop(listener);
    (active, passive)
}

/// One message.
pub(crate) fn message(from: (&Side, &Id), to: (&Side, &Id), bytes: &[u8]) {
    to.1.qp().unwrap().post_recv(&[RecvWr::new(1, &[to.0.mr.sge(2048..).unwrap()])]).unwrap();
    from.0.mr.write(0, bytes).unwrap();
    let sge = [from.0.mr.sge(..bytes.len()).unwrap()];
    from.1.qp().unwrap().post_send(&[SendWr::send(2, &sge)]).unwrap();
    assert_eq!(to.0.completion().status, WcStatus::Success);
    assert_eq!(from.0.completion().status, WcStatus::Success);
    let mut got = vec![0; bytes.len()];
    to.0.mr.read(2048, &mut got).unwrap();
    assert_eq!(got, bytes);
}
