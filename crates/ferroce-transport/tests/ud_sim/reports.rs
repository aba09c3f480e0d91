//! Public reports about transports before this one. Each test carries the number of its report; ARCHITECTURE.md has the others.

use crate::seeds::seeds;
use crate::send_all;
use crate::world::{BAD, Faults, SECOND, World, address};
use ferroce_transport::ud::{Cause, Config, EndpointId};
use std::time::Duration;

/// 11107, 8743: what comes late for an endpoint that is gone does nothing to the one that has its place now.
#[test]
fn r11107_r8743_an_old_acknowledgement_does_not_land_on_a_new_endpoint() {
    let mut world = World::new(1, 2, &Config::default(), Faults::default());
    let old = world.connect(0, 1);
    send_all(&mut world, &[(0, old)], 5);
    // An acknowledgement of all that, which the network keeps.
    world.hosts[0].interface.check(world.now, old).unwrap();
    let ask = world.hosts[0].interface.poll_transmit(world.now).unwrap();
    world.arrive(0, 1, &ask.packet);
    let late = world.hosts[1].interface.poll_transmit(world.now).unwrap().packet;
    world.close(0, old);
    let until = world.now + SECOND;
    world.run_until(until);
    assert!(world.is_over());
    let new = world.connect(0, 1);
    let until = world.now + SECOND;
    world.run_until(until);
    let place = |id: EndpointId| format!("{id}").split('/').next().unwrap().to_owned();
    assert!(place(new) == place(old) && new != old, "{old} {new}");
    for _ in 0..5 {
        world.send(0, new).unwrap();
    }
    while world.hosts[0].interface.poll_transmit(world.now).is_some() {}
    let before = world.hosts[0].interface.counters().no_endpoint;
    world.arrive(1, 0, &late);
    assert_eq!(world.hosts[0].interface.counters().no_endpoint, before + 1);
    assert!(!world.hosts[0].interface.flush(world.now, new).unwrap(), "it acknowledged what it never saw");
    let until = world.now + SECOND;
    world.run_until(until);
    assert_eq!(world.received_of(0, new), 5);
    assert!(world.hosts[0].programs[&new].failed.is_none());
}

/// 11822, 11899: an end that nobody owns, whose peer went away without a word, asks for a sign of life, and goes; who reconnects is not
/// matched with it.
#[test]
fn r11822_r11899_what_a_dead_peer_left_goes_and_is_not_met_again() {
    let config = Config::default();
    let mut world = World::new(1, 2, &config, Faults::default());
    let old = world.connect(0, 1);
    send_all(&mut world, &[(0, old)], 3);
    world.cut[0] = true;
    world.restart(0, &config);
    world.cut[0] = false;
    // What is left of the old one is still there when the new one comes.
    assert_eq!(world.hosts[1].interface.len(), 1);
    let new = world.connect(0, 1);
    send_all(&mut world, &[(0, new)], 3);
    assert_eq!(world.received_of(0, new), 3);
    assert_eq!(world.hosts[1].interface.len(), 2);
    let until = world.now + 61 * SECOND;
    world.run_until(until);
    assert_eq!(world.hosts[1].interface.len(), 1, "the old one asked, was told, and went");
    send_all(&mut world, &[(0, new)], 3);
}

/// 8219, 8201: whoever keeps sending to a dead peer finds out all the same, counted from the last acknowledgement.
#[test]
fn r8219_r8201_sends_do_not_keep_a_dead_peer_alive() {
    let mut world = World::new(1, 2, &Config::default(), Faults::default());
    let id = world.connect(0, 1);
    send_all(&mut world, &[(0, id)], 3);
    world.run_until(100 * SECOND);
    world.cut[1] = true;
    for second in 100..135 {
        // It may have failed.
        let _ = world.send(0, id);
        world.run_until(second * SECOND);
        assert!(second < 131 || world.hosts[0].programs[&id].failed == Some(Cause::PeerTimeout), "at {second} s");
        assert!(second > 129 || world.hosts[0].programs[&id].failed.is_none(), "at {second} s");
    }
}

/// 7093: a keepalive that is much shorter than what a bad network needs does not kill a peer that lives.
#[test]
fn r7093_a_short_keepalive_does_not_kill_a_live_peer() {
    let config = Config { keepalive: Some(Duration::from_secs(1)), ..Config::default() };
    for seed in seeds("UD", 20) {
        let mut world = World::new(seed, 2, &config, Faults { loss: 20, ..BAD });
        let id = world.connect(0, 1);
        world.run_until(1200 * SECOND);
        assert!(world.hosts[0].programs[&id].failed.is_none(), "seed {seed}");
        assert!(world.hosts[0].interface.is_connected(id, address(1)));
    }
}

/// 7093: nor does a single lost packet, where the program asks for a sign of life itself: the question is repeated until the peer's time
/// is over, whatever the keepalive is.
#[test]
fn r7093_one_lost_answer_does_not_kill_a_live_peer() {
    let timeout = Config::default().peer_timeout;
    for keepalive in [None, Some(timeout), Some(10 * timeout)] {
        let mut world = World::new(1, 2, &Config { keepalive, ..Config::default() }, Faults::default());
        let id = world.connect(0, 1);
        send_all(&mut world, &[(0, id)], 3);
        world.hosts[0].interface.check(world.now, id).unwrap();
        let ask = world.hosts[0].interface.poll_transmit(world.now).unwrap();
        world.arrive(0, 1, &ask.packet);
        let lost = world.hosts[1].interface.poll_transmit(world.now);
        assert!(lost.is_some(), "there is no answer to lose");
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert_eq!(world.hosts[0].programs[&id].failed, None, "{keepalive:?}");
        // Whoever is dead is found out in time, however often the program asks meanwhile.
        world.cut[1] = true;
        let begin = world.now;
        for step in 0..300 {
            world.run_until(begin + step * SECOND / 10);
            world.hosts[0].interface.check(world.now, id).unwrap();
        }
        world.run_until(begin + 30 * SECOND - 1);
        assert_eq!(world.hosts[0].programs[&id].failed, None, "{keepalive:?}");
        world.run_until(begin + 30 * SECOND);
        assert_eq!(world.hosts[0].programs[&id].failed, Some(Cause::PeerTimeout), "{keepalive:?}");
    }
}

