//! Two hosts with connection managers, and whatever calls, management datagrams and time the bytes ask for.

use super::input::Input;
use super::mads::Seen;
use crate::connections::{held, nothing_left};
use crate::failure::{Checked, Failure, ensure};
use ferroce_cm::proto::{Limits, Nanos};
use ferroce_cm::{ConnParam, ConnectionManager, Event, EventChannel, EventKind, Id, PortSpace, SetupIn};
use ferroce_soft::memory::{MemoryConfig, MemoryNetwork, TraceKind};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Context, Cq, Pd, QpInitAttr, QpState, QpType};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Commands of one input, so that every input ends soon.
const COMMANDS: u32 = 400;
/// Ids that a program holds, so that all are met again.
const IDS: usize = 12;
pub(super) const PORTS: [u16; 3] = [7000, 7001, 9];
const PORT_SPACES: [PortSpace; 3] = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];
const MS: Nanos = 1_000_000;
/// What one program holds at most, whatever peers send.
const LIMITS: Limits = Limits { connections: 64, half_open: 16, lingering: 8, timewait: 16, sidr: 16, transmit: 64 };

/// What an id's context says of it.
#[derive(Default)]
struct Story(Mutex<(bool, Option<&'static str>)>);

struct Host {
    // Ids go before what their queue pairs were made of.
    ids: Vec<Id>,
    channels: [EventChannel; 2],
    cm: ConnectionManager,
    cq: Cq,
    pd: Pd,
    context: Context,
}

pub(super) struct World {
    pub(super) network: MemoryNetwork,
    pub(super) seen: Arc<Mutex<Seen>>,
    hosts: Vec<Host>,
}

/// The connection manager on the software device, with the network in memory: no panic, no event for what is destroyed, none of
/// a connection after its end, what is held stays within bounds, and in the end nothing is left.
///
/// # Errors
///
/// What does not hold.
pub fn connections(data: &[u8]) -> Result<(), Failure> {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input)?;
    for _ in 0..COMMANDS {
        if input.is_empty() {
            break;
        }
        world.command(&mut input)?;
        for host in &world.hosts {
            host.check_bounds()?;
        }
    }
    world.finish()
}

/// The address of a host.
pub(super) fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, host as u8 + 1])
}

impl Host {
    fn new(network: &MemoryNetwork, ip: IpAddr, seed: u8) -> Checked<Self> {
        let context = network.host(ip).open()?;
        let pd = context.alloc_pd()?;
        let rng = StdRng::seed_from_u64(seed.into());
        let cm = ConnectionManager::with_rng(&context, rng, |config| {
            config.limits = LIMITS;
            config.request_timeout = 5000 * MS;
        })?;
        let channels = [EventChannel::new()?, EventChannel::new()?];
        let mut host = Self { ids: Vec::new(), channels, cq: context.create_cq(256, None)?, cm, pd, context };
        for port_space in [PortSpace::Tcp, PortSpace::Udp] {
            let id = host.id(port_space)?;
            id.bind_addr(SocketAddr::new(ip, PORTS[0]))?;
            id.listen(4)?;
        }
        Ok(host)
    }

    fn id(&mut self, port_space: PortSpace) -> Checked<Id> {
        let id = self.cm.create_id(&self.channels[0], port_space);
        id.set_context(Arc::new(Story::default()))?;
        self.keep(id.clone());
        Ok(id)
    }

    fn keep(&mut self, id: Id) {
        if self.ids.len() == IDS {
            // The one after the listeners.
            drop(self.ids.remove(2));
        }
        self.ids.push(id);
    }

    fn check_bounds(&self) -> Checked {
        let usage = self.cm.usage();
        let Limits { connections, half_open, lingering, timewait, sidr, transmit } = LIMITS;
        let within = usage.connections + usage.lingering <= connections
            && usage.half_open <= half_open
            // Those that are over and still held are not counted with those that linger.
            && usage.lingering <= lingering + 1
            && usage.timewait <= timewait
            && usage.sidr_sent <= sidr
            && usage.sidr_received <= sidr
            && usage.transmits <= transmit
            && usage.events == 0
            && usage.names <= 3 * (connections + timewait);
        ensure!(within, "more than is allowed: {usage:?}");
        let ids = self.cm.id_count();
        ensure!(ids <= IDS + half_open + sidr + connections, "{ids} ids");
        Ok(())
    }

