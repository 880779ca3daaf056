//! What one part of the answer came from: chunks in order, which of them to cite, and where in each.

use std::collections::HashSet;

use ndarray::{Array2, Axis};

use super::candidates::Candidates;
use super::sentence_scores::SentenceScores;
use super::support::{self, SUPPORT_MIN, UnsupportedSpan};
use super::trace;
use crate::domain::{ByteRange, TokenSpan};
use crate::pipeline::PipelineError;
use crate::pipeline::cancel::Cancel;
use crate::rc;
use crate::text::Term;

/// A chunk is cited when so large a share of a part's words came from it; the best one always is.
const CITED_SHARE: f32 = 0.3;

/// A chunk whose score is so near to that of a cited one says the same.
const TIED_SHARE: f32 = 0.99;

/// Chunks that are named beside better ones because they say the same.
const TIES_MAX: usize = 100;

/// A source's run holds so large a share of what its sentence says of the part.
const RUN_SHARE: f32 = 0.8;

/// What one part of an answer came from.
#[derive(Debug, Clone, PartialEq)]
pub struct PartOutcome {
    /// Bytes of the answer.
    pub bytes: ByteRange,
    /// How far its sources say what it says, from 0 to 1; none where it has no word.
    pub support: Option<f32>,
    /// What its sources do not say.
    pub unsupported: Vec<UnsupportedSpan>,
    /// Chunks it may have come from, best first.
    pub sources: Vec<Source>,
}

/// A chunk that a part may have come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Source {
    /// Index of the chunk in the request.
    pub chunk: usize,
    /// RC of the chunk over the part, and the words that both have; comparable within one part.
    pub score: f32,
    /// Whether the part came from it; never where the part is not supported.
    pub cited: bool,
    /// Whether it is cited only because it says the same as another that is.
    pub tied: bool,
    /// Bytes of the sentence of its text that says most of the part.
    pub sentence: ByteRange,
    /// Bytes of the shortest run of words of that sentence that says nearly all that the sentence does, and of the words beside it
    /// that the part has, too.
    pub run: ByteRange,
}

impl PartOutcome {
    /// Whether the chunks say what the part says; none where it has no word.
    pub fn is_supported(&self) -> Option<bool> {
        self.support.map(|support| support >= SUPPORT_MIN)
    }

    /// What to cite for it, each thing said once: nothing where it is not supported.
    pub fn citations(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| source.cited && !source.tied)
    }
}

/// The tokens of a part among those of its sentences, and what each of all of them counts for it.
struct Weights {
    /// `[sentence][token]`
    weight: Vec<Vec<f32>>,
    /// Whether any of them is the part's own.
    any: bool,
}

impl Weights {
    fn of(scores: &[SentenceScores], part: ByteRange) -> Self {
        let all = scores.iter().flat_map(|scores| &scores.tokens);
        let own: Vec<bool> = all.map(|token| token.overlaps(part)).collect();
        let first = own.iter().position(|&own| own);
        let last = own.iter().rposition(|&own| own);
        let (Some(first), Some(last)) = (first, last) else { return Self { weight: Vec::new(), any: false } };
        let around = |token: usize| {
            // What stands between the part's first and last counts like its own.
            let distance = first.saturating_sub(token) + token.saturating_sub(last);
            if distance == 0 { 1.0 } else { support::context(distance) }
        };
        let mut token = 0;
        let weigh = |scores: &SentenceScores| {
            let mut next = |&weight: &f32| {
                token += 1;
                weight * around(token - 1)
            };
            scores.weight.iter().map(&mut next).collect()
        };
        Self { weight: scores.iter().map(weigh).collect(), any: true }
    }

    fn sum(&self) -> f32 {
        self.weight.iter().flatten().sum()
    }
}