/// 7301, 7315: each endpoint has its own deadline: that others end changes nothing about who is asked, and when.
#[test]
fn r7301_r7315_keepalive_goes_on_when_others_end() {
    let config = Config { keepalive: Some(Duration::from_secs(5)), ..Config::default() };
    let mut world = World::new(1, 3, &config, Faults::default());
    let ids: Vec<EndpointId> = (0..100).map(|_| world.connect(0, 1)).collect();
    let (stays, lost) = (world.connect(0, 1), world.connect(0, 2));
    world.run_until(SECOND);
    for (number, id) in ids.into_iter().enumerate() {
        world.close(0, id);
        world.run_until((number as u64 + 2) * SECOND / 4);
    }
    let begin = world.now;
    world.cut[2] = true;
    world.run_until(begin + 36 * SECOND);
    assert_eq!(world.hosts[0].programs[&lost].failed, Some(Cause::PeerTimeout));
    assert!(world.hosts[0].programs[&stays].failed.is_none());
    let packets = world.packets;
    world.run_until(begin + 136 * SECOND);
    let asked = world.packets - packets;
    assert!((30..60).contains(&asked), "a question and an answer every five seconds are not {asked} packets");
}

/// 8971: a failure says what was seen: who was last heard of, what was acknowledged, what was tried, and how late the timer was.
#[test]
fn r8971_a_failure_carries_its_evidence() {
    let config = Config { keepalive: Some(Duration::from_secs(2)), ..Config::default() };
    let mut world = World::new(1, 2, &config, Faults::default());
    let id = world.connect(0, 1);
    send_all(&mut world, &[(0, id)], 3);
    let heard = world.now;
    world.run_until(10 * SECOND);
    world.cut[1] = true;
    world.send(0, id).unwrap();
    while world.hosts[0].interface.poll_transmit(world.now).is_some() {}
    // The process does not run for a while.
    world.now += 45 * SECOND;
    world.hosts[0].interface.on_timeout(world.now);
    let Some(ferroce_transport::ud::Event::Failed(failed, failure)) = world.hosts[0].interface.poll_event() else {
        panic!("it did not fail")
    };
    assert_eq!((failed, failure.cause), (id, Cause::PeerTimeout));
    let evidence = failure.evidence;
    assert!(evidence.last_heard >= heard && evidence.last_heard <= 10 * SECOND, "{evidence:?}");
    assert_eq!(evidence.last_progress, 10 * SECOND, "since then it waited");
    assert!(evidence.probes >= 3, "{evidence:?}");
    assert!(evidence.timer_late_by > 10 * SECOND, "{evidence:?}");
    assert!(failure.to_string().contains("late"));
}

/// A flush that waits asks its peer once, however often it is looked at; what was sent before it is waited for, and nothing else.
#[test]
fn a_flush_asks_once_and_waits_for_what_was_sent_before_it() {
    let mut world = World::new(1, 2, &Config::default(), Faults::default());
    let id = world.connect(0, 1);
    send_all(&mut world, &[(0, id)], 3);
    world.cut[1] = true;
    for _ in 0..3 {
        world.send(0, id).unwrap();
    }
    let interface = &mut world.hosts[0].interface;
    let mut asked = 0;
    for _ in 0..100 {
        assert!(!interface.flush(world.now, id).unwrap());
        while let Some(transmit) = interface.poll_transmit(world.now) {
            // The flag of the header that asks for an acknowledgement.
            asked += transmit.packet[3] & 1;
        }
    }
    assert_eq!(asked, 1, "with the last of what is sent");
    let before = interface.sent(id).unwrap();
    assert!(!interface.is_acknowledged(id, before).unwrap());
    // After all has left it is asked by itself, once.
    world.cut[1] = false;
    let until = world.now + SECOND;
    world.run_until(until);
    assert!(world.hosts[0].interface.is_acknowledged(id, before).unwrap());
    world.send(0, id).unwrap();
    let interface = &mut world.hosts[0].interface;
    assert!(interface.is_acknowledged(id, before).unwrap(), "what came later does not count");
    let after = interface.sent(id).unwrap();
    let flown: Vec<_> = std::iter::from_fn(|| interface.poll_transmit(world.now)).collect();
    assert_eq!(flown.iter().filter(|transmit| transmit.packet[3] & 1 != 0).count(), 0);
    let mut packets = 0;
    for _ in 0..100 {
        assert!(!interface.flush(world.now, id).unwrap() && !interface.is_acknowledged(id, after).unwrap());
        packets += std::iter::from_fn(|| interface.poll_transmit(world.now)).count();
    }
    assert_eq!(packets, 1);
    let until = world.now + SECOND;
    world.run_until(until);
    assert!(world.hosts[0].interface.is_acknowledged(id, after).unwrap());
}
