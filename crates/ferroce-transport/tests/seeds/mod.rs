//! Which runs of a simulation there are.

use std::ops::Range;

/// The seeds of a test: `{prefix}_SIM_MORE` times as many if that is set, `{prefix}_SIM_SEED` alone to see one again.
pub(crate) fn seeds(prefix: &str, count: u64) -> Range<u64> {
    let number = |name| std::env::var(format!("{prefix}_SIM_{name}")).ok().and_then(|value| value.parse::<u64>().ok());
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..count * number("MORE").unwrap_or(1),
    }
}
