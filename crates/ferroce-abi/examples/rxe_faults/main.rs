//! What the kernel's Soft-RoCE gets wrong, shown with libibverbs alone: no other crate of ferroce has a hand in it, so what is seen is the
//! device's doing.
//!
//! `rxe_faults DEVICE ADDRESS [NAME...]` prints for each fault what the specification has and what is seen, and whether that is the fault:
//! `SHOWN`; or `GONE`, if the device does it right, so that the list of what the conformance suite leaves out has an entry too many; or
//! `OTHER`. It fails unless all are shown. Of what the kernel itself complains, which the test bed takes for a failure, it says `LEFT`, unless it is named.

mod connected;
mod datagrams;
mod rig;

use rig::Rig;
use std::process::ExitCode;

/// Something that a device does wrong.
struct Fault {
    /// As the list of what the suite leaves out calls it.
    name: &'static str,
    /// What is done.
    done: &'static str,
    /// What the specification has.
    rule: &'static str,
    /// What Soft-RoCE does.
    wrong: &'static str,
    see: fn(&'static Rig) -> String,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [device, address, names @ ..] = &args[..] else {
        eprintln!("usage: rxe_faults DEVICE ADDRESS [NAME...]");
        return ExitCode::from(2);
    };
    let address = rig::address(address);
    let is_named = |fault: &&Fault| names.iter().any(|name| name == fault.name);
    if names.is_empty() {
        for fault in connected::COMPLAINED_OF {
            println!("LEFT {}: {}: the kernel complains", fault.name, fault.done);
        }
    }
    let usual = connected::FAULTS.iter().chain(datagrams::FAULTS).filter(|fault| names.is_empty() || is_named(fault));
    let mut all_shown = true;
    for fault in usual.chain(connected::COMPLAINED_OF.iter().filter(is_named)) {
        // Each with a context of its own, so that nobody else's events are seen.
        let seen = (fault.see)(Rig::open(device, address));
        let verdict = match &seen {
            seen if seen == fault.wrong => "SHOWN",
            seen if seen == fault.rule => "GONE",
            _ => "OTHER",
        };
        println!("{verdict} {}: {}: the specification has {}, seen is {seen}", fault.name, fault.done, fault.rule);
        all_shown &= verdict == "SHOWN";
    }
    if all_shown { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
