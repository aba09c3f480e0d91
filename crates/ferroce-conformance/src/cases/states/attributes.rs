//! The attributes of each transition: those required, those allowed, their ranges, and what `query` says of them.

use super::fixture::{SERVICES, Subject, service};
use crate::failure::{Explain, ensure, ensure_eq};
use crate::{Case, CaseResult, Env};
use ferroce_verbs::{Access, AhAttr, GlobalRoute, Mtu, QpAttr, QpState, QpType};

/// An attribute by name: how it is taken out, and how it is put in with a value that is fine in itself.
type Attribute = (&'static str, fn(&mut QpAttr), fn(&mut QpAttr, &Subject));

const ATTRIBUTES: [Attribute; 14] = [
    ("access", |a| a.access = None, |a, _| a.access = Some(Access::REMOTE_READ)),
    ("pkey_index", |a| a.pkey_index = None, |a, _| a.pkey_index = Some(0)),
    ("port_num", |a| a.port_num = None, |a, s| a.port_num = Some(s.end.side.port)),
    ("qkey", |a| a.qkey = None, |a, _| a.qkey = Some(0x77)),
    ("ah_attr", |a| a.ah_attr = None, |a, s| a.ah_attr = Some(*s.ah.attr())),
    ("path_mtu", |a| a.path_mtu = None, |a, _| a.path_mtu = Some(Mtu::Mtu256)),
    ("timeout", |a| a.timeout = None, |a, _| a.timeout = Some(13)),
    ("retry_cnt", |a| a.retry_cnt = None, |a, _| a.retry_cnt = Some(6)),
    ("rnr_retry", |a| a.rnr_retry = None, |a, _| a.rnr_retry = Some(5)),
    ("rq_psn", |a| a.rq_psn = None, |a, _| a.rq_psn = Some(5)),
    ("sq_psn", |a| a.sq_psn = None, |a, _| a.sq_psn = Some(6)),
    ("max_rd_atomic", |a| a.max_rd_atomic = None, |a, _| a.max_rd_atomic = Some(2)),
    ("max_dest_rd_atomic", |a| a.max_dest_rd_atomic = None, |a, _| a.max_dest_rd_atomic = Some(2)),
    ("min_rnr_timer", |a| a.min_rnr_timer = None, |a, _| a.min_rnr_timer = Some(10)),
];

/// A step of the way up, and beside it the steps that stay: what they require and what they allow (IBTA 11.2.5.2,
/// table 94).
struct Step {
    from: QpState,
    to: QpState,
    required: &'static [&'static str],
    optional: &'static [&'static str],
}

