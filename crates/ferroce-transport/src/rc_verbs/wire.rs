//! What is in front of an active message (uct.md would call it UCX's `uct_rc_hdr`): one byte, and a running total with some.
//!
//! | bits | meaning |
//! |---|---|
//! | 0 to 4 | active message id |
//! | 5 SOFT | a grant is wanted, with the next message that goes back anyway |
//! | 6 HARD | a grant is wanted at once |
//! | 7 GRANT | four bytes follow, in network order: how many messages the peer may have sent in all |
//!
//! All three set is no message but a control word: its kind in place of the id. In UCX a grant restores the whole window, so one that is
//! lost stalls the peer for ever (report 6850); a running total says the same however often it comes.

/// A grant is wanted with the next message.
pub(super) const SOFT: u8 = 1 << 5;
/// A grant is wanted at once.
pub(super) const HARD: u8 = 1 << 6;
/// A running total follows.
const GRANT: u8 = 1 << 7;
const ID: u8 = 0x1f;
const CONTROL: u8 = SOFT | HARD | GRANT;

/// The longest header.
pub(super) const MAX_HEADER: usize = 5;

/// What a control word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// Nothing but its grant.
    Grant,
    /// The sender closes its end.
    Closed,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// An active message follows.
    Message { am: u8, asks: u8, grant: Option<u32> },
    /// Nothing follows.
    Control { what: Control, grant: u32 },
}

impl Header {
    /// As bytes, and how many of them.
    #[inline]
    pub(super) fn emit(self) -> ([u8; MAX_HEADER], usize) {
        let (first, grant) = match self {
            // A message cannot ask in both ways and grant at once: that it asks at once is enough.
            Self::Message { am, asks, grant: Some(total) } => {
                (am | if asks & HARD != 0 { HARD } else { asks } | GRANT, Some(total))
            }
            Self::Message { am, asks, grant: None } => (am | asks, None),
            Self::Control { what, grant } => (CONTROL | what as u8, Some(grant)),
        };
        match grant {
            Some(total) => {
                let [a, b, c, d] = total.to_be_bytes();
                ([first, a, b, c, d], MAX_HEADER)
            }
            None => ([first, 0, 0, 0, 0], 1),
        }
    }

    /// The header of what was received, and how long it is; `None` if it is none.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let (&first, rest) = bytes.split_first()?;
        if first & GRANT == 0 {
            return Some((Self::Message { am: first & ID, asks: first & (SOFT | HARD), grant: None }, 1));
        }
        let total = u32::from_be_bytes(*rest.first_chunk()?);
        let header = if first & CONTROL == CONTROL {
            let what = match first & ID {
                0 => Control::Grant,
                1 => Control::Closed,
                _ => return None,
            };
            Self::Control { what, grant: total }
        } else {
            Self::Message { am: first & ID, asks: first & (SOFT | HARD), grant: Some(total) }
        };
        Some((header, MAX_HEADER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire_and_junk_is_none() {
        for am in 0..32 {
            for asks in [0, SOFT, HARD] {
                for grant in [None, Some(0), Some(u32::MAX)] {
                    let header = Header::Message { am, asks, grant };
                    let (bytes, len) = header.emit();
                    assert_eq!(Header::parse(&bytes[..len]), Some((header, len)));
                    assert_eq!(Header::parse(&bytes[..len - 1]), None, "{header:?} cut short");
                }
            }
        }
        for what in [Control::Grant, Control::Closed] {
            let header = Header::Control { what, grant: 77 };
            assert_eq!(Header::parse(&header.emit().0), Some((header, 5)));
        }
        assert_eq!(Header::parse(&[0xe2, 0, 0, 0, 0]), None);
        assert_eq!(Header::parse(&[]), None);
    }
}
