//! The address-handle cache learns of changes from the kernel: a neighbour's MAC, this machine's addresses.
use ferroce_soft::addr::NeighbourWatch;
use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_testing::nic::{self, Inbox};
use ferroce_testing::wire::{HERE, Host, Mac, THERE, text, wait_for, wire};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AddressChange, AhAttr, AhCache, AhCacheConfig, AhCacheOptions, Context, Cq, Gid, Mr, Pd, Qp, QpAttr,
    QpInitAttr, QpState, QpType, RecvWr, SendOp, SendWr, UdDest, WcStatus, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NEW_MAC: Mac = [2, 9, 9, 9, 9, 9];
const QKEY: u32 = 0x1234;

/// A UD queue pair, with the registry of the host that it is on.
struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    gid_index: u32,
    _runtime: tempfile::TempDir,
}

impl End {
    fn new(ip: Ipv4Addr) -> Self {
        let runtime = tempfile::tempdir().unwrap();
        let runtime_dir = Some(runtime.path().join("registry"));
        let config = SoftConfig { link: LinkMode::Udp, runtime_dir, ..SoftConfig::default() };
        let context = SoftDevice::new(config).open().unwrap();
        let gid_index = context.find_gid(1, ip.into()).unwrap().index;
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, None).unwrap();
        let qp = pd.create_qp(&QpInitAttr::new(QpType::Ud, &cq)).unwrap();
        let mr = pd.alloc_mr(1024, Access::LOCAL_WRITE).unwrap();
        qp.modify(&QpAttr::init_ud(QKEY)).unwrap();
        qp.modify(&QpAttr::to(QpState::Rtr)).unwrap();
        qp.modify(&QpAttr::rts_unreliable(1)).unwrap();
        Self { context, pd, cq, qp, mr, gid_index, _runtime: runtime }
    }

    fn to(&self, ip: Ipv4Addr) -> AhAttr {
        AhAttr::roce(Gid::from(ip), self.gid_index)
    }

    fn completion(&self) -> Option<WorkCompletion> {
        let mut wc = [WorkCompletion::default()];
        (self.cq.poll(&mut wc).unwrap() == 1).then(|| wc[0])
    }

    fn post_recv(&self) {
        self.qp.post_recv(&[RecvWr::new(1, &[self.mr.sge(..).unwrap()])]).unwrap();
    }
}

/// A host, an end on it, and the cache that it uses.
struct World {
    a: Host,
    b: Host,
    here: Arc<End>,
    there: Arc<End>,
    cache: AhCache,
}

impl World {
    fn new(watch: bool) -> Self {
        let (a, b) = wire();
        let here = a.run(|| Arc::new(End::new(HERE)));
        let there = b.run(|| Arc::new(End::new(THERE)));
        let context = here.context.clone();
        let options = AhCacheOptions::new(AhCacheConfig { watch, ..AhCacheConfig::default() });
        let cache = a.run(move || context.ah_cache_with(options).unwrap());
        assert_eq!(cache.is_watched(), watch);
        Self { a, b, here, there, cache }
    }

    /// A lease of the address of the other end.
    fn get(&self) -> ferroce_verbs::AhLease {
        let (cache, here) = (self.cache.clone(), self.here.clone());
        self.a.run(move || cache.get(&here.pd, &here.to(THERE)).unwrap())
    }

    fn mac(&self) -> Mac {
        self.get().link_layer().expect("it leaves this machine").mac.expect("the neighbour has answered")
    }

    /// The other end's network device has another MAC from now on, and it tells everybody.
    fn move_away(&self) {
        self.move_to(NEW_MAC);
    }

    fn move_to(&self, mac: Mac) {
        self.b.ip(&format!("link set there address {}", text(mac)));
    }

    /// A datagram to the other end arrives there.
    fn ping(&self, lease: ferroce_verbs::AhLease) {
        let there = self.there.clone();
        self.b.run(move || there.post_recv());
        let (here, qpn) = (self.here.clone(), self.there.qp.qp_num());
        self.a.run(move || {
            let dest = UdDest { ah: &lease, qpn, qkey: QKEY };
            let sge = [here.mr.sge(..8).unwrap()];
            here.qp.post_send(&[SendWr::new(1, SendOp::Send, &sge).to(dest)]).unwrap();
            wait_for("the send", || here.completion().is_some_and(|wc| wc.status == WcStatus::Success));
        });
        let there = self.there.clone();
        self.b.run(move || {
            wait_for("the datagram", || there.completion().is_some_and(|wc| wc.status == WcStatus::Success));
        });
    }

    /// Sends a frame as a NIC with this address handle would.
    fn send_as_nic(&self, lease: &ferroce_verbs::AhLease, payload: &'static [u8]) {
        let link = lease.link_layer().unwrap();
        self.a.run(move || nic::send(link.ifindex, link.mac.unwrap(), payload));
    }
}

#[test]
fn a_neighbour_that_moves_is_resolved_anew() {
    let world = World::new(true);
    let old_mac = world.mac();
    let old = world.get();
    world.ping(old.clone());
    world.move_away();
    wait_for("the invalidation", || !old.is_cached());
    let new = world.get();
    assert_eq!(new.link_layer().unwrap().mac, Some(NEW_MAC));
    assert_eq!(old.link_layer().unwrap().mac, Some(old_mac), "holders keep what they have");
    assert!(new.generation() > old.generation());
    assert_eq!(new.attr(), old.attr());
    // A new endpoint connects.
    world.ping(new.clone());
    let inbox = world.b.run(|| Arc::new(Inbox::open()));
    world.send_as_nic(&old, b"old");
    world.send_as_nic(&new, b"new");
    let mut came = Vec::new();
    wait_for("the frame", || {
        came.extend(inbox.take());
        !came.is_empty()
    });
    assert_eq!(came, [b"new"], "with the old MAC nothing arrives");
}

