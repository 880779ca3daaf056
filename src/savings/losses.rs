//! What compression lost of the results of tools: how often a later step copied from a result something that had been left out.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::counts::OTHER;
use crate::middleware::copied::Use;
use crate::middleware::untouched::ToolKinds;

/// The most tools that are counted apart, with the kinds of their texts.
const ROW_COUNT_MAX: usize = 256;

const NAME_BYTES_MAX: usize = 128;

/// How many results are remembered, so that each counts once.
const RESULT_COUNT_MAX: usize = 1 << 16;

/// The least uses before a tool is turned off: a few copies may be chance.
const USES_MIN: u64 = 10;

/// The probability that a bound does not hold at any time.
const ERROR_MAX: f64 = 0.05;

/// The uses of results by the name of their tool and the kind of their text.
#[derive(Debug, Default)]
pub struct Losses {
    rows: BTreeMap<(String, &'static str), Row>,
    /// The results that were counted, also oldest first.
    counted: HashSet<[u8; 32]>,
    order: VecDeque<[u8; 32]>,
    off: Arc<ToolKinds>,
}

/// What was counted of a step of the model.
#[derive(Debug, Default)]
pub struct Counted {
    pub uses: u64,
    pub lost: u64,
    /// The tools and kinds that are sent whole from now on because more than `loss_max` of their uses are lost.
    pub turned_off: Vec<Loss>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Row {
    uses: u64,
    lost: u64,
    pieces: u64,
    pieces_lost: u64,
    /// The logarithm of the probability of the uses under the mixture of all shares (see [`Row::bounds`]).
    log_mixture: f64,
}

/// What later steps copied from the results of a tool, and how much of that had been left out.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "SavingsLoss")]
pub struct Loss {
    /// The name of the tool. Beyond 256 tools and kinds, `other`.
    pub tool: String,
    /// The kind of the results, such as `log`.
    pub kind: String,
    /// Results from which the model copied something in a later step. The first such step counts.
    pub uses: u64,
    /// Of these, those of which something that it copied had been left out.
    pub uses_lost: u64,
    /// Paths, ids, numbers, names and sentences that it copied.
    pub pieces: u64,
    /// Of these, those that had been left out.
    pub pieces_lost: u64,
    /// The share of `uses_lost` that the counts exclude below, with 95 % confidence whenever one looks.
    pub share_min: f64,
    /// The share of `uses_lost` that the counts exclude above.
    pub share_max: f64,
    /// Whether such results are sent whole from now on, because `share_min` has passed `middleware.loss_max`.
    pub is_off: bool,
}

impl Losses {
    /// Counts uses of results from which no earlier step has copied.
    pub fn add(&mut self, uses: &[Use], loss_max: f64) -> Counted {
        let mut counted = Counted::default();
        for one in uses {
            if !self.counted.insert(one.result) {
                continue;
            }
            self.order.push_back(one.result);
            if self.order.len() > RESULT_COUNT_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.counted.remove(&oldest);
            }
            counted.uses += 1;
            counted.lost += u64::from(one.lost > 0);
            let mut key = (one.tool.to_string(), one.kind.name());
            if one.tool.len() > NAME_BYTES_MAX
                || self.rows.len() >= ROW_COUNT_MAX && !self.rows.contains_key(&key)
            {
                key.0 = OTHER.to_owned();
            }
            let row = self.rows.entry(key.clone()).or_default();
            row.add(one);
            let is_too_much = row.uses >= USES_MIN && row.bounds().0 > loss_max;
            if is_too_much && key.0 != OTHER && !self.off.contains(&key) {
                Arc::make_mut(&mut self.off).insert(key.clone());
                counted.turned_off.push(row.report(&key, true));
            }
        }
        counted
    }

    /// Returns the tools and kinds whose results are sent whole.
    pub fn off(&self) -> Arc<ToolKinds> {
        Arc::clone(&self.off)
    }

    pub fn report(&self) -> Vec<Loss> {
        self.rows.iter().map(|(key, row)| row.report(key, self.off.contains(key))).collect()
    }
}

impl Row {
    fn add(&mut self, one: &Use) {
        let is_lost = one.lost > 0;
        let same = if is_lost { self.lost } else { self.uses - self.lost };
        self.log_mixture += ((same as f64 + 0.5) / (self.uses as f64 + 1.0)).ln();
        self.uses += 1;
        self.lost += u64::from(is_lost);
        self.pieces += one.pieces;
        self.pieces_lost += one.lost;
    }

