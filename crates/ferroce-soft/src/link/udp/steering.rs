//! Which process gets which packet, where several share the port.
//!
//! The sockets of an `SO_REUSEPORT` group have indices 0, 1, 2, ... inside the kernel, in the order of binding; when one
//! closes, the last one takes its place. A classic BPF program, which needs no privilege, maps a packet to
//! an index: it reads the top byte of the destination QPN, the slot of the context that owns the queue pair,
//! and looks up the index that the slot's socket has. For a slot that it does not know it returns an
//! index that no socket has, and the kernel then chooses by hash.
//!
//! No process can ask the kernel for its index. It learns it by *calibration*: somebody sends probes to the port
//! over the loopback interface, one for each index, which the program maps to that very index. Whoever receives
//! probe *i* has index *i*. Between a change of the group and the next calibration packets reach wrong processes,
//! which pass them on: steering saves that detour and is never needed for correctness.
//!
//! A multicast datagram is not steered: every socket that joined the group gets a copy.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W,
    sock_filter,
};

use ferroce_wire::cm::attr;

use crate::engine::GSI_HEADERS;

use super::cmsg::Control;
use super::name::SockName;
use super::open::UdpPort;
use super::sys::{self, Outgoing};

/// Most entries that [`steering_program`] takes: a byte, less the values that the host layer reserves.
pub const MAX_STEERED_SLOTS: usize = 254;

/// First byte of a probe, where a packet has its opcode: a manufacturer opcode that ferroce does not use.
const PROBE: u8 = 0xff;
/// A probe is shorter than any packet: mark, index, nonce.
const PROBE_LEN: usize = 1 + 2 + 8;
/// Where the top byte of the destination QPN is in a BTH (IBTA 9.2).
pub(super) const SLOT_OFFSET: usize = 5;
/// Where the MAD is in a datagram to queue pair 1.
const MAD_OFFSET: u32 = GSI_HEADERS as u32;
/// The messages that do not begin with two communication ids, of which the second is the receiver's: see
/// [`ferroce_wire::cm::Destination`], of which the program is the part that it can know.
const CM_REQ: u32 = attr::REQ as u32;
const CM_SIDR_REQ: u32 = attr::SIDR_REQ as u32;
const CM_SIDR_REP: u32 = attr::SIDR_REP as u32;
/// Which index no socket has.
const NO_SOCKET: u32 = u32::MAX;

fn probe(index: u16, nonce: u64) -> [u8; PROBE_LEN] {
    let mut bytes = [PROBE; PROBE_LEN];
    bytes[1..3].copy_from_slice(&index.to_be_bytes());
    bytes[3..].copy_from_slice(&nonce.to_be_bytes());
    bytes
}

pub(super) fn parse_probe(bytes: &[u8]) -> Option<(u16, u64)> {
    let bytes: &[u8; PROBE_LEN] = bytes.try_into().ok()?;
    let (&[mark, i0, i1], nonce) = bytes.split_first_chunk()?;
    let nonce = nonce.try_into().ok()?;
    (mark == PROBE).then_some((u16::from_be_bytes([i0, i1]), u64::from_be_bytes(nonce)))
}

