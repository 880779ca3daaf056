//! The fit stage: selects units within the budget, writes them as a context and counts its tokens. Costs of
//! units are estimates, because tokens may merge across the borders of units; only the count of the written
//! context is compared with the budget. Units are dropped, worst first, until the context fits.

use std::collections::HashSet;
use std::sync::Arc;

use rayon::prelude::*;

use super::answerable::Answerable;
use super::assemble::{self, MarkerTag, Style};
use super::calibration::Calibration;
use super::cancel::Cancel;
use super::conformal::{self, CoverageLimits};
use super::count::{TextCosts, TokenCounter};
use super::notable::{self, Notable, UnitText};
use super::repeats::{self, Repeats};
use super::score::Scores;
use super::select::{Auto, Selection, SelectionInput, Step};
use super::units::Unit;
use super::validate::{InvalidRequest, Minimum};
use super::{PipelineError, Reading, Relevance, Usage};
use crate::domain::{
    Budget, ByteRange, Chunk, CompressRequest, Granularity, KeptSpan, Kind, Omissions, Order, TokenSpan,
    TokenizerName,
};
use crate::model::tokenizer::is_blank;
use crate::text::{self, outline::Piece};

/// By how many tokens a chunk and its frame alone may be more than in the whole context.
const PART_TOKENS_MORE_MAX: usize = 4;

/// A context that fits into the budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The text to send to the language model.
    pub context: String,
    /// The tag in the markers of the context.
    pub marker_tag: Option<MarkerTag>,
    pub usage: Usage,
    /// The indices of all chunks, in the order of the result.
    pub order: Vec<usize>,
    /// `[chunk]`: the kept spans of each chunk of the request, in ascending order.
    pub spans: Vec<Vec<KeptSpan>>,
    /// `[chunk]`: the spans of each chunk that the context holds where another chunk says the same, in ascending order.
    pub repeats: Vec<Vec<KeptSpan>>,
    /// Whether any chunk is related to the question; `None` for models that do not tell.
    pub relevance: Option<Relevance>,
    /// The chunks of which some rows are left out although the question compares all rows.
    pub rows_left_out: Vec<usize>,
    /// The chunks with a unit that is kept without all that it requires, and the chunk of the best unit if that is not kept.
    pub groups_cut: Vec<usize>,
}

/// What fitting needs besides the request and its scores.
#[derive(Clone, Copy)]
pub struct FitContext<'a> {
    /// Counts tokens with the request's tokenizer.
    pub counter: &'a TokenCounter,
    /// The cache of the token counts of frames.
    pub text_costs: &'a TextCosts,
    /// The rule for requests without a budget.
    pub auto: Auto,
    /// What says whether chunks are related; `None` if nothing does for this model and these languages.
    pub calibration: Option<&'a Calibration>,
    /// The limits of budgets that promise a coverage; `None` if the model has none.
    pub coverage: Option<&'a CoverageLimits>,
    /// Whether the chunks answer the question; `None` where it was not measured.
    pub answerable: Option<&'a Answerable>,
    pub cancel: &'a Cancel,
}

