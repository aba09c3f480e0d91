//! `ferroce info`: what there is, and what is missing.

use crate::args::{Common, Link};
use crate::failure::{Failure, Result};
use crate::local;
use crate::report::{self, Table, grouped};
use clap::Args;
use ferroce::{Context, DeviceAttr, GidEntry, Mtu, PortAttr, PortState};
use serde::Serialize;
use std::collections::BTreeMap;

const EXAMPLES: &str = "\
Examples:
  ferroce info
  ferroce info --counters
  ferroce info --json | jq '.devices[].ports[].gids'";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Show counters too: those of the context that this process opens, and of its address-handle cache. What other processes do is not in them
    #[arg(long)]
    counters: bool,
}

#[derive(Serialize)]
struct Document {
    version: &'static str,
    devices: Vec<Device>,
    /// Why there are no devices of rdma-core, in plain words.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_rdma_core: Option<String>,
}

#[derive(Serialize)]
struct Device {
    name: String,
    provider: &'static str,
    node_guid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    ports: Vec<Port>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<BTreeMap<&'static str, u64>>,
    /// How many addresses the cache has resolved in which time.
    #[serde(skip_serializing_if = "Option::is_none")]
    ah_cache_resolution_buckets: Option<Vec<Bucket>>,
    /// What is missing, in plain words.
    missing: Vec<String>,
}

/// Times that are in none of the buckets before.
#[derive(Serialize)]
struct Bucket {
    below_us: u64,
    count: u64,
}

#[derive(Serialize)]
struct Limits {
    fw_ver: String,
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u32,
    max_inline_data: u32,
    max_cq: u32,
    max_cqe: u32,
    max_mr: u32,
    max_mr_size: u64,
    max_pd: u32,
    max_srq: u32,
    max_srq_wr: u32,
    max_ah: u32,
    max_mcast_grp: u32,
    max_qp_rd_atom: u8,
    max_qp_init_rd_atom: u8,
    atomic_cap: &'static str,
}

#[derive(Serialize)]
struct Port {
    port: u8,
    state: &'static str,
    link_layer: &'static str,
    max_mtu: u32,
    active_mtu: u32,
    max_msg_sz: u32,
    lid: u16,
    gids: Vec<GidRow>,
}

#[derive(Serialize)]
struct GidRow {
    index: u32,
    gid: String,
    ip: String,
    netdev: String,
    mtu: u32,
    loopback: bool,
}

pub(crate) fn run(args: &InfoArgs) -> Result<()> {
    let link = local::link(&args.common)?;
    let wanted = match &args.common.device {
        Some(name) => Some(name.clone()),
        None => ferroce::environment::device()?,
    };
    let mut devices = Vec::new();
    let mut failure = None;
    for device in ferroce::devices() {
        let info = device.info();
        if wanted.as_ref().is_some_and(|wanted| *wanted != info.name) {
            continue;
        }
        let common = Common { device: Some(info.name.clone()), ..args.common.clone() };
        let described = describe(&common, link, args.counters);
        devices.push(match described {
            Ok(device) => device,
            Err(error) => {
                let mut missing = vec![error.message.clone()];
                missing.extend(error.hint.clone());
                failure.get_or_insert(error);
                Device {
                    name: info.name,
                    provider: info.provider,
                    node_guid: guid(info.node_guid),
                    limits: None,
                    ports: Vec::new(),
                    counters: None,
                    ah_cache_resolution_buckets: None,
                    missing,
                }
            }
        });
    }
    let usable = devices.iter().any(|device| device.limits.is_some());
    if devices.is_empty() {
        // Opening what is not there gives the error that lists what is.
        local::open(&args.common, link)?;
        return Err(Failure::environment("this machine has no RDMA device"));
    }
    // Who asks for one device does not ask why there are no others.
    let no_rdma_core = match &wanted {
        None => ferroce::rdma_core_devices().err().map(|why| why.to_string()),
        Some(_) => None,
    };
    if args.common.json {
        report::json(&Document { version: env!("CARGO_PKG_VERSION"), devices, no_rdma_core })?;
    } else {
        for device in &devices {
            report::text_line(&human(device))?;
        }
        if let Some(why) = no_rdma_core {
            report::text_line(&format!("no devices of rdma-core: {why}"))?;
        }
    }
    // What is missing for one device is no trouble to those who can use another.
    match failure {
        Some(error) if !usable || wanted.is_some() => Err(error.documented()),
        _ => Ok(()),
    }
}

