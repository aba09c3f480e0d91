//! Whatever a hostile neighbour sends, and however long, it does not make a context need more memory.

use ferroce_cm::{ConnParam, ConnectionManager, EventChannel, EventKind, Id, PortSpace};
use ferroce_soft::memory::{MemoryConfig, MemoryNetwork, Random};
use ferroce_testing::allocated::{Counting, live};
use ferroce_transport::ud;
use ferroce_transport::ud_verbs::{UdOptions, UdVerbs};
use ferroce_verbs::WorkCompletion;
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Cq, Gid, Mr, Mtu, Pd, QpAttr, QpInitAttr, QpState, QpType, RecvWr, SendWr, WcStatus,
};
use ferroce_wire::cm::{CmMad, PERMISSIVE_LID, Path, PrivateData, Req, ServiceId, TransportService};
use ferroce_wire::{
    Aeth, AtomicEth, Bth, Deth, Ext, GSI_QKEY, GSI_QPN, Headers, MAX_HEADERS_LEN, Opcode, Reth, Syndrome, pad_len,
    psn_add, psn_sub,
};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time, or each would count what the other one allocates.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const QKEY: u32 = 5;
/// PSNs that every queue pair begins with.
const PSN: u32 = 0xff_fff0;

struct Attack {
    random: Random,
    mr: Mr,
    rc: u32,
    ud: u32,
    /// The next PSN that the RC queue pair will execute.
    expected: u32,
    /// The last reads and atomics that it executed.
    executed: Vec<(Opcode, Ext, u32, u32)>,
}

impl Attack {
    /// One more packet; `new` requests are among them only then. None of them is so wrong that the queue pair fails, after which it would ignore everything.
    fn packet(&mut self, new: bool) -> Vec<u8> {
        use Opcode as O;
        let random = &mut self.random;
        let near = 1 + random.below(40) as u32;
        let reth = Reth { va: self.mr.addr(), rkey: self.mr.rkey(), len: random.below(4096) as u32 };
        let atomic = AtomicEth { va: self.mr.addr(), rkey: self.mr.rkey(), swap_or_add: 1, compare: 0 };
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: near };
        let deth = Deth { qkey: QKEY, src_qpn: near };
        let (late, early) = (psn_sub(self.expected, near), psn_add(self.expected, near));
        let (opcode, ext, qpn, psn) = match random.within(if new { 0 } else { 2 }, 11) {
            // Reads and atomics that are executed, and their duplicates.
            0 => {
                let psn = self.expected;
                self.expected = psn_add(psn, reth.len.div_ceil(256).max(1));
                self.executed.push((O::RcReadRequest, Ext::Reth(reth), self.rc, psn));
                self.executed[self.executed.len() - 1]
            }
            1 => {
                let psn = self.expected;
                self.expected = psn_add(psn, 1);
                self.executed.push((O::RcFetchAdd, Ext::Atomic(atomic), self.rc, psn));
                self.executed[self.executed.len() - 1]
            }
            2..=4 if !self.executed.is_empty() => {
                self.executed.drain(..self.executed.len().saturating_sub(16));
                *random.pick(&self.executed)
            }
            // Not ready, duplicate, or beyond a gap.
            5 => (O::RcSendFirst, Ext::None, self.rc, self.expected),
            6 => (O::RcSendMiddle, Ext::None, self.rc, late),
            7 => (O::RcSendOnlyImm, Ext::Imm(1), self.rc, early),
            // Answers that nobody asked for.
            8 => (O::RcAck, Ext::Aeth(aeth), self.rc, late),
            9 => (O::RcReadResponseFirst, Ext::Aeth(aeth), self.rc, early),
            // Datagrams without a receive, and to nobody.
            10 => (O::UdSendOnly, Ext::Deth(deth), self.ud, near),
            11 => (O::RcSendOnly, Ext::None, near << 8, near),
            _ => (O::RcReadRequest, Ext::Reth(reth), self.rc, late),
        };
        let payload = if opcode.has_payload() { 256 } else { 0 };
        let bth = Bth { opcode, dest_qpn: qpn, psn, pad: pad_len(payload), ack_request: true, ..Bth::default() };
        let mut packet = vec![0; MAX_HEADERS_LEN];
        let len = Headers { bth, ext }.emit(&mut packet);
        packet.truncate(len);
        packet.resize(len + payload, 1);
        packet
    }
}

