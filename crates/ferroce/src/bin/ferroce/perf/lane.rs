//! The two ends of one queue pair's stream: what keeps its send queue full, and what keeps its receive queue full.

use super::plan::Plan;
use crate::completions::BATCH;
use crate::failure::{Failure, Result};
use ferroce::{Data, Qp, RecvWr, SendFlags, SendOp, SendWr, Sge, WorkCompletion};

/// Marks the completion of a receive; the rest of the number is the lane.
pub(crate) const RECV: u64 = 1 << 63;

/// Keeps a send queue full. Its work requests are made once: posting copies a slice of them.
pub(crate) struct SendLane<'a> {
    qp: &'a Qp,
    /// Consecutive requests, every `cq_mod`-th signaled, from which any list that starts at any phase can be cut.
    pattern: Vec<SendWr<'a>>,
    /// Like any of them; its `wr_id` says which lane it is.
    last: SendWr<'a>,
    depth: u64,
    post_list: u64,
    cq_mod: u64,
    /// How many to post in all.
    quota: u64,
    posted: u64,
    completed: u64,
}

/// What a completion says: its lane, and how many requests it stands for.
pub(crate) fn decode(wr_id: u64) -> (usize, u64) {
    ((wr_id >> 32) as usize, wr_id & 0xffff_ffff)
}

fn encode(lane: usize, count: u64) -> u64 {
    (lane as u64) << 32 | count
}

impl<'a> SendLane<'a> {
    pub(crate) fn new(qp: &'a Qp, lane: usize, plan: &Plan, op: SendOp, data: Data<'a>) -> Self {
        let (cq_mod, post_list) = (u64::from(plan.cq_mod), u64::from(plan.post_list));
        let one = SendWr { wr_id: encode(lane, cq_mod), op, data, flags: SendFlags::empty(), ud: None };
        let request = |at| if (at + 1) % cq_mod == 0 { one.flags(SendFlags::SIGNALED) } else { one };
        let pattern = (0..cq_mod + post_list - 1).map(request).collect();
        Self {
            qp,
            pattern,
            last: one.flags(SendFlags::SIGNALED),
            depth: plan.depth.into(),
            post_list,
            cq_mod,
            quota: 0,
            posted: 0,
            completed: 0,
        }
    }

    /// Starts over, with `quota` requests to post.
    pub(crate) fn restart(&mut self, quota: u64) {
        (self.quota, self.posted, self.completed) = (quota, 0, 0);
    }

    /// Posts nothing more, but for one request that completes those that are not signaled.
    pub(crate) fn finish(&mut self) {
        let tail = u64::from(!self.posted.is_multiple_of(self.cq_mod));
        self.quota = self.quota.min(self.posted + tail);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.completed == self.quota
    }

    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Counts `count` requests as complete.
    #[inline]
    pub(crate) fn complete(&mut self, count: u64) {
        self.completed += count;
    }

    /// Posts what there is room for, in lists of `post_list`.
    #[inline]
    pub(crate) fn top_up(&mut self) -> Result<()> {
        while let Some((phase, len)) = self.next_list() {
            let ends_here = self.posted + len == self.quota;
            let tail = (self.posted + len) % self.cq_mod;
            let list = &self.pattern[phase..phase + len as usize];
            if ends_here && tail != 0 {
                // The very last request is signaled, for those that no other completion covers.
                let (list, mut last) = (&list[..list.len() - 1], self.last);
                last.wr_id = self.last.wr_id >> 32 << 32 | tail;
                self.qp.post_send(list).and_then(|()| self.qp.post_send(&[last])).map_err(post_failure)?;
            } else {
                self.qp.post_send(list).map_err(post_failure)?;
            }
            self.posted += len;
        }
        Ok(())
    }

    /// Where in the pattern the next list starts and how long it is; `None` if it is better to wait.
    #[inline]
    fn next_list(&self) -> Option<(usize, u64)> {
        let outstanding = self.posted - self.completed;
        let wanted = self.post_list.min(self.quota - self.posted);
        let len = wanted.min(self.depth - outstanding);
        // A short list is posted only if no completion is on its way that would make room for a long one.
        let completion_due = outstanding >= self.cq_mod;
        (len > 0 && (len == wanted || !completion_due)).then_some(((self.posted % self.cq_mod) as usize, len))
    }
}