    /// Reads one event.
    fn read(&mut self, which: usize) -> Checked<bool> {
        let Some(event) = self.channels[which].try_next()? else { return Ok(false) };
        self.on_event(&event)?;
        Ok(true)
    }

    fn on_event(&mut self, event: &Event) -> Checked {
        let story = event.id().context::<Story>();
        let Some(story) = story else { return Err(Failure::new(format!("{event:?} of an id that is destroyed"))) };
        let mut story = story.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (established, ended) = &mut *story;
        match event.kind() {
            EventKind::ConnectRequest { id, .. } => {
                ensure!(id.context::<Story>().is_none(), "a request for an id that was given already");
                id.set_context(Arc::new(Story::default()))?;
                drop(story);
                self.keep(id.clone());
            }
            EventKind::Established => {
                ensure!(!*established && ended.is_none(), "{event:?} after {story:?}");
                *established = true;
            }
            EventKind::Rejected { .. }
            | EventKind::Unreachable { .. }
            | EventKind::Disconnected(_)
            | EventKind::ConnectError(_) => {
                ensure!(ended.is_none(), "{event:?} after {story:?}");
                *ended = Some("over");
            }
            EventKind::TimewaitExit => ensure!(ended.is_some(), "{event:?} of what is not over"),
            _ => {}
        }
        Ok(())
    }
}

impl World {
    fn new(input: &mut Input<'_>) -> Checked<Self> {
        let seed = input.u8();
        let network = MemoryNetwork::new(MemoryConfig { seed: seed.into(), ..MemoryConfig::default() });
        let seen = Arc::new(Mutex::new(Seen::default()));
        let sink = seen.clone();
        network.observe(move |event| {
            if event.kind == TraceKind::Sent {
                sink.lock().unwrap_or_else(PoisonError::into_inner).note(event);
            }
        });
        let hosts = [0, 1].map(|host| Host::new(&network, ip(host), seed ^ host as u8));
        Ok(Self { hosts: hosts.into_iter().collect::<Checked<_>>()?, seen, network })
    }

    fn command(&mut self, input: &mut Input<'_>) -> Checked {
        let choice = input.u8();
        let host = usize::from(choice & 1);
        match choice >> 1 & 0xf {
            0 | 1 => self.connect(host, input)?,
            2..=4 => self.call(host, input)?,
            5 | 6 => {
                let mut left = input.u8() % 8;
                while left != 0 && self.hosts[host].read(usize::from(left & 1))? {
                    left -= 1;
                }
                while self.hosts[host].read(0)? {}
            }
            7 | 8 => {
                let nanos = input.pick(&[0, 10_000, MS, 50 * MS, 200 * MS, 1000 * MS, 6000 * MS, 40_000 * MS]);
                self.network.advance(Duration::from_nanos(nanos));
            }
            9 => self.inject_any(input),
            10 | 11 => self.inject_again(input),
            12 | 13 => self.inject_built(input),
            14 => match input.u8() % 4 {
                0 => self.network.block(ip(host), ip(1 - host)),
                _ => self.network.unblock(ip(host), ip(1 - host)),
            },
            _ => self.begin_anew(host, input)?,
        }
        Ok(())
    }

    fn connect(&mut self, host: usize, input: &mut Input<'_>) -> Checked {
        let mut flags = input.flags();
        let port_space = if flags() { PortSpace::Udp } else { PortSpace::Tcp };
        let (with_qp, in_caller, quick) = (flags(), flags(), flags());
        let port = if flags() && flags() { 9 } else { PORTS[0] };
        let this = &mut self.hosts[host];
        let id = this.id(port_space)?;
        id.set_options(|options| {
            options.setup_in = if in_caller { SetupIn::Caller } else { SetupIn::EventThread };
            options.connect_timeout = Duration::from_millis(if quick { 50 } else { 5000 });
        })?;
        id.resolve_addr(None, SocketAddr::new(ip(1 - host), port))?;
        id.resolve_route()?;
        if with_qp && port_space == PortSpace::Tcp {
            id.create_qp(&this.pd, &QpInitAttr::new(QpType::Rc, &this.cq))?;
        }
        // A number of a queue pair that has a connection already is what a peer takes for a restart.
        let qp_num = (!with_qp).then_some(u32::from(input.u8() % 8));
        // With as many connections as there can be it fails.
        let _ = id.connect(&ConnParam { private_data: b"fuzz", qp_num, ..ConnParam::default() });
        Ok(())
    }

