//! A thin layer of calls. Whatever is made lives until the process ends, so no pointer here is ever to something that is gone; the process
//! has one thread. A call that must not fail ends the process if it does.

use ferroce_abi::types::*;
use ferroce_abi::{Library, inline, load};
use std::ffi::CStr;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// What is waited for comes in this time, on a machine that is emulated.
const SOON: Duration = Duration::from_secs(5);
/// What should not come would have come in this time.
const NEVER: Duration = Duration::from_secs(1);

/// 67 ms.
const TIMEOUT: u8 = 14;

pub(crate) const QKEY: u32 = 0x1111_1111;

/// An open device with a protection domain.
pub(crate) struct Rig {
    library: &'static Library,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    gid: ibv_gid,
    gid_index: u8,
}

/// A registered memory region.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    addr: u64,
    lkey: u32,
    rkey: u32,
}

impl Memory {
    /// Its first bytes.
    pub(crate) fn first(self, length: u32) -> ibv_sge {
        ibv_sge { addr: self.addr, length, lkey: self.lkey }
    }

    /// The same under a key that nobody has.
    pub(crate) fn bad(self, length: u32) -> ibv_sge {
        ibv_sge { lkey: !self.lkey, ..self.first(length) }
    }

    /// Where a peer finds it.
    pub(crate) fn remote(self) -> ibv_wr_wr {
        ibv_wr_wr { rdma: ibv_wr_rdma { remote_addr: self.addr, rkey: self.rkey } }
    }

    /// The same under a key that nobody has.
    pub(crate) fn bad_remote(self) -> ibv_wr_wr {
        ibv_wr_wr { rdma: ibv_wr_rdma { remote_addr: self.addr, rkey: !self.rkey } }
    }
}

/// A queue pair with a completion queue of its own.
#[derive(Clone, Copy)]
pub(crate) struct Qp {
    rig: &'static Rig,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    /// As many sends as the library says that it takes.
    pub(crate) max_send_wr: u32,
}

impl Rig {
    pub(crate) fn open(device: &str, address: IpAddr) -> &'static Self {
        let library = load().unwrap_or_else(|error| panic!("{error}"));
        let mut len = 0;
        // SAFETY: `len` is what it writes to.
        let list = unsafe { (library.get_device_list)(&mut len) };
        let devices = (0..usize::try_from(len).unwrap_or(0)).map(|index| {
            // SAFETY: the list has so many, and is never freed.
            unsafe { *list.add(index) }
        });
        let found = devices.into_iter().find(|&found| {
            // SAFETY: the device is in the list.
            let name = unsafe { CStr::from_ptr((*found).name.as_ptr()) };
            name.to_str() == Ok(device)
        });
        let found = found.unwrap_or_else(|| panic!("there is no device {device}"));
        // SAFETY: the device is in the list.
        let context = unsafe { (library.open_device)(found) };
        assert!(!context.is_null(), "{device} cannot be opened: {}", std::io::Error::last_os_error());
        // SAFETY: the context is open.
        let pd = unsafe { (library.alloc_pd)(context) };
        assert!(!pd.is_null(), "no protection domain");
        let gid = match address {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let mut entries = vec![ibv_gid_entry::default(); 1024];
        // SAFETY: the context is open, and there is room for as many entries of this size as it is told.
        let count = unsafe {
            (library.query_gid_table)(context, entries.as_mut_ptr(), entries.len(), 0, size_of::<ibv_gid_entry>())
        };
        let entries = &entries[..usize::try_from(count).expect("a GID table")];
        let is_it = |entry: &&ibv_gid_entry| entry.gid.raw == gid && entry.gid_type == value::IBV_GID_TYPE_ROCE_V2;
        let index = entries.iter().find(is_it).unwrap_or_else(|| panic!("{device} has no address {address}")).gid_index;
        let gid_index = u8::try_from(index).expect("a small index");
        Box::leak(Box::new(Self { library, context, pd, gid: ibv_gid { raw: gid }, gid_index }))
    }

    pub(crate) fn memory(&self, length: usize) -> Memory {
        let bytes = Vec::leak(vec![0_u8; length]);
        let access = value::IBV_ACCESS_LOCAL_WRITE | value::IBV_ACCESS_REMOTE_WRITE | value::IBV_ACCESS_REMOTE_READ;
        // SAFETY: the memory is nobody else's from now on, and lives as long as the process.
        let mr = unsafe { (self.library.reg_mr)(self.pd, bytes.as_mut_ptr().cast(), length, access as i32) };
        assert!(!mr.is_null(), "no memory region");
        // SAFETY: it was just made.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Memory { addr: bytes.as_ptr() as u64, lkey, rkey }
    }

    pub(crate) fn srq(&self) -> *mut ibv_srq {
        let attr = ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain lives, and `init` is read and written by the call only.
        let srq = unsafe { (self.library.create_srq)(self.pd, &mut init) };
        assert!(!srq.is_null(), "no shared receive queue");
        srq
    }

    pub(crate) fn qp(&'static self, qp_type: u32) -> Qp {
        self.qp_with(qp_type, 16, null_mut())
    }

