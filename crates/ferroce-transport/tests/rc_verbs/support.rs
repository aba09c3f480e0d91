pub(crate) use crate::waiting::until;
use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_transport::rc_verbs::{EndpointAddress, RcEndpoint, RcOptions, RcVerbs};
use ferroce_transport::uct::{Endpoint as _, EndpointId, Interface as _, OpError, Remote};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Context, Cq, Error, Mr, Qp, QpAttr, QpInitAttr, QpType, RecvWr, SendOp, SendWr, WcOpcode,
    WorkCompletion,
};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) const AM: u8 = 5;

/// A context of this test's own host: one network namespace for each test's thread.
pub(crate) fn context(config: SoftConfig) -> Context {
    thread_local! { static ISOLATED: () = ferroce_testing::isolate() }
    ISOLATED.with(|()| ());
    SoftDevice::new(config).open().unwrap()
}

pub(crate) fn shm() -> SoftConfig {
    SoftConfig { link: LinkMode::Shm, ..SoftConfig::default() }
}

pub(crate) fn options() -> RcOptions {
    RcOptions { address: Some("127.0.0.1".parse().unwrap()), max_endpoints: 64, ..RcOptions::default() }
}

/// Less patience, though enough for a peer whose thread waits for a processor: 4.096 µs · 2^13 is 34 ms.
pub(crate) fn quick() -> RcOptions {
    RcOptions { ack_timeout: 13, retry_count: 4, ..options() }
}

/// What came to an interface: to which endpoint, and what.
pub(crate) type Log = Arc<Mutex<Vec<(EndpointId, Vec<u8>)>>>;

pub(crate) fn open(options: RcOptions) -> (RcVerbs, Log) {
    open_on(&context(shm()), options)
}

pub(crate) fn open_on(context: &Context, options: RcOptions) -> (RcVerbs, Log) {
    let interface = RcVerbs::open(context, options).unwrap();
    let log = Log::default();
    let to = log.clone();
    interface
        .set_am_handler(AM, move |message| {
            to.lock().unwrap().push((message.endpoint, message.payload.to_vec()));
        })
        .unwrap();
    (interface, log)
}

/// Two endpoints that are connected with each other.
pub(crate) fn pair(a: &RcVerbs, b: &RcVerbs) -> (RcEndpoint, RcEndpoint) {
    let (to_b, to_a) = (a.create_endpoint().unwrap(), b.create_endpoint().unwrap());
    to_b.connect_to_ep(&to_a.address()).unwrap();
    to_a.connect_to_ep(&to_b.address()).unwrap();
    (to_b, to_a)
}

/// Some rounds of progress, for what must not happen.
pub(crate) fn a_while(interfaces: &[&RcVerbs]) {
    for _ in 0..2000 {
        for interface in interfaces {
            interface.progress().unwrap();
        }
    }
}

/// Does `op` as soon as there are resources.
pub(crate) fn when_possible<T>(interfaces: &[&RcVerbs], mut op: impl FnMut() -> Result<T, OpError>) -> T {
    let mut outcome = None;
    until(interfaces, || match op() {
        Ok(value) => {
            outcome = Some(value);
            true
        }
        Err(OpError::NoResource) => false,
        Err(error) => panic!("{error}"),
    });
    outcome.unwrap()
}

pub(crate) fn message(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(len.max(4), number as u8);
    bytes
}

/// The numbers of the messages that came to an endpoint; checks the rest of them.
pub(crate) fn numbers(log: &Log, endpoint: &RcEndpoint) -> Vec<u32> {
    let log = log.lock().unwrap();
    let own = log.iter().filter(|(id, _)| *id == endpoint.id());
    own.map(|(_, bytes)| {
        let number = u32::from_be_bytes(bytes[..4].try_into().unwrap());
        assert!(bytes[4..].iter().all(|byte| *byte == number as u8), "message {number} is damaged");
        number
    })
    .collect()
}

/// A peer that is only a queue pair: it says what it likes, and dies without a word.
pub(crate) struct Raw {
    pub(crate) qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    mr: Mr,
    sends: Cell<usize>,
    context: Context,
}

