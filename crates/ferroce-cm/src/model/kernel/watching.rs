//! Who reads the kernel's events: its thread, or readers of the one channel, which come and go.

use super::*;
use crate::kernel::run_thread;
use std::future::Future;

/// A world with the thread.
fn world() -> (World, JoinHandle<()>) {
    let watch = Arc::new(Watch::new().unwrap());
    let world = World::with(Some(watch.clone()));
    let (kernel, manager) = (world.kernel.clone(), Arc::downgrade(&world.manager));
    let thread = thread::spawn(move || run_thread(&kernel, &watch, &manager));
    (world, thread)
}

/// The next event, by one of the ways to get it.
fn next(channel: &EventChannel, way: usize) -> EventKind {
    loop {
        let event = match way {
            0 => channel.next().unwrap(),
            1 => channel.next_timeout(Duration::from_secs(1)).unwrap(),
            _ => channel.try_next().unwrap(),
        };
        match event {
            Some(event) => return event.into_parts().1,
            None => thread::yield_now(),
        }
    }
}

/// Connects, however events are read.
fn connect(world: &World, way: usize) -> Id {
    let id = world.resolved_by(|| next(&world.channel, way));
    id.connect(&ConnParam::default()).unwrap();
    assert!(matches!(next(&world.channel, way), EventKind::Established));
    id
}

/// Everything goes, and the thread ends.
fn end(world: World, thread: JoinHandle<()>) {
    let World { kernel, host, manager, cm, channel, pd } = world;
    let weak = Arc::downgrade(&manager);
    drop((manager, cm, channel, pd));
    thread.join().unwrap();
    assert_eq!(weak.strong_count(), 0, "the manager is held");
    assert_eq!((kernel.ids(), host.qps()), (0, 0), "ids or queue pairs are left");
}

fn one_reader<const WAY: usize>() {
    let (world, thread) = world();
    drop(connect(&world, WAY));
    end(world, thread);
}

#[test]
fn events_come_to_whoever_reads_in_whatever_way() {
    sample(500, one_reader::<0>);
    sample(500, one_reader::<1>);
    sample(500, one_reader::<2>);
}

/// A reader is away, and the thread has not filled in: who looks reads the kernel's file.
fn looks() {
    let world = World::with(Some(Arc::new(Watch::new().unwrap())));
    let id = world.id();
    id.resolve_addr(None, THERE).unwrap();
    // It takes over; there is no thread that could fill in.
    assert!(matches!(world.channel.next().unwrap().unwrap().into_parts().1, EventKind::AddrResolved));
    let resolver = {
        let id = id.clone();
        thread::spawn(move || id.resolve_route().unwrap())
    };
    assert!(matches!(next(&world.channel, 2), EventKind::RouteResolved));
    join(vec![resolver]);
    drop(id);
    world.finish();
}

#[test]
fn who_looks_reads() {
    sample(100, looks);
}

/// The kernel refuses a thread that has other credentials than the one that has opened its file: the manager's thread reads.
fn refused() {
    let (world, thread) = world();
    world.kernel.serve_only(thread.thread().id());
    drop(connect(&world, 0));
    end(world, thread);
}

#[test]
fn a_reader_that_the_kernel_refuses_hurts_nobody() {
    sample(1000, refused);
}

/// The peer ends a connection, and all readers that there are see what comes in order, whoever reads the kernel's file.
fn two_readers() {
    let (world, thread) = world();
    let id = connect(&world, 0);
    let readers =
        (0..2).map(|_| world.reader(&world.channel, |event| assert!(matches!(event, EventKind::Disconnected(_)))));
    let readers: Vec<_> = readers.collect();
    world.kernel.end_all();
    let other = world.cm.create_id(&world.channel, PortSpace::Tcp);
    world.join(vec![destroyer(other)], readers);
    drop(id);
    end(world, thread);
}

#[test]
fn readers_take_turns() {
    sample(1000, two_readers);
}

