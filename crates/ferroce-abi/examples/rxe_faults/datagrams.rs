//! Faults of datagrams.

use crate::Fault;
use crate::rig::{QKEY, Qp, Rig};
use ferroce_abi::types::ibv_gid;
use ferroce_abi::types::value::*;

pub(crate) const FAULTS: &[Fault] = &[
    Fault {
        name: "own-qkey",
        done: "what a receiver gets under a Q_Key of which the top bit says that it is the sender's own",
        rule: "SUCCESS",
        wrong: "nothing",
        see: |rig| {
            let (a, b) = pair(rig);
            b.receive(rig.memory(256).first(256));
            a.post(IBV_WR_SEND, &[rig.memory(8).first(8)], rig.to(None, b.number(), 0x8000_0000 | !QKEY));
            a.completion();
            b.any_completion()
        },
    },
    Fault {
        name: "longer-than-mtu",
        done: "a datagram that is longer than any MTU",
        rule: "LOC_LEN_ERR for the sender and nothing for the receiver",
        wrong: "SUCCESS for the sender and nothing for the receiver",
        see: |rig| {
            let (a, b) = pair(rig);
            b.receive(rig.memory(8192).first(8192));
            a.post(IBV_WR_SEND, &[rig.memory(8192).first(4097)], rig.to(None, b.number(), QKEY));
            format!("{} for the sender and {} for the receiver", a.completion(), b.any_completion())
        },
    },
    Fault {
        name: "multicast",
        done: "what a member on the same device gets of a group's datagram",
        rule: "SUCCESS",
        wrong: "nothing",
        see: |rig| {
            let (a, b) = pair(rig);
            // 239.77.0.1
            let group = ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 77, 0, 1] };
            b.join(group);
            b.receive(rig.memory(256).first(256));
            a.post(IBV_WR_SEND, &[rig.memory(8).first(8)], rig.to(Some(group), 0xff_ffff, QKEY));
            a.completion();
            b.any_completion()
        },
    },
];

fn pair(rig: &'static Rig) -> (Qp, Qp) {
    let (a, b) = (rig.qp(IBV_QPT_UD), rig.qp(IBV_QPT_UD));
    a.datagrams();
    b.datagrams();
    (a, b)
}
