//! Scores one sentence of the answer over the candidates: the evidence of each of its tokens for each chunk
//! and unit, and where each of its words came from.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayView1, Axis, s};

use super::candidates::Candidates;
use super::term_ids::TermId;
use crate::domain::{ByteRange, Granularity, Lang, TokenSpan};
use crate::model::ModelRuntime;
use crate::model::contract::QuestionTokens;
use crate::model::tokenizer::Tokens;
use crate::pipeline::calibration::Calibration;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::question::{self, EncodeContext, EncodedHeads, QuestionViews};
use crate::pipeline::scan;
use crate::pipeline::score::ranked::rc_of_peaks;
use crate::pipeline::tokenize::tokens_under;
use crate::pipeline::units::Unit;
use crate::pipeline::validate::InvalidRequest;
use crate::pipeline::{PipelineError, Reading, Settings};
use crate::rc::{self, HeadMean};
use crate::text::{self, Term, Writing};

/// The weight of a token that belongs to no word, such as punctuation. A word that no chunk contains has the
/// weight 1.
const PUNCTUATION_WEIGHT: f32 = 0.3;

/// The factor for the weight of function words, such as `the` and `of`.
const FUNCTION_WORD_FACTOR: f32 = 0.3;

/// A sentence of the answer, before it is scored.
pub(super) struct AnswerSentence<'a> {
    pub text: &'a str,
    /// The byte offset of the sentence in the answer.
    pub start: usize,
    /// The tokens of the sentence. Their offsets are relative to the sentence.
    pub tokens: Tokens,
    /// The byte offsets in the answer at which words are divided.
    pub cuts: &'a [usize],
    /// The language of the sentence, as far as it can be told.
    pub lang: Option<Lang>,
}

/// A scored sentence of the answer. *Evidence* of a token for a segment (a chunk or a unit) is the token's
/// RC, in units of a raw logit, plus a bonus if the segment contains the same word. The bonus is the mean over
/// tokens of their largest RC, times the weight of the token.
pub struct SentenceScores {
    /// Byte range of the sentence in the answer.
    pub bytes: ByteRange,
    /// `[token]`: byte range of each token in the answer. Empty if the sentence has no word.
    pub(super) tokens: Vec<ByteRange>,
    pub(super) terms: Vec<AnswerTerm>,
    /// `[term]`: where each word came from, as [`trace`](super::trace) finds it; empty if there are no chunks.
    pub(super) traces: Vec<Trace>,
    /// `[token]`: how much each token counts, from 0 to 1.
    pub(super) token_weights: Vec<f32>,
    /// `[token, chunk]`: the evidence of each token for each chunk.
    pub(super) chunk_evidence: Array2<f32>,
    /// `[token, unit]`: the evidence of each token for each unit.
    pub(super) unit_evidence: Array2<f32>,
    /// `[token, unit]`: the mean over heads of each token's largest raw logit in each unit, which says how
    /// similar the unit is to the token, by [`Calibration::similarity`]. `None` for models without a calibration.
    pub(super) similarity: Option<Array2<f32>>,
    reading: Reading,
    /// The results of [`Self::best_keys`], by unit.
    best_keys: RefCell<HashMap<usize, Rc<[usize]>>>,
}

/// Where a word of the answer came from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trace {
    pub chunk: usize,
    /// The unit of the chunk; `None` if the chunk has no unit that can be cited, or no evidence at all.
    pub unit: Option<usize>,
    /// How much the source supports the word: from 0, not at all, to 1, the unit contains the word.
    pub evidence: f32,
    pub in_unit: bool,
    pub in_chunk: bool,
}

#[derive(Debug, Clone)]
pub(super) struct AnswerTerm {
    /// Byte range of the word in the answer.
    pub bytes: ByteRange,
    /// The tokens of the word, counted from the first token of the sentence; never empty.
    pub tokens: TokenSpan,
    /// The word as a term. Its byte range is relative to the sentence.
    pub word: Term,
    /// The id of the term; `None` if no chunk contains it.
    pub id: Option<TermId>,
    /// The ids of what a source may say instead of a number with a unit: the same amount, or the number without a
    /// unit. Also for a place in an order and a day of the week. `None` for other words.
    pub amount_ids: Option<[Option<TermId>; 2]>,
    /// Whether the word is the unit of the number before it.
    pub is_unit: bool,
    /// The weight of the word: its [rarity](Candidates::rarity), reduced for function words.
    pub weight: f32,
    /// Whether the word has meaning by itself: it is neither a function word nor a negation.
    pub is_content: bool,
    /// Whether the word is a number, or a weekday or month: a similar one is a different one.
    pub is_number: bool,
    /// Whether the word begins with an upper-case letter and is not the first word of the sentence.
    pub is_name: bool,
    pub is_negation: bool,
}

