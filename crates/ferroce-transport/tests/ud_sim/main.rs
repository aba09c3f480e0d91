//! Interfaces on a network that loses, repeats, delays and damages packets: what is sent arrives once and in order, or its endpoint
//! fails once; and at the end nothing is left.

mod reports;
#[path = "../seeds/mod.rs"]
mod seeds;
mod world;

use ferroce_transport::ud::{Cause, Config, EndpointId, MAX_WINDOW, PeerAddress, SendError};
use seeds::seeds;
use std::collections::VecDeque;
use std::time::Duration;
use world::{BAD, Faults, Random, SECOND, World, address};

/// Sends `count` messages on each endpoint as the windows allow, and waits until all are acknowledged.
fn send_all(world: &mut World, ends: &[(usize, EndpointId)], count: u32) {
    let deadline = world.now + 3600 * SECOND;
    let mut left: VecDeque<_> = ends.iter().map(|&(host, id)| (host, id, count)).collect();
    while let Some((host, id, mut more)) = left.pop_front() {
        // Whoever was refused is told when to try again, and need not try before.
        while more != 0 && !world.hosts[host].programs[&id].refused {
            match world.send(host, id) {
                Ok(()) => more -= 1,
                Err(SendError::Busy(_)) => break,
                Err(error) => panic!("{error}, after {:?}", world.hosts[host].programs[&id].failed),
            }
        }
        if more != 0 {
            left.push_back((host, id, more));
        }
        let next = world.now + 1_000_000;
        world.run_until(next);
        assert!(world.now < deadline, "stuck");
    }
    while !ends.iter().all(|&(host, id)| world.hosts[host].interface.flush(world.now, id).unwrap()) {
        let next = world.now + 10_000_000;
        world.run_until(next);
        assert!(world.now < deadline, "never acknowledged");
    }
}

#[test]
fn everything_arrives_once_and_in_order() {
    for seed in seeds("UD", 150) {
        let config = Config { mtu: 512, ..Config::default() };
        let mut world = World::new(seed, 2, &config, BAD);
        let ends = [(0, world.connect(0, 1)), (0, world.connect(0, 1))];
        send_all(&mut world, &ends, 300);
        for (host, id) in ends {
            assert_eq!(world.received_of(host, id), 300, "seed {seed}");
            world.close(host, id);
        }
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert!(world.is_over(), "seed {seed}");
    }
}

/// Several endpoints at both ends connect to the other one at once: each has its session, and ending one does not end another
/// (UCX reports 6040, 2453, 892, 544, 953, 1005).
#[test]
fn r6040_r2453_r892_r544_r953_r1005_simultaneous_connects_agree() {
    for seed in seeds("UD", 300) {
        let faults = if seed % 2 == 0 { Faults::default() } else { BAD };
        let mut world = World::new(seed, 2, &Config::default(), faults);
        let mut ends = vec![];
        for _ in 0..1 + seed % 4 {
            ends.push((0, world.connect(0, 1)));
            ends.push((1, world.connect(1, 0)));
        }
        send_all(&mut world, &ends, 10);
        for &(host, id) in &ends {
            assert_eq!(world.received_of(host, id), 10, "seed {seed}");
            assert!(world.hosts[host].interface.is_connected(id, address(1 - host)));
            assert!(!world.hosts[host].interface.is_connected(id, address(host)));
        }
        for host in 0..2 {
            // An initiator here for each acceptor there, if nothing came twice.
            let many = world.hosts[host].interface.len();
            assert!(many == ends.len() || seed % 2 != 0, "seed {seed}: {many}");
        }
        let (host, id) = ends.pop().unwrap();
        world.close(host, id);
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        send_all(&mut world, &ends, 10);
        for (host, id) in ends {
            assert_eq!(world.received_of(host, id), 20, "seed {seed}");
            world.close(host, id);
        }
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert!(world.is_over(), "seed {seed}");
    }
}

/// What is sent and closed at once still arrives, also if the endpoint was not even connected.
#[test]
fn a_closed_endpoint_delivers_what_was_sent() {
    for seed in seeds("UD", 300) {
        let mut world = World::new(seed, 2, &Config::default(), BAD);
        let id = world.connect(0, 1);
        if seed % 3 == 0 {
            world.run_until(SECOND);
        }
        for _ in 0..50 {
            world.send(0, id).unwrap();
        }
        world.close(0, id);
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert_eq!(world.received_of(0, id), 50, "seed {seed}");
        assert!(world.is_over(), "seed {seed}");
    }
}

