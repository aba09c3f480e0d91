//! Every pair of states: the transition between them works, or is refused.

use super::fixture::{SERVICES, STATES, Subject, lower, service};
use crate::failure::{Explain, ensure_eq};
use crate::fixture::{Build, Link, Pair, UdPair};
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{QpAttr, QpState, QpType};

pub(super) fn add(all: &mut Vec<Case>) {
    for qp_type in SERVICES {
        for from in STATES {
            // RC has no SQE: an error of its send queue is an error of the queue pair.
            if qp_type == QpType::Rc && from == QpState::Sqe {
                continue;
            }
            for to in STATES {
                let is_legal = legal(qp_type, from, to);
                let verb = if is_legal { "works" } else { "is-refused" };
                let name = format!("state/{}/{}-to-{}-{verb}", service(qp_type), lower(from), lower(to));
                all.push(Case::new(name, move |env| transition(env, qp_type, from, to, is_legal)));
            }
        }
        let name = format!("state/{}/starts-anew-from-any", service(qp_type));
        all.push(Case::new(name, move |env| starts_anew(env, qp_type)));
    }
    all.push(Case::new("state/rc/works-again-after-error", |env| works_again(env, QpType::Rc)));
    all.push(Case::new("state/uc/works-again-after-error", |env| works_again(env, QpType::Uc)));
    all.push(Case::new("state/ud/works-again-after-error", ud_works_again));
}

/// IBTA 10.3.1, and the kernel's `qp_state_table`, which knows no way from RESET to ERR.
fn legal(qp_type: QpType, from: QpState, to: QpState) -> bool {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    match (from, to) {
        (Reset, Err) => false,
        (_, Reset | Err) => true,
        (Reset | Init, Init) | (Init, Rtr) | (Rtr | Rts | Sqd, Rts) | (Rts | Sqd, Sqd) => true,
        (Sqe, Rts) => qp_type != QpType::Rc,
        _ => false,
    }
}

fn transition(env: &Env, qp_type: QpType, from: QpState, to: QpState, is_legal: bool) -> CaseResult {
    let subject = Subject::new(env, qp_type, from)?;
    let attr = subject.attr(env, to);
    if is_legal {
        subject.end.qp.modify(&attr)?;
        ensure_eq!(subject.end.qp.state(), to, "state after the transition");
        ensure_eq!(subject.end.qp.query()?.state, Some(to), "state that is queried");
        return Ok(());
    }
    subject.refuses(&attr, "the transition")?;
    // The attributes that the state of departure would take do not help.
    subject.refuses(&QpAttr::to(to), "the transition without attributes")?;
    // And nothing is broken: the way to RESET is open, and from there the way to INIT.
    subject.end.qp.modify(&QpAttr::to(QpState::Reset))?;
    subject.end.qp.modify(&subject.attr(env, QpState::Init))?;
    Ok(())
}

/// From RESET, wherever it was before, the whole way up works.
fn starts_anew(env: &Env, qp_type: QpType) -> CaseResult {
    for from in STATES {
        if qp_type == QpType::Rc && from == QpState::Sqe {
            continue;
        }
        let subject = Subject::new(env, qp_type, from)?;
        for to in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Rts] {
            let step = subject.end.qp.modify(&subject.attr(env, to));
            step.explain(|| format!("from {from} by RESET to {to}"))?;
        }
    }
    Ok(())
}

fn works_again(env: &Env, qp_type: QpType) -> CaseResult {
    let pair = Pair::new(env, &Build::new(qp_type), &Link::default())?;
    for _ in 0..3 {
        pair.a.qp.modify(&QpAttr::to(QpState::Err))?;
        pair.b.qp.modify(&QpAttr::to(QpState::Err))?;
        pair.reconnect()?;
        pair.round_trip()?;
    }
    Ok(())
}

fn ud_works_again(env: &Env) -> CaseResult {
    let pair = UdPair::new(env)?;
    for round in 0..3 {
        for end in [&pair.a, &pair.b] {
            end.qp.modify(&QpAttr::to(QpState::Err))?;
            end.qp.modify(&QpAttr::to(QpState::Reset))?;
            end.ready_ud(Build::QKEY)?;
        }
        pair.deliver(round, b"again")?;
    }
    Ok(())
}
