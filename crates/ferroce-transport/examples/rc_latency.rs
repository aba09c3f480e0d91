//! Half round trip of active messages over rc_verbs between two threads with a context each, and how many pass a second in one direction.
//!
//! `cargo run --release -p ferroce-transport --example rc_latency -- [shm|udp] [BYTES] [ROUNDS]`

use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_transport::rc_verbs::{RcEndpoint, RcOptions, RcVerbs};
use ferroce_transport::uct::{Endpoint, Interface, OpError};
use ferroce_verbs::provider::Device;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

fn open(link: LinkMode) -> Result<RcVerbs, Box<dyn Error>> {
    let context = SoftDevice::new(SoftConfig { link, ..SoftConfig::default() }).open()?;
    Ok(RcVerbs::open(&context, RcOptions { address: Some("127.0.0.1".parse()?), ..RcOptions::default() })?)
}

/// Counts the messages of one interface.
fn count(interface: &RcVerbs) -> Result<Arc<AtomicU64>, OpError> {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    interface.set_am_handler(0, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    })?;
    Ok(count)
}

fn send(interface: &RcVerbs, endpoint: &RcEndpoint, payload: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
    loop {
        let sent = if payload.len() <= interface.attr().am.max_short {
            endpoint.am_short(0, payload)
        } else {
            endpoint.am_bcopy(0, &mut |packer| packer.put(payload).expect("it fits")).map(|_| ())
        };
        match sent {
            Err(OpError::NoResource) => {
                interface.progress()?;
            }
            sent => return Ok(sent?),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let link = match args.next().as_deref() {
        Some("udp") => LinkMode::Udp,
        _ => LinkMode::Shm,
    };
    let bytes: usize = args.next().map_or(Ok(8), |text| text.parse())?;
    let rounds: u64 = args.next().map_or(Ok(200_000), |text| text.parse())?;
    let (a, b) = (open(link)?, open(link)?);
    let (at_a, at_b) = (count(&a)?, count(&b)?);
    let (to_b, to_a) = (a.create_endpoint()?, b.create_endpoint()?);
    to_b.connect_to_ep(&to_a.address())?;
    to_a.connect_to_ep(&to_b.address())?;
    let payload = vec![7; bytes];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        scope.spawn(|| {
            let mut answered = 0;
            while !over.load(Ordering::Relaxed) {
                b.progress().expect("progress");
                while answered < at_b.load(Ordering::Relaxed).min(rounds) {
                    send(&b, &to_a, &payload).expect("an answer");
                    answered += 1;
                }
            }
        });
        let start = Instant::now();
        for round in 1..=rounds {
            send(&a, &to_b, &payload).map_err(|error| error.to_string())?;
            while at_a.load(Ordering::Relaxed) < round {
                a.progress()?;
            }
        }
        println!("{:.3} us half round trip", start.elapsed().as_secs_f64() * 1e6 / rounds as f64 / 2.0);
        let start = Instant::now();
        for _ in 0..5 * rounds {
            send(&a, &to_b, &payload).map_err(|error| error.to_string())?;
        }
        while !a.flush() {
            a.progress()?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let rate = 5.0 * rounds as f64 / seconds;
        println!("{:.3} million messages a second, {:.0} MB/s", rate / 1e6, rate * bytes as f64 / 1e6);
        over.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    println!("{:?}", a.counters());
    Ok(())
}