/// As the kernel says it on a socket of the test's own.
fn wait_for_move(watch: &NeighbourWatch, mac: Mac) {
    wait_for("the kernel", || {
        let mut is_there = false;
        watch.changes(&mut |change| {
            let AddressChange::Neighbour { ip, mac: now, .. } = *change else { return };
            is_there |= ip == THERE && now == Some(mac);
        });
        if !is_there {
            let mut fds = [PollFd::new(watch, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap();
        }
        is_there
    });
}

/// The bound is for a machine that runs what is to run; one time of some has to be like that.
#[test]
fn t9_the_cache_knows_of_a_move_100_ms_after_the_kernel() {
    let world = World::new(true);
    let watch = world.a.run(|| NeighbourWatch::open().unwrap());
    let mut took = Vec::new();
    for number in 0..10 {
        let old = world.get();
        let mac = [2, 9, 9, 9, 9, number];
        world.move_to(mac);
        wait_for_move(&watch, mac);
        let begin = Instant::now();
        wait_for("the invalidation", || !old.is_cached());
        took.push(begin.elapsed());
        assert_eq!(world.mac(), mac);
        if took[usize::from(number)] <= Duration::from_millis(100) {
            return;
        }
    }
    panic!("the cache took {took:?} to learn what the kernel knew");
}

#[test]
fn without_the_watch_the_old_mac_is_used_for_ever() {
    let world = World::new(false);
    let old_mac = world.mac();
    world.move_away();
    // The kernel knows by now.
    let fresh = || {
        let here = world.here.clone();
        world.a.run(move || here.pd.create_ah(&here.to(THERE)).unwrap().link_layer().unwrap().mac)
    };
    wait_for("the kernel", || fresh() == Some(NEW_MAC));
    let stale = world.get();
    assert!(stale.is_cached());
    assert_eq!(world.mac(), old_mac, "this is the fault that the watch prevents");
    let inbox = world.b.run(|| Arc::new(Inbox::open()));
    world.send_as_nic(&stale, b"stale");
    world.cache.invalidate_address(&world.here.pd, &world.here.to(THERE));
    world.send_as_nic(&world.get(), b"fresh");
    let mut came = Vec::new();
    wait_for("the frame", || {
        came.extend(inbox.take());
        !came.is_empty()
    });
    assert_eq!(came, [b"fresh"]);
}

#[test]
fn t20_local_addresses_that_change_invalidate_what_uses_them() {
    let world = World::new(true);
    world.a.ip("address add 10.9.0.3/24 dev here");
    let context = world.here.context.clone();
    wait_for("the address", || context.find_gid(1, Ipv4Addr::new(10, 9, 0, 3).into()).is_ok());
    let second = context.find_gid(1, Ipv4Addr::new(10, 9, 0, 3).into()).unwrap().index;
    let from = |index| {
        let (cache, here) = (world.cache.clone(), world.here.clone());
        world.a.run(move || cache.get(&here.pd, &AhAttr::roce(Gid::from(THERE), index)).unwrap())
    };
    let (stays, goes) = (from(world.here.gid_index), from(second));
    world.a.ip("address del 10.9.0.3/24 dev here");
    wait_for("the invalidation", || !goes.is_cached());
    assert!(stays.is_cached(), "it has nothing to do with it");
    // The peer's address moves here.
    world.a.ip("address add 10.9.0.2/24 dev here");
    wait_for("the invalidation", || !stays.is_cached());
}

/// A router that is replaced by another stays where it is, and has the MAC that it had: only the route says that the way is another.
#[test]
fn t20_a_route_that_changes_invalidates_what_it_leads_to() {
    let world = World::new(true);
    let next_hop = |lease: &ferroce_verbs::AhLease| lease.link_layer().unwrap().next_hop;
    let to = |ip: [u8; 4]| {
        let (cache, here) = (world.cache.clone(), world.here.clone());
        world.a.run(move || cache.get(&here.pd, &here.to(ip.into())).unwrap())
    };
    world.a.ip("route add 10.20.0.0/24 via 10.9.0.2");
    world.a.ip("route add 10.20.1.0/24 via 10.9.0.2");
    // What is said late of the routes that were made just now concerns the others, too: so more than once.
    let unconcerned = (7..17).find_map(|router| {
        let (goes, other, near) = (to([10, 20, 0, 1]), to([10, 20, 1, 1]), world.get());
        assert_eq!(next_hop(&other), THERE);
        world.a.ip(&format!("route replace 10.20.0.0/24 via 10.9.0.{router}"));
        wait_for("the invalidation", || !goes.is_cached());
        assert_eq!(next_hop(&to([10, 20, 0, 1])), Ipv4Addr::new(10, 9, 0, router));
        (other.is_cached() && near.is_cached()).then_some((other, near))
    });
    let (other, near) = unconcerned.expect("they go where they went");
    // A rule may lead anywhere.
    world.a.ip("rule add to 10.20.1.0/24 lookup 77");
    wait_for("the invalidation", || !other.is_cached() && !near.is_cached());
}

#[test]
fn an_address_without_a_way_is_unreachable() {
    let world = World::new(true);
    let (cache, here) = (world.cache.clone(), world.here.clone());
    let error = world.a.run(move || cache.get(&here.pd, &here.to(Ipv4Addr::new(203, 0, 113, 1))).unwrap_err());
    assert_eq!(error.cause(), ferroce_verbs::ah_cache::ResolveCause::Unreachable, "{error}");
}
