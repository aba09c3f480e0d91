//! What is measured, against whom, and how good it has to be. Everything that one may want to change is in this directory.

mod connections;
mod handles;
mod peers;
mod transports;
mod verbs;

use std::cell::RefCell;
use std::time::Duration;

use serde_json::Value;

use super::ours::{self, Programs};
use crate::error::Error;

pub(super) use connections::BED;

/// What the run of a contender may use.
pub(super) struct Setting {
    pub(super) programs: Programs,
    /// How long one run measures.
    pub(super) time: Duration,
    /// Which round it is, from 0: a seed for what is random.
    pub(super) round: u32,
    /// What programs said that measure several figures in one run, and in which round.
    said: RefCell<Vec<(u32, String, Value)>>,
}

impl Setting {
    pub(super) fn new(programs: Programs, time: Duration) -> Self {
        Self { programs, time, round: 0, said: RefCell::default() }
    }

    /// A figure of the document of `ferroce` with these arguments.
    fn document<T>(&self, args: &[&str], value: impl FnOnce(&Value) -> Option<T>) -> Result<T, Error> {
        let name = format!("ferroce {}", args.join(" "));
        self.once(name, || self.programs.ferroce(args), value)
    }

    /// A figure of what `run` says, which is run once a round, however many of its figures are asked for.
    fn once<T>(
        &self,
        name: String,
        run: impl FnOnce() -> Result<Value, Error>,
        value: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Error> {
        let mut said = self.said.borrow_mut();
        let at = said.iter().position(|(round, other, _)| *round == self.round && *other == name);
        let at = match at {
            Some(at) => at,
            None => {
                said.push((self.round, name.clone(), run()?));
                said.len() - 1
            }
        };
        ours::found(name, &said[at].2, value)
    }

    /// A number of repetitions, fewer if less than a second is to be measured.
    fn times(&self, number: f64) -> String {
        (number * self.share()).ceil().to_string()
    }

    /// The measured time as a share of a second.
    fn share(&self) -> f64 {
        self.time.as_secs_f64()
    }
}

/// Measures once; the figure is in the unit of the group.
pub(super) type Run = fn(&Setting) -> Result<f64, Error>;

/// Figures that are measured alternately.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    pub(super) ours: Run,
    pub(super) against: &'static [Against],
}

/// What our figure is compared with.
pub(super) enum Against {
    /// Another program, or ourselves under other conditions. The bar is for the ratio, ours to the peer's.
    Peer { name: &'static str, bar: Option<Bar>, run: Run },
    /// Nothing: the bar is for our figure.
    Alone(Bar),
}

/// How good it has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    pub(super) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "<= {limit}"),
            Self::AtLeast(limit) => write!(f, ">= {limit}"),
        }
    }
}

/// All that is measured, in the order of the table.
pub(super) fn groups() -> impl Iterator<Item = &'static Group> {
    [verbs::GROUPS, connections::GROUPS, handles::GROUPS, transports::GROUPS].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_include_their_limit() {
        assert!(Bar::AtMost(1.5).is_met(1.5) && !Bar::AtMost(1.5).is_met(1.51));
        assert!(Bar::AtLeast(0.5).is_met(0.5) && !Bar::AtLeast(0.5).is_met(0.49));
        assert!(!Bar::AtLeast(0.5).is_met(f64::NAN) && !Bar::AtMost(0.5).is_met(f64::NAN));
        assert_eq!((Bar::AtMost(1.0).to_string(), Bar::AtLeast(0.5).to_string()), ("<= 1".into(), ">= 0.5".into()));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = groups().map(|group| group.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), groups().count());
    }
}
