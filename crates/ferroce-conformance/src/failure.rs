use std::fmt;
use std::panic::Location;

/// What a case returns.
pub type CaseResult<T = ()> = Result<T, Failure>;

/// Why a case did not pass.
///
/// Any error becomes one with `?`; the place of that `?` is kept. It does not implement [`std::error::Error`] itself, as
/// it is read by people and handled by nobody.
#[derive(Clone, Debug)]
pub struct Failure {
    what: String,
    at: &'static Location<'static>,
    applicable: bool,
}

impl Failure {
    /// The device did something that it must not.
    #[track_caller]
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), at: Location::caller(), applicable: true }
    }

    /// The device says of itself that it cannot do what the case is about: the case counts as skipped.
    #[track_caller]
    pub fn not_applicable(why: impl Into<String>) -> Self {
        Self { what: why.into(), at: Location::caller(), applicable: false }
    }

    /// Whether the case was about something that the device has.
    pub fn is_applicable(&self) -> bool {
        self.applicable
    }

    /// What went wrong, without the place.
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.at.file().rsplit_once("/src/").map_or(self.at.file(), |(_, file)| file);
        write!(f, "{} [{file}:{}]", self.what, self.at.line())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

/// Says what was being done when something failed.
pub(crate) trait Explain<T> {
    /// Puts `what()` before the failure's own text.
    fn explain(self, what: impl FnOnce() -> String) -> CaseResult<T>;
}

impl<T, E: Into<Failure>> Explain<T> for Result<T, E> {
    #[track_caller]
    fn explain(self, what: impl FnOnce() -> String) -> CaseResult<T> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => {
                let mut failure: Failure = error.into();
                failure.what = format!("{}: {}", what(), failure.what);
                Err(failure)
            }
        }
    }
}

/// Fails the case unless a condition holds.
macro_rules! ensure {
    ($cond:expr, $($arg:tt)+) => {
        if !$cond {
            return Err($crate::Failure::new(format!($($arg)+)));
        }
    };
}

/// Fails the case unless two values are equal, and says both.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($arg:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err($crate::Failure::new(format!("{}: {left:?}, not {right:?}", format_args!($($arg)+))));
                }
            }
        }
    };
}

pub(crate) use {ensure, ensure_eq};
