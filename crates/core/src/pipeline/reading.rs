//! A reading: the encoded question and the blocks of all chunks of a request, before any of it is scored.
//! Knows no scoring rule.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::blocks::Blocks;
use super::lexical::LexicalRc;
use super::neighbours::Neighbours;
use super::question::QuestionViews;
use super::repeats::Repeats;
use super::units::{Outlines, Unit};
use crate::domain::{Granularity, TokenSpan};
use crate::kv::codec::Codec;
use crate::model::contract::QuestionTokens;
use crate::model::tokenizer::Tokens;
use crate::text::Mentions;

/// How many logits or peaks a request holds in memory at a time: 8 Mi values, which take 32 MiB.
const VALUES_AT_ONCE_MAX: usize = 8 << 20;

/// Everything that was read for a request, before any of it is scored. `eval` scores one reading with many
/// methods.
#[derive(Clone)]
pub struct Reading {
    /// The tokens of the question, with those of the text around it that its scorer asks for.
    pub tokens: Tokens,
    /// The tokens of the question itself, which are all tokens unless there is text around it.
    pub query: TokenSpan,
    /// How many turns of the conversation the model read before the question.
    pub turns: usize,
    /// The question as the model encoded it. Its vectors' products with keys are the raw logits.
    pub question: QuestionViews,
    /// The blocks of the chunks, and the positions of their tokens on one key axis. The sentences of one
    /// answer share the blocks and the units.
    pub blocks: Arc<Blocks>,
    pub granularity: Granularity,
    /// The units that can be kept, in the order of the text.
    pub units: Arc<[Unit]>,
    pub outlines: Arc<Outlines>,
    /// The units that say again what another one says. They are no rivals of it. Empty for the sentences of an answer.
    pub repeats: Arc<Repeats>,
    /// Which chunks name the titles of which others. Empty for decoders and for the sentences of
    /// an answer.
    pub mentions: Arc<Mentions>,
    /// Which chunks are neighbouring turns of a dialogue. Empty for decoders and for the sentences of an answer.
    pub neighbours: Arc<Neighbours>,
    /// Whether raw logits have a fixed scale, so that one logit alone says how similar two tokens are. True
    /// for encoders, whose logits are cosines; false for decoders.
    pub logits_have_fixed_scale: bool,
    /// Whether the thresholds of the model's calibration hold for the languages of question and chunks. False for the sentences of an answer.
    pub is_calibrated: bool,
    /// The tokens of the question whose RC ranks chunks and units. For a sentence of an answer these are all.
    pub question_tokens: QuestionTokens,
    /// The RC of the lexical head. `None` if it scores no word of the question, and for decoders.
    pub lexical: Option<Arc<LexicalRc>>,
}

impl Reading {
    /// Returns this reading with its blocks encoded by another codec. Values that the present codec has
    /// rounded stay rounded.
    pub fn recoded(&self, codec: Codec) -> Self {
        let blocks = self.blocks.blocks.iter().map(|block| block.recoded(codec)).collect();
        let blocks = Arc::new(Blocks { blocks, ..(*self.blocks).clone() });
        Self { blocks, ..self.clone() }
    }

    /// Returns the reading that ranks chunks and units: with only those tokens of the question that
    /// [`Self::question_tokens`] names.
    pub fn for_ranking(&self) -> Cow<'_, Self> {
        match self.question_tokens {
            QuestionTokens::Last if self.tokens.ids.len() > 1 => Cow::Owned(self.with_last_token_only()),
            QuestionTokens::All | QuestionTokens::Last => Cow::Borrowed(self),
        }
    }

    fn with_last_token_only(&self) -> Self {
        let last = self.tokens.ids.len() - 1..;
        let tokens = Tokens {
            ids: self.tokens.ids[last.clone()].to_vec(),
            offsets: self.tokens.offsets[last].to_vec(),
        };
        Self {
            query: TokenSpan::new(0, tokens.ids.len()),
            tokens,
            question: self.question.with_last_token_only(),
            question_tokens: QuestionTokens::All,
            ..self.clone()
        }
    }

    /// Divides the heads into groups. A group's values, `[head, question_token, column]` for `columns`
    /// columns, fit into 32 MiB, except that a group always has at least one head.
    pub fn head_groups(&self, columns: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (heads, values) = (self.question.heads(), self.question.tokens() * columns);
        let group = (VALUES_AT_ONCE_MAX / values.max(1)).max(1);
        (0..heads).step_by(group).map(move |first| first..(first + group).min(heads))
    }
}
