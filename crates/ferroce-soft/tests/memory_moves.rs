//! Addresses that move, on a network in memory: what was resolved before leads nowhere, and the cache resolves anew.

use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, AhCacheConfig, AhCacheOptions, AhLease, Context, Cq, Mr, Pd, Qp, QpAttr, QpInitAttr, QpState,
    QpType, RecvWr, SendOp, SendWr, Ttl, UdDest, WorkCompletion,
};
use std::net::IpAddr;
use std::time::Duration;

const QKEY: u32 = 7;

struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

fn ip(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

fn end(network: &MemoryNetwork, host: u8) -> End {
    let context = network.host(ip(host)).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None).unwrap();
    let qp = pd.create_qp(&QpInitAttr::new(QpType::Ud, &cq)).unwrap();
    let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    qp.modify(&QpAttr::init_ud(QKEY)).unwrap();
    qp.modify(&QpAttr::to(QpState::Rtr)).unwrap();
    qp.modify(&QpAttr::rts_unreliable(1)).unwrap();
    End { context, pd, cq, qp, mr }
}

/// Whether a datagram that is sent so arrives.
fn arrives(network: &MemoryNetwork, from: &End, to: &End, lease: &AhLease) -> bool {
    to.qp.post_recv(&[RecvWr::new(1, &[to.mr.sge(..).unwrap()])]).unwrap();
    let dest = UdDest { ah: lease, qpn: to.qp.qp_num(), qkey: QKEY };
    from.qp.post_send(&[SendWr::new(2, SendOp::Send, &[from.mr.sge(..8).unwrap()]).to(dest)]).unwrap();
    assert!(network.run_until_idle(Duration::from_secs(1)));
    let mut wc = [WorkCompletion::default(); 2];
    assert_eq!(from.cq.poll(&mut wc).unwrap(), 1);
    to.cq.poll(&mut wc).unwrap() == 1
}

fn run(config: AhCacheConfig) -> (bool, bool, bool) {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (a, b) = (end(&network, 1), end(&network, 2));
    let cache = a.context.ah_cache_with(AhCacheOptions::new(config)).unwrap();
    let attr = AhAttr::roce(b.context.query_gid(1, 0).unwrap().gid, 0);
    let old = cache.get(&a.pd, &attr).unwrap();
    assert!(arrives(&network, &a, &b, &old));
    network.move_address(ip(3));
    assert_eq!(old.is_cached(), config.ttl != Ttl::Bypass, "that was another");
    network.move_address(ip(2));
    let new = cache.get(&a.pd, &attr).unwrap();
    assert_eq!(new.attr(), old.attr());
    let moved = new.link_layer() != old.link_layer();
    (moved, arrives(&network, &a, &b, &old), arrives(&network, &a, &b, &new))
}

#[test]
fn t9_a_new_endpoint_has_the_new_mac_and_the_old_one_fails_alone() {
    assert_eq!(run(AhCacheConfig::default()), (true, false, true));
}

#[test]
fn t9_with_ttl_0_too() {
    assert_eq!(run(AhCacheConfig { ttl: Ttl::Bypass, ..AhCacheConfig::default() }), (true, false, true));
}

#[test]
fn without_the_watch_a_new_endpoint_sends_to_the_old_mac() {
    assert_eq!(run(AhCacheConfig { watch: false, ..AhCacheConfig::default() }), (false, false, false));
}
