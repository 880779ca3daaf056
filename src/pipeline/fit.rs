//! Budget to context: chooses units, writes them, counts what was written, and takes away the worst until it fits.

use rayon::prelude::*;

use super::assemble::{self, Context, Kept};
use super::auto::Auto;
use super::count::Counter;
use super::score::Scores;
use super::select::{Candidates, Selection};
use super::units::Unit;
use super::validate::InvalidRequest;
use super::{PipelineError, Reading, Usage};
use crate::domain::{Budget, ByteRange, Chunk, CompressRequest, Order, TokenizerName};

/// A context within its budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The context.
    pub context: Context,
    /// Its tokens.
    pub usage: Usage,
    /// Every chunk's index, in the order of the answer.
    pub order: Vec<usize>,
    /// Kept spans per chunk.
    spans: Vec<Vec<ByteRange>>,
}

impl Fitted {
    /// Kept spans of one chunk, ascending.
    pub fn spans_of(&self, chunk: usize) -> &[ByteRange] {
        &self.spans[chunk]
    }
}

/// The best context that `request.budget` allows.
///
/// # Errors
/// [`InvalidRequest::BudgetImpossible`] when the budget holds not even what must be kept, or no unit at all.
pub fn budget(
    request: &CompressRequest,
    reading: &Reading,
    scores: &Scores,
    counter: &Counter,
    auto: Auto,
) -> Result<Fitted, PipelineError> {
    let desk = Desk { request, reading, counter, order: order(request, scores) };
    let keep: Vec<bool> = request.chunks.iter().map(|chunk| request.keep.contains(&chunk.id)).collect();
    let costs = desk.unit_costs()?;
    let candidates = Candidates {
        units: &reading.units,
        scores: &scores.units,
        costs: &costs,
        chunk_cost: desk.chunk_cost()?,
        keep: &keep,
    };
    let tokens_in = desk.tokens_in()?;
    let (selection, tokens) = match request.budget {
        Budget::Tokens(tokens) => (candidates.within(tokens), tokens),
        Budget::Ratio(ratio) => {
            let tokens = (ratio * tokens_in as f64) as usize;
            (candidates.within(tokens), tokens)
        }
        Budget::Auto => (auto.select(&candidates, scores), tokens_in),
    };
    let written = desk.write_within(&selection, tokens)?;
    let Some(written) = written else {
        return Err(desk.impossible(&candidates, tokens)?.into());
    };
    desk.finish(written, tokens_in)
}

/// What every step of fitting looks at.
struct Desk<'a> {
    request: &'a CompressRequest,
    reading: &'a Reading,
    counter: &'a Counter,
    order: Vec<usize>,
}

/// A context and what it costs.
struct Written {
    context: Context,
    spans: Vec<Vec<ByteRange>>,
    tokens: usize,
}

