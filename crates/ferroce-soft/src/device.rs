use crate::SoftConfig;
use crate::objects::SoftContext;
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Context, DeviceInfo, Error, Result};

/// The software device of this machine's network namespace.
///
/// What a completion says has been sent leaves, though its context be closed or the process end (`exit`) at once: the last reference to a
/// context waits for up to a second for a network interface that takes nothing, and so does the end of a process that leaves some open. A
/// capture is written to its end, which takes as long as its file takes; at the end of a process another thread that is just writing is
/// waited for no longer than a second.
#[derive(Clone, Debug, Default)]
pub struct SoftDevice {
    config: SoftConfig,
}

impl SoftDevice {
    /// Its name.
    pub const NAME: &'static str = "soft0";

    /// The device, to be opened as `config` says.
    pub fn new(config: SoftConfig) -> Self {
        Self { config }
    }
}

impl Device for SoftDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: Self::NAME.into(), provider: "soft", node_guid: 0 }
    }

    fn open(&self) -> Result<Context> {
        let context = SoftContext::open(self.info(), &self.config).map_err(|error| Error::Device(Box::new(error)))?;
        Ok(Context::from_ops(context))
    }
}
