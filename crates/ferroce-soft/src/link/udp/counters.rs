//! What happened on the wire.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($side:ident: $Side:ident { $($(#[$doc:meta])* $name:ident,)* })*) => {
        /// Counters of one [`UdpPort`](super::UdpPort), summed over all threads. They only grow.
        #[derive(Debug, Default)]
        pub struct UdpCounters {
            $($side: $Side,)*
        }

        $(
            /// One direction, so that senders and receivers do not share cache lines.
            #[derive(Debug, Default)]
            #[repr(align(128))]
            struct $Side {
                $($name: AtomicU64,)*
            }
        )*

        /// The values of [`UdpCounters`] at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct UdpStatistics {
            $($($(#[$doc])* pub $name: u64,)*)*
        }

        impl UdpStatistics {
            /// The counters under the names that a device gives them: those of the fields after `udp_`.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$($((concat!("udp_", stringify!($name)), self.$name),)*)*].into_iter()
            }
        }

        impl UdpCounters {
            /// The values now. Each is read by itself: two of them may be an event apart.
            #[must_use]
            pub fn read(&self) -> UdpStatistics {
                UdpStatistics { $($($name: self.$side.$name.load(Ordering::Relaxed),)*)* }
            }

            /// Adds what one thread gathered over a pass. Zeros cost nothing.
            pub(super) fn add(&self, gathered: &UdpStatistics) {
                $($(if gathered.$name != 0 {
                    self.$side.$name.fetch_add(gathered.$name, Ordering::Relaxed);
                })*)*
            }
        }
    };
}

counters! {
    rx: RxCounters {
        /// Packets received whose ICRC is right.
        rcvd_pkts,
        /// Bytes of those, without the ICRC.
        rcvd_bytes,
        /// System calls that received something.
        rcvd_calls,
        /// Datagrams as the socket delivers them: several packets each where GRO joined them.
        rcvd_datagrams,
        /// Packets dropped because their ICRC is wrong.
        rx_icrc_encapsulated,
        /// Packets whose ICRC is right only with an IPv4 identification that this link would not send:
        /// peers other than ferroce number their packets. Fewer bits of the ICRC protect these.
        rcvd_foreign_ip_id,
        /// Datagrams dropped because they are too short, truncated, or lack a destination address.
        rx_malformed,
        /// Calibration probes received.
        rcvd_probes,
    }
    tx: TxCounters {
        /// Packets handed to the kernel.
        sent_pkts,
        /// Bytes of those, without the ICRC.
        sent_bytes,
        /// System calls that sent something.
        sent_calls,
        /// Packets that waited because the socket's send buffer was full.
        tx_waited,
        /// Packets lost because the socket's send buffer was full, and so much waited for it already.
        tx_would_block,
        /// Packets lost because the device or its queue had no room.
        tx_no_buffers,
        /// Packets lost because they exceed the path MTU.
        tx_too_big,
        /// Packets lost because there is no way to the destination, or not from that source address.
        tx_unreachable,
        /// Packets lost for another reason.
        tx_other_errors,
        /// Packets lost because the [`FaultPlan`](crate::link::fault::FaultPlan) says so.
        injected_losses,
        /// Batches that a device could not segment and that went packet by packet.
        gso_fallbacks,
    }
}
