//! Packets that a script has captured inside, and what tshark thinks of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::error::Error;
use crate::exec;
use crate::tally::Tally;

/// What is asked about each packet: fields of tshark's, in this order.
const FIELDS: [&str; 4] = ["frame.number", "infiniband.bth.destqp", "infiniband.mad.attributeid", "_ws.malformed"];

/// The messages of connection management that there must be: REQ, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP.
const MESSAGES: [u16; 8] = [0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];

/// One capture file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Capture {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// Has tshark look at all captures, whose files go to `directory`: each packet of theirs must be one to it, and among them all messages of
/// connection management.
pub(super) fn judge(captures: &[Capture], directory: &Path) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    let mut seen = BTreeSet::new();
    for Capture { name, bytes } in captures {
        let file = directory.join(format!("{name}.pcap"));
        std::fs::write(&file, bytes).map_err(Error::io(format!("write {}", file.display())))?;
        let mut command = Command::new("tshark");
        command.arg("-r").arg(&file).args(["-T", "fields", "-E", "occurrence=f"]);
        for field in FIELDS {
            command.args(["-e", field]);
        }
        let text = exec::capture(&mut command)?;
        let faults = faults(&text, &mut seen);
        match faults.first() {
            None => tally.pass(),
            Some(fault) => tally.fail(format!("capture {name}: {fault} ({} such packets)", faults.len())),
        }
    }
    if !captures.is_empty() {
        let missing: Vec<String> =
            MESSAGES.iter().filter(|message| !seen.contains(message)).map(|message| format!("{message:#x}")).collect();
        match missing.is_empty() {
            true => tally.pass(),
            false => tally.fail(format!("the captures have no messages {}", missing.join(", "))),
        }
    }
    Ok(tally)
}

/// What is wrong with packets, one line of `text` for each of them; notes the messages that there are.
fn faults(text: &str, seen: &mut BTreeSet<u16>) -> Vec<String> {
    let mut faults = Vec::new();
    for line in text.lines() {
        let mut fields = line.split('\t');
        let mut field = || fields.next().unwrap_or_default();
        let (number, qp, attribute, malformed) = (field(), field(), field(), field());
        let digits = attribute.trim_start_matches("0x");
        let message = u16::from_str_radix(digits, 16).ok();
        let is_management = u32::from_str_radix(qp.trim_start_matches("0x"), 16) == Ok(1);
        if !malformed.is_empty() {
            faults.push(format!("packet {number} is malformed: {malformed}"));
        } else if qp.is_empty() {
            faults.push(format!("packet {number} is not RoCEv2"));
        } else if is_management {
            match message {
                Some(message) => drop(seen.insert(message)),
                None => faults.push(format!("packet {number} to queue pair 1 is no management datagram")),
            }
        }
    }
    if text.lines().next().is_none() {
        faults.push("it is empty".into());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_found() {
        let mut seen = BTreeSet::new();
        assert_eq!(faults("1\t0x000001\t0x0010\t\n2\t0x000012\t\t\n3\t0x000001\t0x0013\t\n", &mut seen), [""; 0]);
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0x10, 0x13]);
        for (line, why) in [
            ("1\t0x000001\t0x0010\tMalformed Packet", "malformed"),
            ("1\t\t\t", "not RoCEv2"),
            ("1\t0x000001\t\t", "no management datagram"),
            ("", "empty"),
        ] {
            let faults = faults(line, &mut BTreeSet::new());
            assert!(faults.len() == 1 && faults[0].contains(why), "{faults:?}");
        }
    }
}
