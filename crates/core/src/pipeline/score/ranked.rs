//! The default scorer, `peak/ranked+coverage`: Relative Contextualization (RC; RCStat, arXiv 2506.19549) of peaks with ranked
//! rivals. Chunks gain for question tokens that better chunks do not answer.

use ndarray::{Array2, Array3, Axis};

use super::{Scorer, Scores, measure_relevance, measured};
use crate::domain::{Granularity, Kind, TokenSpan};
use crate::model::RawLogits;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::clock::Clock;
use crate::pipeline::units::{Unit, sentences_of};
use crate::pipeline::{PipelineError, Reading, neighbours, scan};
use crate::rc::{self, HeadMean};
use crate::text::Mentions;

pub struct RankedCoverage;

impl Scorer for RankedCoverage {
    fn score(&self, reading: &Reading, cancel: &Cancel, clock: &mut Clock) -> Result<Scores, PipelineError> {
        let rc = clock.stage("scan", || ranked_rc(reading, cancel))?;
        Ok(clock.stage("score", || ranked_coverage(reading, rc)))
    }
}

/// RC of peaks with ranked rivals, mean over heads, before it is combined into scores.
#[derive(Debug, Clone, PartialEq)]
struct RankedRc {
    /// `[question_token, chunk]`, with the rows of the lexical head, if the reading has one.
    chunks: Array2<f32>,
    /// `[question_token, unit]`; empty if units are chunks.
    units: Array2<f32>,
    /// `[question_token, sentence]`; empty unless units are words.
    sentences: Array2<f32>,
    // See [`Scores::relevance`].
    relevance: Option<f32>,
    // See [`Scores::chunk_relevances`].
    chunk_relevances: Vec<f32>,
}

/// Scans the blocks, some heads at a time, and computes the RC of all peaks with ranked rivals.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
fn ranked_rc(reading: &Reading, cancel: &Cancel) -> Result<RankedRc, PipelineError> {
    let reading = &*reading.for_ranking();
    let [mut chunks, mut units, mut sentences] =
        [HeadMean::default(), HeadMean::default(), HeadMean::default()];
    let mut chunk_peaks = HeadMean::default();
    let columns = 2 * reading.units.len() + reading.blocks.spans.len();
    let context = UnitContext::collect(reading);
    for heads in reading.head_groups(columns) {
        let mut peaks = scan::peaks(reading, heads.clone(), cancel)?;
        let own_peaks = own_chunk_peaks(reading, &peaks.chunks, &peaks.units);
        context.add_to(&mut peaks.units);
        let self_logits = || reading.question.self_logits(heads.clone());
        chunks.add(rc_of_peaks(own_peaks.as_ref().unwrap_or(&peaks.chunks), self_logits, cancel)?);
        if reading.granularity != Granularity::Chunk {
            units.add(rc_of_peaks(&peaks.units, self_logits, cancel)?);
        }
        if reading.granularity == Granularity::Word {
            sentences.add(rc_of_peaks(&peaks.sentences, self_logits, cancel)?);
        }
        chunk_peaks.add(peaks.chunks);
    }
    let chunk_peaks = chunk_peaks.finish();
    let relevance = reading.logits_have_fixed_scale.then(|| measure_relevance(chunk_peaks.view()));
    let chunk_relevances = relevance.map_or_else(Vec::new, |_| rc::mean_over_queries(chunk_peaks.view()));
    let [chunks, units, sentences] = [chunks.finish(), units.finish(), sentences.finish()];
    Ok(match &reading.lexical {
        None => RankedRc { chunks, units, sentences, relevance, chunk_relevances },
        Some(lexical) => RankedRc {
            chunks: lexical.joined(&chunks, &lexical.chunks),
            units: lexical.joined(&units, &lexical.units),
            sentences: lexical.joined(&sentences, &lexical.sentences),
            // The model's own logits say nothing about words that it does not know.
            relevance: if lexical.knows_all { relevance } else { Some(lexical.relevance) },
            chunk_relevances,
        },
    })
}

