//! Multicast on UD.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Endpoint, Link, Marker, Memory, Pair, UdPair, ok, pattern, persist};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{Ah, AhAttr, Gid, GlobalRoute, QpType, SendWr, UdDest, WcOpcode};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("mcast/attach-and-detach", attach_and_detach));
    all.push(Case::new("mcast/every-member-has-a-copy", every_member));
    all.push(Case::new("mcast/only-what-it-joined", only_what_it_joined));
    all.push(Case::new("mcast/needs-the-qkey", needs_qkey));
    all.push(Case::new("mcast/refusals", refusals));
}

/// IBTA 9.6: the queue pair number of multicast.
const MULTICAST_QPN: u32 = 0xff_ffff;

/// A group of the kind of address that both ends use, and that nobody else uses: cases may run side by side, so its number
/// is made of that of a queue pair.
fn group(env: &Env, end: &Endpoint) -> Gid {
    let [_, high, middle, low] = end.qp.qp_num().to_be_bytes();
    match env.a.gid.ip() {
        IpAddr::V4(_) => Ipv4Addr::new(239, high, middle, low).into(),
        // Link-local scope, transient.
        IpAddr::V6(_) => {
            Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0x77, u16::from(high), u16::from_be_bytes([middle, low])).into()
        }
    }
}

struct Bench {
    a: Endpoint,
    b: Endpoint,
    ah: Ah,
    group: Gid,
}

impl Bench {
    fn new(env: &Env) -> CaseResult<Self> {
        if env.device()?.max_mcast_grp == 0 {
            return Err(Failure::not_applicable("the device has no multicast"));
        }
        let build = Build::new(QpType::Ud);
        let (a, b) = (build.ud_at(env, &env.a)?, build.ud_at(env, &env.b)?);
        let group = group(env, &b);
        let ah = a.pd.create_ah(&AhAttr {
            grh: Some(GlobalRoute { hop_limit: 1, ..GlobalRoute::new(group, env.a.gid.index) }),
            ..Link::route(&env.a, &env.b)
        })?;
        Ok(Self { a, b, ah, group })
    }

    fn dest(&self) -> UdDest<'_> {
        UdDest { ah: &self.ah, qpn: MULTICAST_QPN, qkey: Build::QKEY }
    }

    fn send(&self, source: &Memory, dest: UdDest<'_>) -> CaseResult {
        self.a.post(SendWr::send(1, &[source.mr.sge(..)?]).to(dest))?;
        ok(&self.a.sent()?, 1, WcOpcode::Send)
    }
}

fn attach_and_detach(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    let marker = Marker::new(env)?;
    let data = pattern(1, 300);
    let source = bench.a.memory(300)?;
    source.mr.write(0, &data)?;
    let target = bench.b.memory(400)?;
    bench.b.post_recv(5, &[target.mr.sge(..)?])?;
    bench.send(&source, bench.dest())?;
    marker.pass()?;
    env.wait.nothing(&bench.b.recv_cq)?;

    bench.b.qp.attach_mcast(bench.group)?;
    let wc = persist(&bench.b, || bench.send(&source, bench.dest()))?;
    ok(&wc, 5, WcOpcode::Recv)?;
    ensure_eq!(wc.byte_len as usize, UdPair::GRH + 300, "byte_len");
    ensure_eq!(wc.src_qp, bench.a.qp.qp_num(), "src_qp");
    target.holds(UdPair::GRH, &data)?;
    let grh = target.get(0, UdPair::GRH)?;
    match bench.group.ip() {
        IpAddr::V4(ip) => ensure_eq!(grh[36..40], ip.octets(), "destination in the GRH"),
        IpAddr::V6(ip) => ensure_eq!(grh[24..40], ip.octets(), "destination in the GRH"),
    }

    bench.b.qp.detach_mcast(bench.group)?;
    target.clear()?;
    bench.b.post_recv(6, &[target.mr.sge(..)?])?;
    bench.send(&source, bench.dest())?;
    marker.pass()?;
    env.wait.nothing(&bench.b.recv_cq)?;
    target.untouched()
}

fn every_member(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    let build = Build::new(QpType::Ud);
    let others = [build.ud_at(env, &env.b)?, build.ud_at(env, &env.a)?];
    let members: Vec<&Endpoint> = [&bench.b].into_iter().chain(&others).collect();
    let data = pattern(1, 64);
    let source = bench.a.memory(64)?;
    source.mr.write(0, &data)?;
    let mut targets = Vec::new();
    for member in &members {
        member.qp.attach_mcast(bench.group)?;
        let target = member.memory(4 * 128)?;
        for slot in 0..4 {
            member.post_recv(7, &[target.mr.sge(slot * 128..(slot + 1) * 128)?])?;
        }
        targets.push(target);
    }
    persist(&bench.b, || bench.send(&source, bench.dest()))?;
    targets[0].holds(UdPair::GRH, &data)?;
    for (member, target) in members.iter().zip(&targets).skip(1) {
        let wc = member.received()?;
        ok(&wc, 7, WcOpcode::Recv)?;
        ensure_eq!(wc.qp_num, member.qp.qp_num(), "qp_num");
        target.holds(UdPair::GRH, &data)?;
    }
    Ok(())
}

fn only_what_it_joined(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    let marker = Marker::new(env)?;
    let target = bench.b.memory(128)?;
    bench.b.post_recv(5, &[target.mr.sge(..)?])?;
    bench.b.qp.attach_mcast(group(env, &bench.a))?;
    let source = bench.a.memory(64)?;
    bench.send(&source, bench.dest())?;
    marker.pass()?;
    env.wait.nothing(&bench.b.recv_cq)?;
    target.untouched()
}

fn needs_qkey(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    let marker = Marker::new(env)?;
    bench.b.qp.attach_mcast(bench.group)?;
    let target = bench.b.memory(128)?;
    bench.b.post_recv(5, &[target.mr.sge(..)?])?;
    let source = bench.a.memory(64)?;
    bench.send(&source, UdDest { qkey: Build::QKEY + 1, ..bench.dest() })?;
    marker.pass()?;
    env.wait.nothing(&bench.b.recv_cq)?;
    persist(&bench.b, || bench.send(&source, bench.dest()))?;
    Ok(())
}

fn refusals(env: &Env) -> CaseResult {
    let bench = Bench::new(env)?;
    let pair = Pair::rc(env)?;
    ensure!(pair.b.qp.attach_mcast(bench.group).is_err(), "a connected queue pair joined a group");
    ensure!(bench.b.qp.attach_mcast(env.b.gid.gid).is_err(), "a queue pair joined a group that is none");
    ensure!(bench.b.qp.detach_mcast(bench.group).is_err(), "a queue pair left a group that it had not joined");
    bench.b.qp.attach_mcast(bench.group)?;
    bench.b.qp.detach_mcast(bench.group)?;
    ensure!(bench.b.qp.detach_mcast(bench.group).is_err(), "a queue pair left a group twice");
    Ok(())
}
