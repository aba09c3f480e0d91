//! What a datagram holds, after its GRH:
//!
//! | byte | |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | kind |
//! | 2 | active message id |
//! | 3 | flags: bit 0 asks for an acknowledgement |
//! | 4 | PSN of data and FIN |
//! | 8 | the receiver's endpoint; 0 in CONNECT |
//! | 16 | the sender's endpoint |
//! | 24 | the PSN that the sender expects next |
//! | 28 | CONNECT and ACCEPT: the session's nonce. ACK: a bit for each PSN after the expected one that came. Data: the payload |
//!
//! All numbers are in network order.

/// Bytes before the body.
pub const HEADER_LEN: usize = 28;
/// Bytes of the body of CONNECT and ACCEPT.
const NONCE_LEN: usize = 8;
/// Most bytes of an acknowledgement's bit field.
pub(super) const MAX_SACK: usize = 128;
const VERSION: u8 = 1;
const ACK_REQUEST: u8 = 1;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Begins a session, named by a nonce.
    Connect { nonce: u64 },
    /// Answers that, with the endpoint that is the session's other end.
    Accept { nonce: u64 },
    /// An active message.
    Data { am: u8 },
    /// Says what came, and is itself not acknowledged.
    Ack,
    /// The sender sends no more. In sequence with the data.
    Fin,
    /// The receiver's endpoint does not exist at the sender.
    Reset,
}

/// The fields before the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) ack_request: bool,
    pub(super) psn: u32,
    pub(super) dest: u64,
    pub(super) src: u64,
    pub(super) ack: u32,
}

impl Header {
    /// The packet with this header and `body`.
    pub(super) fn emit(&self, body: &[u8]) -> Vec<u8> {
        let (kind, am, nonce) = match self.kind {
            Kind::Data { am } => (0, am, None),
            Kind::Ack => (1, 0, None),
            Kind::Fin => (2, 0, None),
            Kind::Connect { nonce } => (3, 0, Some(nonce)),
            Kind::Accept { nonce } => (4, 0, Some(nonce)),
            Kind::Reset => (5, 0, None),
        };
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&[VERSION, kind, am, if self.ack_request { ACK_REQUEST } else { 0 }]);
        header[4..8].copy_from_slice(&self.psn.to_be_bytes());
        header[8..16].copy_from_slice(&self.dest.to_be_bytes());
        header[16..24].copy_from_slice(&self.src.to_be_bytes());
        header[24..].copy_from_slice(&self.ack.to_be_bytes());
        let mut out = Vec::with_capacity(HEADER_LEN + NONCE_LEN + body.len());
        out.extend_from_slice(&header);
        if let Some(nonce) = nonce {
            out.extend(nonce.to_be_bytes());
        }
        out.extend_from_slice(body);
        out
    }

    /// Splits a packet into header and body; `None` if it is not one.
    pub(super) fn parse(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (header, body) = packet.split_first_chunk::<HEADER_LEN>()?;
        let [version, kind, am, flags, rest @ ..] = header;
        let (psn, rest) = rest.split_first_chunk()?;
        let (dest, rest) = rest.split_first_chunk()?;
        let (src, rest) = rest.split_first_chunk()?;
        let (ack, _) = rest.split_first_chunk()?;
        let nonce = || <[u8; NONCE_LEN]>::try_from(body).ok().map(u64::from_be_bytes);
        let empty = body.is_empty();
        let kind = match kind {
            0 if *am < super::AM_IDS => Kind::Data { am: *am },
            1 if body.len() <= MAX_SACK => Kind::Ack,
            2 if empty => Kind::Fin,
            3 => Kind::Connect { nonce: nonce()? },
            4 => Kind::Accept { nonce: nonce()? },
            5 if empty => Kind::Reset,
            _ => return None,
        };
        let header = Self {
            kind,
            ack_request: flags & ACK_REQUEST != 0,
            psn: u32::from_be_bytes(*psn),
            dest: u64::from_be_bytes(*dest),
            src: u64::from_be_bytes(*src),
            ack: u32::from_be_bytes(*ack),
        };
        (*version == VERSION && flags & !ACK_REQUEST == 0).then_some((header, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_back() {
        for kind in [
            Kind::Data { am: 31 },
            Kind::Ack,
            Kind::Fin,
            Kind::Reset,
            Kind::Connect { nonce: u64::MAX - 1 },
            Kind::Accept { nonce: 1 },
        ] {
            let body: &[u8] = if matches!(kind, Kind::Data { .. } | Kind::Ack) { b"body" } else { b"" };
            let header = Header { kind, ack_request: true, psn: 0xfedc_ba98, dest: 1 << 63, src: 7, ack: 9 };
            let packet = header.emit(body);
            let (back, rest) = Header::parse(&packet).unwrap();
            assert_eq!(back, header);
            assert!(rest.ends_with(body));
            for len in 0..packet.len() {
                // Data and acknowledgements have bodies of any length.
                if !matches!(kind, Kind::Data { .. } | Kind::Ack) || len < HEADER_LEN {
                    assert_eq!(Header::parse(&packet[..len]), None);
                }
            }
        }
    }

    #[test]
    fn what_is_not_a_packet_is_refused() {
        let good = Header { kind: Kind::Ack, ack_request: false, psn: 0, dest: 1, src: 2, ack: 3 }.emit(&[0; MAX_SACK]);
        assert!(Header::parse(&good).is_some());
        let with = |at: usize, value: u8| {
            let mut packet = good.clone();
            packet[at] = value;
            Header::parse(&packet).is_none()
        };
        assert!(with(0, 2) && with(1, 6) && with(1, 2) && with(3, 2));
        assert!(Header::parse(&[&good[..], &[0]].concat()).is_none());
        let mut data = good[..HEADER_LEN].to_vec();
        (data[1], data[2]) = (0, 32);
        assert!(Header::parse(&data).is_none());
    }
}
