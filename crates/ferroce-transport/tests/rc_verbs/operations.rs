//! Messages, puts, gets and atomics.

use crate::support::{AM, a_while, context, message, numbers, open, open_on, options, pair, shm, until, when_possible};
use ferroce_soft::{FaultConfig, LinkMode, SoftConfig};
use ferroce_transport::rc_verbs::RcOptions;
use ferroce_transport::uct::{
    AtomicOp, AtomicOps, Completion, CompletionCounter, Endpoint as _, FlushKind, Interface as _, Iov, OpError, Posted,
    Remote,
};
use ferroce_verbs::Access;
use std::sync::{Arc, mpsc};

/// Every kind of message both ways, in order.
fn both_ways(config: SoftConfig, count: u32) {
    let (ca, cb) = (context(config.clone()), context(config));
    let ((a, at_a), (b, at_b)) = (open_on(&ca, options()), open_on(&cb, options()));
    let (to_b, to_a) = pair(&a, &b);
    let memory = a.pd().alloc_mr(16384, Access::LOCAL_WRITE).unwrap();
    let done = CompletionCounter::new();
    for number in 0..count {
        let len = (number as usize * 997) % 8000;
        let bytes = message(number, len);
        match number % 3 {
            0 => when_possible(&[&a, &b], || to_b.am_short(AM, &bytes[..bytes.len().min(200)])),
            1 => {
                let packed = when_possible(&[&a, &b], || to_b.am_bcopy(AM, &mut |packer| packer.put(&bytes).unwrap()));
                assert_eq!(packed, bytes.len());
            }
            _ => {
                // The memory is read until the completion says that it is not.
                until(&[&a, &b], || done.outstanding() == 0);
                memory.write(100, &bytes[4..]).unwrap();
                let (one, two) = (100 + (bytes.len() - 4) / 2, 100 + bytes.len() - 4);
                let iov = [Iov::new(&memory, 100..one), Iov::new(&memory, one..two)];
                let posted = when_possible(&[&a, &b], || {
                    let token = done.token();
                    to_b.am_zcopy(AM, &bytes[..4], &iov, Some(token)).inspect_err(|_| done.answered())
                });
                assert_eq!(posted, Posted::InProgress);
            }
        }
        when_possible(&[&a, &b], || to_a.am_short(AM, &message(number, 8)));
    }
    until(&[&a, &b], || a.flush() && b.flush() && done.outstanding() == 0);
    let expected: Vec<u32> = (0..count).collect();
    until(&[&a, &b], || at_b.lock().unwrap().len() == expected.len() && at_a.lock().unwrap().len() == expected.len());
    assert_eq!(numbers(&at_b, &to_a), expected);
    assert_eq!(numbers(&at_a, &to_b), expected);
    assert_eq!((done.succeeded(), done.canceled(), done.failed()), (count as usize / 3, 0, 0));
    let counters = a.counters();
    assert_eq!((counters.free_buffers, counters.malformed, counters.failures), (512, 0, 0), "{counters:?}");
}

#[test]
fn messages_over_shared_memory() {
    both_ways(shm(), 3000);
}

#[test]
fn messages_over_udp() {
    both_ways(SoftConfig { link: LinkMode::Udp, ..SoftConfig::default() }, 3000);
}

#[test]
fn messages_over_a_bad_link() {
    let fault = FaultConfig { seed: 3, loss: 0.02, duplicate: 0.02, reorder: 0.02, corrupt: 0.01 };
    both_ways(SoftConfig { link: LinkMode::Udp, fault: Some(fault), ..SoftConfig::default() }, 600);
}