fn describe(common: &Common, link: Link, counters: bool) -> Result<Device> {
    let context = local::open(common, link)?;
    // Whatever stands against it is to be seen here, not only by who needs it.
    let cache = context.ah_cache()?;
    let info = context.info();
    let attr = context.query_device()?;
    let mut missing = Vec::new();
    let mut ports = Vec::new();
    for number in 1..=attr.phys_port_cnt {
        let port = context.query_port(number)?;
        let gids = selected(&context, common, number)?;
        missing.extend(what_is_missing(number, &port, &gids));
        ports.push(describe_port(number, &port, &gids));
    }
    let ah_cache_resolution_buckets = counters.then(|| {
        let times = cache.counters().resolution;
        times.buckets().map(|(below, count)| Bucket { below_us: below.as_micros() as u64, count }).collect()
    });
    let counters = counters.then(|| context.counters().into_iter().collect());
    Ok(Device {
        name: info.name,
        provider: info.provider,
        node_guid: guid(info.node_guid),
        limits: Some(limits(&attr)),
        ports,
        counters,
        ah_cache_resolution_buckets,
        missing,
    })
}

/// The GID table, or the one entry that `--gid-index` names.
fn selected(context: &Context, common: &Common, port: u8) -> Result<Vec<GidEntry>> {
    match common.gid_index {
        Some(choice) => Ok(vec![local::pick_gid(context, port, Some(choice), None)?]),
        None => Ok(context.gid_table(port)?),
    }
}

/// What stands against using a port, in plain words.
fn what_is_missing(number: u8, port: &PortAttr, gids: &[GidEntry]) -> Vec<String> {
    let mut missing = Vec::new();
    if port.state != PortState::Active {
        missing.push(format!(
            "port {number} is {}: bring its network interface up (ip link set dev NAME up)",
            state(port.state)
        ));
    }
    if gids.is_empty() {
        missing.push(format!(
            "port {number} has no address, so nothing can be sent: give a network interface an IP address (ip addr add)"
        ));
    } else if gids.iter().all(|entry| entry.loopback) {
        missing.push(format!(
            "port {number} has loopback addresses only, so no other machine can be reached: give a network interface an \
             IP address (ip addr add)"
        ));
    }
    for entry in gids.iter().filter(|entry| entry.mtu < Mtu::Mtu1024) {
        missing.push(format!(
            "{} carries a path MTU of {} only: use --mtu {} with it, or raise its MTU (ip link set dev {} mtu 1500)",
            entry.netdev, entry.mtu, entry.mtu, entry.netdev
        ));
    }
    missing
}

fn describe_port(number: u8, port: &PortAttr, gids: &[GidEntry]) -> Port {
    Port {
        port: number,
        state: state(port.state),
        link_layer: if port.ethernet { "Ethernet" } else { "InfiniBand" },
        max_mtu: port.max_mtu.bytes(),
        active_mtu: port.active_mtu.bytes(),
        max_msg_sz: port.max_msg_sz,
        lid: port.lid,
        gids: gids
            .iter()
            .map(|entry| GidRow {
                index: entry.index,
                gid: entry.gid.to_string(),
                ip: entry.ip().to_string(),
                netdev: entry.netdev.clone(),
                mtu: entry.mtu.bytes(),
                loopback: entry.loopback,
            })
            .collect(),
    }
}

fn limits(attr: &DeviceAttr) -> Limits {
    Limits {
        fw_ver: attr.fw_ver.clone(),
        max_qp: attr.max_qp,
        max_qp_wr: attr.max_qp_wr,
        max_sge: attr.max_sge,
        max_inline_data: attr.max_inline_data,
        max_cq: attr.max_cq,
        max_cqe: attr.max_cqe,
        max_mr: attr.max_mr,
        max_mr_size: attr.max_mr_size,
        max_pd: attr.max_pd,
        max_srq: attr.max_srq,
        max_srq_wr: attr.max_srq_wr,
        max_ah: attr.max_ah,
        max_mcast_grp: attr.max_mcast_grp,
        max_qp_rd_atom: attr.max_qp_rd_atom,
        max_qp_init_rd_atom: attr.max_qp_init_rd_atom,
        atomic_cap: match attr.atomic_cap {
            ferroce::AtomicCap::None => "none",
            ferroce::AtomicCap::Device => "device",
            ferroce::AtomicCap::Global => "global",
        },
    }
}

