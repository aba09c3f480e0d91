//! Whatever a hostile neighbour sends, and however long, it does not make a context need more memory.

use ferroce_soft::memory::{MemoryConfig, MemoryNetwork, Random};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Access, AhAttr, Mr, Mtu, QpAttr, QpInitAttr, QpState, QpType};
use ferroce_wire::{
    Aeth, AtomicEth, Bth, Deth, Ext, Headers, MAX_HEADERS_LEN, Opcode, Reth, Syndrome, pad_len, psn_add, psn_sub,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::net::IpAddr;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

/// Bytes that are allocated and not freed.
static LIVE: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `dealloc`, and the memory is from `alloc` above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
                before = LIVE.load(Ordering::Relaxed);
            }
            // A new request is the end of what is owed for old ones, so most of the time there is none.
            network.inject(peer, ip, &attack.packet(round % 10_000 < 1000));
            // It comes in at once; at a low rate, answers leave a lot more slowly than they are asked for.
            network.advance(Duration::from_nanos(100));
        }
        let grown = LIVE.load(Ordering::Relaxed) - before;
        assert_eq!(rc.state(), QpState::Rts, "the attack was too crude");
        assert!(grown < 16 << 10, "{grown} bytes more after {rounds} packets, at a rate of {rate}");
        let counters = context.counters();
        for name in ["duplicate_request", "out_of_sequence", "stale_response", "no_recv_dropped", "unknown_qp"] {
            let (_, count) = counters.iter().find(|&&(counter, _)| counter == name).unwrap();
            assert!(*count > u64::from(rounds) / 50, "{name} is only {count}");
        }
    }
}
