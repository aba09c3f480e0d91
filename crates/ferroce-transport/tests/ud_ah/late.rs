//! A program that did not run for a while.

use crate::world::{MILLI, SECOND, World, ttl};
use ferroce_verbs::Ttl;

/// Reports 8219, 8201: who slept for longer than its patience reads what came meanwhile before it gives anybody up, however much that is.
#[test]
fn report_8219_what_came_is_read_before_timers_fire() {
    let world = World::new(2, ttl(Ttl::Infinite));
    let (there, back) = (world.connect(0, 1), [world.connect(1, 0), world.connect(1, 0)]);
    world.exchange(&there, 1, 1);
    for endpoint in &back {
        world.exchange(endpoint, 0, 2);
    }
    world.until("quiet", || there.flush().unwrap() && back.iter().all(|endpoint| endpoint.flush().unwrap()));
    there.am(3, &7_u32.to_be_bytes()).unwrap();
    // More than is read in one turn comes before the acknowledgement.
    for endpoint in &back {
        for number in 0..12_u32 {
            endpoint.am(3, &number.to_be_bytes()).unwrap();
        }
    }
    for _ in 0..3 {
        world.network.advance(MILLI);
        world.hosts[1].interface.progress().unwrap();
    }
    world.network.advance(31 * SECOND);
    for _ in 0..4 {
        world.hosts[0].interface.progress().unwrap();
        assert_eq!(there.failure(), None);
    }
    assert!(there.flush().unwrap(), "it was acknowledged in time");
}
