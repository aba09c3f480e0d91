//! What an input can ask for.

use super::engine::{AREA_LEN, MAX_INLINE, MAX_SGE, QKEY, QPS, World};
use super::input::Input;
use crate::arena::Area;
use crate::failure::Checked;
use ferroce_soft::memory::MemoryFaults;
use ferroce_verbs::{Access, AhAttr, Data, Gid, Mtu, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, UdDest};
use std::net::IpAddr;
use std::time::Duration;

impl World {
    pub(super) fn command(&mut self, input: &mut Input<'_>) -> Checked {
        match input.u8() % 32 {
            0..=5 => self.post_send(input),
            6..=8 => self.post_recv(input),
            9..=13 => {
                let count = input.u8();
                self.steps(u32::from(count), None);
            }
            14..=15 => {
                let by = Duration::from_nanos(1 << (input.u8() % 28));
                self.steps(256, Some(self.network.now() + by));
            }
            16 => self.poll()?,
            17..=20 => self.inject_built(input),
            21..=22 => self.inject_again(input),
            23 => self.inject_bytes(input),
            24 => self.go_to(input),
            25 => self.modify(input),
            26 => {
                let (host, index) = self.qp(input);
                self.connect(host, index);
            }
            27 => self.replace_qp(input)?,
            28 => self.replace_area(input)?,
            29 => self.set_faults(input),
            30 => self.multicast(input),
            _ => {
                let host = &self.hosts[usize::from(input.u8() & 1)];
                host.cq.req_notify(input.u8() & 1 != 0)?;
                // More than it has room for is refused.
                let _ = host.srq.set_limit(u32::from(input.u8() % 12));
                while host.context.next_async_event()?.is_some() {}
            }
        }
        Ok(())
    }

    /// Up to `count` events of the network, none of them after `until`.
    fn steps(&mut self, count: u32, until: Option<Duration>) {
        for _ in 0..count.min(self.events) {
            let next = self.network.next_event();
            if next.is_none_or(|next| until.is_some_and(|until| next > until)) || !self.network.step() {
                break;
            }
            self.events -= 1;
        }
    }

    fn qp(&self, input: &mut Input<'_>) -> (usize, usize) {
        let choice = usize::from(input.u8());
        (choice & 1, (choice >> 1) % QPS.len())
    }

    /// An address of `host` and a key for it, which is sometimes wrong.
    pub(super) fn memory(&self, input: &mut Input<'_>, host: usize) -> (u64, u32) {
        let choice = input.u8();
        let area = &self.hosts[host].areas[if choice & 0xc == 0 { usize::from(choice & 3) } else { 0 }];
        let offset = u64::from(input.u16());
        let addr = match choice >> 4 {
            0 => input.u64(),
            1 => area.addr().wrapping_sub(offset % 128),
            2..=4 => area.addr() + offset % (AREA_LEN as u64 + 64),
            5..=7 => area.addr() + offset % (AREA_LEN as u64),
            _ => area.addr() + offset % 128 * 8,
        };
        let key = if choice >> 2 == 1 { area.key() ^ input.u32() } else { area.key() };
        (addr, key)
    }

    fn sges(&self, input: &mut Input<'_>, host: usize) -> Vec<Sge> {
        (0..u32::from(input.u8()) % (MAX_SGE + 2))
            .map(|_| {
                let (addr, lkey) = self.memory(input, host);
                let len = input.u16();
                let length = if len & 0xf000 == 0xf000 { input.u32() } else { u32::from(len) % 1500 };
                Sge { addr, length, lkey }
            })
            .collect()
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        let (host, index) = self.qp(input);
        let kind = input.u8();
        let (remote_addr, rkey) = self.memory(input, 1 - host);
        let op = match kind % 10 {
            0..=1 => SendOp::Send,
            2 => SendOp::SendImm(input.u32()),
            3 => SendOp::SendInv(rkey),
            4..=5 => SendOp::Write { remote_addr, rkey },
            6 => SendOp::WriteImm { remote_addr, rkey, imm: input.u32() },
            7 => SendOp::Read { remote_addr, rkey },
            8 => SendOp::CompareSwap { remote_addr, rkey, compare: u64::from(input.u8()), swap: input.u64() },
            _ => SendOp::FetchAdd { remote_addr, rkey, add: input.u64() },
        };
        let mut sges = self.sges(input, host);
        if kind % 10 >= 8 && sges.len() == 1 {
            sges[0].length = 8;
        }
        let flags = SendFlags::from_bits_truncate(input.u8());
        let inline = input.u8();
        let bytes = vec![inline; usize::from(inline) % (MAX_INLINE as usize + 2)];
        let data = if inline & 0xc0 == 0xc0 { Data::Inline(&bytes) } else { Data::Sges(&sges) };
        let to = input.u8();
        let at = &self.hosts[host];
        let ud = UdDest {
            ah: &at.ahs[usize::from(to & 1)],
            qpn: self.hosts[usize::from(to & 1)].qps[usize::from(to >> 1 & 3)].qp_num(),
            qkey: if to & 0xc0 == 0xc0 { QKEY ^ 1 } else { QKEY },
        };
        let is_ud = QPS[index].0 == ferroce_verbs::QpType::Ud;
        let wr = SendWr { wr_id: self.next_id, op, data, flags, ud: is_ud.then_some(ud) };
        let qpn = at.qps[index].qp_num();
        if at.qps[index].post_send(&[wr]).is_ok()
            && let Some((.., ledger)) = self.ledgers.get_mut(&(host, qpn))
        {
            ledger.sent(self.next_id, flags.contains(SendFlags::SIGNALED));
        }
        self.next_id += 1;
    }

