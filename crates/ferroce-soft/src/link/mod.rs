//! How packets travel between contexts: over UDP, as RoCEv2 has it, or through shared memory on one machine.

pub mod capture;
pub mod fault;
pub mod shm;
pub mod udp;
