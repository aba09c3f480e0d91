//! What comes in.

use super::{Delivery, Interface, MAX_CONTROL, Transmit};
use crate::ud::acceptor::Acceptor;
use crate::ud::config::Config;
use crate::ud::endpoint::Role;
use crate::ud::initiator::{Initiator, State};
use crate::ud::rx::Taken;
use crate::ud::table::EndpointId;
use crate::ud::wire::{Header, Kind};
use crate::ud::{Cause, Event, Nanos, PeerAddress};

impl Interface {
    /// Takes in what came from `from`, and hands on the messages that are complete by that.
    pub fn receive(&mut self, now: Nanos, from: PeerAddress, packet: &[u8], deliver: &mut dyn FnMut(Delivery<'_>)) {
        let Some((header, body)) = Header::parse(packet) else {
            self.counters.malformed += 1;
            return;
        };
        if let Kind::Connect { nonce } = header.kind {
            self.on_connect(now, from, header.src, nonce);
            return;
        }
        let id = EndpointId::from_wire(header.dest);
        let Some(endpoint) = self.endpoints.get_mut(id) else {
            self.counters.no_endpoint += 1;
            self.reset(from, &header);
            return;
        };
        if endpoint.peer != from {
            self.counters.wrong_source += 1;
            return;
        }
        let from_peer = endpoint.remote == Some(EndpointId::from_wire(header.src));
        match (&endpoint.role, header.kind) {
            (Role::Initiator(_), Kind::Accept { nonce }) => self.on_accept(now, id, &header, nonce),
            (_, Kind::Reset) => {
                if from_peer {
                    self.fail(now, id, Cause::Reset, 0);
                }
            }
            // The answer to CONNECT was lost: it comes again, and then this does.
            (Role::Initiator(Initiator { state: State::Connecting(_), .. }), _) => {}
            _ if !from_peer => {
                self.counters.wrong_source += 1;
                self.reset(from, &header);
            }
            (Role::Initiator(Initiator { state: State::Dead, .. }), _) => self.reset(from, &header),
            (Role::Initiator(_), Kind::Ack) => self.on_ack(now, id, &header, body),
            (Role::Acceptor(_), Kind::Data { .. } | Kind::Fin | Kind::Ack) => {
                self.on_sequence(now, id, &header, body, deliver);
            }
            // An initiator is sent no data, and an acceptor no answer.
            _ => self.counters.malformed += 1,
        }
    }

    fn on_connect(&mut self, now: Nanos, from: PeerAddress, src: u64, nonce: u64) {
        if src == 0 {
            self.counters.malformed += 1;
            return;
        }
        let remote = EndpointId::from_wire(src);
        if let Some(id) = self.accepted.get(&(from, nonce)).copied() {
            self.counters.duplicates += 1;
            if let Some(endpoint) = self.endpoints.get_mut(id).filter(|it| it.remote == Some(remote))
                && let Role::Acceptor(acceptor) = &mut endpoint.role
            {
                acceptor.answer = true;
                self.update(now, id);
            }
            return;
        }
        let role = Role::Acceptor(Acceptor::new(now, &self.config));
        let Config { max_half_open, max_accepted, .. } = self.config;
        let room = self.half_open < max_half_open && self.accepted.len() < max_accepted;
        match room.then(|| self.insert(now, from, nonce, Some(remote), role)).flatten() {
            Some(id) => {
                self.half_open += 1;
                self.accepted.insert((from, nonce), id);
            }
            None => self.counters.refused += 1,
        }
    }

    fn on_accept(&mut self, now: Nanos, id: EndpointId, header: &Header, nonce: u64) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let Role::Initiator(initiator) = &mut endpoint.role else { return };
        if nonce != endpoint.nonce || header.src == 0 {
            self.counters.wrong_source += 1;
            return;
        }
        let remote = EndpointId::from_wire(header.src);
        match initiator.state {
            State::Connecting(_) => {
                endpoint.remote = Some(remote);
                initiator.state = State::Open;
                initiator.progress = now;
                initiator.resolution = None;
                if initiator.closed.is_none() {
                    self.events.push_back(Event::Connected(id));
                }
            }
            State::Open if endpoint.remote == Some(remote) => self.counters.duplicates += 1,
            // A CONNECT that was long on its way made another acceptor; or this end is over.
            State::Open | State::Dead => {
                let from = endpoint.peer;
                self.reset(from, header);
                return;
            }
        }
        endpoint.life.hear(now);
        // What tells the peer that its answer came, unless data does.
        endpoint.life.probe |= !initiator.tx.can_send();
        self.update(now, id);
    }

