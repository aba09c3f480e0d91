//! What is particular to UD: the GRH, Q_Keys, address handles, messages that go nowhere.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Endpoint, Link, Marker, UdPair, ok, pattern, persist};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{
    AhAttr, GlobalRoute, Mtu, QpState, QpType, SendOp, SendWr, UdDest, WcOpcode, WcStatus, WorkCompletion,
};
use std::net::IpAddr;

pub(super) fn add(all: &mut Vec<Case>) {
    all.push(Case::new("ud/grh-says-who-sent", grh));
    all.push(Case::new("ud/reply-by-completion", reply));
    all.push(Case::new("ud/reply-needs-a-grh", reply_needs_grh));
    all.push(Case::new("ud/wrong-qkey-is-dropped", wrong_qkey));
    all.push(Case::new("ud/own-qkey-is-sent", own_qkey));
    all.push(Case::new("ud/qkey-is-changed-by-modify", qkey_changes));
    all.push(Case::new("ud/no-receive-drops", no_receive));
    all.push(Case::new("ud/nobody-there", nobody_there));
    all.push(Case::new("ud/too-short-receive", too_short));
    all.push(Case::new("ud/longer-than-the-mtu", too_long));
    all.push(Case::new("ud/needs-a-destination", needs_destination));
    all.push(Case::new("ud/connected-queue-pairs-do-not-hear-it", wrong_service));
    all.push(Case::new("ah/outlived-by-its-sends", ah_outlived));
    all.push(Case::new("ah/attr", ah_attr));
    all.push(Case::new("ah/refuses-nonsense", ah_refuses));
}

/// Source and destination of the 40 bytes before a datagram (IBTA annex A17.4.5.1), if they are an IP header for UDP.
fn addresses(grh: &[u8]) -> Option<(IpAddr, IpAddr)> {
    const UDP: u8 = 17;
    if grh[0] >> 4 == 6 {
        let part = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&grh[at..at + 16]).expect("sixteen bytes"));
        (grh[6] == UDP).then(|| (part(8), part(24)))
    } else {
        // The first 20 bytes are undefined, the IPv4 header is at the end.
        let part = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&grh[at..at + 4]).expect("four bytes"));
        (grh[20] == 0x45 && grh[29] == UDP).then(|| (part(32), part(36)))
    }
}

fn grh(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let data = pattern(1, 77);
    let (wc, target) = pair.deliver(1, &data)?;
    ensure_eq!(wc.byte_len, 117, "byte_len");
    target.holds(UdPair::GRH, &data)?;
    let grh = target.get(0, UdPair::GRH)?;
    let want = Some((env.a.gid.ip(), env.b.gid.ip()));
    ensure_eq!(addresses(&grh), want, "source and destination in {grh:02x?}");
    // What comes after the message is as it was.
    target.holds(UdPair::GRH + 77, &[crate::fixture::GUARD; 8])
}

fn reply(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let (wc, target) = pair.deliver(1, b"who are you?")?;
    let mut grh = [0; 40];
    target.mr.read(0, &mut grh)?;
    let ah = pair.b.pd.create_ah_from_wc(&wc, &grh, env.b.port)?;
    let route = ah.attr().grh.ok_or_else(|| Failure::new("an address handle without a route"))?;
    ensure_eq!(route.dgid, env.a.gid.gid, "where the answer goes");
    let (source, back) = (pair.b.memory(9)?, pair.a.memory(64)?);
    source.mr.write(0, b"it is me!")?;
    pair.a.post_recv(2, &[back.mr.sge(..)?])?;
    let dest = UdDest { ah: &ah, qpn: wc.src_qp, qkey: Build::QKEY };
    let wc = persist(&pair.a, || {
        pair.b.post(SendWr::send(3, &[source.mr.sge(..)?]).to(dest))?;
        ok(&pair.b.sent()?, 3, WcOpcode::Send)
    })?;
    ok(&wc, 2, WcOpcode::Recv)?;
    ensure_eq!(wc.src_qp, pair.b.qp.qp_num(), "src_qp of the answer");
    back.holds(UdPair::GRH, b"it is me!")
}

fn reply_needs_grh(env: &Env) -> CaseResult {
    let pd = env.a.context.alloc_pd()?;
    let wc = WorkCompletion::new(1, WcOpcode::Recv, 2);
    ensure!(pd.create_ah_from_wc(&wc, &[0; 40], env.a.port).is_err(), "an address handle from a completion of no GRH");
    Ok(())
}