fn steps(qp_type: QpType) -> Vec<Step> {
    use QpState::{Init, Reset, Rtr, Rts, Sqd};
    let step = |from, to, required, optional| Step { from, to, required, optional };
    match qp_type {
        QpType::Rc => vec![
            step(Reset, Init, &["pkey_index", "port_num", "access"], &[]),
            step(Init, Init, &[], &["pkey_index", "port_num", "access"]),
            step(
                Init,
                Rtr,
                &["ah_attr", "path_mtu", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer"],
                &["access", "pkey_index"],
            ),
            step(
                Rtr,
                Rts,
                &["sq_psn", "timeout", "retry_cnt", "rnr_retry", "max_rd_atomic"],
                &["access", "min_rnr_timer"],
            ),
            step(Rts, Rts, &[], &["access", "min_rnr_timer"]),
            step(Rts, Sqd, &[], &[]),
            step(Sqd, Rts, &[], &["access", "min_rnr_timer"]),
        ],
        QpType::Uc => vec![
            step(Reset, Init, &["pkey_index", "port_num", "access"], &[]),
            step(Init, Init, &[], &["pkey_index", "port_num", "access"]),
            step(Init, Rtr, &["ah_attr", "path_mtu", "rq_psn"], &["access", "pkey_index"]),
            step(Rtr, Rts, &["sq_psn"], &["access"]),
            step(Rts, Rts, &[], &["access"]),
            step(Rts, Sqd, &[], &[]),
            step(Sqd, Rts, &[], &["access"]),
        ],
        QpType::Ud => vec![
            step(Reset, Init, &["pkey_index", "port_num", "qkey"], &[]),
            step(Init, Init, &[], &["pkey_index", "port_num", "qkey"]),
            step(Init, Rtr, &[], &["pkey_index", "qkey"]),
            step(Rtr, Rts, &["sq_psn"], &["qkey"]),
            step(Rts, Rts, &[], &["qkey"]),
            step(Rts, Sqd, &[], &[]),
            step(Sqd, Rts, &[], &["qkey"]),
        ],
    }
}

pub(super) fn add(all: &mut Vec<Case>) {
    for qp_type in SERVICES {
        let service = service(qp_type);
        all.push(Case::new(format!("attr/{service}/required"), move |env| required(env, qp_type)));
        all.push(Case::new(format!("attr/{service}/optional"), move |env| optional(env, qp_type)));
        all.push(Case::new(format!("attr/{service}/not-allowed"), move |env| not_allowed(env, qp_type)));
        all.push(Case::new(format!("attr/{service}/query-says-what-was-set"), move |env| query(env, qp_type)));
        all.push(Case::new(format!("attr/{service}/believed-state"), move |env| believed(env, qp_type)));
        all.push(Case::new(format!("attr/{service}/of-a-new-queue-pair"), move |env| new_queue_pair(env, qp_type)));
    }
    all.push(Case::new("attr/rc/ranges", ranges));
    all.push(Case::new("attr/rc/all-or-nothing", all_or_nothing));
}

/// Each attribute that a step requires is missed when it is missing, and with all of them the step works.
fn required(env: &Env, qp_type: QpType) -> CaseResult {
    for Step { from, to, required, .. } in steps(qp_type) {
        let subject = Subject::new(env, qp_type, from)?;
        let full = subject.attr(env, to);
        for (name, remove, _) in ATTRIBUTES.iter().filter(|(name, ..)| required.contains(name)) {
            let mut attr = full;
            remove(&mut attr);
            subject.refuses(&attr, &format!("{from} to {to} without {name}"))?;
        }
        if required.contains(&"ah_attr") {
            let attr = QpAttr { dest_qpn: None, ..full };
            subject.refuses(&attr, &format!("{from} to {to} without dest_qpn"))?;
        }
        subject.end.qp.modify(&full).explain(|| format!("{from} to {to}"))?;
    }
    Ok(())
}

/// Each attribute that a step allows is taken.
fn optional(env: &Env, qp_type: QpType) -> CaseResult {
    for Step { from, to, optional, .. } in steps(qp_type) {
        for (name, _, put) in ATTRIBUTES.iter().filter(|(name, ..)| optional.contains(name)) {
            let subject = Subject::new(env, qp_type, from)?;
            let mut attr = subject.attr(env, to);
            if (from, to) == (QpState::Init, QpState::Init) {
                attr = QpAttr::to(to);
            }
            put(&mut attr, &subject);
            subject.end.qp.modify(&attr).explain(|| format!("{from} to {to} with {name}"))?;
            let after = subject.end.qp.query()?;
            match *name {
                "access" => ensure_eq!(after.access, attr.access, "access"),
                "qkey" => ensure_eq!(after.qkey, attr.qkey, "qkey"),
                "min_rnr_timer" => ensure_eq!(after.min_rnr_timer, attr.min_rnr_timer, "min_rnr_timer"),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Each attribute that a step does not know is refused, with the whole step.
fn not_allowed(env: &Env, qp_type: QpType) -> CaseResult {
    for Step { from, to, required, optional } in steps(qp_type) {
        let subject = Subject::new(env, qp_type, from)?;
        for (name, _, put) in
            ATTRIBUTES.iter().filter(|(name, ..)| !required.contains(name) && !optional.contains(name))
        {
            let mut attr = subject.attr(env, to);
            if (from, to) == (QpState::Init, QpState::Init) {
                attr = QpAttr::to(to);
            }
            put(&mut attr, &subject);
            subject.refuses(&attr, &format!("{from} to {to} with {name}"))?;
        }
    }
    Ok(())
}

fn query(env: &Env, qp_type: QpType) -> CaseResult {
    let subject = Subject::new(env, qp_type, QpState::Reset)?;
    let (init, rtr) = (subject.attr(env, QpState::Init), subject.attr(env, QpState::Rtr));
    subject.end.qp.modify(&init)?;
    subject.end.qp.modify(&rtr)?;
    let rts = subject.attr(env, QpState::Rts);
    subject.end.qp.modify(&rts)?;
    let now = subject.end.qp.query()?;
    ensure_eq!(now.state, Some(QpState::Rts), "state");
    ensure_eq!((now.pkey_index, now.port_num), (init.pkey_index, init.port_num), "pkey_index and port_num");
    ensure_eq!(now.sq_psn, rts.sq_psn, "sq_psn");
    if qp_type == QpType::Ud {
        ensure_eq!(now.qkey, init.qkey, "qkey");
        return Ok(());
    }
    ensure_eq!(now.access, init.access, "access");
    ensure_eq!((now.path_mtu, now.dest_qpn, now.rq_psn), (rtr.path_mtu, rtr.dest_qpn, rtr.rq_psn), "of RTR");
    let route = |attr: Option<AhAttr>| attr.map(|attr| (attr.grh, attr.port_num));
    ensure_eq!(route(now.ah_attr), route(rtr.ah_attr), "the peer's address");
    if qp_type == QpType::Rc {
        ensure_eq!(
            (now.max_dest_rd_atomic, now.min_rnr_timer),
            (rtr.max_dest_rd_atomic, rtr.min_rnr_timer),
            "of RTR, RC only"
        );
        ensure_eq!(
            (now.timeout, now.retry_cnt, now.rnr_retry, now.max_rd_atomic),
            (rts.timeout, rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic),
            "of RTS, RC only"
        );
    }
    Ok(())
}

/// A caller that believes the queue pair to be in another state is told so.
fn believed(env: &Env, qp_type: QpType) -> CaseResult {
    let subject = Subject::new(env, qp_type, QpState::Rtr)?;
    let attr = subject.attr(env, QpState::Rts);
    for wrong in [QpState::Rts, QpState::Sqd] {
        subject.refuses(&QpAttr { cur_state: Some(wrong), ..attr }, &format!("RTR to RTS, taken for {wrong}"))?;
    }
    subject.end.qp.modify(&QpAttr { cur_state: Some(QpState::Rtr), ..attr })?;
    ensure_eq!(subject.end.qp.state(), QpState::Rts, "state");
    Ok(())
}

fn new_queue_pair(env: &Env, qp_type: QpType) -> CaseResult {
    let subject = Subject::new(env, qp_type, QpState::Reset)?;
    let qp = &subject.end.qp;
    ensure_eq!(qp.state(), QpState::Reset, "state");
    ensure_eq!(qp.query()?.state, Some(QpState::Reset), "state that is queried");
    ensure_eq!(qp.qp_type(), qp_type, "service");
    ensure!(qp.qp_num() > 1 && qp.qp_num() < 0xff_ffff, "queue pair number {:#x}", qp.qp_num());
    Ok(())
}

/// Values out of range, and names of what does not exist.
fn ranges(env: &Env) -> CaseResult {
    let port = env.a.context.query_port(env.a.port)?;
    let device = env.device()?;
    let subject = Subject::new(env, QpType::Rc, QpState::Reset)?;
    let init = subject.attr(env, QpState::Init);
    for (what, attr) in [
        ("port 0", QpAttr { port_num: Some(0), ..init }),
        ("a port too many", QpAttr { port_num: Some(device.phys_port_cnt + 1), ..init }),
        ("a P_Key index too large", QpAttr { pkey_index: Some(port.pkey_tbl_len), ..init }),
    ] {
        subject.refuses(&attr, what)?;
    }
    subject.end.qp.modify(&init)?;

    let rtr = subject.attr(env, QpState::Rtr);
    let route = subject.ah.attr();
    let nowhere = GlobalRoute { sgid_index: port.gid_tbl_len.saturating_add(9), ..GlobalRoute::new(env.b.gid.gid, 0) };
    let mut wrong = vec![
        ("a PSN of 25 bits", QpAttr { rq_psn: Some(0x100_0000), ..rtr }),
        ("a queue pair number of 25 bits", QpAttr { dest_qpn: Some(0x100_0000), ..rtr }),
        ("an RNR timer code of 6 bits", QpAttr { min_rnr_timer: Some(32), ..rtr }),
        ("a GID index that does not exist", QpAttr { ah_attr: Some(AhAttr { grh: Some(nowhere), ..*route }), ..rtr }),
    ];
    if let Some(more) = device.max_qp_rd_atom.checked_add(1) {
        wrong.push(("more reads to answer than it can", QpAttr { max_dest_rd_atomic: Some(more), ..rtr }));
    }
    if port.ethernet {
        wrong.push(("no route on Ethernet", QpAttr { ah_attr: Some(AhAttr { grh: None, ..*route }), ..rtr }));
    }
    for (what, attr) in wrong {
        subject.refuses(&attr, what)?;
    }
    subject.end.qp.modify(&rtr)?;

    let rts = subject.attr(env, QpState::Rts);
    let mut wrong = vec![
        ("a PSN of 25 bits", QpAttr { sq_psn: Some(0x100_0000), ..rts }),
        ("a timeout of 6 bits", QpAttr { timeout: Some(32), ..rts }),
        ("a retry count of 4 bits", QpAttr { retry_cnt: Some(8), ..rts }),
        ("an RNR retry count of 4 bits", QpAttr { rnr_retry: Some(8), ..rts }),
    ];
    if let Some(more) = device.max_qp_init_rd_atom.checked_add(1) {
        wrong.push(("more reads to ask for than it can", QpAttr { max_rd_atomic: Some(more), ..rts }));
    }
    for (what, attr) in wrong {
        subject.refuses(&attr, what)?;
    }
    subject.end.qp.modify(&rts)?;
    Ok(())
}

/// One bad attribute keeps the good ones out.
fn all_or_nothing(env: &Env) -> CaseResult {
    let subject = Subject::new(env, QpType::Rc, QpState::Rts)?;
    let attr = QpAttr { access: Some(Access::empty()), min_rnr_timer: Some(99), ..QpAttr::to(QpState::Rts) };
    subject.refuses(&attr, "an access change with a timer out of range")?;
    let attr = QpAttr { access: Some(Access::empty()), ..QpAttr::to(QpState::Init) };
    subject.refuses(&attr, "an access change with an illegal transition")?;
    ensure_eq!(subject.end.qp.query()?.access, Some(Access::ALL), "access");
    Ok(())
}
