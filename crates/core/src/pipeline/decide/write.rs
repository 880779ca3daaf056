//! Writes what was selected as a context and counts its tokens.

use std::sync::Arc;

use rayon::prelude::*;

use super::choose::{Candidates, Selection};
use super::{DecideContext, Decision, Outcome, words};
use crate::domain::{
    AtMost, ByteRange, Chunk, CompressRequest, KeptSpan, Kind, Omissions, Order, TokenSpan, TokenizerName,
};
use crate::kv::block::tokens_under;
use crate::model::tokenizer::is_blank;
use crate::pipeline::assemble::{self, Style};
use crate::pipeline::notable::{self, Notable, UnitText};
use crate::pipeline::repeats::{self, Repeats};
use crate::pipeline::score::Scores;
use crate::pipeline::source_conflicts::{CONFLICTS_MAX, SourceConflict};
use crate::pipeline::units::Unit;
use crate::pipeline::{PipelineError, Reading, Usage};
use crate::text::intent::Wants;
use crate::text::{self, outline::Piece};

/// By how many tokens a chunk and its frame alone may be more than in the whole context.
const PART_TOKENS_MORE_MAX: usize = 4;

/// The longest rest of a word that a window cuts, in bytes.
const WORD_BYTES_MAX: usize = 16;

/// Returns the tokens that a ratio allows.
pub fn share_of(ratio: f64, tokens_in: usize) -> usize {
    (ratio * tokens_in as f64) as usize
}

/// Returns a ratio with up to three decimals that allows `needed` tokens. It is at most 1, which keeps everything.
pub fn least_ratio(needed: usize, tokens_in: usize) -> f64 {
    let thousandths = (needed as f64 / tokens_in as f64 * 1000.0).ceil();
    let ratio = |thousandths: f64| (thousandths / 1000.0).min(1.0);
    // A product of two rounded numbers may be just below a whole one.
    let is_enough = share_of(ratio(thousandths), tokens_in) >= needed;
    ratio(if is_enough { thousandths } else { thousandths + 1.0 })
}

pub struct Writer<'a> {
    pub request: &'a CompressRequest,
    pub reading: &'a Reading,
    pub units: &'a [Unit],
    pub scores: &'a Scores,
    pub context: &'a DecideContext<'a>,
    /// `[chunk]`: whether the request wants the chunk kept whole.
    pub keep: &'a [bool],
    /// The indices of all chunks, in the order of the result.
    pub order: Vec<usize>,
    pub wants: Wants,
    pub repeats: Repeats,
    pub style: Style,
}

pub struct Rendered {
    pub text: String,
    /// `[chunk]`: the kept spans of each chunk.
    pub spans: Vec<Vec<KeptSpan>>,
    pub tokens: usize,
}

impl Rendered {
    /// Returns whether the context holds any of a unit.
    pub fn keeps(&self, unit: &Unit) -> bool {
        // Spans ascend and do not overlap, so the first one that ends behind the unit's start decides.
        let spans = &self.spans[unit.chunk];
        let at = spans.partition_point(|span| span.source.end <= unit.bytes.start);
        spans.get(at).is_some_and(|span| span.source.overlaps(unit.bytes))
    }
}

