//! Citations: ranks the chunks that a part of the answer may have come from, decides which of them to cite,
//! and finds the sentence and the run of words in each that say most of the part.

use std::collections::HashSet;

use ndarray::{Array2, Axis};

use super::candidates::Candidates;
use super::evidence::{Conflict, Evidence, UnsupportedKind, UnsupportedSpan};
use super::gather::{self, Gathered};
use super::part::Part;
use super::second_opinion::Question;
use super::sentence_scores::{self, AnswerTerm, SentenceScores};
use super::term_ids::TermId;
use super::verdict::{self, Judgement, Method, Verdict};
use crate::domain::{ByteRange, TokenSpan};
use crate::pipeline::PipelineError;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::units::Unit;
use crate::rc;
use crate::text::Term;

/// The share of a part's words, by weight, that must be traced to a chunk for the chunk to be cited. The best
/// chunk is cited in any case.
const CITED_SHARE_MIN: f32 = 0.3;

/// Two chunks say the same if the smaller of their scores is at least this share of the larger one.
const TIED_SHARE_MIN: f32 = 0.99;

/// The largest number of sources of a part that are cited only because they say the same as a better one.
const TIES_MAX: usize = 100;

/// The share of a sentence's evidence for a part that the run of words in the sentence holds.
const RUN_SHARE: f32 = 0.8;

/// The fewest content words of a part for which a sentence with all of them is the source, wherever else some of them stand.
const COMPLETE_WORDS_MIN: usize = 3;

/// How many independent sources of a part are counted at most: each is compared with the part.
pub const SOURCES_INDEPENDENT_MAX: usize = 20;

/// What one part of the answer came from.
#[derive(Debug, Clone, PartialEq)]
pub struct PartOutcome {
    /// Byte range of the part in the answer.
    pub bytes: ByteRange,
    pub verdict: Verdict,
    /// The probability that the sources support the part; `None` if nothing judged it.
    pub support: Option<f32>,
    /// What judged the part; `None` if nothing did.
    pub method: Option<Method>,
    /// What the sources do not support, as byte ranges of the answer.
    pub unsupported: Vec<UnsupportedSpan>,
    /// The chunks that the part may have come from, best first.
    pub sources: Vec<Source>,
    /// How many independent sources support the part: copies, windows that overlap and chunks with the same title count once, and chunks
    /// that support it only together as one. 0 if no source is cited or all support it only partly, and at most [`SOURCES_INDEPENDENT_MAX`].
    pub sources_independent: usize,
    /// What the sources say that excludes the part, in the order of the answer.
    pub conflicts: Vec<Conflict>,
    /// What verdict and support were computed from; `None` if it makes no claim.
    pub evidence: Option<Evidence>,
}

/// A chunk that a part of the answer may have come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Source {
    /// The index of the chunk in the request.
    pub chunk: usize,
    /// The score of the chunk for the part: the weighted mean evidence of the part's tokens, with coverage.
    /// Scores of different parts are not comparable.
    pub score: f32,
    /// Whether to cite the chunk for the part; false for all sources of a part that they contradict or do not speak of, and of one with a
    /// number that they do not have.
    pub cited: bool,
    /// Whether the chunk is cited only because it says the same as another cited chunk.
    pub tied: bool,
    /// Byte range in the chunk's text of the sentence that says most of the part.
    pub sentence: ByteRange,
    /// Byte range in the chunk's text of the shortest run of words in that sentence that holds 80 % of the
    /// sentence's evidence, extended by neighbouring words that the part contains, too.
    pub run: ByteRange,
}

impl PartOutcome {
    /// Returns the outcome of a part that has no word, or that says nothing that a source could say.
    pub(super) fn without_claim(bytes: ByteRange) -> Self {
        Self {
            bytes,
            verdict: Verdict::NoClaim,
            support: None,
            method: None,
            unsupported: Vec::new(),
            sources: Vec::new(),
            sources_independent: 0,
            conflicts: Vec::new(),
            evidence: None,
        }
    }

    /// Returns the sources to cite for the part, without those that only say the same as another one.
    pub fn citations(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| source.is_citation())
    }
}

impl Source {
    /// Returns whether the source is cited and does not only say the same as another one.
    fn is_citation(&self) -> bool {
        self.cited && !self.tied
    }
}

/// `[sentence][token]`: how much each token of the sentences counts for a part.
struct TokenWeights(Vec<Vec<f32>>);

