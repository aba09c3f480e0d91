//! An endpoint whose peer is a script: messages are built by hand.

use crate::params::{S, SERVICE, accept_params, address, connect_params, gid, guid, kind, listen_params};
use ferroce_cm::proto::{Config, ConnId, Endpoint, Event, Nanos, State};
use ferroce_wire::cm::{
    AdditionalInfo, Answered, Apr, AprStatus, CmMad, CmMessage, Drep, Dreq, Lap, Mra, Path, PrivateData, Rej,
    RejectReason, Rep, Req, Rtu, ServiceId, TransportService,
};
use rand::SeedableRng;
use rand::rngs::StdRng;

pub(crate) const PEER_ID: u32 = 0xbeef_0001;
pub(crate) const PEER_QPN: u32 = 0x55;
pub(crate) const OUR_QPN: u32 = 0x66;
const TID: u64 = 0x7777;

/// The states that the side that asks can be in.
pub(crate) const ACTIVE: [State; 9] = [
    State::ReqSent,
    State::MraReqRcvd,
    State::RepRcvd,
    State::MraRepSent,
    State::Established,
    State::DreqSent,
    State::DreqRcvd,
    State::TimeWait,
    State::Idle,
];

/// The states that the side that is asked can be in.
pub(crate) const PASSIVE: [State; 9] = [
    State::ReqRcvd,
    State::MraReqSent,
    State::RepSent,
    State::MraRepRcvd,
    State::Established,
    State::DreqSent,
    State::DreqRcvd,
    State::TimeWait,
    State::Idle,
];

/// An endpoint that listens, and one connection of it to the peer.
pub(crate) struct Scripted {
    pub(crate) endpoint: Endpoint,
    pub(crate) now: Nanos,
    pub(crate) conn: Option<ConnId>,
    pub(crate) our_id: u32,
}

impl Scripted {
    pub(crate) fn new() -> Self {
        Self::with(Config::new(guid(0), 9))
    }

    pub(crate) fn with(config: Config) -> Self {
        let mut endpoint = Endpoint::new(config, StdRng::seed_from_u64(11));
        endpoint.listen(&listen_params(0)).expect("nobody else listens");
        Self { endpoint, now: 1, conn: None, our_id: 0 }
    }

    /// Delivers a message of the peer.
    pub(crate) fn receive(&mut self, message: impl Into<CmMessage>) {
        self.receive_tid(TID, message);
    }

    pub(crate) fn receive_tid(&mut self, tid: u64, message: impl Into<CmMessage>) {
        self.receive_from(1, tid, message);
    }

    pub(crate) fn receive_from(&mut self, host: usize, tid: u64, message: impl Into<CmMessage>) {
        let mut mad = [0; 256];
        CmMad { tid, ece_options: 0, message: message.into() }.emit(&mut mad);
        self.endpoint.handle_mad(self.now, &address(0, host), &mad);
    }

