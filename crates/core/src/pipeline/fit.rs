//! Budget to context: chooses units, writes them, counts what was written, and takes away the worst until it fits.

use std::collections::HashSet;
use std::sync::Arc;

use rayon::prelude::*;

use super::assemble;
use super::auto::Auto;
use super::cancel::Cancel;
use super::count::{Counter, FrameCosts};
use super::score::Scores;
use super::select::{Candidates, Selection};
use super::units::Unit;
use super::validate::InvalidRequest;
use super::{PipelineError, Reading, Usage};
use crate::domain::{Budget, ByteRange, Chunk, CompressRequest, KeptSpan, Order, TokenSpan, TokenizerName};
use crate::model::tokenizer::is_blank;

/// A context within its budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The text to send to the language model.
    pub context: String,
    /// Its tokens.
    pub usage: Usage,
    /// Every chunk's index, in the order of the answer.
    pub order: Vec<usize>,
    /// For each chunk of the request, its kept spans, ascending.
    pub spans: Vec<Vec<KeptSpan>>,
}

/// What fitting needs besides the request and what was read for it.
#[derive(Clone, Copy)]
pub struct FitContext<'a> {
    /// Counts as the caller counts.
    pub counter: &'a Counter,
    /// Knows what stands around chunks.
    pub frames: &'a FrameCosts,
    /// Says how much is worth keeping without a budget.
    pub auto: Auto,
    /// Says when to stop.
    pub cancel: &'a Cancel,
}

/// The best context that `request.budget` allows.
///
/// # Errors
/// [`InvalidRequest::BudgetImpossible`] when the budget holds not even what must be kept, or no unit at all; a deadline.
pub fn budget(
    request: &CompressRequest,
    reading: &Reading,
    scores: &Scores,
    means: &FitContext,
) -> Result<Fitted, PipelineError> {
    let wanted: HashSet<&String> = request.keep.iter().collect();
    let keep: Vec<bool> = request.chunks.iter().map(|chunk| wanted.contains(&chunk.id)).collect();
    let units = &reading.units;
    let order = order(request, units, scores);
    let desk = Fitter { request, reading, units, scores, means, keep: &keep, order };
    let costs = desk.unit_costs()?;
    let frame_costs = desk.frame_costs()?;
    let candidates =
        Candidates { units, scores: &scores.units, costs: &costs, frame_costs: &frame_costs, keep: &keep };
    let tokens_in = desk.tokens_in(&frame_costs)?;
    let tokens = match request.budget {
        Budget::Tokens(tokens) => tokens,
        // All of it is all of it, also where parts counted one by one come out a token short.
        Budget::Ratio(1.0) => usize::MAX,
        Budget::Ratio(ratio) => (ratio * tokens_in as f64) as usize,
        Budget::Auto => usize::MAX,
    };
    let selection = match request.budget {
        Budget::Auto => means.auto.select(&candidates, scores),
        _ if tokens >= tokens_in => candidates.within(usize::MAX),
        // The last chunk has no break behind it.
        _ => candidates.within(tokens + means.counter.count(assemble::BETWEEN_CHUNKS)?),
    };
    if let Some(written) = desk.write_within(&selection, tokens)? {
        return Ok(desk.finish(written, tokens_in));
    }
    let (reason, least) = desk.write_least(&candidates)?;
    let needed = least.tokens;
    if needed > tokens {
        let is_ratio = matches!(request.budget, Budget::Ratio(_));
        return Err(InvalidRequest::BudgetImpossible { budget: tokens, needed, reason, is_ratio }.into());
    }
    Ok(desk.finish(least, tokens_in))
}

/// What every step of fitting looks at.
struct Fitter<'a> {
    request: &'a CompressRequest,
    reading: &'a Reading,
    units: &'a [Unit],
    scores: &'a Scores,
    means: &'a FitContext<'a>,
    /// Per chunk, whether the caller wants it whole.
    keep: &'a [bool],
    order: Vec<usize>,
}

/// A context and what it costs.
struct Written {
    context: String,
    spans: Vec<Vec<KeptSpan>>,
    tokens: usize,
}