    pub(crate) fn qp_with(&'static self, qp_type: u32, max_send_wr: u32, srq: *mut ibv_srq) -> Qp {
        // SAFETY: the context is open.
        let cq = unsafe { (self.library.create_cq)(self.context, 64, null_mut(), null_mut(), 0) };
        assert!(!cq.is_null(), "no completion queue");
        let max_recv_wr = if srq.is_null() { 16 } else { 0 };
        let cap = ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 0 };
        let mut init =
            ibv_qp_init_attr { qp_context: null_mut(), send_cq: cq, recv_cq: cq, srq, cap, qp_type, sq_sig_all: 1 };
        // SAFETY: all that it is made from lives, and `init` is read and written by the call only.
        let qp = unsafe { (self.library.create_qp)(self.pd, &mut init) };
        assert!(!qp.is_null(), "no queue pair");
        Qp { rig: self, qp, cq, max_send_wr: init.cap.max_send_wr }
    }

    /// A connected queue pair, and the same and its completion queue as what is used by calls.
    #[allow(dead_code, reason = "another program's")]
    pub(crate) fn qp_ex(&'static self) -> (Qp, *mut ibv_qp_ex, *mut ibv_cq_ex) {
        use value::*;
        let mut attr = ibv_cq_init_attr_ex {
            cqe: 64,
            cq_context: null_mut(),
            channel: null_mut(),
            comp_vector: 0,
            wc_flags: (IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM).into(),
            comp_mask: 0,
            flags: 0,
            parent_domain: null_mut(),
        };
        // SAFETY: the context is open.
        let cq_ex = unsafe { inline::create_cq_ex(self.context, &mut attr) }.expect("a completion queue").as_ptr();
        // It begins as one.
        let cq: *mut ibv_cq = cq_ex.cast();
        let cap = ibv_qp_cap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 0 };
        let mut init = ibv_qp_init_attr_ex {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: self.pd,
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: null_mut(),
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: 0,
                rx_hash_key_len: 0,
                rx_hash_key: null_mut(),
                rx_hash_fields_mask: 0,
            },
            source_qpn: 0,
            send_ops_flags: (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM).into(),
        };
        // SAFETY: all that it is made from lives.
        let qp = unsafe { inline::create_qp_ex(self.library, self.context, &mut init) }.expect("a queue pair").as_ptr();
        // SAFETY: it lives.
        let qp_ex = unsafe { (self.library.qp_to_qp_ex)(qp) };
        assert!(!qp_ex.is_null(), "its requests cannot be built by calls");
        (Qp { rig: self, qp, cq, max_send_wr: init.cap.max_send_wr }, qp_ex, cq_ex)
    }

    /// The address of this device, or of a group.
    fn route(&self, gid: ibv_gid) -> ibv_ah_attr {
        let grh = ibv_global_route { dgid: gid, sgid_index: self.gid_index, hop_limit: 64, ..Default::default() };
        ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() }
    }

    /// Where a datagram goes: a queue pair of this device, or a group.
    pub(crate) fn to(&self, group: Option<ibv_gid>, qp_num: u32, qkey: u32) -> ibv_wr_wr {
        let mut attr = self.route(group.unwrap_or(self.gid));
        // SAFETY: the domain lives, and `attr` is only read.
        let ah = unsafe { (self.library.create_ah)(self.pd, &mut attr) };
        assert!(!ah.is_null(), "no address handle");
        ibv_wr_wr { ud: ibv_wr_ud { ah, remote_qpn: qp_num, remote_qkey: qkey } }
    }

    /// The next asynchronous event that comes soon, by its name.
    pub(crate) fn event(&self) -> String {
        // SAFETY: the context is open.
        let fd = unsafe { (*self.context).async_fd };
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        // SAFETY: there is one.
        if unsafe { libc::poll(fds.as_mut_ptr(), 1, NEVER.as_millis() as i32) } != 1 {
            return "no event".into();
        }
        let mut event = ibv_async_event { element: ibv_async_event_element { port_num: 0 }, event_type: 0 };
        // SAFETY: the context is open, and `event` is what it writes to.
        let number = unsafe { (self.library.get_async_event)(self.context, &mut event) };
        assert_eq!(number, 0, "an event that waits");
        let kind = event.event_type;
        // SAFETY: it was read just now.
        unsafe { (self.library.ack_async_event)(&mut event) };
        name_of("IBV_EVENT_", kind)
    }
}

impl Qp {
    pub(crate) fn number(self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { (*self.qp).qp_num }
    }

