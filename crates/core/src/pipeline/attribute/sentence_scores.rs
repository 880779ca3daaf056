//! One sentence of the answer over the candidates: what each of its tokens was contextualised by, and which of its words they have.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayView1, Axis, s};

use super::candidates::Candidates;
use super::trace::{self, Trace};
use crate::domain::{ByteRange, Granularity, TokenSpan};
use crate::model::ModelRuntime;
use crate::model::contract::QuestionTokens;
use crate::model::tokenizer::Tokens;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::question::{self, EncodeContext, QuestionViews};
use crate::pipeline::scan::{self, ScanBy};
use crate::pipeline::tokenize::tokens_under;
use crate::pipeline::validate::InvalidRequest;
use crate::pipeline::{PipelineError, Reading, Settings, score};
use crate::rc::{self, HeadMean};
use crate::text;

/// How much a token that belongs to no word counts, beside a word that no chunk has; and a word that only holds others together.
const PUNCTUATION: f32 = 0.3;
const FUNCTION_WORD: f32 = 0.3;

/// One sentence of an answer.
pub struct SentenceScores {
    /// Where it stands in the answer.
    pub bytes: ByteRange,
    /// Its tokens' bytes of the answer.
    pub(super) tokens: Vec<ByteRange>,
    pub(super) terms: Vec<TermScores>,
    /// Where each term came from; none without chunks.
    pub(super) traces: Vec<Trace>,
    /// `[token]`: how much it counts.
    pub(super) weight: Vec<f32>,
    /// `[token, chunk]`: RC, and the words that both have.
    pub(super) chunks: Array2<f32>,
    /// `[token, unit]`: the same.
    pub(super) units: Array2<f32>,
    /// `[token, unit]`: best raw logit; none where a logit says nothing by itself.
    pub(super) nearness: Option<Array2<f32>>,
    pub(super) reading: Reading,
    /// For units that were asked about, which of its keys each token's raw logit is highest at.
    pub(super) best_keys: RefCell<HashMap<usize, Rc<[usize]>>>,
}

/// A word of the answer.
#[derive(Debug, Clone)]
pub(super) struct TermScores {
    /// Where it stands in the answer.
    pub bytes: ByteRange,
    /// Its tokens, of the sentence; never none.
    pub tokens: TokenSpan,
    /// Its number among the candidates' words.
    pub id: Option<u32>,
    /// How rare it is among them.
    pub rarity: f32,
    pub is_number: bool,
    /// Whether it begins with a capital, and is not the first word of the sentence.
    pub is_name: bool,
    pub is_negation: bool,
}

