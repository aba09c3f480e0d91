//! Runs tshark.

use std::process::Command;

/// Runs tshark over the capture `file`: one line for each frame, `fields` separated by tabs.
///
/// # Panics
///
/// If tshark is missing or fails.
#[must_use]
pub fn tshark(file: &[u8], fields: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("capture.pcap");
    std::fs::write(&path, file).expect("the capture is written");
    let mut command = Command::new("tshark");
    // Some versions of tshark show a field twice: the first of each is enough.
    command.arg("-r").arg(&path);
    command.args(["-T", "fields", "-E", "occurrence=f"]);
    for check in ["ip.check_checksum:TRUE", "udp.check_checksum:TRUE"] {
        command.args(["-o", check]);
    }
    for field in fields {
        command.args(["-e", field]);
    }
    let out = command.output().unwrap_or_else(|e| panic!("tshark does not run ({e}): install the package `tshark`"));
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "tshark: {stderr}");
    let stdout = String::from_utf8(out.stdout).expect("tshark prints UTF-8");
    stdout.lines().map(str::to_owned).collect()
}

/// A field as a number; tshark prints some in hexadecimal and some as words, which ones depends on
/// its version. Immediate data and rkeys to invalidate are bare hexadecimal bytes, which the caller
/// marks. `None` if the frame does not have the field.
///
/// # Panics
///
/// If it is no number.
#[must_use]
pub fn number(field: &str, bare_hex: bool) -> Option<u64> {
    match field {
        "" => return None,
        "False" => return Some(0),
        "True" => return Some(1),
        _ => {}
    }
    let digits = field.strip_prefix("0x");
    let value = match digits {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if bare_hex => u64::from_str_radix(field, 16),
        None => field.parse(),
    };
    Some(value.unwrap_or_else(|e| panic!("{field}: {e}")))
}
