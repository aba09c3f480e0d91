//! Half round trip of active messages over ud_verbs between two threads with a context each, and how many pass a second in one direction.
//!
//! `cargo run --release -p ferroce-transport --example am_latency -- [shm|udp] [BYTES] [ROUNDS]`

use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_transport::ud::SendError;
use ferroce_transport::ud_verbs::{UdOptions, UdVerbs};
use ferroce_verbs::provider::Device;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

fn open(link: LinkMode) -> Result<UdVerbs, Box<dyn Error>> {
    let context = SoftDevice::new(SoftConfig { link, ..SoftConfig::default() }).open()?;
    Ok(UdVerbs::open(&context, UdOptions { address: Some("127.0.0.1".parse()?), ..UdOptions::default() })?)
}

/// Counts the messages of one interface.
fn count(interface: &UdVerbs) -> Result<Arc<AtomicU64>, SendError> {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    interface.set_am_handler(0, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    })?;
    Ok(count)
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
    let (to_a, to_b) = (b.connect(a.address())?, a.connect(b.address())?);
    let payload = vec![7; bytes];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        scope.spawn(|| {
            let mut answered = 0;
            while !over.load(Ordering::Relaxed) {
                b.progress().expect("progress");
                while answered < at_b.load(Ordering::Relaxed).min(rounds) {
                    to_a.am(0, &payload).expect("an answer fits the window");
                    answered += 1;
                }
            }
        });
        let start = Instant::now();
        for round in 1..=rounds {
            to_b.am(0, &payload)?;
            while at_a.load(Ordering::Relaxed) < round {
                a.progress()?;
            }
        }
        println!("{:.3} us half round trip", start.elapsed().as_secs_f64() * 1e6 / rounds as f64 / 2.0);
        let start = Instant::now();
        let mut sent = 0;
        while sent < 5 * rounds {
            match to_b.am(0, &payload) {
                Ok(()) => sent += 1,
                Err(SendError::Busy(_)) => {
                    a.progress()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        while !to_b.flush()? {
            a.progress()?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let rate = sent as f64 / seconds;
        println!("{:.3} million messages a second, {:.0} MB/s", rate / 1e6, rate * bytes as f64 / 1e6);
        over.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    println!("{:?}", a.counters());
    Ok(())
}