impl TokenWeights {
    /// Returns the weights for a part, or `None` if the part overlaps no token. Tokens outside of the part
    /// count with [`gather::context_weight`].
    fn weigh(scores: &[SentenceScores], part: ByteRange) -> Option<Self> {
        let all = scores.iter().flat_map(|scores| &scores.tokens);
        let inside: Vec<bool> = all.map(|token| token.overlaps(part)).collect();
        let first = inside.iter().position(|&inside| inside)?;
        let last = inside.iter().rposition(|&inside| inside)?;
        let relative_weight = |token: usize| {
            // Tokens between the part's first and last token count as tokens of the part.
            let distance = first.saturating_sub(token) + token.saturating_sub(last);
            if distance == 0 { 1.0 } else { gather::context_weight(distance) }
        };
        let mut token = 0;
        let sentence_weights = |scores: &SentenceScores| {
            let mut weigh = |&weight: &f32| {
                token += 1;
                weight * relative_weight(token - 1)
            };
            scores.token_weights.iter().map(&mut weigh).collect()
        };
        Some(Self(scores.iter().map(sentence_weights).collect()))
    }

    fn sum(&self) -> f32 {
        self.0.iter().flatten().sum()
    }
}

/// Attributes a part of the answer to chunks. `scores` are the sentences that the part overlaps, and `question` asks a
/// cross-encoder about it.
pub(super) fn attribute(
    candidates: &Candidates,
    scores: &[SentenceScores],
    part: ByteRange,
    question: Question,
    sources_max: usize,
    cancel: &Cancel,
) -> Result<PartOutcome, PipelineError> {
    let Some(weights) = TokenWeights::weigh(scores, part) else {
        return Ok(PartOutcome::without_claim(part));
    };
    let chunk_evidence = weighted_evidence(scores, &weights);
    let chunk_scores = chunk_scores(candidates, &chunk_evidence);
    // `[chunk]`: the score of each chunk by itself, without coverage.
    let plain_scores = rc::mean_over_queries(chunk_evidence.view());
    let mut order: Vec<usize> = (0..chunk_scores.len()).collect();
    order.sort_by(|&a, &b| chunk_scores[b].total_cmp(&chunk_scores[a]));
    let best = order.iter().copied().find(|&chunk| candidates.sentences(chunk).next().is_some());
    let complete = complete_unit(candidates, scores, part, &order);
    let unit_of = |chunk: usize| {
        complete
            .filter(|&unit| candidates.units[unit].chunk == chunk)
            .or_else(|| best_unit(candidates, scores, &weights, chunk))
    };
    let mut cited = match complete {
        Some(unit) => vec![candidates.units[unit].chunk],
        None => cited_chunks(candidates, scores, part, best),
    };
    let mut cited_units: Vec<usize> = cited.iter().filter_map(|&chunk| unit_of(chunk)).collect();
    if complete.is_none() {
        // A sentence that is cut at the end of its chunk goes on in another one.
        let halves: Vec<usize> = cited_units.iter().filter_map(|&unit| candidates.other_half(unit)).collect();
        for half in halves {
            let chunk = candidates.units[half].chunk;
            if !cited.contains(&chunk) {
                cited.push(chunk);
                cited_units.push(half);
            }
        }
    }
    // The chunk with the complete sentence comes before one with a copy that is cut.
    order.sort_by_key(|&chunk| complete.is_some_and(|unit| candidates.units[unit].chunk != chunk));
    let (mut sources, mut ties, mut units_tied) = (Vec::new(), 0, Vec::new());
    for (rank, chunk) in order.into_iter().filter(|&chunk| chunk_scores[chunk] > 0.0).enumerate() {
        cancel.check()?;
        let half = cited_units.iter().copied().find(|&unit| candidates.units[unit].chunk == chunk);
        let Some(unit) = half.or_else(|| unit_of(chunk)) else { continue };
        let is_cited = cited.contains(&chunk);
        let says_the_same = |&other_unit: &usize| {
            let other = candidates.units[other_unit].chunk;
            let (a, b) = (plain_scores[other], plain_scores[chunk]);
            let is_tied = a.min(b) >= TIED_SHARE_MIN * a.max(b);
            other != chunk && (is_tied || candidates.have_equal_terms(unit, other_unit))
        };
        let tied = !is_cited && ties < TIES_MAX && cited_units.iter().any(says_the_same);
        if tied {
            ties += 1;
            units_tied.push(unit);
        }
        if !(is_cited || tied || rank < sources_max) {
            continue;
        }
        let run = best_run(candidates, scores, &weights, part, unit, cancel)?;
        let (sentence, score) = (candidates.units[unit].bytes, chunk_scores[chunk]);
        sources.push(Source { chunk, score, cited: is_cited || tied, tied, sentence, run });
    }
    cancel.check()?;
    let Some(compared) = Part::align(candidates, scores, part, &cited_units) else {
        return Ok(PartOutcome::without_claim(part));
    };
    cancel.check()?;
    let is_citable = sources.iter().any(Source::is_citation);
    let Gathered { mut evidence, unsupported, mut conflicts } = Gathered::gather(&compared, is_citable);
    if verdict::needs_reading(&evidence) {
        evidence.second_opinion = question.ask(&compared, evidence.evidence, cancel)?;
    }
    let Judgement { verdict, support, method } = verdict::judge(&evidence);
    let lacks_number = unsupported.iter().any(|span| span.kind == UnsupportedKind::Number);
    if !verdict.is_cited() || lacks_number {
        sources.iter_mut().for_each(|source| (source.cited, source.tied) = (false, false));
    }
    let sources_independent = if verdict == Verdict::Partly || !sources.iter().any(Source::is_citation) {
        0
    } else if let Some(complete) = complete {
        let holders = units_with_all(candidates, scores, part).filter(|&unit| unit != complete);
        let holds = |unit: usize| {
            Part::align(candidates, scores, part, &[unit]).is_some_and(|part| {
                let Gathered { evidence, .. } = Gathered::gather(&part, true);
                !evidence.negation_differs
                    && !evidence.negation_is_unclear
                    && evidence.numbers_excluded + evidence.numbers_missing == 0.0
            })
        };
        count_independent(candidates, complete, holders, holds, cancel)?
    } else if let [unit] = *cited_units {
        count_independent(candidates, unit, units_tied.into_iter(), |_| true, cancel)?
    } else {
        1
    };
    if verdict != Verdict::Contradicted {
        conflicts.clear();
    } else if method == Some(Method::Model) {
        conflicts = compared.conflict_of_meaning().into_iter().collect();
    }
    let evidence = Some(evidence);
    Ok(PartOutcome {
        bytes: part,
        verdict,
        support,
        method,
        unsupported,
        sources,
        sources_independent,
        conflicts,
        evidence,
    })
}

