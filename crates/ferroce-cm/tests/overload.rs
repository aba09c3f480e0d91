//! More requests at once than a listener takes.

mod cases;
mod support;

use cases::overload;
use ferroce_soft::LinkMode;
use support::bed::Bed;

#[test]
fn a_burst_is_accepted() {
    overload::a_burst_is_accepted(&Bed::soft(LinkMode::Auto));
}
