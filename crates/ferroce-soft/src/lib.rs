//! ferroce-soft
