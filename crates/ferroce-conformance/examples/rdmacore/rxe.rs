//! What the kernel's Soft-RoCE (`drivers/infiniband/sw/rxe`, Linux 6.1) cannot do.
//!
//! What is a fault, and no lack of a feature, is shown with libibverbs alone by `ferroce-abi`'s example `rxe_faults`, under the name in brackets.

use ferroce_conformance::SkipList;
use std::collections::BTreeSet;

const SQE: &str =
    "rxe has no SQE state: a send that fails takes the queue pair to ERR, with IBV_WC_LOC_QP_OP_ERR (rxe_req.c) [sqe]";
const LOCAL_SEND: &str = "rxe calls a bad key in a send or write IBV_WC_LOC_QP_OP_ERR where the specification has IBV_WC_LOC_PROT_ERR (rxe_req.c) [local-send]";
const LOCAL_RECEIVE: &str = "rxe calls a bad buffer of a receive IBV_WC_LOC_QP_OP_ERR where the specification has IBV_WC_LOC_PROT_ERR (rxe_resp.c) [local-receive]";
const TOO_SHORT: &str = "rxe answers a message that is longer than its receive with NAK remote operational error, where the specification has invalid \
                         request, and calls the receive IBV_WC_LOC_QP_OP_ERR (rxe_resp.c) [too-short]";
const INVALIDATE: &str =
    "rxe invalidates memory windows and regions of the kernel only: the key of a user's region stays (rxe_mr.c)";
const EVENTS: &str = "rxe raises no asynchronous events for queue pairs, except SQ_DRAINED (rxe_resp.c) [access-event, comm-est, last-wqe]";
const DRAINED: &str = "rxe raises SQ_DRAINED whether it was asked for or not (rxe_comp.c) [drained-unasked]";
const ROUNDED: &str = "rxe rounds queues up to a power of two and does not say so (rxe_queue.c) [rounded]";
const MULTICAST: &str =
    "rxe sends to a group onto the wire only, so members on the same device have nothing (rxe_net.c) [multicast]";

/// Cases that it does not pass, each with what it does instead.
const CASES: &[(&str, &str)] = &[
    ("state/uc/sqe-*", SQE),
    ("state/ud/sqe-*", SQE),
    ("state/uc/starts-anew-from-any", SQE),
    ("post/uc/in-sqe", SQE),
    ("post/ud/in-sqe", SQE),
    ("status/uc/local/*", SQE),
    ("status/ud/local/*", SQE),
    (
        "state/ud/starts-anew-from-any",
        "rxe lets a queue pair that drains go to ERR only, and one that has nothing to drain drains until a tasklet has run (rxe_qp.c) [sqd-reset]",
    ),
    ("status/rc/local/send/unknown-lkey", LOCAL_SEND),
    ("status/rc/local/write/unknown-lkey", LOCAL_SEND),
    ("status/rc/local/send/lkey-zero", LOCAL_SEND),
    ("status/rc/local/write/lkey-zero", LOCAL_SEND),
    ("status/rc/local/send/other-protection-domain", LOCAL_SEND),
    ("status/rc/local/write/other-protection-domain", LOCAL_SEND),
    ("status/rc/local/send/deregistered", LOCAL_SEND),
    ("status/rc/local/write/deregistered", LOCAL_SEND),
    ("status/rc/local/send/second-element", LOCAL_SEND),
    (
        "status/rc/local/read/second-element",
        "after a read whose second element is bad rxe forgets, also when the queue pair is set up anew, that no response is to come: the next \
         acknowledgement takes it to ERR, with a warning of the kernel's (check_ack in rxe_comp.c) [read-second-element]",
    ),
    ("status/rc/receive/*", LOCAL_RECEIVE),
    ("status/uc/receive/*", LOCAL_RECEIVE),
    ("status/ud/receive/*", LOCAL_RECEIVE),
    ("status/uc/remote/longer-than-the-receive", TOO_SHORT),
    ("status/rc/remote/send/longer-than-the-receive", TOO_SHORT),
    ("status/rc/remote/send/many-packets-longer", TOO_SHORT),
    ("status/rc/remote/send/into-no-elements", TOO_SHORT),
    ("srq/rc/too-short-receive", TOO_SHORT),
    ("ud/too-short-receive", TOO_SHORT),
    (
        "status/rc/remote/send/path-mtu-differs",
        "rxe does not compare the length of a packet with the path MTU of the queue pair (rxe_resp.c) [path-mtu]",
    ),
    (
        "status/rc/remote/write-imm/unknown-rkey",
        "rxe completes a receive with IBV_WC_REM_ACCESS_ERR at the end that refused the write (rxe_resp.c) [write-imm-rkey]",
    ),
    ("data/rc/send-inv/*", INVALIDATE),
    ("status/rc/remote/write/invalidated-by-send-inv", INVALIDATE),
    ("status/rc/remote/read/invalidated-by-send-inv", INVALIDATE),
    ("srq/rc/last-wqe-reached", EVENTS),
    ("event/access-error", EVENTS),
    ("event/request-error", EVENTS),
    ("event/communication-established", EVENTS),
    ("event/descriptor", EVENTS),
    ("event/holds-its-queue-pair", EVENTS),
    ("event/only-to-its-own-context", EVENTS),
    ("sqd/event-after-what-is-outstanding", DRAINED),
    ("sqd/no-event-unless-asked", DRAINED),
    ("sqd/event-though-attributes-change", "rxe refuses to modify a queue pair that drains (rxe_qp.c) [sqd-modify]"),
    (
        "sqd/posts-wait",
        "rxe does not look at what was posted in SQD when the queue pair goes back to RTS, until the next post (rxe_qp.c) [sqd-posts]",
    ),
    ("post/send-queue-full", ROUNDED),
    ("post/receive-queue-full", ROUNDED),
    (
        "ud/own-qkey-is-sent",
        "rxe sends the Q_Key of the work request also if its top bit is set (rxe_req.c) [own-qkey]",
    ),
    (
        "ud/longer-than-the-mtu",
        "rxe drops a datagram that is longer than the MTU and says that it is sent (rxe_req.c) [longer-than-mtu]",
    ),
    ("mcast/attach-and-detach", MULTICAST),
    ("mcast/every-member-has-a-copy", MULTICAST),
    ("mcast/needs-the-qkey", MULTICAST),
];

/// What the suite leaves out.
pub(crate) fn cannot() -> SkipList {
    CASES.iter().fold(SkipList::new(), |list, (pattern, reason)| list.skip(pattern, reason))
}

/// What is left out, too, where the other end is another device: on one device all is over before anything is taken away.
const ACROSS: &[(&str, &str)] = &[
    ("lifetime/receive-buffer-dropped", LOCAL_RECEIVE),
    ("lifetime/source-dropped-after-the-post", LOCAL_SEND),
    (
        "lifetime/source-of-reads-dropped",
        "rxe says nothing if the memory of a read goes away between two packets of its response, and the read times out (rxe_resp.c)",
    ),
];

pub(crate) fn cannot_across() -> SkipList {
    ACROSS.iter().fold(cannot(), |list, (pattern, reason)| list.skip(pattern, reason))
}

/// The names of the faults, in brackets at the ends of the reasons.
pub(crate) fn faults() -> BTreeSet<&'static str> {
    let names = CASES.iter().filter_map(|(_, reason)| reason.strip_suffix(']')?.rsplit_once('['));
    names.flat_map(|(_, names)| names.split(", ")).collect()
}
