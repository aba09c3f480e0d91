//! A device of which connection management needs nothing but queue pairs that change states, and queue pair 1, behind which there is
//! a peer.

mod verbs;

pub(super) use verbs::cq;

use crate::proto::{
    AcceptParams, Address, Bind, Config, ConnId, ConnectParams, Endpoint, Event, ListenParams, Nanos, ResolveParams,
    Service, SidrAnswer,
};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Context, MAD_LEN, MadHandler, MadOrigin, Mtu, ServiceBinding};
use ferroce_wire::IpPair;
use ferroce_wire::cm::{AdditionalInfo, IpCmHeader, PortSpace, RejectReason, ServiceId, SidrStatus, TransportService};
use rand::SeedableRng;
use rand::rngs::StdRng;
use shuttle::sync::atomic::AtomicUsize;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Where our listeners listen.
pub(super) const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(LOCAL), 7471);

/// Where the peer does.
pub(super) const THERE: SocketAddr = SocketAddr::new(IpAddr::V4(REMOTE), 7471);

/// Rounds of messages and timers after which all is over, or never will be.
const PATIENCE: usize = 500;

/// The device, its peer, and the network between them.
#[derive(Clone)]
pub(super) struct Host(Arc<Shared>);

struct Shared {
    /// Every call of the device passes here: an order may change at it.
    gate: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    peer: Endpoint,
    answer: Answer,
    conns: Vec<PeerConn>,
    /// To its questions for queue pairs, as far as they have come; `None` if nobody answered.
    answers: Vec<Option<SidrStatus>>,
    /// Queue pairs, by number, in multicast groups.
    groups: HashSet<(u32, ferroce_verbs::Gid)>,
    /// From the peer.
    inbox: VecDeque<[u8; MAD_LEN]>,
    now: Nanos,
    wake_at: Nanos,
    handler: Option<Weak<dyn MadHandler>>,
    services: HashSet<ServiceBinding>,
    qps: usize,
    next_qpn: u32,
    /// With which PSN queue pairs expect their peers to begin.
    expected: HashMap<u32, u32>,
    /// Queue pairs cannot be moved to RTR.
    refuses_rtr: bool,
    /// Queue pairs in the middle of a transition.
    transitions: usize,
    /// [`Id::destroy`](crate::Id::destroy) of what is watched has returned.
    destroyed: bool,
    /// Threads that have called the device since.
    late: HashSet<shuttle::thread::ThreadId>,
}

/// A connection, as the peer sees it.
struct PeerConn {
    conn: ConnId,
    established: bool,
    /// How often it has ended.
    ends: usize,
}

/// What the peer says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Grant,
    Refuse,
    /// It grants, and ends the connection at once.
    GrantAndEnd,
}

impl Host {
    pub(super) fn new(answer: Answer) -> Self {
        let mut peer = Endpoint::new(Config::new(2, 2), StdRng::seed_from_u64(2));
        for (port_space, service) in [(PortSpace::Tcp, Service::Connection), (PortSpace::Udp, Service::Datagram)] {
            let service_id = ServiceId::from_port(port_space, THERE.port());
            peer.listen(&ListenParams { bind: Bind::Any, service_id, service, backlog: 0, cookie: 0 }).unwrap();
        }
        let state = State {
            peer,
            answer,
            conns: Vec::new(),
            answers: Vec::new(),
            groups: HashSet::new(),
            inbox: VecDeque::new(),
            now: 1_000_000_000,
            wake_at: Nanos::MAX,
            handler: None,
            services: HashSet::new(),
            qps: 0,
            next_qpn: 0,
            expected: HashMap::new(),
            refuses_rtr: false,
            transitions: 0,
            destroyed: false,
            late: HashSet::new(),
        };
        Self(Arc::new(Shared { gate: AtomicUsize::new(0), state: Mutex::new(state) }))
    }

    pub(super) fn context(&self) -> Context {
        self.open().unwrap()
    }

