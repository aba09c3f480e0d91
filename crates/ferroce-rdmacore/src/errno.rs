//! What the library's error numbers mean.

use ferroce_verbs::Error;
use std::borrow::Cow;
use std::io;

/// The device went away while it was in use: it was unplugged, reset, or its driver was unloaded. Its objects can only be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device is gone (it was unplugged, reset, or its driver was unloaded): drop its objects and open it again")]
pub struct DeviceGone;

impl From<DeviceGone> for Error {
    fn from(gone: DeviceGone) -> Self {
        Self::Device(Box::new(gone))
    }
}

/// Whether a device that is gone answers with this number. Others do so too: an address that has no network device is `ENODEV`, a
/// firmware's refusal `EIO`. Whether it is gone has to be asked.
pub(crate) fn may_be_gone(number: i32) -> bool {
    matches!(number, libc::EIO | libc::ENODEV | libc::ENXIO)
}

/// The error behind a number that a verb returned while it was `doing` something, if the device is there.
pub(crate) fn error(doing: impl Into<Cow<'static, str>>, number: i32) -> Error {
    let advice = match number {
        libc::ENOMEM => {
            " (the device or the kernel has no room for more, or memory would be locked beyond the limit: see ulimit -l)"
        }
        libc::EINVAL => " (the device refuses these values)",
        libc::ETIMEDOUT | libc::EHOSTUNREACH => " (the address does not answer, or there is no route to it)",
        _ => "",
    };
    let doing: Cow<'static, str> = doing.into();
    let what = if advice.is_empty() { doing } else { Cow::Owned(format!("{doing}{advice}")) };
    Error::os(what, io::Error::from_raw_os_error(number))
}

/// The number of a verb that returns one: some providers return it with the kernel's sign, or -1 and `errno`.
pub(crate) fn number(returned: i32) -> i32 {
    if returned == -1 { last() } else { returned.saturating_abs() }
}

/// What a verb left in `errno`. It was cleared before, as a provider that fails without saying why leaves it alone.
pub(crate) fn last() -> i32 {
    io::Error::last_os_error().raw_os_error().filter(|&number| number != 0).unwrap_or(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_with_any_sign() {
        assert_eq!(number(libc::EINVAL), libc::EINVAL);
        assert_eq!(number(-libc::EINVAL), libc::EINVAL);
        let error = error("making a queue pair", libc::EINVAL);
        assert!(error.to_string().contains("the device refuses these values"), "{error}");
    }
}