/// Reads a sentence that stands at byte `at` of the answer.
pub(super) fn sentence(
    candidates: &Candidates,
    (text, at): (&str, usize),
    (tokens, cuts): (Tokens, &[usize]),
    (model, settings): (&dyn ModelRuntime, &Settings),
    cancel: &Cancel,
) -> Result<SentenceScores, PipelineError> {
    let (limits, info) = (&settings.limits, model.info());
    if let Some(max) = question::tokens_max(info).filter(|&max| tokens.ids.len() > max) {
        return Err(InvalidRequest::SentenceBeyondModel { at, found: tokens.ids.len(), max }.into());
    }
    limits.check_answer_logits(tokens.ids.len(), candidates.segments())?;
    let (terms, term_of) = terms(candidates, (text, at), &tokens.offsets, cuts);
    // Without a word there is nothing to come from anywhere.
    let tokens = if terms.is_empty() { Tokens::default() } else { tokens };
    let blocks = &candidates.blocks;
    let (question, graph_logits) = match tokens.ids.is_empty() {
        true => (QuestionViews::default(), None),
        false => {
            let placement = settings.placement;
            // Always so, that a sentence which arrives alone has the same bits.
            let context = EncodeContext { model, placement, limits, cancel, side_by_side: true };
            let question = question::encode(&tokens.ids, blocks, context)?;
            let by_graph = || scan::by_graph(&tokens.ids, blocks, model);
            (question, (settings.scan == ScanBy::Onnx).then(by_graph).transpose()?)
        }
    };
    let reading = Reading {
        tokens,
        question,
        blocks: Arc::clone(blocks),
        granularity: Granularity::Sentence,
        units: Arc::clone(&candidates.units),
        graph_logits,
        reaches: info.decoder.is_none(),
        question_tokens: QuestionTokens::All,
    };
    let weight = |term: &Option<usize>| term.map_or(PUNCTUATION, |term| terms[term].rarity);
    let weight: Vec<f32> = term_of[..reading.tokens.ids.len()].iter().map(weight).collect();
    let Contextualised { mut chunks, mut units, nearness } = contextualised(candidates, &reading, cancel)?;
    let has = |of: &dyn Fn(usize, Option<u32>) -> bool, rc: &mut Array2<f32>| {
        let worth = mean_of_best(rc);
        for (token, mut row) in rc.outer_iter_mut().enumerate() {
            let Some(id) = term_of[token].and_then(|term| terms[term].id) else { continue };
            for (segment, rc) in row.iter_mut().enumerate() {
                *rc += if of(segment, Some(id)) { worth * weight[token] } else { 0.0 };
            }
        }
    };
    has(&|chunk, term| candidates.chunk_has(chunk, term), &mut chunks);
    has(&|unit, term| candidates.unit_has(unit, term), &mut units);
    let tokens = reading.tokens.offsets.iter().map(|token| token.shifted(at)).collect();
    let bytes = ByteRange::new(at, at + text.len());
    let (traces, best_keys) = (Vec::new(), RefCell::default());
    let mut scores =
        SentenceScores { bytes, tokens, terms, traces, weight, chunks, units, nearness, reading, best_keys };
    scores.traces = trace::terms(candidates, &scores);
    Ok(scores)
}

/// `[token, segment]` each.
struct Contextualised {
    /// RC over chunks.
    chunks: Array2<f32>,
    /// RC over units.
    units: Array2<f32>,
    /// Best raw logit over units.
    nearness: Option<Array2<f32>>,
}

fn contextualised(
    candidates: &Candidates,
    reading: &Reading,
    cancel: &Cancel,
) -> Result<Contextualised, PipelineError> {
    let (mut of_chunks, mut of_units, mut nearness) =
        (HeadMean::default(), HeadMean::default(), HeadMean::default());
    let tokens = reading.question.tokens();
    for heads in reading.heads_at_once(candidates.segments()) {
        let mut units = scan::peaks(reading, heads.clone(), cancel)?.units;
        if reading.reaches {
            nearness.add(units.clone());
        }
        silence_twins(candidates, &mut units);
        let mut chunks = Array3::from_elem((heads.len(), tokens, candidates.chunks.len()), rc::EMPTY);
        for (unit, place) in candidates.units.iter().enumerate() {
            let of_unit = units.index_axis(Axis(2), unit);
            let mut of_chunk = chunks.index_axis_mut(Axis(2), place.chunk);
            of_chunk.zip_mut_with(&of_unit, |best, &peak| *best = best.max(peak));
        }
        let own = || reading.question.self_logits(heads.clone());
        of_chunks.add(score::rc_of_peaks(&chunks, own));
        of_units.add(score::rc_of_peaks(&units, own));
    }
    let or_none = |found: Array2<f32>, segments: usize| match found.ncols() == segments {
        true => found,
        false => Array2::zeros((tokens, segments)),
    };
    let mut chunks = or_none(of_chunks.finish(), candidates.chunks.len());
    let mut units = or_none(of_units.finish(), candidates.units.len());
    echo_twins(candidates, &mut chunks, &mut units);
    let nearness = reading.reaches.then(|| or_none(nearness.finish(), candidates.units.len()));
    Ok(Contextualised { chunks, units, nearness })
}

