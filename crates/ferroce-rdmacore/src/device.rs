use crate::context::RdmaContext;
use crate::sys::{DeviceList, Listed};
use ferroce_abi::{Host, Library, Unavailable, load};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Context, DeviceInfo, Error, Result};

/// A device that libibverbs shows.
#[derive(Clone, Debug)]
pub struct RdmaDevice {
    library: &'static Library,
    listed: Listed,
}

/// The devices of rdma-core that this machine has at the moment, in the library's order.
///
/// The first call loads the library. Each call asks the kernel anew.
///
/// # Errors
///
/// [`Unavailable`] says why there is none: an empty list is never returned.
pub fn devices() -> Result<Vec<RdmaDevice>, Unavailable> {
    let library = load()?;
    let host = Host::default();
    let listed = DeviceList::get(library, &host)?.names();
    if listed.is_empty() {
        return Err(host.why_none());
    }
    Ok(listed.into_iter().map(|listed| RdmaDevice { library, listed }).collect())
}

impl Device for RdmaDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: self.listed.name.clone(), provider: "rdma-core", node_guid: self.listed.node_guid }
    }

    fn open(&self) -> Result<Context> {
        let host = Host::default();
        let list = DeviceList::get(self.library, &host).map_err(|why| Error::Device(Box::new(why)))?;
        let Some(raw) = list.open(&self.listed.name, &host) else {
            let names: Vec<String> = list.names().into_iter().map(|listed| listed.name).collect();
            return Err(Error::NotFound {
                what: "RDMA device",
                name: self.listed.name.clone(),
                hint: format!("it went away; the kernel has {}", names.join(", ")),
            });
        };
        Ok(Context::from_ops(RdmaContext::new(self.info(), raw?)?))
    }
}
