//! How much is worth keeping when the caller names no budget.

use super::select::{Candidates, Selection};

/// (placeholder)
pub fn worth_keeping(candidates: &Candidates, _chunk_scores: &[f32]) -> Selection {
    let ranked = candidates.ranked();
    let best = ranked.first().map_or(0.0, |&u| candidates.scores[u]);
    let picked = ranked.into_iter().filter(|&u| candidates.scores[u] >= best * 0.5).collect();
    Selection { wanted: candidates.wanted(), picked }
}
