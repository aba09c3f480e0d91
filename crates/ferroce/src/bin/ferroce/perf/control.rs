//! The control connection: JSON messages over TCP, each after its length in four bytes.
//!
//! A thread reads them, so that a measuring loop sees that there is one without a system call.

use super::plan::{MAX_QPS, Plan};
use super::result::Measurement;
use crate::failure::{Failure, Result};
use crate::monitor::{Halt, Monitor};
use crate::tcp::lost;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The version of these messages. Ends of different versions refuse each other.
pub(crate) const VERSION: u32 = 1;
/// The longest message: one end with all its queue pairs fits with room to spare.
const MAX_LEN: usize = 64 * 1024 + MAX_QPS as usize * 64;

/// One queue pair of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QpAddress {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
}

/// Where an end is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndAddress {
    pub(crate) gid: std::net::Ipv6Addr,
    /// The largest path MTU of this end, in bytes.
    pub(crate) mtu: u32,
    /// The largest message that this end's port takes.
    pub(crate) max_msg_sz: u32,
    pub(crate) device: String,
    pub(crate) pid: u32,
    pub(crate) qps: Vec<QpAddress>,
    /// The memory that the peer may write to, read from and count in.
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    /// How a transport is connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<Vec<u8>>,
}

/// What the ends say to each other, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "lowercase")]
pub(crate) enum Message {
    /// Client: this is what I want.
    Hello {
        version: u32,
        plan: Plan,
    },
    /// Server: it can be done, and this is where I am.
    Welcome {
        end: EndAddress,
    },
    /// Client: this is where I am, and the path MTU in bytes that we both use.
    Connect {
        end: EndAddress,
        mtu: u32,
    },
    /// Server: my queue pairs are connected.
    Connected,
    /// Client: the next size. Server: I am ready for it.
    Start {
        size: u32,
    },
    Ready,
    /// Client: that was it; so many messages in all. Server: I have them all, and the data is right.
    Stop {
        messages: u64,
    },
    Stopped,
    /// Client: that was all.
    Bye {
        results: Vec<Measurement>,
    },
    /// Either: it cannot be done, or it went wrong.
    Failed {
        why: String,
    },
}

/// What only serves to refuse another version with a clear word.
#[derive(Deserialize)]
struct AnyHello {
    version: u32,
}

/// One end of the control connection.
pub(crate) struct Control {
    stream: TcpStream,
    incoming: Receiver<Result<Message>>,
    /// Messages that the reader has announced and nobody has taken.
    announced: Arc<AtomicUsize>,
    monitor: Monitor,
    patience: Duration,
    reader: Option<JoinHandle<()>>,
}

impl Control {
    /// Takes over the connection. Whatever arrives asks `monitor`'s loop to end.
    pub(crate) fn new(stream: TcpStream, monitor: Monitor, patience: Duration) -> Result<Self> {
        let copy = stream.try_clone().map_err(|error| lost("it was set up", &error))?;
        stream.set_write_timeout(Some(patience)).map_err(|error| lost("it was set up", &error))?;
        let (send, incoming) = mpsc::channel();
        let announced = Arc::new(AtomicUsize::new(0));
        let (watched, count) = (monitor.clone(), announced.clone());
        let reader = std::thread::spawn(move || {
            loop {
                let next = read_one(&mut &copy);
                let last = next.is_err();
                // Announced before it is there: whoever takes it can then tell whether another one is announced.
                count.fetch_add(1, Ordering::SeqCst);
                watched.request(Halt::Control);
                if send.send(next).is_err() || last {
                    return;
                }
            }
        });
        Ok(Self { stream, incoming, announced, monitor, patience, reader: Some(reader) })
    }

    pub(crate) fn send(&self, message: &Message) -> Result<()> {
        let body = serde_json::to_vec(message).map_err(|error| Failure::run(format!("no message: {error}")))?;
        if body.len() > MAX_LEN {
            return Err(Failure::run(format!("a control message of {} bytes is too long", body.len())));
        }
        let mut wire = (body.len() as u32).to_be_bytes().to_vec();
        wire.extend(body);
        tracing::trace!(?message, "control out");
        (&self.stream).write_all(&wire).map_err(|error| lost("it was sent a control message", &error))
    }

    /// The next message, within the patience for a peer that has to answer.
    pub(crate) fn expect(&self, awaited: &str) -> Result<Message> {
        let next = self.incoming.recv_timeout(self.patience);
        self.take(next, awaited)
    }

    /// The next message, however long it takes: the peer may be measuring. A machine that dies is noticed all the same.
    pub(crate) fn wait(&self, awaited: &str) -> Result<Message> {
        let next = self.incoming.recv().map_err(|_| RecvTimeoutError::Disconnected);
        self.take(next, awaited)
    }

