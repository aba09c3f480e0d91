//! Devices that go, and what fails without that.

use super::*;

/// A device that is unplugged: its event, errors that say so, and handles that can all be dropped.
#[test]
fn a_device_that_goes_is_told() {
    let Bench { context, pd, cq, qp } = bench(QpType::Rc);
    qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    fake::unplug();
    let event = context.next_async_event().unwrap().unwrap();
    assert_eq!(event.event_type(), EventType::DeviceFatal);
    let error = cq.req_notify(false).unwrap_err();
    assert!(matches!(error, Error::Device(_)), "{error:?}");
    assert!(error.to_string().contains("the device is gone"), "{error}");
    assert!(matches!(qp.modify(&QpAttr::to(QpState::Err)), Err(Error::Device(_))));
    assert!(matches!(qp.query(), Err(Error::Device(_))));
    drop((qp, cq, pd));
    assert_eq!(counted(&context), [], "with the device the kernel's objects went");
    drop(context);
    assert!(fake::destroyed().is_empty());
}

#[test]
fn nothing_is_a_bad_transition_once_the_device_is_gone() {
    for told in [false, true] {
        let Bench { context, qp, .. } = bench(QpType::Rc);
        fake::unplug();
        if told {
            assert!(context.next_async_event().unwrap().is_some());
            assert_eq!(qp.state(), QpState::Err, "with the device all queue pairs are gone");
        }
        let error = qp.modify(&QpAttr::to(QpState::Sqd)).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error:?}");
        fake::replug();
    }
}

/// A channel's descriptor is closed though its queue could not be destroyed.
#[test]
fn no_descriptor_is_left() {
    let context = fake::open();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(8, Some(&channel)).unwrap();
    fake::unplug();
    drop(cq);
    assert_eq!(fake::open_channels(), 1);
    drop(channel);
    assert_eq!(fake::open_channels(), 0);
    assert_eq!(counted(&context), []);
}

/// `ENODEV` may be about an address, `EIO` about a command.
#[test]
fn a_number_alone_does_not_say_that_the_device_is_gone() {
    let Bench { pd, qp, .. } = bench(QpType::Rc);
    for number in [libc::ENODEV, libc::ENXIO, libc::EIO] {
        fake::fail("create_ah", number);
        fake::fail("modify_qp", number);
        for error in [pd.create_ah(&peer()).err(), qp.modify(&QpAttr::to(QpState::Sqd)).err()] {
            assert!(
                matches!(&error, Some(Error::Os { source, .. }) if source.raw_os_error() == Some(number)),
                "{error:?}"
            );
        }
    }
    fake::fail("create_ah", 0);
    pd.create_ah(&peer()).unwrap();
    fake::unplug();
    let error = qp.modify(&QpAttr::to(QpState::Sqd)).unwrap_err();
    assert!(error.to_string().contains("the device is gone"), "{error}");
}

#[test]
fn a_question_that_failed_is_no_answer() {
    let Bench { cq, qp, .. } = bench(QpType::Rc);
    // A completion that failed casts doubt; the device has not changed the state.
    fake::complete(qp.qp_num(), value::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(polled(&cq).len(), 1);
    fake::fail("query_qp", libc::ENOMEM);
    assert_eq!(qp.state(), QpState::Rts);
    fake::fail("query_qp", 0);
    assert_eq!(qp.state(), QpState::Rts);
    fake::fail_qp(qp.qp_num());
    assert_eq!(qp.state(), QpState::Err, "it was asked again");
}

/// Events about something else than the queue pair say that its state may be another.
#[test]
fn events_of_what_a_queue_pair_needs_cast_doubt() {
    for (kind, what) in [(value::IBV_EVENT_CQ_ERR, "cq"), (value::IBV_EVENT_DEVICE_FATAL, "context")] {
        let Bench { context, qp, .. } = bench(QpType::Rc);
        fake::fail_qp(qp.qp_num());
        assert_eq!(qp.state(), QpState::Rts, "nobody has seen it yet");
        fake::raise(kind, what);
        assert!(context.next_async_event().unwrap().is_some());
        assert_eq!(qp.state(), QpState::Err);
    }
}

/// What was taken out of the library does not come again.
#[test]
fn completions_before_one_that_cannot_be_read_are_not_lost() {
    for readable in [0, 3, 16, 20] {
        let Bench { cq, qp, .. } = bench(QpType::Rc);
        for wr_id in 0..30 {
            qp.post_recv(&[RecvWr::new(wr_id, &[])]).unwrap();
        }
        fake::fail_qp(qp.qp_num());
        fake::break_after(readable);
        let mut out = [WorkCompletion::default(); 30];
        if readable != 0 {
            assert_eq!(cq.poll(&mut out).unwrap(), readable);
            assert!(out[..readable].iter().map(|wc| wc.wr_id).eq(0..readable as u64));
        }
        let error = cq.poll(&mut out).unwrap_err();
        assert!(error.to_string().contains("broken") && error.to_string().contains("-2"), "{error}");
        assert_eq!(cq.poll(&mut out).unwrap(), 30 - readable, "it is told once");
    }
}

/// A receive that is posted in ERR, and a change that overlaps: the note is not what either says.
#[test]
fn flushing_again_is_a_change_like_others() {
    let Bench { cq, qp, .. } = bench(QpType::Rc);
    qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    let other = qp.clone();
    fake::during_modify(move || other.modify(&QpAttr::to(QpState::Reset)).unwrap());
    qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    // The one of the two that the device saw last; no completion has said so yet.
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(polled(&cq), [(1, WcStatus::WrFlushErr)]);
}

/// That nothing can be made at the moment says nothing about inline data.
#[test]
fn inline_data_is_found_out_when_it_can_be() {
    let context = fake::open();
    fake::fail("create_qp", libc::ENOMEM);
    assert_eq!(context.query_device().unwrap().max_inline_data, 0);
    fake::fail("create_qp", 0);
    assert_eq!(context.query_device().unwrap().max_inline_data, 1024);
}

/// That nobody says how packets leave does not mean that nothing about it can change.
#[test]
fn a_way_that_cannot_be_looked_up_is_unknown() {
    let Bench { pd, .. } = bench(QpType::Ud);
    // It says nothing without its interface, which the GID table does not have.
    let local = AhAttr::roce("fe80::9".parse::<std::net::Ipv6Addr>().unwrap().into(), 99);
    assert_eq!(pd.create_ah(&local).unwrap().link_layer(), Some(LinkLayer::UNKNOWN));
    let group = AhAttr::roce(Ipv4Addr::new(224, 0, 0, 9).into(), 1);
    assert_eq!(pd.create_ah(&group).unwrap().link_layer(), None);
}