/// UCX report 11092. A peer that started again under the same address does not know the session: the endpoint fails, and a new one works.
#[test]
fn r11092_a_restart_is_a_new_session() {
    for seed in seeds("UD", 200) {
        let config = Config::default();
        let faults = if seed % 2 == 0 { Faults::default() } else { BAD };
        let mut world = World::new(seed, 2, &config, faults);
        let old = world.connect(0, 1);
        send_all(&mut world, &[(0, old)], 10);
        world.restart(1, &config);
        let new = world.connect(0, 1);
        send_all(&mut world, &[(0, new)], 10);
        assert_eq!(world.received_of(0, new), 10, "seed {seed}");
        // The old one hears of it when it asks.
        let _ = world.send(0, old);
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert_eq!(world.hosts[0].programs[&old].failed, Some(Cause::Reset), "seed {seed}");
        assert_eq!(world.hosts[0].interface.send(world.now, old, 0, &[]), Err(SendError::Failed(old)));
        world.close(0, old);
        world.close(0, new);
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert!(world.is_over(), "seed {seed}");
    }
}

/// Nobody is there: connecting ends in time, and so does what was connected.
#[test]
fn silence_ends_in_time() {
    let config = Config { keepalive: Some(Duration::from_secs(5)), ..Config::default() };
    let mut world = World::new(1, 2, &config, Faults::default());
    let (busy, idle) = (world.connect(0, 1), world.connect(0, 1));
    send_all(&mut world, &[(0, busy), (0, idle)], 1);
    // Idle for ten minutes, but alive.
    world.run_until(600 * SECOND);
    assert!(world.hosts[0].programs.values().all(|program| program.failed.is_none()));
    world.cut[1] = true;
    let late = world.connect(0, 1);
    world.send(0, busy).unwrap();
    let since = world.now;
    world.run_until(since + 29 * SECOND);
    assert!(world.hosts[0].programs.values().all(|program| program.failed.is_none()));
    world.run_until(since + 31 * SECOND);
    assert_eq!(world.hosts[0].programs[&busy].failed, Some(Cause::PeerTimeout));
    assert_eq!(world.hosts[0].programs[&late].failed, Some(Cause::ConnectTimeout));
    world.run_until(since + 36 * SECOND);
    assert_eq!(world.hosts[0].programs[&idle].failed, Some(Cause::PeerTimeout));
    for id in [busy, idle, late] {
        world.close(0, id);
    }
    world.run_until(since + 120 * SECOND);
    assert!(world.is_over());
}

/// A storm of endpoints that come and go, with restarts and partitions in between: each ends once, and nothing is left.
#[test]
fn storms_leave_nothing_behind() {
    let config = Config {
        connect_timeout: Duration::from_secs(3),
        peer_timeout: Duration::from_secs(3),
        linger: Duration::from_secs(3),
        ..Config::default()
    };
    for seed in seeds("UD", 60) {
        let mut world = World::new(seed, 4, &config, BAD);
        let mut random = Random(seed ^ 0x5eed);
        let mut open: Vec<(usize, EndpointId)> = vec![];
        for _ in 0..400 {
            match random.below(100) {
                0..30 => {
                    let (host, peer) = (random.below(4) as usize, random.below(4) as usize);
                    let id = world.connect(host, peer);
                    open.push((host, id));
                }
                30..75 if !open.is_empty() => {
                    let (host, id) = open[random.below(open.len() as u64) as usize];
                    for _ in 0..random.below(20) {
                        let _ = world.send(host, id);
                    }
                }
                75..92 if !open.is_empty() => {
                    let (host, id) = open.swap_remove(random.below(open.len() as u64) as usize);
                    world.close(host, id);
                }
                92..94 => {
                    let host = random.below(4) as usize;
                    world.restart(host, &config);
                    open.retain(|(of, _)| *of != host);
                }
                94..97 => {
                    let host = random.below(4) as usize;
                    world.cut[host] = !world.cut[host];
                }
                _ => {}
            }
            let until = world.now + random.below(50_000_000);
            world.run_until(until);
        }
        world.cut.fill(false);
        let until = world.now + 20 * SECOND;
        world.run_until(until);
        for (host, id) in open {
            world.close(host, id);
        }
        let until = world.now + 20 * SECOND;
        world.run_until(until);
        for host in &world.hosts {
            assert!(host.programs.values().all(|program| program.closed == program.gone), "seed {seed}");
        }
        assert!(
            world.is_over(),
            "seed {seed}: {:?}",
            world.hosts.iter().map(|host| host.interface.len()).collect::<Vec<_>>()
        );
    }
}