    fn take(&self, next: Result<Result<Message>, RecvTimeoutError>, awaited: &str) -> Result<Message> {
        if next.is_ok() {
            self.taken();
        }
        match next {
            Ok(Ok(Message::Failed { why })) => Err(Failure::run(format!("the peer failed: {why}"))),
            Ok(Ok(message)) => Ok(message),
            Ok(Err(failure)) => Err(failure),
            Err(RecvTimeoutError::Timeout) => {
                Err(lost(&format!("its {awaited} was awaited"), &ErrorKind::TimedOut.into()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(lost(&format!("its {awaited} was awaited"), &ErrorKind::UnexpectedEof.into()))
            }
        }
    }

    /// A message was taken: the loop goes on, unless another one is announced.
    fn taken(&self) {
        self.monitor.withdraw(Halt::Control);
        if self.announced.fetch_sub(1, Ordering::SeqCst) > 1 {
            self.monitor.request(Halt::Control);
        }
    }

    /// Why a measuring loop was asked to end early: what the peer says within a moment, or that it is gone. `None` if it says nothing.
    pub(crate) fn broken_off(&self) -> Option<Failure> {
        /// A peer whose own queue pair failed says so at about the same time.
        const MOMENT: Duration = Duration::from_millis(300);
        let next = self.incoming.recv_timeout(MOMENT).ok()?;
        Some(match self.take(Ok(next), "reason") {
            Ok(message) => unexpected(&message),
            Err(failure) => failure,
        })
    }

    /// Tells the peer that it went wrong here, if it still listens.
    pub(crate) fn send_failure(&self, failure: &Failure) {
        let _ = self.send(&Message::Failed { why: failure.message.clone() });
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Ends the reader, which blocks in a read of the same socket.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// A message that has no place where it came.
pub(crate) fn unexpected(message: &Message) -> Failure {
    Failure::run(format!("the peer sent an unexpected message: {message:?}"))
        .hint("do both ends run the same version of ferroce?")
}

fn read_one(stream: &mut impl Read) -> Result<Message> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).map_err(|error| lost("it was measured or awaited", &error))?;
    let len = u32::from_be_bytes(len) as usize;
    if len > MAX_LEN {
        return Err(Failure::run(format!(
            "the peer announced a control message of {len} bytes, at most {MAX_LEN} are allowed"
        ))
        .hint("is the program at the other end `ferroce perf`?"));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).map_err(|error| lost("it sent a control message", &error))?;
    match serde_json::from_slice(&body) {
        Ok(message) => Ok(message),
        Err(error) => Err(misunderstood(&body, &error)),
    }
}

fn misunderstood(body: &[u8], error: &serde_json::Error) -> Failure {
    match serde_json::from_slice::<AnyHello>(body) {
        Ok(AnyHello { version }) if version != VERSION => version_failure(version),
        _ => Failure::run(format!("the peer sent a control message that cannot be understood: {error}"))
            .hint("is the program at the other end `ferroce perf`, of the same version?"),
    }
}

/// The peer's version is another.
pub(crate) fn version_failure(theirs: u32) -> Failure {
    Failure::run(format!("the ends speak different versions of the control messages: {VERSION} here, {theirs} there"))
        .hint("run the same version of ferroce at both ends")
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Mode, Op};
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (Control, TcpStream, Monitor) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let monitor = Monitor::default();
        (Control::new(stream, monitor.clone(), Duration::from_secs(10)).unwrap(), raw, monitor)
    }

    fn frame(body: &str) -> Vec<u8> {
        let mut wire = (body.len() as u32).to_be_bytes().to_vec();
        wire.extend(body.as_bytes());
        wire
    }

    #[test]
    fn messages_arrive_whole_and_halt_the_loop() {
        let (one, raw, monitor) = pair();
        let two = Control::new(raw, Monitor::default(), Duration::from_secs(10)).unwrap();
        let hello = Message::Hello { version: VERSION, plan: Plan::new(Op::Send, Mode::Lat) };
        two.send(&hello).unwrap();
        while monitor.halt() != Halt::Control {
            std::thread::yield_now();
        }
        assert_eq!(one.expect("plan").unwrap(), hello);
        assert_eq!(monitor.halt(), Halt::Running);
        two.send(&Message::Failed { why: "no device".into() }).unwrap();
        assert_eq!(one.wait("answer").unwrap_err().message, "the peer failed: no device");
        drop(two);
        assert!(one.wait("answer").unwrap_err().message.contains("closed the connection"));
    }

    #[test]
    fn another_version_is_named() {
        let (control, mut raw, _) = pair();
        raw.write_all(&frame(r#"{"message":"hello","version":7,"plan":{"colour":"red"}}"#)).unwrap();
        let failure = control.expect("plan").unwrap_err();
        assert!(failure.message.contains("1 here, 7 there"), "{failure}");
    }

    #[test]
    fn rubbish_is_refused() {
        for wire in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), frame("{}"), frame("\u{0}"), u32::MAX.to_be_bytes().to_vec()] {
            let (control, mut raw, _) = pair();
            raw.write_all(&wire).unwrap();
            assert!(control.expect("plan").is_err(), "{wire:?}");
        }
    }

    #[test]
    fn a_silent_peer_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let control = Control::new(stream, Monitor::default(), Duration::from_millis(20)).unwrap();
        assert!(control.expect("plan").unwrap_err().message.contains("silent"));
    }
}
