//! The manager's address handles are those of the context's cache.

mod support;

use ferroce_soft::LinkMode;
use ferroce_verbs::AddressChange;
use support::{Host, Side, connected, message};

fn connect_once(a: &Side, b: &Side) {
    let (active, passive) = connected(a, b);
    message((a, &active), (b, &passive), b"hello");
    active.destroy();
    passive.destroy();
}

#[test]
fn connections_to_one_peer_share_an_address_handle() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let cache = a.cm.context().ah_cache().unwrap();
    for _ in 0..10 {
        connect_once(&a, &b);
    }
    let counters = cache.counters();
    assert_eq!((counters.misses, counters.live), (1, 1), "{counters:?}");
    assert!(counters.hits >= 20, "{counters:?}");
    assert_eq!(counters.idle, counters.entries, "the manager holds none");
    // The addresses have changed, for all that anybody knows.
    cache.invalidate(&AddressChange::Unknown);
    connect_once(&a, &b);
    let counters = cache.counters();
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
