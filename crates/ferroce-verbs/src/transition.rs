use crate::{Error, QpAttr, QpAttrMask as M, QpState as S, QpType, Result};

/// The attributes that a transition requires and those that it allows besides (IBTA 11.2.5.2, table 94; the kernel's
/// `qp_state_table`). `None` where there is no such transition.
fn rule(qp_type: QpType, from: S, to: S) -> Option<(M, M)> {
    use QpType::{Rc, Uc, Ud};
    let none = M::empty();
    Some(match (from, to) {
        // There is nothing to end, and the kernel refuses it too.
        (S::Reset, S::Err) => return None,
        (_, S::Reset | S::Err) => (none, none),
        (S::Reset, S::Init) => match qp_type {
            Ud => (M::PKEY_INDEX | M::PORT | M::QKEY, none),
            Rc | Uc => (M::PKEY_INDEX | M::PORT | M::ACCESS, none),
        },
        (S::Init, S::Init) => match qp_type {
            Ud => (none, M::PKEY_INDEX | M::PORT | M::QKEY),
            Rc | Uc => (none, M::PKEY_INDEX | M::PORT | M::ACCESS),
        },
        (S::Init, S::Rtr) => match qp_type {
            Ud => (none, M::PKEY_INDEX | M::QKEY),
            Uc => (M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN, M::ACCESS | M::PKEY_INDEX),
            Rc => (
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
                M::ACCESS | M::PKEY_INDEX,
            ),
        },
        (S::Rtr, S::Rts) => match qp_type {
            Ud => (M::SQ_PSN, M::CUR_STATE | M::QKEY),
            Uc => (M::SQ_PSN, M::CUR_STATE | M::ACCESS),
            Rc => (
                M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_RD_ATOMIC,
                M::CUR_STATE | M::ACCESS | M::MIN_RNR_TIMER,
            ),
        },
        (S::Rts, S::Rts) | (S::Sqd, S::Rts) => match qp_type {
            Ud => (none, M::CUR_STATE | M::QKEY),
            Uc => (none, M::CUR_STATE | M::ACCESS),
            Rc => (none, M::CUR_STATE | M::ACCESS | M::MIN_RNR_TIMER),
        },
        (S::Rts, S::Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (S::Sqd, S::Sqd) => match qp_type {
            Ud => (none, M::PKEY_INDEX | M::QKEY),
            Uc => (none, M::AV | M::ACCESS | M::PKEY_INDEX),
            Rc => (
                none,
                M::PORT
                    | M::AV
                    | M::TIMEOUT
                    | M::RETRY_CNT
                    | M::RNR_RETRY
                    | M::MAX_RD_ATOMIC
                    | M::MAX_DEST_RD_ATOMIC
                    | M::ACCESS
                    | M::PKEY_INDEX
                    | M::MIN_RNR_TIMER,
            ),
        },
        (S::Sqe, S::Rts) => match qp_type {
            Ud => (none, M::CUR_STATE | M::QKEY),
            Uc => (none, M::CUR_STATE | M::ACCESS),
            Rc => return None,
        },
        _ => return None,
    })
}

/// Checks that a queue pair of `qp_type` in state `from` may take `attr`, and returns the state it then is in.
///
/// # Errors
///
/// [`Error::Transition`] when there is no such transition, when an attribute that it requires is missing, or when one is
/// given that it does not allow; [`Error::Invalid`] when a value is out of range.
pub fn check_transition(qp_type: QpType, from: S, attr: &QpAttr) -> Result<S> {
    let to = attr.state.unwrap_or(from);
    let fail = |why: String| Error::Transition { qp_type, from, to, why: why.into() };
    if let Some(cur) = attr.cur_state
        && cur != from
    {
        return Err(fail(format!("the caller said that it is in {cur}")));
    }
    let (required, optional) = rule(qp_type, from, to).ok_or_else(|| fail("there is no such transition".into()))?;
    let given = attr.mask() - M::STATE;
    let missing = required - given;
    if !missing.is_empty() {
        return Err(fail(format!("attributes missing: {}", names(missing))));
    }
    let excess = given - required - optional - M::CUR_STATE;
    if !excess.is_empty() {
        return Err(fail(format!("attributes not allowed here: {}", names(excess))));
    }
    check_ranges(attr)?;
    Ok(to)
}

fn check_ranges(attr: &QpAttr) -> Result<()> {
    let most = |what, value: Option<u32>, max: u32| match value {
        Some(value) if value > max => Err(Error::invalid(what, format!("{value} is more than {max}"))),
        _ => Ok(()),
    };
    most("timeout", attr.timeout.map(u32::from), 31)?;
    most("retry_cnt", attr.retry_cnt.map(u32::from), 7)?;
    most("rnr_retry", attr.rnr_retry.map(u32::from), 7)?;
    most("min_rnr_timer", attr.min_rnr_timer.map(u32::from), 31)?;
    most("rq_psn", attr.rq_psn, 0xff_ffff)?;
    most("sq_psn", attr.sq_psn, 0xff_ffff)?;
    most("dest_qpn", attr.dest_qpn, 0xff_ffff)?;
    Ok(())
}

fn names(mask: M) -> String {
    mask.iter_names().map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, AhAttr, Gid, Mtu};

    const STATES: [S; 7] = [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Sqe, S::Err];

    #[test]
    fn only_the_transitions_of_the_specification_exist() {
        for from in STATES {
            for to in STATES {
                let legal = matches!(
                    (from, to),
                    (S::Init | S::Rtr | S::Rts | S::Sqd | S::Sqe | S::Err, S::Err)
                        | (_, S::Reset)
                        | (S::Reset | S::Init, S::Init)
                        | (S::Init, S::Rtr)
                        | (S::Rtr | S::Rts | S::Sqd, S::Rts)
                        | (S::Rts | S::Sqd, S::Sqd)
                );
                assert_eq!(rule(QpType::Rc, from, to).is_some(), legal, "{from} to {to}");
                let unreliable = legal || (from, to) == (S::Sqe, S::Rts);
                assert_eq!(rule(QpType::Ud, from, to).is_some(), unreliable, "{from} to {to}");
            }
        }
    }

    #[test]
    fn each_required_attribute_is_required() {
        let full = QpAttr::rtr(AhAttr::roce(Gid::default(), 0), Mtu::Mtu1024, 5, 7);
        assert_eq!(check_transition(QpType::Rc, S::Init, &full).unwrap(), S::Rtr);
        let without: [fn(&mut QpAttr); 6] = [
            |a| a.ah_attr = None,
            |a| a.path_mtu = None,
            |a| a.dest_qpn = None,
            |a| a.rq_psn = None,
            |a| a.max_dest_rd_atomic = None,
            |a| a.min_rnr_timer = None,
        ];
        for remove in without {
            let mut attr = full;
            remove(&mut attr);
            let error = check_transition(QpType::Rc, S::Init, &attr).unwrap_err();
            assert!(error.to_string().contains("missing"), "{error}");
        }
        let excess = QpAttr { qkey: Some(1), ..full };
        assert!(check_transition(QpType::Rc, S::Init, &excess).is_err());
        let range = QpAttr { rq_psn: Some(0x100_0000), ..full };
        assert!(matches!(check_transition(QpType::Rc, S::Init, &range), Err(Error::Invalid { what: "rq_psn", .. })));
    }

    #[test]
    fn a_wrong_belief_about_the_state_is_refused() {
        let attr = QpAttr { cur_state: Some(S::Rts), ..QpAttr::init(Access::empty()) };
        assert!(check_transition(QpType::Rc, S::Reset, &attr).is_err());
    }
}
