//! ferroce-soft

pub mod host;
pub mod link;
