//! Which orders of events are tried.

pub(super) use ferroce_testing::model::{exhaust, sample};
