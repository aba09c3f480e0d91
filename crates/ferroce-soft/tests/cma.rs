//! Large messages between processes of one host are copied once, from the sender's memory: what that must not change, and what a
//! peer that lies about it must not achieve.

use ferroce_soft::host::{JoinOptions, Membership, Registry};
use ferroce_soft::link::shm::{ShmReceiver, ShmSender};
use ferroce_soft::{FaultConfig, LinkMode, SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Context, Cq, Mr, Mtu, Pd, Qp, QpAttr, QpInitAttr, QpState, QpType, RecvWr, Region, SendOp, SendWr,
    WcStatus, WorkCompletion,
};
use ferroce_wire::{Aeth, Bth, Ext, Headers, NakCode, Opcode, Reth, Syndrome};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PSN: u32 = 0xff_fffd;
const MTU: Mtu = Mtu::Mtu1024;

struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    gid_index: u32,
}

fn end(config: SoftConfig) -> End {
    let context = SoftDevice::new(config).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(256, None).unwrap();
    let mut init = QpInitAttr::new(QpType::Rc, &cq);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (3, 3);
    let qp = pd.create_qp(&init).unwrap();
    qp.modify(&QpAttr::init(Access::ALL)).unwrap();
    let gid_index = context.find_gid(1, "127.0.0.1".parse().unwrap()).unwrap().index;
    End { context, pd, cq, qp, gid_index }
}

fn connect(from: &End, dest_qpn: u32) {
    let gid = from.context.query_gid(1, from.gid_index).unwrap().gid;
    let rtr = QpAttr::rtr(AhAttr::roce(gid, from.gid_index), MTU, dest_qpn, PSN);
    from.qp.modify(&rtr).unwrap();
    from.qp.modify(&QpAttr::rts(PSN)).unwrap();
}

fn pair(config: &SoftConfig) -> (End, End) {
    let (a, b) = (end(config.clone()), end(config.clone()));
    connect(&a, b.qp.qp_num());
    connect(&b, a.qp.qp_num());
    (a, b)
}

fn shm() -> SoftConfig {
    SoftConfig { link: LinkMode::Shm, ..SoftConfig::default() }
}

fn completion(cq: &Cq) -> WorkCompletion {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut wc = [WorkCompletion::default()];
        if cq.poll(&mut wc).unwrap() == 1 {
            return wc[0];
        }
        assert!(Instant::now() < deadline, "no completion");
    }
}

fn counter(end: &End, name: &str) -> u64 {
    end.context.counters().iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no {name}")).1
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed) as u8 | 1).collect()
}

/// Writes, sends and reads of all sorts of lengths, through lists whose elements do not coincide. Returns how often it was copied
/// from the sender's memory.
fn exchange(config: &SoftConfig) -> u64 {
    const LEN: usize = 1 << 20;
    let (a, b) = pair(config);
    let (ma, mb) = (a.pd.alloc_mr(LEN, Access::ALL).unwrap(), b.pd.alloc_mr(LEN, Access::ALL).unwrap());
    // Once back and forth, so that both know what they can read.
    for (from, to) in [(&a, &b), (&b, &a)] {
        to.qp.post_recv(&[RecvWr::new(0, &[])]).unwrap();
        from.qp.post_send(&[SendWr::new(0, SendOp::Send, &[])]).unwrap();
        assert!(completion(&to.cq).is_ok() && completion(&from.cq).is_ok());
    }
    let list = |mr: &Mr, cuts: &[usize]| -> Vec<_> { cuts.windows(2).map(|w| mr.sge(w[0]..w[1]).unwrap()).collect() };
    for (seed, len) in [1, 8191, 8192, 8193, 65_535, 65_536, 65_537, 300_001, LEN].into_iter().enumerate() {
        let bytes = pattern(len, seed);
        let mut back = vec![0; len];
        ma.write(0, &bytes).unwrap();
        let sources = [list(&ma, &[0, len]), list(&ma, &[0, len / 3, len])];
        let targets = [list(&mb, &[0, len]), list(&mb, &[0, len / 2, len / 2, len])];
        for (source, target) in sources.iter().zip(&targets) {
            mb.write(0, &vec![0; len]).unwrap();
            b.qp.post_recv(&[RecvWr::new(1, target)]).unwrap();
            a.qp.post_send(&[SendWr::new(2, SendOp::SendImm(9), source)]).unwrap();
            let got = completion(&b.cq);
            assert_eq!((got.status, got.byte_len as usize, got.imm_data()), (WcStatus::Success, len, Some(9)));
            assert!(completion(&a.cq).is_ok());
            mb.read(0, &mut back).unwrap();
            assert!(back == bytes, "send of {len} bytes");

            mb.write(0, &vec![0; len]).unwrap();
            let op = SendOp::Write { remote_addr: mb.addr(), rkey: mb.rkey() };
            a.qp.post_send(&[SendWr::new(3, op, source)]).unwrap();
            assert!(completion(&a.cq).is_ok());
            mb.read(0, &mut back).unwrap();
            assert!(back == bytes, "write of {len} bytes");

            mb.write(0, &vec![0; len]).unwrap();
            let op = SendOp::Read { remote_addr: ma.addr(), rkey: ma.rkey() };
            b.qp.post_send(&[SendWr::new(4, op, target)]).unwrap();
            assert!(completion(&b.cq).is_ok());
            mb.read(0, &mut back).unwrap();
            assert!(back == bytes, "read of {len} bytes");
        }
    }
    assert_eq!((counter(&a, "cma_lost"), counter(&b, "cma_lost")), (0, 0));
    counter(&a, "cma_copies") + counter(&b, "cma_copies")
}

