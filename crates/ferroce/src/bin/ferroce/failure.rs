//! How a command fails: whose fault it was, what to do about it, and the exit code that says so.

use ferroce::{Error, PostError, WcStatus, WorkCompletion};
use serde::Serialize;
use std::fmt;

/// The classes of failure; each is an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The run failed: the peer, the network, or the data.
    Run = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The device, or something that it needs from this machine, is missing.
    Environment = 3,
}

/// Why a command failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) class: Class,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// All that this end knows is that the peer broke off; what the peer says explains more.
    pub(crate) broken_off: bool,
    /// The command has put this into its own JSON document already.
    pub(crate) documented: bool,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    fn new(class: Class, message: impl fmt::Display) -> Self {
        Self { class, message: message.to_string(), hint: None, broken_off: false, documented: false }
    }

    pub(crate) fn run(message: impl fmt::Display) -> Self {
        Self::new(Class::Run, message)
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Class::Usage, message)
    }

    pub(crate) fn environment(message: impl fmt::Display) -> Self {
        Self::new(Class::Environment, message)
    }

    /// The peer broke off while this end waited for something.
    pub(crate) fn broken_off(waiting_for: &str) -> Self {
        let mut failure = Self::run(format!("the peer broke off while this end waited for {waiting_for}"))
            .hint("its own output says why");
        failure.broken_off = true;
        failure
    }

    /// The same with advice.
    pub(crate) fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// The same with the step that failed in front.
    pub(crate) fn during(mut self, step: impl fmt::Display) -> Self {
        self.message = format!("{step}: {}", self.message);
        self
    }

    /// The same, already part of the command's JSON document.
    pub(crate) fn documented(mut self) -> Self {
        self.documented = true;
        self
    }

    /// A work request that did not succeed.
    pub(crate) fn completion(what: &str, wc: &WorkCompletion) -> Self {
        let code = wc.status as u8;
        Self::run(format!("{what} on queue pair {:#08x} failed: {} (status {code})", wc.qp_num, wc.status))
            .hint(status_hint(wc.status))
    }

    /// What `--json` prints.
    pub(crate) fn document(&self) -> impl Serialize + use<> {
        #[derive(Serialize)]
        struct Document {
            error: Body,
        }
        #[derive(Serialize)]
        struct Body {
            message: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            hint: Option<String>,
            exit_code: u8,
        }
        Document { error: Body { message: self.message.clone(), hint: self.hint.clone(), exit_code: self.class as u8 } }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let class = match error {
            Error::Invalid { .. } => Class::Usage,
            Error::NotFound { .. } | Error::Unsupported { .. } | Error::Device(_) | Error::Os { .. } => {
                Class::Environment
            }
            _ => Class::Run,
        };
        Self::new(class, causes(&error))
    }
}

impl From<ferroce::cm::Error> for Failure {
    fn from(error: ferroce::cm::Error) -> Self {
        use ferroce::cm::Error;
        match error {
            Error::Device { what, source } => Self::from(source).during(what),
            Error::Address { .. }
            | Error::NoPort
            | Error::NoGsi { .. }
            | Error::Unavailable(_)
            | Error::Unsupported { .. } => Self::new(Class::Environment, causes(&error)),
            _ => Self::run(causes(&error)),
        }
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        Self::run(causes(&error))
    }
}

/// An error and its causes in one line, leaving out a cause whose text the error contains already.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// What a completion status means in practice, and what to look at.
fn status_hint(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "nothing is wrong",
        WcStatus::RetryExcErr => {
            "the peer did not answer: it has ended, its address cannot be reached over UDP port 4791 (firewall, route), \
             or too many packets are lost"
        }
        WcStatus::RnrRetryExcErr => "the peer has no receive posted: it is too slow, or its receive depth is too small",
        WcStatus::RemInvReqErr => {
            "the peer found the request invalid: the message size (--size) or the path MTU (--mtu) differs between the ends"
        }
        WcStatus::RemAccessErr => {
            "the peer refused access to its memory: a wrong rkey, address or right; do both ends run the same version?"
        }
        WcStatus::RemOpErr => "the peer could not carry out the request; its own error says why",
        WcStatus::LocLenErr => "the message is larger than the receive that it met: use the same --size at both ends",
        WcStatus::LocProtErr | WcStatus::LocAccessErr => "a local buffer is not registered for this use",
        WcStatus::WrFlushErr => {
            "the queue pair went to the error state earlier; the peer may have found a fault or gone away"
        }
        WcStatus::BadRespErr => "the peer answered with something that the protocol does not allow",
        WcStatus::RespTimeoutErr => "the peer's response did not come in time",
        WcStatus::RemAbortErr => "the peer aborted the request",
        WcStatus::LocQpOpErr | WcStatus::MwBindErr | WcStatus::FatalErr | WcStatus::GeneralErr => {
            "the device reports an internal fault; FERROCE_LOG=debug shows more"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce::WcOpcode;

    #[test]
    fn classes_are_the_documented_exit_codes() {
        let code = |error: Error| Failure::from(error).class as u8;
        assert_eq!(code(Error::invalid("size", "it is 0")), 2);
        assert_eq!(code(Error::NotFound { what: "device", name: "x".into(), hint: "none".into() }), 3);
        assert_eq!(code(Error::os("bind", std::io::Error::from(std::io::ErrorKind::AddrInUse))), 3);
        assert_eq!(code(Error::QueueFull { queue: "send queue", capacity: 1 }), 1);
    }

    #[test]
    fn a_failed_completion_says_what_it_means() {
        let mut wc = WorkCompletion::new(1, WcOpcode::Send, 0x123);
        wc.status = WcStatus::RetryExcErr;
        let failure = Failure::completion("a send", &wc);
        assert_eq!(
            failure.message,
            "a send on queue pair 0x000123 failed: transport retry counter exceeded (status 12)"
        );
        assert!(failure.hint.unwrap().contains("did not answer"));
    }

    #[test]
    fn causes_are_not_repeated() {
        let error = Error::os("binding", std::io::Error::other("no"));
        assert_eq!(Failure::from(error).message, "binding: no");
        let error = Error::Device(Box::new(Error::os("binding", std::io::Error::other("no"))));
        assert_eq!(Failure::from(error).message, "binding: no");
    }
}
