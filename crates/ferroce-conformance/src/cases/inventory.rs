//! What a device says of itself, and the objects it makes.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Pair};
use crate::{Case, CaseResult, End, Env, Failure};
use ferroce_verbs::{Access, PortState, QpType};
use std::collections::HashSet;

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("device/attributes", attributes));
    all.push(Case::new("device/port", port));
    all.push(Case::new("device/gid-table", gid_table));
    all.push(Case::new("device/every-open-is-its-own", every_open));
    all.push(Case::new("device/opened-many-times", many_opens));
    all.push(Case::new("device/counters", counters));
    all.push(Case::new("mr/attributes", mr_attributes));
    all.push(Case::new("mr/remote-write-needs-local-write", mr_rights));
    all.push(Case::new("mr/keys-are-not-reused-at-once", keys));
    all.push(Case::new("qp/numbers-are-not-reused-at-once", numbers));
}

fn attributes(env: &Env) -> CaseResult {
    let device = env.device()?;
    let info = env.a.context.info();
    ensure!(!info.name.is_empty(), "the device has no name");
    ensure_eq!(info.node_guid, device.node_guid, "node GUID of the device and of its attributes");
    for (what, value) in [
        ("max_qp", device.max_qp),
        ("max_qp_wr", device.max_qp_wr),
        ("max_sge", device.max_sge),
        ("max_cq", device.max_cq),
        ("max_cqe", device.max_cqe),
        ("max_mr", device.max_mr),
        ("max_pd", device.max_pd),
        ("max_ah", device.max_ah),
        ("phys_port_cnt", u32::from(device.phys_port_cnt)),
        ("max_qp_rd_atom", u32::from(device.max_qp_rd_atom)),
        ("max_qp_init_rd_atom", u32::from(device.max_qp_init_rd_atom)),
    ] {
        ensure!(value > 0, "{what} is 0");
    }
    ensure!(device.max_mr_size >= 1 << 20, "max_mr_size is {}", device.max_mr_size);
    Ok(())
}

fn port(env: &Env) -> CaseResult {
    let port = env.a.context.query_port(env.a.port)?;
    ensure_eq!(port.state, PortState::Active, "state of the port");
    ensure!(port.active_mtu <= port.max_mtu, "active MTU {} of at most {}", port.active_mtu, port.max_mtu);
    ensure!(port.gid_tbl_len > 0 && port.pkey_tbl_len > 0, "an empty table: {port:?}");
    ensure!(port.max_msg_sz >= 1 << 20, "max_msg_sz is {}", port.max_msg_sz);
    let beyond = env.device()?.phys_port_cnt + 1;
    for number in [0, beyond] {
        ensure!(env.a.context.query_port(number).is_err(), "port {number} was queried");
        ensure!(env.a.context.gid_table(number).is_err(), "the GID table of port {number} was queried");
    }
    Ok(())
}

fn gid_table(env: &Env) -> CaseResult {
    let table = env.a.context.gid_table(env.a.port)?;
    let length = env.a.context.query_port(env.a.port)?.gid_tbl_len;
    ensure!(table.windows(2).all(|pair| pair[0].index < pair[1].index), "not in order of index: {table:?}");
    for entry in &table {
        ensure!(entry.index < length, "index {} in a table of {length}", entry.index);
        ensure!(!entry.gid.is_zero() && !entry.gid.is_multicast(), "GID {}", entry.gid);
        ensure_eq!(env.a.context.query_gid(env.a.port, entry.index)?, *entry, "entry {}", entry.index);
    }
    ensure!(table.contains(&env.a.gid), "the address of this run is not in the table: {table:?}");
    ensure!(env.a.context.query_gid(env.a.port, length).is_err(), "an entry beyond the table");
    Ok(())
}

/// Contexts share nothing: the keys and numbers of one are not those of the other.
fn every_open(env: &Env) -> CaseResult {
    let again = env.open_again(End::A)?;
    ensure!(again.context != env.a.context, "both opens gave the same context");
    let first = Build::new(QpType::Ud).at(env, &env.a)?;
    let second = Build::new(QpType::Ud).at(env, &again)?;
    ensure!(first.qp.qp_num() != second.qp.qp_num(), "queue pairs of two contexts have one number");
    ensure_eq!(first.pd.context(), env.a.context, "context of the protection domain");
    ensure!(first.pd != second.pd, "both contexts have one protection domain");
    Ok(())
}

/// Contexts come and go, and leave nothing behind that the next one misses.
fn many_opens(env: &Env) -> CaseResult {
    for round in 0..40 {
        let again = env.open_again(End::B)?;
        if round % 10 == 0 {
            let end = Build::new(QpType::Rc).at(env, &again)?;
            end.memory(4096)?;
        }
    }
    Pair::rc(env)?.round_trip()
}

fn counters(env: &Env) -> CaseResult {
    let counters = env.a.context.counters();
    let names: HashSet<_> = counters.iter().map(|(name, _)| name).collect();
    ensure_eq!(names.len(), counters.len(), "different names among the counters");
    Ok(())
}

fn mr_attributes(env: &Env) -> CaseResult {
    let pd = env.a.context.alloc_pd()?;
    for len in [1, 4095, 4096, 100_000] {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let mr = pd.alloc_mr(len, access)?;
        ensure_eq!((mr.len(), mr.access()), (len, access), "length and access");
        let mut out = vec![1; len];
        mr.read(0, &mut out)?;
        ensure!(out.iter().all(|&byte| byte == 0), "new memory is not zero");
        ensure_eq!(mr.sge(..)?, ferroce_verbs::Sge { addr: mr.addr(), length: len as u32, lkey: mr.lkey() }, "element");
        ensure!(mr.sge(..len + 1).is_err() && mr.write(len, &[0]).is_err(), "a range beyond the region");
    }
    ensure!(pd.alloc_mr(0, Access::empty()).is_err(), "a region of no bytes");
    Ok(())
}

fn mr_rights(env: &Env) -> CaseResult {
    let pd = env.a.context.alloc_pd()?;
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_READ] {
        ensure!(pd.alloc_mr(64, access).is_err(), "{access:?} without local write");
        pd.alloc_mr(64, access | Access::LOCAL_WRITE)?;
    }
    pd.alloc_mr(64, Access::empty())?;
    pd.alloc_mr(64, Access::REMOTE_READ)?;
    Ok(())
}

/// A key that was just given up is not the next one that is given out: a late request must not hit another region.
fn keys(env: &Env) -> CaseResult {
    let pd = env.a.context.alloc_pd()?;
    let mut seen = HashSet::new();
    for _ in 0..50 {
        let mr = pd.alloc_mr(64, Access::ALL)?;
        if !seen.insert((mr.lkey(), mr.rkey())) {
            return Err(Failure::new(format!("keys {:#x} and {:#x} came back", mr.lkey(), mr.rkey())));
        }
    }
    Ok(())
}

/// Nor is a queue pair's number: packets of the old connection must not hit the new one.
fn numbers(env: &Env) -> CaseResult {
    let mut seen = HashSet::new();
    for _ in 0..50 {
        let number = Build::new(QpType::Rc).at(env, &env.a)?.qp.qp_num();
        if !seen.insert(number) {
            return Err(Failure::new(format!("number {number:#x} came back")));
        }
    }
    Ok(())
}