    fn on_ack(&mut self, now: Nanos, id: EndpointId, header: &Header, sack: &[u8]) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let Role::Initiator(initiator) = &mut endpoint.role else { return };
        let before = initiator.tx.base();
        if !initiator.tx.acknowledge(now, header.ack, sack) {
            self.counters.wrong_ack += 1;
            return;
        }
        if initiator.tx.base() != before {
            initiator.progress = now;
        }
        if initiator.refused && initiator.tx.has_room() {
            initiator.refused = false;
            self.events.push_back(Event::Room(id));
        }
        endpoint.life.hear(now);
        if header.ack_request {
            endpoint.life.probe |= !initiator.tx.can_send();
        }
        if initiator.closed.is_some() && initiator.tx.is_empty() {
            self.remove(id);
        } else {
            self.update(now, id);
        }
    }

    fn on_sequence(
        &mut self,
        now: Nanos,
        id: EndpointId,
        header: &Header,
        body: &[u8],
        deliver: &mut dyn FnMut(Delivery<'_>),
    ) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let Role::Acceptor(acceptor) = &mut endpoint.role else { return };
        endpoint.life.hear(now);
        if acceptor.half_open.take().is_some() {
            self.half_open -= 1;
        }
        if header.kind == Kind::Ack {
            if header.ack_request {
                acceptor.rx.ask(now);
            }
            self.update(now, id);
            return;
        }
        let mut finished = false;
        let peer = endpoint.peer;
        let packet = (header.psn, header.kind, header.ack_request);
        let before = acceptor.rx.held_bytes();
        let room = self.config.max_held.saturating_sub(self.held);
        let taken = acceptor.rx.receive(now, packet, room, body, |kind, payload| match kind {
            // Nothing comes after FIN; a peer that sends it all the same is not listened to.
            Kind::Data { am } if !finished => deliver(Delivery { endpoint: id, peer, am, payload }),
            Kind::Fin => finished = true,
            _ => {}
        });
        self.held = self.held - before + acceptor.rx.held_bytes();
        match taken {
            Taken::Yes => {}
            Taken::Duplicate => self.counters.duplicates += 1,
            Taken::Beyond => self.counters.beyond += 1,
        }
        if finished {
            let ack = acceptor.rx.expected();
            // If this is lost, RESET says the same.
            self.say(id, Kind::Ack, ack);
            self.remove(id);
        } else {
            self.update(now, id);
        }
    }

    /// Sends the peer of an endpoint something that may be its last word: once it has left, [`Event::Gone`] may come.
    pub(super) fn say(&mut self, id: EndpointId, kind: Kind, ack: u32) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let Some(remote) = endpoint.remote.filter(|_| !endpoint.saying) else { return };
        endpoint.saying = true;
        let header = Header { kind, ack_request: false, psn: 0, dest: remote.to_wire(), src: id.to_wire(), ack };
        // Of these there is at most one for each endpoint, so no bound is needed.
        self.control.push_back(Transmit { to: endpoint.peer, endpoint: Some(id), packet: header.emit(&[]) });
    }

    /// Tells whoever sent a packet that the endpoint which it is for does not exist.
    fn reset(&mut self, to: PeerAddress, cause: &Header) {
        if cause.src == 0 || cause.kind == Kind::Reset {
            return;
        }
        let reset = Header { kind: Kind::Reset, ack_request: false, psn: 0, dest: cause.src, src: cause.dest, ack: 0 };
        if self.control.len() < MAX_CONTROL {
            self.control.push_back(Transmit { to, endpoint: None, packet: reset.emit(&[]) });
        }
    }
}
