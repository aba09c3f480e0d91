use std::net::IpAddr;
use std::time::Duration;

/// How an interface is made.
#[derive(Clone, Debug)]
pub struct RcOptions {
    /// The local address to use; `None`: the first of the port that is not a loopback address, else the first.
    pub address: Option<IpAddr>,
    /// The device's port, from 1.
    pub port: u8,
    /// Operations that an endpoint can have outstanding. From 4 to 8192.
    pub send_depth: u32,
    /// Messages that can wait to be looked at, of all endpoints together. More wait at their senders, which try again. At least 16.
    pub receive_depth: u32,
    /// Messages that a peer may send before it is granted more: at most [`Self::receive_depth`]. UCX's `RC_FC_WND_SIZE`.
    pub window: u32,
    /// Most bytes of an active message, or of any other *bcopy* operation. From 64 to 1 MiB. UCX's `IB_SEG_SIZE`.
    pub max_bcopy: u32,
    /// Messages on their way out, and fetched data on its way in, that can be in the transport's own memory, of all endpoints together.
    pub buffers: u32,
    /// Most bytes that go inline, up to 64 KiB. What the device takes bounds it. With less, short operations are shorter.
    pub max_inline: u32,
    /// Endpoints that there can be at a time, those included whose operations are still being canceled. The completion queue is as
    /// long as they could fill it: it cannot overrun (reports UCX 7080, 5754).
    pub max_endpoints: u32,
    /// The local ACK timeout exponent (4.096 µs · 2^n) and how often a request is sent again: what it takes to notice that a peer is gone. For
    /// endpoints that are connected by address; the connection manager has its own.
    pub ack_timeout: u8,
    /// See [`Self::ack_timeout`]. At most 7.
    pub retry_count: u8,
    /// How long a peer may complete nothing of what is outstanding, though its device answers: a program that takes no messages. Then its endpoint
    /// fails, after twice this at the latest, with [`Cause::NotReceiving`](crate::uct::Cause::NotReceiving), and what it holds of the transport's buffers is free for others. Operations on
    /// much memory get a second more for each 8 MiB. `None`: for ever.
    pub peer_timeout: Option<Duration>,
    /// An endpoint from which nothing was heard for this long asks for a sign of life; `None`: only when told to.
    pub keepalive: Option<Duration>,
}

impl Default for RcOptions {
    /// Port 1; 128 operations for each endpoint, 1024 receives, a window of 512; 8 KiB, 512 buffers, 256 bytes inline; 1024 endpoints; 67 ms and
    /// 7 retries; half a minute for a peer that takes nothing; no keepalive.
    fn default() -> Self {
        Self {
            address: None,
            port: 1,
            send_depth: 128,
            receive_depth: 1024,
            window: 512,
            max_bcopy: 8192,
            buffers: 512,
            max_inline: 256,
            max_endpoints: 1024,
            ack_timeout: 14,
            retry_count: 7,
            peer_timeout: Some(Duration::from_secs(30)),
            keepalive: None,
        }
    }
}