fn post_failure(error: ferroce::PostError) -> Failure {
    Failure::from(error).during("posting sends")
}

/// Keeps the receive queues of all queue pairs full, in lists.
pub(crate) struct RecvLanes<'a> {
    lanes: Vec<RecvLane<'a>>,
    size: u32,
    received: u64,
}

struct RecvLane<'a> {
    qp: &'a Qp,
    list: Vec<RecvWr<'a>>,
    consumed: usize,
}

impl<'a> RecvLanes<'a> {
    /// Receives messages of `size` bytes into `sges`, in the receives that [`post_all`] posted.
    pub(crate) fn new(qps: &'a [Qp], plan: &Plan, size: u32, sges: &'a [Sge]) -> Self {
        let list_len = (plan.rx_depth() as usize / 4).min(BATCH);
        let lane = |(at, qp)| RecvLane { qp, list: vec![RecvWr::new(RECV | at as u64, sges); list_len], consumed: 0 };
        Self { lanes: qps.iter().enumerate().map(lane).collect(), size, received: 0 }
    }

    /// Messages received.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Counts a receive that is complete.
    #[inline]
    pub(crate) fn complete(&mut self, wc: &WorkCompletion) -> Result<()> {
        if !wc.is_ok() {
            return Err(Failure::completion("a receive", wc));
        }
        if wc.byte_len != self.size {
            return Err(Failure::run(format!("a message has {} bytes in place of {}", wc.byte_len, self.size)));
        }
        self.received += 1;
        let lane = &mut self.lanes[(wc.wr_id & !RECV) as usize];
        lane.consumed += 1;
        Ok(())
    }

    /// Posts receives in place of those that lane `at` has consumed, if they make a list.
    #[inline]
    pub(crate) fn refill(&mut self, at: usize) -> Result<()> {
        let lane = &mut self.lanes[at];
        if lane.consumed >= lane.list.len() {
            lane.consumed -= lane.list.len();
            lane.qp.post_recv(&lane.list).map_err(recv_failure)?;
        }
        Ok(())
    }

    /// Posts receives in place of all that were consumed, so that the next run finds all of them.
    pub(crate) fn refill_all(&mut self) -> Result<()> {
        for lane in &mut self.lanes {
            while lane.consumed > 0 {
                let now = lane.consumed.min(lane.list.len());
                lane.qp.post_recv(&lane.list[..now]).map_err(recv_failure)?;
                lane.consumed -= now;
            }
        }
        Ok(())
    }
}

fn recv_failure(error: ferroce::PostError) -> Failure {
    Failure::from(error).during("posting receives")
}