    /// The peer asks for a connection.
    pub(super) fn ask(&self) -> ConnId {
        let mut state = self.state();
        let header = IpCmHeader { ip: IpPair::V4 { src: REMOTE, dst: LOCAL }, src_port: 1 };
        let qpn = 0x1000 + state.conns.len() as u32;
        let psn = state.peer.random_psn();
        let now = state.now;
        let conn = state.peer.connect(
            now,
            &ConnectParams {
                address: Address { local: REMOTE.into(), remote: LOCAL.into(), scope_id: 0 },
                service_id: ServiceId::from_port(PortSpace::Tcp, HERE.port()),
                transport: TransportService::Rc,
                qpn,
                psn,
                responder_resources: 1,
                initiator_depth: 1,
                retry_count: 7,
                rnr_retry_count: 7,
                srq: false,
                pkey: 0xffff,
                path_mtu: Mtu::Mtu1024 as u8,
                ack_timeout: 14,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: 64,
                ece: None,
                private_data: &header.emit(),
                deadline: now + 5_000_000_000,
                cookie: 0,
            },
        );
        let conn = conn.unwrap();
        state.conns.push(PeerConn { conn, established: false, ends: 0 });
        state.settle();
        conn
    }

    /// The peer asks for a queue pair.
    pub(super) fn question(&self) {
        let mut state = self.state();
        let header = IpCmHeader { ip: IpPair::V4 { src: REMOTE, dst: LOCAL }, src_port: 1 };
        let now = state.now;
        let params = ResolveParams {
            address: Address { local: REMOTE.into(), remote: LOCAL.into(), scope_id: 0 },
            service_id: ServiceId::from_port(PortSpace::Udp, HERE.port()),
            pkey: 0xffff,
            traffic_class: 0,
            flow_label: 0,
            private_data: &header.emit(),
            deadline: now + 5_000_000_000,
            cookie: 0,
        };
        state.peer.resolve_service(now, &params).unwrap();
        state.settle();
    }

    /// What became of the peer's questions that are over.
    pub(super) fn answers(&self) -> Vec<Option<SidrStatus>> {
        self.state().answers.clone()
    }

    /// Queue pairs in groups.
    pub(super) fn members(&self) -> usize {
        self.state().groups.len()
    }

    /// The peer ends all its connections, or gives up asking for them.
    pub(super) fn end_all(&self) {
        let mut state = self.state();
        let now = state.now;
        for at in 0..state.conns.len() {
            let conn = state.conns[at].conn;
            // It may have been.
            let _ = state.peer.destroy(now, conn);
        }
        state.settle();
    }

    /// The peer asks for the end of its connections.
    pub(super) fn disconnect_all(&self) {
        let mut state = self.state();
        let now = state.now;
        for at in 0..state.conns.len() {
            let conn = state.conns[at].conn;
            state.peer.disconnect(now, conn, &[]).unwrap();
        }
        state.settle();
    }

    /// How often each connection of the peer has ended, in order of their beginning.
    pub(super) fn ends(&self) -> Vec<usize> {
        self.state().conns.iter().map(|conn| conn.ends).collect()
    }

    /// The peer's connections that are established, as the peer sees it.
    pub(super) fn established(&self) -> usize {
        self.state().conns.iter().filter(|conn| conn.established).count()
    }

    /// Delivers a message; whether there was one.
    pub(super) fn deliver(&self) -> bool {
        let (handler, mad) = {
            let mut state = self.state();
            let Some(mad) = state.inbox.pop_front() else { return false };
            (state.handler.clone().unwrap(), mad)
        };
        if let Some(handler) = handler.upgrade() {
            handler.receive(&MadOrigin { remote: REMOTE.into(), local: LOCAL.into(), traffic_class: 0 }, &mad);
        }
        true
    }

    /// Lets time pass until nothing is under way, on either side.
    pub(super) fn settle(&self, is_over: impl Fn() -> bool) {
        for _ in 0..PATIENCE {
            while self.deliver() {}
            if is_over() && self.state().peer.poll_timeout().is_none() {
                return;
            }
            let handler = {
                let mut state = self.state();
                let next = state.peer.poll_timeout().unwrap_or(Nanos::MAX).min(state.wake_at);
                assert_ne!(next, Nanos::MAX, "nothing is due, and something is left");
                state.now = next;
                state.peer.handle_timeout(next);
                state.settle();
                if state.wake_at > next {
                    continue;
                }
                state.wake_at = Nanos::MAX;
                state.handler.clone().unwrap()
            };
            if let Some(handler) = handler.upgrade() {
                handler.expired();
            }
        }
        panic!("it does not end");
    }