    /// Modifies it; says what came of it.
    pub(crate) fn modify(self, mut attr: ibv_qp_attr, mask: u32) -> &'static str {
        // SAFETY: the queue pair lives, and `attr` is only read.
        match unsafe { (self.rig.library.modify_qp)(self.qp, &mut attr, (mask | value::IBV_QP_STATE) as i32) } {
            0 => "accepted",
            libc::EINVAL => "EINVAL",
            _ => "refused",
        }
    }

    /// To a state that asks for nothing else.
    pub(crate) fn to_state(self, qp_state: u32) -> &'static str {
        self.modify(ibv_qp_attr { qp_state, ..Default::default() }, 0)
    }

    fn must(self, attr: ibv_qp_attr, mask: u32) {
        assert_eq!(self.modify(attr, mask), "accepted", "to state {}", attr.qp_state);
    }

    /// RESET to RTS, connected to queue pair `peer` of this device, or to RTR only.
    pub(crate) fn connect(self, qp_type: u32, peer: u32, path_mtu: u32, to: u32) {
        use value::*;
        let access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        let init = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qp_access_flags: access, ..Default::default() };
        self.must(init, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        let rc = |mask| if qp_type == IBV_QPT_RC { mask } else { 0 };
        let rtr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu,
            dest_qp_num: peer,
            ah_attr: self.rig.route(self.rig.gid),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ..Default::default()
        };
        let mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        self.must(rtr, mask | rc(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
        if to == IBV_QPS_RTS {
            self.rts(qp_type, TIMEOUT);
        }
    }

    /// RTR to RTS. A `timeout` of 0 is never.
    pub(crate) fn rts(self, qp_type: u32, timeout: u8) {
        use value::*;
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let rc = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        self.must(attr, IBV_QP_SQ_PSN | if qp_type == IBV_QPT_RC { rc } else { 0 });
    }

    /// RESET to RTS, for datagrams.
    pub(crate) fn datagrams(self) {
        use value::*;
        let init = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qkey: QKEY, ..Default::default() };
        self.must(init, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
        self.must(ibv_qp_attr { qp_state: IBV_QPS_RTR, ..Default::default() }, 0);
        self.rts(IBV_QPT_UD, TIMEOUT);
    }

    pub(crate) fn join(self, group: ibv_gid) {
        // SAFETY: the queue pair lives, and `group` is only read.
        let number = unsafe { (self.rig.library.attach_mcast)(self.qp, &group, 0) };
        assert_eq!(number, 0, "joining a group");
    }

    /// The state that the device says.
    pub(crate) fn state(self) -> String {
        let mut attr = ibv_qp_attr::default();
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap: ibv_qp_cap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        // SAFETY: the queue pair lives; the other two are what it writes to.
        let number = unsafe { (self.rig.library.query_qp)(self.qp, &mut attr, value::IBV_QP_STATE as i32, &mut init) };
        assert_eq!(number, 0, "a query");
        name_of("IBV_QPS_", attr.qp_state)
    }

    /// Posts a send; says whether it was taken.
    pub(crate) fn post(self, opcode: u32, sges: &[ibv_sge], to: ibv_wr_wr) -> bool {
        let mut sges = sges.to_vec();
        let mut wr = ibv_send_wr {
            wr_id: 0,
            next: null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
            opcode,
            send_flags: value::IBV_SEND_SIGNALED,
            imm_data: 0,
            wr: to,
            xrc_remote_srqn: 0,
            extra: ibv_wr_extra { tso: ibv_wr_tso { hdr: null_mut(), hdr_sz: 0, mss: 0 } },
        };
        let mut bad = null_mut();
        // SAFETY: the queue pair lives, and the list and what it points to is valid for the time of the call.
        unsafe { inline::post_send(self.qp, &mut wr, &mut bad) == 0 }
    }

    /// A message to whom it is connected to.
    pub(crate) fn send(self, sges: &[ibv_sge]) -> bool {
        self.post(value::IBV_WR_SEND, sges, ibv_wr_wr { rdma: ibv_wr_rdma { remote_addr: 0, rkey: 0 } })
    }

    pub(crate) fn receive(self, sge: ibv_sge) {
        let mut sge = sge;
        let mut wr = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: as in `post`.
        let number = unsafe { inline::post_recv(self.qp, &mut wr, &mut bad) };
        assert_eq!(number, 0, "posting a receive");
    }

    /// The status of the next completion, by its name.
    pub(crate) fn completion(self) -> String {
        self.completion_in(SOON)
    }

    /// The same where none may come.
    pub(crate) fn any_completion(self) -> String {
        self.completion_in(NEVER)
    }

    fn completion_in(self, time: Duration) -> String {
        let deadline = Instant::now() + time;
        let mut wc = ibv_wc::default();
        loop {
            // SAFETY: the queue lives, and `wc` has room for one.
            match unsafe { inline::poll_cq(self.cq, 1, &mut wc) } {
                0 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                0 => return "nothing".into(),
                1 => return name_of("IBV_WC_", wc.status),
                number => panic!("polling: {number}"),
            }
        }
    }
}

/// An address as the command line has it.
pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|error| {
        eprintln!("{text}: {error}");
        std::process::exit(2)
    })
}

/// The name of a value, without the prefix that values of its kind have.
fn name_of(prefix: &str, number: u32) -> String {
    // The first: statuses of completions come before their opcodes.
    let known = value::ALL.iter().find(|(name, value)| *value == number && name.starts_with(prefix));
    known.map_or_else(|| number.to_string(), |(name, _)| name.strip_prefix(prefix).unwrap_or(name).to_owned())
}
