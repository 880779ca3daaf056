//! Scores to kept units, within a budget.

use rayon::prelude::*;

use super::units::Unit;

/// What a selection chooses from.
#[derive(Debug, Clone, Copy)]
pub struct Candidates<'a> {
    /// Units in the order of the text.
    pub units: &'a [Unit],
    /// One score per unit.
    pub scores: &'a [f32],
    /// What each unit costs in tokens of the caller's tokenizer.
    pub costs: &'a [usize],
    /// Per chunk, what stands around its text: marker and break.
    pub frame_costs: &'a [usize],
    /// Per chunk, whether the caller wants it whole.
    pub keep: &'a [bool],
}

/// Units to keep: what the caller wants, then `picked`, best first. Every prefix of `picked` is a selection too, so a
/// budget that turns out to be tighter than estimated takes away the worst.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Units of chunks that the caller wants whole.
    pub wanted: Vec<usize>,
    /// Units chosen by score, best first.
    pub picked: Vec<usize>,
}

impl Candidates<'_> {
    /// Keeps the best units that fit into `tokens`; one that does not fit is passed over, the next may.
    pub fn within(&self, tokens: usize) -> Selection {
        let wanted = self.wanted();
        let mut open = self.keep.to_vec();
        let mut left = tokens.saturating_sub(self.wanted_cost(&wanted));
        let mut picked = Vec::new();
        for unit in self.ranked() {
            let chunk = self.units[unit].chunk;
            let cost = self.costs[unit] + if open[chunk] { 0 } else { self.frame_costs[chunk] };
            if cost <= left {
                left -= cost;
                open[chunk] = true;
                picked.push(unit);
            }
        }
        Selection { wanted, picked }
    }

    /// Unit indices that the caller leaves to us, best first; equal scores in the order of the text.
    pub fn ranked(&self) -> Vec<usize> {
        let mut order: Vec<usize> =
            (0..self.units.len()).filter(|&u| !self.keep[self.units[u].chunk]).collect();
        order.par_sort_by(|&a, &b| self.scores[b].total_cmp(&self.scores[a]));
        order
    }

    /// Units of the chunks that the caller wants whole.
    pub fn wanted(&self) -> Vec<usize> {
        (0..self.units.len()).filter(|&u| self.keep[self.units[u].chunk]).collect()
    }

    fn wanted_cost(&self, wanted: &[usize]) -> usize {
        let units: usize = wanted.iter().map(|&u| self.costs[u]).sum();
        let frames = self.frame_costs.iter().zip(self.keep).filter(|(_, keep)| **keep).map(|(cost, _)| cost);
        units + frames.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{ByteRange, TokenSpan};
    use crate::pipeline::units::UnitSpan;

    /// Units as `(chunk, score, cost)`; a chunk's frame costs 2.
    #[track_caller]
    fn check(
        name: &str,
        units: &[(usize, f32, usize)],
        keep: &[bool],
        tokens: usize,
        expect: (&[usize], &[usize]),
    ) {
        let place = UnitSpan { bytes: ByteRange::new(0, 1), tokens: TokenSpan::new(0, 1) };
        let unit = |&(chunk, _, _): &(usize, f32, usize)| Unit {
            chunk,
            bytes: place.bytes,
            tokens: place.tokens,
            sentence: place,
        };
        let candidates = Candidates {
            units: &units.iter().map(unit).collect::<Vec<_>>(),
            scores: &units.iter().map(|unit| unit.1).collect::<Vec<_>>(),
            costs: &units.iter().map(|unit| unit.2).collect::<Vec<_>>(),
            frame_costs: &vec![2; keep.len()],
            keep,
        };
        let found = candidates.within(tokens);
        assert_eq!((&*found.wanted, &*found.picked), expect, "{name}");
    }

    #[test]
    fn the_best_that_fit() {
        let (free, units) = ([false; 2], [(0, 1.0, 5), (0, 3.0, 4), (1, 2.0, 5)]);
        check("nothing to choose", &[], &[false], 100, (&[], &[]));
        check("no room", &units, &free, 5, (&[], &[]));
        check("the best and its frame", &units, &free, 6, (&[], &[1]));
        check("the second is passed over, the third shares a frame", &units, &free, 11, (&[], &[1, 0]));
        check("best first", &units, &free, 18, (&[], &[1, 2, 0]));
        check(
            "equal scores in the order of the text",
            &[(0, 1.0, 1), (0, 1.0, 1)],
            &[false],
            9,
            (&[], &[0, 1]),
        );
        check(
            "a score that is not a number is the best",
            &[(0, 9.0, 1), (0, f32::NAN, 1)],
            &[false],
            3,
            (&[], &[1]),
        );
    }

    #[test]
    fn what_the_caller_wants() {
        let units = [(0, 1.0, 5), (1, 3.0, 4), (1, 2.0, 5)];
        check("wanted whatever it costs", &units, &[true, false], 0, (&[0], &[]));
        check("it takes from the room", &units, &[true, false], 12, (&[0], &[]));
        check("what is left goes to the best", &units, &[true, false], 13, (&[0], &[1]));
        check("everything is wanted", &units, &[true, true], 1, (&[0, 1, 2], &[]));
    }
}
