//! BTH opcodes (IBTA 9.2): which transport, which operation, which packet of a message, and which
//! extension headers follow.

/// The transport service of an opcode: its upper three bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// What a packet is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Operation {
    /// A send, with or without immediate data or an rkey to invalidate.
    Send,
    /// An RDMA write, with or without immediate data.
    Write,
    /// A request for an RDMA read.
    ReadRequest,
    /// Data of an RDMA read.
    ReadResponse,
    /// A positive or negative acknowledgement.
    Ack,
    /// The answer to an atomic operation.
    AtomicAck,
    /// An atomic compare and swap.
    CompareSwap,
    /// An atomic fetch and add.
    FetchAdd,
}

/// Which packet of its message (or of its read response) a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither the first nor the last of several.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Position {
    /// Whether the message begins with this packet.
    #[inline]
    #[must_use]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the message ends with this packet.
    #[inline]
    #[must_use]
    pub const fn is_last(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Which extension headers follow the BTH: one value for each variant of [`Ext`](crate::Ext).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExtKind {
    None,
    Reth,
    RethImm,
    Imm,
    Inv,
    Aeth,
    AtomicAck,
    Atomic,
    Deth,
    DethImm,
}

impl ExtKind {
    /// Bytes of the extension headers.
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Imm | Self::Inv | Self::Aeth => 4,
            Self::Deth => 8,
            Self::AtomicAck | Self::DethImm => 12,
            Self::Reth => 16,
            Self::RethImm => 20,
            Self::Atomic => 28,
        }
    }
}

/// One row of the opcode table.
struct Row {
    transport: Transport,
    operation: Operation,
    position: Position,
    ext: ExtKind,
    headers_len: u8,
    name: &'static str,
}

macro_rules! opcodes {
    ($(
        $variant:ident = $value:literal,
        $transport:ident $operation:ident $position:ident $ext:ident,
        $name:literal;
    )*) => {
        /// A BTH opcode of the RC, UC or UD service.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = $name] $variant = $value,)*
        }

        impl Opcode {
            /// Every opcode, in numerical order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The opcode with this number; `None` if it is reserved or of another service.
            #[inline]
            #[must_use]
            pub const fn from_u8(value: u8) -> Option<Self> {
                match value {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }

            #[inline]
            const fn row(self) -> &'static Row {
                match self {
                    $(Self::$variant => &const { Row {
                        transport: Transport::$transport,
                        operation: Operation::$operation,
                        position: Position::$position,
                        ext: ExtKind::$ext,
                        headers_len: (crate::BTH_LEN + ExtKind::$ext.len()) as u8,
                        name: $name,
                    } },)*
                }
            }
        }
    };
}

opcodes! {
    RcSendFirst = 0x00, Rc Send First None, "RC Send First";
    RcSendMiddle = 0x01, Rc Send Middle None, "RC Send Middle";
    RcSendLast = 0x02, Rc Send Last None, "RC Send Last";
    RcSendLastImm = 0x03, Rc Send Last Imm, "RC Send Last Immediate";
    RcSendOnly = 0x04, Rc Send Only None, "RC Send Only";
    RcSendOnlyImm = 0x05, Rc Send Only Imm, "RC Send Only Immediate";
    RcWriteFirst = 0x06, Rc Write First Reth, "RC RDMA Write First";
    RcWriteMiddle = 0x07, Rc Write Middle None, "RC RDMA Write Middle";
    RcWriteLast = 0x08, Rc Write Last None, "RC RDMA Write Last";
    RcWriteLastImm = 0x09, Rc Write Last Imm, "RC RDMA Write Last Immediate";
    RcWriteOnly = 0x0a, Rc Write Only Reth, "RC RDMA Write Only";
    RcWriteOnlyImm = 0x0b, Rc Write Only RethImm, "RC RDMA Write Only Immediate";
    RcReadRequest = 0x0c, Rc ReadRequest Only Reth, "RC RDMA Read Request";
    RcReadResponseFirst = 0x0d, Rc ReadResponse First Aeth, "RC RDMA Read Response First";
    RcReadResponseMiddle = 0x0e, Rc ReadResponse Middle None, "RC RDMA Read Response Middle";
    RcReadResponseLast = 0x0f, Rc ReadResponse Last Aeth, "RC RDMA Read Response Last";
    RcReadResponseOnly = 0x10, Rc ReadResponse Only Aeth, "RC RDMA Read Response Only";
    RcAck = 0x11, Rc Ack Only Aeth, "RC Acknowledge";
    RcAtomicAck = 0x12, Rc AtomicAck Only AtomicAck, "RC Atomic Acknowledge";
    RcCompareSwap = 0x13, Rc CompareSwap Only Atomic, "RC Compare Swap";
    RcFetchAdd = 0x14, Rc FetchAdd Only Atomic, "RC Fetch Add";
    RcSendLastInv = 0x16, Rc Send Last Inv, "RC Send Last Invalidate";
    RcSendOnlyInv = 0x17, Rc Send Only Inv, "RC Send Only Invalidate";
    UcSendFirst = 0x20, Uc Send First None, "UC Send First";
    UcSendMiddle = 0x21, Uc Send Middle None, "UC Send Middle";
    UcSendLast = 0x22, Uc Send Last None, "UC Send Last";
    UcSendLastImm = 0x23, Uc Send Last Imm, "UC Send Last Immediate";
    UcSendOnly = 0x24, Uc Send Only None, "UC Send Only";
    UcSendOnlyImm = 0x25, Uc Send Only Imm, "UC Send Only Immediate";
    UcWriteFirst = 0x26, Uc Write First Reth, "UC RDMA Write First";
    UcWriteMiddle = 0x27, Uc Write Middle None, "UC RDMA Write Middle";
    UcWriteLast = 0x28, Uc Write Last None, "UC RDMA Write Last";
    UcWriteLastImm = 0x29, Uc Write Last Imm, "UC RDMA Write Last Immediate";
    UcWriteOnly = 0x2a, Uc Write Only Reth, "UC RDMA Write Only";
    UcWriteOnlyImm = 0x2b, Uc Write Only RethImm, "UC RDMA Write Only Immediate";
    UdSendOnly = 0x64, Ud Send Only Deth, "UD Send Only";
    UdSendOnlyImm = 0x65, Ud Send Only DethImm, "UD Send Only Immediate";
}

