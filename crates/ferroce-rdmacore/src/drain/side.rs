//! How far each queue of the queue pairs that drain has come. No calls into the library are made here: what is to be done are steps.

use super::{Drained, LAST_WQE_TIME, MARKER_TIME, Rounds, TICK, Wait, Which};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// How far a queue has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// All is out.
    Done,
    /// Its marker waits for a place in the completion queue.
    Queued,
    /// Its marker has a place, and somebody is about to post it: once.
    Posting {
        /// Something was polled meanwhile.
        polled: bool,
        /// Since when it has found no room.
        since: Option<Instant>,
    },
    /// Its marker has a place, and waits for room in the queue itself.
    Full(Instant),
    /// Its marker is posted.
    Posted(Instant),
    /// The last WQE is not reached.
    LastWqe(Option<Instant>),
    /// A round is wanted, once the queue pair is stopped.
    Stopping,
    /// All is out once this round is over. With a marker's place, or without.
    Round(u32, bool),
}

pub(super) enum Step {
    Destroy(Arc<Drained>),
    Post(Arc<Drained>, Which),
}

struct Pair {
    qp: Arc<Drained>,
    cqs: [usize; 2],
    sides: [Side; 2],
}

/// A completion queue.
struct Queue {
    rounds: Arc<Rounds>,
    room: u32,
    waiting: VecDeque<(u32, Which)>,
    /// The queue pairs that complete here.
    members: HashSet<u32>,
    /// The number of the last round, and whether it is under way.
    round: u32,
    under_way: bool,
    /// Somebody waits for the round after that, which has this number.
    next: Option<u32>,
}

#[derive(Default)]
pub(super) struct State {
    pairs: HashMap<u32, Pair>,
    queues: HashMap<usize, Queue>,
    /// Queue pairs by what events name them by.
    ids: HashMap<usize, u32>,
    /// What is to be done.
    dead: Vec<Arc<Drained>>,
    retry: Vec<(u32, Which)>,
    /// Completion queues that have places again, and somebody who waits for them.
    ready: Vec<usize>,
    /// When the time was last looked at.
    looked: Option<Instant>,
    /// Queues in [`Side::LastWqe`].
    unreached: usize,
    /// Queues in [`Side::Full`].
    full: usize,
    /// Entries of all [`Queue::waiting`].
    queued: usize,
    /// The number of the last round of all completion queues: what is said late of one that is gone concerns no other.
    last_round: u32,
}

impl State {
    pub(super) fn add_cq(&mut self, id: usize, room: u32, rounds: Arc<Rounds>) {
        let queue = Queue { room, ..Queue::new(rounds) };
        self.queues.insert(id, queue);
    }

    pub(super) fn remove_cq(&mut self, id: usize) {
        self.cq_failed(id);
        if let Some(queue) = self.queues.remove(&id) {
            self.queued -= queue.waiting.len();
        }
    }

    pub(super) fn cq_failed(&mut self, id: usize) {
        self.finish(id, |_| true);
    }

    pub(super) fn abandon(&mut self) {
        for id in self.queues.keys().copied().collect::<Vec<_>>() {
            self.cq_failed(id);
        }
    }

    /// All is out of what completes on this queue and is as far as that.
    fn finish(&mut self, cq: usize, is_so_far: impl Fn(Side) -> bool) {
        let members: Vec<u32> =
            self.queues.get(&cq).map_or_else(Vec::new, |queue| queue.members.iter().copied().collect());
        for qp_num in members {
            for which in Which::BOTH {
                let of_it = |pair: &Pair| pair.cqs[which as usize] == cq && is_so_far(pair.sides[which as usize]);
                if self.pairs.get(&qp_num).is_some_and(of_it) {
                    self.done(qp_num, which);
                }
            }
        }
    }

    /// Adds a queue pair that is about to be stopped; says for which of its queues the caller posts the markers.
    pub(super) fn add(&mut self, qp: &Arc<Drained>, cqs: [usize; 2], waits: [Wait; 2]) -> [bool; 2] {
        let qp_num = qp.qp_num();
        let mut turns = [false; 2];
        let sides = Which::BOTH.map(|which| match waits[which as usize] {
            Wait::Nothing => Side::Done,
            Wait::LastWqe => {
                self.unreached += 1;
                Side::LastWqe(None)
            }
            Wait::Round => Side::Stopping,
            Wait::Marker => match self.queues.get_mut(&cqs[which as usize]) {
                None => Side::Done,
                Some(queue) if queue.room == 0 || !queue.waiting.is_empty() => {
                    queue.waiting.push_back((qp_num, which));
                    self.queued += 1;
                    Side::Queued
                }
                Some(queue) => {
                    queue.room -= 1;
                    turns[which as usize] = true;
                    Side::POSTING
                }
            },
        });
        for cq in cqs {
            if let Some(queue) = self.queues.get_mut(&cq) {
                queue.members.insert(qp_num);
            }
        }
        self.ids.insert(qp.id(), qp_num);
        self.pairs.insert(qp_num, Pair { qp: qp.clone(), cqs, sides });
        turns
    }

