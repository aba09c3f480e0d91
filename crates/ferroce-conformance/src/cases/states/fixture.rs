//! Queue pairs in any state.

use crate::failure::ensure_eq;
use crate::fixture::{Build, Endpoint, Link, failed};
use crate::{CaseResult, Env, Failure};
use ferroce_verbs::{Ah, EventType, QpAttr, QpState, QpType, SendWr, Sge, UdDest, WcStatus};

/// All states, in the order in which they are numbered.
pub(super) const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

/// All services.
pub(super) const SERVICES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// How a service is written in a case's name.
pub(super) fn service(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "rc",
        QpType::Uc => "uc",
        QpType::Ud => "ud",
    }
}

/// How a state is written in a case's name.
pub(super) fn lower(state: QpState) -> String {
    state.to_string().to_lowercase()
}

/// A queue pair at `a`, whose peer is another at `b` that is not there.
pub(super) struct Subject {
    pub(super) end: Endpoint,
    pub(super) link: Link,
    pub(super) ah: Ah,
}

impl Subject {
    /// In `state`, by the shortest way.
    pub(super) fn new(env: &Env, qp_type: QpType, state: QpState) -> CaseResult<Self> {
        let end = Build::new(qp_type).at(env, &env.a)?;
        let ah = end.pd.create_ah(&Link::route(&env.a, &env.b))?;
        let subject = Self { end, link: Link::default(), ah };
        subject.reach(env, state)?;
        ensure_eq!(subject.end.qp.state(), state, "the state that the case starts in");
        Ok(subject)
    }

    fn reach(&self, env: &Env, state: QpState) -> CaseResult {
        let path: &[QpState] = match state {
            QpState::Reset => &[],
            QpState::Init => &[QpState::Init],
            QpState::Rtr => &[QpState::Init, QpState::Rtr],
            QpState::Rts | QpState::Sqe => &[QpState::Init, QpState::Rtr, QpState::Rts],
            QpState::Sqd => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
            QpState::Err => &[QpState::Init, QpState::Err],
        };
        for &step in path {
            let notify = (step == QpState::Sqd).then_some(true);
            self.end.qp.modify(&QpAttr { en_sqd_async_notify: notify, ..self.attr(env, step) })?;
        }
        if state == QpState::Sqd {
            // A device may take its time to find out that there is nothing to drain, and has less ways out until then (IBTA 10.3.1.5).
            env.wait.event(&self.end.side.context, EventType::SqDrained)?;
        }
        if state == QpState::Sqe {
            // Only an error leads there: a send from memory that is none.
            let nothing = [Sge { addr: 0, length: 1, lkey: 0 }];
            self.end.post(self.addressed(SendWr::send(1, &nothing)))?;
            failed(&self.end.sent()?, 1, WcStatus::LocProtErr, self.end.qp.qp_num())?;
            self.end.reaches(QpState::Sqe)?;
        }
        Ok(())
    }

    /// The attributes with which `state` is reached from the state before it.
    pub(super) fn attr(&self, env: &Env, state: QpState) -> QpAttr {
        const NOBODY: u32 = 0xff_fff0;
        let (end, link) = (&self.end, &self.link);
        match (state, end.qp.qp_type()) {
            (QpState::Init, QpType::Ud) => QpAttr { port_num: Some(end.side.port), ..QpAttr::init_ud(Build::QKEY) },
            (QpState::Init, _) => link.init(end),
            (QpState::Rtr, QpType::Ud) => QpAttr::to(QpState::Rtr),
            (QpState::Rtr, _) => link.rtr(end, &env.b, NOBODY, link.psn.1),
            // From SQD and from itself, RTS takes no sequence number.
            (QpState::Rts, _) => match end.qp.state() {
                QpState::Rts | QpState::Sqd | QpState::Sqe => QpAttr::to(QpState::Rts),
                _ => link.rts(end, link.psn.0),
            },
            _ => QpAttr::to(state),
        }
    }

    /// `wr`, with a destination if the service needs one.
    pub(super) fn addressed<'a>(&'a self, wr: SendWr<'a>) -> SendWr<'a> {
        match self.end.qp.qp_type() {
            QpType::Ud => wr.to(UdDest { ah: &self.ah, qpn: 0xff_fff0, qkey: Build::QKEY }),
            QpType::Rc | QpType::Uc => wr,
        }
    }

    /// Checks that `attr` is refused, and that nothing has changed by it.
    pub(super) fn refuses(&self, attr: &QpAttr, what: &str) -> CaseResult {
        let before = (self.end.qp.state(), self.end.settled_attr()?);
        if self.end.qp.modify(attr).is_ok() {
            return Err(Failure::new(format!("{what} was accepted")));
        }
        let after = (self.end.qp.state(), self.end.settled_attr()?);
        ensure_eq!(after, before, "state and attributes after {what} was refused");
        Ok(())
    }
}
