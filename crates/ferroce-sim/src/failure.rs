use std::fmt;

/// An invariant that did not hold: what was expected and what was seen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub(crate) String);

impl Failure {
    /// A failure with this text.
    pub fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }
}

impl From<ferroce_verbs::Error> for Failure {
    fn from(error: ferroce_verbs::Error) -> Self {
        Self(format!("a verb failed: {error}"))
    }
}

impl From<ferroce_cm::Error> for Failure {
    fn from(error: ferroce_cm::Error) -> Self {
        Self(format!("a call of the connection manager failed: {error}"))
    }
}

/// The result of a step of a simulation.
pub(crate) type Checked<T = ()> = Result<T, Failure>;

/// Fails with a formatted text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::failure::Failure(format!($($text)+)));
        }
    };
}

pub(crate) use ensure;