    /// It is stopped, and its markers are posted or found no room.
    pub(super) fn stopped(&mut self, qp_num: u32, posted: [bool; 2], now: Instant) {
        for which in Which::BOTH {
            match self.side(qp_num, which) {
                // One that was polled already is out.
                Some(Side::Posting { .. }) => self.tried(qp_num, which, posted[which as usize], now),
                Some(Side::LastWqe(None)) => self.set(qp_num, which, Side::LastWqe(Some(now))),
                Some(Side::Stopping) => self.want_round(qp_num, which),
                _ => {}
            }
        }
        self.bury(qp_num);
    }

    /// No marker can be waited for.
    pub(super) fn decide_by_rounds(&mut self, qp_num: u32) {
        for which in Which::BOTH {
            if self.side(qp_num, which).is_some_and(|side| side != Side::Done) {
                self.want_round(qp_num, which);
            }
        }
        self.bury(qp_num);
    }

    /// A marker was posted, or not.
    pub(super) fn tried(&mut self, qp_num: u32, which: Which, posted: bool, now: Instant) {
        match self.side(qp_num, which) {
            Some(Side::Posting { .. }) if posted => self.set(qp_num, which, Side::Posted(now)),
            Some(Side::Posting { polled: true, .. }) => self.try_again(qp_num, which, None),
            Some(Side::Posting { since, .. }) => self.set(qp_num, which, Side::Full(since.unwrap_or(now))),
            _ => {}
        }
    }

    pub(super) fn marker(&mut self, qp_num: u32, which: Which) {
        self.done(qp_num, which);
    }

    /// Something of the queue pair was polled.
    pub(super) fn room(&mut self, qp_num: u32) {
        for which in Which::BOTH {
            match self.side(qp_num, which) {
                Some(Side::Full(_)) => self.try_again(qp_num, which, None),
                // It may have been refused before that.
                Some(Side::Posting { since, .. }) => self.set(qp_num, which, Side::Posting { polled: true, since }),
                _ => {}
            }
        }
    }

    fn try_again(&mut self, qp_num: u32, which: Which, since: Option<Instant>) {
        self.set(qp_num, which, Side::Posting { polled: false, since });
        self.retry.push((qp_num, which));
    }

    pub(super) fn last_wqe(&mut self, id: usize) {
        let Some(&qp_num) = self.ids.get(&id) else { return };
        match self.side(qp_num, Which::Recv) {
            Some(Side::LastWqe(None)) => self.set(qp_num, Which::Recv, Side::Stopping),
            Some(Side::LastWqe(Some(_))) => self.want_round(qp_num, Which::Recv),
            _ => {}
        }
    }

    pub(super) fn round_over(&mut self, cq: usize, round: u32) {
        let Some(queue) = self.queues.get_mut(&cq) else { return };
        if !queue.under_way || queue.round != round {
            return;
        }
        queue.under_way = false;
        queue.rounds.end();
        if let Some(next) = queue.next.take() {
            queue.start_round(next);
        }
        self.finish(cq, |side| matches!(side, Side::Round(of, _) if of == round));
    }

