//! How the two ends learn of each other, over TCP: the client sends its addresses, the server connects its queue pairs
//! and answers with its own, the client confirms with `done`.
//!
//! Each address goes out in one write, and the single one of rc, uc and ud in one segment: the C programs read it with
//! one call and do not read on.

use super::address::{Address, LEN};
use crate::failure::{Failure, Result};
use crate::tcp::lost;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// What confirms, with the zero at its end.
const DONE: [u8; 5] = *b"done\0";

pub(crate) struct Handshake {
    stream: TcpStream,
}

impl Handshake {
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> Result<Self> {
        stream
            .set_read_timeout(Some(patience))
            .and_then(|()| stream.set_write_timeout(Some(patience)))
            .map_err(|error| lost("it was set up", &error))?;
        Ok(Self { stream })
    }

    /// Sends `addresses`, padded to `count`.
    pub(crate) fn send(&mut self, addresses: &[Address], count: usize) -> Result<()> {
        let padding = std::iter::repeat(Address::default());
        let wire: Vec<u8> = addresses.iter().copied().chain(padding).take(count).flat_map(Address::to_wire).collect();
        self.stream.write_all(&wire).map_err(|error| lost("it was sent the local address", &error))
    }

    /// Receives `count` addresses and keeps the first `used`.
    pub(crate) fn receive(&mut self, count: usize, used: usize) -> Result<Vec<Address>> {
        let mut addresses = Vec::with_capacity(used);
        for at in 0..count {
            let mut wire = [0; LEN];
            self.stream.read_exact(&mut wire).map_err(|error| lost("its address was awaited", &error))?;
            if at < used {
                let address = Address::from_wire(&wire)?;
                if address.qpn == 0 {
                    return Err(Failure::run(format!("the peer has only {at} queue pairs, this end has {used}"))
                        .hint("give both ends the same number of queue pairs with -q"));
                }
                addresses.push(address);
            }
        }
        Ok(addresses)
    }

    pub(crate) fn send_done(&mut self) -> Result<()> {
        self.stream.write_all(&DONE).map_err(|error| lost("it was told that all is set", &error))
    }

    pub(crate) fn receive_done(&mut self) -> Result<()> {
        let mut word = [0; DONE.len()];
        self.stream.read_exact(&mut word).map_err(|error| lost("its confirmation was awaited", &error))?;
        if word == DONE {
            return Ok(());
        }
        Err(Failure::run(format!("the peer answered {:?} in place of \"done\"", String::from_utf8_lossy(&word)))
            .hint("is the program at the other end of the same kind (rc, uc, ud, srq)?"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::MAX_QP;
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (Handshake, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        (Handshake::new(stream, Duration::from_secs(10)).unwrap(), raw)
    }

    fn address(qpn: u32) -> Address {
        Address { qpn, psn: 7, ..Address::default() }
    }

    #[test]
    fn one_address_is_52_bytes_then_done() {
        let (mut handshake, mut raw) = pair();
        handshake.send(&[address(0x12)], 1).unwrap();
        handshake.send_done().unwrap();
        drop(handshake);
        let mut bytes = Vec::new();
        raw.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"0000:000012:000007:00000000000000000000000000000000\0done\0");
    }

    #[test]
    fn a_table_is_256_addresses_however_many_are_used() {
        let (mut handshake, mut raw) = pair();
        handshake.send(&[address(1), address(2)], MAX_QP).unwrap();
        let mut bytes = vec![0; MAX_QP * LEN];
        raw.read_exact(&mut bytes).unwrap();
        raw.write_all(&bytes).unwrap();
        assert_eq!(handshake.receive(MAX_QP, 2).unwrap(), [address(1), address(2)]);
        raw.write_all(&bytes).unwrap();
        let failure = handshake.receive(MAX_QP, 3).unwrap_err();
        assert_eq!(failure.message, "the peer has only 2 queue pairs, this end has 3");
    }

    #[test]
    fn a_peer_that_goes_away_is_noticed() {
        let (mut handshake, raw) = pair();
        drop(raw);
        assert!(handshake.receive(1, 1).unwrap_err().message.contains("closed the connection"));
        let (mut handshake, mut raw) = pair();
        raw.write_all(b"nope\0").unwrap();
        assert!(handshake.receive_done().unwrap_err().message.contains("in place of"));
    }

    #[test]
    fn a_silent_peer_is_given_up() {
        let (handshake, _raw) = pair();
        let mut handshake = Handshake::new(handshake.stream, Duration::from_millis(20)).unwrap();
        assert!(handshake.receive_done().unwrap_err().message.contains("silent"));
    }
}
