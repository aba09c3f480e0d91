//! The short path: what it makes of events, while peers and other threads end things.

use super::device::{Answer, HERE, THERE, cq};
use super::search::sample;
use super::{World, join};
use crate::{Connection, Endpoint, Error, Listener};
use ferroce_verbs::{QpInitAttr, QpType};
use shuttle::future::block_on;
use shuttle::thread::{self, JoinHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// In the model no time passes: whoever waits until then waits for ever.
const NEVER: Duration = Duration::from_secs(1 << 20);

impl World {
    /// A thread that delivers what the peer sends, until what is returned with it is set.
    fn progress_until(&self) -> (Arc<AtomicBool>, JoinHandle<()>) {
        let done = Arc::new(AtomicBool::new(false));
        let (host, is_done) = (self.host.clone(), done.clone());
        let progress = thread::spawn(move || {
            while host.deliver() || !is_done.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        });
        (done, progress)
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint { cm: self.cm.clone(), pd: self.pd.clone(), qp: QpInitAttr::new(QpType::Rc, &cq()) }
    }
}

/// A thread connects, another one brings what the peer says, and once it is connected both sides end it.
fn connect(answer: Answer, asynchronous: bool) {
    let world = World::new(answer);
    let endpoint = world.endpoint();
    let (done, progress) = world.progress_until();
    let connector = thread::spawn(move || {
        let made = if asynchronous {
            block_on(Connection::connect_async(&endpoint, THERE, b"", NEVER, |_| Ok(())))
        } else {
            Connection::connect(&endpoint, THERE, b"", NEVER, |_| Ok(()))
        };
        match made {
            Ok(connection) => {
                assert_ne!(answer, Answer::Refuse, "a refusal is no connection");
                connection.close();
            }
            Err(Error::Refused(_)) => assert_ne!(answer, Answer::Grant, "nobody has refused"),
            Err(error) => panic!("{error}"),
        }
        done.store(true, Ordering::Relaxed);
    });
    join(vec![connector, progress]);
    world.finish();
}

#[test]
fn connecting() {
    sample(1000, || connect(Answer::Grant, false));
    sample(500, || connect(Answer::Refuse, false));
    sample(500, || connect(Answer::GrantAndEnd, false));
}

#[test]
fn connecting_as_a_future() {
    sample(1000, || connect(Answer::Grant, true));
    sample(500, || connect(Answer::Refuse, true));
    sample(500, || connect(Answer::GrantAndEnd, true));
}

/// Peers ask, one thread accepts, and another one closes the listener.
fn listen() {
    let world = World::new(Answer::Grant);
    let listener = Arc::new(Listener::bind(&world.endpoint(), HERE, 0).unwrap());
    world.host.ask();
    world.host.ask();
    let other = listener.clone();
    let (done, progress) = world.progress_until();
    let acceptor = thread::spawn(move || {
        let mut connections = Vec::new();
        loop {
            match block_on(other.incoming_async(NEVER)) {
                Ok(None) => panic!("no time passes"),
                Ok(Some(incoming)) => match block_on(incoming.accept_async(b"", NEVER, |_| Ok(()))) {
                    Ok(connection) => connections.push(connection),
                    Err(Error::Refused(_)) => {}
                    Err(error) => panic!("{error}"),
                },
                Err(Error::ChannelClosed) => break,
                Err(error) => panic!("{error}"),
            }
        }
        done.store(true, Ordering::Relaxed);
        connections.len()
    });
    let closer = listener.clone();
    let closer = thread::spawn(move || closer.close());
    join(vec![progress, closer]);
    let accepted = acceptor.join().unwrap();
    assert!(accepted <= 2);
    while world.host.deliver() {}
    assert_eq!(world.host.ends(), [1, 1], "each peer hears that it is over, or refused, once");
    drop(listener);
    world.finish();
}

#[test]
fn listening() {
    sample(2000, listen);
}
