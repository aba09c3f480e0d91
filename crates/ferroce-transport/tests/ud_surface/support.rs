use ferroce_soft::{FaultConfig, LinkMode, SoftConfig, SoftDevice};
use ferroce_transport::uct::{Endpoint, EndpointId, Interface, OpError};
use ferroce_transport::ud::Config;
use ferroce_transport::ud_verbs::{UdEndpoint, UdOptions, UdVerbs};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Access, Mr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) const AM: u8 = 3;

pub(crate) type Log = Arc<Mutex<Vec<(EndpointId, Vec<u8>)>>>;

pub(crate) fn open(protocol: Config, fault: Option<FaultConfig>) -> (UdVerbs, Log) {
    thread_local! { static ISOLATED: () = ferroce_testing::isolate() }
    ISOLATED.with(|()| ());
    let link = if fault.is_some() { LinkMode::Udp } else { LinkMode::Shm };
    let context = SoftDevice::new(SoftConfig { link, fault, ..SoftConfig::default() }).open().unwrap();
    let options = UdOptions { address: Some("127.0.0.1".parse().unwrap()), protocol, ..UdOptions::default() };
    let interface = UdVerbs::open(&context, options).unwrap();
    let log = Log::default();
    let to = log.clone();
    let handler = move |message: ferroce_transport::uct::Message<'_>| {
        to.lock().unwrap().push((message.endpoint, message.payload.to_vec()));
    };
    interface.set_am(AM, Some(Arc::new(handler))).unwrap();
    (interface, log)
}

pub(crate) fn plain() -> (UdVerbs, Log) {
    open(Config::default(), None)
}

pub(crate) fn connect(from: &UdVerbs, to: &UdVerbs) -> UdEndpoint {
    from.connect(to.address()).unwrap()
}

pub(crate) fn numbers(log: &Log) -> Vec<u32> {
    log.lock().unwrap().iter().map(|(_, bytes)| u32::from_be_bytes(bytes[..4].try_into().unwrap())).collect()
}

/// Memory of some device: what is copied need not be this interface's.
pub(crate) fn memory(len: usize) -> Mr {
    let context = SoftDevice::new(SoftConfig::default()).open().unwrap();
    context.alloc_pd().unwrap().alloc_mr(len, Access::empty()).unwrap()
}

/// Sends until the window is full; how many went out.
pub(crate) fn fill(endpoint: &UdEndpoint, mut number: u32) -> u32 {
    loop {
        match endpoint.am_short(AM, &number.to_be_bytes()) {
            Ok(()) => number += 1,
            Err(OpError::NoResource) => return number,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Ends a thread that goes on until it is told, also if the test fails.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