#[test]
fn all_operations_and_lengths() {
    assert!(exchange(&shm()) > 30);
}

#[test]
fn nothing_is_copied_that_way_when_it_is_off() {
    assert_eq!(exchange(&SoftConfig { cma: false, ..shm() }), 0);
}

#[test]
fn offers_that_are_lost_or_repeated() {
    let fault = FaultConfig { seed: 5, loss: 0.1, duplicate: 0.1, ..FaultConfig::default() };
    let config = SoftConfig { fault: Some(fault), ..shm() };
    assert!(exchange(&config) > 10);
}

/// How a sender ends a send before its time.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Deregisters,
    Stops,
    Destroys,
}

/// A sender ends a send and uses the memory for something else: the peer gets what was sent, or nothing. Returns how often it got it.
fn end_early(how: Ends) -> usize {
    const LEN: usize = 64 << 10;
    const ROUNDS: usize = 200;
    let mut delivered = 0;
    let mut memory = vec![0_u8; LEN];
    for round in 0..ROUNDS {
        let (a, b) = pair(&shm());
        let target = b.pd.alloc_mr(LEN, Access::ALL).unwrap();
        for (from, to) in [(&a, &b), (&b, &a)] {
            to.qp.post_recv(&[RecvWr::new(0, &[])]).unwrap();
            from.qp.post_send(&[SendWr::new(0, SendOp::Send, &[])]).unwrap();
            assert!(completion(&to.cq).is_ok() && completion(&from.cq).is_ok());
        }
        let bytes = pattern(LEN, round);
        memory.copy_from_slice(&bytes);
        // SAFETY: `memory` outlives the region; nothing refers to it while the region exists.
        let region = unsafe { Region::borrowed(memory.as_mut_ptr(), LEN) }.unwrap();
        let region = a.pd.reg_region(region, Access::ALL).unwrap();
        b.qp.post_recv(&[RecvWr::new(1, &[target.sge(..).unwrap()])]).unwrap();
        a.qp.post_send(&[SendWr::new(2, SendOp::Send, &[region.sge(..).unwrap()])]).unwrap();
        if round % 3 == 0 {
            std::thread::sleep(Duration::from_micros((round % 50) as u64));
        }
        let End { qp, cq, .. } = a;
        let gone = match how {
            Ends::Deregisters => [Some(region), None],
            Ends::Stops | Ends::Destroys => [None, Some(region)],
        };
        let [early, late] = gone;
        drop(early);
        let qp = match how {
            Ends::Deregisters => Some(qp),
            Ends::Stops => {
                qp.modify(&QpAttr::to(QpState::Err)).unwrap();
                Some(qp)
            }
            Ends::Destroys => {
                drop(qp);
                None
            }
        };
        memory.fill(0);
        let sent = completion(&cq).status;
        let expected = if matches!(how, Ends::Deregisters) { WcStatus::LocProtErr } else { WcStatus::WrFlushErr };
        assert!(sent == WcStatus::Success || sent == expected, "{how:?}, round {round}: {sent:?}");
        let mut wc = [WorkCompletion::default()];
        // If it was not acknowledged, it may still have arrived.
        let received = b.cq.poll(&mut wc).unwrap() == 1 && wc[0].is_ok();
        assert!(received || sent != WcStatus::Success, "{how:?}, round {round}");
        if received {
            let mut got = vec![0; LEN];
            target.read(0, &mut got).unwrap();
            assert!(got == bytes, "{how:?}, round {round}: what was not sent was delivered");
            delivered += 1;
        }
        drop((qp, late));
    }
    assert_ne!(delivered, ROUNDS, "{how:?} was never in time: the test shows nothing");
    delivered
}