/// Returns `[head, question_token, chunk]`, the peaks of each chunk without what it repeats of another one, which would be its own
/// rival; `None` if no chunk repeats anything.
fn own_chunk_peaks(reading: &Reading, chunks: &Array3<f32>, units: &Array3<f32>) -> Option<Array3<f32>> {
    let mut repeating: Vec<usize> = reading.repeats.all().map(|unit| reading.units[unit].chunk).collect();
    repeating.dedup();
    if repeating.is_empty() {
        return None;
    }
    let mut own = chunks.clone();
    own.rows_mut().into_iter().for_each(|mut row| repeating.iter().for_each(|&chunk| row[chunk] = rc::EMPTY));
    if reading.granularity != Granularity::Chunk {
        let of_chunk = |(unit, found): (usize, &Unit)| {
            let is_own = repeating.binary_search(&found.chunk).is_ok() && !reading.repeats.is_repeat(unit);
            is_own.then_some((unit, found.chunk))
        };
        let others: Vec<(usize, usize)> = reading.units.iter().enumerate().filter_map(of_chunk).collect();
        for (mut own, units) in own.rows_mut().into_iter().zip(units.rows()) {
            others.iter().for_each(|&(unit, chunk)| own[chunk] = own[chunk].max(units[unit]));
        }
    }
    Some(own)
}

/// Computes the scores of the default method:
///
/// - A chunk's score is its mean RC over the question's tokens, in which tokens that better chunks answer
///   count less (coverage, see [`rc::with_coverage`]). A turn of a dialogue takes part of its
///   neighbours' scores, and a chunk whose title a better chunk names has at least half of that chunk's score.
/// - A sentence's score is its own mean RC times the square root of its chunk's score. An event of a log takes part
///   of the score of related events, and a turn of a chat of the turns before it.
/// - A word's score is the mean RC of its sentence, times (1 + z / z_max), where z is the word's own mean RC
///   and z_max the largest z of all words, times the square root of its chunk's score.
fn ranked_coverage(reading: &Reading, ranked: RankedRc) -> Scores {
    let units = &reading.units;
    let own = reading.neighbours.smoothed(rc::with_coverage(&ranked.chunks));
    let mut chunks = with_mentioned(own, &reading.mentions);
    // A chunk that says nothing of its own has the score of the chunk that it repeats.
    let mut start = 0;
    for of_chunk in units.chunk_by(|a, b| a.chunk == b.chunk) {
        let firsts = (start..start + of_chunk.len()).map(|unit| reading.repeats.first(unit));
        start += of_chunk.len();
        if let Some(firsts) = firsts.collect::<Option<Vec<usize>>>() {
            let best = firsts.iter().map(|&first| chunks[units[first].chunk]).fold(0.0, f32::max);
            chunks[of_chunk[0].chunk] = chunks[of_chunk[0].chunk].max(best);
        }
    }
    let weighted_by_chunk = |(unit, rc): (&Unit, f32)| rc * chunks[unit.chunk].sqrt();
    let (scores, unit_rc) = match reading.granularity {
        Granularity::Chunk => {
            let chunk_of = units.iter().map(|unit| unit.chunk).collect::<Vec<_>>();
            let unit_rc = ranked.chunks.select(Axis(1), &chunk_of);
            (units.iter().map(|unit| chunks[unit.chunk]).collect(), unit_rc)
        }
        Granularity::Sentence => {
            let sentence_rc = rc::mean_over_queries(ranked.units.view());
            let own: Vec<f32> = units.iter().zip(sentence_rc).map(weighted_by_chunk).collect();
            (with_turns(with_related(own, reading), reading), ranked.units)
        }
        Granularity::Word => {
            let word_rc = rc::mean_over_queries(ranked.units.view());
            let word_rc_max = word_rc.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
            // The rivals of a sentence are the other sentences, each once, however many words they have.
            let (_, sentence_of) = sentences_of(units);
            let sentence_rc = rc::mean_over_queries(ranked.sentences.view());
            let sentence_rc = sentence_of.iter().map(|&sentence| sentence_rc[sentence]);
            let in_sentence =
                sentence_rc.zip(word_rc).map(|(sentence, word)| sentence * (1.0 + word / word_rc_max));
            (units.iter().zip(in_sentence).map(weighted_by_chunk).collect(), ranked.units)
        }
    };
    let RankedRc { relevance, chunk_relevances, .. } = ranked;
    Scores {
        chunks,
        units: scores,
        unit_rc,
        relevance,
        chunk_relevances,
        measured: measured(reading),
        are_probabilities: false,
    }
}

/// What units other than sentences are scored with: a row of a table with the table's header, a statement with
/// the signature of its function, a member of a record with its name.
struct UnitContext {
    /// `(unit, other)`: the unit has the peaks of the other one, too, which stands before it. Ascending.
    shared: Vec<(usize, usize)>,
    /// The units that are not chosen for themselves, or that repeat another one. They are not rivals.
    frames: Vec<usize>,
}

