//! Address handles under endpoints, where time passes and addresses move. Tests that begin with `t` and a number are findings of the
//! same number about caches before this one, at the transport; `ferroce-verbs/tests/ah_cache` has them at the cache.

mod capacity;
mod expiry;
mod late;
mod many;
mod moves;
#[path = "../seeds/mod.rs"]
mod seeds;
mod storm;
mod teardown;
mod world;