    fn post_recv(&mut self, input: &mut Input<'_>) {
        let (host, index) = self.qp(input);
        let sges = self.sges(input, host);
        let room = sges.iter().map(|sge| u64::from(sge.length)).sum();
        let wr = [RecvWr::new(self.next_id, &sges)];
        let at = &mut self.hosts[host];
        if QPS[index].1 {
            if at.srq.post_recv(&wr).is_ok() {
                at.srq_ledger.received(self.next_id, room);
            }
        } else if at.qps[index].post_recv(&wr).is_ok()
            && let Some((.., ledger)) = self.ledgers.get_mut(&(host, at.qps[index].qp_num()))
        {
            ledger.received(self.next_id, room);
        }
        self.next_id += 1;
    }

    /// To another state and nothing else.
    fn go_to(&mut self, input: &mut Input<'_>) {
        use QpState as S;
        let state = input.pick(&[S::Reset, S::Init, S::Rtr, S::Rts, S::Rts, S::Sqd, S::Sqd, S::Sqe, S::Err]);
        let notify = (state == S::Sqd).then_some(true);
        self.apply(input, &QpAttr { en_sqd_async_notify: notify, ..QpAttr::to(state) });
    }

    /// Any attributes.
    fn modify(&mut self, input: &mut Input<'_>) {
        use QpState as S;
        let (mut flag, mut more) = (input.flags(), input.flags());
        let state = input.pick(&[S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Sqe, S::Err]);
        let attr = QpAttr {
            state: flag().then_some(state),
            cur_state: None,
            en_sqd_async_notify: flag().then_some(true),
            access: flag().then(|| Access::from_bits_truncate(input.u8().into())),
            pkey_index: flag().then(|| input.u8().into()),
            port_num: flag().then(|| input.u8() % 3),
            qkey: flag().then_some(QKEY),
            ah_attr: flag().then(|| {
                let ip = IpAddr::from([10, 0, 0, input.u8() % 4]);
                AhAttr::roce(Gid::from(ip), u32::from(input.u8() % 2))
            }),
            path_mtu: flag().then(|| input.pick(&Mtu::ALL)),
            timeout: more().then(|| input.u8() % 33),
            retry_cnt: more().then(|| input.u8() % 9),
            rnr_retry: more().then(|| input.u8() % 9),
            rq_psn: more().then(|| input.u32()),
            max_rd_atomic: more().then(|| input.u8()),
            min_rnr_timer: more().then(|| input.u8() % 33),
            sq_psn: more().then(|| input.u32()),
            max_dest_rd_atomic: more().then(|| input.u8()),
            dest_qpn: flag().then(|| input.u32()),
        };
        self.apply(input, &attr);
    }

    fn apply(&mut self, input: &mut Input<'_>, attr: &QpAttr) {
        let (host, index) = self.qp(input);
        let qp = &self.hosts[host].qps[index];
        if qp.modify(attr).is_ok()
            && attr.state == Some(QpState::Reset)
            && let Some((.., ledger)) = self.ledgers.get_mut(&(host, qp.qp_num()))
        {
            ledger.reset();
        }
    }

    /// A queue pair is destroyed, and another one takes its place.
    fn replace_qp(&mut self, input: &mut Input<'_>) -> Checked {
        let (host, index) = self.qp(input);
        self.hosts[host].qps[index] = self.make_qp(host, index)?;
        self.connect(host, index);
        Ok(())
    }

    /// Memory is deregistered and freed, and other memory takes its place.
    fn replace_area(&mut self, input: &mut Input<'_>) -> Checked {
        let choice = usize::from(input.u8());
        let which = choice >> 1 & 1;
        self.check_memory()?;
        let host = &mut self.hosts[choice & 1];
        let access = if which == 0 { Access::ALL } else { Access::LOCAL_WRITE };
        host.areas[which] = Area::new(&host.pd, AREA_LEN, 0, access)?;
        Ok(())
    }

    fn set_faults(&self, input: &mut Input<'_>) {
        let mut upto = |most: f64| most * f64::from(input.u8()) / 255.0;
        let (loss, duplicate, reorder, corrupt) = (upto(0.5), upto(0.5), upto(0.5), upto(0.3));
        let max_delay = Duration::from_nanos(u64::from(input.u16()));
        let reorder_by = Duration::from_nanos(u64::from(input.u16()));
        let faults =
            MemoryFaults { loss, duplicate, reorder, reorder_by, corrupt, max_delay, ..MemoryFaults::default() };
        self.network.set_faults(faults);
    }

    fn multicast(&self, input: &mut Input<'_>) {
        let (host, index) = self.qp(input);
        let group = Gid::from(IpAddr::from([239, 0, 0, input.u8() & 3]));
        let qp = &self.hosts[host].qps[index];
        // Only datagrams can: the others refuse it.
        let _ = if input.u8() & 1 == 0 { qp.attach_mcast(group) } else { qp.detach_mcast(group) };
    }
}