impl Raw {
    pub(crate) fn new() -> Self {
        let context = context(shm());
        let pd = context.alloc_pd().unwrap();
        let (send_cq, recv_cq) = (context.create_cq(256, None).unwrap(), context.create_cq(256, None).unwrap());
        let mut init = QpInitAttr::new(QpType::Rc, &send_cq);
        init.recv_cq = recv_cq.clone();
        init.cap.max_recv_wr = 128;
        let qp = pd.create_qp(&init).unwrap();
        qp.modify(&QpAttr::init(Access::ALL)).unwrap();
        let mr = pd.alloc_mr(1 << 20, Access::ALL).unwrap();
        let raw = Self { qp, send_cq, recv_cq, mr, sends: Cell::new(0), context };
        for _ in 0..64 {
            raw.post_receive();
        }
        raw
    }

    pub(crate) fn post_receive(&self) {
        self.qp.post_recv(&[RecvWr::new(0, &[self.mr.sge(..8192 + 64).unwrap()])]).unwrap();
    }

    /// As an endpoint would say it, with a window of its own.
    pub(crate) fn address(&self, window: u32) -> EndpointAddress {
        let gid = self.context.find_gid(1, "127.0.0.1".parse().unwrap()).unwrap();
        let mut bytes = vec![1, gid.mtu as u8];
        bytes.extend(gid.gid.to_bytes());
        bytes.extend(&self.qp.qp_num().to_be_bytes()[1..]);
        bytes.extend([0; 3]);
        bytes.extend(window.to_be_bytes());
        bytes.extend(8197_u32.to_be_bytes());
        EndpointAddress::from_bytes(&bytes).unwrap()
    }

    pub(crate) fn connect(&self, peer: &EndpointAddress) {
        let gid = self.context.find_gid(1, "127.0.0.1".parse().unwrap()).unwrap();
        let bytes = peer.to_bytes();
        let psn = u32::from_be_bytes([0, bytes[21], bytes[22], bytes[23]]);
        let path = AhAttr::roce(peer.gid(), gid.index);
        self.qp.modify(&QpAttr::rtr(path, gid.mtu, peer.qpn(), psn)).unwrap();
        self.qp.modify(&QpAttr::rts(0)).unwrap();
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        // What is not sent yet keeps its bytes.
        let at = 500_000 + self.sends.replace((self.sends.get() + 1) % 32) * 16_384;
        self.mr.write(at, bytes).unwrap();
        let sges = [self.mr.sge(at..at + bytes.len()).unwrap()];
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(failed) = self.qp.post_send(&[SendWr::send(1, &sges)]) {
            assert!(matches!(failed.error, Error::QueueFull { .. }) && Instant::now() < deadline, "{failed}");
            // Acknowledgements are taken in here.
            self.send_cq.poll(&mut [WorkCompletion::default(); 16]).unwrap();
        }
    }

    /// Writes eight bytes to the peer's memory, with immediate.
    pub(crate) fn write_imm(&self, remote: Remote) {
        let op = SendOp::WriteImm { remote_addr: remote.addr, rkey: remote.rkey, imm: 7 };
        self.qp.post_send(&[SendWr::new(1, op, &[self.mr.sge(..8).unwrap()])]).unwrap();
    }

    /// What came, if something did: its bytes.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        let mut wcs = [WorkCompletion::default()];
        if self.recv_cq.poll(&mut wcs).unwrap() == 0 || wcs[0].opcode != WcOpcode::Recv || !wcs[0].is_ok() {
            return None;
        }
        let mut bytes = vec![0; wcs[0].byte_len as usize];
        self.mr.read(0, &mut bytes).unwrap();
        Some(bytes)
    }
}

/// An endpoint that is connected with a queue pair.
pub(crate) fn raw_pair(interface: &RcVerbs, window: u32) -> (RcEndpoint, Raw) {
    let (endpoint, raw) = (interface.create_endpoint().unwrap(), Raw::new());
    raw.connect(&endpoint.address());
    endpoint.connect_to_ep(&raw.address(window)).unwrap();
    (endpoint, raw)
}
