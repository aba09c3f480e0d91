//! Which devices there are, and how one of them is opened.

use crate::{Context, Device, DeviceInfo, Error, Result, SoftConfig, SoftDevice, environment};
use ferroce_rdmacore::devices as rdma_core_devices;

/// The software device, set up from the environment at the moment it is opened: listing devices can then not fail.
struct SoftFromEnvironment;

impl Device for SoftFromEnvironment {
    fn info(&self) -> DeviceInfo {
        SoftDevice::default().info()
    }

    fn open(&self) -> Result<Context> {
        SoftDevice::new(environment::soft_config()?).open()
    }
}

/// The devices of this machine: the software device, which there always is, and then those of rdma-core. Why there are none of rdma-core is
/// for [`rdma_core_devices`] to say.
///
/// Opening the software device from this list reads the variables that [`environment::soft_config`] names. Listing the devices of
/// rdma-core loads libibverbs.
pub fn devices() -> Vec<Box<dyn Device>> {
    let mut all: Vec<Box<dyn Device>> = vec![Box::new(SoftFromEnvironment)];
    for device in rdma_core_devices().unwrap_or_default() {
        all.push(Box::new(device));
    }
    all
}

/// Opens the device called `name`; without a name the one that `FERROCE_DEVICE` names, else the software device.
///
/// # Errors
///
/// [`Error::NotFound`] lists the devices that there are, and says why there are no others; [`Error::Invalid`] names the environment variable
/// that cannot be understood; otherwise what stands against opening the device.
pub fn open(name: Option<&str>) -> Result<Context> {
    find(Box::new(SoftFromEnvironment), name)?.open()
}

/// The same as [`open`], with the software device, if it is that one, set up as `config` says and not from the environment.
///
/// # Errors
///
/// As [`open`].
pub fn open_with(name: Option<&str>, config: SoftConfig) -> Result<Context> {
    find(Box::new(SoftDevice::new(config)), name)?.open()
}

/// Finds the device. Who wants the software device does not wait for a library that may be slow to load.
fn find(soft: Box<dyn Device>, name: Option<&str>) -> Result<Box<dyn Device>> {
    let from_environment = environment::device()?;
    let Some(wanted) = name.or(from_environment.as_deref()) else { return Ok(soft) };
    let mut names = vec![soft.info().name];
    if wanted == names[0] {
        return Ok(soft);
    }
    let mut others = String::new();
    match rdma_core_devices() {
        Ok(devices) => {
            for device in devices {
                let name = device.info().name;
                if name == wanted {
                    return Ok(Box::new(device));
                }
                names.push(name);
            }
        }
        Err(why) => others = format!("; it has none of rdma-core, because {why}"),
    }
    let hint = format!("this machine has {}{others}", names.join(", "));
    Err(Error::NotFound { what: "device", name: wanted.into(), hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_is_refused_with_a_list() {
        let error = open(Some("mlx5_7")).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("no device mlx5_7: this machine has soft0"), "{text}");
        // A machine without devices of rdma-core says why.
        assert_eq!(text.contains("none of rdma-core, because"), rdma_core_devices().is_err(), "{text}");
    }

    #[test]
    fn the_software_device_is_always_listed() {
        let names: Vec<String> = devices().iter().map(|device| device.info().name).collect();
        assert!(names.iter().any(|name| name == SoftDevice::NAME), "{names:?}");
    }
}
