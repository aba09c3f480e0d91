//! ferroce-soft
pub mod addr;
pub mod link;
