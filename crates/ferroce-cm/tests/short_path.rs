//! Connect, listen, accept: in three lines, blocking and async.

mod cases;
mod support;

use cases::short_path;
use ferroce_cm::{Connection, Listener};
use ferroce_soft::LinkMode;
use support::PATIENCE;
use support::bed::Bed;

#[test]
fn blocking() {
    short_path::blocking(&Bed::soft(LinkMode::Auto));
}

#[test]
fn as_futures() {
    short_path::as_futures(&Bed::soft(LinkMode::Auto));
}

#[test]
fn refusals_are_values() {
    short_path::refusals_are_values(&Bed::soft(LinkMode::Auto));
}

#[test]
fn waiting_ends() {
    short_path::waiting_ends(&Bed::soft(LinkMode::Auto));
}

#[test]
fn waiting_for_ever() {
    short_path::waiting_for_ever(&Bed::soft(LinkMode::Auto));
}

/// B21, B38: thousands of connections fit a limit of 1024 descriptors.
#[test]
fn b21_a_connection_takes_no_descriptor() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let bed = Bed::soft(LinkMode::Auto);
    let (a, b) = (bed.open(), bed.open());
    let listener = Listener::bind(&short_path::endpoint(&b), (b.ip, 0).into(), 0).unwrap();
    let addr = listener.local_addr().unwrap();
    let connect = || {
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                listener.incoming(PATIENCE).unwrap().expect("nobody asks").accept(b"", PATIENCE, |_| Ok(())).unwrap()
            });
            let connection = Connection::connect(&short_path::endpoint(&a), addr, b"", PATIENCE, |_| Ok(())).unwrap();
            (connection, server.join().unwrap())
        })
    };
    let first = connect();
    let before = descriptors();
    let more: Vec<_> = (0..100).map(|_| connect()).collect();
    // Other tests of this program open and close some.
    assert!(descriptors() < before + more.len(), "{before} and {}", descriptors());
    drop((first, more));
}
