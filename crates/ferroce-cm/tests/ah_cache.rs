//! The manager's address handles are those of the context's cache.

mod support;

use ferroce_soft::LinkMode;
use ferroce_verbs::AddressChange;
use ferroce_verbs::ah_cache::AhCacheCounters;
use std::time::Instant;
use support::{Host, PATIENCE, Side, connected, message};

fn connect_once(a: &Side, b: &Side) {
    let (active, passive) = connected(a, b);
    message((a, &active), (b, &passive), b"hello");
    active.destroy();
    passive.destroy();
}

/// What the cache has counted once nobody holds anything of it: the device's thread may have a last message under way.
fn at_rest(side: &Side) -> AhCacheCounters {
    let cache = side.cm.context().ah_cache().unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counters = cache.counters();
        if counters.idle == counters.live {
            return counters;
        }
        assert!(Instant::now() < deadline, "the manager holds an address handle: {counters:?}");
        std::thread::yield_now();
    }
}

#[test]
fn connections_to_one_peer_share_an_address_handle() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let cache = a.cm.context().ah_cache().unwrap();
    for _ in 0..10 {
        connect_once(&a, &b);
    }
    let counters = at_rest(&a);
    assert_eq!((counters.misses, counters.live, counters.entries), (1, 1, 1), "{counters:?}");
    assert!(counters.hits >= 20, "{counters:?}");
    // The addresses have changed, for all that anybody knows.
    cache.invalidate(&AddressChange::Unknown);
    connect_once(&a, &b);
    let counters = at_rest(&a);
    assert_eq!((counters.misses, counters.live), (2, 1), "{counters:?}");
    let named = a.cm.context().counters();
    assert!(named.contains(&("ah_cache_misses", 2)), "{named:?}");
}

#[test]
fn a_cache_that_is_closed_ends_what_needs_it_and_nothing_else() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (active, passive) = connected(&a, &b);
    a.cm.context().clone().close();
    message((&a, &active), (&b, &passive), b"hello");
    message((&b, &passive), (&a, &active), b"hello");
}