/// Returns the context with the best units that `request.budget` allows.
///
/// # Errors
/// Returns [`InvalidRequest::BudgetImpossible`] if the chunks in `request.keep` alone exceed the budget, or
/// if no unit fits, and the error of `fit.cancel` if it stops the work.
pub fn budget(
    request: &CompressRequest,
    reading: &Reading,
    scores: &Scores,
    fit: &FitContext,
) -> Result<Fitted, PipelineError> {
    let kept_ids: HashSet<&String> = request.keep.iter().collect();
    let keep: Vec<bool> = request.chunks.iter().map(|chunk| kept_ids.contains(&chunk.id)).collect();
    let units = &reading.units;
    let order = order(request, units, scores);
    let compares_rows = reading.outlines.has_rows() && text::compares_all(&request.query);
    let relevance = fit.auto.relevance(request, &reading.outlines, scores, fit.answerable, fit.calibration);
    // A promise covers questions that look unrelated, too.
    let limit = promised_limit(request.budget, fit.coverage)?;
    let is_related =
        !request.related_only || limit.is_some() || relevance.is_none_or(|relevance| relevance.related);
    let mut fitter = Fitter {
        request,
        reading,
        units,
        scores,
        fit,
        keep: &keep,
        order,
        relevance,
        compares_rows,
        repeats: Repeats::default(),
        style: Style::for_request(request),
    };
    let notable = if request.keeps_notable { fitter.notable() } else { Notable::default() };
    let required = fitter.required(&notable);
    // A ratio of 1 keeps everything.
    if request.budget != Budget::Ratio(1.0) && reading.granularity != Granularity::Word {
        fitter.repeats = reading.repeats.preferring(&request.chunks, units, &required);
        // A budget that has room for them keeps all lines.
        if !compares_rows && request.budget == Budget::Auto {
            fitter.repeats.fold(&notable.folded, &required);
        }
    }
    let unit_scores = fitter.scores_of_firsts();
    let costs = fitter.unit_costs()?;
    let frame_costs = fitter.frame_costs()?;
    let frame_costs_of_first = fitter.frame_costs_of_first(&frame_costs)?;
    // A promise is calibrated for units in the order of their scores.
    let leading = match limit {
        Some(_) => Vec::new(),
        None if request.budget == Budget::Auto => fitter.leading_units(),
        None => fitter.leading_units().into_iter().chain(true_at(&notable.kept)).collect(),
    };
    let input = SelectionInput {
        units,
        scores: &unit_scores,
        costs: &costs,
        frame_costs: &frame_costs,
        frame_costs_of_first: &frame_costs_of_first,
        required: &required,
        outlines: &reading.outlines,
        repeats: &fitter.repeats,
        leading: &leading,
        compares_rows,
    };
    let tokens_in = fitter.tokens_in(&frame_costs_of_first)?;
    let tokens = match request.budget {
        Budget::Tokens(tokens) => tokens,
        // A ratio of 1 keeps everything, even if the whole context has a token more than its parts.
        Budget::Ratio(1.0) => usize::MAX,
        Budget::Ratio(ratio) => share_of(ratio, tokens_in),
        Budget::Auto | Budget::Coverage(_) | Budget::AtLeast(_) => usize::MAX,
    };
    let best = input.ranked().first().copied().filter(|_| is_related);
    if let Budget::AtLeast(least) = request.budget {
        let rendered = fitter.render_at_least(&input, least)?;
        return Ok(fitter.finish(rendered, tokens_in, best));
    }
    let selection = match request.budget {
        Budget::Tokens(_) | Budget::Ratio(_) if fitter.holds_all(tokens, tokens_in)? => input.everything(),
        _ if !is_related => Selection::of_required(input.required()),
        Budget::Auto if text::asks_for_overview(&request.query) => input.everything(),
        Budget::Auto => fit.auto.select(&input, scores),
        Budget::Coverage(_) => input.up_to(limit.unwrap_or(f32::INFINITY)),
        _ => {
            // Every frame includes the break after its chunk, but the last chunk of a context has none.
            let tokens = tokens + fit.counter.count(assemble::BETWEEN_CHUNKS)?;
            input.within(tokens)
        }
    };
    // Nothing is kept if nothing is related; otherwise an empty context means that no unit fits.
    let is_enough = |rendered: &RenderedContext| !is_related || !rendered.text.is_empty() || units.is_empty();
    let mut rendered = fitter.render_within(&selection, tokens)?.filter(is_enough);
    if rendered.is_none() && !selection.ends.is_empty() && request.budget != Budget::Auto {
        // The marks of what was left out are not known before: the best unit gets as much less room.
        let found = fitter.render(&selection, 1)?.tokens;
        let room = tokens.saturating_sub(found.saturating_sub(tokens));
        rendered = fitter.render_within(&input.within(room), tokens)?.filter(is_enough);
    }
    if let Some(rendered) = rendered {
        return Ok(fitter.finish(rendered, tokens_in, best));
    }
    let (minimum, rendered) = fitter.render_minimum(&input)?;
    let needed = rendered.tokens;
    if needed > tokens {
        let is_ratio = matches!(request.budget, Budget::Ratio(_));
        let least_ratio = is_ratio.then(|| least_ratio(needed, tokens_in));
        return Err(InvalidRequest::BudgetImpossible { budget: tokens, needed, minimum, least_ratio }.into());
    }
    Ok(fitter.finish(rendered, tokens_in, best))
}

