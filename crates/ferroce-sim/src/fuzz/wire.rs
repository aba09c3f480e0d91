//! The parsers: they never panic, and what they understood survives being written and read again.

use super::input::Input;
use crate::failure::{Checked, Failure, ensure};
use ferroce_wire::cm::{CmMad, CmMessage, IpCmHeader};
use ferroce_wire::{
    Flow, FlowIcrc, GRH_LEN, Grh, Headers, IcrcCheck, IpPair, MAD_LEN, MAX_HEADERS_LEN, Packet, ROCE_UDP_PORT,
    check_icrc,
};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A packet with whatever headers and ICRC.
///
/// # Errors
///
/// What does not hold.
pub fn packet(data: &[u8]) -> Result<(), Failure> {
    if let Ok((headers, len)) = Headers::parse(data) {
        ensure!(headers.is_consistent(), "{headers:?} do not suit their opcode");
        ensure!(len == headers.len() && len <= data.len(), "{headers:?} are {len} bytes long");
    }
    if let Ok(packet) = Packet::parse(data) {
        let mut again = vec![0; MAX_HEADERS_LEN];
        let len = packet.headers.emit(&mut again);
        again.truncate(len);
        again.extend_from_slice(packet.payload);
        again.resize(data.len(), 0);
        ensure!(Packet::parse(&again) == Ok(packet), "{packet:?} is another one when written and read again");
    }
    let v4 = IpPair::V4 { src: Ipv4Addr::new(10, 0, 0, 1), dst: Ipv4Addr::new(10, 0, 0, 2) };
    let v6 = IpPair::V6 { src: Ipv6Addr::LOCALHOST, dst: Ipv6Addr::UNSPECIFIED };
    for ip in [v4, v6] {
        let flow = Flow { ip, src_port: 0xc000, dst_port: ROCE_UDP_PORT };
        let icrc = FlowIcrc::new(&flow);
        let exact = icrc.check_exact(0, data);
        ensure!(exact == (check_icrc(&flow, 0, data) == IcrcCheck::Ok), "the two checks of the ICRC disagree");
        let mut right = data.to_vec();
        right.extend_from_slice(&icrc.icrc(0, data).to_le_bytes());
        ensure!(icrc.check(0, &right) == IcrcCheck::Ok, "an ICRC is not what it was computed to be");
        right[data.len()] ^= 1;
        ensure!(!icrc.check_exact(0, &right), "a damaged ICRC is right");
    }
    Ok(())
}

/// The 40 bytes before a datagram.
///
/// # Errors
///
/// What does not hold.
pub fn grh(data: &[u8]) -> Result<(), Failure> {
    let Some(bytes) = data.first_chunk::<GRH_LEN>() else { return Ok(()) };
    let Ok(grh) = Grh::parse(bytes) else { return Ok(()) };
    let mut again = [0; GRH_LEN];
    grh.emit(&mut again);
    ensure!(Grh::parse(&again) == Ok(grh), "{grh:?} is another one when written and read again");
    Ok(())
}

/// A datagram to QP 1: as it is, and as a message of communication management whatever its header says.
///
/// # Errors
///
/// What does not hold.
pub fn cm(data: &[u8]) -> Result<(), Failure> {
    check_cm(data)?;
    let mut input = Input::new(data);
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, ferroce_wire::cm::CM_CLASS, 2, 3]);
    mad[17] = 0x10 + input.u8() % 11;
    let body = input.bytes(232);
    mad[24..24 + body.len()].copy_from_slice(body);
    ensure!(CmMad::parse(&mad).is_ok(), "attribute {:#x} is not a message", mad[17]);
    check_cm(&mad)
}

fn check_cm(data: &[u8]) -> Checked {
    let Ok(mad) = CmMad::parse(data) else { return Ok(()) };
    let mut again = [0; MAD_LEN];
    mad.emit(&mut again);
    ensure!(CmMad::parse(&again) == Ok(mad), "{mad:?} is another one when written and read again");
    let private = match &mad.message {
        CmMessage::Req(req) => req.private_data.as_slice(),
        CmMessage::SidrReq(req) => req.private_data.as_slice(),
        _ => return Ok(()),
    };
    if let Ok((header, user)) = IpCmHeader::parse(private) {
        let again = [&header.emit(), user].concat();
        ensure!(IpCmHeader::parse(&again) == Ok((header, user)), "{header:?} is another one when written again");
    }
    Ok(())
}
