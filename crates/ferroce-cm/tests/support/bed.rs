//! A device to try connections on, whoever manages them.

use super::{Host, Side};
use ferroce_soft::LinkMode;

/// Opens programs on one device.
pub(crate) struct Bed {
    open: Box<dyn Fn() -> Side + Send + Sync>,
    /// The kernel manages connections. Then private data come as the whole field, padded with zeros, and connections take longer.
    by_kernel: bool,
}

impl Bed {
    pub(crate) fn new(open: impl Fn() -> Side + Send + Sync + 'static, by_kernel: bool) -> Self {
        Self { open: Box::new(open), by_kernel }
    }

    /// The software device, in a network namespace of its own.
    pub(crate) fn soft(link: LinkMode) -> Self {
        let host = Host::new(link);
        Self::new(move || host.open(), false)
    }

    pub(crate) fn open(&self) -> Side {
        (self.open)()
    }

    pub(crate) fn is_managed_by_kernel(&self) -> bool {
        self.by_kernel
    }

    /// Microseconds in which a connection may be made, or not.
    pub(crate) fn pace(&self) -> u64 {
        if self.by_kernel { 60_000 } else { 1500 }
    }

    #[track_caller]
    pub(crate) fn same(&self, came: &[u8], sent: &[u8]) {
        let (head, tail) = came.split_at(sent.len().min(came.len()));
        assert_eq!(head, sent);
        assert!(self.by_kernel && tail.iter().all(|&byte| byte == 0) || tail.is_empty(), "{came:?}");
    }
}