/// Posts the first receives of each queue pair.
pub(crate) fn post_all(qps: &[Qp], plan: &Plan, sges: &[Sge]) -> Result<()> {
    for (at, qp) in qps.iter().enumerate() {
        let all = vec![RecvWr::new(RECV | at as u64, sges); plan.rx_depth() as usize];
        qp.post_recv(&all).map_err(recv_failure)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Mode, Op};
    use super::*;
    use ferroce::provider::QpOps;
    use ferroce::{Error, Gid, PostError, QpAttr, QpCap, QpState, QpType};
    use std::sync::{Arc, Mutex};

    /// A queue pair that keeps the flags and the numbers of what is posted.
    #[derive(Default)]
    struct Recorder {
        sends: Mutex<Vec<(bool, u64)>>,
        lists: Mutex<Vec<usize>>,
    }

    impl QpOps for Recorder {
        fn qp_num(&self) -> u32 {
            1
        }
        fn qp_type(&self) -> QpType {
            QpType::Rc
        }
        fn cap(&self) -> QpCap {
            QpCap::default()
        }
        fn state(&self) -> QpState {
            QpState::Rts
        }
        fn modify(&self, _: &QpAttr) -> ferroce::Result<()> {
            Ok(())
        }
        fn query(&self) -> ferroce::Result<QpAttr> {
            Ok(QpAttr::default())
        }
        fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
            if !wrs.is_empty() {
                self.lists.lock().unwrap().push(wrs.len());
            }
            let flags = wrs.iter().map(|wr| (wr.flags.contains(SendFlags::SIGNALED), wr.wr_id));
            self.sends.lock().unwrap().extend(flags);
            Ok(())
        }
        fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
            self.lists.lock().unwrap().push(wrs.len());
            Ok(())
        }
        fn attach_mcast(&self, _: Gid) -> ferroce::Result<()> {
            Err(Error::Unsupported { what: "multicast", by: "test" })
        }
        fn detach_mcast(&self, _: Gid) -> ferroce::Result<()> {
            Err(Error::Unsupported { what: "multicast", by: "test" })
        }
    }

    fn plan(depth: u32, post_list: u32, cq_mod: u32) -> Plan {
        Plan { depth, post_list, cq_mod, ..Plan::new(Op::Send, Mode::Bw) }
    }

    /// Runs a lane to its end; every completion comes when nothing more can be posted.
    fn drive(plan: &Plan, quota: u64, finish_after: Option<u64>) -> (Vec<(bool, u64)>, u64) {
        let recorder = Arc::new(Recorder::default());
        let qp = Qp::from_ops(recorder.clone());
        let mut lane = SendLane::new(&qp, 3, plan, SendOp::Send, Data::Inline(&[]));
        lane.restart(quota);
        let mut seen = 0;
        loop {
            lane.top_up().unwrap();
            let outstanding = lane.posted - lane.completed;
            assert!(outstanding <= u64::from(plan.depth));
            if finish_after.is_some_and(|after| lane.posted >= after) {
                lane.finish();
                lane.top_up().unwrap();
            }
            if lane.is_done() {
                break;
            }
            let sends = recorder.sends.lock().unwrap();
            let next = sends[seen..].iter().position(|(signaled, _)| *signaled).expect("a completion is due");
            let (at, count) = decode(sends[seen + next].1);
            assert_eq!((at, count), (3, next as u64 + 1), "a completion stands for all since the one before");
            seen += next + 1;
            drop(sends);
            lane.complete(count);
        }
        let sends = recorder.sends.lock().unwrap().clone();
        (sends, lane.posted)
    }

    #[test]
    fn every_request_is_covered_by_one_completion() {
        for depth in [1, 2, 5, 8, 64] {
            for post_list in 1..=depth.min(9) {
                for cq_mod in 1..=depth.min(9) {
                    for quota in [1, 2, 7, 8, 100, 101] {
                        let (sends, posted) = drive(&plan(depth, post_list, cq_mod), quota, None);
                        assert_eq!((sends.len() as u64, posted), (quota, quota));
                        assert!(sends.last().unwrap().0, "the last one is signaled");
                    }
                }
            }
        }
    }

    #[test]
    fn a_lane_that_is_told_to_finish_posts_at_most_one_more() {
        for cq_mod in [1, 3, 8] {
            let (sends, posted) = drive(&plan(8, 2, cq_mod), u64::MAX, Some(20));
            assert_eq!(sends.len() as u64, posted);
            assert!((20..20 + 10).contains(&posted), "{posted}");
            assert!(sends.last().unwrap().0);
        }
    }

    #[test]
    fn lists_are_whole_where_completions_make_room_for_them() {
        let recorder = Arc::new(Recorder::default());
        let qp = Qp::from_ops(recorder.clone());
        let plan = plan(256, 32, 32);
        let mut lane = SendLane::new(&qp, 0, &plan, SendOp::Send, Data::Inline(&[]));
        lane.restart(u64::MAX);
        for _ in 0..100 {
            lane.top_up().unwrap();
            lane.complete(32);
        }
        assert!(recorder.lists.lock().unwrap().iter().all(|&len| len == 32));
    }

    #[test]
    fn receives_are_posted_in_lists() {
        let recorder = Arc::new(Recorder::default());
        let qps = [Qp::from_ops(recorder.clone())];
        let plan = plan(64, 1, 1);
        let mut lanes = RecvLanes::new(&qps, &plan, 8, &[]);
        let mut wc = WorkCompletion::new(RECV, ferroce::WcOpcode::Recv, 1);
        wc.byte_len = 8;
        for _ in 0..40 {
            lanes.complete(&wc).unwrap();
            lanes.refill(0).unwrap();
        }
        assert_eq!(*recorder.lists.lock().unwrap(), [32]);
        lanes.refill_all().unwrap();
        assert_eq!(*recorder.lists.lock().unwrap(), [32, 8]);
        assert_eq!(lanes.received(), 40);
        wc.byte_len = 7;
        assert!(lanes.complete(&wc).is_err());
    }
}
