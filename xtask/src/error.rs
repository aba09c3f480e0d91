//! Why a command could not be carried out. A check that ran and failed is not an error but a result.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An operation of the file system or of a child's pipe failed.
    #[error("cannot {what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },

    /// A program could not be started at all.
    #[error("cannot run `{program}`: is it installed and on the PATH?")]
    Spawn {
        program: String,
        #[source]
        source: io::Error,
    },

    /// A helper program ran and failed.
    #[error("`{command}` failed ({status}){}", indented(stderr))]
    Failed { command: String, status: String, stderr: String },

    /// A helper program succeeded but printed something that is not understood.
    #[error("`{command}` printed something unexpected: {why}")]
    Output { command: String, why: String },

    #[error("no such step: `{0}`; `cargo xtask test --list` names them")]
    NoSuchStep(String),

    #[error("no such benchmark: `{0}`; `cargo xtask bench --list` names them")]
    NoSuchBenchmark(String),

    #[error("{} cannot be read as a policy", path.display())]
    Policy {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },

    #[error("Debian packages are missing: {}\n  as root, run: apt-get install --no-install-recommends {}", .0.join(", "), .0.join(" "))]
    Packages(Vec<String>),

    #[error(
        "the checks need these Debian packages, and this is no Debian machine (it has no dpkg-query): {}",
        .0.join(" ")
    )]
    NotDebian(Vec<String>),

    #[error("the kernel test bed runs on x86_64 only, this machine is {0}")]
    Architecture(&'static str),

    #[error("apt knows no package {package}: as root, run `apt-get update`, then try again")]
    NoKernelPackage { package: &'static str },

    #[error("the virtual machine needs {what}, and it is not on this machine")]
    NotFound { what: String },

    #[error("bad --script `{script}`: {why}")]
    Script { script: String, why: String },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("\n  {line}")).collect()
}

/// The error and its causes on one line each.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!("\n  because: {error}"));
        cause = error.source();
    }
    text
}