#[test]
fn what_is_no_longer_to_be_sent_is_not_delivered() {
    for how in [Ends::Deregisters, Ends::Stops, Ends::Destroys] {
        println!("{how:?}: {} delivered", end_early(how));
    }
}

/// A process that belongs to the registry and writes frames of its own making.
struct Liar {
    membership: Arc<Membership>,
    sender: ShmSender,
    receiver: ShmReceiver,
    slot: u8,
    victim: End,
    target: Mr,
    psn: u32,
}

/// What an offer says, in the order in which it says it.
#[derive(Clone, Copy)]
struct Lie {
    packets: u32,
    len: u32,
    addr: u64,
    grants: [(u64, u64); 2],
}

impl Liar {
    const TAG_OFFER: u32 = 2;
    const LEN: usize = 16 << 10;
    /// The region holds twice as much.
    const REGION: usize = 2 * Self::LEN;

    fn new() -> Self {
        let victim = end(shm());
        let membership = Arc::new(Registry::join(&JoinOptions::default()).unwrap());
        let sender = ShmSender::new(membership.clone()).unwrap();
        let receiver = ShmReceiver::new(membership.clone()).unwrap();
        let slot = (victim.qp.qp_num() >> 16) as u8;
        connect(&victim, u32::from(membership.slot()) << 16 | 7);
        let target = victim.pd.alloc_mr(Self::REGION, Access::ALL).unwrap();
        Self { membership, sender, receiver, slot, victim, target, psn: PSN }
    }

    fn send(&self, headers: &Headers, lie: Lie, tail: &[u8]) {
        let mut frame = vec![];
        frame.extend(lie.packets.to_ne_bytes());
        frame.extend(lie.len.to_ne_bytes());
        let [(a, b), (c, d)] = lie.grants;
        for word in [lie.addr, a, b, c, d] {
            frame.extend(word.to_ne_bytes());
        }
        let at = frame.len();
        frame.resize(at + headers.len(), 0);
        headers.emit(&mut frame[at..]);
        frame.extend(tail);
        let mut lane = self.sender.lane(self.slot).unwrap().lock();
        lane.reserve(frame.len(), Self::TAG_OFFER).unwrap().copy_from_slice(&frame);
        lane.commit();
    }

    /// A write of `len` bytes.
    fn write(&self, len: u32) -> Headers {
        let reth = Reth { va: self.target.addr(), rkey: self.target.rkey(), len };
        let bth = Bth {
            opcode: Opcode::RcWriteOnly,
            dest_qpn: self.victim.qp.qp_num(),
            psn: self.psn,
            ack_request: true,
            ..Bth::default()
        };
        Headers { bth, ext: Ext::Reth(reth) }
    }

    /// What the victim answered.
    fn answer(&mut self) -> Option<Syndrome> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let mut found = None;
            self.receiver.poll(1, &mut |_, _, bytes| {
                if let Ok((Headers { ext: Ext::Aeth(Aeth { syndrome, .. }), .. }, _)) = Headers::parse(bytes) {
                    found = Some(syndrome);
                }
            });
            if found.is_some() {
                return found;
            }
            assert!(Instant::now() < deadline, "no answer");
            std::thread::yield_now();
        }
    }

    fn target(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::LEN];
        self.target.read(0, &mut bytes).unwrap();
        bytes
    }
}