    /// Looks at the time.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.looked.is_some_and(|looked| now < looked + TICK) {
            return;
        }
        self.looked = Some(now);
        let (mut late, mut full) = (Vec::new(), Vec::new());
        for (&qp_num, pair) in &self.pairs {
            for which in Which::BOTH {
                let deadline = match pair.sides[which as usize] {
                    Side::Full(since) | Side::Posted(since) => since + MARKER_TIME,
                    Side::LastWqe(Some(since)) => since + LAST_WQE_TIME,
                    _ => continue,
                };
                if now >= deadline {
                    late.push((qp_num, which));
                } else if let Side::Full(since) = pair.sides[which as usize] {
                    full.push((qp_num, which, since));
                }
            }
        }
        for (qp_num, which) in late {
            self.want_round(qp_num, which);
        }
        // Of what succeeded nobody says that it was polled, though that makes room, too.
        for (qp_num, which, since) in full {
            self.try_again(qp_num, which, Some(since));
        }
    }

    /// What is to be done, without a lock.
    pub(super) fn steps(&mut self) -> Vec<Step> {
        for id in std::mem::take(&mut self.ready) {
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            while queue.room > 0
                && let Some((qp_num, which)) = queue.waiting.pop_front()
            {
                self.queued -= 1;
                // Those that ended otherwise are left out.
                if let Some(pair) = self.pairs.get_mut(&qp_num)
                    && pair.sides[which as usize] == Side::Queued
                {
                    queue.room -= 1;
                    pair.sides[which as usize] = Side::POSTING;
                    self.retry.push((qp_num, which));
                }
            }
        }
        let mut steps: Vec<Step> = self.dead.drain(..).map(Step::Destroy).collect();
        let posts = std::mem::take(&mut self.retry);
        // What has ended otherwise since is left out.
        let post = |(qp_num, which): (u32, Which)| {
            let pair = self.pairs.get(&qp_num)?;
            matches!(pair.sides[which as usize], Side::Posting { .. }).then(|| Step::Post(pair.qp.clone(), which))
        };
        steps.extend(posts.into_iter().filter_map(post));
        steps
    }

    /// Whether a device may say that the last WQE is reached.
    pub(super) fn awaits_events(&self) -> bool {
        self.unreached > 0
    }

    /// Whether to look again soon: a device may say that the last WQE is reached, or a queue may have room.
    pub(super) fn looks_often(&self) -> bool {
        self.awaits_events() || self.full != 0
    }

    /// Whether markers wait for places in completion queues.
    pub(super) fn has_queued(&self) -> bool {
        self.queued != 0
    }

    /// Whether there is something to be done now.
    pub(super) fn has_steps(&self) -> bool {
        !(self.dead.is_empty() && self.ready.is_empty() && self.retry.is_empty())
    }

    /// Whether anything has a deadline.
    pub(super) fn is_waiting(&self) -> bool {
        !self.pairs.is_empty()
    }

    fn side(&self, qp_num: u32, which: Which) -> Option<Side> {
        Some(self.pairs.get(&qp_num)?.sides[which as usize])
    }

    /// Changes a side, and counts.
    fn set(&mut self, qp_num: u32, which: Which, side: Side) {
        let Some(pair) = self.pairs.get_mut(&qp_num) else { return };
        let before = std::mem::replace(&mut pair.sides[which as usize], side);
        if matches!(before, Side::LastWqe(_)) && !matches!(side, Side::LastWqe(_)) {
            self.unreached -= 1;
        }
        self.full += usize::from(matches!(side, Side::Full(_)));
        self.full -= usize::from(matches!(before, Side::Full(_)));
        let had_place = before.has_place();
        if had_place
            && !side.has_place()
            && let Some(queue) = self.queues.get_mut(&pair.cqs[which as usize])
        {
            queue.room += 1;
            if !queue.waiting.is_empty() {
                self.ready.push(pair.cqs[which as usize]);
            }
        }
    }

    /// All is out.
    fn done(&mut self, qp_num: u32, which: Which) {
        self.set(qp_num, which, Side::Done);
        self.bury(qp_num);
    }

    /// If all of both queues is out the queue pair is destroyed.
    fn bury(&mut self, qp_num: u32) {
        if self.pairs.get(&qp_num).is_some_and(|pair| pair.sides == [Side::Done; 2])
            && let Some(pair) = self.pairs.remove(&qp_num)
        {
            for cq in pair.cqs {
                if let Some(queue) = self.queues.get_mut(&cq) {
                    queue.members.remove(&qp_num);
                }
            }
            self.ids.remove(&pair.qp.id());
            self.dead.push(pair.qp);
        }
    }

    /// Once a round is over that begins now or later, all is out.
    fn want_round(&mut self, qp_num: u32, which: Which) {
        let Some(pair) = self.pairs.get(&qp_num) else { return };
        let has_place = pair.sides[which as usize].has_place();
        let Some(queue) = self.queues.get_mut(&pair.cqs[which as usize]) else {
            return self.done(qp_num, which);
        };
        let mut next = || {
            // 0 is none.
            self.last_round = self.last_round.checked_add(1).unwrap_or(1);
            self.last_round
        };
        let round = if queue.under_way {
            *queue.next.get_or_insert_with(next)
        } else {
            queue.start_round(next());
            queue.round
        };
        self.set(qp_num, which, Side::Round(round, has_place));
    }
}

impl Side {
    const POSTING: Self = Self::Posting { polled: false, since: None };

    /// Whether a place in the completion queue is taken.
    fn has_place(self) -> bool {
        match self {
            Self::Posting { .. } | Self::Full(_) | Self::Posted(_) => true,
            Self::Round(_, has_place) => has_place,
            Self::Done | Self::Queued | Self::LastWqe(_) | Self::Stopping => false,
        }
    }
}

impl Queue {
    fn new(rounds: Arc<Rounds>) -> Self {
        Self {
            rounds,
            room: 0,
            waiting: VecDeque::new(),
            members: HashSet::new(),
            round: 0,
            under_way: false,
            next: None,
        }
    }

    fn start_round(&mut self, round: u32) {
        self.round = round;
        self.under_way = true;
        self.rounds.begin(self.round);
    }
}