impl Fitter<'_> {
    /// Tokens of each unit on its own.
    fn unit_costs(&self) -> Result<Vec<usize>, PipelineError> {
        let text = |unit: &Unit| unit.bytes.of(&self.request.chunks[unit.chunk].text);
        match self.request.tokenizer {
            TokenizerName::Model => Ok(self.units.iter().map(|unit| unit.tokens.len()).collect()),
            _ => self.units.par_iter().map(|unit| self.means.counter.count(text(unit))).collect(),
        }
    }

    /// Tokens around each chunk's text.
    fn frame_costs(&self) -> Result<Vec<usize>, PipelineError> {
        let FitContext { counter, frames, .. } = self.means;
        let frame = |(i, chunk): (usize, &Arc<Chunk>)| {
            let frame = assemble::block(chunk, "", i, self.request.format);
            frames.count(counter, self.request.tokenizer, frame)
        };
        self.request.chunks.par_iter().enumerate().with_min_len(256).map(frame).collect()
    }

    /// Tokens of the context if everything were kept. The model has tokenized the text already.
    fn tokens_in(&self, frame_costs: &[usize]) -> Result<usize, PipelineError> {
        if self.request.tokenizer == TokenizerName::Model {
            let blocks = self.reading.blocks.blocks.iter().zip(frame_costs);
            let with_text = blocks.filter(|(block, _)| block.sentences().len() > 0);
            return Ok(with_text.map(|(block, frame)| block.text_tokens() + frame).sum());
        }
        let all = Selection { wanted: Vec::new(), picked: (0..self.units.len()).collect() };
        Ok(self.write(&all, all.picked.len())?.tokens)
    }

    /// The longest prefix of the selection whose context, as written, has at most `tokens`; none when not even the
    /// wanted chunks fit, or when there is text and the budget holds nothing of it.
    fn write_within(&self, selection: &Selection, tokens: usize) -> Result<Option<Written>, PipelineError> {
        let mut fits = None;
        let (mut least, mut too_many) = (0, selection.picked.len() + 1);
        let mut picked = selection.picked.len();
        while least < too_many {
            let written = self.write(selection, picked)?;
            if written.tokens <= tokens {
                least = picked + 1;
                fits = Some(written);
            } else {
                too_many = picked;
            }
            picked = least + (too_many - least) / 2;
        }
        let holds_nothing = |written: &Written| written.context.is_empty() && !self.units.is_empty();
        Ok(fits.filter(|written| !holds_nothing(written)))
    }

    fn write(&self, selection: &Selection, picked: usize) -> Result<Written, PipelineError> {
        self.means.cancel.check()?;
        let mut kept = vec![false; self.units.len()];
        selection.wanted.iter().chain(&selection.picked[..picked]).for_each(|&unit| kept[unit] = true);
        let mut spans = self.merged(&kept);
        let context = {
            // Chunks without a kept span take no part; the others stand in the order of the answer.
            let mut by_chunk: Vec<&mut [KeptSpan]> = spans.iter_mut().map(Vec::as_mut_slice).collect();
            let mut take = |&chunk: &usize| std::mem::take(&mut by_chunk[chunk]);
            let kept: Vec<_> = self.order.iter().map(&mut take).filter(|spans| !spans.is_empty()).collect();
            assemble::context(&self.request.chunks, kept, self.request.format)
        };
        let tokens = self.written_tokens(&context, &spans)?;
        Ok(Written { context, spans, tokens })
    }

    /// Tokens of a context as it is written. Blanks stand around every span of it: where tokens do not cross those, a span
    /// that stood between blanks already has the tokens that were read in it.
    fn written_tokens(&self, context: &str, spans: &[Vec<KeptSpan>]) -> Result<usize, PipelineError> {
        let FitContext { counter, frames, .. } = self.means;
        if !counter.splits_at_blanks() {
            return counter.count(context);
        }
        let mut tokens = 0;
        let kept = self.order.iter().filter(|&&chunk| !spans[chunk].is_empty());
        for (position, &index) in kept.enumerate() {
            let chunk = &self.request.chunks[index];
            let frame = assemble::block(chunk, "", position, self.request.format);
            tokens += frames.count(counter, self.request.tokenizer, frame)?;
            for span in &spans[index] {
                tokens += match is_between_blanks(&chunk.text, span.source) {
                    true => span.tokens.len(),
                    false => counter.count(span.source.of(&chunk.text))?,
                };
            }
        }
        Ok(tokens)
    }

    /// Kept units to spans: neighbours become one, with what stands between them; a wanted chunk is one, whole.
    fn merged(&self, kept: &[bool]) -> Vec<Vec<KeptSpan>> {
        let mut spans: Vec<Vec<KeptSpan>> = vec![Vec::new(); self.request.chunks.len()];
        let mut before = None;
        for (index, unit) in self.units.iter().enumerate().filter(|(index, _)| kept[*index]) {
            let (spans, score) = (&mut spans[unit.chunk], self.scores.units[index]);
            match spans.last_mut() {
                Some(last) if before.is_some_and(|before| before + 1 == index) => {
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
            before = Some(index);
        }
        let read = &self.reading.blocks;
        for (chunk, spans) in spans.iter_mut().enumerate().filter(|(chunk, _)| self.keep[*chunk]) {
            if let Some(span) = spans.first_mut() {
                span.source = ByteRange::new(0, self.request.chunks[chunk].text.len());
                let all = read.spans[chunk];
                span.tokens = TokenSpan::new(all.start + read.blocks[chunk].title_tokens(), all.end);
            }
        }
        spans
    }

    /// The least that can be answered: what the caller wants, else the unit that costs least. Costs of units are of
    /// units on their own, so it may fit where no selection did; only what is written counts.
    fn write_least(&self, candidates: &Candidates) -> Result<(&'static str, Written), PipelineError> {
        let wanted = candidates.wanted();
        if !wanted.is_empty() {
            return Ok(("what `keep` names", self.write(&Selection { wanted, picked: Vec::new() }, 0)?));
        }
        let cost =
            |unit: usize| candidates.costs[unit] + candidates.frame_costs[candidates.units[unit].chunk];
        let cheapest = (0..candidates.units.len()).min_by_key(|&unit| cost(unit));
        let cheapest = Selection { wanted, picked: cheapest.into_iter().collect() };
        Ok(("the shortest unit of this `granularity`", self.write(&cheapest, cheapest.picked.len())?))
    }

    fn finish(self, written: Written, tokens_in: usize) -> Fitted {
        // Tokenizers that merge across a chunk's end can count the whole one or two tokens differently than its parts.
        let usage = Usage { tokens_in: tokens_in.max(written.tokens), tokens_out: written.tokens };
        Fitted { context: written.context, usage, order: self.order, spans: written.spans }
    }
}

/// Whether nothing but blanks, or the text's ends, touches `bytes`.
fn is_between_blanks(text: &str, bytes: ByteRange) -> bool {
    let text = text.as_bytes();
    let before = bytes.start.checked_sub(1).is_none_or(|before| is_blank(text[before]));
    before && text.get(bytes.end).is_none_or(|&after| is_blank(after))
}

/// Every chunk's index in the order of the answer; by relevance, chunks without text come last whatever their titles.
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
    use crate::pipeline::{Pipeline, Settings};

    /// Scores of the four sentences below; the second chunk is the better one.
    const UNITS: [f32; 4] = [3.0, 1.0, 2.0, 4.0];
    const CHUNKS: [f32; 2] = [1.0, 2.0];

    fn request(budget: Budget) -> CompressRequest {
        let chunk = |(id, text): (&str, &str)| Chunk {
            id: id.to_owned(),
            title: None,
            text: text.to_owned(),
            metadata: None,
        };
        let chunks = [("a", "Tide rises. Moon pulls. Water falls."), ("b", "Rain fell.")].map(chunk).into();
        CompressRequest { budget, ..CompressRequest::new("?", chunks) }
    }

    /// The context, or why there is none; a token is a byte.
    #[track_caller]
    fn check(name: &str, request: CompressRequest, expect: &str) {
        let tokenizer = Arc::new(ScriptedModel::tokenizer(&[]));
        let model = Arc::new(ScriptedModel::new(64));
        let store = Arc::new(KvStore::without_tiers());
        let pipeline = Pipeline::new(model, Arc::clone(&tokenizer), store, Settings::default());
        let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start()).expect("a reading");
        let unit_rc = Array2::from_shape_vec((1, 4), UNITS.to_vec()).expect("one row");
        let scores = Scores { chunks: CHUNKS.to_vec(), units: UNITS.to_vec(), unit_rc, max_sim: Some(1.0) };
        let counter = Counter::new(request.tokenizer, &tokenizer);
        let (cancel, auto) = (Cancel::default(), Auto::default());
        let means = FitContext { counter: &counter, frames: &FrameCosts::new(), auto, cancel: &cancel };
        let found = match budget(&request, &reading, &scores, &means) {
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
                "budget of {budget} tokens cannot be met: the shortest unit of this `granularity` needs 14"
            )
        };
        let rain = "[1] Rain fell.";
        let tide_and_rain = "[1] Tide rises.\n\n[2] Rain fell.";
        let all = "[1] Tide rises. Moon pulls. Water falls.\n\n[2] Rain fell.";
        check("nothing fits", Budget::Tokens(13), &impossible(13));
        check("the best fits to the token", Budget::Tokens(14), rain);
        check("one token short of two", Budget::Tokens(30), rain);
        check("two fit to the token", Budget::Tokens(31), tide_and_rain);
        check("the third fits but for its joiner", Budget::Tokens(43), tide_and_rain);
        check("a gap is a space", Budget::Tokens(44), "[1] Tide rises. Water falls.\n\n[2] Rain fell.");
        check("neighbours keep what is between them", Budget::Tokens(56), all);
        check("more than there is", Budget::Tokens(1_000_000), all);
        check("all of it", Budget::Ratio(1.0), all);
        check("of 58 tokens with the last break, half", Budget::Ratio(0.5), rain);
        check("next to nothing", Budget::Ratio(0.01), &impossible(0));
        check("what carries the evidence and the mass", Budget::Auto, tide_and_rain);
    }

    #[test]
    fn orders_and_wishes() {
        let keep = |id: &str, tokens| CompressRequest {
            keep: vec![id.to_owned()],
            ..request(Budget::Tokens(tokens))
        };
        let relevance = CompressRequest { order: Order::Relevance, ..request(Budget::Tokens(31)) };
        check("the best chunk first", relevance, "[1] Rain fell.\n\n[2] Tide rises.");
        let whole = "[1] Tide rises. Moon pulls. Water falls.";
        check("a wanted chunk is whole", keep("a", 40), whole);
        check("and leaves room for others", keep("a", 56), &format!("{whole}\n\n[2] Rain fell."));
        let needs = "budget of 39 tokens cannot be met: what `keep` names needs 40";
        check("a wanted chunk that is too long", keep("a", 39), needs);
        let plain = CompressRequest { format: Format::Plain, ..request(Budget::Tokens(10)) };
        check("no marker costs nothing", plain, "Rain fell.");
    }
}
