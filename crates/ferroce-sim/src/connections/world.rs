//! Everything in one run, and how time passes.

use super::act::Act;
use super::plan::Plan;
use super::program::{PORT_SPACES, Place, Program};
use crate::failure::{Checked, Failure, ensure};
use crate::scenario::{Options, Outcome};
use crate::watch::Watch;
use ferroce_cm::Id;
use ferroce_soft::memory::{MemoryFaults, MemoryNetwork, Random, TraceKind};
use ferroce_verbs::Mr;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Until when programs act and the network is bad.
const STORM: Duration = Duration::from_secs(40);
/// Until when everything that was under way is over, and nobody waits for anybody.
const SETTLED: Duration = Duration::from_secs(150);
/// Until when nothing is left of anything.
const OVER: Duration = Duration::from_secs(230);
/// Steps of a run: many times what the worst of the first thousands of seeds takes.
const STEPS: u64 = 5_000_000;

/// How an attempt to connect ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Established,
    /// The peer refused it, or ended it before it was established.
    Rejected,
    TimedOut,
    /// The program, or its end, was first.
    Cancelled,
}

/// An attempt to connect, by whom and to whom.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) to: usize,
    pub(super) deadline: Duration,
    pub(super) fate: Option<Fate>,
    /// One of the two programs has ended since it began.
    pub(super) orphaned: bool,
    pub(super) datagram: bool,
}

/// What a program knows of a connection that it has or is to have.
pub(super) struct Side {
    pub(super) place: usize,
    pub(super) attempt: usize,
    pub(super) active: bool,
    /// `None` once its program has ended.
    pub(super) id: Option<Id>,
    /// Two halves: what it sends, and where it receives.
    pub(super) mr: Option<Mr>,
    pub(super) established: bool,
    pub(super) ended: Option<&'static str>,
    pub(super) destroyed: bool,
    pub(super) received: bool,
}

/// What an id's context says: the number of its side.
pub(super) struct SideNumber(pub(super) usize);

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) network: MemoryNetwork,
    pub(super) watch: Watch,
    pub(super) places: Vec<Place>,
    /// By place.
    pub(super) programs: Vec<Option<Program>>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) sides: Vec<Side>,
    pub(super) outcome: Outcome,
    agenda: BTreeMap<(Duration, u64), Act>,
    next_act: u64,
    /// Hosts to which something has happened, and whether there may be completions.
    touched: Arc<Mutex<BTreeMap<IpAddr, bool>>>,
    steps: u64,
}

impl World {
    pub(super) fn new(plan: Plan, random: Random, options: &Options) -> Checked<Self> {
        let network = MemoryNetwork::new(plan.network.clone());
        let touched = Arc::<Mutex<BTreeMap<IpAddr, bool>>>::default();
        let sink = touched.clone();
        let watch = Watch::with(&network, options, move |event| {
            if matches!(event.kind, TraceKind::Delivered | TraceKind::Timer) {
                // Not to queue pair 1.
                let completes = event.packet.get(5..8) != Some(&[0, 0, 1]);
                *sink.lock().unwrap_or_else(PoisonError::into_inner).entry(event.dst).or_default() |= completes;
            }
        });
        let places: Vec<Place> =
            (0..plan.hosts).flat_map(|host| (0..plan.programs).map(move |program| Place::new(host, program))).collect();
        let mut world = Self {
            programs: places.iter().map(|_| None).collect(),
            places,
            attempts: Vec::new(),
            sides: Vec::new(),
            outcome: Outcome::default(),
            agenda: BTreeMap::new(),
            next_act: 0,
            touched,
            steps: 0,
            random,
            network,
            watch,
            plan,
        };
        for place in 0..world.places.len() {
            world.start(place)?;
        }
        world.plan_acts();
        Ok(world)
    }

    /// A program begins.
    pub(super) fn start(&mut self, place: usize) -> Checked {
        let mut program = Program::start(&self.network, self.places[place], &mut self.random)?;
        if place < self.plan.servers {
            // One of a host's programs may listen at all its addresses.
            let any = self.random.chance(0.3);
            for which in 0..PORT_SPACES.len() {
                program.listen(self.places[place], which, self.plan.backlog, any)?;
            }
        }
        self.programs[place] = Some(program);
        Ok(())
    }

    pub(super) fn now(&self) -> Duration {
        self.network.now()
    }

    /// Plans an act for some time from now on.
    pub(super) fn after(&mut self, within: Duration, act: Act) {
        let delay = Duration::from_nanos(self.random.below(within.as_nanos() as u64 + 1));
        self.at(self.now() + delay, act);
    }

    pub(super) fn at(&mut self, at: Duration, act: Act) {
        self.agenda.insert((at, self.next_act), act);
        self.next_act += 1;
    }

    /// Something happened to a program, or may have: it reads its events some time later.
    pub(super) fn touch(&mut self, place: usize) {
        if let Some(program) = &mut self.programs[place]
            && !program.reading
        {
            program.reading = true;
            self.after(self.plan.lag, Act::Read(place));
        }
    }

    fn touch_hosts(&mut self) {
        let touched = std::mem::take(&mut *self.touched.lock().unwrap_or_else(PoisonError::into_inner));
        for (ip, completes) in touched {
            // Hosts count from 1, and each has as many programs.
            let IpAddr::V4(v4) = ip else { continue };
            let host = (u32::from(v4) & 0xffff) as usize - 1;
            for program in 0..self.plan.programs {
                let place = host * self.plan.programs + program;
                if let Some(program) = &mut self.programs[place] {
                    program.completes |= completes;
                }
                self.touch(place);
            }
        }
    }

    fn run_until(&mut self, end: Duration) -> Checked {
        loop {
            self.touch_hosts();
            let act_at = self.agenda.first_key_value().map_or(Duration::MAX, |(&(at, _), _)| at);
            self.steps += 1;
            ensure!(self.steps < STEPS, "not over after {STEPS} steps");
            if self.network.step_by(act_at.min(end)) {
                continue;
            }
            self.network.advance(act_at.min(end).saturating_sub(self.now()));
            if act_at > end {
                return Ok(());
            }
            if let Some((_, act)) = self.agenda.pop_first() {
                self.act(act)?;
            }
        }
    }

    pub(super) fn run(mut self) -> Result<Outcome, Failure> {
        self.run_until(STORM)?;
        // The network recovers, and what was under way comes to an end.
        let delay = Duration::from_micros(20);
        self.network.set_faults(MemoryFaults { min_delay: delay, max_delay: delay, ..MemoryFaults::default() });
        self.run_until(SETTLED)?;
        self.check_settled()?;
        self.destroy_all()?;
        self.run_until(OVER)?;
        self.check_nothing_left()?;
        let mut outcome = self.outcome;
        outcome.packets = self.network.stats().sent;
        outcome.time = self.network.now();
        outcome.trace = self.watch.hash();
        Ok(outcome)
    }
}