#[test]
fn a_peer_that_lies_achieves_nothing() {
    let mut liar = Liar::new();
    let words = [3_u64, 4];
    let at = words.each_ref().map(|word| (&raw const *word) as u64);
    let bytes = pattern(Liar::LEN, 1);
    let good = Lie {
        packets: 16,
        len: Liar::LEN as u32,
        addr: bytes.as_ptr() as u64,
        grants: [(at[0], words[0]), (at[1], words[1])],
    };
    // What is not to be had, for one reason or the other: the victim asks for it again, each time.
    let gone = Some(Syndrome::Nak(NakCode::PsnSequence));
    let write = liar.write(good.len);
    for lie in [
        Lie { addr: 8, ..good },
        Lie { addr: u64::MAX - 100, ..good },
        Lie { grants: [(at[0], 5), good.grants[1]], ..good },
        Lie { grants: [good.grants[0], (at[1], 0)], ..good },
        Lie { grants: [(0, 3), good.grants[1]], ..good },
    ] {
        liar.send(&write, lie, &[]);
        assert_eq!(liar.answer(), gone);
    }
    let lost = counter(&liar.victim, "cma_lost");
    assert_eq!((lost, counter(&liar.victim, "cma_copies")), (5, 0));
    // What makes no sense at all is dropped. What came of the lies before was the peer's to write.
    liar.target.write(0, &vec![0; Liar::LEN]).unwrap();
    let malformed = counter(&liar.victim, "malformed_packets");
    let read = Headers { bth: Bth { opcode: Opcode::RcReadRequest, ..write.bth }, ..write };
    let padded = Headers { bth: Bth { pad: 2, ..write.bth }, ..write };
    let ack = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 0 };
    let response = Headers { bth: Bth { opcode: Opcode::RcAck, ..write.bth }, ext: Ext::Aeth(ack) };
    let other = Headers { bth: Bth { opcode: Opcode::UcWriteOnly, ..write.bth }, ..write };
    liar.send(&write, Lie { packets: 0, ..good }, &[]);
    liar.send(&write, Lie { packets: 65, ..good }, &[]);
    liar.send(&write, Lie { packets: u32::MAX, ..good }, &[]);
    liar.send(&read, good, &[]);
    liar.send(&padded, good, &[]);
    liar.send(&response, good, &[]);
    liar.send(&other, good, &[]);
    liar.send(&write, good, &[1, 2, 3, 4]);
    assert!(liar.target().iter().all(|byte| *byte == 0));
    // And the truth is believed.
    liar.send(&write, good, &[]);
    assert!(matches!(liar.answer(), Some(Syndrome::Ack { .. })));
    assert_eq!(counter(&liar.victim, "malformed_packets") - malformed, 8);
    assert!(liar.target() == bytes);
    // Repeated, it is only acknowledged.
    let other = vec![9_u8; Liar::LEN];
    liar.send(&write, Lie { addr: other.as_ptr() as u64, ..good }, &[]);
    assert!(matches!(liar.answer(), Some(Syndrome::Ack { .. })));
    assert!(liar.target() == bytes);
    drop(liar.membership);
}

/// An offer whose length is not what its packets and its header say, or that reaches beyond the region, ends the connection as packets would.
#[test]
fn an_offer_obeys_the_rules_for_packets() {
    let word = 3_u64;
    let grant = ((&raw const word) as u64, word);
    let bytes = pattern(1 << 20, 1);
    let invalid = Syndrome::Nak(NakCode::InvalidRequest);
    let len = Liar::LEN as u32;
    let cases = [
        // 15 packets cannot hold it, 17 are too many for it.
        (15, len, len, invalid),
        (17, len, len, invalid),
        // It is more, or less, than the request announced.
        (16, len, len - 1, invalid),
        (16, len, len + 1, invalid),
        (1, 0, len, invalid),
        (64, u32::MAX, u32::MAX, invalid),
        (33, 2 * len + 1, 2 * len + 1, Syndrome::Nak(NakCode::RemoteAccess)),
    ];
    for (packets, offered, announced, answer) in cases {
        let mut liar = Liar::new();
        let write = liar.write(announced);
        liar.send(&write, Lie { packets, len: offered, addr: bytes.as_ptr() as u64, grants: [grant; 2] }, &[]);
        assert_eq!(liar.answer(), Some(answer), "{packets} packets, {offered} bytes, {announced} announced");
        assert_eq!(liar.victim.qp.state(), QpState::Err);
        assert!(liar.target().iter().all(|byte| *byte == 0));
    }
}