impl Desk<'_> {
    /// Tokens of each unit on its own.
    fn unit_costs(&self) -> Result<Vec<usize>, PipelineError> {
        let text = |unit: &Unit| unit.bytes.of(&self.request.chunks[unit.chunk].text);
        match self.request.tokenizer {
            TokenizerName::Model => Ok(self.reading.units.iter().map(|unit| unit.tokens.len()).collect()),
            _ => self.reading.units.par_iter().map(|unit| self.counter.count(text(unit))).collect(),
        }
    }

    /// Tokens around the text of the last chunk, whose marker is the longest.
    fn chunk_cost(&self) -> Result<usize, PipelineError> {
        self.frame_cost(self.request.chunks.len() - 1)
    }

    /// Tokens of the context if everything were kept. The model has tokenized the text already.
    fn tokens_in(&self) -> Result<usize, PipelineError> {
        let whole = |i: usize| match self.request.tokenizer {
            TokenizerName::Model => Ok(self.frame_cost(i)? + self.reading.passages[i].offsets.len()),
            _ => self.counter.count(&assemble::whole(&self.request.chunks[i], i, self.request.format)),
        };
        (0..self.request.chunks.len()).into_par_iter().map(whole).sum()
    }

    fn frame_cost(&self, chunk: usize) -> Result<usize, PipelineError> {
        let frame = Chunk { text: String::new(), ..self.request.chunks[chunk].clone() };
        self.counter.count(&assemble::whole(&frame, chunk, self.request.format))
    }

    /// The longest prefix of the selection whose context, as written, has at most `tokens`; none when not even the
    /// wanted chunks fit, or when there is text and the budget holds nothing of it.
    fn write_within(&self, selection: &Selection, tokens: usize) -> Result<Option<Written>, PipelineError> {
        let (mut fits, mut too_many) = (None, selection.picked.len() + 1);
        let mut picked = selection.picked.len();
        let mut least = 0;
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
        let nothing = |w: &Written| w.context.pieces.is_empty() && !self.reading.units.is_empty();
        Ok(fits.filter(|written| self.request.budget == Budget::Auto || !nothing(written)))
    }

    fn write(&self, selection: &Selection, picked: usize) -> Result<Written, PipelineError> {
        let mut kept = vec![false; self.reading.units.len()];
        selection.wanted.iter().chain(&selection.picked[..picked]).for_each(|&unit| kept[unit] = true);
        let spans = merged(&self.reading.units, &kept, self.request);
        let in_order = self.order.iter().filter(|&&chunk| !spans[chunk].is_empty());
        let parts: Vec<_> = in_order.map(|&chunk| Kept { chunk, spans: spans[chunk].clone() }).collect();
        let context = assemble::context(&self.request.chunks, &parts, self.request.format);
        let tokens = self.counter.count(&context.text)?;
        Ok(Written { context, spans, tokens })
    }

    fn impossible(&self, candidates: &Candidates, budget: usize) -> Result<InvalidRequest, PipelineError> {
        let wanted = Selection { wanted: candidates.wanted(), picked: Vec::new() };
        if !wanted.wanted.is_empty() {
            let needed = self.write(&wanted, 0)?.tokens;
            return Ok(InvalidRequest::BudgetImpossible { budget, needed, reason: "what `keep` names" });
        }
        let cheapest = (0..candidates.units.len()).min_by_key(|&unit| candidates.costs[unit]);
        let picked: Vec<_> = cheapest.into_iter().collect();
        let needed =
            self.write(&Selection { wanted: Vec::new(), picked: picked.clone() }, picked.len())?.tokens;
        Ok(InvalidRequest::BudgetImpossible { budget, needed, reason: "the shortest unit" })
    }

    fn finish(self, written: Written, tokens_in: usize) -> Result<Fitted, PipelineError> {
        // Tokenizers that merge across a chunk's end can count the whole one or two tokens differently than its parts.
        let tokens_in = tokens_in.max(written.tokens);
        let usage = Usage { tokens_in, tokens_out: written.tokens };
        Ok(Fitted { context: written.context, usage, order: self.order, spans: written.spans })
    }
}

/// Every chunk's index in the order of the answer.
fn order(request: &CompressRequest, scores: &Scores) -> Vec<usize> {
    let mut order: Vec<usize> = (0..request.chunks.len()).collect();
    if request.order == Order::Relevance {
        order.sort_by(|&a, &b| scores.chunks[b].total_cmp(&scores.chunks[a]));
    }
    order
}

/// Kept units to spans per chunk: neighbours become one, with what stood between them.
fn merged(units: &[Unit], kept: &[bool], request: &CompressRequest) -> Vec<Vec<ByteRange>> {
    let mut spans: Vec<Vec<ByteRange>> = vec![Vec::new(); request.chunks.len()];
    let mut before: Option<usize> = None;
    for (index, unit) in units.iter().enumerate().filter(|(index, _)| kept[*index]) {
        let chunk = &mut spans[unit.chunk];
        match chunk.last_mut() {
            Some(last) if before == Some(index.wrapping_sub(1)) => last.end = unit.bytes.end,
            _ => chunk.push(unit.bytes),
        }
        before = Some(index);
    }
    for (chunk, spans) in request.chunks.iter().zip(&mut spans) {
        if request.keep.contains(&chunk.id) && !spans.is_empty() {
            *spans = vec![ByteRange::new(0, chunk.text.len())];
        }
    }
    spans
}
