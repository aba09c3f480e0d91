//! The TCP connection beside the RDMA traffic: over it the two ends tell each other who they are.

use crate::failure::{Failure, Result};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long one address of the peer may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For how long a refused connection is tried again: the peer may be starting at this moment.
const REFUSED_PATIENCE: Duration = Duration::from_secs(1);

/// What starts the server of most commands.
pub(crate) const NO_HOST: &str = "the same command without a host";

/// Connects to `port` of `host`, a name or an address. `server` is what starts the server.
pub(crate) fn connect(host: &str, port: u16, server: &str) -> Result<TcpStream> {
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|error| {
            Failure::run(format!("the host {host:?} cannot be found: {error}"))
                .hint("give the IP address or the name of the machine on which the server runs")
        })?
        .collect();
    let give_up = Instant::now() + REFUSED_PATIENCE;
    let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
    loop {
        let mut refused = false;
        for address in &addresses {
            match TcpStream::connect_timeout(address, CONNECT_TIMEOUT) {
                Ok(stream) => return prepare(stream),
                Err(error) => {
                    refused |= error.kind() == ErrorKind::ConnectionRefused;
                    last = error;
                }
            }
        }
        if !refused || Instant::now() >= give_up {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let hint = match last.kind() {
        ErrorKind::ConnectionRefused => format!("start the server first: {server}"),
        ErrorKind::TimedOut => "the machine does not answer: is the address right, does a firewall drop TCP?".into(),
        _ => "check the address, the route and the firewall".into(),
    };
    Err(Failure::run(format!("no connection to {host} port {port}: {last}")).hint(hint))
}

/// Listens on TCP `port` of `only`, or of every address, IPv6 and IPv4.
pub(crate) fn listen(only: Option<IpAddr>, port: u16) -> Result<TcpListener> {
    let bound = match only {
        Some(ip) => TcpListener::bind((ip, port)),
        // One IPv6 socket takes IPv4 too, where there is IPv6 at all.
        None => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
            Err(error) if error.kind() != ErrorKind::AddrInUse && error.kind() != ErrorKind::PermissionDenied => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            }
            other => other,
        },
    };
    bound.map_err(|error| {
        let with = if only.is_some() { "behind the address, as IP:PORT" } else { "with -p" };
        let hint = match error.kind() {
            ErrorKind::AddrInUse => {
                format!("another server runs on this machine: end it, or give both ends another port {with}")
            }
            ErrorKind::PermissionDenied => {
                format!("ports below 1024 need privilege: give both ends a higher port {with}")
            }
            ErrorKind::AddrNotAvailable => "give an address of this machine: `ferroce info` shows them".into(),
            _ => format!("give both ends another port {with}"),
        };
        Failure::environment(format!("TCP port {port} cannot be listened on: {error}")).hint(hint)
    })
}

/// Waits for a client.
pub(crate) fn accept(listener: &TcpListener) -> Result<TcpStream> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => return prepare(stream),
            // The client gave up between the handshake and now: wait for the next one.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
            Err(error) => return Err(Failure::environment(format!("no client can be accepted: {error}"))),
        }
    }
}

/// Small messages go out at once, and a machine that died is noticed within half a minute.
fn prepare(stream: TcpStream) -> Result<TcpStream> {
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5)).with_retries(3);
    stream
        .set_nodelay(true)
        .and_then(|()| SockRef::from(&stream).set_tcp_keepalive(&keepalive))
        .map_err(|error| Failure::environment(format!("the TCP connection cannot be set up: {error}")))?;
    Ok(stream)
}

/// The local address of a connection, IPv4 where it is really IPv4.
pub(crate) fn local_ip(stream: &TcpStream) -> Option<IpAddr> {
    stream.local_addr().ok().map(|address| address.ip().to_canonical())
}

/// A read or write on the connection that failed, in words.
pub(crate) fn lost(doing: &str, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
        | ErrorKind::BrokenPipe
        | ErrorKind::ConnectionAborted => Failure::run(format!("the peer closed the connection while {doing}"))
            .hint("it ended or refused; its own output says why"),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Failure::run(format!("the peer was silent for too long while {doing}"))
                .hint("is it the right program, and is it still running?")
        }
        _ => Failure::run(format!("the connection to the peer failed while {doing}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named() {
        let first = listen(None, 0).unwrap();
        let port = first.local_addr().unwrap().port();
        let failure = listen(None, port).unwrap_err();
        assert_eq!(failure.class, crate::failure::Class::Environment);
        assert!(failure.message.contains(&port.to_string()), "{failure}");
        assert!(failure.hint.unwrap().contains("-p"));
    }

    #[test]
    fn nobody_there_is_said_so() {
        let port = listen(None, 0).unwrap().local_addr().unwrap().port();
        let failure = connect("127.0.0.1", port, NO_HOST).unwrap_err();
        assert!(failure.hint.unwrap().contains("start the server"), "{}", failure.message);
    }

    #[test]
    fn both_families_reach_a_listener() {
        let listener = listen(None, 0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = connect("127.0.0.1", port, NO_HOST).unwrap();
        let server = accept(&listener).unwrap();
        assert_eq!(local_ip(&client), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(local_ip(&server), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
}
