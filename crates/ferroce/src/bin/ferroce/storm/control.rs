//! The control connection: JSON messages over TCP, each after its length in four bytes, a question and its answer at a time.

use super::plan::Plan;
use super::result::EndReport;
use crate::failure::{Failure, Result};
use crate::tcp::lost;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The version of these messages. Ends of different versions refuse each other.
const VERSION: u32 = 3;
/// The longest message.
const MAX_LEN: usize = 64 * 1024;

/// What the ends say to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "lowercase")]
pub(super) enum Message {
    /// Both, at first.
    Hello { version: u32 },
    /// Client: be ready for this, on RDMA or over TCP.
    Prepare { plan: Plan, tcp: bool },
    /// Server: I listen at these addresses.
    Ready { addrs: Vec<SocketAddr> },
    /// Client: what is measured begins now.
    Begin,
    /// Client: that was it.
    Finish,
    /// Server: this is what I saw.
    Finished { report: EndReport },
    /// Client: that was all.
    Bye,
    /// Either: it cannot be done, or it went wrong.
    Failed { why: String },
}

/// One end of the control connection.
pub(super) struct Control {
    stream: TcpStream,
    patience: Duration,
}

impl Control {
    /// Takes over a connection and finds out whether the peer speaks the same version.
    pub(super) fn new(stream: TcpStream, patience: Duration) -> Result<Self> {
        stream.set_write_timeout(Some(patience)).map_err(|error| lost("it was set up", &error))?;
        let control = Self { stream, patience };
        control.send(&Message::Hello { version: VERSION })?;
        match control.expect("greeting")? {
            Message::Hello { version: VERSION } => Ok(control),
            Message::Hello { version } => Err(Failure::run(format!(
                "the ends speak different versions of the control messages: {VERSION} here, {version} there"
            ))
            .hint("run the same version of ferroce at both ends")),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn send(&self, message: &Message) -> Result<()> {
        let body = serde_json::to_vec(message).map_err(|error| Failure::run(format!("no message: {error}")))?;
        let mut wire = (body.len() as u32).to_be_bytes().to_vec();
        wire.extend(body);
        (&self.stream).write_all(&wire).map_err(|error| lost("it was sent a control message", &error))
    }

    /// The next message, within the patience for a peer that has to answer.
    pub(super) fn expect(&self, awaited: &str) -> Result<Message> {
        self.read(awaited, Some(self.patience))
    }

    /// The next message of a peer that answers once it is through with something that takes up to `extra`.
    pub(super) fn expect_after(&self, awaited: &str, extra: Duration) -> Result<Message> {
        self.read(awaited, Some(self.patience + extra))
    }

    /// The next message, however long it takes. A machine that dies is noticed all the same.
    pub(super) fn wait(&self, awaited: &str) -> Result<Message> {
        self.read(awaited, None)
    }

    fn read(&self, awaited: &str, patience: Option<Duration>) -> Result<Message> {
        let doing = format!("its {awaited} was awaited");
        self.stream.set_read_timeout(patience).map_err(|error| lost(&doing, &error))?;
        let mut len = [0; 4];
        (&self.stream).read_exact(&mut len).map_err(|error| lost(&doing, &error))?;
        let len = u32::from_be_bytes(len) as usize;
        if len > MAX_LEN {
            return Err(misunderstood(&format!("a message of {len} bytes is too long")));
        }
        let mut body = vec![0; len];
        (&self.stream).read_exact(&mut body).map_err(|error| lost(&doing, &error))?;
        match serde_json::from_slice(&body) {
            Ok(Message::Failed { why }) => Err(Failure::run(format!("the peer failed: {why}"))),
            Ok(message) => Ok(message),
            Err(error) => Err(misunderstood(&error.to_string())),
        }
    }

    /// Tells the peer that it went wrong here, if it still listens.
    pub(super) fn send_failure(&self, failure: &Failure) {
        let _ = self.send(&Message::Failed { why: failure.message.clone() });
    }

    /// The address by which the peer reaches this end.
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// A message that has no place where it came.
pub(super) fn unexpected(message: &Message) -> Failure {
    Failure::run(format!("the peer sent an unexpected message: {message:?}"))
        .hint("do both ends run the same version of ferroce?")
}

fn misunderstood(why: &str) -> Failure {
    Failure::run(format!("the peer sent a control message that cannot be understood: {why}"))
        .hint("is the program at the other end `ferroce storm`, of the same version?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn the_ends_greet_each_other() {
        let (one, two) = pair();
        let other = std::thread::spawn(move || Control::new(two, Duration::from_secs(10)).unwrap());
        let one = Control::new(one, Duration::from_secs(10)).unwrap();
        let two = other.join().unwrap();
        one.send(&Message::Finish).unwrap();
        assert_eq!(two.expect("end").unwrap(), Message::Finish);
        two.send_failure(&Failure::run("no device"));
        assert_eq!(one.expect("answer").unwrap_err().message, "the peer failed: no device");
        drop(two);
        assert!(one.wait("answer").unwrap_err().message.contains("closed the connection"));
    }

    #[test]
    fn rubbish_and_other_versions_are_refused() {
        let frame = |body: &str| [&(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat();
        for (wire, part) in [
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "too long"),
            (frame("{}"), "cannot be understood"),
            (frame(r#"{"message":"hello","version":9}"#), "3 here, 9 there"),
            (frame(r#"{"message":"bye"}"#), "unexpected"),
        ] {
            let (one, mut raw) = pair();
            raw.write_all(&wire).unwrap();
            let failure = Control::new(one, Duration::from_secs(10)).err().unwrap();
            assert!(failure.message.contains(part), "{failure}");
        }
    }
}
