//! The MAD attributes that say which message of communication management a MAD is (IBTA 16.7.2).

macro_rules! attributes {
    ($($name:ident = $value:literal;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`")]
            pub const $name: u16 = $value;
        )*
    };
}

attributes! {
    REQ = 0x10;
    MRA = 0x11;
    REJ = 0x12;
    REP = 0x13;
    RTU = 0x14;
    DREQ = 0x15;
    DREP = 0x16;
    SIDR_REQ = 0x17;
    SIDR_REP = 0x18;
    LAP = 0x19;
    APR = 0x1a;
}
