//! Faults of connected queue pairs.

use crate::Fault;
use crate::rig::{Qp, Rig};
use ferroce_abi::types::ibv_qp_attr;
use ferroce_abi::types::value::*;

/// Faults of which the kernel complains itself.
pub(crate) const COMPLAINED_OF: &[Fault] = &[Fault {
    name: "read-second-element",
    done: "a message over queue pairs that are set up anew, after a read whose second element had a key that nobody has",
    rule: "SUCCESS, and the sender in RTS",
    // The completer takes its acknowledgement for what follows the read's response, and complains that it does not.
    wrong: "SUCCESS, and the sender in ERR",
    see: |rig| {
        let (a, b) = pair(rig, IBV_QPT_RC);
        let (here, there) = (rig.memory(6000), rig.memory(6000));
        a.post(IBV_WR_RDMA_READ, &[here.first(3000), here.bad(3000)], there.remote());
        a.completion();
        for qp in [a, b] {
            qp.to_state(IBV_QPS_RESET);
        }
        a.connect(IBV_QPT_RC, b.number(), IBV_MTU_1024, IBV_QPS_RTS);
        b.connect(IBV_QPT_RC, a.number(), IBV_MTU_1024, IBV_QPS_RTS);
        b.receive(there.first(8));
        a.send(&[here.first(8)]);
        format!("{}, and the sender in {}", a.completion(), a.state())
    },
}];