/// Counts the sources among `others` that are independent of each other and of `first`, which is one. Of those, `holds` says which support the
/// part.
fn count_independent(
    candidates: &Candidates,
    first: usize,
    others: impl Iterator<Item = usize>,
    holds: impl Fn(usize) -> bool,
    cancel: &Cancel,
) -> Result<usize, PipelineError> {
    let mut found = vec![first];
    for unit in others {
        if found.len() == SOURCES_INDEPENDENT_MAX {
            break;
        }
        cancel.check()?;
        if !found.iter().any(|&known| candidates.are_one_source(known, unit)) && holds(unit) {
            found.push(unit);
        }
    }
    Ok(found.len())
}

/// Returns the unit that has every content word of a part, if there is one: that of the first chunk in `order`. A part with less than
/// [`COMPLETE_WORDS_MIN`] content words has none.
fn complete_unit(
    candidates: &Candidates,
    scores: &[SentenceScores],
    part: ByteRange,
    order: &[usize],
) -> Option<usize> {
    let content = content_of(scores, part);
    let mut chunks = order.iter().filter(|_| content.len() >= COMPLETE_WORDS_MIN);
    chunks.find_map(|&chunk| unit_with_all(candidates, &content, chunk))
}

/// Returns the first unit with every content word of a part of each chunk that has one.
fn units_with_all<'a>(
    candidates: &'a Candidates,
    scores: &'a [SentenceScores],
    part: ByteRange,
) -> impl Iterator<Item = usize> + 'a {
    let content = content_of(scores, part);
    // Most chunks lack one of the words.
    let has_all = move |term: &&AnswerTerm, chunk| {
        term.word.is_unit || term.is_in(|id| candidates.chunk_has(chunk, id))
    };
    (0..candidates.len()).filter_map(move |chunk| {
        content.iter().all(|term| has_all(term, chunk)).then(|| unit_with_all(candidates, &content, chunk))?
    })
}

fn content_of(scores: &[SentenceScores], part: ByteRange) -> Vec<&AnswerTerm> {
    let terms = scores.iter().flat_map(|scores| &scores.terms);
    terms.filter(|term| term.is_content && term.bytes.overlaps(part)).collect()
}