impl AnswerTerm {
    /// Returns whether a source has the word, of which `has` tells whether it has a term.
    pub fn is_in(&self, has: impl Fn(Option<TermId>) -> bool) -> bool {
        match self.amount_ids {
            // A place or a day, and `one`, may also be plain words.
            Some(ids) => ids.into_iter().any(&has) || !self.word.is_number() && has(self.id),
            None => has(self.id),
        }
    }
}

/// Scores a sentence over the candidates.
///
/// # Errors
/// Returns [`InvalidRequest::SentenceBeyondModel`] or [`InvalidRequest::AnswerLogitTooMany`] if the sentence
/// is too long, the error of `cancel` if it stops the work, and [`PipelineError::Model`] if the model fails.
pub(super) fn score(
    candidates: &Candidates,
    sentence: AnswerSentence,
    model: &dyn ModelRuntime,
    settings: &Settings,
    cancel: &Cancel,
) -> Result<SentenceScores, PipelineError> {
    let (limits, info) = (&settings.limits, model.info());
    let AnswerSentence { text, start, tokens, cuts, lang } = sentence;
    let writing = lang.and_then(Writing::in_lang);
    let found = tokens.ids.len();
    if let Some(max) = question::tokens_max(info).filter(|&max| found > max) {
        return Err(InvalidRequest::SentenceBeyondModel { at: start, found, max }.into());
    }
    limits.check_answer_logits(found, candidates.segments())?;
    let (terms, term_of_token) = answer_terms(candidates, text, start, &tokens.offsets, (cuts, writing));
    // A sentence without a word has nothing to attribute, so its tokens are not scored.
    let tokens = if terms.is_empty() { Tokens::default() } else { tokens };
    let blocks = &candidates.blocks;
    let question = if tokens.ids.is_empty() {
        QuestionViews::default()
    } else {
        // Sentences are always encoded as concurrent ones, so that a sentence that arrives alone gets
        // bit for bit the same result.
        let heads = EncodedHeads::Readout;
        let context = EncodeContext { model, limits, cancel, is_concurrent: true, heads };
        question::encode(&tokens.ids, blocks, context)?
    };
    let reading = Reading {
        query: TokenSpan::new(0, tokens.ids.len()),
        tokens,
        turns: 0,
        question,
        blocks: Arc::clone(blocks),
        granularity: Granularity::Sentence,
        units: Arc::clone(&candidates.units),
        outlines: Arc::default(),
        repeats: Arc::default(),
        mentions: Arc::default(),
        neighbours: Arc::default(),
        logits_have_fixed_scale: info.decoder.is_none(),
        is_calibrated: false,
        question_tokens: QuestionTokens::All,
        // Words of the answer are compared with those of the chunks in any script.
        lexical: None,
    };
    let weight = |term: &Option<usize>| term.map_or(PUNCTUATION_WEIGHT, |term| terms[term].weight);
    let token_weights: Vec<f32> = term_of_token[..reading.tokens.ids.len()].iter().map(weight).collect();
    let cosine_floor = settings.calibration.as_ref().and_then(|calibration| calibration.cosine_floor);
    let TokenRc { chunks, units, similarity } = token_rc(candidates, &reading, cosine_floor, cancel)?;
    let with_word_bonus = |mut rc: Array2<f32>, has_term: &dyn Fn(usize, Option<TermId>) -> bool| {
        let bonus = mean_of_row_maxima(&rc);
        for (token, mut row) in rc.outer_iter_mut().enumerate() {
            cancel.check()?;
            let Some(id) = term_of_token[token].and_then(|term| terms[term].id) else { continue };
            for (segment, rc) in row.iter_mut().enumerate() {
                *rc += if has_term(segment, Some(id)) { bonus * token_weights[token] } else { 0.0 };
            }
        }
        Ok::<_, PipelineError>(rc)
    };
    let chunk_evidence = with_word_bonus(chunks, &|chunk, term| candidates.chunk_has(chunk, term))?;
    let unit_evidence = with_word_bonus(units, &|unit, term| candidates.unit_has(unit, term))?;
    Ok(SentenceScores {
        bytes: ByteRange::new(start, start + text.len()),
        tokens: reading.tokens.offsets.iter().map(|token| token.shifted(start)).collect(),
        terms,
        traces: Vec::new(),
        token_weights,
        chunk_evidence,
        unit_evidence,
        similarity,
        reading,
        best_keys: RefCell::default(),
    })
}

