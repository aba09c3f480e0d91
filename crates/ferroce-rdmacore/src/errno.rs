//! What the library's error numbers mean.

use ferroce_verbs::Error;
use std::borrow::Cow;
use std::io;

/// The device went away while it was in use: it was unplugged, reset, or its driver was unloaded. Its objects can only be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device is gone (it was unplugged, reset, or its driver was unloaded): drop its objects and open it again")]
pub struct DeviceGone;

/// The error behind a number that a verb returned while it was `doing` something.
pub(crate) fn error(doing: impl Into<Cow<'static, str>>, number: i32) -> Error {
    let advice = match number {
        // What the kernel answers for objects of a device that it has taken away.
        libc::EIO | libc::ENODEV | libc::ENXIO => return Error::Device(Box::new(DeviceGone)),
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

/// The error behind what a verb left in `errno`.
pub(crate) fn last(doing: impl Into<Cow<'static, str>>) -> Error {
    // A provider that fails without saying why leaves it alone.
    let number = io::Error::last_os_error().raw_os_error().filter(|&number| number != 0).unwrap_or(libc::EINVAL);
    error(doing, number)
}

/// The result of a verb that returns an error number.
pub(crate) fn check(doing: &'static str, number: i32) -> Result<(), Error> {
    match number {
        0 => Ok(()),
        // Some providers return the number with the kernel's sign, or -1 and `errno`.
        -1 => Err(last(doing)),
        number => Err(error(doing, number.abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_went_away_is_told_from_a_refusal() {
        assert!(matches!(check("x", libc::EIO), Err(Error::Device(_))));
        assert!(check("x", 0).is_ok());
        let error = check("making a queue pair", -libc::EINVAL).unwrap_err();
        assert!(error.to_string().contains("the device refuses these values"), "{error}");
    }
}
