//! The device file.

use super::wire::{self, SOCKADDR_STORAGE, cmd};
use super::{Addresses, CmEvent, ConnParam, Private, QpAttr, RdmaCm, sockaddr};
use crate::{Host, Unavailable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// `/dev/infiniband/rdma_cm`, open: a queue of events, and ids, which the kernel destroys with it. It is readable (for `poll`) while events
/// wait.
#[derive(Debug)]
pub struct CmFile(File);

/// The longest command: `ACCEPT`.
const MAX_COMMAND: usize = size_of::<wire::cmd_hdr>() + size_of::<wire::accept>();

/// A command whose answer goes to memory that it names.
trait Asks: IntoBytes + Immutable {
    type Answer: FromBytes + FromZeros + IntoBytes + Immutable;

    fn respond_at(&mut self, address: u64);
}

macro_rules! asks {
    ($($command:ident -> $answer:ident),* $(,)?) => {
        $(
            impl Asks for wire::$command {
                type Answer = wire::$answer;

                fn respond_at(&mut self, address: u64) {
                    self.response = address;
                }
            }
        )*
    };
}

asks! {
    create_id -> create_id_resp,
    destroy_id -> destroy_id_resp,
    query -> query_addr_resp,
    init_qp_attr -> qp_attr,
    get_event -> event_resp,
    join_mcast -> create_id_resp,
}

impl CmFile {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// [`Unavailable::NoConnectionManager`], [`Unavailable::NoCmFile`], [`Unavailable::NoCmPermission`], or what else the kernel says.
    pub fn open(host: &Host) -> Result<Self, Unavailable> {
        host.open_cm().map(Self)
    }

    fn submit(&self, cmd: u32, body: &[u8], len_out: usize) -> io::Result<()> {
        let hdr = wire::cmd_hdr { cmd, len_in: body.len() as u16, len_out: len_out as u16 };
        let length = size_of_val(&hdr) + body.len();
        let mut command = [0; MAX_COMMAND];
        command[..size_of_val(&hdr)].copy_from_slice(hdr.as_bytes());
        command[size_of_val(&hdr)..length].copy_from_slice(body);
        loop {
            // libc's `write`, of which the compiler must assume that it changes any memory whose address was exposed. rustix's is
            // a system call of which it is told that it changes none.
            match (&self.0).write(&command[..length]) {
                Ok(_) => return Ok(()),
                // Nothing was done: only waiting is interrupted.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn tell(&self, cmd: u32, body: &(impl IntoBytes + Immutable)) -> io::Result<()> {
        self.submit(cmd, body.as_bytes(), 0)
    }

    /// Submits a command with an answer. The one place where the kernel is told an address to write to: it is that of a local variable,
    /// of the length that the header says, and the kernel writes before `write` returns.
    fn ask<C: Asks>(&self, cmd: u32, mut body: C) -> io::Result<C::Answer> {
        let mut answer = C::Answer::new_zeroed();
        body.respond_at((&raw mut answer).expose_provenance() as u64);
        self.submit(cmd, body.as_bytes(), size_of::<C::Answer>())?;
        Ok(answer)
    }
}

impl AsFd for CmFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl RdmaCm for CmFile {
    fn create_id(&self, uid: u64, port_space: u16, qp_type: u8) -> io::Result<u32> {
        let body = wire::create_id { uid, response: 0, ps: port_space, qp_type, reserved: [0; 5] };
        Ok(self.ask(cmd::CREATE_ID, body)?.id)
    }

    fn destroy_id(&self, id: u32) -> io::Result<u32> {
        Ok(self.ask(cmd::DESTROY_ID, wire::destroy_id { response: 0, id, reserved: 0 })?.events_reported)
    }

    fn bind(&self, id: u32, addr: SocketAddr) -> io::Result<()> {
        let (addr, addr_size) = sockaddr::encode(addr);
        self.tell(cmd::BIND, &wire::bind { id, addr_size, reserved: 0, addr })
    }

    fn resolve_addr(&self, id: u32, local: Option<SocketAddr>, peer: SocketAddr, timeout_ms: u32) -> io::Result<()> {
        let (src_addr, src_size) = local.map_or(([0; SOCKADDR_STORAGE], 0), sockaddr::encode);
        let (dst_addr, dst_size) = sockaddr::encode(peer);
        let body = wire::resolve_addr { id, timeout_ms, src_size, dst_size, reserved: 0, src_addr, dst_addr };
        self.tell(cmd::RESOLVE_ADDR, &body)
    }

    fn resolve_route(&self, id: u32, timeout_ms: u32) -> io::Result<()> {
        self.tell(cmd::RESOLVE_ROUTE, &wire::resolve_route { id, timeout_ms })
    }

    fn query_addr(&self, id: u32) -> io::Result<Addresses> {
        let body = wire::query { response: 0, id, option: wire::QUERY_ADDR };
        Ok(Addresses::from_wire(&self.ask(cmd::QUERY, body)?))
    }

    fn connect(&self, id: u32, param: &ConnParam) -> io::Result<()> {
        self.tell(cmd::CONNECT, &wire::connect { conn_param: param.to_wire(), id, reserved: 0 })
    }

    fn listen(&self, id: u32, backlog: u32) -> io::Result<()> {
        self.tell(cmd::LISTEN, &wire::listen { id, backlog })
    }

    fn accept(&self, id: u32, uid: u64, param: &ConnParam) -> io::Result<()> {
        self.tell(cmd::ACCEPT, &wire::accept { uid, conn_param: param.to_wire(), id, reserved: 0 })
    }

    fn establish(&self, id: u32) -> io::Result<()> {
        self.tell(cmd::ACCEPT, &wire::accept { uid: 0, conn_param: wire::conn_param::new_zeroed(), id, reserved: 0 })
    }

    fn reject(&self, id: u32, private_data: &[u8]) -> io::Result<()> {
        let data = Private::new(private_data).ok_or(io::ErrorKind::InvalidInput)?;
        let mut body = wire::reject::new_zeroed();
        body.id = id;
        body.private_data_len = data.as_slice().len() as u8;
        body.private_data[..private_data.len()].copy_from_slice(private_data);
        self.tell(cmd::REJECT, &body)
    }

    fn disconnect(&self, id: u32) -> io::Result<()> {
        self.tell(cmd::DISCONNECT, &wire::disconnect { id })
    }

    fn init_qp_attr(&self, id: u32, state: u32) -> io::Result<QpAttr> {
        self.ask(cmd::INIT_QP_ATTR, wire::init_qp_attr { response: 0, id, qp_state: state })
    }

    fn set_option(&self, id: u32, level: u32, name: u32, value: &[u8]) -> io::Result<()> {
        // The kernel reads there, and only before `write` returns.
        let optval = value.as_ptr().expose_provenance() as u64;
        let body = wire::set_option { optval, id, level, optname: name, optlen: value.len() as u32 };
        self.tell(cmd::SET_OPTION, &body)
    }

    fn notify(&self, id: u32, event: u32) -> io::Result<()> {
        self.tell(cmd::NOTIFY, &wire::notify { id, event })
    }

    fn join_multicast(&self, id: u32, uid: u64, group: IpAddr, send_only: bool) -> io::Result<u32> {
        let (addr, addr_size) = sockaddr::encode(SocketAddr::new(group, 0));
        let join_flags = if send_only { wire::JOIN_SEND_ONLY } else { wire::JOIN_FULL_MEMBER };
        Ok(self.ask(cmd::JOIN_MCAST, wire::join_mcast { response: 0, uid, id, addr_size, join_flags, addr })?.id)
    }

    fn leave_multicast(&self, membership: u32) -> io::Result<u32> {
        let body = wire::destroy_id { response: 0, id: membership, reserved: 0 };
        Ok(self.ask(cmd::LEAVE_MCAST, body)?.events_reported)
    }

    fn wait(&self, other: BorrowedFd<'_>, timeout: Option<Duration>) -> bool {
        let an_hour = Timespec { tv_sec: 3600, tv_nsec: 0 };
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or(an_hour));
        let mut fds = [PollFd::new(&self.0, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        // Interrupted is as good as woken.
        let _ = poll(&mut fds, timeout.as_ref());
        !fds[1].revents().is_empty()
    }

    fn next_event(&self) -> io::Result<Option<CmEvent>> {
        match self.ask(cmd::GET_EVENT, wire::get_event { response: 0 }) {
            Ok(event) => Ok(Some(CmEvent::from_wire(&event))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    /// A file that keeps what is written to it, and answers nothing.
    fn file() -> CmFile {
        CmFile(tempfile::tempfile().unwrap())
    }

    fn written(file: &mut CmFile) -> Vec<u8> {
        file.0.rewind().unwrap();
        let mut bytes = Vec::new();
        file.0.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_command_is_its_header_and_its_body() {
        let mut file = file();
        file.bind(7, "10.77.0.1:7471".parse().unwrap()).unwrap();
        let bytes = written(&mut file);
        assert_eq!(bytes.len(), 8 + 136);
        assert_eq!(bytes[..4], cmd::BIND.to_ne_bytes());
        assert_eq!(bytes[4..6], 136_u16.to_ne_bytes(), "the header does not count");
        assert_eq!(bytes[6..8], [0, 0]);
        assert_eq!(bytes[8..12], 7_u32.to_ne_bytes());
        assert_eq!(bytes[12..14], 16_u16.to_ne_bytes());
        assert_eq!(bytes[18..24], [0x1d, 0x2f, 10, 77, 0, 1]);
    }

    #[test]
    fn an_answer_has_a_place() {
        let mut file = file();
        assert_eq!(file.create_id(0x1_0000_0001, 0x0106, 2).unwrap(), 0, "nobody has written there");
        let bytes = written(&mut file);
        assert_eq!(bytes[6..8], 4_u16.to_ne_bytes());
        assert_ne!(bytes[16..24], [0; 8]);
    }

    #[test]
    fn the_longest_command_fits() {
        let param = ConnParam { private_data: Private::new(&[7; 255]).unwrap(), ..ConnParam::default() };
        let mut file = file();
        file.accept(1, 2, &param).unwrap();
        let bytes = written(&mut file);
        assert_eq!(bytes.len(), MAX_COMMAND);
        assert_eq!(bytes[8 + 8 + 264], 255);
        assert!(Private::new(&[0; 256]).is_none());
        assert!(file.reject(1, &[0; 256]).is_err());
    }
}
