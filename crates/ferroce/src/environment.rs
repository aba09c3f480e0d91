//! What the environment says about devices. Each error names its variable.

use crate::{Error, FaultConfig, LinkMode, Result, SoftConfig};
use ferroce_verbs::ah_cache::parse_time;
use std::path::PathBuf;
use std::time::Duration;

/// Names the device that [`crate::open`] takes by default.
pub const DEVICE: &str = "FERROCE_DEVICE";
/// Names the link that the software device sends on.
pub const LINK: &str = "FERROCE_LINK";
/// Names the pcap file that the software device writes.
pub const CAPTURE: &str = "FERROCE_CAPTURE";
/// Lists the faults that the software device injects.
pub const FAULT: &str = "FERROCE_FAULT";
/// Says when the software device asks idle peers for a sign of life.
pub const KEEPALIVE: &str = "FERROCE_KEEPALIVE";

/// The variable's value; `None` when it is unset or empty.
fn variable(name: &'static str) -> Result<Option<String>> {
    match std::env::var_os(name) {
        None => Ok(None),
        Some(value) if value.is_empty() => Ok(None),
        Some(value) => value.into_string().map(Some).map_err(|_| Error::invalid(name, "it is not valid UTF-8")),
    }
}

/// The device that `FERROCE_DEVICE` names.
///
/// # Errors
///
/// [`Error::Invalid`] if the variable is not valid UTF-8.
pub fn device() -> Result<Option<String>> {
    variable(DEVICE)
}

/// What `FERROCE_LINK`, `FERROCE_CAPTURE`, `FERROCE_FAULT` and `FERROCE_KEEPALIVE` say.
///
/// # Errors
///
/// [`Error::Invalid`] names the variable that cannot be understood and says what it may be.
pub fn soft_config() -> Result<SoftConfig> {
    let mut config = SoftConfig::default();
    if let Some(value) = variable(LINK)? {
        config.link = link_mode(&value).map_err(|why| Error::invalid(LINK, why))?;
    }
    config.capture = std::env::var_os(CAPTURE).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(value) = variable(FAULT)? {
        config.fault = Some(fault_config(&value).map_err(|why| Error::invalid(FAULT, why))?);
    }
    if let Some(value) = variable(KEEPALIVE)? {
        config.keepalive = keepalive(&value).map_err(|why| Error::invalid(KEEPALIVE, why))?;
    }
    Ok(config)
}

/// Understands a time such as `20s`, and `inf` for never.
///
/// # Errors
///
/// A sentence that says what is wrong.
pub fn keepalive(text: &str) -> Result<Option<Duration>, String> {
    match parse_time(text)? {
        Some(patience) if patience < Duration::from_millis(1) => {
            Err(format!("{text:?} is less than 1ms: for no keepalive write inf"))
        }
        patience => Ok(patience),
    }
}

/// Understands `auto`, `udp` and `shm`.
///
/// # Errors
///
/// A sentence that says what is wrong.
pub fn link_mode(text: &str) -> Result<LinkMode, String> {
    match text {
        "auto" => Ok(LinkMode::Auto),
        "udp" => Ok(LinkMode::Udp),
        "shm" => Ok(LinkMode::Shm),
        _ => Err(format!("there is no link {text:?}: it is one of auto, udp, shm")),
    }
}

/// Understands a list of faults such as `loss=0.01,dup=0.001,seed=7`. Every fault is optional and is the probability of
/// one packet, from 0 to 1.
///
/// # Errors
///
/// A sentence that names the part that is wrong.
pub fn fault_config(text: &str) -> Result<FaultConfig, String> {
    const KEYS: &str = "it is one of loss, dup, reorder, corrupt, seed";
    let mut config = FaultConfig::default();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((key, value)) = part.split_once('=') else {
            return Err(format!("{part:?} has no value: write it as loss=0.01,dup=0.001,seed=7"));
        };
        let (key, value) = (key.trim(), value.trim());
        if key == "seed" {
            config.seed = value.parse().map_err(|_| format!("seed={value:?} is no whole number from 0 to 2^64-1"))?;
            continue;
        }
        let probability = match key {
            "loss" => &mut config.loss,
            "dup" | "duplicate" => &mut config.duplicate,
            "reorder" => &mut config.reorder,
            "corrupt" => &mut config.corrupt,
            _ => return Err(format!("there is no fault {key:?}: {KEYS}")),
        };
        *probability = match value.parse::<f64>() {
            Ok(value) if (0.0..=1.0).contains(&value) => value,
            _ => return Err(format!("{key}={value:?} is no probability: it is a number from 0 to 1")),
        };
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_three_names() {
        assert_eq!(link_mode("auto"), Ok(LinkMode::Auto));
        assert_eq!(link_mode("udp"), Ok(LinkMode::Udp));
        assert_eq!(link_mode("shm"), Ok(LinkMode::Shm));
        assert!(link_mode("tcp").unwrap_err().contains("auto, udp, shm"));
    }

    #[test]
    fn a_keepalive_is_a_time_or_none() {
        assert_eq!(keepalive("1.5s"), Ok(Some(Duration::from_millis(1500))));
        assert_eq!(keepalive("inf"), Ok(None));
        assert!(keepalive("0").unwrap_err().contains("write inf"));
        assert!(keepalive("20").unwrap_err().contains("is no time"));
    }

    #[test]
    fn faults_are_read_by_name() {
        let config = fault_config("loss=0.01, dup=0.5,reorder=1,corrupt=0,seed=42").unwrap();
        assert_eq!(config, FaultConfig { seed: 42, loss: 0.01, duplicate: 0.5, reorder: 1.0, corrupt: 0.0 });
        assert_eq!(fault_config("").unwrap(), FaultConfig::default());
    }

    #[test]
    fn a_wrong_fault_is_named() {
        for (text, part) in [
            ("loss", "\"loss\" has no value"),
            ("loss=1.5", "loss=\"1.5\""),
            ("loss=-0.1", "no probability"),
            ("loss=nan", "no probability"),
            ("lost=0.1", "no fault \"lost\""),
            ("seed=-1", "seed=\"-1\""),
        ] {
            let why = fault_config(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