impl Writer<'_> {
    /// Returns `[unit]`, whether the request wants the unit kept: it is in a chunk of `keep`, or at an end of the texts, or
    /// one of these requires it.
    pub fn required(&self, notable: &Notable) -> Vec<bool> {
        let mut required: Vec<bool> = self.units.iter().map(|unit| self.keep[unit.chunk]).collect();
        if self.request.keeps_notable {
            let outlines = &self.reading.outlines;
            let mut open: Vec<usize> =
                (0..self.units.len()).take(1).chain(self.units.len().checked_sub(1)).collect();
            // A budget in tokens keeps what is notable first, as far as it has room.
            if self.request.budget.at_most.is_none() {
                open.extend((0..self.units.len()).filter(|&unit| notable.kept[unit]));
            }
            while let Some(unit) = open.pop() {
                if !std::mem::replace(&mut required[unit], true) {
                    open.extend(outlines.required_by(unit, self.units[unit].chunk));
                }
            }
        }
        required
    }

    pub fn notable(&self) -> Notable {
        let layouts = self.reading.outlines.layouts();
        let kind = |unit: &Unit| layouts.get(unit.chunk).map(|layout| layout.kind);
        let text = |unit: &Unit| UnitText {
            text: unit.bytes.slice(&self.request.chunks[unit.chunk].text),
            is_line: matches!(kind(unit), Some(Kind::Log | Kind::Table | Kind::Code)),
            may_fold: kind(unit) == Some(Kind::Log),
        };
        notable::find(&self.units.iter().map(text).collect::<Vec<_>>(), &self.request.query)
    }

    /// Returns `[unit]`, the number of tokens of each unit by itself.
    pub fn unit_costs(&self) -> Result<Vec<usize>, PipelineError> {
        let text = |unit: &Unit| unit.bytes.slice(&self.request.chunks[unit.chunk].text);
        match self.request.tokenizer {
            TokenizerName::Model => Ok(self.units.iter().map(|unit| unit.tokens.len()).collect()),
            _ => self.units.par_iter().with_min_len(64).map(|unit| self.cost(text(unit))).collect(),
        }
    }

    /// Returns `[chunk]`, the number of tokens of each chunk's frame with its title.
    pub fn frame_costs(&self) -> Result<Vec<usize>, PipelineError> {
        let frame_cost = |(i, chunk): (usize, &Arc<Chunk>)| self.frame_cost(chunk, "", i);
        self.request.chunks.par_iter().enumerate().with_min_len(256).map(frame_cost).collect()
    }

    /// Returns `[chunk]`, the number of tokens of each chunk's frame around its text as a whole. Only a text that begins with its title has
    /// another one than `frame_costs`.
    pub fn frame_costs_of_first(&self, frame_costs: &[usize]) -> Result<Vec<usize>, PipelineError> {
        let chunks = self.request.chunks.iter().zip(frame_costs).enumerate();
        chunks
            .map(|(i, (chunk, &cost))| {
                if assemble::begins_with_title(chunk) {
                    self.frame_cost(chunk, &chunk.text, i)
                } else {
                    Ok(cost)
                }
            })
            .collect()
    }

    /// Returns the number of tokens of a chunk's frame, if `first` is kept first of its text, and it is the chunk at `index` of the context.
    fn frame_cost(&self, chunk: &Chunk, first: &str, index: usize) -> Result<usize, PipelineError> {
        self.cost(&assemble::frame(chunk, first, index, self.style))
    }

    fn cost(&self, text: &str) -> Result<usize, PipelineError> {
        let DecideContext { counter, text_costs, .. } = self.context;
        text_costs.count(counter, self.request.tokenizer, text, self.context.cancel)
    }

    /// Returns the number of tokens that the context would have if everything were kept: those of the chunks and of their frames, added up.
    /// The model's tokens are counted in the blocks.
    pub fn tokens_in(&self, frame_costs: &[usize]) -> Result<usize, PipelineError> {
        if self.request.tokenizer == TokenizerName::Model {
            let blocks = self.reading.blocks.blocks.iter().zip(frame_costs);
            let with_text = blocks.filter(|(block, _)| block.sentences().len() > 0);
            return Ok(with_text.map(|(block, frame)| block.text_tokens() + frame).sum());
        }
        let chunks = self.request.chunks.par_iter().zip(frame_costs);
        let with_text = chunks.filter(|(chunk, _)| !chunk.text.trim().is_empty());
        let all = with_text.map(|(chunk, frame)| Ok(self.cost(&chunk.text)? + frame));
        let all: usize = all.sum::<Result<_, PipelineError>>()?;
        // Every frame includes the break after its chunk, but the last chunk has none.
        Ok(all.saturating_sub(self.cost(assemble::BETWEEN_CHUNKS)?))
    }

    /// Returns whether a budget of `tokens` holds everything. The tokens of parts may be a few more than those of the whole, which is
    /// counted only where that could matter.
    pub fn holds_all(&self, tokens: usize, tokens_in: usize) -> Result<bool, PipelineError> {
        if tokens >= tokens_in || self.request.tokenizer == TokenizerName::Model {
            return Ok(tokens >= tokens_in);
        }
        let may_hold = tokens_in - tokens <= PART_TOKENS_MORE_MAX * self.request.chunks.len();
        let all = || self.render(&Selection::of_required((0..self.units.len()).collect()), 0);
        Ok(may_hold && all()?.tokens <= tokens)
    }

    /// Finds the longest prefix of the selection whose context has at most `tokens` tokens. Returns `None` if not even the required units
    /// fit.
    ///
    /// Each try writes and counts a context. The estimates that filled the selection are nearly right, so all choices are tried first, and
    /// then what lies in proportion between the tries around the limit; now and then their middle, which bounds the number of tries.
    pub fn render_within(
        &self,
        selection: &Selection,
        tokens: usize,
    ) -> Result<Option<Rendered>, PipelineError> {
        let mut best = None;
        // All numbers of choices below `low` fit; none from `high` on does.
        let (mut low, mut high) = (0, selection.ends.len() + 1);
        let (mut low_tokens, mut high_tokens) = (0, tokens.saturating_add(1));
        let mut count = selection.ends.len();
        for tries in 1_usize.. {
            let rendered = self.render(selection, count)?;
            if rendered.tokens <= tokens {
                (low, low_tokens) = (count + 1, rendered.tokens);
                best = Some(rendered);
            } else {
                (high, high_tokens) = (count, rendered.tokens);
            }
            if low >= high {
                break;
            }
            let part = (high - low) * (tokens - low_tokens) / (high_tokens - low_tokens);
            count = low + if tries.is_multiple_of(3) { (high - low) / 2 } else { part.min(high - low - 1) };
        }
        Ok(best)
    }

    /// Writes a context of at least `least` tokens, or of everything. What is kept may stay under a limit by the length of a unit or of
    /// several, so the limit is raised in steps.
    ///
    /// # Errors
    /// Fails as [`super::decide`] does.
    pub fn render_at_least(&self, candidates: &Candidates, least: usize) -> Result<Rendered, PipelineError> {
        let last_break = self.context.counter.count(assemble::BETWEEN_CHUNKS, self.context.cancel)?;
        let ranked = candidates.ranked();
        for more in [0, 64, 256] {
            let tokens = least.saturating_add(more);
            let selection = candidates.fill(&ranked, tokens.saturating_add(last_break))?;
            match self.render_within(&selection, tokens)? {
                Some(rendered) if rendered.tokens >= least => return Ok(rendered),
                _ => {}
            }
        }
        let everything = candidates.everything()?;
        self.render(&everything, everything.ends.len())
    }

    /// Writes the context of the required units and the first `choices` choices of a selection.
    pub fn render(&self, selection: &Selection, choices: usize) -> Result<Rendered, PipelineError> {
        self.context.cancel.check()?;
        let mut kept = vec![false; self.units.len()];
        selection.required.iter().chain(selection.first(choices)).for_each(|&unit| kept[unit] = true);
        self.write(self.merged_spans(&kept), self.style)
    }

    /// Writes spans, `[chunk]`, as a context.
    fn write(&self, mut spans: Vec<Vec<KeptSpan>>, style: Style) -> Result<Rendered, PipelineError> {
        let text = {
            // Chunks without a kept span do not appear; the others appear in the order of the result.
            let mut by_chunk: Vec<&mut [KeptSpan]> = spans.iter_mut().map(Vec::as_mut_slice).collect();
            let mut take = |&chunk: &usize| std::mem::take(&mut by_chunk[chunk]);
            let kept: Vec<_> = self.order.iter().map(&mut take).filter(|spans| !spans.is_empty()).collect();
            let layouts = self.reading.outlines.layouts();
            assemble::context(&self.request.chunks, layouts, kept, style)
        };
        let tokens = self.count_tokens(&text, &spans, style)?;
        Ok(Rendered { text, spans, tokens })
    }

    /// Writes as many words of a unit as `tokens_max` holds, and at least one, with marks of what is missing.
    ///
    /// # Errors
    /// Fails as [`super::decide`] does.
    pub fn render_words(&self, unit: usize, tokens_max: usize) -> Result<Rendered, PipelineError> {
        let style = match self.style.omissions {
            Omissions::Auto => Style { omissions: Omissions::Ellipsis, ..self.style },
            _ => self.style,
        };
        let words = words::weigh(self.reading, &self.request.chunks, &self.units[unit]);
        let render = |count: usize| {
            self.context.cancel.check()?;
            let span = words.best_run(count, &self.units[unit], self.scores.units[unit]);
            let mut spans = vec![Vec::new(); self.request.chunks.len()];
            spans[self.units[unit].chunk].push(span);
            self.write(spans, style)
        };
        let (mut longest, mut low, mut high) = (render(1)?, 2, words.count() + 1);
        while low < high && longest.tokens <= tokens_max {
            let count = low + (high - low) / 2;
            let rendered = render(count)?;
            if rendered.tokens <= tokens_max {
                low = count + 1;
                longest = rendered;
            } else {
                high = count;
            }
        }
        Ok(longest)
    }

    /// Counts the tokens of a written context. If no token crosses whitespace, the counts of its parts are
    /// added up: whitespace surrounds every span in the context, so a span that whitespace also surrounds in
    /// its chunk has the same tokens in both. Otherwise the context is tokenized.
    fn count_tokens(
        &self,
        context: &str,
        spans: &[Vec<KeptSpan>],
        style: Style,
    ) -> Result<usize, PipelineError> {
        let DecideContext { counter, text_costs, cancel, .. } = *self.context;
        let has_marks = !matches!(style.omissions, Omissions::Auto | Omissions::None);
        let mark_tokens = match style.omissions {
            Omissions::None => 0,
            _ => counter.count(assemble::MARK, cancel)?,
        };
        if !counter.splits_at_blanks() || has_marks || self.reading.outlines.has_long_marks() {
            return text_costs.count_context(counter, self.request.tokenizer, context, cancel);
        }
        let mut tokens = 0;
        let kept = self.order.iter().filter(|&&chunk| !spans[chunk].is_empty());
        for (index, &chunk) in kept.enumerate() {
            let text = &self.request.chunks[chunk].text;
            let first = spans[chunk][0].source.slice(text);
            tokens += self.frame_cost(&self.request.chunks[chunk], first, index)?;
            tokens += mark_tokens * (spans[chunk].len() - 1);
            for span in &spans[chunk] {
                // Divided words have fewer tokens in the block than in the context.
                let is_divided = span.source.slice(text).contains(['-'])
                    && crate::text::joined_words(span.source.slice(text)).text.len() < span.source.len();
                tokens += if is_between_blanks(text, span.source) && !is_divided {
                    span.tokens.len()
                } else {
                    counter.count(span.source.slice(text), cancel)?
                };
            }
        }
        Ok(tokens)
    }

    /// Returns `[chunk]`, the spans of the kept units. Neighbouring units become one span, which includes the
    /// text between them; so do units with so little between them that a mark would be as long. A chunk that the
    /// request wants kept whole is one span.
    fn merged_spans(&self, kept: &[bool]) -> Vec<Vec<KeptSpan>> {
        let mut spans: Vec<Vec<KeptSpan>> = vec![Vec::new(); self.request.chunks.len()];
        let mut previous = None;
        let is_worth_leaving_out = |unit: &Unit, last: &KeptSpan| {
            let text = &self.request.chunks[unit.chunk].text;
            let is_json = self
                .reading
                .outlines
                .layouts()
                .get(unit.chunk)
                .is_some_and(|layout| layout.kind == Kind::Json);
            is_json || assemble::is_worth_leaving_out(&text[last.source.end..unit.bytes.start])
        };
        for (index, unit) in self.units.iter().enumerate().filter(|(index, _)| kept[*index]) {
            let (spans, score) = (&mut spans[unit.chunk], self.scores.units[index]);
            match spans.last_mut() {
                Some(last)
                    if previous.is_some_and(|previous| previous + 1 == index)
                        || !is_worth_leaving_out(unit, last) =>
                {
                    last.source.end = unit.bytes.end;
                    last.tokens.end = unit.tokens.end;
                    last.score = last.score.map(|best| best.max(score));
                }
                _ => spans.push(KeptSpan {
                    tokens: unit.tokens,
                    score: Some(score),
                    ..KeptSpan::unscored(unit.chunk, unit.bytes)
                }),
            }
            previous = Some(index);
        }
        self.leave_out_shared(kept, &mut spans);
        let blocks = &self.reading.blocks;
        for (chunk, spans) in spans.iter_mut().enumerate().filter(|(chunk, _)| self.keep[*chunk]) {
            if let Some(span) = spans.first_mut() {
                span.source = ByteRange::new(0, self.request.chunks[chunk].text.len());
                let all = blocks.spans[chunk];
                span.tokens = TokenSpan::new(all.start + blocks.blocks[chunk].title_tokens(), all.end);
            }
        }
        spans
    }

    /// Ends the spans at the ends of windows before what the next window begins with, if that is kept, too.
    fn leave_out_shared(&self, kept: &[bool], spans: &mut [Vec<KeptSpan>]) {
        for shared in self.repeats.shared().iter().filter(|shared| kept[shared.last] && kept[shared.first]) {
            let chunk = self.units[shared.last].chunk;
            let text = &self.request.chunks[chunk].text;
            let Some(span) = spans[chunk].last_mut().filter(|span| span.source.end == shared.bytes.end)
            else {
                continue;
            };
            // A word that a window cuts stays whole. A longer run is a phrase of a script without blanks, or data.
            let word = text[shared.bytes.start..].find(|c: char| !c.is_alphanumeric()).unwrap_or(usize::MAX);
            let is_cut =
                word <= WORD_BYTES_MAX && text[..shared.bytes.start].ends_with(char::is_alphanumeric);
            let end = shared.bytes.start + if is_cut { word } else { 0 };
            span.source.end = text[..end].trim_end().len();
            let (block, first) = (&self.reading.blocks.blocks[chunk], self.reading.blocks.spans[chunk].start);
            span.tokens = tokens_under(&block.offsets(), block.title_tokens(), span.source).shifted(first);
        }
    }

    /// Returns the chunks with a row within and a row outside `spans`, if the question compares all rows.
    fn rows_left_out(&self, spans: &[Vec<KeptSpan>]) -> Vec<usize> {
        let is_kept =
            |row: &ByteRange, spans: &[KeptSpan]| spans.iter().any(|span| span.source.overlaps(*row));
        let is_partial = |&(chunk, spans): &(usize, &Vec<KeptSpan>)| {
            let pieces = &self.reading.outlines.layouts()[chunk].pieces;
            let mut rows =
                pieces.iter().filter(|piece| piece.is_row()).map(|piece| is_kept(&piece.bytes, spans));
            !spans.is_empty() && rows.any(|kept| !kept)
        };
        if self.wants == Wants::Rows {
            spans.iter().enumerate().filter(is_partial).map(|(chunk, _)| chunk).collect()
        } else {
            Vec::new()
        }
    }

    /// Returns the chunks with a piece in a context that requires one outside it.
    fn groups_cut(&self, rendered: &Rendered) -> Vec<usize> {
        let outlines = &self.reading.outlines;
        let mut cut = Vec::new();
        for (chunk, spans) in rendered.spans.iter().enumerate().filter(|(_, spans)| !spans.is_empty()) {
            // Spans ascend and do not overlap, so one that ends behind a piece's start decides.
            let is_kept = |piece: &Piece| {
                let at = spans.partition_point(|span| span.source.end <= piece.bytes.start);
                spans.get(at).is_some_and(|span| span.source.overlaps(piece.bytes))
            };
            let pieces = &outlines.layouts()[chunk].pieces;
            let lacks = |piece: &Piece| piece.required().any(|other| !is_kept(&pieces[other]));
            // A heading needs what it introduces, or one of the pieces that require it.
            let mut is_needed = vec![false; pieces.len()];
            let kept = pieces.iter().filter(|piece| is_kept(piece));
            kept.flat_map(Piece::required).for_each(|other| is_needed[other] = true);
            let is_alone = |at: usize, piece: &Piece| {
                piece.introduces().is_some_and(|other| !is_kept(&pieces[other])) && !is_needed[at]
            };
            let is_cut =
                |(at, piece): (usize, &Piece)| is_kept(piece) && (lacks(piece) || is_alone(at, piece));
            if pieces.iter().enumerate().any(is_cut) {
                cut.push(chunk);
            }
        }
        let is_kept = |unit: usize| rendered.keeps(&self.units[unit]);
        for (unit, other) in outlines.needs_across().filter(|&(unit, other)| is_kept(unit) && !is_kept(other))
        {
            // What a repeat says is there.
            let is_repeated = self.repeats.first(other).is_some_and(is_kept);
            let chunk = self.units[unit].chunk;
            if !is_repeated && !cut.contains(&chunk) {
                cut.push(chunk);
            }
        }
        cut.sort_unstable();
        cut
    }

    /// Returns the best unit for each of several questions in one: that with the most RC for its words. Empty if the question asks
    /// for one thing, or if RC does not score its tokens.
    pub fn leading_units(&self) -> Vec<usize> {
        let questions = text::questions(&self.request.query);
        let (reading, rc) = (self.reading, &self.scores.unit_rc);
        if questions.len() < 2 || self.scores.are_probabilities || rc.nrows() != reading.tokens.ids.len() {
            return Vec::new();
        }
        let words = text::terms(&self.request.query, &[]);
        let is_content = |token: &ByteRange| {
            words.iter().any(|word| word.bytes.overlaps(*token) && !word.is_function_word())
        };
        let best = |question: &ByteRange| {
            let tokens = reading.tokens.offsets.iter().enumerate();
            let own: Vec<usize> = tokens
                .filter(|(_, token)| token.overlaps(*question) && is_content(token))
                .map(|(token, _)| token)
                .collect();
            let score = |unit: &usize| own.iter().map(|&token| rc[[token, *unit]]).sum::<f32>();
            let is_choosable = |unit: &usize| {
                !reading.outlines.is_frame(*unit, self.units[*unit].chunk) && !self.repeats.is_repeat(*unit)
            };
            let units = (0..self.units.len()).filter(is_choosable).filter(|unit| score(unit) > 0.0);
            units.rev().max_by(|a, b| score(a).total_cmp(&score(b)))
        };
        questions.iter().filter_map(best).collect()
    }

    /// Returns `[unit]`, the score of each unit, where one that others repeat has the best score of them all.
    pub fn scores_of_firsts(&self) -> Vec<f32> {
        let mut scores = self.scores.units.clone();
        for unit in 0..scores.len() {
            if let Some(first) = self.repeats.first(unit) {
                scores[first] = scores[first].max(self.scores.units[unit]);
            }
        }
        scores
    }

    /// Returns `[chunk]`, the spans of units that are not kept because a kept unit of another chunk says the same.
    fn repeated_spans(&self, kept: &[Vec<KeptSpan>]) -> Vec<Vec<KeptSpan>> {
        let holding = |chunk: usize, bytes: ByteRange| {
            let at = kept[chunk].partition_point(|span| span.source.end < bytes.end);
            kept[chunk].get(at).filter(|span| span.source.start <= bytes.start)
        };
        let mut found = vec![Vec::new(); kept.len()];
        for (unit, first) in (0..self.units.len()).filter_map(|unit| Some((unit, self.repeats.first(unit)?)))
        {
            let (unit, first) = (&self.units[unit], &self.units[first]);
            let Some(place) = repeats::place(&self.request.chunks, unit, first) else { continue };
            let is_kept = holding(unit.chunk, unit.bytes).is_some();
            if let Some(span) = holding(first.chunk, place).filter(|_| !is_kept) {
                let start = span.output.start + place.start - span.source.start;
                let output = ByteRange::new(start, start + place.len());
                let repeat = KeptSpan { output, ..KeptSpan::unscored(unit.chunk, unit.bytes) };
                let spans: &mut Vec<KeptSpan> = &mut found[unit.chunk];
                // Neighbours are one span, as they are where they are kept.
                let text = &self.request.chunks[unit.chunk].text;
                let goes_on = |last: &&mut KeptSpan| {
                    let gap = repeat.output.start.checked_sub(last.output.end);
                    gap == Some(unit.bytes.start - last.source.end)
                        && text[last.source.end..unit.bytes.start].trim().is_empty()
                };
                match spans.last_mut().filter(goes_on) {
                    Some(last) => (last.source.end, last.output.end) = (unit.bytes.end, repeat.output.end),
                    None => spans.push(repeat),
                }
            }
        }
        // The last unit of a chunk comes last.
        for shared in self.repeats.shared() {
            let (last, first) = (&self.units[shared.last], &self.units[shared.first]);
            let place = ByteRange::new(first.bytes.start, first.bytes.start + shared.bytes.len());
            let is_kept = holding(last.chunk, shared.bytes).is_some();
            if let Some(span) = holding(first.chunk, place).filter(|_| !is_kept) {
                let start = span.output.start + place.start - span.source.start;
                let output = ByteRange::new(start, start + place.len());
                found[last.chunk].push(KeptSpan { output, ..KeptSpan::unscored(last.chunk, shared.bytes) });
            }
        }
        found
    }

    /// Returns the decision for a written context.
    pub fn finish(self, rendered: Rendered, outcome: Outcome) -> Decision {
        let Outcome { tokens_in, best, unit_cut, coverage_cut } = outcome;
        // A tokenizer that merges tokens across the end of a chunk may count a token or two more or fewer in
        // the whole context than in its parts.
        let kept: usize = rendered.spans.iter().flatten().map(|span| span.source.len()).sum();
        let all: usize = self.units.iter().map(|unit| unit.bytes.len()).sum();
        // A share of the input was promised of the tokens that the input had then.
        let is_promised = matches!(self.request.budget.at_most, Some(AtMost::Ratio(ratio)) if ratio < 1.0);
        let tokens_in =
            if kept >= all && !is_promised { rendered.tokens } else { tokens_in.max(rendered.tokens) };
        let usage = Usage { tokens_in, tokens_out: rendered.tokens };
        let repeats = self.repeated_spans(&rendered.spans);
        let rows_left_out = self.rows_left_out(&rendered.spans);
        let is_kept = |conflict: &&SourceConflict| conflict.units.iter().all(|unit| rendered.keeps(unit));
        let conflicts = self.context.conflicts.iter().filter(is_kept).take(CONFLICTS_MAX).copied().collect();
        let mut groups_cut = self.groups_cut(&rendered);
        // A budget can be too small for the best unit, and large enough for others.
        if let Some(best) = best.map(|best| &self.units[best])
            && !rendered.keeps(best)
            && !groups_cut.contains(&best.chunk)
        {
            groups_cut.push(best.chunk);
        }
        Decision {
            context: rendered.text,
            marker_tag: self.style.tag,
            usage,
            order: self.order,
            spans: rendered.spans,
            repeats,
            rows_left_out,
            groups_cut,
            unit_cut,
            conflicts,
            coverage_cut,
        }
    }
}

/// Returns whether both neighbours of a range are whitespace or the ends of the text.
fn is_between_blanks(text: &str, bytes: ByteRange) -> bool {
    let text = text.as_bytes();
    let before = bytes.start.checked_sub(1).is_none_or(|before| is_blank(text[before]));
    before && text.get(bytes.end).is_none_or(|&after| is_blank(after))
}

/// Returns the indices of all chunks in the order of the result. By relevance, chunks without text come last,
/// whatever the scores of their titles.
pub fn order(request: &CompressRequest, units: &[Unit], scores: &Scores) -> Vec<usize> {
    let mut order: Vec<usize> = (0..request.chunks.len()).collect();
    if request.order == Order::Relevance {
        let mut keys = vec![f32::NEG_INFINITY; order.len()];
        units.iter().for_each(|unit| keys[unit.chunk] = scores.chunks[unit.chunk]);
        order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
    }
    order
}