/// A flood of forged CONNECTs is bounded, and does not keep others out for longer than they wait.
#[test]
fn forged_connects_cost_a_bounded_amount() {
    let config = Config { max_half_open: 64, connect_timeout: Duration::from_secs(5), ..Config::default() };
    let mut world = World::new(1, 2, &config, Faults::default());
    let id = world.connect(0, 1);
    send_all(&mut world, &[(0, id)], 5);
    let before = world.hosts[1].interface.len();
    let mut random = Random(9);
    for host in 0..2000_u32 {
        let mut packet = vec![1, 3, 0, 0, 0, 0, 0, 0];
        packet.extend(0_u64.to_be_bytes());
        packet.extend((random.next() | 1).to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(random.next().to_be_bytes());
        let from = PeerAddress { gid: address(0).gid, qpn: 1000 + host };
        world.hosts[1].interface.receive(world.now, from, &packet, &mut |_| panic!("nothing was sent"));
        assert!(world.hosts[1].interface.len() <= before + 64);
    }
    assert_eq!(world.hosts[1].interface.counters().refused, 2000 - 64);
    while world.hosts[1].interface.poll_transmit(world.now).is_some() {}
    send_all(&mut world, &[(0, id)], 5);
    let now = world.now + 6 * SECOND;
    world.hosts[1].interface.on_timeout(now);
    assert_eq!(world.hosts[1].interface.len(), before);
}

/// Random bytes, and random fields in the right places, in every state: no panic, no message, no memory.
#[test]
fn what_comes_from_strangers_changes_nothing() {
    for seed in seeds("UD", 200) {
        let mut world = World::new(seed, 2, &Config::default(), Faults::default());
        let id = world.connect(0, 1);
        if seed % 4 != 0 {
            send_all(&mut world, &[(0, id)], 5);
        }
        if seed % 4 == 2 {
            world.close(0, id);
        }
        let mut random = Random(seed);
        let before = world.hosts[0].interface.len();
        for _ in 0..300 {
            let mut packet = vec![1, random.below(7) as u8, random.below(33) as u8, random.below(3) as u8];
            packet.extend((0..random.below(60)).map(|_| random.next() as u8));
            if packet[1] == 3 {
                packet[1] = 0;
            }
            // From the peer's own address, which can be forged.
            let from = address(if random.chance(80) { 1 } else { 0 });
            world.hosts[0].interface.receive(world.now, from, &packet, &mut |_| panic!("nobody sent that"));
        }
        assert_eq!(world.hosts[0].interface.len(), before);
        while world.hosts[0].interface.poll_transmit(world.now).is_some() {}
        if seed % 4 == 1 {
            send_all(&mut world, &[(0, id)], 5);
            assert_eq!(world.received_of(0, id), 10);
        }
    }
}

#[test]
fn the_window_is_a_bound_that_says_so() {
    let mut world = World::new(1, 2, &Config::default(), Faults::default());
    let id = world.connect(0, 1);
    let mut queued = 0;
    while world.send(0, id).is_ok() {
        queued += 1;
    }
    assert_eq!(queued, MAX_WINDOW);
    assert_eq!(world.send(0, id), Err(SendError::Busy(id)));
    let most = world.hosts[0].interface.config().max_message();
    let long = vec![0; most + 1];
    assert_eq!(world.hosts[0].interface.send(0, id, 0, &long), Err(SendError::TooLong { len: most + 1, most }));
    assert_eq!(world.hosts[0].interface.send(0, id, 32, &[]), Err(SendError::AmId(32)));
}

/// Whatever of its handshake is lost, a connection on which nothing is sent stays.
#[test]
fn a_connection_survives_the_loss_of_its_handshake() {
    for seed in seeds("UD", 300) {
        let mut world = World::new(seed, 2, &Config::default(), Faults { loss: 20, ..BAD });
        let id = world.connect(0, 1);
        world.run_until(100 * SECOND);
        assert!(world.hosts[0].interface.is_connected(id, address(1)), "seed {seed}");
        assert_eq!(world.hosts[1].interface.len(), 1, "seed {seed}");
        send_all(&mut world, &[(0, id)], 3);
    }
}

/// An initiator has given up, and its peer did not hear of that: it is told when it asks.
#[test]
fn an_end_that_gave_up_says_so() {
    let mut world = World::new(1, 2, &Config::default(), Faults::default());
    let id = world.connect(0, 1);
    send_all(&mut world, &[(0, id)], 3);
    world.run_until(25 * SECOND);
    world.cut[0] = true;
    world.send(0, id).unwrap();
    world.run_until(56 * SECOND);
    assert_eq!(world.hosts[0].programs[&id].failed, Some(Cause::PeerTimeout));
    assert_eq!(world.hosts[1].interface.len(), 1);
    world.cut[0] = false;
    world.run_until(59 * SECOND);
    assert_eq!(world.hosts[1].interface.len(), 0);
}

/// Packets of a session that come from another address or endpoint, as somebody would send them who has seen them.
#[test]
fn a_session_belongs_to_an_address() {
    let mut world = World::new(1, 3, &Config::default(), Faults::default());
    let id = world.connect(0, 1);
    send_all(&mut world, &[(0, id)], 3);
    world.send(0, id).unwrap();
    while let Some(transmit) = world.hosts[0].interface.poll_transmit(world.now) {
        let other = PeerAddress { qpn: 8, ..address(0) };
        for from in [address(2), other] {
            let receiver = &mut world.hosts[1].interface;
            receiver.receive(world.now, from, &transmit.packet, &mut |_| panic!("it is not from the peer"));
        }
        let mut other = transmit.packet.clone();
        other[17] ^= 1;
        let receiver = &mut world.hosts[1].interface;
        receiver.receive(world.now, address(0), &other, &mut |_| panic!("it is not of the session"));
        world.launch(0, 1, transmit.packet);
    }
    assert_eq!(world.hosts[1].interface.counters().wrong_source, 3);
    let until = world.now + SECOND;
    world.run_until(until);
    assert_eq!(world.received_of(0, id), 4);
}

/// 100,000 endpoints over one queue pair connect, talk and close.
#[test]
fn many_endpoints_over_one_interface() {
    const COUNT: usize = 100_000;
    let mut world = World::new(1, 2, &Config::default(), Faults { loss: 1, ..Faults::default() });
    let ids: Vec<EndpointId> = (0..COUNT).map(|_| world.connect(0, 1)).collect();
    for &id in &ids {
        world.send(0, id).unwrap();
    }
    world.run_until(20 * SECOND);
    // More than may be half open at once: the others waited.
    assert!(world.hosts[1].interface.counters().refused != 0);
    for &id in &ids {
        assert_eq!(world.received_of(0, id), 1);
        world.close(0, id);
    }
    let until = world.now + 60 * SECOND;
    world.run_until(until);
    assert!(world.is_over());
    assert!(world.hosts[0].programs.values().all(|program| program.gone && program.failed.is_none()));
}

/// Timers that were overtaken by earlier ones do not pile up, however busy an endpoint is and however long.
#[test]
fn a_busy_endpoint_leaves_no_timers_behind() {
    let mut world = World::new(1, 2, &Config::default(), Faults::default());
    let ids: Vec<EndpointId> = (0..4).map(|_| world.connect(0, 1)).collect();
    for _ in 0..20_000 {
        for &id in &ids {
            world.send(0, id).unwrap();
        }
        let until = world.now + 1_000_000;
        world.run_until(until);
        for host in &world.hosts {
            let usage = host.interface.usage();
            assert!(usage.timers <= 2 * usage.endpoints + 65, "{usage:?}");
        }
    }
}

/// A peer that leaves gaps on purpose makes this end keep no more than it may, and honest peers still get through.
#[test]
fn what_is_held_for_peers_that_leave_gaps_is_bounded() {
    let config = Config { max_held: 10_000, ..Config::default() };
    let mut world = World::new(1, 2, &config, Faults { loss: 10, ..Faults::default() });
    let greedy: Vec<EndpointId> = (0..20).map(|_| world.connect(0, 1)).collect();
    let ends: Vec<_> = greedy.iter().map(|&id| (0, id)).collect();
    send_all(&mut world, &ends, 1);
    for &id in &greedy {
        for _ in 0..10 {
            world.send(0, id).unwrap();
        }
        let mut first = true;
        while let Some(transmit) = world.hosts[0].interface.poll_transmit(world.now) {
            if !std::mem::take(&mut first) {
                world.arrive(0, 1, &transmit.packet);
            }
        }
    }
    let usage = world.hosts[1].interface.usage();
    assert!(usage.held > 0 && usage.held <= 10_000, "{usage:?}");
    let id = world.connect(0, 1);
    send_all(&mut world, &[(0, id)], 2000);
    let usage = world.hosts[1].interface.usage();
    assert!(usage.held <= 10_000, "{usage:?}");
}
