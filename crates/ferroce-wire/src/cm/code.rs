//! Numbers that have names.

/// Defines an enum of the named values of an integer, with a variant for all others, so that what a
/// peer sends survives whatever it is.
macro_rules! code {
    (
        $(#[$doc:meta])*
        $name:ident: $int:ty { $($(#[$variant_doc:meta])* $variant:ident = $value:literal, $text:literal;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
            /// Any other number, as it was.
            Other($int),
        }

        impl $name {
            /// From the number in the message.
            #[must_use]
            pub const fn from_number(number: $int) -> Self {
                match number {
                    $($value => Self::$variant,)*
                    other => Self::Other(other),
                }
            }

            /// The number in the message.
            #[must_use]
            pub const fn to_number(self) -> $int {
                match self {
                    $(Self::$variant => $value,)*
                    Self::Other(other) => other,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($text),)*
                    Self::Other(other) => write!(f, "reserved code {other}"),
                }
            }
        }
    };
}

pub(super) use code;
