//! What the first process inside (`vm/init.sh`) tells about its scripts, in the midst of what they print.
//!
//! The kernel's messages have a serial port of their own, so that they cannot cut these lines in two. Each line begins with a nonce, so that a script
//! cannot print one by accident:
//!
//! ```text
//! ##NONCE ready UPTIME
//! ##NONCE begin INDEX
//! ##NONCE end INDEX STATUS
//! ##NONCE capture NAME BYTE...
//! ##NONCE bye
//! ```
//!
//! `capture` is what a script says on purpose (`hand_over` in `vm/lib.sh`): some more bytes, in hexadecimal, of the capture file NAME.

use std::hash::{BuildHasher, Hasher, RandomState};

/// What makes the lines of this run recognizable.
#[derive(Debug)]
pub(super) struct Nonce(String);

impl Nonce {
    pub(super) fn fresh() -> Self {
        // The standard library seeds each of these differently.
        Self(format!("{:016x}", RandomState::new().build_hasher().finish()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// One line from inside.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// The network is up and the scripts are about to run.
    Ready {
        uptime: &'a str,
    },
    Begin {
        index: usize,
    },
    /// The status that the shell has: 124 or 137 if time ran out.
    End {
        index: usize,
        status: i32,
    },
    /// Bytes of a capture file.
    Capture {
        name: &'a str,
        bytes: Vec<u8>,
    },
    /// All scripts have run; the machine switches itself off.
    Bye,
    /// What a script printed.
    Output(&'a str),
}

impl<'a> Line<'a> {
    pub(super) fn parse(nonce: &Nonce, line: &'a str) -> Self {
        Self::marker(nonce, line).unwrap_or(Line::Output(line))
    }

    fn marker(nonce: &Nonce, line: &'a str) -> Option<Self> {
        let rest = line.strip_prefix("##")?.strip_prefix(nonce.as_str())?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        match words[..] {
            ["ready", uptime] => Some(Line::Ready { uptime }),
            ["begin", index] => Some(Line::Begin { index: index.parse().ok()? }),
            ["end", index, status] => Some(Line::End { index: index.parse().ok()?, status: status.parse().ok()? }),
            ["capture", name, ref bytes @ ..] => {
                let bytes = bytes.iter().map(|byte| u8::from_str_radix(byte, 16).ok());
                Some(Line::Capture { name, bytes: bytes.collect::<Option<_>>()? })
            }
            ["bye"] => Some(Line::Bye),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_with_the_nonce_count() {
        let nonce = Nonce("ab".into());
        let parse = |line| Line::parse(&nonce, line);
        assert_eq!(parse("##ab ready 3.5"), Line::Ready { uptime: "3.5" });
        assert_eq!(parse("##ab begin 2"), Line::Begin { index: 2 });
        assert_eq!(parse("##ab end 2 -1"), Line::End { index: 2, status: -1 });
        assert_eq!(parse("##ab bye"), Line::Bye);
        assert_eq!(parse("##ab capture x 0a ff"), Line::Capture { name: "x", bytes: vec![0x0a, 0xff] });
        for other in ["##ac bye", " ##ab bye", "##ab end 2", "##ab end x 0", "##ab capture x 0g", "bye", ""] {
            assert_eq!(parse(other), Line::Output(other));
        }
    }

    #[test]
    fn nonces_differ() {
        assert_ne!(Nonce::fresh().as_str(), Nonce::fresh().as_str());
    }
}
