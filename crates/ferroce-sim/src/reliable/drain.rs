//! Send queues that drain in the middle of traffic (SQD), and go on.

use super::world::World;
use crate::failure::{Checked, ensure};
use ferroce_verbs::{AsyncEvent, EventType, QpAttr, QpState};

/// How far the send queue of an end is with draining.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Drain {
    /// It is not.
    #[default]
    No,
    /// What was begun is still being completed.
    Begun,
    /// The event said that it is done: nothing completes with success any more.
    Done,
}

impl World {
    /// Lets the send queue of `end` drain, or go on if it does already.
    pub(super) fn toggle_drain(&mut self, end: usize) -> Checked {
        self.take_events()?;
        if self.ends[end].drain != Drain::No {
            return self.end_drain(end);
        }
        let end = &mut self.ends[end];
        if end.qp.state() == QpState::Rts {
            end.drain = Drain::Begun;
            end.qp.modify(&QpAttr { en_sqd_async_notify: Some(true), ..QpAttr::to(QpState::Sqd) })?;
        }
        Ok(())
    }

    /// Lets the send queue of `end` go on, whether it is drained or not.
    fn end_drain(&mut self, end: usize) -> Checked {
        let now = self.network.now();
        let end = &mut self.ends[end];
        end.drain = Drain::No;
        end.resumed = now;
        // Its connection may have failed meanwhile.
        if end.qp.state() == QpState::Sqd {
            end.qp.modify(&QpAttr::to(QpState::Rts))?;
        }
        // An event of this time must not be taken for one of the next.
        self.take_events()
    }

    /// Nothing happens any more: then every queue that drains is drained. All go on; returns whether there were any.
    pub(super) fn end_drains(&mut self) -> Checked<bool> {
        self.take_events()?;
        let mut any = false;
        for index in self.ends.numbers() {
            let end = &self.ends[index];
            if end.drain == Drain::No {
                continue;
            }
            let drained = end.drain == Drain::Done || end.qp.state() != QpState::Sqd;
            ensure!(drained, "the network is at rest and the send queue of end {index} is not drained");
            self.end_drain(index)?;
            any = true;
        }
        Ok(any)
    }

    /// Takes the events of all contexts: what they report must be what can have happened.
    pub(super) fn take_events(&mut self) -> Checked {
        use EventType as E;
        for context in self.contexts.numbers() {
            while let Some(event) = self.contexts[context].context.next_async_event()? {
                match event {
                    AsyncEvent::Qp(E::SqDrained, qp) => {
                        let index = self.ends.iter().find(|end| end.qp == qp).map(|end| end.index);
                        let Some(index) = index else { continue };
                        ensure!(self.ends[index].drain != Drain::Done, "end {index} was drained twice");
                        // What completed before the event is there now.
                        while self.poll(self.ends[index].send_cq, 16)? != 0 {}
                        if self.ends[index].drain == Drain::Begun {
                            self.ends[index].drain = Drain::Done;
                        }
                    }
                    AsyncEvent::Qp(E::CommEst | E::QpLastWqeReached, _) | AsyncEvent::Srq(E::SrqLimitReached, _) => {}
                    _ => ensure!(false, "event {event:?}"),
                }
            }
        }
        Ok(())
    }
}
