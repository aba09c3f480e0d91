//! Sends on UD: operation × signaled × inline × shape, up to one packet.

use super::shape;
use crate::failure::{Explain, ensure_eq};
use crate::fixture::{Build, UdPair, ok, pattern, persist};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{Data, QpType, SendFlags, SendOp, SendWr, WcFlags, WcOpcode};

pub(super) fn add(all: &mut Vec<Case>) {
    for imm in [None, Some(0x8000_0001)] {
        for inline in [false, true] {
            for signaled in [true, false] {
                let op = if imm.is_some() { "send-imm" } else { "send" };
                let data = if inline { "inline" } else { "sge" };
                let flag = if signaled { "signaled" } else { "unsignaled" };
                let name = format!("data/ud/{op}/{data}/{flag}");
                all.push(Case::new(name, move |env| run(env, imm, inline, signaled)));
            }
        }
    }
}

fn run(env: &Env, imm: Option<u32>, inline: bool, signaled: bool) -> CaseResult {
    let device = env.both()?;
    let max_sge = device.max_sge.min(8) as usize;
    let mtu = env.max_mtu().bytes() as usize;
    let max_inline = (device.max_inline_data as usize).min(1024).min(mtu);
    if inline && max_inline == 0 {
        return Err(Failure::not_applicable("the device has no inline data"));
    }
    let build = Build::new(QpType::Ud).cap(|cap| {
        cap.max_send_sge = max_sge as u32;
        cap.max_recv_sge = max_sge as u32;
        cap.max_inline_data = if inline { max_inline as u32 } else { 0 };
    });
    let pair = UdPair::of(env, &build, &build)?;
    let shapes: Vec<Vec<usize>> = if inline {
        shape::inline(max_inline).into_iter().map(|len| vec![len]).collect()
    } else {
        shape::local(mtu, max_sge, mtu)
    };
    for (index, lengths) in shapes.iter().enumerate() {
        let data = pattern(index as u64 + 1, lengths.iter().sum());
        transfer(&pair, imm, inline, signaled, lengths, &data).explain(|| format!("elements of {lengths:?} bytes"))?;
    }
    Ok(())
}

fn transfer(
    pair: &UdPair,
    imm: Option<u32>,
    inline: bool,
    signaled: bool,
    lengths: &[usize],
    data: &[u8],
) -> CaseResult {
    const MESSAGE: u64 = 0xdada;
    const CHASER: u64 = 0xc4a5;
    let UdPair { a, b, .. } = pair;
    let local = a.memory(shape::room(data.len()))?;
    local.scatter(1, lengths, data)?;
    let sges = local.sges(1, lengths)?;

    // The GRH first, broken over two elements.
    let header = b.memory(UdPair::GRH + 13)?;
    let body = b.memory(shape::room(data.len()))?;
    let landing = shape::receive(data.len(), b.qp.cap().max_recv_sge as usize - 2);
    let split = b.qp.cap().max_recv_sge >= 3;
    let mut target = if split { header.sges(0, &[7, UdPair::GRH - 7])? } else { header.sges(0, &[UdPair::GRH])? };
    let landing = if split { landing } else { vec![data.len() + 3] };
    target.extend(body.sges(1, &landing)?);
    b.post_recv(MESSAGE, &target)?;

    let op = imm.map_or(SendOp::Send, SendOp::SendImm);
    let payload = if inline { Data::Inline(data) } else { Data::Sges(&sges) };
    let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
    let wr = SendWr { wr_id: MESSAGE, op, data: payload, flags, ud: Some(pair.dest()) };
    let wc = persist(b, || {
        a.post(wr)?;
        if signaled {
            ok(&a.sent()?, MESSAGE, WcOpcode::Send)?;
        } else {
            // Nobody has this queue pair number, so it arrives nowhere, which is none of the sender's business.
            let nowhere = ferroce_verbs::UdDest { qpn: b.qp.qp_num() ^ 1, qkey: 0, ..pair.dest() };
            a.post(SendWr::send(CHASER, &[]).to(nowhere))?;
            ok(&a.sent()?, CHASER, WcOpcode::Send)?;
        }
        a.wait.nothing(&a.send_cq)
    })?;

    ok(&wc, MESSAGE, WcOpcode::Recv)?;
    ensure_eq!(wc.byte_len as usize, UdPair::GRH + data.len(), "byte_len, the GRH included");
    ensure_eq!(wc.src_qp, a.qp.qp_num(), "src_qp");
    ensure_eq!(wc.qp_num, b.qp.qp_num(), "qp_num");
    ensure_eq!(wc.imm_data(), imm, "immediate data");
    ensure_eq!(wc.flags.contains(WcFlags::GRH), true, "flag GRH");
    body.expect(1, &landing, data)?;
    local.expect(1, lengths, data)
}
