//! ferroce-verbs
