//! ferroce-wire
