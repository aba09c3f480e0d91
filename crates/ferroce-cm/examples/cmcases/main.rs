//! What the kernel test bed runs on a device of the kernel.
//!
//! - `cmcases cases DEVICE ADDRESS [FILTER]` prints `PASS` or `FAIL` for each case, and fails if any case does, or leaves something.
//! - `cmcases refuse DEVICE ADDRESS` prints `waiting` and refuses what `cmcases refused DEVICE ADDRESS PEER` asks, with reasons. The device `soft` is
//!   the software device.
//! - `cmcases removed DEVICE ADDRESS` prints `ready` once it uses the device, which is then to go away.

#[path = "../../tests/cases/mod.rs"]
mod cases;
mod left;
mod refusal;
mod removed;
#[path = "../../tests/support/mod.rs"]
mod support;

use cases::{datagrams, deciding, lifecycle, overload, races, short_path};
use ferroce_cm::{ConnectionManager, PortSpace};
use ferroce_soft::{SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use left::Opened;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use support::Side;
use support::bed::Bed;

/// A case that hangs is given up after this.
const GIVE_UP: Duration = Duration::from_secs(120);

type Case = (&'static str, fn(&Bed));

/// Fewer rounds than where nothing is emulated.
const CASES: &[Case] = &[
    ("whole life", lifecycle::whole_life),
    ("nobody listens, and the user refuses", lifecycle::nobody_listens_and_the_user_refuses_are_two_things),
    ("a request that is dropped is rejected", lifecycle::a_request_that_is_dropped_is_rejected),
    ("the caller sets the queue pair up", lifecycle::the_caller_sets_the_queue_pair_up),
    ("destroyed in its own handler", lifecycle::destroying_an_id_in_the_handler_of_its_own_event_is_ordinary),
    ("no event after destroy", lifecycle::no_event_comes_after_destroy),
    ("a closed channel wakes its reader", lifecycle::a_closed_channel_wakes_its_reader),
    ("migrated with unread events", lifecycle::migration_takes_unread_events_along_and_wakes_the_new_reader),
    ("the end of a program", lifecycle::the_end_of_a_program_ends_its_connections),
    ("an address of two", lifecycle::an_address_may_be_of_two),
    ("a grant that does not fit", deciding::a_grant_that_does_not_fit_is_made_again),
    ("shared receive queues", deciding::shared_receive_queues_are_told_of),
    ("the attributes of a destroyed id", deciding::a_destroyed_id_has_no_attributes),
    ("datagrams: whole life", datagrams::whole_life),
    ("datagrams: nobody listens, and the user refuses", datagrams::nobody_listens_and_the_user_refuses_are_two_things),
    (
        "datagrams: a listener with unread requests",
        datagrams::a_listener_that_is_destroyed_rejects_what_nobody_has_read,
    ),
    ("datagrams: no event after destroy", datagrams::no_event_comes_after_destroy),
    ("the short path", short_path::blocking),
    ("the short path as futures", short_path::as_futures),
    ("the short path: refusals", short_path::refusals_are_values),
    ("the short path: waiting ends", short_path::waiting_ends),
    ("a burst of requests", overload::a_burst_is_accepted),
    ("a full backlog", overload::a_full_backlog_is_answered),
    ("races, one reader", |bed| races::churn(bed, PortSpace::Tcp, 300, 1)),
    ("races, several readers", |bed| races::churn(bed, PortSpace::Tcp, 300, 3)),
    ("races, datagrams", |bed| races::churn(bed, PortSpace::Udp, 300, 3)),
    ("channels close and ids migrate", |bed| races::channels_close_and_ids_migrate_meanwhile(bed, 30)),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let parse = |ip: &str| ip.parse::<IpAddr>().unwrap_or_else(|why| panic!("{ip}: {why}"));
    match args[..] {
        ["cases", device, ip] => all(device, parse(ip), ""),
        ["cases", device, ip, filter] => all(device, parse(ip), filter),
        ["refuse", device, ip] => {
            refusal::refuse(&open(device, parse(ip)));
            ExitCode::SUCCESS
        }
        ["refused", device, ip, peer] => {
            refusal::refused(&open(device, parse(ip)), parse(peer));
            ExitCode::SUCCESS
        }
        ["removed", device, ip] => {
            let ip = parse(ip);
            let sides = [(); 4].map(|()| open(device, ip));
            removed::run(sides.each_ref());
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!(
                "usage: cmcases cases DEVICE ADDRESS [FILTER], cmcases refuse|removed DEVICE ADDRESS, or cmcases refused DEVICE ADDRESS PEER"
            );
            ExitCode::from(2)
        }
    }
}

fn all(device: &str, ip: IpAddr, filter: &str) -> ExitCode {
    let mut failed = 0;
    for &(name, case) in CASES.iter().filter(|(name, _)| name.contains(filter)) {
        let (sender, receiver) = mpsc::channel();
        let (begun, device) = (Instant::now(), device.to_owned());
        let runner = std::thread::spawn(move || {
            let opened = Arc::<Opened>::default();
            let noting = opened.clone();
            let open_and_note = move || {
                let side = open(&device, ip);
                noting.note(&side);
                side
            };
            case(&Bed::new(open_and_note, true));
            opened.are_empty();
            let _ = sender.send(());
        });
        // A panic drops the sender.
        let ended = receiver.recv_timeout(GIVE_UP);
        if ended == Err(mpsc::RecvTimeoutError::Timeout) {
            println!("FAIL {name}: it does not end");
            return ExitCode::FAILURE;
        }
        if runner.join().is_ok() {
            println!("PASS {name} ({} ms)", begun.elapsed().as_millis());
        } else {
            println!("FAIL {name}");
            failed += 1;
        }
    }
    ExitCode::from(u8::from(failed != 0))
}

fn open(device: &str, ip: IpAddr) -> Side {
    if device == "soft" {
        let context = SoftDevice::new(SoftConfig::default()).open().unwrap_or_else(|why| panic!("{why}"));
        let cm = ConnectionManager::new(&context).unwrap_or_else(|why| panic!("{why}"));
        return Side::new(context, cm, ip);
    }
    let listed = ferroce_rdmacore::devices().unwrap_or_else(|why| panic!("{why}"));
    let device = listed.into_iter().find(|listed| listed.info().name == device).expect("the device");
    let context = device.open().unwrap_or_else(|why| panic!("{why}"));
    let cm = ConnectionManager::new(&context).unwrap_or_else(|why| panic!("{why}"));
    Side::new(context, cm, ip)
}