fn state(state: PortState) -> &'static str {
    match state {
        PortState::Down => "down",
        PortState::Init => "init",
        PortState::Armed => "armed",
        PortState::Active => "active",
    }
}

/// A GUID in the form of libibverbs.
fn guid(guid: u64) -> String {
    let [a, b, c, d] = [guid >> 48, guid >> 32, guid >> 16, guid].map(|part| part & 0xffff);
    format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
}

fn human(device: &Device) -> String {
    let mut lines =
        vec![format!("device {} (provider {}, node GUID {})", device.name, device.provider, device.node_guid)];
    if let Some(limits) = &device.limits {
        lines.push(format!(
            "  version {}; at most {} QPs with {} work requests of {} SGEs, {} bytes inline, {} CQs of {} entries",
            limits.fw_ver,
            grouped(limits.max_qp.into()),
            grouped(limits.max_qp_wr.into()),
            limits.max_sge,
            limits.max_inline_data,
            grouped(limits.max_cq.into()),
            grouped(limits.max_cqe.into()),
        ));
        lines.push(format!(
            "  {} SRQs of {} work requests, {} memory regions, {} protection domains, {} reads and atomics per QP, atomics: {}",
            grouped(limits.max_srq.into()),
            grouped(limits.max_srq_wr.into()),
            grouped(limits.max_mr.into()),
            grouped(limits.max_pd.into()),
            limits.max_qp_rd_atom,
            limits.atomic_cap,
        ));
    }
    for port in &device.ports {
        lines.push(format!(
            "  port {}: {}, {}, MTU {} of {}, messages up to {} bytes",
            port.port,
            port.state,
            port.link_layer,
            port.active_mtu,
            port.max_mtu,
            grouped(port.max_msg_sz.into()),
        ));
        let mut table = Table::new(&["GID", "index", "netdev", "MTU", "reaches"]);
        for row in &port.gids {
            let reach = if row.loopback { "this machine" } else { "the network" };
            table.row([row.gid.clone(), row.index.to_string(), row.netdev.clone(), row.mtu.to_string(), reach.into()]);
        }
        lines.extend(table.render().lines().map(|line| format!("    {line}")));
    }
    if let Some(counters) = &device.counters {
        let mut table = Table::new(&["counter", "value"]);
        for (name, value) in counters {
            table.row([(*name).to_string(), grouped(*value)]);
        }
        lines.extend(table.render().lines().map(|line| format!("  {line}")));
    }
    for missing in &device.missing {
        lines.push(format!("  missing: {missing}"));
    }
    if device.missing.is_empty() {
        lines.push("  nothing is missing".into());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn port(state: PortState) -> PortAttr {
        PortAttr {
            state,
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::Mtu1024,
            gid_tbl_len: 8,
            pkey_tbl_len: 1,
            max_msg_sz: 1 << 30,
            lid: 0,
            ethernet: true,
        }
    }

    fn gid(ip: &str, mtu: Mtu, loopback: bool) -> GidEntry {
        let gid = ip.parse::<IpAddr>().unwrap().into();
        GidEntry { index: 0, gid, netdev: "eth0".into(), ifindex: 2, mtu, loopback }
    }

    #[test]
    fn what_is_missing_is_said_in_words() {
        let active = port(PortState::Active);
        assert!(what_is_missing(1, &active, &[gid("192.0.2.1", Mtu::Mtu1024, false)]).is_empty());
        assert!(what_is_missing(1, &active, &[])[0].contains("no address"));
        assert!(what_is_missing(1, &active, &[gid("127.0.0.1", Mtu::Mtu4096, true)])[0].contains("loopback"));
        assert!(what_is_missing(1, &active, &[gid("192.0.2.1", Mtu::Mtu256, false)])[0].contains("path MTU of 256"));
        let down = port(PortState::Down);
        assert!(what_is_missing(1, &down, &[gid("192.0.2.1", Mtu::Mtu1024, false)])[0].contains("is down"));
    }

    #[test]
    fn guids_look_as_in_libibverbs() {
        assert_eq!(guid(0x0011_2233_4455_6677), "0011:2233:4455:6677");
    }
}