impl UnitContext {
    fn collect(reading: &Reading) -> Self {
        let (mut shared, mut frames) = (Vec::new(), Vec::new());
        if reading.granularity == Granularity::Sentence {
            for (index, unit) in reading.units.iter().enumerate() {
                let before = reading.outlines.contexts_of(index, unit.chunk).filter(|other| *other < index);
                shared.extend(before.map(|other| (index, other)));
                if reading.outlines.is_frame(index, unit.chunk) {
                    frames.push(index);
                }
            }
        }
        frames.extend(reading.repeats.all());
        Self { shared, frames }
    }

    /// Adds to the peaks `[head, question_token, unit]` of each unit those of its context.
    fn add_to(&self, peaks: &mut Array3<f32>) {
        if self.shared.is_empty() && self.frames.is_empty() {
            return;
        }
        for mut row in peaks.rows_mut() {
            self.shared.iter().for_each(|&(unit, other)| row[unit] = row[unit].max(row[other]));
            self.frames.iter().for_each(|&frame| row[frame] = rc::EMPTY);
        }
    }
}

/// The share of its score that a chunk gives to the chunks whose titles its text names. The passage that
/// answers the second part of a question often has no word of the question, but the passage that answers the
/// first part names it. The value was chosen by measurement (`docs/evaluation.md`).
const MENTIONED_SHARE: f32 = 0.5;

/// Raises the scores of chunks whose titles one of the [`rc::PICKS`] best chunks names. Of several chunks with
/// the same title only the best is raised, because the others are other parts of a document.
fn with_mentioned(own: Vec<f32>, mentions: &Mentions) -> Vec<f32> {
    if mentions.is_empty() {
        return own;
    }
    let mut best: Vec<usize> = (0..own.len()).collect();
    best.sort_by(|&a, &b| own[b].total_cmp(&own[a]));
    let mut raised = own.clone();
    for &source in best.iter().take(rc::PICKS) {
        for texts in mentions.named_by(source) {
            let target = *texts.iter().rev().max_by(|&&a, &&b| own[a].total_cmp(&own[b])).expect("one text");
            raised[target] = raised[target].max(MENTIONED_SHARE * own[source]);
        }
    }
    raised
}

/// The share of its score that an event of a log gives to the events that share an identifier with it: the
/// cause of an error often has no word of the question.
const RELATED_SHARE: f32 = 0.5;

/// Raises the scores of units whose related units score higher.
fn with_related(own: Vec<f32>, reading: &Reading) -> Vec<f32> {
    let raised = |(index, unit): (usize, &Unit)| {
        let related = reading.outlines.related_to(index, unit.chunk).map(|other| RELATED_SHARE * own[other]);
        related.fold(own[index], f32::max)
    };
    if reading.outlines.is_prose() { own } else { reading.units.iter().enumerate().map(raised).collect() }
}

/// Smooths the scores of the turns of each chat.
fn with_turns(mut own: Vec<f32>, reading: &Reading) -> Vec<f32> {
    if reading.outlines.is_prose() {
        return own;
    }
    let mut start = 0;
    for units in reading.units.chunk_by(|a, b| a.chunk == b.chunk) {
        let of_chunk = start..start + units.len();
        start = of_chunk.end;
        if reading.outlines.layouts()[units[0].chunk].kind == Kind::Chat {
            let smoothed = neighbours::with_turns_before(&own[of_chunk.clone()]);
            own[of_chunk].copy_from_slice(&smoothed);
        }
    }
    own
}

/// Returns the RC of each segment's peak with ranked rivals, `[head, question_token, segment]`. A single
/// segment has no rivals and is compared with the question's own keys instead.
pub fn rc_of_segments(logits: &RawLogits, segments: &[TokenSpan]) -> Array3<f32> {
    let peaks = rc::peaks(logits.cross.view(), segments).value;
    if has_rivals(&peaks) {
        rc::ranked_rivals(peaks.view())
    } else {
        rc::peaks_against_self(peaks.view(), logits.self_logits.view())
    }
}

/// The peaks that are ranked between two looks at a `Cancel`, which takes about 10 ms on one thread.
const PEAKS_RANKED_AT_ONCE: usize = 1 << 18;