    /// Returns the least and the largest share of lost uses that the counts do not exclude. A share is excluded once the uses are 20 times as
    /// probable under the mixture of all shares with the weights of the Beta distribution of 1/2 and 1/2 (Robbins 1970). By Ville's inequality,
    /// the true share is ever excluded with a probability of at most 1 in 20, however often somebody looks, if each result is lost with this
    /// share whatever happened to those before it.
    fn bounds(&self) -> (f64, f64) {
        let (lost, kept) = (self.lost as f64, (self.uses - self.lost) as f64);
        let weighted = |count: f64, share: f64| if count > 0.0 { count * share.ln() } else { 0.0 };
        let is_excluded = |share: f64| {
            let log = weighted(lost, share) + weighted(kept, 1.0 - share);
            self.log_mixture - log > -ERROR_MAX.ln()
        };
        if self.uses == 0 {
            return (0.0, 1.0);
        }
        let share = lost / (lost + kept);
        let between = |mut excluded: f64, mut included: f64| {
            if !is_excluded(excluded) {
                return excluded;
            }
            for _ in 0..50 {
                let middle = (excluded + included) / 2.0;
                if is_excluded(middle) { excluded = middle } else { included = middle }
            }
            included
        };
        (between(0.0, share), between(1.0, share))
    }

    fn report(&self, (tool, kind): &(String, &'static str), is_off: bool) -> Loss {
        let (share_min, share_max) = self.bounds();
        Loss {
            tool: tool.clone(),
            kind: (*kind).to_owned(),
            uses: self.uses,
            uses_lost: self.lost,
            pieces: self.pieces,
            pieces_lost: self.pieces_lost,
            share_min,
            share_max,
            is_off,
        }
    }
}

#[cfg(test)]
mod tests {
    use thresher_core::domain::Kind;

    use super::*;

    fn used(result: u64, lost: u64) -> Use {
        Use { result: key(result), tool: "search".into(), kind: Kind::Prose, pieces: 2, lost }
    }

    fn key(number: u64) -> [u8; 32] {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key
    }

    #[test]
    fn a_tool_is_turned_off_once_it_certainly_loses_too_much() {
        let count = |lost_of_ten: u64, uses: u64| {
            let mut losses = Losses::default();
            let one = |at: u64| used(at, u64::from(at % 10 >= 10 - lost_of_ten));
            let off: Vec<Loss> = (0..uses).flat_map(|at| losses.add(&[one(at)], 0.05).turned_off).collect();
            assert_eq!(off.len(), losses.off().len(), "said once");
            (off.first().map(|loss| loss.uses), losses.report().remove(0))
        };
        let (off, row) = count(3, 200);
        assert!(off.is_some_and(|uses| (10..60).contains(&uses)), "{off:?}");
        assert!(row.is_off && row.share_min > 0.15 && row.share_max < 0.45, "{row:?}");
        assert_eq!((row.uses, row.uses_lost, row.pieces, row.pieces_lost), (200, 60, 400, 60));
        let (off, row) = count(0, 200);
        assert!(off.is_none() && row.share_min == 0.0 && row.share_max < 0.05, "{row:?}");
        let (off, row) = count(10, 1);
        assert!(off.is_none() && row.share_max == 1.0, "one use proves nothing: {row:?}");
    }

    #[test]
    fn the_bounds_hold_however_often_one_looks() {
        let mut random = fastrand::Rng::with_seed(5);
        let ever_excluded = (0..400).filter(|_| {
            let mut row = Row::default();
            (0..300).any(|_| {
                row.add(&used(0, u64::from(random.f64() < 0.1)));
                let (min, max) = row.bounds();
                min > 0.1 || max < 0.1
            })
        });
        let share = ever_excluded.count() as f64 / 400.0;
        assert!(share <= ERROR_MAX, "{share}");
    }

    #[test]
    fn a_result_counts_once_and_names_are_bounded() {
        let mut losses = Losses::default();
        losses.add(&[used(1, 1)], 1.0);
        assert_eq!(losses.add(&[used(1, 1)], 1.0).uses, 0);
        assert_eq!(losses.report()[0].uses, 1);
        for at in 0..1_000 {
            losses.add(&[Use { tool: format!("tool{at}").into(), ..used(2 + at, 0) }], 1.0);
        }
        let rows = losses.report();
        let other = rows.iter().find(|row| row.tool == OTHER).expect("a row");
        assert!(rows.len() <= ROW_COUNT_MAX + 1 && other.uses > 700, "{}", rows.len());
    }
}