    /// What was sent since the last call.
    pub(crate) fn sent(&mut self) -> Vec<CmMessage> {
        std::iter::from_fn(|| self.endpoint.poll_transmit())
            .map(|transmit| CmMad::parse(&transmit.mad).expect("endpoints send valid messages").message)
            .collect()
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.endpoint.poll_event()).collect()
    }

    pub(crate) fn state(&self) -> Option<State> {
        self.conn.and_then(|conn| self.endpoint.state(conn))
    }

    /// Lets time pass, with all its timers, and discards what comes of it.
    pub(crate) fn sleep(&mut self, duration: Nanos) {
        drop(self.hear(duration));
    }

    /// Lets time pass, with all its timers; returns what is sent meanwhile.
    pub(crate) fn hear(&mut self, duration: Nanos) -> Vec<CmMessage> {
        let until = self.now + duration;
        let mut heard = Vec::new();
        while let Some(at) = self.endpoint.poll_timeout().filter(|&at| at <= until) {
            self.now = at;
            self.endpoint.handle_timeout(at);
            heard.extend(self.sent());
        }
        self.now = until;
        heard
    }

    /// Asks the peer for a connection.
    pub(crate) fn connect(&mut self) {
        let params = connect_params(address(0, 1), OUR_QPN, self.now + 60 * S);
        self.conn = Some(self.endpoint.connect(self.now, &params).expect("there is room"));
        self.our_id = match self.sent()[..] {
            [CmMessage::Req(req)] => req.local_comm_id,
            ref other => panic!("{other:?}"),
        };
    }

    /// The peer asks for a connection.
    pub(crate) fn request(&mut self) {
        self.receive(self.req());
        self.conn = match self.events()[..] {
            [Event::ConnectRequest(request)] => Some(request.conn),
            ref other => panic!("{other:?}"),
        };
    }

    pub(crate) fn accept(&mut self) {
        self.endpoint.accept(self.now, self.conn.expect("requested"), &accept_params(OUR_QPN)).expect("accept");
        self.our_id = match self.sent()[..] {
            [CmMessage::Rep(rep)] => rep.local_comm_id,
            ref other => panic!("{other:?}"),
        };
    }

    /// Brings a connection to a state, as the side that asked for it or as the other.
    pub(crate) fn reach(&mut self, state: State, active: bool) {
        let id = |this: &Self| this.conn.expect("there is a connection");
        if active {
            self.connect();
        } else {
            self.request();
        }
        let now = self.now;
        match state {
            State::ReqSent | State::ReqRcvd => {}
            State::MraReqRcvd => self.receive(self.mra(Answered::Req)),
            State::MraReqSent => self.receive(self.req()),
            State::RepSent => self.accept(),
            State::RepRcvd => self.receive(self.rep()),
            State::MraRepSent => {
                self.receive(self.rep());
                self.receive(self.rep());
            }
            State::MraRepRcvd => {
                self.accept();
                self.receive(self.mra(Answered::Rep));
            }
            State::Established | State::DreqSent | State::DreqRcvd | State::TimeWait => {
                if active {
                    self.receive(self.rep());
                    self.endpoint.establish(id(self), b"").expect("establish");
                } else {
                    self.accept();
                    self.receive(self.rtu());
                }
                match state {
                    State::DreqSent => self.endpoint.disconnect(now, id(self), b"").expect("disconnect"),
                    State::DreqRcvd => self.receive(self.dreq()),
                    State::TimeWait => {
                        self.receive(self.dreq());
                        self.endpoint.disconnect(now, id(self), b"").expect("disconnect");
                    }
                    _ => {}
                }
            }
            State::Idle if active => self.receive(self.rej(Answered::Req, RejectReason::ConsumerDefined)),
            State::Idle => self
                .endpoint
                .reject(now, id(self), RejectReason::ConsumerDefined, AdditionalInfo::EMPTY, b"")
                .expect("reject"),
        }
        assert_eq!(self.state(), Some(state));
        if state == State::MraReqSent || state == State::Idle && !active {
            // It says our id, or said it: the peer may know it.
            for message in self.sent() {
                if let CmMessage::Mra(mra) = message {
                    self.our_id = mra.local_comm_id;
                }
            }
        }
        self.sent();
        self.events();
    }

    pub(crate) fn req(&self) -> Req {
        Req {
            local_comm_id: PEER_ID,
            vendor_id: 0,
            service_id: SERVICE,
            local_ca_guid: guid(1),
            local_qkey: 0,
            local_qpn: PEER_QPN,
            responder_resources: 1,
            local_eecn: 0,
            initiator_depth: 1,
            remote_eecn: 0,
            remote_cm_response_timeout: 20,
            transport: TransportService::Rc,
            end_to_end_flow_control: true,
            starting_psn: 5,
            local_cm_response_timeout: 20,
            retry_count: 7,
            pkey: 0xffff,
            path_mtu: 3,
            rdc_exists: false,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: false,
            primary: path(),
            alternate: None,
            sap_supported: false,
            private_data: PrivateData([0xaa; 92]),
        }
    }

    pub(crate) fn rep(&self) -> Rep {
        Rep {
            local_comm_id: PEER_ID,
            remote_comm_id: self.our_id,
            local_qkey: 0,
            local_qpn: PEER_QPN,
            local_eecn: 0,
            vendor_id: 0,
            starting_psn: 6,
            responder_resources: 1,
            initiator_depth: 1,
            target_ack_delay: 15,
            failover_accepted: 0,
            end_to_end_flow_control: true,
            rnr_retry_count: 7,
            srq: false,
            local_ca_guid: guid(1),
            private_data: PrivateData([0xbb; 196]),
        }
    }

    pub(crate) fn rtu(&self) -> Rtu {
        Rtu { local_comm_id: PEER_ID, remote_comm_id: self.our_id, private_data: PrivateData([0; 224]) }
    }

    pub(crate) fn dreq(&self) -> Dreq {
        Dreq {
            local_comm_id: PEER_ID,
            remote_comm_id: self.our_id,
            remote_qpn: OUR_QPN,
            private_data: PrivateData([0xcc; 220]),
        }
    }

    pub(crate) fn drep(&self) -> Drep {
        Drep { local_comm_id: PEER_ID, remote_comm_id: self.our_id, private_data: PrivateData([0; 224]) }
    }

    pub(crate) fn mra(&self, received: Answered) -> Mra {
        Mra {
            local_comm_id: PEER_ID,
            remote_comm_id: self.our_id,
            received,
            service_timeout: 20,
            private_data: PrivateData([0; 222]),
        }
    }

    pub(crate) fn rej(&self, rejected: Answered, reason: RejectReason) -> Rej {
        Rej {
            local_comm_id: PEER_ID,
            remote_comm_id: self.our_id,
            rejected,
            reason,
            info: AdditionalInfo::EMPTY,
            private_data: PrivateData([0xdd; 148]),
        }
    }

    /// The REJ of a peer that gives up its REQ and knows no id of ours.
    pub(crate) fn cancel(&self) -> Rej {
        Rej {
            remote_comm_id: 0,
            info: AdditionalInfo::new(&guid(1).to_be_bytes()),
            ..self.rej(Answered::Other, RejectReason::Timeout)
        }
    }

    pub(crate) fn lap(&self) -> Lap {
        Lap {
            local_comm_id: PEER_ID,
            remote_comm_id: self.our_id,
            remote_qpn: OUR_QPN,
            remote_cm_response_timeout: 20,
            alternate: path(),
            private_data: PrivateData([0; 168]),
        }
    }

    pub(crate) fn apr(&self) -> Apr {
        Apr {
            local_comm_id: PEER_ID,
            remote_comm_id: self.our_id,
            status: AprStatus::Success,
            info: AdditionalInfo::EMPTY,
            private_data: PrivateData([0; 148]),
        }
    }

    /// What has happened, for a table.
    pub(crate) fn outcome(&mut self) -> String {
        let sent: Vec<String> = self.sent().iter().map(name).collect();
        let events: Vec<&str> = self.events().iter().map(kind).collect();
        let state = self.state().map_or("destroyed".to_owned(), |state| format!("{state:?}"));
        format!("{state} | {} | {}", sent.join(", "), events.join(", "))
    }
}

fn path() -> Path {
    Path {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: gid(1).to_bytes(),
        remote_gid: gid(0).to_bytes(),
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 64,
        sl: 0,
        subnet_local: false,
        local_ack_timeout: 14,
    }
}

/// Another service, that nobody listens to.
pub(crate) const NOBODY: ServiceId = ServiceId(0x0106_0001);

fn name(message: &CmMessage) -> String {
    match message {
        CmMessage::Req(_) => "REQ".into(),
        CmMessage::Mra(mra) => format!("MRA({:?})", mra.received),
        CmMessage::Rej(rej) => format!("REJ({:?}) {}", rej.rejected, rej.reason.to_number()),
        CmMessage::Rep(_) => "REP".into(),
        CmMessage::Rtu(_) => "RTU".into(),
        CmMessage::Dreq(_) => "DREQ".into(),
        CmMessage::Drep(_) => "DREP".into(),
        CmMessage::SidrReq(_) => "SIDR_REQ".into(),
        CmMessage::SidrRep(rep) => format!("SIDR_REP {}", rep.status.to_number()),
        CmMessage::Lap(_) => "LAP".into(),
        CmMessage::Apr(apr) => format!("APR {}", apr.status.to_number()),
    }
}
