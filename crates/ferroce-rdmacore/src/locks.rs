//! Whether the environment leaves a provider its locks. Without them no verb is thread safe, whatever the types here say.

use std::ffi::OsString;

/// The variables that switch off the locks of a provider: those of rdma-core up to 44. A value other than 1 does nothing.
const VARIABLES: [&str; 1] = ["MLX5_SINGLE_THREADED"];

/// The environment switches off a provider's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{variable}=1 switches off the locks of rdma-core's provider, and devices are used from several threads here: unset it"
)]
pub struct LocksOff {
    /// The environment variable.
    pub variable: &'static str,
}

/// Fails if `environment` switches off a provider's locks. Which provider a device has is not known before it is open, and then it is too
/// late; so any device is refused.
pub(crate) fn check(environment: impl Fn(&str) -> Option<OsString>) -> Result<(), LocksOff> {
    let set = |variable: &&str| environment(variable).is_some_and(|value| value == "1");
    match VARIABLES.into_iter().find(set) {
        Some(variable) => Err(LocksOff { variable }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_that_are_off_are_refused_with_what_to_do() {
        let set_to = |value: &'static str| check(move |name| (name == "MLX5_SINGLE_THREADED").then(|| value.into()));
        assert_eq!(check(|_| None), Ok(()));
        assert_eq!(set_to("0"), Ok(()));
        let refused = set_to("1").unwrap_err();
        assert!(refused.to_string().contains("MLX5_SINGLE_THREADED=1") && refused.to_string().contains("unset it"));
    }
}
