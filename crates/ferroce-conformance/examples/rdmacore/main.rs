//! What the kernel test bed runs on a device of rdma-core.
//!
//! - `rdmacore suite DEVICE ADDRESS [FILTER]` runs the suite. It prints `PASS`, `FAIL` or `skip` for each case, and fails if any case does. What
//!   Soft-RoCE cannot do is left out, with the reason.
//! - `rdmacore across A ADDRESS B ADDRESS [FILTER]` does so with an end on each of two devices; `soft` is the software device.
//! - `rdmacore faults` prints the names of the faults for which cases are left out, as `rxe_faults` calls them.
//! - `rdmacore cache DEVICE LOCAL PEER` takes an address handle to a peer from the context's cache again and again, and prints each that is another one.
//! - `rdmacore watch DEVICE LOCAL PEER` prints how an address handle to a peer leaves, and from then on what changes among addresses.

use ferroce_conformance::{CaseReport, End, OneDevice, Options, Side, SkipList, Testbed, Verdict, cases, run};
use ferroce_rdmacore::RdmaDevice;
use ferroce_soft::{SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{AddressChange, AddressWatcher, AhAttr, AhLease};
use std::error::Error;
use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use std::time::Duration;

mod rxe;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["suite", device, address] => suite(one(device, address)?, None),
        ["suite", device, address, filter] => suite(one(device, address)?, Some(filter.into())),
        ["across", a, at, b, bt] => suite(two([(a, at), (b, bt)])?, None),
        ["across", a, at, b, bt, filter] => suite(two([(a, at), (b, bt)])?, Some(filter.into())),
        ["faults"] => {
            rxe::faults().iter().for_each(|name| println!("{name}"));
            Ok(ExitCode::SUCCESS)
        }
        ["cache", device, local, peer] => cache(device, local.parse()?, peer.parse()?),
        ["watch", device, local, peer] => watch(device, local.parse()?, peer.parse()?),
        _ => Err(
            "usage: rdmacore suite DEVICE ADDRESS [FILTER], rdmacore across DEVICE ADDRESS DEVICE ADDRESS [FILTER], rdmacore faults, or \
             rdmacore cache|watch DEVICE LOCAL PEER"
                .into(),
        ),
    }
}

fn find(name: &str) -> Result<RdmaDevice> {
    let device = ferroce_rdmacore::devices()?.into_iter().find(|device| device.info().name == name);
    device.ok_or_else(|| format!("there is no device {name}").into())
}

/// Where the suite runs, and what is left out there.
type Bed = (Arc<dyn Testbed>, SkipList);

fn one(name: &str, ip: &str) -> Result<Bed> {
    let skip = if name.starts_with("rxe") { rxe::cannot() } else { SkipList::new() };
    Ok((Arc::new(OneDevice::new(Arc::new(find(name)?), Some(ip.parse()?))), skip))
}

/// An end on each of two devices.
struct Across([OneDevice; 2]);

impl Testbed for Across {
    fn open(&self, end: End) -> ferroce_verbs::Result<Side> {
        self.0[usize::from(end == End::B)].open(end)
    }
}

fn two(ends: [(&str, &str); 2]) -> Result<Bed> {
    let [a, b] = ends.map(|(name, ip)| -> Result<OneDevice> {
        let device: Arc<dyn Device> = match name {
            "soft" => Arc::new(SoftDevice::new(SoftConfig::default())),
            name => Arc::new(find(name)?),
        };
        Ok(OneDevice::new(device, Some(ip.parse()?)))
    });
    let skip =
        if ends.iter().any(|(name, _)| name.starts_with("rxe")) { rxe::cannot_across() } else { SkipList::new() };
    Ok((Arc::new(Across([a?, b?])), skip))
}

fn suite((testbed, skip): Bed, filter: Option<String>) -> Result<ExitCode> {
    // An emulated machine is slow.
    let options = Options {
        filter,
        skip,
        deadline: Duration::from_secs(20),
        give_up: Duration::from_secs(120),
        ..Options::default()
    };
    let progress = |case: &CaseReport| {
        match &case.verdict {
            Verdict::Passed => println!("PASS {} ({} ms)", case.name, case.elapsed.as_millis()),
            Verdict::Skipped(why) => println!("skip {}: {why}", case.name),
            Verdict::Failed(why) => println!("FAIL {}: {why}", case.name),
        }
        mark(&case.name);
    };
    let report = run(&testbed, cases(), &options, &progress);
    for pattern in &report.unused_skips {
        println!("FAIL the list of what cannot be done: {pattern} is no case");
    }
    let (skipped, failed) = (report.skipped().count(), report.failures().count());
    println!("{} passed, {skipped} skipped, {failed} failed", report.passed());
    Ok(if report.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Puts the case's name into the kernel's log, so that its complaints can be told apart. Who may not write there goes without.
fn mark(case: &str) {
    if let Ok(mut log) = std::fs::File::options().write(true).open("/dev/kmsg") {
        let _ = writeln!(log, "<4>ferroce-vm: the suite, after {case}");
    }
}

/// Prints what it is told.
struct Printer;

impl AddressWatcher for Printer {
    fn changed(&self, change: &AddressChange) {
        println!("{change:?}");
    }
}

fn watch(name: &str, local: IpAddr, peer: IpAddr) -> Result<ExitCode> {
    let context = find(name)?.open()?;
    let printer = Arc::new(Printer);
    let as_watcher: Arc<dyn AddressWatcher> = printer.clone();
    let weak: Weak<dyn AddressWatcher> = Arc::downgrade(&as_watcher);
    context.ops().watch_addresses(weak)?;
    let gid = context.find_gid(1, local)?;
    let ah = context.alloc_pd()?.create_ah(&AhAttr::roce(peer.into(), gid.index))?;
    println!("resolved {:?}", ah.link_layer());
    // Until it is stopped.
    loop {
        std::thread::park();
    }
}

/// Each address handle that is another one than those before it is kept: what was leased lives, whatever becomes of the cache's entry.
fn cache(name: &str, local: IpAddr, peer: IpAddr) -> Result<ExitCode> {
    let context = find(name)?.open()?;
    let (pd, cache) = (context.alloc_pd()?, context.ah_cache()?);
    if !cache.is_watched() {
        return Err("nobody tells the cache what changes".into());
    }
    let mut leases: Vec<AhLease> = Vec::new();
    let mut failed = None;
    // Until it is stopped.
    loop {
        // The address may come back to another place of the table.
        let gid = context.find_gid(1, local);
        let got = gid.map_err(|error| error.to_string()).and_then(|gid| {
            let lease = cache.get(&pd, &AhAttr::roce(peer.into(), gid.index));
            lease.map_err(|error| error.to_string())
        });
        match got {
            Ok(lease) if leases.last().is_none_or(|last| last.generation() != lease.generation()) => {
                leases.push(lease);
                let counters = context.counters();
                let live = counters.iter().find(|(name, _)| *name == "address_handles").map_or(0, |(_, count)| *count);
                let layer = leases.last().and_then(|lease| lease.ah().link_layer());
                println!("lease {}, {live} address handles live, by {layer:?}", leases.len());
                failed = None;
            }
            Ok(_) => failed = None,
            Err(error) => {
                if failed.as_ref() != Some(&error) {
                    println!("failed: {error}");
                    failed = Some(error);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
