//! Where a decoder's question meets each block: which blocks together, and at which positions.
//! Knows nothing of what is in them.

use serde::{Deserialize, Serialize};

use super::{BlockSlice, Blocks};
use crate::domain::TokenSpan;
use crate::model::{DecoderInfo, ModelInfo};

/// How blocks stand in front of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Side by side, each ending where the question begins: in what a question sees at once, no chunk is nearer than another. Where
    /// keys cannot be moved, each begins where it was read.
    #[default]
    Parallel,
    /// One behind the other, as in a prompt.
    Sequence,
}

/// What a question sees at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// In the order of the blocks.
    pub slices: Vec<BlockSlice>,
    /// Where the question begins.
    pub question_position: i64,
}

impl View {
    /// All blocks whole, where they were read.
    pub fn of_all(blocks: &Blocks) -> Self {
        let slice = |(block, span): (usize, &TokenSpan)| BlockSlice {
            block,
            tokens: TokenSpan::new(0, span.end - span.start),
            moved: 0,
        };
        Self { slices: blocks.spans.iter().enumerate().map(slice).collect(), question_position: 0 }
    }
}

/// The groups in which a question of so many tokens sees all blocks: window by window, as many as the context holds. A question that
/// has nothing to see still has one view.
pub fn views(
    blocks: &Blocks,
    (model, decoder): (&ModelInfo, &DecoderInfo),
    question_tokens: usize,
    placement: Placement,
) -> Vec<View> {
    let room = decoder.context_tokens_max - decoder.prefix_tokens() - question_tokens;
    let window = model.window_tokens_max;
    let windows = blocks.spans.iter().enumerate().flat_map(|(block, span)| {
        let tokens = span.end - span.start;
        // A block without tokens is a slice, too: every block has one.
        let starts = (0..tokens.max(1)).step_by(window);
        starts.map(move |start| (block, TokenSpan::new(start, (start + window).min(tokens))))
    });
    let mut groups: Vec<Vec<(usize, TokenSpan)>> = vec![Vec::new()];
    let mut held = 0;
    for (block, tokens) in windows {
        if held + tokens.len() > room {
            groups.push(Vec::new());
            held = 0;
        }
        held += tokens.len();
        groups.last_mut().expect("there is one").push((block, tokens));
    }
    let is_movable = decoder.rotary.is_some();
    groups.iter().map(|group| placed(group, decoder.prefix_tokens(), placement, is_movable)).collect()
}

/// One group's slices at their positions, which begin behind the prefix.
fn placed(group: &[(usize, TokenSpan)], prefix: usize, placement: Placement, is_movable: bool) -> View {
    let longest = group.iter().map(|(_, tokens)| tokens.len()).max().unwrap_or(0);
    let mut before = 0;
    let slice = |&(block, tokens): &(usize, TokenSpan)| {
        let moved = match placement {
            _ if !is_movable => 0,
            Placement::Parallel => longest - tokens.len(),
            Placement::Sequence => before,
        };
        before += tokens.len();
        BlockSlice { block, tokens, moved: moved as i64 }
    };
    let slices = group.iter().map(slice).collect();
    let in_front = if is_movable && placement == Placement::Sequence { before } else { longest };
    View { slices, question_position: (prefix + in_front) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(lengths: &[usize]) -> Vec<(usize, TokenSpan)> {
        lengths.iter().map(|&tokens| TokenSpan::new(0, tokens)).enumerate().collect()
    }

    #[test]
    fn blocks_stand_as_asked() {
        use Placement::{Parallel, Sequence};
        let check = |name: &str, (placement, is_movable), lengths: &[usize], moved: &[i64], position: i64| {
            let view = placed(&group(lengths), 1, placement, is_movable);
            let found: Vec<i64> = view.slices.iter().map(|slice| slice.moved).collect();
            assert_eq!((&found[..], view.question_position), (moved, position), "{name}");
        };
        check("each ends where the question begins", (Parallel, true), &[3, 5, 1], &[2, 0, 4], 6);
        check("one behind the other", (Sequence, true), &[3, 5, 1], &[0, 3, 8], 10);
        check("learned positions stay", (Parallel, false), &[3, 5, 1], &[0, 0, 0], 6);
        check("whatever is asked", (Sequence, false), &[3, 5, 1], &[0, 0, 0], 6);
        check("nothing", (Parallel, true), &[], &[], 1);
        check("without a token", (Sequence, true), &[0, 2], &[0, 0], 3);
    }
}
