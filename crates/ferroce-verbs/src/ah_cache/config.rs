use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Names the time to live, when it is not set in code.
pub const TTL_VARIABLE: &str = "FERROCE_AH_CACHE_TTL";
/// Names the largest age, when it is not set in code.
pub const MAX_AGE_VARIABLE: &str = "FERROCE_AH_CACHE_MAX_AGE";
/// Names the capacity, when it is not set in code.
pub const CAPACITY_VARIABLE: &str = "FERROCE_AH_CACHE_CAPACITY";

/// How long an address handle that nobody holds stays fit for use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ttl {
    /// Until it is evicted or invalidated (`inf`).
    #[default]
    Infinite,
    /// As long as somebody holds it, and after that for this long; then the next get resolves anew. A time that is long against the
    /// error of the cheap clock ([`Clock::coarseness`](super::Clock::coarseness)), 25 times it or more, may end up to twice that early;
    /// never late.
    Finite(Duration),
    /// There is no cache: every get resolves, and has a private address handle (`0`).
    Bypass,
}

impl From<Duration> for Ttl {
    fn from(ttl: Duration) -> Self {
        if ttl.is_zero() { Self::Bypass } else { Self::Finite(ttl) }
    }
}

/// The field's notation: `inf`, `0`, or a number with a unit such as `100ms`, `1s`, `5m`.
impl FromStr for Ttl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(parse_time(text)?.map_or(Self::Infinite, Self::from))
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infinite => f.write_str("inf"),
            Self::Finite(ttl) => write!(f, "{ttl:?}"),
            Self::Bypass => f.write_str("0"),
        }
    }
}

/// How the cache of a context behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhCacheConfig {
    /// How long an address handle that nobody holds stays fit for use.
    pub ttl: Ttl,
    /// At this age an address handle leaves the cache whoever holds it: holders keep theirs, the next get resolves anew.
    /// `None` for never.
    pub max_age: Option<Duration>,
    /// How many entries there are at most. Beyond that the one goes that was let go of longest ago; if all are held, a get of
    /// another address fails. `None` for no bound.
    pub capacity: Option<usize>,
    /// Entries are invalidated as soon as the device says that a neighbour, a GID or a port has changed.
    pub watch: bool,
    /// How long a get waits for a resolution that another get has begun. The thread sleeps, so this is the machine's time, whatever clock the
    /// cache has.
    pub wait_limit: Duration,
}

impl Default for AhCacheConfig {
    fn default() -> Self {
        Self { ttl: Ttl::Infinite, max_age: None, capacity: None, watch: true, wait_limit: Duration::from_secs(30) }
    }
}

impl AhCacheConfig {
    /// The defaults, changed by what `FERROCE_AH_CACHE_TTL`, `FERROCE_AH_CACHE_MAX_AGE` and `FERROCE_AH_CACHE_CAPACITY` say.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] names the variable that cannot be understood and says what it may be.
    pub fn from_env() -> Result<Self> {
        let mut config = Self::default();
        if let Some(text) = variable(TTL_VARIABLE)? {
            config.ttl = text.parse().map_err(|why: String| Error::invalid(TTL_VARIABLE, why))?;
        }
        if let Some(text) = variable(MAX_AGE_VARIABLE)? {
            config.max_age = parse_max_age(&text).map_err(|why| Error::invalid(MAX_AGE_VARIABLE, why))?;
        }
        if let Some(text) = variable(CAPACITY_VARIABLE)? {
            config.capacity = parse_capacity(&text).map_err(|why| Error::invalid(CAPACITY_VARIABLE, why))?;
        }
        Ok(config)
    }

    /// Checks that the values make sense together.
    pub(super) fn check(&self) -> Result<()> {
        if self.max_age.is_some_and(|age| age.is_zero()) {
            return Err(Error::invalid("max_age", "it is 0: for no caching at all the TTL is 0"));
        }
        if self.capacity == Some(0) {
            return Err(Error::invalid("capacity", "it is 0: for no caching at all the TTL is 0"));
        }
        Ok(())
    }
}

/// The variable's value; `None` when it is unset or empty.
fn variable(name: &'static str) -> Result<Option<String>> {
    match std::env::var_os(name) {
        None => Ok(None),
        Some(value) if value.is_empty() => Ok(None),
        Some(value) => value.into_string().map(Some).map_err(|_| Error::invalid(name, "it is not valid UTF-8")),
    }
}