    /// Any call on any id, whether it makes sense or not.
    fn call(&mut self, host: usize, input: &mut Input<'_>) -> Checked {
        let (choice, which, argument) = (input.u8(), usize::from(input.u8()), input.u8());
        let this = &mut self.hosts[host];
        let Some(id) = which.checked_rem(this.ids.len()).map(|at| this.ids[at].clone()) else { return Ok(()) };
        let data = [argument; 8];
        let qp_num = (argument & 1 == 0).then_some(u32::from(argument % 16));
        let param = ConnParam { private_data: &data, qp_num, ..ConnParam::default() };
        // What it returns is the program's business.
        let _ = match choice % 20 {
            0..=3 => id.accept(&param),
            4 => id.reject(&data),
            5 | 6 => id.establish(),
            7 | 8 => id.disconnect(),
            9 | 10 => {
                id.destroy();
                Ok(())
            }
            11 => id.notify_established(),
            12 => id.migrate(&this.channels[usize::from(argument & 1)]),
            13 => {
                drop(id.take_qp());
                Ok(())
            }
            14 => id.connect(&param),
            15 => id.listen(usize::from(argument % 8)),
            16 => {
                let port = PORTS[usize::from(argument) % PORTS.len()];
                let fresh = this.id(PORT_SPACES[usize::from(argument) % PORT_SPACES.len()])?;
                fresh.bind_addr(SocketAddr::new(ip(host), port))
            }
            17 => id.resolve_addr(None, SocketAddr::new(ip(1 - host), PORTS[0])),
            18 => id.qp_attr([QpState::Init, QpState::Rtr, QpState::Rts][usize::from(argument) % 3]).map(drop),
            _ => {
                let is_datagram = id.port_space() == PortSpace::Udp;
                let qp_type = if is_datagram { QpType::Ud } else { QpType::Rc };
                id.create_qp(&this.pd, &QpInitAttr::new(qp_type, &this.cq)).map(drop)
            }
        };
        Ok(())
    }

    /// A program ends without a word, and another one begins.
    fn begin_anew(&mut self, host: usize, input: &mut Input<'_>) -> Checked {
        if !input.u8().is_multiple_of(4) {
            return Ok(());
        }
        self.network.isolate(ip(host));
        drop(self.hosts.remove(host));
        self.network.restore(ip(host));
        self.network.reboot(ip(host));
        self.hosts.insert(host, Host::new(&self.network, ip(host), input.u8())?);
        Ok(())
    }

    /// A datagram to queue pair 1.
    pub(super) fn inject(&self, src: IpAddr, dst: IpAddr, mad: &[u8; 256]) {
        self.network.inject(src, dst, &super::mads::packet(mad));
    }

    /// Service ids of a listener, and of nobody.
    pub(super) fn service(input: &mut Input<'_>) -> u64 {
        let port_space = input.pick(&[PortSpace::Tcp, PortSpace::Udp]);
        ferroce_wire::cm::ServiceId::from_port(port_space, input.pick(&PORTS)).0
    }

    fn finish(mut self) -> Checked {
        for host in 0..2 {
            self.network.unblock(ip(host), ip(1 - host));
            let this = &mut self.hosts[host];
            while this.read(0)? || this.read(1)? {}
            this.ids.clear();
        }
        self.network.advance(Duration::from_secs(200));
        for host in self.hosts {
            let Host { ids, channels, cm, cq, pd, context } = host;
            drop((ids, channels));
            nothing_left(&cm, &context, 2)?;
            drop((cm, cq, pd));
            held(&context, &["protection_domains", "completion_queues", "address_handles"])?;
        }
        Ok(())
    }
}
