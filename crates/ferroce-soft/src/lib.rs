//! ferroce-soft
pub mod link;