/// Reads a length of time in the field's notation: `inf` (`None`), `0`, or a number with a unit, such as `100ms`, `1s`, `5m`.
///
/// # Errors
///
/// A sentence that says what is wrong.
pub fn parse_time(text: &str) -> Result<Option<Duration>, String> {
    let why = || format!("{text:?} is no time: it is inf, 0, or a number with a unit (us, ms, s, m, h), such as 100ms");
    let text = text.trim();
    if text == "inf" {
        return Ok(None);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let nanos = match unit {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        // A number alone has no meaning that everybody agrees on, except for none.
        "" if number.chars().all(|c| c == '0') && !number.is_empty() => return Ok(Some(Duration::ZERO)),
        _ => return Err(why()),
    };
    let number: f64 = number.parse().map_err(|_| why())?;
    let nanos = number * nanos;
    // A hundred years are enough, and leave room for sums.
    if nanos > 3.2e18 {
        return Err(format!("{text:?} is too long: for no limit write inf"));
    }
    if nanos > 0.0 && nanos < 1.0 {
        return Err(format!("{text:?} is less than a nanosecond: for none write 0"));
    }
    Ok(Some(Duration::from_nanos(nanos as u64)))
}

/// The largest age: a time as of [`Ttl`], of which `inf` is none.
fn parse_max_age(text: &str) -> Result<Option<Duration>, String> {
    match parse_time(text)? {
        Some(age) if age.is_zero() => Err("it is 0: for no caching at all set FERROCE_AH_CACHE_TTL=0".into()),
        age => Ok(age),
    }
}

/// How many entries: a whole number from 1, or `inf`.
fn parse_capacity(text: &str) -> Result<Option<usize>, String> {
    match text.trim() {
        "inf" => Ok(None),
        text => match text.parse() {
            Ok(0) => Err("it is 0: for no caching at all set FERROCE_AH_CACHE_TTL=0".into()),
            Ok(capacity) => Ok(Some(capacity)),
            Err(_) => Err(format!("{text:?} is no capacity: it is a whole number from 1, or inf")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T12.
    #[test]
    fn t12_times_are_written_as_in_the_field() {
        assert_eq!("inf".parse(), Ok(Ttl::Infinite));
        for zero in ["0", "0s", "0ms", "00"] {
            assert_eq!(zero.parse(), Ok(Ttl::Bypass), "{zero}");
        }
        let finite = |millis| Ok(Ttl::Finite(Duration::from_millis(millis)));
        assert_eq!("100ms".parse(), finite(100));
        assert_eq!("1s".parse(), finite(1000));
        assert_eq!("1.5s".parse(), finite(1500));
        assert_eq!(" 5m ".parse(), finite(300_000));
        assert_eq!("1h".parse(), finite(3_600_000));
        assert_eq!("250us".parse(), Ok(Ttl::Finite(Duration::from_micros(250))));
    }

    /// T12.
    #[test]
    fn t12_junk_is_refused() {
        for junk in
            ["", "1", "-1s", "1d", "s", "infinite", "1 s", "ms100", "1e3s", "1..5s", ".", "nan", "0x10s", "1s1s"]
        {
            let why = junk.parse::<Ttl>().unwrap_err();
            assert!(why.contains("is no time: it is inf, 0, or"), "{junk}: {why}");
        }
        assert!("99999999999h".parse::<Ttl>().unwrap_err().contains("too long"));
        assert!("0.0000001us".parse::<Ttl>().unwrap_err().contains("less than a nanosecond"));
    }

    #[test]
    fn ages_and_capacities_are_more_than_nothing() {
        assert_eq!(parse_max_age("inf"), Ok(None));
        assert_eq!(parse_max_age("5m"), Ok(Some(Duration::from_secs(300))));
        assert!(parse_max_age("0").unwrap_err().contains(TTL_VARIABLE));
        assert_eq!(parse_capacity("inf"), Ok(None));
        assert_eq!(parse_capacity("4096"), Ok(Some(4096)));
        assert!(parse_capacity("0").unwrap_err().contains(TTL_VARIABLE));
        for junk in ["-1", "many", "1.5", "4k", "99999999999999999999999"] {
            assert!(parse_capacity(junk).unwrap_err().contains("no capacity"), "{junk}");
        }
    }

    #[test]
    fn what_is_shown_is_understood() {
        for ttl in ["inf", "0", "100ms", "1s"] {
            assert_eq!(ttl.parse::<Ttl>().unwrap().to_string(), ttl);
        }
    }
}