#[test]
fn memory_of_the_peer() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, _to_a) = pair(&a, &b);
    let theirs = b.pd().alloc_mr(1 << 20, Access::ALL).unwrap();
    let mine = a.pd().alloc_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
    let remote = Remote::from_bytes(&Remote::of(&theirs).to_bytes());
    let done = CompletionCounter::new();
    let flush = || {
        let mut over = false;
        until(&[&a, &b], || {
            over = over || matches!(to_b.flush(FlushKind::Remote, None), Ok(Posted::Done));
            over && done.outstanding() == 0
        });
    };

    to_b.put_short(b"short", remote).unwrap();
    assert_eq!(to_b.put_bcopy(&mut |packer| packer.put(&[7; 5000]).unwrap(), remote.at(1000)).unwrap(), 5000);
    mine.write(0, &[9; 300_000]).unwrap();
    let iov = [Iov::new(&mine, 0..100_000), Iov::new(&mine, 100_000..300_000)];
    assert_eq!(to_b.put_zcopy(&iov, remote.at(10_000), Some(done.token())).unwrap(), Posted::InProgress);
    flush();
    let mut bytes = vec![0; 310_000];
    theirs.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes[..6], b"short\0");
    assert!(bytes[1000..6000].iter().all(|byte| *byte == 7) && bytes[6000] == 0 && bytes[999] == 0);
    assert!(bytes[10_000..310_000].iter().all(|byte| *byte == 9));

    let (told, heard) = mpsc::channel();
    let fetched = Completion::once(move |outcome| told.send(outcome.unwrap().to_vec()).unwrap());
    assert_eq!(to_b.get_bcopy(5, remote, fetched).unwrap(), Posted::InProgress);
    until(&[&a, &b], || heard.try_recv().is_ok_and(|bytes| bytes == b"short"));
    let iov = [Iov::new(&mine, 500_000..800_000)];
    to_b.get_zcopy(&iov, remote.at(10_000), Some(done.token())).unwrap();
    flush();
    let mut back = vec![0; 300_000];
    mine.read(500_000, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 9));
    assert_eq!((done.succeeded(), done.outstanding()), (2, 0));
    assert_eq!(a.counters().free_buffers, 512);
}

/// Who asks again and again whether all has arrived posts one question, and so gets an answer, however slow the peer is.
#[test]
fn a_flush_that_is_repeated_asks_once() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, _to_a) = pair(&a, &b);
    let theirs = b.pd().alloc_mr(64, Access::ALL).unwrap();
    for _ in 0..3 {
        to_b.put_short(b"short", Remote::of(&theirs)).unwrap();
        for _ in 0..100_000 {
            assert_eq!(to_b.flush(FlushKind::Remote, None).unwrap(), Posted::InProgress);
        }
        until(&[&a, &b], || to_b.flush(FlushKind::Remote, None).unwrap() == Posted::Done);
    }
}

#[test]
fn atomics_on_64_bits() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, _to_a) = pair(&a, &b);
    let theirs = b.pd().alloc_mr(4096, Access::ALL).unwrap();
    let remote = Remote::of(&theirs).at(8);
    let attr = a.attr();
    assert_eq!((attr.atomic64_post, attr.atomic64_fetch), (AtomicOps::ADD, AtomicOps::ADD | AtomicOps::CSWAP));
    assert!(attr.atomic32_post.is_empty() && attr.atomic32_fetch.is_empty() && attr.get.max_short == 0);
    let (told, heard) = mpsc::channel();
    let token = || {
        let told = told.clone();
        Completion::once(move |outcome| {
            told.send(u64::from_ne_bytes(outcome.unwrap().try_into().unwrap())).unwrap();
        })
    };
    to_b.atomic64_post(AtomicOp::Add, 5, remote).unwrap();
    to_b.atomic64_fetch(AtomicOp::Add, 10, remote, token()).unwrap();
    to_b.atomic64_cswap(15, 100, remote, token()).unwrap();
    to_b.atomic64_cswap(15, 200, remote, token()).unwrap();
    until(&[&a, &b], || a.flush());
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [5, 15, 100]);
    for op in [AtomicOp::And, AtomicOp::Or, AtomicOp::Xor, AtomicOp::Swap] {
        assert!(!attr.atomic64_fetch.contains(op.cap()));
        assert!(matches!(to_b.atomic64_post(op, 1, remote), Err(OpError::Unsupported(..))));
        assert!(matches!(to_b.atomic64_fetch(op, 1, remote, token()), Err(OpError::Unsupported(..))));
    }
    assert!(matches!(to_b.atomic32_post(AtomicOp::Add, 1, remote), Err(OpError::Unsupported(..))));
    assert!(heard.try_recv().is_err(), "an operation that was not begun calls nobody");
}