fn unit_with_all(candidates: &Candidates, content: &[&AnswerTerm], chunk: usize) -> Option<usize> {
    candidates.sentences(chunk).find(|&unit| {
        content.iter().all(|term| term.word.is_unit || term.is_in(|id| candidates.unit_has(unit, id)))
    })
}

/// Returns the evidence of the tokens of all sentences for each chunk, `[token, chunk]`, scaled so that the
/// plain mean over tokens is the mean by `weights`.
fn weighted_evidence(scores: &[SentenceScores], weights: &TokenWeights) -> Array2<f32> {
    let views: Vec<_> = scores.iter().map(|scores| scores.chunk_evidence.view()).collect();
    let mut all = ndarray::concatenate(Axis(0), &views).expect("sentences differ in tokens only");
    let scale = all.nrows() as f32 / weights.sum().max(f32::MIN_POSITIVE);
    for (mut row, weight) in all.outer_iter_mut().zip(weights.0.iter().flatten()) {
        row *= weight * scale;
    }
    all
}

/// Returns the scores of the chunks with coverage: sorting by them ranks each chunk by what it adds to the
/// chunks before it. Duplicates get the score of the first chunk with the same text, so they follow it
/// directly.
fn chunk_scores(candidates: &Candidates, evidence: &Array2<f32>) -> Vec<f32> {
    let duplicate_of = &candidates.duplicate_of;
    let distinct: Vec<usize> =
        (0..duplicate_of.len()).filter(|&chunk| duplicate_of[chunk] == chunk).collect();
    let mut scores = vec![0.0; duplicate_of.len()];
    for (&chunk, score) in distinct.iter().zip(rc::with_coverage(&evidence.select(Axis(1), &distinct))) {
        scores[chunk] = score;
    }
    duplicate_of.iter().map(|&first| scores[first]).collect()
}

/// Returns the chunks to cite: those to which at least [`CITED_SHARE_MIN`] of the part's words were traced,
/// and the best one.
fn cited_chunks(
    candidates: &Candidates,
    scores: &[SentenceScores],
    part: ByteRange,
    best: Option<usize>,
) -> Vec<usize> {
    let mut weights = vec![0.0; candidates.chunks.len()];
    for scores in scores {
        for (term, trace) in scores.terms.iter().zip(&scores.traces) {
            if term.bytes.overlaps(part) {
                weights[trace.chunk] += term.weight;
            }
        }
    }
    let sum: f32 = weights.iter().sum();
    let is_cited =
        |&chunk: &usize| Some(chunk) == best || sum > 0.0 && weights[chunk] >= CITED_SHARE_MIN * sum;
    (0..weights.len()).filter(is_cited).collect()
}

/// Returns the sentence of a chunk with the most evidence for the part.
fn best_unit(
    candidates: &Candidates,
    scores: &[SentenceScores],
    weights: &TokenWeights,
    chunk: usize,
) -> Option<usize> {
    let score = |unit: usize| {
        let sentence_score = |(scores, weights): (&SentenceScores, &Vec<f32>)| -> f32 {
            let evidence = scores.unit_evidence.column(unit);
            evidence.iter().zip(weights).map(|(evidence, weight)| evidence * weight).sum()
        };
        scores.iter().zip(&weights.0).map(sentence_score).sum()
    };
    sentence_scores::best(candidates.sentences(chunk), score)
}

