use super::RawContext;
use crate::locks;
use ferroce_abi::types::ibv_device;
use ferroce_abi::{Host, Library, Unavailable};
use ferroce_verbs::{Error, Result};
use std::ffi::{CStr, c_char};
use std::io;
use std::ptr::NonNull;

/// The devices that the library shows at one moment.
pub(crate) struct DeviceList {
    library: &'static Library,
    list: NonNull<*mut ibv_device>,
    len: usize,
}

/// What one of them is called.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) name: String,
    /// Its file in `/dev/infiniband`.
    pub(crate) file: String,
    pub(crate) node_guid: u64,
}

impl DeviceList {
    pub(crate) fn get(library: &'static Library, host: &Host) -> Result<Self, Unavailable> {
        let mut len = 0;
        // SAFETY: `len` is what it writes to.
        let list = unsafe { (library.get_device_list)(&mut len) };
        match NonNull::new(list) {
            Some(list) => Ok(Self { library, list, len: len.max(0) as usize }),
            None => {
                let source = io::Error::last_os_error();
                // Without user-space verbs it fails with this number; a version that fails otherwise has another reason.
                Err(match host.check() {
                    Err(missing) => missing,
                    Ok(()) => Unavailable::Os { what: "listing the RDMA devices".into(), source },
                })
            }
        }
    }

    fn pointers(&self) -> &[*mut ibv_device] {
        // SAFETY: the library returned a list of this length, which is freed only when `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.len) }
    }

    pub(crate) fn names(&self) -> Vec<Listed> {
        self.pointers().iter().map(|&device| self.listed(device)).collect()
    }

    fn listed(&self, device: *mut ibv_device) -> Listed {
        // SAFETY: the devices of a list are alive as long as the list is.
        let (name, file) = unsafe { (text(&(*device).name), text(&(*device).dev_name)) };
        // SAFETY: as above.
        let node_guid = u64::from_be(unsafe { (self.library.get_device_guid)(device) });
        Listed { name, file, node_guid }
    }

    /// Opens the device `name`; `None` if the list has none of that name.
    pub(crate) fn open(&self, name: &str, host: &Host) -> Option<Result<RawContext>> {
        self.pointers().iter().find_map(|&device| {
            let listed = self.listed(device);
            (listed.name == name).then(|| {
                // Providers look when a device is opened.
                locks::check(|variable| std::env::var_os(variable)).map_err(|off| Error::Device(Box::new(off)))?;
                // SAFETY: the device is alive, as the list is.
                let context = unsafe { (self.library.open_device)(device) };
                match NonNull::new(context) {
                    Some(context) => RawContext::new(self.library, context),
                    None => {
                        let source = io::Error::last_os_error();
                        let why = host
                            .why_not_open(name, &listed.file)
                            .unwrap_or_else(|| Unavailable::Os { what: format!("opening {name}"), source });
                        Err(Error::Device(Box::new(why)))
                    }
                }
            })
        })
    }
}

impl RawContext {
    /// Opens the device once more, which is called `name`.
    pub(crate) fn open_again(&self, name: &str) -> Result<Self> {
        let host = Host::default();
        let list = DeviceList::get(self.library, &host).map_err(|why| Error::Device(Box::new(why)))?;
        list.open(name, &host).unwrap_or_else(|| Err(crate::DeviceGone.into()))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: it is a list of the library's, freed once. Devices that are open stay.
        unsafe { (self.library.free_device_list)(self.list.as_ptr()) };
    }
}

/// A C string in a field.
pub(super) fn text(field: &[c_char]) -> String {
    // SAFETY: `c_char` and `u8` have the same size, and all their values are valid.
    let bytes = unsafe { std::slice::from_raw_parts(field.as_ptr().cast::<u8>(), field.len()) };
    CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
