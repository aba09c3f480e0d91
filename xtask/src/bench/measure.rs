//! Runs the contenders of a group in turn, and sums up.

use super::table::{Against, Bar, Group, Run, Setting};
use crate::error::Error;

/// Figures of one contender, one a round.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    /// The middle figure, or the mean of the middle two.
    pub(super) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            len if len % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    pub(super) fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(super) fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

/// One line of the result: ours, and what it is compared with.
#[derive(Clone)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    pub(super) ours: Samples,
    pub(super) peer: Option<(&'static str, Samples)>,
    pub(super) bar: Option<Bar>,
}

impl Row {
    /// Ours to the peer's, of the medians.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.peer.as_ref().map(|(_, peer)| self.ours.median() / peer.median())
    }

    pub(super) fn met(&self) -> Option<bool> {
        Some(self.bar?.is_met(self.ratio().unwrap_or_else(|| self.ours.median())))
    }
}

/// Measures all of a group `rounds` times: ours, each peer, ours, each peer, so that what disturbs the machine for a while disturbs all.
///
/// `before` is told what comes next.
pub(super) fn group(
    group: &Group,
    rounds: u32,
    setting: &mut Setting,
    mut before: impl FnMut(&'static str, u32),
) -> Result<Vec<Row>, Error> {
    let peers = group.against.iter().filter_map(|against| match against {
        Against::Peer { name, run, .. } => Some((*name, *run)),
        Against::Alone(_) => None,
    });
    let mut contenders: Vec<(&'static str, Run, Samples)> = Vec::new();
    for (name, run) in std::iter::once(("ferroce", group.ours)).chain(peers) {
        contenders.push((name, run, Samples(Vec::new())));
    }
    for round in 0..rounds {
        setting.round = round;
        for (name, run, samples) in &mut contenders {
            before(name, round);
            samples.0.push(run(setting)?);
        }
    }
    let mut figures = contenders.into_iter().map(|(name, _, samples)| (name, samples));
    let (_, ours) = figures.next().expect("ours is the first contender");
    let row = |peer, bar| Row { name: group.name, what: group.what, unit: group.unit, ours: ours.clone(), peer, bar };
    Ok(group
        .against
        .iter()
        .map(|against| match against {
            Against::Peer { bar, .. } => row(figures.next(), *bar),
            Against::Alone(bar) => row(None, Some(*bar)),
        })
        .collect())
}

/// How many runs a group takes.
pub(super) fn runs(group: &Group, rounds: u32) -> u64 {
    let peers = group.against.iter().filter(|against| matches!(against, Against::Peer { .. })).count();
    (1 + peers as u64) * u64::from(rounds)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A line for tests.
    pub(in crate::bench) fn row(ours: &[f64], peer: Option<&[f64]>, bar: Option<Bar>) -> Row {
        Row {
            name: "a-row",
            what: "something",
            unit: "µs",
            ours: Samples(ours.to_vec()),
            peer: peer.map(|peer| ("somebody", Samples(peer.to_vec()))),
            bar,
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Samples(vec![9.0, 1.0, 5.0]).median(), 5.0);
        assert_eq!(Samples(vec![9.0, 1.0, 5.0, 3.0]).median(), 4.0);
        assert!(Samples(vec![]).median().is_nan());
        let samples = Samples(vec![9.0, 1.0, 5.0]);
        assert_eq!((samples.min(), samples.max()), (1.0, 9.0));
    }

    #[test]
    fn a_bar_is_for_the_ratio_or_without_peer_for_our_figure() {
        let ratio = row(&[3.0, 2.0, 40.0], Some(&[2.0]), Some(Bar::AtMost(1.5)));
        assert_eq!((ratio.ratio(), ratio.met()), (Some(1.5), Some(true)));
        assert_eq!(row(&[2.9], Some(&[2.0]), Some(Bar::AtLeast(1.5))).met(), Some(false));
        assert_eq!(row(&[3.0], None, Some(Bar::AtMost(4.0))).met(), Some(true));
        assert_eq!(row(&[5.0], None, Some(Bar::AtMost(4.0))).met(), Some(false));
        assert_eq!(row(&[5.0], Some(&[1.0]), None).met(), None);
    }

    #[test]
    fn contenders_take_turns() {
        const GROUP: Group = Group {
            name: "a-group",
            what: "",
            unit: "",
            ours: |setting| Ok(f64::from(setting.round)),
            against: &[
                Against::Peer { name: "one", bar: None, run: |setting| Ok(10.0 + f64::from(setting.round)) },
                Against::Alone(Bar::AtMost(1.0)),
            ],
        };
        let mut setting = crate::bench::tests::setting();
        let mut order = Vec::new();
        let rows = group(&GROUP, 3, &mut setting, |name, round| order.push((name, round))).unwrap();
        assert_eq!(order, [("ferroce", 0), ("one", 0), ("ferroce", 1), ("one", 1), ("ferroce", 2), ("one", 2)]);
        assert_eq!(order.len() as u64, runs(&GROUP, 3));
        assert_eq!(rows[0].ours, Samples(vec![0.0, 1.0, 2.0]));
        assert_eq!(rows[0].peer, Some(("one", Samples(vec![10.0, 11.0, 12.0]))));
        assert_eq!((rows[1].peer.is_none(), rows[1].met()), (true, Some(true)));
    }
}
