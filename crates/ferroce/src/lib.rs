//! The facade that a user depends on.
