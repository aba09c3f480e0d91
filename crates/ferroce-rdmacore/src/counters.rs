//! The counters that the kernel keeps of a device.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The counters of all ports of the device `name`, added up: those of its driver and the standard ones.
pub(crate) fn read(name: &str, ports: u8) -> Vec<(&'static str, u64)> {
    let mut sums = BTreeMap::new();
    let device = Path::new("/sys/class/infiniband").join(name);
    for port in 1..=ports {
        for kind in ["counters", "hw_counters"] {
            add(&device.join("ports").join(port.to_string()).join(kind), &mut sums);
        }
    }
    sums.into_iter().map(|(name, value)| (interned(&name), value)).collect()
}

fn add(directory: &Path, sums: &mut BTreeMap<String, u64>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        // A setting, not a counter.
        if name == "lifespan" {
            continue;
        }
        let value = std::fs::read_to_string(entry.path()).ok().and_then(|text| text.trim().parse::<u64>().ok());
        if let Some(value) = value {
            let sum: &mut u64 = sums.entry(name).or_default();
            *sum = sum.saturating_add(value);
        }
    }
}

/// A name that lasts. There are as many as drivers have counters, whatever how often they are read.
fn interned(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock();
    if let Some(known) = names.get(name) {
        return known;
    }
    let new: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(new);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_once() {
        assert!(std::ptr::eq(interned("a_counter"), interned("a_counter")));
    }

    #[test]
    fn counters_of_a_directory_are_added_up() {
        let dir = std::env::temp_dir().join(format!("ferroce-counters-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("out_of_seq_request"), "7\n").unwrap();
        std::fs::write(dir.join("lifespan"), "10\n").unwrap();
        std::fs::write(dir.join("unreadable"), "N/A (no PMA)\n").unwrap();
        let mut sums = BTreeMap::new();
        add(&dir, &mut sums);
        add(&dir, &mut sums);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(sums.into_iter().collect::<Vec<_>>(), [("out_of_seq_request".to_owned(), 14)]);
    }
}