/// `scores` are the sentences that the part lies in.
pub(super) fn part(
    candidates: &Candidates,
    scores: &[SentenceScores],
    part: ByteRange,
    sources_max: usize,
    cancel: &Cancel,
) -> Result<PartOutcome, PipelineError> {
    let weights = Weights::of(scores, part);
    if !weights.any {
        return Ok(PartOutcome { bytes: part, support: None, unsupported: Vec::new(), sources: Vec::new() });
    }
    let evidence = weighed(scores, &weights);
    let chunk_scores = covering(candidates, &evidence);
    let alone = rc::mean_over_queries(evidence.view());
    let mut order: Vec<usize> = (0..chunk_scores.len()).collect();
    order.sort_by(|&a, &b| chunk_scores[b].total_cmp(&chunk_scores[a]));
    let first = order.iter().copied().find(|&chunk| candidates.sentences(chunk).next().is_some());
    let cited = cited(candidates, scores, part, first);
    let unit_of = |chunk: usize| best_unit(candidates, scores, &weights, chunk);
    let cited_units: Vec<(usize, usize)> =
        cited.iter().filter_map(|&chunk| Some((chunk, unit_of(chunk)?))).collect();
    let (mut sources, mut ties) = (Vec::new(), 0);
    for (rank, chunk) in order.into_iter().filter(|&chunk| chunk_scores[chunk] > 0.0).enumerate() {
        let Some(unit) = unit_of(chunk) else { continue };
        let is_cited = cited.contains(&chunk);
        let same = |&(other, of_cited): &(usize, usize)| {
            let (less, more) = (alone[other].min(alone[chunk]), alone[other].max(alone[chunk]));
            other != chunk && (less >= TIED_SHARE * more || candidates.say_the_same(unit, of_cited))
        };
        let tied = !is_cited && ties < TIES_MAX && cited_units.iter().any(same);
        ties += usize::from(tied);
        if !(is_cited || tied || rank < sources_max) {
            continue;
        }
        let run = run(candidates, scores, (&weights, part), unit, cancel)?;
        let (sentence, score) = (candidates.units[unit].bytes, chunk_scores[chunk]);
        sources.push(Source { chunk, score, cited: is_cited || tied, tied, sentence, run });
    }
    let (support, unsupported) = match support::of(candidates, scores, part) {
        // Nothing that could be shown for it.
        Some((_, unsupported)) if sources.is_empty() => (Some(0.0), unsupported),
        Some((support, unsupported)) => (Some(support), unsupported),
        None => (None, Vec::new()),
    };
    let mut found = PartOutcome { bytes: part, support, unsupported, sources };
    if found.is_supported() != Some(true) {
        found.sources.iter_mut().for_each(|source| (source.cited, source.tied) = (false, false));
    }
    Ok(found)
}

/// Evidence of all tokens over chunks, `[token, chunk]`, such that the mean over tokens is the mean by weight.
fn weighed(scores: &[SentenceScores], weights: &Weights) -> Array2<f32> {
    let views: Vec<_> = scores.iter().map(|scores| scores.chunks.view()).collect();
    let mut all = ndarray::concatenate(Axis(0), &views).expect("sentences differ in tokens only");
    let scale = all.nrows() as f32 / weights.sum().max(f32::MIN_POSITIVE);
    for (mut row, weight) in all.outer_iter_mut().zip(weights.weight.iter().flatten()) {
        row *= weight * scale;
    }
    all
}

/// Scores that sort chunks so that each adds to those before it; one that reads like another stands right behind it.
fn covering(candidates: &Candidates, evidence: &Array2<f32>) -> Vec<f32> {
    let twins = &candidates.twin_of;
    let firsts: Vec<usize> = (0..twins.len()).filter(|&chunk| twins[chunk] == chunk).collect();
    let mut scores = vec![0.0; twins.len()];
    for (&chunk, score) in firsts.iter().zip(rc::with_coverage(&evidence.select(Axis(1), &firsts))) {
        scores[chunk] = score;
    }
    twins.iter().map(|&twin| scores[twin]).collect()
}

/// Chunks that a good share of the part's words came from, and the best one.
fn cited(
    candidates: &Candidates,
    scores: &[SentenceScores],
    part: ByteRange,
    best: Option<usize>,
) -> Vec<usize> {
    let mut shares = vec![0.0; candidates.chunks.len()];
    for scores in scores {
        for (term, trace) in scores.terms.iter().zip(&scores.traces) {
            if term.bytes.overlaps(part) {
                shares[trace.chunk] += term.rarity;
            }
        }
    }
    let all: f32 = shares.iter().sum();
    let is_cited = |&chunk: &usize| Some(chunk) == best || all > 0.0 && shares[chunk] >= CITED_SHARE * all;
    (0..shares.len()).filter(is_cited).collect()
}

/// The sentence of a chunk that says most of the part.
fn best_unit(
    candidates: &Candidates,
    scores: &[SentenceScores],
    weights: &Weights,
    chunk: usize,
) -> Option<usize> {
    let score = |unit: usize| {
        let of_sentence = |(scores, weight): (&SentenceScores, &Vec<f32>)| -> f32 {
            scores.units.column(unit).iter().zip(weight).map(|(evidence, weight)| evidence * weight).sum()
        };
        scores.iter().zip(&weights.weight).map(of_sentence).sum()
    };
    trace::best(candidates.sentences(chunk), score)
}