    /// A message of those that the peer has sent is lost.
    pub(super) fn lose(&self, at: usize) {
        self.state().inbox.remove(at).unwrap();
    }

    /// From now on no queue pair can be moved to RTR.
    pub(super) fn refuse_rtr(&self) {
        self.state().refuses_rtr = true;
    }

    pub(super) fn is_in_transition(&self) -> bool {
        self.state().transitions != 0
    }

    pub(super) fn qps(&self) -> usize {
        self.state().qps
    }

    pub(super) fn services(&self) -> usize {
        self.state().services.len()
    }

    /// [`Id::destroy`](crate::Id::destroy) of what is watched has returned.
    pub(super) fn set_destroyed(&self) {
        self.state().destroyed = true;
    }

    pub(super) fn is_destroyed(&self) -> bool {
        self.state().destroyed
    }

    /// Whether this thread has called the device after that, since it asked the last time.
    pub(super) fn was_late(&self) -> bool {
        self.state().late.remove(&shuttle::thread::current().id())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn pass(&self) {
        self.0.gate.fetch_add(1, Ordering::SeqCst);
        self.note();
    }

    fn note(&self) {
        let mut state = self.state();
        if state.destroyed {
            state.late.insert(shuttle::thread::current().id());
        }
    }
}

impl State {
    /// The peer answers; its messages go to the inbox.
    fn settle(&mut self) {
        let now = self.now;
        while let Some(event) = self.peer.poll_event() {
            match event {
                Event::ConnectRequest(request) => {
                    self.conns.push(PeerConn { conn: request.conn, established: false, ends: 0 });
                    if self.answer == Answer::Refuse {
                        let (reason, info) = (RejectReason::ConsumerDefined, AdditionalInfo::EMPTY);
                        self.peer.reject(now, request.conn, reason, info, &[]).unwrap();
                        continue;
                    }
                    let params = AcceptParams {
                        qpn: 0x2000,
                        psn: 1,
                        responder_resources: 1,
                        initiator_depth: 1,
                        rnr_retry_count: 7,
                        srq: false,
                        ece: None,
                        private_data: &[],
                        deadline: None,
                        cookie: 0,
                    };
                    self.peer.accept(now, request.conn, &params).unwrap();
                    if self.answer == Answer::GrantAndEnd {
                        self.peer.destroy(now, request.conn).unwrap();
                    }
                }
                Event::Response(response) => {
                    let told = Some(&response.remote_psn);
                    assert_eq!(self.expected.get(&response.remote_qpn), told, "the queue pair expects another PSN");
                    self.peer.establish(response.conn, &[]).unwrap();
                    self.conn(response.conn).established = true;
                }
                Event::Established { conn, .. } => self.conn(conn).established = true,
                Event::Disconnected { conn, .. } => {
                    self.peer.disconnect(now, conn, &[]).unwrap();
                    self.end(conn);
                }
                Event::Rejected(rejected) => self.end(rejected.conn),
                Event::Unreachable(unreachable) => self.end(unreachable.conn),
                Event::SidrRequest(request) => {
                    let granted = self.answer != Answer::Refuse;
                    let status = if granted { SidrStatus::Success } else { SidrStatus::Reject };
                    let info = AdditionalInfo::EMPTY;
                    let answer = SidrAnswer { status, qpn: 0x2000, qkey: 1, ece: None, info, private_data: &[] };
                    self.peer.answer_sidr(now, request.sidr, &answer).unwrap();
                }
                Event::SidrResponse(response) => {
                    self.answers.push(Some(response.status));
                    self.peer.destroy_sidr(response.sidr).unwrap();
                }
                Event::SidrUnreachable { sidr, .. } => {
                    self.answers.push(None);
                    self.peer.destroy_sidr(sidr).unwrap();
                }
                _ => {}
            }
        }
        while let Some(transmit) = self.peer.poll_transmit() {
            self.inbox.push_back(transmit.mad);
        }
    }

    fn end(&mut self, conn: ConnId) {
        let conn = self.conn(conn);
        conn.ends += 1;
        conn.established = false;
    }

    fn conn(&mut self, conn: ConnId) -> &mut PeerConn {
        self.conns.iter_mut().find(|known| known.conn == conn).unwrap()
    }
}