/// Returns the index with the largest score; the first one of equal scores.
pub(super) fn best(indices: impl Iterator<Item = usize>, score: impl Fn(usize) -> f32) -> Option<usize> {
    indices
        .map(|index| (index, score(index)))
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .map(|(index, _)| index)
}

/// The RC and similarity of each token of a sentence, mean over heads.
struct TokenRc {
    /// `[token, chunk]`: RC with the other chunks as ranked rivals.
    chunks: Array2<f32>,
    /// `[token, unit]`: RC with the other units as ranked rivals.
    units: Array2<f32>,
    /// `[token, unit]`: see [`SentenceScores::similarity`].
    similarity: Option<Array2<f32>>,
}

fn token_rc(
    candidates: &Candidates,
    reading: &Reading,
    cosine_floor: Option<f32>,
    cancel: &Cancel,
) -> Result<TokenRc, PipelineError> {
    let (mut chunk_means, mut unit_means, mut similarity_means) =
        (HeadMean::default(), HeadMean::default(), HeadMean::default());
    let tokens = reading.question.tokens();
    for heads in reading.head_groups(candidates.segments()) {
        let mut unit_peaks = scan::peaks(reading, heads.clone(), cancel)?.units;
        cancel.check()?;
        if let Some(floor) = cosine_floor {
            similarity_means.add(unit_peaks.mapv(|cosine| Calibration::similarity(cosine, floor)));
        }
        clear_duplicates(candidates, &mut unit_peaks);
        // The peak of a chunk is the largest peak of its units, so text outside the units does not count.
        let mut chunk_peaks = Array3::from_elem((heads.len(), tokens, candidates.chunks.len()), rc::EMPTY);
        for (index, unit) in candidates.units.iter().enumerate() {
            cancel.check()?;
            let unit_peaks = unit_peaks.index_axis(Axis(2), index);
            let mut chunk_peaks = chunk_peaks.index_axis_mut(Axis(2), unit.chunk);
            chunk_peaks.zip_mut_with(&unit_peaks, |best, &peak| *best = best.max(peak));
        }
        let self_logits = || reading.question.self_logits(heads.clone());
        chunk_means.add(rc_of_peaks(&chunk_peaks, self_logits, cancel)?);
        unit_means.add(rc_of_peaks(&unit_peaks, self_logits, cancel)?);
        cancel.check()?;
    }
    // Without a token there are no heads to average, and the mean has no columns.
    let or_zeros = |found: Array2<f32>, segments: usize| {
        if found.ncols() == segments { found } else { Array2::zeros((tokens, segments)) }
    };
    let mut chunks = or_zeros(chunk_means.finish(), candidates.chunks.len());
    let mut units = or_zeros(unit_means.finish(), candidates.units.len());
    copy_to_duplicates(candidates, &mut chunks, &mut units);
    let similarity = cosine_floor.map(|_| or_zeros(similarity_means.finish(), candidates.units.len()));
    Ok(TokenRc { chunks, units, similarity })
}

/// Makes the units of duplicate chunks empty in `[head, token, unit]`, so that they are no rivals of the
/// first chunk with the same text.
fn clear_duplicates(candidates: &Candidates, unit_peaks: &mut Array3<f32>) {
    for chunk in (0..candidates.len()).filter(|&chunk| candidates.duplicate_of[chunk] != chunk) {
        unit_peaks.slice_mut(s![.., .., candidates.units_of_chunk[chunk].clone()]).fill(rc::EMPTY);
    }
}

/// Gives duplicate chunks and their units the RC of the first chunk with the same text. `chunks` is
/// `[token, chunk]`, `units` is `[token, unit]`.
fn copy_to_duplicates(candidates: &Candidates, chunks: &mut Array2<f32>, units: &mut Array2<f32>) {
    let duplicates = candidates.duplicate_of.iter().enumerate().filter(|(chunk, first)| chunk != *first);
    for (chunk, &first) in duplicates {
        let rc = chunks.column(first).to_owned();
        chunks.column_mut(chunk).assign(&rc);
        let rc = units.slice(s![.., candidates.units_of_chunk[first].clone()]).to_owned();
        units.slice_mut(s![.., candidates.units_of_chunk[chunk].clone()]).assign(&rc);
    }
}

