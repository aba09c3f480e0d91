//! Who has the port.

use std::fmt;
use std::fs;
use std::path::Path;

/// Who holds a UDP port that could not be bound, as far as `/proc` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortOwner {
    /// A process.
    Process {
        /// Its id.
        pid: u32,
        /// Its name, as `ps` shows it.
        name: String,
        /// Effective user id that its socket has.
        uid: u32,
    },
    /// A process that this one may not look into.
    User {
        /// Effective user id that its socket has.
        uid: u32,
    },
    /// The Soft-RoCE kernel module.
    SoftRoce,
    /// Nothing was found.
    Unknown,
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name, uid } => {
                write!(
                    f,
                    "process {pid} ({name}) of user {uid} holds it. Processes can share the port if they run as one user \
                     and all ask to: stop that one, or run as user {uid} if it is a ferroce program"
                )
            }
            Self::User { uid } => {
                write!(
                    f,
                    "a process of user {uid} holds it. Only processes of one user can share the port: run as that user, or in a \
                     network namespace of your own"
                )
            }
            Self::SoftRoce => {
                write!(
                    f,
                    "the kernel's Soft-RoCE (module rdma_rxe) holds it. Delete its devices (rdma link delete NAME) or unload it, \
                     or run in a network namespace where it has no device"
                )
            }
            Self::Unknown => {
                write!(
                    f,
                    "another user's process or the kernel's Soft-RoCE (module rdma_rxe) holds it. Stop that, or run in a \
                     network namespace of your own"
                )
            }
        }
    }
}

/// One line of `/proc/net/udp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    uid: u32,
    inode: u64,
}

/// All sockets of this network namespace that are bound to `port`.
fn bound(port: u16) -> Vec<Entry> {
    ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| entries(&table, port))
        .collect()
}

/// The inodes of the sockets of this network namespace that are bound to `port`. None if `/proc` does not tell.
pub(crate) fn sockets_of(port: u16) -> Vec<u64> {
    bound(port).into_iter().map(|entry| entry.inode).collect()
}

/// Finds out which process has a socket. Slow: looks at every process.
pub(crate) fn holder_of(inode: u64) -> Option<String> {
    let (pid, name) = holder(inode)?;
    Some(format!("process {pid} ({name})"))
}

/// Finds out who holds `port` in this network namespace. Slow: looks at every process.
pub(super) fn find(port: u16) -> PortOwner {
    let entries = bound(port);
    // A process that can be named is worth more than a user id.
    entries
        .iter()
        .find_map(|entry| holder(entry.inode).map(|(pid, name)| PortOwner::Process { pid, name, uid: entry.uid }))
        .or_else(|| entries.first().map(|&entry| unnamed(entry)))
        .unwrap_or(PortOwner::Unknown)
}

fn entries(table: &str, port: u16) -> Vec<Entry> {
    // sl, local address, remote address, state, queues, timer, retransmits, uid, timeout, inode.
    const LOCAL: usize = 1;
    const UID: usize = 7;
    const INODE: usize = 9;
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (_, hex) = fields.get(LOCAL)?.rsplit_once(':')?;
            if u16::from_str_radix(hex, 16).ok()? != port {
                return None;
            }
            Some(Entry { uid: fields.get(UID)?.parse().ok()?, inode: fields.get(INODE)?.parse().ok()? })
        })
        .collect()
}

/// Id and name of the process that has the socket open, if this one may see that.
fn holder(inode: u64) -> Option<(u32, String)> {
    let link = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        let has_it = |fd: &Path| fs::read_link(fd).is_ok_and(|target| target == Path::new(&link));
        if descriptors.flatten().any(|fd| has_it(&fd.path())) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim_end().to_owned()));
        }
    }
    None
}

/// No process is known to have the socket. Sockets of the kernel are root's.
fn unnamed(entry: Entry) -> PortOwner {
    if entry.uid == 0 && Path::new("/sys/module/rdma_rxe").exists() {
        PortOwner::SoftRoce
    } else {
        PortOwner::User { uid: entry.uid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  123: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2 0000000000000000 0
  124: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000   101        0 4343 2 0000000000000000 0
";
    const UDP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  77: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 17 2 0000000000000000 0
";

    #[test]
    fn tables_are_read() {
        assert_eq!(entries(UDP, 4791), [Entry { uid: 1000, inode: 4242 }]);
        assert_eq!(entries(UDP, 53), [Entry { uid: 101, inode: 4343 }]);
        assert_eq!(entries(UDP, 54), []);
        assert_eq!(entries(UDP6, 4791), [Entry { uid: 0, inode: 17 }]);
    }

    #[test]
    fn broken_tables_are_legal_input() {
        for len in 0..UDP.len() {
            entries(&UDP[..len], 4791);
        }
        assert_eq!(entries("x\n1: zz:12B7 0 0 0 0 0 q w e\n:\n", 4791), []);
    }

    #[test]
    fn this_process_is_found() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let PortOwner::Process { pid, name, .. } = find(port) else {
            panic!("{:?}", find(port));
        };
        assert_eq!(pid, std::process::id());
        assert!(!name.is_empty());
    }
}