#[test]
fn attacks_do_not_fill_memory() {
    let _alone = alone();
    let rounds: u32 = if cfg!(debug_assertions) { 30_000 } else { 300_000 };
    for rate in [0, 1_000_000] {
        let network = MemoryNetwork::new(MemoryConfig { rate, send_buffer: 4 << 10, ..MemoryConfig::default() });
        let [ip, peer] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let context = network.host(ip).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, None).unwrap();
        let mr = pd.alloc_mr(4096, Access::ALL).unwrap();
        let rc = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq)).unwrap();
        rc.modify(&QpAttr::init(Access::ALL)).unwrap();
        rc.modify(&QpAttr::rtr(AhAttr::roce(peer.into(), 0), Mtu::Mtu256, 0x10, PSN)).unwrap();
        rc.modify(&QpAttr::rts(PSN)).unwrap();
        let ud = pd.create_qp(&QpInitAttr::new(QpType::Ud, &cq)).unwrap();
        ud.modify(&QpAttr::init_ud(QKEY)).unwrap();
        ud.modify(&QpAttr::to(QpState::Rtr)).unwrap();
        let mut attack =
            Attack { random: Random::new(1), mr, rc: rc.qp_num(), ud: ud.qp_num(), expected: PSN, executed: vec![] };
        let mut before = 0;
        for round in 0..rounds {
            if round == rounds / 10 {
                before = live();
            }
            // A new request is the end of what is owed for old ones, so most of the time there is none.
            network.inject(peer, ip, &attack.packet(round % 10_000 < 1000));
            // It comes in at once; at a low rate, answers leave a lot more slowly than they are asked for.
            network.advance(Duration::from_nanos(100));
        }
        let grown = live() - before;
        assert_eq!(rc.state(), QpState::Rts, "the attack was too crude");
        assert!(grown < 16 << 10, "{grown} bytes more after {rounds} packets, at a rate of {rate}");
        let counters = context.counters();
        for name in ["duplicate_request", "out_of_sequence", "stale_response", "no_recv_dropped", "unknown_qp"] {
            let (_, count) = counters.iter().find(|&&(counter, _)| counter == name).unwrap();
            assert!(*count > u64::from(rounds) / 50, "{name} is only {count}");
        }
    }
}

const PORT: u16 = 7471;
/// Connections that peers may ask a victim for at a time.
const HALF_OPEN: usize = 500;

/// A program with a connection manager.
struct Program {
    // Ids go before what their queue pairs were made of.
    id: Option<Id>,
    channel: EventChannel,
    cm: ConnectionManager,
    cq: Cq,
    mr: Mr,
    pd: Pd,
}

impl Program {
    fn new(network: &MemoryNetwork, ip: IpAddr) -> Self {
        let context = network.host(ip).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cm = ConnectionManager::with_config(&context, |config| config.limits.half_open = HALF_OPEN).unwrap();
        let (channel, cq) = (EventChannel::new().unwrap(), context.create_cq(64, None).unwrap());
        Self { id: None, channel, cm, cq, mr: pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap(), pd }
    }

    fn give_qp(&self, id: &Id) {
        id.create_qp(&self.pd, &QpInitAttr::new(QpType::Rc, &self.cq)).unwrap();
    }

    fn completes(&self) {
        let mut wcs = [WorkCompletion::default()];
        assert_eq!(self.cq.poll(&mut wcs).unwrap(), 1);
        assert_eq!(wcs[0].status, WcStatus::Success);
    }
}