/// Returns the byte range of the shortest run of a unit's words that holds [`RUN_SHARE`] of the unit's
/// evidence for the part. The evidence of each token of the part is assigned to the token of the unit with
/// the largest logit.
fn best_run(
    candidates: &Candidates,
    scores: &[SentenceScores],
    weights: &TokenWeights,
    part: ByteRange,
    unit: usize,
    cancel: &Cancel,
) -> Result<ByteRange, PipelineError> {
    let Unit { chunk, bytes, tokens, .. } = candidates.units[unit];
    let first = candidates.blocks.spans[chunk].start;
    let tokens = TokenSpan::new(tokens.start - first, tokens.end - first);
    // `[token of the unit]`.
    let mut evidence = vec![0.0; tokens.len()];
    for (scores, weights) in scores.iter().zip(&weights.0) {
        let inside: Vec<usize> =
            (0..scores.tokens.len()).filter(|&j| scores.tokens[j].overlaps(part)).collect();
        if inside.is_empty() || tokens.is_empty() {
            continue;
        }
        cancel.check()?;
        let best_keys = scores.best_keys(candidates, unit);
        for j in inside {
            evidence[best_keys[j]] += weights[j] * scores.unit_evidence[[j, unit]];
        }
    }
    let Some((first, last)) = shortest_run(&evidence) else { return Ok(bytes) };
    let block = &candidates.blocks.blocks[chunk];
    let offsets = block.offsets();
    let offset = |token: usize| offsets.get((tokens.start + token).checked_sub(block.title_tokens())?);
    let Some((first, last)) = offset(first).zip(offset(last)) else { return Ok(bytes) };
    let (start, end) = (first.start.max(bytes.start), last.end.min(bytes.end));
    let run = ByteRange::new(start, end.max(start));
    let part_terms = scores.iter().flat_map(|scores| &scores.terms).filter(|term| term.bytes.overlaps(part));
    let part_terms: HashSet<TermId> = part_terms.filter_map(|term| term.id).collect();
    let in_part = |term: &Term| candidates.term(&term.folded).is_some_and(|id| part_terms.contains(&id));
    let (text, words) = (&candidates.chunks[chunk].text, candidates.words(unit));
    Ok(whole_words(text, words, run, bytes, in_part))
}

/// Returns the first and the last index of the shortest run of values whose sum is at least [`RUN_SHARE`] of
/// the sum of all; the first of several. Returns `None` if the sum is 0.
fn shortest_run(values: &[f32]) -> Option<(usize, usize)> {
    let needed = RUN_SHARE * values.iter().sum::<f32>();
    if needed <= 0.0 {
        return None;
    }
    let mut shortest: Option<(usize, usize)> = None;
    for start in 0..values.len() {
        let mut sum = 0.0;
        let end = values[start..].iter().position(|value| {
            sum += value;
            sum >= needed
        });
        let Some(end) = end.map(|end| start + end) else { break };
        if shortest.is_none_or(|(first, last)| end - start < last - first) {
            shortest = Some((start, end));
        }
    }
    shortest
}

/// Extends a byte range of `text` to whole words, and further over the words directly beside it that are
/// `in_part`. `terms` are the words of the unit `unit_bytes`, with byte ranges relative to the unit.
fn whole_words(
    text: &str,
    terms: &[Term],
    range: ByteRange,
    unit_bytes: ByteRange,
    in_part: impl Fn(&Term) -> bool,
) -> ByteRange {
    let is_touched = |term: &Term| term.bytes.shifted(unit_bytes.start).overlaps(range);
    match (terms.iter().position(is_touched), terms.iter().rposition(is_touched)) {
        (Some(first), Some(last)) => {
            let before = terms[..first].iter().rev().take_while(|term| in_part(term)).count();
            let after = terms[last + 1..].iter().take_while(|term| in_part(term)).count();
            let (first, last) = (&terms[first - before], &terms[last + after]);
            ByteRange::new(first.bytes.start, last.bytes.end).shifted(unit_bytes.start)
        }
        // The range has tokens that belong to no word, such as a full stop.
        _ if text.get(range.start..range.end).is_some() => range,
        _ => unit_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    #[test]
    fn the_shortest_run_holds_most_of_the_sum() {
        let check = |name: &str, values: &[f32], expect| assert_eq!(shortest_run(values), expect, "{name}");
        check("all values are 0", &[0.0, 0.0], None);
        check("one value", &[0.0, 1.0, 0.0], Some((1, 1)));
        check("all values are needed", &[1.0, 1.0, 1.0], Some((0, 2)));
        check("a small value far away is left out", &[4.0, 4.0, 0.0, 0.0, 1.0], Some((0, 1)));
        check("no values", &[], None);
    }

    #[test]
    fn runs_consist_of_whole_words() {
        let text = "the Sangre de Cristo";
        let check = |name: &str, (from, to): (usize, usize), expect: &str| {
            let in_part = |term: &Term| term.folded == "cristo";
            let (terms, unit) = (text::terms(text, &[]), ByteRange::new(0, text.len()));
            let found = whole_words(text, &terms, ByteRange::new(from, to), unit, in_part);
            assert_eq!(found.slice(text), expect, "{name}");
        };
        check("inside a word", (6, 8), "Sangre");
        check("a space at the end", (4, 11), "Sangre");
        check("two words, and the next one is in the part", (6, 12), "Sangre de Cristo");
        check("a word of the part that is not directly beside the run", (0, 3), "the");
    }
}
