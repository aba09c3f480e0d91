//! The suite on a device of rdma-core: `rdmacore DEVICE ADDRESS [FILTER]`.
//!
//! Prints `PASS`, `FAIL` or `skip` for each case, and fails if any case does. What Soft-RoCE cannot do is left out, with the reason.

use ferroce_conformance::{CaseReport, OneDevice, Options, SkipList, Testbed, Verdict, cases, run};
use ferroce_verbs::provider::Device;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

mod rxe;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(name), Some(ip)) = (args.next(), args.next()) else {
        return Err("usage: rdmacore DEVICE ADDRESS [FILTER]".into());
    };
    let ip = ip.parse()?;
    let devices = ferroce_rdmacore::devices()?;
    let device = devices.into_iter().find(|device| device.info().name == name).ok_or("there is no such device")?;
    let testbed: Arc<dyn Testbed> = Arc::new(OneDevice::new(Arc::new(device), Some(ip)));
    let skip = if name.starts_with("rxe") { rxe::cannot() } else { SkipList::new() };
    // An emulated machine is slow.
    let options = Options {
        filter: args.next(),
        skip,
        deadline: Duration::from_secs(8),
        give_up: Duration::from_secs(60),
        ..Options::default()
    };
    let progress = |case: &CaseReport| match &case.verdict {
        Verdict::Passed => println!("PASS {} ({} ms)", case.name, case.elapsed.as_millis()),
        Verdict::Skipped(why) => println!("skip {}: {why}", case.name),
        Verdict::Failed(why) => println!("FAIL {}: {why}", case.name),
    };
    let report = run(&testbed, cases(), &options, &progress);
    for pattern in &report.unused_skips {
        println!("FAIL the list of what cannot be done: {pattern} is no case");
    }
    let (skipped, failed) = (report.skipped().count(), report.failures().count());
    println!("{} passed, {skipped} skipped, {failed} failed", report.passed());
    Ok(if report.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