/// A request that nobody makes, from anybody.
fn forged(random: &mut Random, from: IpAddr, to: IpAddr) -> Vec<u8> {
    let path = Path {
        local_gid: Gid::from(from).to_bytes(),
        remote_gid: Gid::from(to).to_bytes(),
        local_lid: PERMISSIVE_LID,
        remote_lid: PERMISSIVE_LID,
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 64,
        sl: 0,
        subnet_local: false,
        local_ack_timeout: 14,
    };
    let req = Req {
        local_comm_id: random.next_u64() as u32,
        vendor_id: 0,
        service_id: ServiceId::from_port(PortSpace::Tcp, PORT),
        local_ca_guid: random.next_u64(),
        local_qkey: 0,
        local_qpn: random.below(1 << 24) as u32,
        responder_resources: 1,
        local_eecn: 0,
        initiator_depth: 1,
        remote_eecn: 0,
        remote_cm_response_timeout: 20,
        transport: TransportService::Rc,
        end_to_end_flow_control: true,
        starting_psn: random.below(1 << 24) as u32,
        local_cm_response_timeout: 20,
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: 3,
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        primary: path,
        alternate: None,
        sap_supported: false,
        private_data: PrivateData::default(),
    };
    let bth = Bth { opcode: Opcode::UdSendOnly, dest_qpn: GSI_QPN, ..Bth::default() };
    let ext = Ext::Deth(Deth { qkey: GSI_QKEY, src_qpn: GSI_QPN });
    let mut packet = vec![0; MAX_HEADERS_LEN];
    let len = Headers { bth, ext }.emit(&mut packet);
    packet.truncate(len);
    let mut mad = [0; ferroce_wire::MAD_LEN];
    CmMad { tid: random.next_u64(), ece_options: 0, message: req.into() }.emit(&mut mad);
    packet.extend_from_slice(&mad);
    packet
}

/// Requests from thousands of addresses, which the victim reads and does not decide, or does not even read: it needs no more
/// memory than for so many, the connection that it has works all the while, and when it is over, an honest peer is served.
#[test]
fn a_flood_of_forged_requests_does_not_fill_memory_nor_touch_what_is_established() {
    let _alone = alone();
    let rounds = if cfg!(debug_assertions) { 30_000 } else { 100_000 };
    for reads in [true, false] {
        let network = MemoryNetwork::new(MemoryConfig::default());
        let [ip, peer] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let (mut victim, mut client) = (Program::new(&network, ip), Program::new(&network, peer));
        let listener = victim.cm.create_id(&victim.channel, PortSpace::Tcp);
        listener.bind_addr((ip, PORT).into()).unwrap();
        listener.listen(0).unwrap();
        let connect = |from: &Program| {
            let id = from.cm.create_id(&from.channel, PortSpace::Tcp);
            id.resolve_addr(None, (ip, PORT).into()).unwrap();
            id.resolve_route().unwrap();
            from.give_qp(&id);
            id.connect(&ConnParam::default()).unwrap();
            network.advance(Duration::from_millis(1));
            id
        };
        let accept = |at: &Program| loop {
            let (_, kind, _) = at.channel.try_next().unwrap().expect("nobody asks").into_parts();
            if let EventKind::ConnectRequest { id, .. } = kind {
                at.give_qp(&id);
                id.accept(&ConnParam::default()).unwrap();
                network.advance(Duration::from_millis(1));
                return id;
            }
        };
        let established = |at: &Program| {
            while let Some(event) = at.channel.try_next().unwrap() {
                if matches!(event.kind(), EventKind::Established) {
                    network.advance(Duration::from_millis(1));
                    return;
                }
            }
            panic!("it is not established");
        };
        client.id = Some(connect(&client));
        victim.id = Some(accept(&victim));
        established(&client);
        established(&victim);

        let mut random = Random::new(1);
        let mut waiting = Vec::new();
        let mut before = 0;
        for round in 0..rounds {
            if round == rounds / 2 {
                before = live();
            }
            let [.., high, low] = (random.below(10_000) as u32).to_be_bytes();
            let from = IpAddr::from([11, 0, high, low]);
            let packet = forged(&mut random, from, ip);
            network.inject(from, ip, &packet);
            network.advance(Duration::from_micros(1));
            while reads && let Some(event) = victim.channel.try_next().unwrap() {
                waiting.push(event);
            }
            if round % 1000 == 0 {
                let [to, from] = [&victim, &client].map(|program| program.id.as_ref().unwrap().qp().unwrap());
                to.post_recv(&[RecvWr::new(1, &[victim.mr.sge(..).unwrap()])]).unwrap();
                from.post_send(&[SendWr::send(2, &[client.mr.sge(..).unwrap()])]).unwrap();
                network.advance(Duration::from_micros(10));
                victim.completes();
                client.completes();
            }
        }
        let grown = live() - before;
        assert!(grown < 64 << 10, "{grown} bytes more after {rounds} requests, reads: {reads}");
        let (usage, counters) = (victim.cm.usage(), victim.cm.counters());
        assert!(usage.half_open > HALF_OPEN / 2 && usage.half_open <= HALF_OPEN, "{usage:?}");
        assert!(counters.limit_rejected > rounds / 2, "the flood was too small: {counters:?}");
        // Over: whoever has not decided, rejects.
        waiting.clear();
        while victim.channel.try_next().unwrap().is_some() {}
        network.advance(Duration::from_secs(100));
        let late = connect(&client);
        let id = accept(&victim);
        established(&client);
        drop((late, id));
    }
}

