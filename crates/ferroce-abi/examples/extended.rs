//! Work requests that are built by calls, and completions that are read by calls, on a device: messages from one queue pair to another.
//!
//! `extended DEVICE ADDRESS` says what came, and fails if that is not what was sent.

#[path = "rxe_faults/rig.rs"]
#[allow(dead_code, reason = "another program's, of which this one uses a part")]
mod rig;

use ferroce_abi::inline;
use ferroce_abi::types::{ibv_cq_ex, ibv_poll_cq_attr, ibv_qp_ex, value};
use rig::{Memory, Rig};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(5);
const LENGTH: u32 = 24;
const IMM: u32 = 0x0102_0304;

/// What a completion says.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    wr_id: u64,
    status: u32,
    opcode: Option<u32>,
    byte_len: Option<u32>,
    qp_num: Option<u32>,
    imm_data: Option<u32>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [device, address] = &args[..] else {
        eprintln!("usage: extended DEVICE ADDRESS");
        return ExitCode::from(2);
    };
    run(Rig::open(device, rig::address(address)));
    ExitCode::SUCCESS
}

fn run(rig: &'static Rig) {
    let ((a, sends, from), (b, _, to)) = (rig.qp_ex(), rig.qp_ex());
    a.connect(value::IBV_QPT_RC, b.number(), value::IBV_MTU_1024, value::IBV_QPS_RTS);
    b.connect(value::IBV_QPT_RC, a.number(), value::IBV_MTU_1024, value::IBV_QPS_RTS);
    let memory = rig.memory(256);
    b.receive(memory.first(64));
    b.receive(memory.first(64));
    message(sends, memory);
    let received = [read(to), read(to)];
    println!("received {received:?}");
    let expected = |imm: Option<u32>| (value::IBV_WC_SUCCESS, Some(value::IBV_WC_RECV), Some(LENGTH), imm);
    for (came, imm) in received.iter().zip([None, Some(IMM.to_be())]) {
        let imm_data = came.imm_data.filter(|_| imm.is_some());
        assert_eq!((came.status, came.opcode, came.byte_len, imm_data), expected(imm));
        assert_eq!(came.qp_num, Some(b.number()));
    }
    let sent = read(from);
    println!("sent {sent:?}");
    assert_eq!(
        (sent.wr_id, sent.status, sent.opcode),
        (8, value::IBV_WC_SUCCESS, Some(value::IBV_WC_SEND)),
        "the signaled one"
    );
    assert!(none(from), "the other was to say nothing");
    given_up(sends, memory);
    assert!(none(from) && none(to), "what is given up was sent");
}

/// Two requests in one list: one unsignaled, one with immediate data.
fn message(qp: *mut ibv_qp_ex, memory: Memory) {
    let sge = memory.first(LENGTH);
    // SAFETY: the queue pair lives, and so does the memory; there is one thread.
    unsafe {
        assert_eq!(inline::wr_start(qp), 0);
        ((*qp).wr_id, (*qp).wr_flags) = (7, 0);
        assert_eq!(inline::wr_send(qp), 0);
        assert_eq!(inline::wr_set_sge(qp, sge.lkey, sge.addr, sge.length), 0);
        ((*qp).wr_id, (*qp).wr_flags) = (8, value::IBV_SEND_SIGNALED);
        assert_eq!(inline::wr_send_imm(qp, IMM.to_be()), 0);
        assert_eq!(inline::wr_set_sge(qp, sge.lkey, sge.addr, sge.length), 0);
        assert_eq!(inline::wr_complete(qp), 0);
    }
}

/// A list that is begun and not ended.
fn given_up(qp: *mut ibv_qp_ex, memory: Memory) {
    let sge = memory.first(LENGTH);
    // SAFETY: as in `message`.
    unsafe {
        assert_eq!(inline::wr_start(qp), 0);
        assert_eq!(inline::wr_send(qp), 0);
        assert_eq!(inline::wr_set_sge(qp, sge.lkey, sge.addr, sge.length), 0);
        assert_eq!(inline::wr_abort(qp), 0);
    }
}

fn try_read(cq: *mut ibv_cq_ex) -> Option<Read> {
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: the queue lives, and there is one thread.
    unsafe {
        match inline::start_poll(cq, &mut attr) {
            0 => {}
            libc::ENOENT => return None,
            number => panic!("reading completions: {number}"),
        }
        let read = Read {
            wr_id: (*cq).wr_id,
            status: (*cq).status,
            opcode: inline::wc_read_opcode(cq),
            byte_len: inline::wc_read_byte_len(cq),
            qp_num: inline::wc_read_qp_num(cq),
            imm_data: inline::wc_read_imm_data(cq),
        };
        inline::end_poll(cq);
        Some(read)
    }
}

fn read(cq: *mut ibv_cq_ex) -> Read {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(read) = try_read(cq) {
            return read;
        }
        assert!(Instant::now() < deadline, "a completion does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether none comes.
fn none(cq: *mut ibv_cq_ex) -> bool {
    std::thread::sleep(Duration::from_millis(300));
    try_read(cq).is_none()
}
