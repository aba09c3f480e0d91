use crate::{Cq, Qp, Srq};

/// The kind of an asynchronous event (`ibv_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// A completion queue overflowed.
    CqErr,
    /// A queue pair failed in a way that no work completion reports.
    QpFatal,
    /// A peer sent a request that is invalid.
    QpReqErr,
    /// A peer tried to access memory that it may not.
    QpAccessErr,
    /// Data arrived on a queue pair that is not yet ready to send.
    CommEst,
    /// The send queue of a queue pair in SQD is drained.
    SqDrained,
    /// The last receive of a queue pair with an SRQ was consumed, after it went to the error state.
    QpLastWqeReached,
    /// The number of receives in an SRQ fell below its limit.
    SrqLimitReached,
    /// A shared receive queue failed.
    SrqErr,
    /// A port became active.
    PortActive,
    /// A port went down.
    PortErr,
    /// The GID table changed.
    GidChange,
    /// The device is gone.
    DeviceFatal,
}

/// An asynchronous event with the object that it concerns. It holds a reference to the object; dropping it is the
/// acknowledgement, and nothing ever waits for that.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// It concerns a queue pair.
    Qp(EventType, Qp),
    /// It concerns a completion queue.
    Cq(EventType, Cq),
    /// It concerns a shared receive queue.
    Srq(EventType, Srq),
    /// It concerns a port, from 1.
    Port(EventType, u8),
    /// It concerns the device.
    Device(EventType),
}

impl AsyncEvent {
    /// What happened.
    pub fn event_type(&self) -> EventType {
        match self {
            Self::Qp(kind, _) | Self::Cq(kind, _) | Self::Srq(kind, _) | Self::Port(kind, _) | Self::Device(kind) => {
                *kind
            }
        }
    }
}
