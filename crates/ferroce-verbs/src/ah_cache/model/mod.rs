//! All orders in which threads may get, put, let expire, invalidate, evict and close, within bounds: nobody holds an address handle
//! that is destroyed, no address is resolved more than once for a generation, what is cached is not older than the last word of the
//! device, and nothing is left.
//!
//! Shuttle (`sync`) decides which thread runs, and the rest is the cache itself, parked leases included.

mod bounded;
mod ends;
mod expiry;
mod invalidation;
mod world;

use ferroce_testing::model::{exhaust, sample};

macro_rules! checked {
    ($($kind:ident::$model:ident: $preemptions:expr;)*) => {
        mod all {
            $(#[test] fn $model() { super::exhaust($preemptions, super::$kind::$model); })*
        }

        mod some {
            $(#[test] fn $model() { super::sample(2000, super::$kind::$model); })*
        }
    };
}

checked! {
    invalidation::concurrent_gets_share: 2;
    invalidation::get_put_and_invalidate: 2;
    invalidation::invalidated_while_it_is_resolved: 1;
    invalidation::two_moves: 1;
    invalidation::parked_and_taken_back: 2;
    invalidation::put_while_it_is_invalidated: 3;
    invalidation::parked_in_the_place_of_another: 2;
    invalidation::put_by_another_thread: 1;
    invalidation::the_barrier_is_refused: 2;
    invalidation::given_back: 3;
    invalidation::given_back_after_another: 2;
    invalidation::given_back_twice: 2;
    invalidation::given_back_after_it_was_taken: 2;
    invalidation::given_back_by_another_thread: 1;
    invalidation::given_back_when_others_have_its_slot: 1;
    expiry::expiry: 1;
    expiry::expiry_while_it_is_held: 2;
    expiry::expired_for_two_threads: 2;
    expiry::expired_as_others_take_its_place: 2;
    expiry::expired_as_it_is_counted: 2;
    expiry::expired_as_its_thread_ends: 2;
    expiry::swept_while_threads_have_it: 1;
    expiry::largest_age: 1;
    bounded::eviction: 1;
    bounded::evicted_or_expired: 1;
    bounded::evicted_or_invalidated: 1;
    bounded::expired_or_invalidated: 1;
    bounded::closed_while_it_is_evicted_or_expires: 1;
    bounded::closed_while_it_is_invalidated: 1;
    bounded::expired_as_room_is_made: 2;
    bounded::aged_while_it_is_held: 1;
    bounded::t7_eviction_and_expiry_find_what_was_put: 2;
    ends::close: 1;
    ends::t3_put_while_it_is_closed: 3;
    bounded::failure: 1;
    bounded::nobody_waits_any_more: 1;
    ends::hits_go_with_their_cache: 1;
    ends::bypass: 2;
}
