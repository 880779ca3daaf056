//! Compresses one turn of a conversation, and counts its tokens.

use std::sync::Arc;

use thresher_core::domain::{
    Budget, ByteRange, Chunk, CompressRequest, Format, Kind, Omissions, TokenizerName,
};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{PipelineError, assemble};
use thresher_core::text::outline::Layout;

use super::strings::{keep_no_shorter, shortened};
use super::{
    AddedContext, Compressor, NOTHING_KEPT, Rewritten, SentTurn, Shortened, Spans, ranges, with_unique_ids,
};
use crate::middleware::find::{self, Turn};
use crate::middleware::json::Located;
use crate::middleware::marks::mark;

/// Bytes per token by which texts that are not compressed are estimated instead of counted: rather too few tokens than too many.
const BYTES_PER_TOKEN: usize = 6;

/// One turn to compress.
pub(super) struct TurnWork<'a> {
    pub(super) turn: &'a Turn,
    /// The passages of the turn.
    pub(super) chunks: &'a [Arc<Chunk>],
    pub(super) added: &'a AddedContext,
    /// Bytes that are sent of the turns before this one.
    pub(super) sent_bytes: usize,
    /// The id of the options with which the turn is compressed.
    pub(super) options: &'a str,
    pub(super) cancel: &'a Cancel,
}

