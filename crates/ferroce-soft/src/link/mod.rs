//! Links: how packets travel between devices.

pub mod shm;