fn mean_of_row_maxima(values: &Array2<f32>) -> f32 {
    let maxima = values.outer_iter().map(|row| row.iter().copied().fold(0.0, f32::max));
    maxima.sum::<f32>() / values.nrows().max(1) as f32
}

/// Returns the words of a sentence that have tokens, without citation markers and list numbers; and
/// `[token]`, the index of each token's word. `start` is the byte offset of the sentence in the answer;
/// `cuts` are byte offsets in the answer at which words are divided.
fn answer_terms(
    candidates: &Candidates,
    sentence: &str,
    start: usize,
    tokens: &[ByteRange],
    (cuts, writing): (&[usize], Option<Writing>),
) -> (Vec<AnswerTerm>, Vec<Option<usize>>) {
    let inside = cuts.iter().filter(|&&cut| cut > start && cut < start + sentence.len());
    let mut cuts: Vec<usize> = inside.map(|cut| cut - start).collect();
    cuts.sort_unstable();
    let (mut terms, mut term_of_token) = (Vec::new(), vec![None; tokens.len()]);
    let markers = text::markers(sentence);
    let is_content = |term: &text::Term| !markers.iter().any(|marker| marker.encloses(term.bytes));
    for (index, term) in text::terms_in(sentence, &cuts, writing).into_iter().filter(is_content).enumerate() {
        let span = tokens_under(tokens, 0, term.bytes);
        if span.is_empty() {
            continue;
        }
        for term_of_token in &mut term_of_token[span.range()] {
            term_of_token.get_or_insert(terms.len());
        }
        // "Montags" is "on Mondays".
        let plural = || candidates.term(&format!("{}s", term.folded)).filter(|_| term.is_translated);
        let id = candidates.term(&term.folded).or_else(plural);
        let is_capitalized = term.bytes.slice(sentence).starts_with(char::is_uppercase);
        // The number of a name, such as `COVID-19`, counts nothing.
        let is_in_name = sentence[..term.bytes.start]
            .strip_suffix('-')
            .is_some_and(|before| before.ends_with(char::is_alphabetic));
        let term = if is_in_name { Term { amount: None, ..term } } else { term };
        let factor = if term.is_function_word() { FUNCTION_WORD_FACTOR } else { 1.0 };
        terms.push(AnswerTerm {
            bytes: term.bytes.shifted(start),
            tokens: span,
            id,
            amount_ids: term
                .number_key()
                .filter(|_| term.is_measured())
                .map(|key| [candidates.term(&key), candidates.term(&term.key_without_unit())]),
            is_unit: term.is_unit
                && terms.last().is_some_and(|before: &AnswerTerm| before.amount_ids.is_some()),
            weight: candidates.rarity(id) * factor,
            is_content: term.is_content(),
            // A weekday or a month that is similar to another is a different one, like a number.
            is_number: term.is_number() && !is_in_name
                || (is_capitalized || term.is_translated) && term.is_calendar(),
            is_name: index > 0 && is_capitalized,
            is_negation: term.is_negation(),
            word: term,
        });
    }
    (terms, term_of_token)
}

impl SentenceScores {
    /// Returns `[token]`, the token of a unit at which each token of the sentence has its largest raw logit,
    /// counted from the unit's first token.
    pub(super) fn best_keys(&self, candidates: &Candidates, unit: usize) -> Rc<[usize]> {
        if let Some(found) = self.best_keys.borrow().get(&unit) {
            return Rc::clone(found);
        }
        let logits = self.logits(candidates, unit);
        let best = |row: ArrayView1<f32>| best(0..row.len(), |key| row[key]).unwrap_or(0);
        let found: Rc<[usize]> = logits.outer_iter().map(best).collect();
        self.best_keys.borrow_mut().insert(unit, Rc::clone(&found));
        found
    }

    /// Returns `[token, token of the unit]`, the mean of the raw logits over heads.
    fn logits(&self, candidates: &Candidates, unit: usize) -> Array2<f32> {
        let Unit { chunk, tokens, .. } = candidates.units[unit];
        let first = candidates.blocks.spans[chunk].start;
        scan::mean_logits(&self.reading, chunk, TokenSpan::new(tokens.start - first, tokens.end - first))
    }

    pub(super) fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the byte ranges of the words in the answer.
    pub(super) fn words(&self) -> impl Iterator<Item = ByteRange> + '_ {
        self.terms.iter().map(|term| term.bytes)
    }
}
