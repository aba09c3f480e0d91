//! Builds, tests and measures the project.

fn main() {}
