//! Scores to kept units, within a budget.

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
        order.sort_by(|&a, &b| self.scores[b].total_cmp(&self.scores[a]));
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