impl Opcode {
    /// The number in the BTH.
    #[inline]
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// The transport service.
    #[inline]
    #[must_use]
    pub const fn transport(self) -> Transport {
        self.row().transport
    }

    /// What the packet is part of.
    #[inline]
    #[must_use]
    pub const fn operation(self) -> Operation {
        self.row().operation
    }

    /// Which packet of its message it is. Requests, acknowledgements and datagrams are always
    /// [`Position::Only`].
    #[inline]
    #[must_use]
    pub const fn position(self) -> Position {
        self.row().position
    }

    /// Whether 32 bits of immediate data follow.
    #[inline]
    #[must_use]
    pub const fn has_imm(self) -> bool {
        matches!(self.ext_kind(), ExtKind::Imm | ExtKind::RethImm | ExtKind::DethImm)
    }

    /// Whether an rkey to invalidate follows (IETH).
    #[inline]
    #[must_use]
    pub const fn has_inv(self) -> bool {
        matches!(self.ext_kind(), ExtKind::Inv)
    }

    /// Whether an RDMA extended transport header follows.
    #[inline]
    #[must_use]
    pub const fn has_reth(self) -> bool {
        matches!(self.ext_kind(), ExtKind::Reth | ExtKind::RethImm)
    }

    /// Whether an ACK extended transport header follows.
    #[inline]
    #[must_use]
    pub const fn has_aeth(self) -> bool {
        matches!(self.ext_kind(), ExtKind::Aeth | ExtKind::AtomicAck)
    }

    /// Whether a datagram extended transport header follows.
    #[inline]
    #[must_use]
    pub const fn has_deth(self) -> bool {
        matches!(self.ext_kind(), ExtKind::Deth | ExtKind::DethImm)
    }

    /// Whether an atomic extended transport header follows.
    #[inline]
    #[must_use]
    pub const fn has_atomic_eth(self) -> bool {
        matches!(self.ext_kind(), ExtKind::Atomic)
    }

    /// Whether the original value of an atomic operation follows.
    #[inline]
    #[must_use]
    pub const fn has_atomic_ack_eth(self) -> bool {
        matches!(self.ext_kind(), ExtKind::AtomicAck)
    }

    /// Whether payload may follow the headers. Read requests, acknowledgements and atomic
    /// operations carry none.
    #[inline]
    #[must_use]
    pub const fn has_payload(self) -> bool {
        matches!(self.operation(), Operation::Send | Operation::Write | Operation::ReadResponse)
    }

    /// Bytes of the BTH and the extension headers.
    #[inline]
    #[must_use]
    pub const fn headers_len(self) -> usize {
        self.row().headers_len as usize
    }

    /// A short name in the manner of Wireshark's packet list, such as "RC Send First".
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    #[inline]
    pub(crate) const fn ext_kind(self) -> ExtKind {
        self.row().ext
    }
}
