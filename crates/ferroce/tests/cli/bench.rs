//! `ferroce bench`.

use crate::support::run;
use serde_json::Value;

#[test]
fn ah_measures_the_cache_beside_a_spinlock() {
    let ended = run(&["bench", "ah", "-n", "1000", "-t", "0.02", "--resolution", "0.1", "--json"]).ok();
    let document: Value = serde_json::from_str(&ended.out).unwrap();
    let figures = [
        &document["hits"][0]["cache_ns"],
        &document["hits"][0]["spinlock_ns"],
        &document["two_threads"]["cache"],
        &document["large"]["get_ns"],
        &document["slow_resolution"]["p99_with_ns"],
        &document["ttl_1s_ns"],
    ];
    for figure in figures {
        assert!(figure.as_f64().is_some_and(|figure| figure > 0.0), "{document}");
    }
    let table = run(&["bench", "ah", "-n", "1000", "-t", "0.02", "--resolution", "0.1"]).ok();
    for part in ["spinlock and map", "bytes each", "p99 of other addresses"] {
        assert!(table.out.contains(part), "no {part} in {}", table.out);
    }
}
