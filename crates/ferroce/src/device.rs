//! Which devices there are, and how one of them is opened.

use crate::{Context, Device, DeviceInfo, Error, Result, SoftConfig, SoftDevice, environment};

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

/// The devices of this machine, the one that [`open`] prefers first.
///
/// Opening the software device from this list reads the variables that [`environment::soft_config`] names.
pub fn devices() -> Vec<Box<dyn Device>> {
    vec![Box::new(SoftFromEnvironment)]
}

/// Opens the device called `name`; without a name the one that `FERROCE_DEVICE` names, else the first of [`devices`].
///
/// # Errors
///
/// [`Error::NotFound`] lists the devices that there are; [`Error::Invalid`] names the environment variable that cannot
/// be understood; otherwise what stands against opening the device.
pub fn open(name: Option<&str>) -> Result<Context> {
    find(devices(), name)?.open()
}

/// The same as [`open`], with the software device set up as `config` says and not from the environment.
///
/// # Errors
///
/// As [`open`].
pub fn open_with(name: Option<&str>, config: SoftConfig) -> Result<Context> {
    find(vec![Box::new(SoftDevice::new(config))], name)?.open()
}

fn find(devices: Vec<Box<dyn Device>>, name: Option<&str>) -> Result<Box<dyn Device>> {
    let from_environment = environment::device()?;
    let Some(wanted) = name.or(from_environment.as_deref()) else {
        return devices.into_iter().next().ok_or_else(|| Error::NotFound {
            what: "RDMA device",
            name: "on this machine".into(),
            hint: "no provider found one".into(),
        });
    };
    let names: Vec<String> = devices.iter().map(|device| device.info().name).collect();
    devices.into_iter().find(|device| device.info().name == wanted).ok_or_else(|| Error::NotFound {
        what: "device",
        name: wanted.into(),
        hint: format!("this machine has {}", names.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_is_refused_with_a_list() {
        let error = open(Some("mlx5_7")).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
        assert_eq!(error.to_string(), "no device mlx5_7: this machine has soft0");
    }

    #[test]
    fn the_software_device_is_always_listed() {
        let names: Vec<String> = devices().iter().map(|device| device.info().name).collect();
        assert!(names.iter().any(|name| name == SoftDevice::NAME), "{names:?}");
    }
}