/// Returns the largest effort that a budget keeps; `None` if it promises no coverage.
fn promised_limit(budget: Budget, limits: Option<&CoverageLimits>) -> Result<Option<f32>, InvalidRequest> {
    let Budget::Coverage(coverage) = budget else { return Ok(None) };
    let limits = limits.ok_or(InvalidRequest::CoverageUncalibrated)?;
    let too_high = |max| InvalidRequest::CoverageTooHigh {
        coverage,
        max,
        rows: limits.rows,
        needed: conformal::rows_needed(coverage),
    };
    limits.limit(coverage).map(Some).map_err(too_high)
}

/// Returns the choices of units that a promise would keep for a request, in their order, each with its effort.
pub fn steps(request: &CompressRequest, reading: &Reading, scores: &Scores) -> Vec<Step> {
    // Costs have no influence on the order.
    let free = vec![0; reading.units.len().max(request.chunks.len())];
    let required = vec![false; reading.units.len()];
    let input = SelectionInput {
        units: &reading.units,
        scores: &scores.units,
        costs: &free,
        frame_costs: &free,
        frame_costs_of_first: &free,
        required: &required,
        outlines: &reading.outlines,
        repeats: &Repeats::default(),
        leading: &[],
        compares_rows: reading.outlines.has_rows() && text::compares_all(&request.query),
    };
    input.steps()
}

fn true_at(flags: &[bool]) -> impl Iterator<Item = usize> {
    flags.iter().enumerate().filter(|(_, flag)| **flag).map(|(at, _)| at)
}

fn share_of(ratio: f64, tokens_in: usize) -> usize {
    (ratio * tokens_in as f64) as usize
}

/// Returns a ratio with up to three decimals that allows `needed` tokens. It is at most 1, which keeps everything.
fn least_ratio(needed: usize, tokens_in: usize) -> f64 {
    let thousandths = (needed as f64 / tokens_in as f64 * 1000.0).ceil();
    let ratio = |thousandths: f64| (thousandths / 1000.0).min(1.0);
    // A product of two rounded numbers may be just below a whole one.
    let is_enough = share_of(ratio(thousandths), tokens_in) >= needed;
    ratio(if is_enough { thousandths } else { thousandths + 1.0 })
}

/// What all steps of fitting one request share.
struct Fitter<'a> {
    request: &'a CompressRequest,
    reading: &'a Reading,
    units: &'a [Unit],
    scores: &'a Scores,
    fit: &'a FitContext<'a>,
    /// `[chunk]`: whether the request wants the chunk kept whole.
    keep: &'a [bool],
    /// The indices of all chunks, in the order of the result.
    order: Vec<usize>,
    relevance: Option<Relevance>,
    compares_rows: bool,
    repeats: Repeats,
    /// How the context is written.
    style: Style,
}

struct RenderedContext {
    text: String,
    /// `[chunk]`: the kept spans of each chunk.
    spans: Vec<Vec<KeptSpan>>,
    tokens: usize,
}