/// Posts a receive, sends what `lost` sends, which must not arrive, and then what must; checks that only that arrives.
fn only_the_last(env: &Env, pair: &UdPair, lost: impl Fn(&Endpoint) -> CaseResult) -> CaseResult {
    let marker = Marker::new(env)?;
    let target = pair.b.memory(200)?;
    pair.b.post_recv(1, &[target.mr.sge(..)?])?;
    lost(&pair.a)?;
    marker.pass()?;
    pair.b.wait.nothing(&pair.b.recv_cq)?;
    target.untouched()?;
    let wc = persist(&pair.b, || {
        pair.a.post(SendWr::new(9, SendOp::SendImm(0x900d), &[]).to(pair.dest()))?;
        ok(&pair.a.sent()?, 9, WcOpcode::Send)
    })?;
    ok(&wc, 1, WcOpcode::Recv)?;
    ensure_eq!(wc.imm_data(), Some(0x900d), "immediate data of what arrived");
    for end in [&pair.a, &pair.b] {
        ensure_eq!(end.qp.state(), QpState::Rts, "state of a queue pair");
    }
    Ok(())
}

/// A datagram whose Q_Key is not the receiver's vanishes, and its sender sees success (IBTA 9.6.1.3.3).
fn wrong_qkey(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    only_the_last(env, &pair, |a| {
        for qkey in [0, Build::QKEY + 1, Build::QKEY ^ 0x4000_0000] {
            a.post(SendWr::send(2, &[]).to(UdDest { qkey, ..pair.dest() }))?;
            ok(&a.sent()?, 2, WcOpcode::Send)?;
        }
        Ok(())
    })
}

/// With the top bit set in the request, the Q_Key of the sending queue pair is sent (IBTA 10.2.5).
fn own_qkey(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let target = pair.b.memory(64)?;
    pair.b.post_recv(1, &[target.mr.sge(..)?])?;
    let dest = UdDest { qkey: 0x8000_0000 | !Build::QKEY, ..pair.dest() };
    let wc = persist(&pair.b, || {
        pair.a.post(SendWr::new(3, SendOp::SendImm(5), &[]).to(dest))?;
        ok(&pair.a.sent()?, 3, WcOpcode::Send)
    })?;
    ok(&wc, 1, WcOpcode::Recv)?;
    ensure_eq!(wc.imm_data(), Some(5), "immediate data");
    Ok(())
}

fn qkey_changes(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let new = ferroce_verbs::QpAttr { qkey: Some(77), ..ferroce_verbs::QpAttr::to(QpState::Rts) };
    pair.b.qp.modify(&new)?;
    ensure_eq!(pair.b.qp.query()?.qkey, Some(77), "the Q_Key");
    let marker = Marker::new(env)?;
    let target = pair.b.memory(64)?;
    pair.b.post_recv(1, &[target.mr.sge(..)?])?;
    pair.a.post(SendWr::send(2, &[]).to(pair.dest()))?;
    ok(&pair.a.sent()?, 2, WcOpcode::Send)?;
    marker.pass()?;
    pair.b.wait.nothing(&pair.b.recv_cq)?;
    let wc = persist(&pair.b, || {
        pair.a.post(SendWr::send(3, &[]).to(UdDest { qkey: 77, ..pair.dest() }))?;
        ok(&pair.a.sent()?, 3, WcOpcode::Send)
    })?;
    ok(&wc, 1, WcOpcode::Recv)
}

/// Without a receive a datagram is dropped (IBTA 9.8.3.2.2); the next one finds the receive that was posted since.
fn no_receive(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let marker = Marker::new(env)?;
    for _ in 0..3 {
        pair.a.post(SendWr::new(2, SendOp::SendImm(0xbad), &[]).to(pair.dest()))?;
        ok(&pair.a.sent()?, 2, WcOpcode::Send)?;
    }
    marker.pass()?;
    only_the_last(env, &pair, |_| Ok(()))
}

/// To a queue pair that does not exist, or is not ready to receive.
fn nobody_there(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let reset = Build::new(QpType::Ud).at(env, &env.b)?;
    let gone = Build::new(QpType::Ud).at(env, &env.b)?.qp.qp_num();
    only_the_last(env, &pair, |a| {
        for qpn in [reset.qp.qp_num(), gone, 0xff_fffe] {
            a.post(SendWr::send(2, &[]).to(UdDest { qpn, ..pair.dest() }))?;
            ok(&a.sent()?, 2, WcOpcode::Send)?;
        }
        Ok(())
    })
}

/// A datagram that does not fit its receive is never delivered in part. Whether the receive is used up, with an error, or
/// stays for the next one, is the device's choice.
fn too_short(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let marker = Marker::new(env)?;
    let source = pair.a.memory(100)?;
    let target = pair.b.memory(UdPair::GRH + 99)?;
    pair.b.post_recv(1, &[target.mr.sge(..)?])?;
    pair.a.post(SendWr::send(2, &[source.mr.sge(..)?]).to(pair.dest()))?;
    ok(&pair.a.sent()?, 2, WcOpcode::Send)?;
    marker.pass()?;
    let mut out = [WorkCompletion::default()];
    if pair.b.recv_cq.poll(&mut out)? == 1 {
        ensure_eq!((out[0].wr_id, out[0].status), (1, WcStatus::LocLenErr), "the receive that is too short");
    }
    Ok(())
}