/// The shortest run of a unit's words that holds [`RUN_SHARE`] of what the part's tokens find there, each at its best place.
fn run(
    candidates: &Candidates,
    scores: &[SentenceScores],
    (weights, part): (&Weights, ByteRange),
    unit: usize,
    cancel: &Cancel,
) -> Result<ByteRange, PipelineError> {
    let place = candidates.units[unit];
    let span = candidates.blocks.spans[place.chunk];
    let tokens = TokenSpan::new(place.tokens.start - span.start, place.tokens.end - span.start);
    let mut found = vec![0.0; tokens.len()];
    for (scores, weight) in scores.iter().zip(&weights.weight) {
        let own: Vec<usize> = (0..scores.tokens.len()).filter(|&j| scores.tokens[j].overlaps(part)).collect();
        if own.is_empty() || tokens.is_empty() {
            continue;
        }
        cancel.check()?;
        let best_keys = scores.best_keys(candidates, unit);
        for j in own {
            found[best_keys[j]] += weight[j] * scores.units[[j, unit]];
        }
    }
    let Some((first, last)) = shortest(&found) else { return Ok(place.bytes) };
    let block = &candidates.blocks.blocks[place.chunk];
    let offsets = block.offsets();
    let at = |token: usize| offsets.get((tokens.start + token).checked_sub(block.title_tokens())?);
    let Some((first, last)) = at(first).zip(at(last)) else { return Ok(place.bytes) };
    let (start, end) = (first.start.max(place.bytes.start), last.end.min(place.bytes.end));
    let run = ByteRange::new(start, end.max(start));
    let own = scores.iter().flat_map(|scores| &scores.terms).filter(|term| term.bytes.overlaps(part));
    let own: HashSet<u32> = own.filter_map(|term| term.id).collect();
    let is_said = |term: &Term| candidates.term(&term.folded).is_some_and(|id| own.contains(&id));
    let (text, words) = (&candidates.chunks[place.chunk].text, candidates.words(unit));
    Ok(whole_words((text, words), run, place.bytes, is_said))
}

/// First and last index of the shortest run that holds [`RUN_SHARE`] of the sum; none where there is nothing.
fn shortest(found: &[f32]) -> Option<(usize, usize)> {
    let needed = RUN_SHARE * found.iter().sum::<f32>();
    if needed <= 0.0 {
        return None;
    }
    let mut shortest: Option<(usize, usize)> = None;
    for start in 0..found.len() {
        let mut held = 0.0;
        let end = found[start..].iter().position(|value| {
            held += value;
            held >= needed
        });
        let Some(end) = end.map(|end| start + end) else { break };
        if shortest.is_none_or(|(first, last)| end - start < last - first) {
            shortest = Some((start, end));
        }
    }
    shortest
}

/// A range widened to whole words, and over the words beside it that are said, within bounds.
fn whole_words(
    (text, terms): (&str, &[Term]),
    range: ByteRange,
    bounds: ByteRange,
    is_said: impl Fn(&Term) -> bool,
) -> ByteRange {
    let is_touched = |term: &Term| term.bytes.shifted(bounds.start).overlaps(range);
    match (terms.iter().position(is_touched), terms.iter().rposition(is_touched)) {
        (Some(first), Some(last)) => {
            let before = terms[..first].iter().rev().take_while(|term| is_said(term)).count();
            let behind = terms[last + 1..].iter().take_while(|term| is_said(term)).count();
            let (first, last) = (&terms[first - before], &terms[last + behind]);
            ByteRange::new(first.bytes.start, last.bytes.end).shifted(bounds.start)
        }
        // Tokens that belong to no word, as a full stop.
        _ if text.get(range.start..range.end).is_some() => range,
        _ => bounds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    #[test]
    fn the_shortest_run_is_the_first_of_the_shortest() {
        let check = |name: &str, found: &[f32], expect| assert_eq!(shortest(found), expect, "{name}");
        check("nothing", &[0.0, 0.0], None);
        check("one", &[0.0, 1.0, 0.0], Some((1, 1)));
        check("all are needed", &[1.0, 1.0, 1.0], Some((0, 2)));
        check("what is far and small is left", &[4.0, 4.0, 0.0, 0.0, 1.0], Some((0, 1)));
        check("empty", &[], None);
    }

    #[test]
    fn runs_end_where_words_do() {
        let text = "the Sangre de Cristo";
        let check = |name: &str, (from, to): (usize, usize), expect: &str| {
            let is_said = |term: &Term| term.folded == "cristo";
            let (terms, bounds) = (text::terms(text, &[]), ByteRange::new(0, text.len()));
            let found = whole_words((text, &terms), ByteRange::new(from, to), bounds, is_said);
            assert_eq!(found.of(text), expect, "{name}");
        };
        check("inside a word", (6, 8), "Sangre");
        check("a blank at the end", (4, 11), "Sangre");
        check("two, and one that is said", (6, 12), "Sangre de Cristo");
        check("one that is said stands further on", (0, 3), "the");
    }
}