/// Returns the RC of peaks `[head, question_token, segment]` with ranked rivals, in the same shape. If only
/// one segment has tokens, it has no rivals and is compared with the question's own keys instead.
/// `self_logits` returns the logits over these, `[head, question_token, question_token]`; it is called only
/// in that case.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub fn rc_of_peaks(
    peaks: &Array3<f32>,
    self_logits: impl FnOnce() -> Array3<f32>,
    cancel: &Cancel,
) -> Result<Array3<f32>, PipelineError> {
    cancel.check()?;
    if !has_rivals(peaks) {
        return Ok(rc::peaks_against_self(peaks.view(), self_logits().view()));
    }
    if peaks.len() <= PEAKS_RANKED_AT_ONCE {
        return Ok(rc::ranked_rivals(peaks.view()));
    }
    let mut found = Array3::zeros(peaks.dim());
    // Each thread has a row, even if rows are long.
    let rows = (PEAKS_RANKED_AT_ONCE / peaks.len_of(Axis(2))).max(rayon::current_num_threads());
    for (mut found, peaks) in found.axis_iter_mut(Axis(0)).zip(peaks.axis_iter(Axis(0))) {
        let parts = found.axis_chunks_iter_mut(Axis(0), rows).zip(peaks.axis_chunks_iter(Axis(0), rows));
        for (mut found, peaks) in parts {
            cancel.check()?;
            found.assign(&rc::ranked_rivals(peaks.insert_axis(Axis(0))).index_axis(Axis(0), 0));
        }
    }
    Ok(found)
}

/// Returns whether more than one segment has a token. An empty segment is empty for all heads and question
/// tokens, so the first row is enough.
fn has_rivals(peaks: &Array3<f32>) -> bool {
    let first = peaks.rows().into_iter().next();
    first.is_some_and(|row| row.iter().filter(|&&peak| peak != rc::EMPTY).take(2).count() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunk `i` has the title `titles[i]` and the text `texts[i]`.
    #[track_caller]
    fn check(name: &str, titles: &[&str], texts: &[&str], own: &[f32], expect: &[f32]) {
        let titled = titles.iter().map(|&title| Some(title)).zip(texts.iter().copied());
        assert_eq!(with_mentioned(own.to_vec(), &Mentions::find(titled)), expect, "{name}");
    }

    #[test]
    fn chunks_that_a_better_chunk_names_have_half_of_its_score() {
        let titles = ["Skerryvore", "Alan Stevenson", "Muckle Flugga"];
        let names_one = ["Alan Stevenson built it.", "", ""];
        check("no chunk is named", &titles, &["", "", ""], &[4.0, 1.0, 0.5], &[4.0, 1.0, 0.5]);
        check("a named chunk", &titles, &names_one, &[4.0, 1.0, 0.5], &[4.0, 2.0, 0.5]);
        check("a named chunk with a good score", &titles, &names_one, &[4.0, 3.0, 0.5], &[4.0, 3.0, 0.5]);
        check("a better chunk is not changed", &titles, &names_one, &[1.0, 4.0, 0.5], &[1.0, 4.0, 0.5]);
        let chain = ["Alan Stevenson built it.", "He saw Muckle Flugga.", ""];
        check("scores do not travel twice", &titles, &chain, &[4.0, 0.0, 0.0], &[4.0, 2.0, 0.0]);
        let parts = ["Skerryvore", "Alan Stevenson", "Alan Stevenson"];
        check("the best of several parts", &parts, &names_one, &[4.0, 0.25, 0.5], &[4.0, 0.25, 2.0]);
        check("the first of equal parts", &parts, &names_one, &[4.0, 0.5, 0.5], &[4.0, 2.0, 0.5]);
    }

    #[test]
    fn only_the_best_chunks_raise_others() {
        let last = rc::PICKS + 1;
        let titles: Vec<String> = (0..=last).map(|number| format!("Part {number}")).collect();
        let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
        let named = format!("Part {last}");
        let own: Vec<f32> = (0..=last).map(|number| (last - number) as f32).collect();
        for (source, expect) in [(rc::PICKS - 1, 1.0), (rc::PICKS, 0.0)] {
            let mut texts = vec![""; last + 1];
            texts[source] = &named;
            let titled = titles.iter().map(|&title| Some(title)).zip(texts);
            assert_eq!(with_mentioned(own.clone(), &Mentions::find(titled))[last], expect, "chunk {source}");
        }
    }
}
