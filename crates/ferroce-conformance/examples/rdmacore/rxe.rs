//! What the kernel's Soft-RoCE cannot do.

use ferroce_conformance::SkipList;

/// Cases that it does not pass, each with what it does instead.
pub(crate) fn cannot() -> SkipList {
    SkipList::new()
}