/// Somebody wants the reader back who waits for the kernel's events: the channel closes, or a reader is woken.
fn called_back<const CLOSES: bool>() {
    let (world, thread) = world();
    let id = connect(&world, 0);
    let reader = world.reader(&world.channel, |event| panic!("{event:?}"));
    let caller = {
        let channel = world.channel.clone();
        thread::spawn(move || if CLOSES { channel.close() } else { channel.wake() })
    };
    // Nobody sleeps on: that would be a deadlock.
    join(vec![caller, reader]);
    drop(id);
    end(world, thread);
}

#[test]
fn a_reader_is_called_back() {
    sample(500, called_back::<false>);
    sample(500, called_back::<true>);
}

/// While a reader waits for the kernel's events something else comes to wait for them: another channel, or a task. From then on it is the thread
/// that reads, and nobody waits for a reader that is away.
fn no_longer_alone<const WHAT: usize>() {
    let (world, thread) = world();
    let id = connect(&world, 0);
    let first = world.reader(&world.channel, |event| assert!(matches!(event, EventKind::Disconnected(_))));
    let second = EventChannel::new().unwrap();
    let others = {
        let (channel, second, id) = (world.channel.clone(), second.clone(), id.clone());
        thread::spawn(move || match WHAT {
            0 => id.migrate(&second).unwrap(),
            1 => drop(channel.fd().unwrap()),
            _ => {
                let mut event = Box::pin(channel.next_async());
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                let _ = event.as_mut().poll(&mut context);
            }
        })
    };
    join(vec![others]);
    world.kernel.end_all();
    if WHAT == 0 {
        // Its reader does nothing but sleep.
        assert!(matches!(second.next().unwrap().unwrap().into_parts().1, EventKind::Disconnected(_)));
    }
    assert!(!world.manager.lends());
    world.join(Vec::new(), vec![first]);
    drop((id, second));
    end(world, thread);
}

#[test]
fn readers_read_only_as_long_as_nobody_else_waits() {
    sample(500, no_longer_alone::<0>);
    sample(500, no_longer_alone::<1>);
    sample(500, no_longer_alone::<2>);
}

/// The manager goes while a reader waits for its events.
fn left_alone() {
    let (world, thread) = world();
    drop(world.listener(1));
    let (channel, kernel) = (world.channel.clone(), world.kernel.clone());
    let reader = world.reader(&channel, |event| panic!("{event:?}"));
    // The world goes before, during and after the reader's first look.
    (0..12).for_each(|_| thread::yield_now());
    end(world, thread);
    while kernel.is_open() {
        thread::yield_now();
    }
    channel.wake();
    join(vec![reader]);
}

#[test]
fn a_reader_keeps_neither_the_manager_nor_its_file() {
    sample(1000, left_alone);
}

/// A peer says nothing: whoever reads, and may sleep already, sees that the time is over.
fn too_late() {
    let (world, thread) = world();
    let id = world.resolved_by(|| next(&world.channel, 0));
    world.kernel.keep_silent();
    id.set_options(|options| options.connect_timeout = Duration::ZERO).unwrap();
    let channel = world.channel.clone();
    let reader = thread::spawn(move || assert!(matches!(next(&channel, 0), EventKind::Unreachable { .. })));
    id.connect(&ConnParam::default()).unwrap();
    join(vec![reader]);
    drop(id);
    end(world, thread);
}

#[test]
fn deadlines_are_kept() {
    sample(1000, too_late);
}

/// A reader goes, and does not come back: the thread reads what comes then.
fn gone() {
    let (world, thread) = world();
    let id = connect(&world, 0);
    let ender = {
        let kernel = world.kernel.clone();
        thread::spawn(move || kernel.end_all())
    };
    assert!(matches!(next(&world.channel, 0), EventKind::Disconnected(_)));
    join(vec![ender]);
    let late = world.id();
    late.resolve_addr(None, THERE).unwrap();
    while world.kernel.has_events() {
        thread::yield_now();
    }
    drop((id, late));
    end(world, thread);
}

#[test]
fn the_thread_fills_in() {
    sample(1000, gone);
}