const fn op(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// The program that steers packets by `table`, pairs of slot and socket index. With an empty table
/// it only serves probes.
///
/// Of several entries for one slot the last counts. The program finds an entry in a binary search of at most 8
/// comparisons.
///
/// # Panics
///
/// If there are more than [`MAX_STEERED_SLOTS`] different slots.
#[must_use]
pub fn steering_program(table: &[(u8, u16)]) -> Vec<sock_filter> {
    let mut indices = [None; 256];
    for &(slot, index) in table {
        indices[usize::from(slot)] = Some(index);
    }
    let entries: Vec<(u8, u16)> = (0..=u8::MAX).filter_map(|slot| Some((slot, indices[usize::from(slot)]?))).collect();
    assert!(entries.len() <= MAX_STEERED_SLOTS, "too many slots");
    // A packet too short for a load ends the program with 0, the index of the first socket, which is as good as any.
    let mut program = vec![
        op(BPF_LD | BPF_B | BPF_ABS, 0),
        jump(BPF_JMP | BPF_JEQ | BPF_K, u32::from(PROBE), 0, 2),
        op(BPF_LD | BPF_H | BPF_ABS, 1),
        // "Return the accumulator": BPF_A is 0x10 (include/uapi/linux/filter.h).
        op(BPF_RET | 0x10, 0),
        // Is it for queue pair 1, which all contexts share?
        op(BPF_LD | BPF_W | BPF_ABS, SLOT_OFFSET as u32 - 1),
        op(BPF_ALU | BPF_AND | BPF_K, 0xff_ffff),
        jump(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 6),
        // Then who it is for depends on what it is. A request names a service, of which nothing is known here.
        op(BPF_LD | BPF_H | BPF_ABS, MAD_OFFSET + 16),
        jump(BPF_JMP | BPF_JEQ | BPF_K, CM_REQ, 6, 0),
        jump(BPF_JMP | BPF_JEQ | BPF_K, CM_SIDR_REQ, 5, 0),
        jump(BPF_JMP | BPF_JEQ | BPF_K, CM_SIDR_REP, 5, 0),
        op(BPF_LD | BPF_B | BPF_ABS, MAD_OFFSET + 24 + 4),
        op(BPF_JMP | BPF_JA, 4),
        op(BPF_LD | BPF_B | BPF_ABS, SLOT_OFFSET as u32),
        op(BPF_JMP | BPF_JA, 2),
        op(BPF_RET | BPF_K, NO_SOCKET),
        op(BPF_LD | BPF_B | BPF_ABS, MAD_OFFSET + 24),
    ];
    search(&mut program, &entries);
    program
}

/// Appends the code that looks the accumulator up in `entries`, sorted by slot, and returns.
fn search(program: &mut Vec<sock_filter>, entries: &[(u8, u16)]) {
    match *entries {
        [] => program.push(op(BPF_RET | BPF_K, NO_SOCKET)),
        [(slot, index)] => program.extend([
            jump(BPF_JMP | BPF_JEQ | BPF_K, u32::from(slot), 0, 1),
            op(BPF_RET | BPF_K, u32::from(index)),
            op(BPF_RET | BPF_K, NO_SOCKET),
        ]),
        _ => {
            let (low, high) = entries.split_at(entries.len() / 2);
            let at = program.len();
            let test = BPF_JMP | BPF_JGE | BPF_K;
            let pivot = u32::from(high[0].0);
            program.push(jump(test, pivot, 0, 0));
            search(program, low);
            let skip = program.len() - at - 1;
            if let Ok(skip) = u8::try_from(skip) {
                program[at].jt = skip;
            } else {
                // Conditional jumps reach 255 instructions, unconditional ones any distance.
                program[at] = jump(test, pivot, 0, 1);
                program.insert(at + 1, op(BPF_JMP | BPF_JA, skip as u32));
            }
            search(program, high);
        }
    }
}

impl UdpPort {
    /// Attaches a steering program, normally [`steering_program`]'s, to the whole group of sockets, in
    /// place of the one before. Any member may do so; they should not do so at once.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the port was opened without [`reuse_port`](super::UdpConfig::reuse_port), `ENOMEM` if the program is
    /// beyond `net.core.optmem_max`. Packets are then spread by hash.
    pub fn attach_steering(&self, program: &[sock_filter]) -> io::Result<()> {
        sys::attach_reuseport_cbpf(self.shared.fd(), program)
    }

    /// Sends the probe that tells the socket at `index` of the group its index, over the loopback interface.
    ///
    /// If there is no such socket the kernel delivers the probe to any of them: the receiver of a probe should only
    /// believe it if it got no other, or if the prober counted the answers. `nonce` names this calibration.
    ///
    /// # Errors
    ///
    /// What `sendmsg` reports.
    pub fn send_probe(&self, index: u16, nonce: u64) -> io::Result<()> {
        let family = self.shared.family;
        let bound = self.shared.socket.local_addr()?.as_socket().map(|addr| addr.ip());
        let to = match bound {
            Some(ip) if !super::name::is_wildcard(ip) => ip,
            // An IPv6 loopback address may be missing, an IPv4 one never is.
            _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        debug_assert!(to != IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let name = SockName::encode(family, &SocketAddr::new(to, self.shared.port));
        let control = Control::for_packet(family, to, 0, 0, 0);
        let message = Outgoing { name: &name, control: control.as_bytes(), payload: &probe(index, nonce) };
        sys::send_one(self.shared.fd(), &message)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// What a program returns for a packet, by the rules of `bpf(4)`. `None`: it is not a legal program.
    fn run(program: &[sock_filter], packet: &[u8]) -> Option<u32> {
        let (mut at, mut a) = (0, 0);
        loop {
            let insn = program.get(at)?;
            at += 1;
            let (code, k) = (u32::from(insn.code), insn.k);
            if code == BPF_LD | BPF_B | BPF_ABS {
                match packet.get(k as usize) {
                    Some(&byte) => a = u32::from(byte),
                    None => return Some(0),
                }
            } else if code == BPF_LD | BPF_W | BPF_ABS {
                let Some(word) = packet.get(k as usize..k as usize + 4) else { return Some(0) };
                a = u32::from_be_bytes(word.try_into().ok()?);
            } else if code == BPF_ALU | BPF_AND | BPF_K {
                a &= k;
            } else if code == BPF_LD | BPF_H | BPF_ABS {
                match packet.get(k as usize..k as usize + 2) {
                    Some(half) => a = u32::from(u16::from_be_bytes([half[0], half[1]])),
                    None => return Some(0),
                }
            } else if code == BPF_JMP | BPF_JEQ | BPF_K {
                at += usize::from(if a == k { insn.jt } else { insn.jf });
            } else if code == BPF_JMP | BPF_JGE | BPF_K {
                at += usize::from(if a >= k { insn.jt } else { insn.jf });
            } else if code == BPF_JMP | BPF_JA {
                at += k as usize;
            } else if code == BPF_RET | BPF_K {
                return Some(k);
            } else if code == BPF_RET | 0x10 {
                return Some(a);
            } else {
                return None;
            }
        }
    }

    fn packet(slot: u8) -> [u8; 16] {
        let mut packet = [4; 16];
        packet[SLOT_OFFSET] = slot;
        packet
    }

    proptest! {
        #[test]
        fn slots_are_found_and_others_are_not(
            table in proptest::collection::btree_map(0..254u8, any::<u16>(), 0..=254),
        ) {
            let table: BTreeMap<u8, u16> = table;
            let program = steering_program(&table.iter().map(|(&s, &i)| (s, i)).collect::<Vec<_>>());
            for slot in 0..=255 {
                let expected = table.get(&slot).map_or(NO_SOCKET, |&index| u32::from(index));
                prop_assert_eq!(run(&program, &packet(slot)), Some(expected));
            }
            let gsi = |attribute: u8, at: usize, slot: u8| {
                let mut packet = [4; 280];
                packet[5..8].copy_from_slice(&[0, 0, 1]);
                packet[36..38].copy_from_slice(&[0, attribute]);
                packet[at] = slot;
                run(&program, &packet)
            };
            for slot in 0..=255 {
                let expected = Some(table.get(&slot).map_or(NO_SOCKET, |&index| u32::from(index)));
                prop_assert_eq!(gsi(0x13, 48, slot), expected);
                prop_assert_eq!(gsi(0x18, 44, slot), expected);
                prop_assert_eq!([gsi(0x10, 48, slot), gsi(0x17, 44, slot)], [Some(NO_SOCKET); 2]);
            }
            for index in [0, 1, 0x1234, u16::MAX] {
                prop_assert_eq!(run(&program, &probe(index, 7)), Some(u32::from(index)));
            }
            for len in 0..6 {
                prop_assert_eq!(run(&program, &packet(0)[..len]), Some(0));
            }
        }
    }

    #[test]
    fn the_largest_program_is_one_that_kernels_take() {
        let table: Vec<_> = (0..254).map(|slot| (slot, 1000 + u16::from(slot))).collect();
        let program = steering_program(&table);
        // BPF_MAXINSNS, and the smallest default of net.core.optmem_max, which bounds the program after its translation:
        // 8 bytes for an instruction, of which the kernel needs two for a return and at most two for a jump.
        assert!(program.len() < 4096);
        assert!(program.len() * 2 * 8 < 20_480, "{}", program.len());
        let port = UdpPort::open(&crate::link::udp::UdpConfig { port: 0, ..Default::default() }).expect("open");
        port.attach_steering(&program).expect("attach");
    }

    #[test]
    fn of_two_entries_the_last_counts() {
        let program = steering_program(&[(3, 1), (3, 2)]);
        assert_eq!(run(&program, &packet(3)), Some(2));
    }

    #[test]
    fn probes_round_trip() {
        let bytes = probe(0xabcd, 0x0102_0304_0506_0708);
        assert_eq!(parse_probe(&bytes), Some((0xabcd, 0x0102_0304_0506_0708)));
        assert_eq!(parse_probe(&bytes[..10]), None);
        assert_eq!(parse_probe(&[0; 11]), None);
    }

    #[test]
    fn a_group_of_one_needs_the_option() {
        let alone = UdpPort::open(&crate::link::udp::UdpConfig { port: 0, reuse_port: false, ..Default::default() })
            .expect("open");
        let e = alone.attach_steering(&steering_program(&[])).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EINVAL));
    }
}
