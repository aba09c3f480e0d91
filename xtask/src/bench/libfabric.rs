//! libfabric as a peer: `fi_pingpong` of the Debian package libfabric-bin.

use std::process::Command;
use std::time::Duration;

use super::process;
use crate::error::Error;

/// How long one run may take. On an idle machine it is less than a second.
const LIMIT: Duration = Duration::from_secs(180);

/// Half a round trip of 8-byte messages in µs over the provider udp;ofi_rxd, which makes UDP reliable. It is a mean: the program tells no other.
pub(super) fn latency(iterations: u64) -> Result<f64, Error> {
    let port = process::free_port()?;
    let command = |flag: &str| {
        let mut command = Command::new("fi_pingpong");
        command.args(["-p", "udp;ofi_rxd", "-e", "rdm", "-S", "8", "-I", &iterations.to_string()]);
        command.args([flag, &port.to_string()]);
        command
    };
    let (mut server, mut client) = (command("-B"), command("-P"));
    client.arg("127.0.0.1");
    let text = process::run_pair(&mut server, &mut client, port, LIMIT)?;
    parse(&text).ok_or_else(|| Error::Output {
        command: crate::exec::shown(&client),
        why: format!("there is no line of numbers in it:\n{}", text.trim_end()),
    })
}

/// The column `usec/xfer` of the line for 8 bytes.
fn parse(text: &str) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("bytes"));
    let at = lines.next()?.split_whitespace().position(|name| name == "usec/xfer")?;
    let mut values = lines.next()?.split_whitespace();
    (values.next()? == "8").then_some(())?;
    values.nth(at.checked_sub(1)?)?.parse().ok()
}

/// The version, as `fi_info --version` says it.
pub(super) fn version() -> Result<String, Error> {
    let text = crate::exec::capture(Command::new("fi_info").arg("--version"))?;
    let version = text.lines().find_map(|line| line.strip_prefix("libfabric: "));
    version
        .map(|version| version.trim().to_owned())
        .ok_or_else(|| Error::Output { command: "fi_info --version".into(), why: "no version in it".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_time_of_a_transfer() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    8       10k     =10k     156k        9.30s      0.02     465.16       0.00\n";
        assert_eq!(parse(text), Some(465.16));
    }

    #[test]
    fn what_is_no_result_is_none() {
        let names = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n";
        for text in
            ["", names, &format!("{names}64 10 =10 1k 0.00s 0.0 1.0 0.0\n"), "fi_getinfo(): -61 (No data available)\n"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