#[test]
fn what_cannot_be_done_says_so_and_calls_nobody() {
    let ((a, _), (b, at_b)) = (open(options()), open(options()));
    let alone = a.create_endpoint().unwrap();
    assert!(matches!(alone.am_short(AM, b"x"), Err(OpError::NotConnected(_))));
    assert!(!alone.is_connected(&alone.address().to_bytes()));
    let (to_b, to_a) = pair(&a, &b);
    let attr = *a.attr();
    let long = vec![0; attr.am.max_bcopy + 1];
    assert!(matches!(to_b.am_short(AM, &long[..=attr.am.max_short]), Err(OpError::TooLong { .. })));
    assert!(matches!(to_b.am_short(32, &[]), Err(OpError::AmId(32))));
    assert!(matches!(a.set_am(32, None), Err(OpError::AmId(32))));
    let packed = to_b.am_bcopy(AM, &mut |packer| assert!(packer.put(&long).is_err()));
    assert!(matches!(packed, Err(OpError::TooLong { len, most, .. }) if len == most + 1));
    let memory = a.pd().alloc_mr(16384, Access::LOCAL_WRITE).unwrap();
    let never = || Some(Completion::once(|_| panic!("an operation that was not begun calls nobody")));
    let piece = Iov::new(&memory, 0..10);
    let pieces = vec![piece; attr.am.max_iov + 1];
    assert!(matches!(to_b.am_zcopy(AM, &[], &pieces, never()), Err(OpError::TooManyPieces { .. })));
    let iov = [Iov::new(&memory, 0..attr.am.max_zcopy)];
    assert!(matches!(to_b.am_zcopy(AM, &[1], &iov, never()), Err(OpError::TooLong { .. })));
    assert!(matches!(to_b.am_zcopy(AM, &[], &[Iov::new(&memory, 0..16385)], never()), Err(OpError::Device(_))));
    let far = to_b.get_bcopy(attr.get.max_bcopy + 1, Remote { addr: 0, rkey: 0 }, never().unwrap());
    assert!(matches!(far, Err(OpError::TooLong { .. })));
    // The longest of each kind goes through.
    to_b.am_short(AM, &long[..attr.am.max_short]).unwrap();
    to_b.am_bcopy(AM, &mut |packer| packer.put(&long[..attr.am.max_bcopy]).unwrap()).unwrap();
    to_b.am_zcopy(AM, &[], &iov, None).unwrap();
    to_b.am_short(AM, &[]).unwrap();
    // Nobody handles this id: counted, and no harm.
    to_b.am_short(AM + 1, &[]).unwrap();
    until(&[&a, &b], || at_b.lock().unwrap().len() == 4);
    let lens: Vec<usize> = at_b.lock().unwrap().iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(lens, [attr.am.max_short, attr.am.max_bcopy, attr.am.max_zcopy, 0]);
    until(&[&a, &b], || b.counters().no_handler == 1);
    until(&[&a, &b], || a.flush());
    assert_eq!(a.counters().free_buffers, 512, "what failed gave its buffer back");
    drop(to_a);
    let junk = RcOptions { window: 4096, ..options() };
    assert!(ferroce_transport::rc_verbs::RcVerbs::open(&context(shm()), junk).is_err());
}

/// Interfaces of different sizes: the smaller one's messages are what may be sent, and its window.
#[test]
fn ends_of_different_sizes_agree() {
    let ((a, _), (b, at_b)) =
        (open(options()), open(RcOptions { max_bcopy: 1000, window: 3, receive_depth: 16, ..options() }));
    let (to_b, to_a) = pair(&a, &b);
    assert_eq!((to_b.max_message(), to_a.max_message()), (1000, 1000));
    let packed = to_b.am_bcopy(AM, &mut |packer| assert!(packer.put(&[0; 1001]).is_err()));
    assert!(matches!(packed, Err(OpError::TooLong { most: 1000, .. })));
    for number in 0..100 {
        when_possible(&[&a, &b], || to_b.am_bcopy(AM, &mut |packer| packer.put(&message(number, 1000)).unwrap()));
    }
    until(&[&a, &b], || numbers(&at_b, &to_a).len() == 100);
    assert_eq!(numbers(&at_b, &to_a), (0..100).collect::<Vec<_>>());
}

/// What is posted after a fence sees what was fetched before it.
#[test]
fn a_fence_orders_what_follows_reads() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, _to_a) = pair(&a, &b);
    let theirs = b.pd().alloc_mr(8192, Access::ALL).unwrap();
    let mine = a.pd().alloc_mr(8192, Access::LOCAL_WRITE).unwrap();
    let remote = Remote::of(&theirs);
    for round in 1..100_u8 {
        theirs.write(0, &[round; 4096]).unwrap();
        let got = Arc::new(CompletionCounter::default());
        to_b.get_zcopy(&[Iov::new(&mine, 0..4096)], remote, Some(got.token())).unwrap();
        to_b.fence().unwrap();
        // Copies what the read brought, though nobody waited for it.
        to_b.put_zcopy(&[Iov::new(&mine, 0..4096)], remote.at(4096), None).unwrap();
        until(&[&a, &b], || a.flush());
        let mut bytes = [0; 4096];
        theirs.read(4096, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == round));
    }
    a_while(&[&a, &b]);
}
