//! A peer on this machine that is stopped (`kill -STOP`, a debugger) holds up nobody but those who need its answers.

use ferroce_soft::host::{JoinOptions, Registry};
use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, Ah, AhAttr, Context, Cq, Gid, Mr, Pd, Qp, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, SendWr,
    UdDest, WorkCompletion,
};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

const QKEY: u32 = 7;
const LEN: usize = 4096;
/// More than a ring of the default size holds.
const MANY: u32 = 400;
const PATIENCE: Duration = Duration::from_secs(60);

struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    memory: Mr,
    gid_index: u32,
}

impl End {
    fn new(directory: &Path) -> Self {
        let config =
            SoftConfig { link: LinkMode::Shm, runtime_dir: Some(directory.to_owned()), ..SoftConfig::default() };
        let context = SoftDevice::new(config).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024, None).unwrap();
        let cap = QpCap { max_send_wr: MANY + 1, ..QpCap::default() };
        let qp = pd.create_qp(&QpInitAttr { cap, ..QpInitAttr::new(QpType::Ud, &cq) }).unwrap();
        qp.modify(&QpAttr::init_ud(QKEY)).unwrap();
        qp.modify(&QpAttr::to(QpState::Rtr)).unwrap();
        qp.modify(&QpAttr::rts_unreliable(0)).unwrap();
        let memory = pd.alloc_mr(LEN + 40, Access::LOCAL_WRITE).unwrap();
        let gid_index = context.find_gid(1, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap().index;
        Self { context, pd, cq, qp, memory, gid_index }
    }

    fn ah(&self) -> Ah {
        let gid = Gid::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
        self.pd.create_ah(&AhAttr::roce(gid, self.gid_index)).unwrap()
    }

    fn send(&self, wr_id: u64, ah: &Ah, qpn: u32) {
        let data = [self.memory.sge(..LEN).unwrap()];
        let wr = SendWr::send(wr_id, &data).to(UdDest { ah, qpn, qkey: QKEY });
        self.qp.post_send(&[wr]).unwrap();
    }

    /// Polls until a completion came, and others with it.
    fn completion(&self, others: &[&Self]) -> WorkCompletion {
        let start = Instant::now();
        let mut out = [WorkCompletion::default()];
        loop {
            if self.cq.poll(&mut out).unwrap() == 1 {
                return out[0];
            }
            for other in others {
                other.cq.poll(&mut []).unwrap();
            }
            assert!(start.elapsed() < PATIENCE, "nothing completes");
        }
    }
}

/// Datagrams to a peer that reads nothing are lost after a while; those behind them, to others, are not held up for ever.
#[test]
fn datagrams_to_others_pass_a_peer_that_is_stopped() {
    ferroce_testing::isolate();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("registry");
    let (sender, receiver) = (End::new(&directory), End::new(&directory));
    // It has joined, and nobody makes it read.
    let stopped = Registry::join(&JoinOptions { directory: Some(directory), ..JoinOptions::default() }).unwrap();
    let stopped_qpn = u32::from(stopped.slot()) << 16 | 2;
    receiver.qp.post_recv(&[RecvWr::new(9, &[receiver.memory.sge(..).unwrap()])]).unwrap();
    let ah = sender.ah();
    for wr_id in 0..u64::from(MANY) {
        sender.send(wr_id, &ah, stopped_qpn);
    }
    sender.send(MANY.into(), &ah, receiver.qp.qp_num());
    let wc = receiver.completion(&[&sender]);
    assert!(wc.is_ok() && wc.wr_id == 9 && wc.byte_len as usize == LEN + 40, "{wc:?}");
    for wr_id in 0..=u64::from(MANY) {
        let wc = sender.completion(&[]);
        assert!(wc.is_ok() && wc.wr_id == wr_id, "{wc:?}");
    }
    let lost = sender.context.counters().into_iter().find(|(name, _)| *name == "port_xmit_discards");
    assert!(lost.is_some_and(|(_, lost)| lost > 0 && lost < u64::from(MANY)), "{lost:?}");
}