/// Datagrams for the UD transport from ten thousand addresses, some of which begin sessions: neither the interface nor the
/// cache of address handles remembers more than it may, and when it is over, an honest peer is served.
#[test]
fn a_flood_of_forged_datagrams_does_not_fill_memory_nor_the_address_handle_cache() {
    let _alone = alone();
    let rounds: u32 = if cfg!(debug_assertions) { 60_000 } else { 200_000 };
    let network = MemoryNetwork::new(MemoryConfig::default());
    let [ip, peer] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
    let (ca, cb) = (network.host(ip).open().unwrap(), network.host(peer).open().unwrap());
    let cache = ca.ah_cache().unwrap();
    let open = |context| {
        let clock = VirtualTime(network.clone());
        let protocol = ud::Config { max_half_open: 64, ..ud::Config::default() };
        let mut random = Random::new(7);
        let options = UdOptions { protocol, ..UdOptions::default() };
        UdVerbs::open_with(context, options, clock, move || random.next_u64()).unwrap()
    };
    let (victim, honest) = (open(&ca), open(&cb));
    let qpn = u32::from_be_bytes(victim.address().to_bytes()[16..].try_into().unwrap());
    let mut random = Random::new(1);
    let mut before = 0;
    for round in 0..rounds {
        if round == rounds / 2 {
            before = live();
        }
        let [.., high, low] = (random.below(10_000) as u32).to_be_bytes();
        let from = IpAddr::from([11, 0, high, low]);
        // A session begins, or data comes for one that does not exist.
        let kind = if random.below(2) == 0 { 3 } else { 0 };
        let mut datagram = vec![1, kind, 0, 0, 0, 0, 0, 0];
        datagram.extend(if kind == 3 { 0 } else { random.next_u64() }.to_be_bytes());
        datagram.extend((random.next_u64() | 1).to_be_bytes());
        datagram.extend([0; 4]);
        datagram.extend(random.next_u64().to_be_bytes());
        let bth = Bth { opcode: Opcode::UdSendOnly, dest_qpn: qpn, ..Bth::default() };
        let ext = Ext::Deth(Deth { qkey: 0x1ee7_a330, src_qpn: 1 + round });
        let mut packet = vec![0; MAX_HEADERS_LEN];
        let len = Headers { bth, ext }.emit(&mut packet);
        packet.truncate(len);
        packet.extend(&datagram);
        network.inject(from, ip, &packet);
        network.advance(Duration::from_millis(1));
        victim.progress().unwrap();
    }
    let grown = live() - before;
    assert!(grown < 64 << 10, "{grown} bytes more after {rounds} datagrams");
    let protocol = victim.counters().protocol;
    assert!(protocol.no_endpoint > u64::from(rounds) / 3 && protocol.refused > u64::from(rounds) / 100, "{protocol:?}");
    let counters = cache.counters();
    assert!(counters.misses > u64::from(rounds) / 3 && counters.entries < 1200, "{counters:?}");
    let endpoint = honest.connect(victim.address()).unwrap();
    endpoint.am(0, b"hello").unwrap();
    for _ in 0..100_000 {
        network.advance(Duration::from_millis(1));
        victim.progress().unwrap();
        honest.progress().unwrap();
        if endpoint.flush().unwrap() {
            return;
        }
    }
    panic!("an honest peer is not served");
}

/// The network's time, for the transport.
struct VirtualTime(MemoryNetwork);

impl ferroce_verbs::ah_cache::Clock for VirtualTime {
    fn now(&self) -> u64 {
        self.0.now().as_nanos() as u64
    }
}