/// A chunk that reads like one before it is no rival of it.
fn silence_twins(candidates: &Candidates, units: &mut Array3<f32>) {
    for chunk in (0..candidates.len()).filter(|&chunk| candidates.twin_of[chunk] != chunk) {
        units.slice_mut(s![.., .., candidates.of_chunk[chunk].clone()]).fill(rc::EMPTY);
    }
}

/// And says what that one says.
fn echo_twins(candidates: &Candidates, chunks: &mut Array2<f32>, units: &mut Array2<f32>) {
    for (chunk, &twin) in candidates.twin_of.iter().enumerate().filter(|(chunk, twin)| chunk != *twin) {
        let said = chunks.column(twin).to_owned();
        chunks.column_mut(chunk).assign(&said);
        let said = units.slice(s![.., candidates.of_chunk[twin].clone()]).to_owned();
        units.slice_mut(s![.., candidates.of_chunk[chunk].clone()]).assign(&said);
    }
}

/// Mean over tokens of the best in each row.
fn mean_of_best(rc: &Array2<f32>) -> f32 {
    let best = rc.outer_iter().map(|row| row.iter().copied().fold(0.0, f32::max));
    best.sum::<f32>() / rc.nrows().max(1) as f32
}

/// The words of a sentence that hold a token, and for each token its word.
fn terms(
    candidates: &Candidates,
    (sentence, at): (&str, usize),
    tokens: &[ByteRange],
    cuts: &[usize],
) -> (Vec<TermScores>, Vec<Option<usize>>) {
    let inside = cuts.iter().filter(|&&cut| cut > at && cut < at + sentence.len());
    let mut cuts: Vec<usize> = inside.map(|cut| cut - at).collect();
    cuts.sort_unstable();
    let (mut terms, mut term_of) = (Vec::new(), vec![None; tokens.len()]);
    let markers = text::markers(sentence);
    let says =
        |term: &text::Term| !markers.iter().any(|m| m.start <= term.bytes.start && term.bytes.end <= m.end);
    for (place, term) in text::terms(sentence, &cuts).into_iter().filter(says).enumerate() {
        let under = tokens_under(tokens, 0, term.bytes);
        if under.is_empty() {
            continue;
        }
        for of in &mut term_of[under.range()] {
            of.get_or_insert(terms.len());
        }
        let id = candidates.term(&term.folded);
        terms.push(TermScores {
            bytes: term.bytes.shifted(at),
            tokens: under,
            id,
            rarity: candidates.rarity(id) * if term.is_function_word() { FUNCTION_WORD } else { 1.0 },
            is_number: term.is_number(),
            is_name: place > 0 && term.bytes.of(sentence).starts_with(char::is_uppercase),
            is_negation: term.is_negation(),
        });
    }
    (terms, term_of)
}

impl SentenceScores {
    /// Which of a unit's tokens, counted from its first, each token's raw logit is highest at.
    pub(super) fn best_keys(&self, candidates: &Candidates, unit: usize) -> Rc<[usize]> {
        if let Some(found) = self.best_keys.borrow().get(&unit) {
            return Rc::clone(found);
        }
        let place = candidates.units[unit];
        let span = candidates.blocks.spans[place.chunk];
        let tokens = TokenSpan::new(place.tokens.start - span.start, place.tokens.end - span.start);
        let logits = scan::logits_in(&self.reading, place.chunk, tokens);
        let best = |row: ArrayView1<f32>| trace::best(0..row.len(), |key| row[key]).unwrap_or(0);
        let found: Rc<[usize]> = logits.outer_iter().map(best).collect();
        self.best_keys.borrow_mut().insert(unit, Rc::clone(&found));
        found
    }

    /// How many tokens it has.
    pub(super) fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Its words, as bytes of the answer.
    pub(super) fn words(&self) -> impl Iterator<Item = ByteRange> + '_ {
        self.terms.iter().map(|term| term.bytes)
    }
}
