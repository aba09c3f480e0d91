//! Threads that close whatever they like, whenever they like, while one reads events (rdma-core #1182, R1 to R8).

use crate::support::bed::Bed;
use crate::support::{PATIENCE, Side};
use ferroce_cm::{ConnParam, ConnectionManager, Error, EventChannel, EventKind, Id, PortSpace};
use ferroce_verbs::{QpInitAttr, QpType};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What a call may say of an id that another thread may have destroyed, or whose peer may have ended it.
fn tolerate<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Destroyed | Error::Phase { .. } | Error::Device { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Reads events until it is told to stop: accepts what comes and hands all ids to those who close.
fn event_loop(side: &Side, stop: &AtomicBool, established: &AtomicU64, closers: &mpsc::Sender<Id>) {
    while !stop.load(Ordering::Relaxed) {
        let Some(event) = side.channel.next_timeout(Duration::from_millis(20)).unwrap() else { continue };
        let (id, kind, _) = event.into_parts();
        match kind {
            EventKind::AddrResolved => drop(tolerate(id.resolve_route())),
            EventKind::RouteResolved => {
                if tolerate(id.create_qp(&side.pd, &attr(side, &id))).is_some() {
                    tolerate(id.connect(&ConnParam::default()));
                }
            }
            EventKind::ConnectRequest { id, .. } => {
                if tolerate(id.create_qp(&side.pd, &attr(side, &id))).is_some() {
                    closers.send(id.clone()).unwrap();
                    tolerate(id.accept(&ConnParam::default()));
                }
            }
            EventKind::Established => {
                established.fetch_add(1, Ordering::Relaxed);
            }
            _ => id.destroy(),
        }
    }
}

/// Closes ids at random moments, in one of the ways that there are.
fn closer(ids: &mpsc::Receiver<Id>, seed: u64, pace: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    for id in ids {
        if rng.random_ratio(1, 2) {
            std::thread::sleep(Duration::from_micros(rng.random_range(0..pace)));
        }
        match rng.random_range(0..4) {
            0 => id.destroy(),
            1 => {
                drop(id.take_qp());
                id.destroy();
            }
            2 => {
                tolerate(id.disconnect());
                id.destroy();
            }
            _ => drop(id),
        }
    }
}

/// How the queue pair of an id is made.
fn attr(side: &Side, id: &Id) -> QpInitAttr {
    let qp_type = if id.port_space() == PortSpace::Udp { QpType::Ud } else { QpType::Rc };
    QpInitAttr::new(qp_type, &side.cq)
}

fn start(side: &Side, port_space: PortSpace, addr: SocketAddr) -> Id {
    let id = side.id_in(port_space);
    id.resolve_addr(None, addr).unwrap();
    id
}

/// They may be destroyed by another thread, once what was posted is out. Not every device counts them.
fn no_queue_pairs_are_left(side: &Side) {
    let context = side.cm.context();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counters = context.counters();
        match counters.iter().find(|(name, _)| *name == "queue_pairs") {
            Some((_, 0)) => break,
            Some((_, left)) => assert!(Instant::now() < deadline, "{left} queue pairs are left"),
            None => {
                println!("skipped: {} does not count queue pairs", context.info().name);
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn churn(bed: &Bed, port_space: PortSpace, connections: usize, readers: usize) {
    let pace = bed.pace();
    let (a, b) = (bed.open(), bed.open());
    let (listener, addr) = b.listen_in(port_space);
    let stop = AtomicBool::new(false);
    let established = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut senders = Vec::new();
        for seed in 0..4 {
            let (sender, receiver) = mpsc::channel();
            scope.spawn(move || closer(&receiver, seed, pace));
            senders.push(sender);
        }
        for side in [&a, &b] {
            for sender in &senders[..readers] {
                let (stop, established, sender) = (&stop, &established, sender.clone());
                scope.spawn(move || event_loop(side, stop, established, &sender));
            }
        }
        let mut rng = StdRng::seed_from_u64(99);
        for number in 0..connections {
            let id = start(&a, port_space, addr);
            // Two handles: two threads may close one id at once.
            let first = rng.random_range(0..senders.len());
            senders[first].send(id.clone()).unwrap();
            senders[(first + number % 2) % senders.len()].send(id).unwrap();
            if number % 16 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        senders.clear();
        let deadline = Instant::now() + PATIENCE;
        // All that is left ends by itself, as its handles are gone.
        while a.cm.id_count() + b.cm.id_count() > 1 {
            assert!(Instant::now() < deadline, "ids are left: {:?} {:?}", a.cm, b.cm);
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
    });
    listener.destroy();
    a.is_clean();
    b.is_clean();
    for side in [&a, &b] {
        no_queue_pairs_are_left(side);
    }
    assert!(
        established.load(Ordering::Relaxed) != 0,
        "none was quick enough to be established: the test shows nothing"
    );
}

pub(crate) fn channels_close_and_ids_migrate_meanwhile(bed: &Bed, rounds: u64) {
    let pace = bed.pace();
    let (a, b) = (bed.open(), bed.open());
    let (_listener, addr) = b.listen();
    let stop = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || closer(&receiver, 7, pace));
        let established = AtomicU64::new(0);
        let (b, stop_b) = (&b, &stop);
        scope.spawn(move || event_loop(b, stop_b, &established, &sender));
        for round in 0..rounds {
            let (old, new) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
            let make = |cm: &ConnectionManager| cm.create_id(&old, PortSpace::Tcp);
            let ids: Vec<Id> = (0..4).map(|_| make(&a.cm)).collect();
            std::thread::scope(|scope| {
                let a = &a;
                for channel in [&old, &new] {
                    scope.spawn(move || {
                        while let Ok(event) = channel.next() {
                            let Some(event) = event else { continue };
                            match event.kind() {
                                EventKind::AddrResolved => drop(tolerate(event.id().resolve_route())),
                                EventKind::RouteResolved => {
                                    let attr = QpInitAttr::new(QpType::Rc, &a.cq);
                                    if tolerate(event.id().create_qp(&a.pd, &attr)).is_some() {
                                        tolerate(event.id().connect(&ConnParam::default()));
                                    }
                                }
                                _ => {}
                            }
                        }
                    });
                }
                let mut rng = StdRng::seed_from_u64(round);
                for id in &ids {
                    id.resolve_addr(None, addr).unwrap();
                }
                for id in &ids {
                    std::thread::sleep(Duration::from_micros(rng.random_range(0..300)));
                    id.migrate(&new).unwrap();
                }
                std::thread::sleep(Duration::from_micros(rng.random_range(0..2000)));
                old.close();
                new.close();
            });
            assert!(matches!(new.try_next(), Err(Error::ChannelClosed)));
        }
        stop.store(true, Ordering::Relaxed);
    });
    a.is_clean();
}