pub(crate) const FAULTS: &[Fault] = &[
    Fault {
        name: "local-send",
        done: "a send under a key that nobody has",
        rule: "LOC_PROT_ERR",
        wrong: "LOC_QP_OP_ERR",
        see: |rig| {
            let (a, _) = pair(rig, IBV_QPT_RC);
            a.send(&[rig.memory(8).bad(8)]);
            a.completion()
        },
    },
    Fault {
        name: "local-receive",
        done: "a receive under a key that nobody has",
        rule: "LOC_PROT_ERR",
        wrong: "LOC_QP_OP_ERR",
        see: |rig| {
            let (a, b) = pair(rig, IBV_QPT_RC);
            b.receive(rig.memory(8).bad(8));
            a.send(&[rig.memory(8).first(8)]);
            b.completion()
        },
    },
    Fault {
        name: "too-short",
        done: "a message that is longer than its receive",
        rule: "REM_INV_REQ_ERR for the sender and LOC_LEN_ERR for the receiver",
        wrong: "REM_OP_ERR for the sender and LOC_QP_OP_ERR for the receiver",
        see: |rig| {
            let (a, b) = pair(rig, IBV_QPT_RC);
            b.receive(rig.memory(8).first(4));
            a.send(&[rig.memory(8).first(8)]);
            format!("{} for the sender and {} for the receiver", a.completion(), b.completion())
        },
    },
    Fault {
        name: "path-mtu",
        done: "a packet that is longer than the responder's path MTU",
        rule: "REM_INV_REQ_ERR",
        wrong: "SUCCESS",
        see: |rig| {
            let (a, b) = (rig.qp(IBV_QPT_RC), rig.qp(IBV_QPT_RC));
            a.connect(IBV_QPT_RC, b.number(), IBV_MTU_1024, IBV_QPS_RTS);
            b.connect(IBV_QPT_RC, a.number(), IBV_MTU_256, IBV_QPS_RTS);
            b.receive(rig.memory(1024).first(1024));
            a.send(&[rig.memory(1024).first(1024)]);
            a.completion()
        },
    },
    Fault {
        name: "write-imm-rkey",
        done: "a receive at the end that refuses the key of a write with immediate data",
        rule: "WR_FLUSH_ERR",
        wrong: "REM_ACCESS_ERR",
        see: |rig| {
            let (a, b) = pair(rig, IBV_QPT_RC);
            b.receive(rig.memory(8).first(8));
            a.post(IBV_WR_RDMA_WRITE_WITH_IMM, &[rig.memory(8).first(8)], rig.memory(8).bad_remote());
            b.completion()
        },
    },
    Fault {
        name: "access-event",
        done: "an event at the end that refuses a write",
        rule: "QP_ACCESS_ERR",
        wrong: "no event",
        see: |rig| {
            let (a, _) = pair(rig, IBV_QPT_RC);
            a.post(IBV_WR_RDMA_WRITE, &[rig.memory(8).first(8)], rig.memory(8).bad_remote());
            a.completion();
            rig.event()
        },
    },
    Fault {
        name: "comm-est",
        done: "an event when something arrives in RTR",
        rule: "COMM_EST",
        wrong: "no event",
        see: |rig| {
            let (a, b) = (rig.qp(IBV_QPT_RC), rig.qp(IBV_QPT_RC));
            a.connect(IBV_QPT_RC, b.number(), IBV_MTU_1024, IBV_QPS_RTS);
            b.connect(IBV_QPT_RC, a.number(), IBV_MTU_1024, IBV_QPS_RTR);
            b.receive(rig.memory(8).first(8));
            a.send(&[rig.memory(8).first(8)]);
            b.completion();
            rig.event()
        },
    },
    Fault {
        name: "last-wqe",
        done: "an event when a queue pair with an SRQ goes to ERR",
        rule: "QP_LAST_WQE_REACHED",
        wrong: "no event",
        see: |rig| {
            let (a, b) = (rig.qp(IBV_QPT_RC), rig.qp_with(IBV_QPT_RC, 16, rig.srq()));
            connect(IBV_QPT_RC, a, b);
            b.to_state(IBV_QPS_ERR);
            rig.event()
        },
    },
    Fault {
        name: "drained-unasked",
        done: "an event when a send queue is drained and nobody asked for one",
        rule: "no event",
        wrong: "SQ_DRAINED",
        see: |rig| {
            let (a, _) = pair(rig, IBV_QPT_RC);
            a.to_state(IBV_QPS_SQD);
            rig.event()
        },
    },
    Fault {
        name: "sqd-modify",
        done: "changing a retry count while the send queue drains",
        rule: "accepted",
        wrong: "EINVAL",
        see: |rig| {
            let a = drains(rig);
            let attr = ibv_qp_attr { qp_state: IBV_QPS_SQD, retry_cnt: 5, ..Default::default() };
            a.modify(attr, IBV_QP_RETRY_CNT).into()
        },
    },
    Fault {
        name: "sqd-reset",
        done: "a queue pair to RESET while its send queue drains",
        rule: "accepted",
        wrong: "EINVAL",
        see: |rig| {
            let a = drains(rig);
            a.to_state(IBV_QPS_RESET).into()
        },
    },
    Fault {
        name: "sqd-posts",
        done: "what was posted in SQD, after RTS",
        rule: "SUCCESS",
        wrong: "nothing",
        see: |rig| {
            let (a, _) = pair(rig, IBV_QPT_RC);
            a.to_state(IBV_QPS_SQD);
            rig.event();
            a.post(IBV_WR_RDMA_WRITE, &[rig.memory(8).first(8)], rig.memory(8).remote());
            a.any_completion();
            a.to_state(IBV_QPS_RTS);
            a.completion()
        },
    },
    Fault {
        name: "rounded",
        done: "how many sends a queue for five takes",
        rule: "as many as it says",
        wrong: "more than it says",
        see: |rig| {
            let (a, b) = (rig.qp_with(IBV_QPT_RC, 5, std::ptr::null_mut()), rig.qp(IBV_QPT_RC));
            connect(IBV_QPT_RC, a, b);
            // They wait for receives.
            let memory = rig.memory(8);
            let taken = (0..64).take_while(|_| a.send(&[memory.first(8)])).count();
            if taken == a.max_send_wr as usize { "as many as it says" } else { "more than it says" }.into()
        },
    },
    Fault {
        name: "sqe",
        done: "the state of a UC queue pair after a send under a key that nobody has",
        rule: "SQE",
        wrong: "ERR",
        see: |rig| {
            let (a, _) = pair(rig, IBV_QPT_UC);
            a.send(&[rig.memory(8).bad(8)]);
            a.completion();
            a.state()
        },
    },
];

/// Two queue pairs that are connected to each other.
fn pair(rig: &'static Rig, qp_type: u32) -> (Qp, Qp) {
    let (a, b) = (rig.qp(qp_type), rig.qp(qp_type));
    connect(qp_type, a, b);
    (a, b)
}

fn connect(qp_type: u32, a: Qp, b: Qp) {
    a.connect(qp_type, b.number(), IBV_MTU_1024, IBV_QPS_RTS);
    b.connect(qp_type, a.number(), IBV_MTU_1024, IBV_QPS_RTS);
}

/// A queue pair in SQD whose send is outstanding for good: its peer does not exist, and it waits for ever. A send that is repeated would not
/// do, as Soft-RoCE takes one that it is about to repeat for one that has not begun.
fn drains(rig: &'static Rig) -> Qp {
    const NOBODY: u32 = 0xff_fff0;
    let a = rig.qp(IBV_QPT_RC);
    a.connect(IBV_QPT_RC, NOBODY, IBV_MTU_1024, IBV_QPS_RTR);
    a.rts(IBV_QPT_RC, 0);
    a.send(&[rig.memory(8).first(8)]);
    a.any_completion();
    a.to_state(IBV_QPS_SQD);
    a
}