impl Fitter<'_> {
    /// Returns `[unit]`, whether the request wants the unit kept: it is in a chunk of `keep`, or at an end of the texts, or
    /// one of these requires it.
    fn required(&self, notable: &Notable) -> Vec<bool> {
        let mut required: Vec<bool> = self.units.iter().map(|unit| self.keep[unit.chunk]).collect();
        if self.request.keeps_notable {
            let outlines = &self.reading.outlines;
            let mut open: Vec<usize> =
                (0..self.units.len()).take(1).chain(self.units.len().checked_sub(1)).collect();
            // A budget in tokens keeps what is notable first, as far as it has room.
            if matches!(self.request.budget, Budget::Auto | Budget::AtLeast(_)) {
                open.extend(true_at(&notable.kept));
            }
            while let Some(unit) = open.pop() {
                if !std::mem::replace(&mut required[unit], true) {
                    open.extend(outlines.required_by(unit, self.units[unit].chunk));
                }
            }
        }
        required
    }

    /// Returns what is notable among the units.
    fn notable(&self) -> Notable {
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
    fn unit_costs(&self) -> Result<Vec<usize>, PipelineError> {
        let text = |unit: &Unit| unit.bytes.slice(&self.request.chunks[unit.chunk].text);
        match self.request.tokenizer {
            TokenizerName::Model => Ok(self.units.iter().map(|unit| unit.tokens.len()).collect()),
            _ => self.units.par_iter().with_min_len(64).map(|unit| self.cost(text(unit))).collect(),
        }
    }

    /// Returns `[chunk]`, the number of tokens of each chunk's frame with its title.
    fn frame_costs(&self) -> Result<Vec<usize>, PipelineError> {
        let frame_cost = |(i, chunk): (usize, &Arc<Chunk>)| self.frame_cost(chunk, "", i);
        self.request.chunks.par_iter().enumerate().with_min_len(256).map(frame_cost).collect()
    }

    /// Returns `[chunk]`, the number of tokens of each chunk's frame around its text as a whole. Only a text that begins with its title has
    /// another one than `frame_costs`.
    fn frame_costs_of_first(&self, frame_costs: &[usize]) -> Result<Vec<usize>, PipelineError> {
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
        let FitContext { counter, text_costs, .. } = self.fit;
        text_costs.count(counter, self.request.tokenizer, text)
    }

    /// Returns the number of tokens that the context would have if everything were kept: those of the chunks and of their frames, added up.
    /// The model's tokens are counted in the blocks.
    fn tokens_in(&self, frame_costs: &[usize]) -> Result<usize, PipelineError> {
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
    fn holds_all(&self, tokens: usize, tokens_in: usize) -> Result<bool, PipelineError> {
        if tokens >= tokens_in || self.request.tokenizer == TokenizerName::Model {
            return Ok(tokens >= tokens_in);
        }
        let may_hold = tokens_in - tokens <= PART_TOKENS_MORE_MAX * self.request.chunks.len();
        let all = || self.render(&Selection::of_required((0..self.units.len()).collect()), 0);
        Ok(may_hold && all()?.tokens <= tokens)
    }

    /// Finds by bisection the longest prefix of the selection whose context has at most `tokens` tokens.
    /// Returns `None` if not even the required units fit.
    fn render_within(
        &self,
        selection: &Selection,
        tokens: usize,
    ) -> Result<Option<RenderedContext>, PipelineError> {
        let mut best = None;
        // All numbers of choices below `low` fit; none from `high` on does.
        let (mut low, mut high) = (0, selection.ends.len() + 1);
        let mut count = selection.ends.len();
        while low < high {
            let rendered = self.render(selection, count)?;
            if rendered.tokens <= tokens {
                low = count + 1;
                best = Some(rendered);
            } else {
                high = count;
            }
            count = low + (high - low) / 2;
        }
        Ok(best)
    }

    /// Writes a context of at least `least` tokens, or of everything. What is kept may stay under a budget by the length of a unit or of
    /// several, so the budget is raised in steps.
    fn render_at_least(
        &self,
        input: &SelectionInput,
        least: usize,
    ) -> Result<RenderedContext, PipelineError> {
        let last_break = self.fit.counter.count(assemble::BETWEEN_CHUNKS)?;
        for more in [0, 64, 256] {
            let tokens = least.saturating_add(more);
            let selection = input.filling(tokens.saturating_add(last_break));
            let rendered = match self.render_within(&selection, tokens)? {
                Some(rendered) if !rendered.text.is_empty() => rendered,
                // Not even one unit fits: the least that can be kept is better than everything.
                _ => self.render_minimum(input)?.1,
            };
            if rendered.tokens >= least {
                return Ok(rendered);
            }
        }
        let everything = input.everything();
        self.render(&everything, everything.ends.len())
    }

    /// Writes the context of the required units and the first `choices` choices of a selection.
    fn render(&self, selection: &Selection, choices: usize) -> Result<RenderedContext, PipelineError> {
        self.fit.cancel.check()?;
        let mut kept = vec![false; self.units.len()];
        selection.required.iter().chain(selection.first(choices)).for_each(|&unit| kept[unit] = true);
        let mut spans = self.merged_spans(&kept);
        let text = {
            // Chunks without a kept span do not appear; the others appear in the order of the result.
            let mut by_chunk: Vec<&mut [KeptSpan]> = spans.iter_mut().map(Vec::as_mut_slice).collect();
            let mut take = |&chunk: &usize| std::mem::take(&mut by_chunk[chunk]);
            let kept: Vec<_> = self.order.iter().map(&mut take).filter(|spans| !spans.is_empty()).collect();
            let layouts = self.reading.outlines.layouts();
            assemble::context(&self.request.chunks, layouts, kept, self.style)
        };
        let tokens = self.count_tokens(&text, &spans)?;
        Ok(RenderedContext { text, spans, tokens })
    }

    /// Counts the tokens of a written context. If no token crosses whitespace, the counts of its parts are
    /// added up: whitespace surrounds every span in the context, so a span that whitespace also surrounds in
    /// its chunk has the same tokens in both. Otherwise the context is tokenized.
    fn count_tokens(&self, context: &str, spans: &[Vec<KeptSpan>]) -> Result<usize, PipelineError> {
        let counter = self.fit.counter;
        let has_marks = !matches!(self.request.omissions, Omissions::Auto | Omissions::None);
        let mark_tokens = match self.request.omissions {
            Omissions::None => 0,
            _ => counter.count(assemble::MARK)?,
        };
        if !counter.splits_at_blanks() || has_marks || self.reading.outlines.has_long_marks() {
            return counter.count(context);
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
                    counter.count(span.source.slice(text))?
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

    /// Writes the smallest context that the request allows, and says in words of an error message what it
    /// consists of: the required units, or else the unit with the lowest cost. Costs are those of units by
    /// themselves, so this context may fit even though no selection did.
    fn render_minimum(&self, input: &SelectionInput) -> Result<(Minimum, RenderedContext), PipelineError> {
        let required = input.required();
        if !required.is_empty() {
            let minimum = Minimum { of: "what `keep` names", instead: ", or keep fewer chunks" };
            return Ok((minimum, self.render(&Selection::of_required(required), 0)?));
        }
        let units = input.cheapest().map(|unit| input.least_group(unit)).unwrap_or_default();
        let rendered = self.render(&Selection::of_required(units), 0)?;
        let instead = match self.request.granularity {
            Granularity::Word => "",
            Granularity::Sentence | Granularity::Chunk => ", or choose a smaller `granularity`",
        };
        Ok((Minimum { of: "the shortest unit of this `granularity`", instead }, rendered))
    }

    /// Returns the chunks with a row within and a row outside `spans`, if the question compares all rows.
    fn rows_left_out(&self, spans: &[Vec<KeptSpan>]) -> Vec<usize> {
        let is_kept =
            |row: &ByteRange, spans: &[KeptSpan]| spans.iter().any(|span| span.source.overlaps(*row));
        let is_partial = |&(chunk, spans): &(usize, &Vec<KeptSpan>)| {
            let pieces = &self.reading.outlines.layouts()[chunk].pieces;
            let mut rows =
                pieces.iter().filter(|piece| piece.is_row).map(|piece| is_kept(&piece.bytes, spans));
            !spans.is_empty() && rows.any(|kept| !kept)
        };
        if self.compares_rows {
            spans.iter().enumerate().filter(is_partial).map(|(chunk, _)| chunk).collect()
        } else {
            Vec::new()
        }
    }

    /// Returns the chunks with a piece within `spans` that requires one outside them.
    fn groups_cut(&self, spans: &[Vec<KeptSpan>]) -> Vec<usize> {
        let outlines = &self.reading.outlines;
        let mut cut = Vec::new();
        for (chunk, spans) in spans.iter().enumerate().filter(|(_, spans)| !spans.is_empty()) {
            // Spans ascend and do not overlap, so one that ends behind a piece's start decides.
            let is_kept = |piece: &Piece| {
                let at = spans.partition_point(|span| span.source.end <= piece.bytes.start);
                spans.get(at).is_some_and(|span| span.source.overlaps(piece.bytes))
            };
            let pieces = &outlines.layouts()[chunk].pieces;
            let lacks = |piece: &Piece| piece.requires.iter().any(|&other| !is_kept(&pieces[other]));
            // A heading needs what it introduces, or one of the pieces that require it.
            let mut is_needed = vec![false; pieces.len()];
            let kept = pieces.iter().filter(|piece| is_kept(piece));
            kept.flat_map(|piece| &piece.requires).for_each(|&other| is_needed[other] = true);
            let is_alone = |at: usize, piece: &Piece| {
                piece.introduces.is_some_and(|other| !is_kept(&pieces[other])) && !is_needed[at]
            };
            let is_cut =
                |(at, piece): (usize, &Piece)| is_kept(piece) && (lacks(piece) || is_alone(at, piece));
            if pieces.iter().enumerate().any(is_cut) {
                cut.push(chunk);
            }
        }
        cut
    }

    /// Returns the best unit for each of several questions in one: that with the most RC for its words. Empty if the question asks
    /// for one thing, or if RC does not score its tokens.
    fn leading_units(&self) -> Vec<usize> {
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
    fn scores_of_firsts(&self) -> Vec<f32> {
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
        found
    }

    fn finish(self, rendered: RenderedContext, tokens_in: usize, best: Option<usize>) -> Fitted {
        // A tokenizer that merges tokens across the end of a chunk may count a token or two more or fewer in
        // the whole context than in its parts.
        let kept: usize = rendered.spans.iter().flatten().map(|span| span.source.len()).sum();
        let all: usize = self.units.iter().map(|unit| unit.bytes.len()).sum();
        // A share of the input was promised of the tokens that the input had then.
        let is_promised = matches!(self.request.budget, Budget::Ratio(ratio) if ratio < 1.0);
        let tokens_in =
            if kept >= all && !is_promised { rendered.tokens } else { tokens_in.max(rendered.tokens) };
        let usage = Usage { tokens_in, tokens_out: rendered.tokens };
        let repeats = self.repeated_spans(&rendered.spans);
        let rows_left_out = self.rows_left_out(&rendered.spans);
        let mut groups_cut = self.groups_cut(&rendered.spans);
        // A budget can be too small for the best unit, and large enough for others.
        if let Some(Unit { chunk, bytes, .. }) = best.map(|best| &self.units[best]) {
            let is_kept = rendered.spans[*chunk].iter().any(|span| span.source.overlaps(*bytes));
            if !is_kept && !groups_cut.contains(chunk) {
                groups_cut.push(*chunk);
            }
        }
        let (relevance, order) = (self.relevance, self.order);
        Fitted {
            context: rendered.text,
            marker_tag: self.style.tag,
            usage,
            order,
            spans: rendered.spans,
            repeats,
            relevance,
            rows_left_out,
            groups_cut,
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
fn order(request: &CompressRequest, units: &[Unit], scores: &Scores) -> Vec<usize> {
    let mut order: Vec<usize> = (0..request.chunks.len()).collect();
    if request.order == Order::Relevance {
        let mut keys = vec![f32::NEG_INFINITY; order.len()];
        units.iter().for_each(|unit| keys[unit.chunk] = scores.chunks[unit.chunk]);
        order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
    }
    order
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;
    use crate::domain::Format;
    use crate::kv::store::KvStore;
    use crate::model::scripted::ScriptedModel;
    use crate::pipeline::cancel::Cancel;
    use crate::pipeline::clock::Clock;
    use crate::pipeline::score::Measured;
    use crate::pipeline::{Pipeline, Settings};

    /// The scores of the four sentences below. The second chunk has the better score.
    const UNITS: [f32; 4] = [3.0, 1.0, 2.0, 4.0];
    const CHUNKS: [f32; 2] = [1.0, 2.0];

    fn request(budget: Budget) -> CompressRequest {
        let chunk = |(id, text): (&str, &str)| Chunk {
            id: id.to_owned(),
            title: None,
            text: text.to_owned(),
            kind: Kind::Auto,
            metadata: None,
        };
        let chunks = [("a", "Tide rises. Moon pulls. Water falls."), ("b", "Rain fell.")].map(chunk).into();
        let tokenizer = TokenizerName::Model;
        CompressRequest { budget, tokenizer, ..CompressRequest::new("?", chunks) }
    }

    /// `expect` is the context or the message of the error. Each byte is a token.
    #[track_caller]
    fn check(name: &str, request: CompressRequest, expect: &str) {
        let tokenizer = Arc::new(ScriptedModel::tokenizer(&[]));
        let model = Arc::new(ScriptedModel::new(64));
        let store = Arc::new(KvStore::without_tiers());
        let pipeline = Pipeline::new(model, Arc::clone(&tokenizer), store, Settings::default());
        let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start()).expect("a reading");
        let unit_rc = Array2::from_shape_vec((1, 4), UNITS.to_vec()).expect("one row");
        let scores = Scores {
            chunks: CHUNKS.to_vec(),
            units: UNITS.to_vec(),
            unit_rc,
            relevance: Some(1.0),
            chunk_relevances: Vec::new(),
            measured: Measured::Prose,
            are_probabilities: false,
        };
        let counter = TokenCounter::new(request.tokenizer, &tokenizer);
        let (cancel, auto) = (Cancel::default(), Auto::default());
        let text_costs = TextCosts::new();
        let calibration = Calibration::shipped("minilm-l6").expect("the default model");
        let fit = FitContext {
            counter: &counter,
            text_costs: &text_costs,
            auto,
            calibration: Some(&*calibration),
            coverage: calibration.coverage.as_ref(),
            answerable: None,
            cancel: &cancel,
        };
        let found = match budget(&request, &reading, &scores, &fit) {
            Ok(fitted) => fitted.context,
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn budgets() {
        let check = |name: &str, budget, expect: &str| check(name, request(budget), expect);
        let impossible = |budget| {
            format!(
                "a budget of {budget} tokens is too small: the shortest unit of this `granularity` needs 14 tokens; send {}, or choose a smaller \
                 `granularity`",
                if budget == 0 { "a ratio of at least 0.242" } else { "`tokens` of at least 14" }
            )
        };
        let rain = "[1] Rain fell.";
        let tide_and_rain = "[1] Tide rises.\n\n[2] Rain fell.";
        let all = "[1] Tide rises. Moon pulls. Water falls.\n\n[2] Rain fell.";
        check("no unit fits", Budget::Tokens(13), &impossible(13));
        check("the best unit fits exactly", Budget::Tokens(14), rain);
        check("one token too few for two units", Budget::Tokens(30), rain);
        check("two units fit exactly", Budget::Tokens(31), tide_and_rain);
        // A mark has as many tokens as bytes here: three.
        check("the third unit fits, but not the mark before it", Budget::Tokens(47), tide_and_rain);
        check("a gap is marked", Budget::Tokens(48), "[1] Tide rises. … Water falls.\n\n[2] Rain fell.");
        check("neighbouring units keep the text between them", Budget::Tokens(56), all);
        check("a budget larger than the input", Budget::Tokens(1_000_000), all);
        check("a ratio of 1 keeps everything", Budget::Ratio(1.0), all);
        check("half of 58 tokens, the last break included", Budget::Ratio(0.5), rain);
        check("a ratio of less than a token", Budget::Ratio(0.01), &impossible(0));
        check("auto keeps the units with enough evidence and score", Budget::Auto, tide_and_rain);
        check("the least promise keeps the best unit", Budget::Coverage(0.6), rain);
        check("more is promised, more is kept", Budget::Coverage(0.63), tide_and_rain);
        let three = "[1] Tide rises. … Water falls.\n\n[2] Rain fell.";
        check("units in the order of their scores", Budget::Coverage(0.75), three);
        check("a large promise over few units", Budget::Coverage(0.9), all);
    }

    #[test]
    fn the_least_ratio_allows_what_is_needed() {
        for tokens_in in 1..400 {
            for needed in 1..=tokens_in {
                let ratio = least_ratio(needed, tokens_in);
                assert!(
                    share_of(ratio, tokens_in) >= needed && ratio <= 1.0,
                    "{needed} of {tokens_in}: {ratio}"
                );
            }
        }
    }

    #[test]
    fn order_keep_and_format() {
        let keep = |id: &str, tokens| CompressRequest {
            keep: vec![id.to_owned()],
            ..request(Budget::Tokens(tokens))
        };
        let relevance = CompressRequest { order: Order::Relevance, ..request(Budget::Tokens(31)) };
        check("the best chunk first", relevance, "[1] Rain fell.\n\n[2] Tide rises.");
        let whole = "[1] Tide rises. Moon pulls. Water falls.";
        check("a kept chunk is whole", keep("a", 40), whole);
        check(
            "the rest of the budget goes to other chunks",
            keep("a", 56),
            &format!("{whole}\n\n[2] Rain fell."),
        );
        let needs = "a budget of 39 tokens is too small: what `keep` names needs 40 tokens; send `tokens` of at least 40, or keep fewer chunks";
        check("a kept chunk that exceeds the budget", keep("a", 39), needs);
        let plain = CompressRequest { format: Format::Plain, ..request(Budget::Tokens(10)) };
        check("plain text has no marker to count", plain, "Rain fell.");
    }

    #[test]
    fn rows_and_structure_are_found_with_units_of_any_size() {
        let model = Arc::new(ScriptedModel::new(64));
        let store = Arc::new(KvStore::without_tiers());
        let tokenizer = Arc::new(ScriptedModel::tokenizer(&[]));
        let pipeline = Pipeline::new(model, tokenizer, store, Settings::default());
        let table = Chunk {
            id: "a".to_owned(),
            title: None,
            text: "| room | price |\n|---|---|\n| Blue | 70 |\n| Red | 80 |\n".to_owned(),
            kind: Kind::Table,
            metadata: None,
        };
        let unrelated = Scores {
            chunks: vec![0.0],
            units: Vec::new(),
            unit_rc: Array2::zeros((1, 0)),
            relevance: Some(0.0),
            chunk_relevances: Vec::new(),
            measured: Measured::Structured,
            are_probabilities: false,
        };
        for granularity in [Granularity::Chunk, Granularity::Sentence, Granularity::Word] {
            let request = CompressRequest { granularity, ..CompressRequest::new("?", vec![table.clone()]) };
            let reading =
                pipeline.read(&request, &Cancel::default(), &mut Clock::start()).expect("a reading");
            assert!(!reading.outlines.is_prose(), "{granularity:?}");
            let is_related = |query: &str| {
                let query = query.to_owned();
                let request = CompressRequest { query, ..request.clone() };
                let relevance = Auto::default().relevance(
                    &request,
                    &reading.outlines,
                    &unrelated,
                    None,
                    Calibration::shipped("minilm-l6").as_deref(),
                );
                relevance.expect("the model tells").related
            };
            assert!(is_related("Which room is the cheapest?"), "{granularity:?}");
            assert!(!is_related("Who painted the blue room?"), "{granularity:?}");
        }
    }
}