/// A message of more than one packet is refused when it is posted, or ends with a local length error.
fn too_long(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let marker = Marker::new(env)?;
    let len = Mtu::Mtu4096.bytes() as usize + 1;
    let (source, target) = (pair.a.memory(len)?, pair.b.memory(len + UdPair::GRH)?);
    pair.b.post_recv(1, &[target.mr.sge(..)?])?;
    if pair.a.post(SendWr::send(2, &[source.mr.sge(..)?]).to(pair.dest())).is_ok() {
        let wc = pair.a.sent()?;
        ensure_eq!((wc.wr_id, wc.status), (2, WcStatus::LocLenErr), "the message that is too long");
        pair.a.reaches(QpState::Sqe)?;
    }
    marker.pass()?;
    pair.b.wait.nothing(&pair.b.recv_cq)?;
    target.untouched()
}

fn needs_destination(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let Err(refused) = pair.a.qp.post_send(&[SendWr::send(1, &[]).to(pair.dest()), SendWr::send(2, &[])]) else {
        return Err(Failure::new("a datagram to nowhere was posted"));
    };
    ensure_eq!(refused.index, 1, "index of the request without a destination");
    ok(&pair.a.sent()?, 1, WcOpcode::Send)?;
    pair.deliver(3, &pattern(1, 10)).map(|_| ())
}

/// A datagram to a connected queue pair is not for it (IBTA 9.6.1.1.2).
fn wrong_service(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    let connected = crate::fixture::Pair::rc(env)?;
    connected.b.post_recv(1, &[])?;
    only_the_last(env, &pair, |a| {
        a.post(SendWr::send(2, &[]).to(UdDest { qpn: connected.b.qp.qp_num(), ..pair.dest() }))?;
        ok(&a.sent()?, 2, WcOpcode::Send)
    })?;
    connected.b.wait.nothing(&connected.b.recv_cq)
}

/// The work request holds the address handle: its user may drop it right after the post.
fn ah_outlived(env: &Env) -> CaseResult {
    let UdPair { a, b, ah } = UdPair::new(env)?;
    drop(ah);
    for wr_id in 0..20 {
        let target = b.memory(64)?;
        b.post_recv(wr_id, &[target.mr.sge(..)?])?;
        let wc = persist(&b, || {
            let ah = a.pd.create_ah(&Link::route(&a.side, &b.side))?;
            a.post(SendWr::send(wr_id, &[]).to(UdDest { ah: &ah, qpn: b.qp.qp_num(), qkey: Build::QKEY }))?;
            drop(ah);
            ok(&a.sent()?, wr_id, WcOpcode::Send)
        })?;
        ok(&wc, wr_id, WcOpcode::Recv)?;
    }
    Ok(())
}

fn ah_attr(env: &Env) -> CaseResult {
    let pd = env.a.context.alloc_pd()?;
    let mut attr = Link::route(&env.a, &env.b);
    attr.sl = 3;
    if let Some(grh) = &mut attr.grh {
        *grh = GlobalRoute { flow_label: 0xabcde, hop_limit: 9, traffic_class: 0x40, ..*grh };
    }
    ensure_eq!(*pd.create_ah(&attr)?.attr(), attr, "the attributes of the address handle");
    Ok(())
}

fn ah_refuses(env: &Env) -> CaseResult {
    let pd = env.a.context.alloc_pd()?;
    let good = Link::route(&env.a, &env.b);
    let entries = env.a.context.query_port(env.a.port)?.gid_tbl_len;
    let no_entry = GlobalRoute { sgid_index: entries.saturating_add(7), ..GlobalRoute::new(env.b.gid.gid, 0) };
    let mut bad = vec![
        ("a port that does not exist", AhAttr { port_num: 0, ..good }),
        ("a port that does not exist", AhAttr { port_num: env.device()?.phys_port_cnt + 1, ..good }),
        ("a GID index that does not exist", AhAttr { grh: Some(no_entry), ..good }),
    ];
    if env.a.context.query_port(env.a.port)?.ethernet {
        bad.push(("no route on Ethernet", AhAttr { grh: None, ..good }));
    }
    for (what, attr) in bad {
        ensure!(pd.create_ah(&attr).is_err(), "an address handle with {what}");
    }
    pd.create_ah(&good)?;
    Ok(())
}