impl TurnWork<'_> {
    /// Keeps everything. The record names no options, so that the turn is compressed when a later request asks for that.
    pub(super) fn keep_all(&self) -> (SentTurn, Vec<Spans>) {
        let all = |chunk: &Arc<Chunk>| vec![(0, chunk.text.len())];
        let kept = vec![None; self.turn.passages.len()];
        let sent = SentTurn { options: String::new(), kept, marked: false };
        (sent, self.added.chunks.iter().map(all).collect())
    }

    /// Compresses the turn's passages together with the added chunks. Returns what is kept of both.
    pub(super) fn compress(
        &self,
        compressor: Compressor,
        out: &mut Rewritten,
    ) -> Result<(SentTurn, Vec<Spans>), PipelineError> {
        let Compressor { options, other_text_bytes, pipeline } = compressor;
        out.has_added |= !self.added.chunks.is_empty();
        let query = options.query.as_deref().unwrap_or(&self.turn.query);
        let is_empty = self.chunks.is_empty() && self.added.chunks.is_empty();
        // Without a question, every passage may matter.
        if is_empty || query.trim().is_empty() {
            return Ok(self.keep_all());
        }
        let all = [self.chunks, &self.added.chunks].concat();
        // A question that the caller wrote for this purpose stands alone.
        let history = if options.query.is_some() { &[][..] } else { &self.turn.history };
        let mut request = CompressRequest {
            history: history.iter().map(|text| text.to_string()).collect(),
            chunks: with_unique_ids(&all),
            budget: options.budget,
            granularity: options.granularity,
            format: Format::Plain,
            titles: false,
            tokenizer: TokenizerName::O200kBase,
            ..CompressRequest::new(find::tail(query), Vec::new())
        };
        let usage = |compressed: &thresher_core::pipeline::Compressed| {
            compressed.usage.map_or((0, 0), |usage| (usage.tokens_in, usage.tokens_out))
        };
        let mut compressed = pipeline.compress(&request, self.cancel)?;
        let other_tokens = (other_text_bytes + self.sent_bytes) / BYTES_PER_TOKEN;
        let least = options.prompt_tokens_min;
        // Chunks that are only added are sent once and never cached by a provider, so the least length does not matter for them.
        if options.budget == Budget::Auto && !self.chunks.is_empty() {
            // The least length is filled with the best units, however low they score. What is kept may stay under a budget by the length of a
            // unit or of several, so the budget is raised in steps. If all passages together are too short, everything is kept.
            let is_related = compressed.relevance.is_none_or(|relevance| relevance.related);
            out.is_short = usage(&compressed).0 + other_tokens < least;
            let steps: &[usize] = match out.is_short {
                true => &[usize::MAX],
                false if is_related => &[0, 64, 256, usize::MAX],
                // Nothing that is unrelated is sent only to reach a length.
                false => &[],
            };
            for &more in steps {
                if usage(&compressed).1 + other_tokens >= least {
                    break;
                }
                request.budget = Budget::Tokens((least - other_tokens).saturating_add(more));
                request.fills_budget = true;
                compressed = pipeline.compress(&request, self.cancel)?;
            }
        }
        let (before, after) = usage(&compressed);
        add_tokens(&mut out.tokens, (before, after.min(before)));
        out.newest_tokens = Some((before, after.min(before)));
        out.related = compressed.relevance.map(|relevance| relevance.related);
        out.answerable = compressed.answerable;
        // A compression that saves nothing is undone.
        if after >= before {
            return Ok(self.keep_all());
        }
        let mut kept = vec![Vec::new(); request.chunks.len()];
        for outcome in &compressed.chunks {
            kept[outcome.index] =
                outcome.spans.iter().map(|span| (span.source.start, span.source.end)).collect::<Vec<_>>();
        }
        let kept_of_added = kept.split_off(self.chunks.len());
        // A passage that loses less than a twentieth is sent whole: it could even have a token more when shortened.
        let kept = kept.into_iter().zip(&self.turn.passages).map(|(kept, passage)| {
            let bytes = ranges(&kept).map(ByteRange::len).sum::<usize>().max(NOTHING_KEPT.len());
            (bytes <= passage.text.len() * 19 / 20).then_some(kept)
        });
        let (kept, marked) = (kept.collect(), options.marks);
        Ok((SentTurn { options: self.options.to_owned(), kept, marked }, kept_of_added))
    }

    /// Keeps the passages of strings that would become no shorter, and counts their tokens.
    pub(super) fn keep_no_shorter(
        &self,
        body: Located,
        sent: &mut SentTurn,
        (compressor, tokens): (Compressor, &mut Option<(usize, usize)>),
    ) -> Result<(), PipelineError> {
        for (passage, kept) in keep_no_shorter(body, self.turn, sent) {
            self.cancel.check()?;
            let count = |text: &str| compressor.pipeline.count(text, TokenizerName::O200kBase);
            let layout = Layout::of(&passage.text, Kind::Auto);
            let spans: Vec<ByteRange> = ranges(&kept).collect();
            // As the pipeline has counted what is kept.
            let kept = assemble::joined(&passage.text, &spans, (&layout, Omissions::Auto));
            let more = count(&passage.text)?.saturating_sub(count(&kept)?);
            add_tokens(tokens, (0, more));
        }
        Ok(())
    }

    /// The tokens of the marks of strings.
    pub(super) fn mark_tokens<'a>(
        &self,
        mut marked: impl Iterator<Item = &'a Shortened>,
        compressor: Compressor,
    ) -> Result<usize, PipelineError> {
        marked.try_fold(0, |tokens, string| {
            self.cancel.check()?;
            let mark = mark(&string.original, &string.left_out);
            Ok(tokens + compressor.pipeline.count(&mark, TokenizerName::O200kBase)?)
        })
    }

    /// Counts the tokens of the passages that were shortened before.
    pub(super) fn count(
        &self,
        sent: &SentTurn,
        compressor: Compressor,
        tokens: &mut Option<(usize, usize)>,
    ) -> Result<(), PipelineError> {
        for (passage, kept) in self.turn.passages.iter().zip(&sent.kept) {
            let Some(kept) = kept else { continue };
            self.cancel.check()?;
            let count = |text: &str| compressor.pipeline.count(text, TokenizerName::O200kBase);
            add_tokens(tokens, (count(&passage.text)?, count(&shortened(passage, kept))?));
        }
        Ok(())
    }
}

/// Adds tokens before and after compression.
pub(super) fn add_tokens(tokens: &mut Option<(usize, usize)>, (before, after): (usize, usize)) {
    let (all_before, all_after) = tokens.unwrap_or_default();
    *tokens = Some((all_before + before, all_after + after));
}
