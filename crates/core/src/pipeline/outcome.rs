//! The results of the pipeline: a compressed context with the outcome of every chunk, and ranked chunks.
//! Knows nothing of models and scoring.

use std::sync::Arc;
use std::time::Duration;

use super::answerable::Answerable;
use super::assemble::{self, MarkerTag};
use super::clock::Timings;
use super::decide::coverage::Shortfall;
use super::explain::Explanation;
use super::source_conflicts::SourceConflict;
use crate::domain::{ByteRange, Chunk, CompressRequest, KeptSpan, Kind, Lang};
use crate::kv::store::BlockOrigins;

/// The result of [`Pipeline::compress`](super::Pipeline::compress): a context for a language model, and where
/// each part of it came from. All positions in texts are UTF-8 byte offsets.
#[derive(Debug, Clone, PartialEq)]
pub struct Compressed {
    /// The text to send to the language model. It holds the caller's text byte for byte, with the markup of
    /// the request's [`Format`](crate::domain::Format) around each chunk.
    pub context: String,
    /// The tag in the markers of the context, because a text of the chunks looks like a marker; `None`: there is none.
    pub marker_tag: Option<MarkerTag>,
    /// One outcome per chunk of the request, in the request's [`Order`](crate::domain::Order): as the caller
    /// sent the chunks, or by descending score.
    pub chunks: Vec<ChunkOutcome>,
    /// The number of tokens before and after compression. `None` in a degraded result, because the pipeline
    /// may have had no time to count.
    pub usage: Option<Usage>,
    /// How close the chunks come to the question at all. `None` in a degraded result, and for models whose
    /// logits have no fixed scale (decoders).
    pub relevance: Option<Relevance>,
    /// Whether the chunks answer the question; `None` where it was not measured (see
    /// [`answerable`](super::answerable)), and in a degraded result.
    pub answerable: Option<Answerable>,
    /// How many turns of the conversation the question was read with. `None` if the request has none, and in a
    /// degraded result.
    pub turns_read: Option<usize>,
    /// The language of the question; `None` if it is unknown, and in a degraded result.
    pub lang: Option<Lang>,
    /// Whether `context` holds the caller's chunks unchanged, because they could not be compressed.
    pub degraded: bool,
    /// How many blocks came from the cache and how many chunks the model read. `None` in a degraded result.
    pub sources: Option<BlockOrigins>,
    pub timings: Timings,
    pub warnings: Vec<Warning>,
    /// The sentences in the context that disagree.
    pub conflicts: Vec<SourceConflict>,
    /// RC per token, if the request asked for it with `explain`. `None` if a probe gave the scores.
    pub explanation: Option<Explanation>,
}

/// Something that the caller should know about a result, though it is not an error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Warning {
    /// The question compares all rows of a table, as "Which is the cheapest?" does, and some rows of this
    /// chunk are left out.
    RowsLeftOut {
        /// The index of the chunk in the request.
        chunk: usize,
    },
    /// A part of this chunk is kept without all that a reader needs to understand it, such as its heading or its question, because
    /// these do not fit into the budget.
    GroupCut {
        /// The index of the chunk in the request.
        chunk: usize,
    },
    /// The budget holds only some words of the best unit, which is in this chunk.
    UnitCut {
        /// The index of the chunk in the request.
        chunk: usize,
    },
    /// The upper limit of the budget ends the context before it has the evidence with the promised probability.
    CoverageCut { promised: f64 },
    /// The text of this chunk does not have the form of the kind that the request names; it was divided into
    /// sentences.
    KindUnfit {
        /// The index of the chunk in the request.
        chunk: usize,
        named: Kind,
    },
    /// Several chunks score alike, as where a question needs several passages, and such questions miss the promised coverage.
    CoverageNotPromised(Shortfall),
    /// The decoder does not know the script of the question, so scores say little.
    ScriptUnknown,
    /// The question is too long; the model read the sentences of it that ask something, and its last ones.
    QuestionShortened {
        tokens: usize,
        /// The number of tokens that the model reads.
        max: usize,
    },
    /// The deadline left no time to read some chunks.
    Unread { chunks: usize, of: usize },
}

