//! Finds the kernel's complaints in what it wrote to its console.

/// Begins a line that `vm/init.sh` writes between scripts.
const SECTION: &str = "ferroce-vm: ";

/// What the kernel says when something is wrong with it, whatever the scripts make of it.
const FAULTS: &[&str] = &[
    "BUG:",
    "kernel BUG at",
    "Oops",
    "WARNING: ",
    "Kernel panic",
    "general protection fault",
    "Unable to handle",
    "INFO: possible",
    "INFO: task",
    "possible circular locking",
    "possible recursive locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "refcount_t:",
    "list_add corruption",
    "list_del corruption",
    "UBSAN:",
    "KASAN:",
    "unreferenced object",
    "Out of memory:",
    "invoked oom-killer",
];

/// A machine that emulates another and is busy itself can be late; that is no fault of the kernel or of what is tested.
const LATENESS: &[&str] = &["soft lockup", "self-detected stall", "detected stalls", "unsettled", "clocksource"];

/// One complaint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: String,
    /// The script that ran at the time, or what else went on.
    pub(super) during: String,
}

/// All complaints, in order.
pub(super) fn faults(console: &str) -> Vec<Fault> {
    let mut during = "boot";
    let mut faults = Vec::new();
    for line in console.lines() {
        if let Some((_, section)) = line.split_once(SECTION) {
            during = section.trim();
        } else if FAULTS.iter().any(|fault| line.contains(fault)) && !LATENESS.iter().any(|late| line.contains(late)) {
            faults.push(Fault { line: line.trim().to_owned(), during: during.to_owned() });
        }
    }
    faults
}

/// The last lines of a log.
pub(super) fn tail(text: &str, lines: usize) -> Vec<&str> {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_name_the_script_during_which_they_came() {
        let console = "[1.0] rdma_rxe: loaded\n[2.0] WARNING: CPU: 0 PID: 1 at x.c:1\n[3.0] ferroce-vm: smoke.sh\r\n\
            [4.0] BUG: kernel NULL pointer dereference\n[5.0] watchdog: BUG: soft lockup - CPU#0 stuck for 22s!\n";
        let faults = faults(console);
        let found: Vec<(&str, bool)> =
            faults.iter().map(|fault| (fault.during.as_str(), fault.line.contains("NULL pointer"))).collect();
        assert_eq!(found, [("boot", false), ("smoke.sh", true)]);
    }

    #[test]
    fn the_tail_is_the_end() {
        assert_eq!(tail("a\nb\nc\n", 2), ["b", "c"]);
        assert_eq!(tail("a", 2), ["a"]);
    }
}
