//! What the user of an endpoint holds.

use super::slab::Name;
use ferroce_verbs::Gid;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $(
            $(#[$doc])*
            ///
            /// A plain number with a generation. Once what it names is gone it is stale for ever: calls with it return
            /// [`CmError::Stale`](super::CmError::Stale) and touch nothing.
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
            pub struct $name(pub(super) Name);

            impl $name {
                /// As one number, to hand through an interface that has only those.
                #[must_use]
                pub const fn to_bits(self) -> u64 {
                    (self.0.generation as u64) << 32 | self.0.slot as u64
                }

                /// From [`to_bits`](Self::to_bits). Any number is allowed: one that names nothing is stale.
                #[must_use]
                pub const fn from_bits(bits: u64) -> Self {
                    Self(Name { slot: bits as u32, generation: (bits >> 32) as u32 })
                }
            }
        )*
    };
}

names! {
    /// Names a connection, from the call or event that began it to [`Endpoint::destroy`](super::Endpoint::destroy).
    ConnId
    /// Names a listener.
    ListenId
    /// Names a service id resolution, ours or a peer's.
    SidrId
}

/// The two ends of a path, as this side sees them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// Our GID.
    pub local: Gid,
    /// The peer's GID.
    pub remote: Gid,
    /// The interface that link-local addresses are of; otherwise 0.
    pub scope_id: u32,
}