#[derive(Debug, Clone, PartialEq)]
pub struct ChunkOutcome {
    /// The index of the chunk in the request.
    pub index: usize,
    /// Whether the context holds any of the chunk's text.
    pub kept: bool,
    /// Whether the chunk's text has nothing that could be kept, because it is empty or only whitespace.
    pub empty: bool,
    /// Whether the chunk was not read, because the deadline left no time; see
    /// [`CompressRequest::best_effort`](crate::domain::CompressRequest::best_effort).
    pub unread: bool,
    /// The kind of text by which the chunk was divided; `None` if it was not divided into sentences or pieces.
    pub kind: Option<Kind>,
    /// The language of the chunk's text; `None` if it is unknown, and in a degraded result.
    pub lang: Option<Lang>,
    /// The score of the whole chunk, in units of a raw logit, or a probability if a probe gave it; at least
    /// 0. Scores of different requests are not comparable. `None` if the chunk was not scored: it is empty, or the result is degraded.
    pub score: Option<f32>,
    /// How probable it is that the chunk contains something that the question asks, independent of the other chunks; `None` where it was not
    /// measured, see [`Pipeline::chunk_relevances`](super::Pipeline::chunk_relevances).
    pub relevance: Option<f32>,
    /// The spans of the chunk's text that the context holds, in ascending order.
    pub spans: Vec<KeptSpan>,
    /// The spans of the chunk's text that the context holds where another chunk says the same, in ascending order.
    pub repeats: Vec<KeptSpan>,
}

/// The number of tokens before and after compression, counted with the request's tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The tokens that the context would have if all text were kept; at least `tokens_out`.
    pub tokens_in: usize,
    /// The tokens of the context as returned.
    pub tokens_out: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Relevance {
    /// The mean over the question's best-matched tokens of each token's largest raw logit over all keys of the
    /// chunks. The raw logits of encoders are cosines, so this is at most 1.
    pub value: f32,
    /// Whether `value` reaches the threshold of the model and the kind of text, or the chunks answer the question ([`Answerable`]).
    pub related: bool,
    /// The threshold of the model and the kind of text.
    pub least: f32,
}

/// The result of [`Pipeline::rank`](super::Pipeline::rank): how well chunks and sentences answer a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranked {
    /// `[chunk]`: the score of each chunk in the request's order, in units of a raw logit; at least 0. Scores
    /// of different requests are not comparable.
    pub chunks: Vec<f32>,
    /// Whether any chunk is related to the question; `None` for models that do not tell.
    pub relevance: Option<Relevance>,
    /// See [`Pipeline::chunk_relevances`](super::Pipeline::chunk_relevances).
    pub chunk_relevances: Option<Vec<f32>>,
    /// Whether the chunks answer the question; `None` where it was not measured.
    pub answerable: Option<Answerable>,
    /// Whether a probe gave all scores. They are then probabilities, from 0 to 1.
    pub are_probabilities: bool,
    /// The sentences of all chunks, in the order of the chunks. Empty unless the granularity was sentences.
    pub sentences: Vec<RankedSentence>,
    /// The number of the model's tokens in the question and all chunks.
    pub tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankedSentence {
    /// The index of the chunk in the request.
    pub chunk: usize,
    /// The byte range of the sentence in the chunk's text.
    pub bytes: ByteRange,
    /// The RC of the sentence with all other sentences of the request as its rivals, or its probability if a
    /// probe gave it; its chunk's score does not enter it.
    pub rc: f32,
}

/// Returns the caller's chunks unchanged and in the caller's order, as a degraded result. A caller that
/// prefers uncompressed chunks to an error returns it in place of the error. `total` is the time that the
/// request took so far.
pub fn passthrough(request: &CompressRequest, total: Duration) -> Compressed {
    let whole = |(index, chunk): (usize, &Arc<Chunk>)| {
        // A chunk of whitespace is returned, too: the result holds what the caller sent, without changes.
        let kept = !chunk.text.is_empty();
        let all = kept.then(|| KeptSpan::unscored(index, ByteRange::new(0, chunk.text.len())));
        let empty = chunk.text.trim().is_empty();
        let spans = Vec::from_iter(all);
        ChunkOutcome {
            index,
            kept,
            empty,
            unread: false,
            kind: None,
            lang: None,
            score: None,
            relevance: None,
            spans,
            repeats: Vec::new(),
        }
    };
    let mut chunks: Vec<_> = request.chunks.iter().enumerate().map(whole).collect();
    let style = assemble::Style::for_request(request);
    let kept = chunks.iter_mut().map(|outcome| &mut outcome.spans[..]).filter(|spans| !spans.is_empty());
    Compressed {
        context: assemble::context(&request.chunks, &[], kept, style),
        marker_tag: style.tag,
        chunks,
        usage: None,
        relevance: None,
        answerable: None,
        turns_read: None,
        lang: None,
        degraded: true,
        sources: None,
        timings: Timings { total, ..Timings::default() },
        warnings: Vec::new(),
        conflicts: Vec::new(),
        explanation: None,
    }
}
