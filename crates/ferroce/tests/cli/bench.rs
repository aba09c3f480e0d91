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

#[test]
fn reconnect_shows_what_the_cache_saves_and_what_of_it_is_the_address_handle() {
    let args = ["bench", "reconnect", "-n", "20", "--resolution", "0.003"];
    let ended = run(&[&args[..], &["--json"]].concat()).ok();
    let document: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(document["resolution_is_modelled"], true);
    let [cached, bare] = [0, 1].map(|kind| &document["kinds"][kind]);
    assert_eq!((&cached["ttl"], &bare["ttl"]), (&"inf".into(), &"0".into()));
    // With the cache nothing is resolved; without it both ends resolve, one after the other, in each cycle.
    assert_eq!(cached["resolutions_per_cycle"], 0.0, "{document}");
    // More only if a packet was sent again on a machine that is busy, to an end that was gone.
    assert!(bare["resolutions_per_cycle"].as_f64().unwrap() >= 2.0, "{document}");
    assert!(bare["ah_us"].as_f64().unwrap() >= 6000.0 && bare["cycle_p50_us"].as_f64().unwrap() >= 6000.0);
    let table = run(&args).ok();
    for part in ["TTL inf, resolution 3 000 µs", "share", "is modelled"] {
        assert!(table.out.contains(part), "no {part} in {}", table.out);
    }
}
