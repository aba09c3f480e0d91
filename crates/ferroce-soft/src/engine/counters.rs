use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Event counters, named as the kernel's rxe and NICs name theirs where they have one.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            /// All of them with their names.
            pub(crate) fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Packets that no queue pair was found for.
    unknown_qp,
    /// Packets that do not parse, or that the queue pair does not take.
    malformed_packets,
    /// Packets from an address that is not the connected peer's.
    wrong_source,
    /// Packets of another partition than the port's, the default one.
    pkey_violation,
    /// Datagrams with a Q_Key that does not match.
    qkey_violation,
    /// Requests with a PSN after the expected one.
    out_of_sequence,
    /// Requests with a PSN before the expected one.
    duplicate_request,
    /// Datagrams or unreliable messages dropped for want of a receive.
    no_recv_dropped,
    /// Receiver-not-ready answers sent.
    send_rnr_err,
    /// Negative acknowledgements sent.
    send_nak,
    /// Acknowledgements sent.
    send_ack,
    /// Receiver-not-ready answers received.
    rcvd_rnr_err,
    /// Sequence errors that a peer reported.
    packet_seq_err,
    /// Responses that imply that an earlier one was lost.
    implied_nak_seq_err,
    /// Local ACK timeouts.
    local_ack_timeout_err,
    /// Packets sent again after a silence, long before a timeout, to hear what became of what was sent.
    tail_loss_probes,
    /// Requests given up after the last retry.
    retry_exceeded_err,
    /// Requests given up after the last receiver-not-ready retry.
    rnr_nak_retry_err,
    /// Signs of life that peers of idle connections were asked for.
    keepalive_probes,
    /// Idle connections whose peer gave none.
    keepalive_failures,
    /// Packets sent again.
    retransmitted_packets,
    /// Copies of payload from the sender's memory: one for each run of packets and part of memory that it goes to.
    cma_copies,
    /// Runs whose payload could not be copied any more, or not at all.
    cma_lost,
    /// Responses that match nothing outstanding.
    stale_response,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
