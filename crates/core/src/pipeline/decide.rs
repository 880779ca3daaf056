//! Decides what a context holds: scores in, units out. In a sentence: a context holds the best units, with what a reader needs to
//! understand them, until it has the evidence with the probability that the budget names, and never more than the budget allows.
//!
//! [`decide`] reads in this order:
//!
//! 1. What is kept whatever its score: chunks that the request names, and both ends of a tool's result (`Writer::required`).
//! 2. The order of all other units, by score ([`Candidates::ranked`]).
//! 3. How far down that order is enough ([`coverage`]): a calibrated probability, which reaches further where scores are flat.
//! 4. What of that fits below the upper limit ([`Candidates::fill`]); the best unit always comes first, cut to some of its words if need be
//!    (`words`).
//! 5. Writing and counting (`write`): costs of units are estimates, because tokens may merge across the borders of units, so only the
//!    count of the written context is compared with the limit. Choices are dropped, worst first, until the context fits.

pub mod choose;
pub mod coverage;
mod words;
mod write;

use std::collections::HashSet;

use self::choose::{Candidates, Choice, Selection};
use self::coverage::CoverageLimits;
use self::write::{Rendered, Writer};
use super::assemble::{self, MarkerTag, Style};
use super::cancel::Cancel;
use super::count::{TextCosts, TokenCounter};
use super::notable::Notable;
use super::repeats::Repeats;
use super::score::Scores;
use super::source_conflicts::SourceConflict;
use super::units::Unit;
use super::validate::{InvalidRequest, Minimum};
use super::{PipelineError, Reading, Relevance, Usage};
use crate::domain::{AtMost, Budget, CompressRequest, Granularity, KeptSpan};
use crate::text::intent::{self, Wants};

/// The share of the best unit's score from which another unit may take its place if only the other one fits.
const IN_PLACE_OF_BEST_MIN: f32 = 0.5;

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The text to send to the language model.
    pub context: String,
    pub marker_tag: Option<MarkerTag>,
    pub usage: Usage,
    /// The indices of all chunks, in the order of the result.
    pub order: Vec<usize>,
    /// `[chunk]`: the kept spans of each chunk of the request, in ascending order.
    pub spans: Vec<Vec<KeptSpan>>,
    /// `[chunk]`: the spans of each chunk that the context holds where another chunk says the same, in ascending order.
    pub repeats: Vec<Vec<KeptSpan>>,
    /// The chunks of which some rows are left out although the question compares all rows.
    pub rows_left_out: Vec<usize>,
    /// The chunks with a unit that is kept without all that it requires, and the chunk of the best unit if that is not kept.
    pub groups_cut: Vec<usize>,
    /// The chunk of the best unit if the budget holds only some words of it.
    pub unit_cut: Option<usize>,
    /// The kept units that disagree.
    pub conflicts: Vec<SourceConflict>,
    /// The promised coverage, if the upper limit of the budget ends the context before it is reached.
    pub coverage_cut: Option<f64>,
}

/// What a decision needs besides the request and its scores.
#[derive(Clone, Copy)]
pub struct DecideContext<'a> {
    pub counter: &'a TokenCounter,
    /// The cache of the token counts of frames.
    pub text_costs: &'a TextCosts,
    /// How far down the ranking a coverage reaches.
    pub limits: &'a CoverageLimits,
    /// Whether `limits` were found for this model and its way of scoring, so that a coverage can be promised.
    pub is_calibrated: bool,
    /// Whether any chunk is related to the question; `None` if the model does not tell.
    pub relevance: Option<Relevance>,
    /// The units that disagree.
    pub conflicts: &'a [SourceConflict],
    pub cancel: &'a Cancel,
}

/// Returns the context that `request.budget` asks for.
///
/// # Errors
/// Returns [`InvalidRequest::BudgetImpossible`] if the chunks in `request.keep` alone exceed the budget, or if not even a word fits, the
/// errors of a coverage that cannot be promised, and the error of `context.cancel` if it stops the work.
pub fn decide(
    request: &CompressRequest,
    reading: &Reading,
    scores: &Scores,
    context: &DecideContext,
) -> Result<Decision, PipelineError> {
    let kept_ids: HashSet<&String> = request.keep.iter().collect();
    let keep: Vec<bool> = request.chunks.iter().map(|chunk| kept_ids.contains(&chunk.id)).collect();
    let units = &reading.units;
    let Budget { at_most, coverage: promised, at_least } = request.budget;
    let wants = wants_of(&request.query, reading);
    let limit = limit_of(request.budget, context)?;
    let mut writer = Writer {
        request,
        reading,
        units,
        scores,
        context,
        keep: &keep,
        order: write::order(request, units, scores),
        wants,
        repeats: Repeats::default(),
        style: Style::for_request(request),
    };

    let notable = if request.keeps_notable { writer.notable() } else { Notable::default() };
    let required = writer.required(&notable);
    // A ratio of 1 keeps everything.
    let is_all = at_most == Some(AtMost::Ratio(1.0));
    if !is_all && reading.granularity != Granularity::Word {
        writer.repeats = reading.repeats.preferring(&request.chunks, units, &required);
        // A budget that has room for them keeps all lines.
        if wants == Wants::Parts && at_most.is_none() && at_least == 0 {
            writer.repeats.fold(&notable.folded, &required);
        }
    }
    let mut unit_scores = writer.scores_of_firsts();
    // A reader of a sentence needs the one that contradicts it.
    for SourceConflict { indices: [a, b], .. } in context.conflicts {
        let better = unit_scores[*a].max(unit_scores[*b]);
        (unit_scores[*a], unit_scores[*b]) = (better, better);
    }
    let costs = writer.unit_costs()?;
    let frame_costs = writer.frame_costs()?;
    let frame_costs_of_first = writer.frame_costs_of_first(&frame_costs)?;
    let mut leading = writer.leading_units();
    if at_most.is_some() {
        // As far as it has room.
        leading.extend((0..units.len()).filter(|&unit| notable.kept.get(unit) == Some(&true)));
    }
    let candidates = Candidates {
        units,
        scores: &unit_scores,
        costs: &costs,
        frame_costs: &frame_costs,
        frame_costs_of_first: &frame_costs_of_first,
        required: &required,
        outlines: &reading.outlines,
        repeats: &writer.repeats,
        leading: &leading,
        rows_together: wants == Wants::Rows,
        cancel: context.cancel,
    };
    let tokens_in = writer.tokens_in(&frame_costs_of_first)?;
    let tokens_max = match at_most {
        Some(AtMost::Tokens(tokens)) => tokens,
        // A ratio of 1 keeps everything, even if the whole context has a token more than its parts.
        Some(AtMost::Ratio(1.0)) | None => usize::MAX,
        Some(AtMost::Ratio(ratio)) => write::share_of(ratio, tokens_in),
    };

    // Nothing is compared with a question that asks for the whole text.
    let is_unrelated = context.relevance.is_some_and(|found| !found.related);
    let wants_nothing = request.related_only && is_unrelated && wants != Wants::Whole;
    if wants_nothing {
        let rendered = writer.render(&Selection::of_required(candidates.required()), 0)?;
        check_required(&rendered, tokens_max, request, tokens_in)?;
        return Ok(writer.finish(rendered, Outcome { tokens_in, ..Outcome::default() }));
    }

    let ranked = candidates.ranked();
    let best = ranked.first().copied();
    let holds_all = match at_most {
        Some(_) if promised.is_none() => writer.holds_all(tokens_max, tokens_in)?,
        Some(_) => false,
        None => promised.is_none() && wants == Wants::Whole,
    };
    if holds_all {
        let everything = candidates.everything()?;
        let rendered = writer.render(&everything, everything.ends.len())?;
        // The whole may have a token more than its parts.
        if rendered.tokens <= tokens_max {
            return Ok(writer.finish(rendered, Outcome { tokens_in, best, ..Outcome::default() }));
        }
    }

    let mut choices = candidates.choices(&ranked)?;
    let enough = choices.partition_point(|choice| choice.effort <= limit);
    let wanted = &ranked[..choices.get(enough).map_or(ranked.len(), |choice: &Choice| choice.rank)];
    choices.truncate(enough);
    let selection = if tokens_max == usize::MAX {
        candidates.all_of(choices)
    } else {
        // Every frame includes the break after its chunk, but the last chunk of a context has none.
        let last_break = context.counter.count(assemble::BETWEEN_CHUNKS, context.cancel)?;
        candidates.fill(wanted, tokens_max.saturating_add(last_break))?
    };
    let mut rendered = writer.render_within(&selection, tokens_max)?;
    if rendered.as_ref().is_none_or(|rendered| rendered.text.is_empty()) && !selection.ends.is_empty() {
        // The marks of what was left out are not known before: the best unit gets as much less room.
        let found = writer.render(&selection, 1)?.tokens;
        let room = tokens_max.saturating_sub(found.saturating_sub(tokens_max));
        rendered = writer.render_within(&candidates.fill(wanted, room)?, tokens_max)?;
    }
    let mut outcome = Outcome { tokens_in, best, ..Outcome::default() };
    let holds_best =
        rendered.as_ref().is_some_and(|rendered| replaces_best(rendered, best, units, &unit_scores));
    let rendered = match (rendered, best) {
        (Some(rendered), _) if holds_best || !selection.required.is_empty() => rendered,
        (rendered, Some(best)) if selection.required.is_empty() => {
            let words = writer.render_words(best, tokens_max)?;
            // A ratio of a short text may be less than any word has.
            if words.tokens <= tokens_max || matches!(at_most, Some(AtMost::Ratio(_))) {
                outcome.unit_cut = Some(units[best].chunk);
                words
            } else {
                let minimum = Minimum { of: "the best word", instead: "" };
                let (budget, needed) = (tokens_max, words.tokens);
                let impossible =
                    InvalidRequest::BudgetImpossible { budget, needed, minimum, least_ratio: None };
                rendered.filter(|rendered| !rendered.text.is_empty()).ok_or(impossible)?
            }
        }
        (Some(rendered), _) => rendered,
        (None, _) => writer.render(&Selection::of_required(candidates.required()), 0)?,
    };
    if !selection.required.is_empty() {
        check_required(&rendered, tokens_max, request, tokens_in)?;
    }
    let rendered = if rendered.tokens < at_least.min(tokens_max) {
        writer.render_at_least(&candidates, at_least.min(tokens_max))?
    } else {
        rendered
    };
    // Where nothing is promised, nobody asks what the limit cut.
    if promised.is_some() && at_most.is_some() && !wanted.iter().all(|&unit| rendered.keeps(&units[unit])) {
        outcome.coverage_cut = promised;
    }
    Ok(writer.finish(rendered, outcome))
}

/// Returns whether a context holds the best unit, or one whose score is near enough. Where there is none, any context does.
fn replaces_best(rendered: &Rendered, best: Option<usize>, units: &[Unit], scores: &[f32]) -> bool {
    let Some(best) = best else { return true };
    if rendered.keeps(&units[best]) {
        return true;
    }
    let kept = (0..units.len()).filter(|&unit| rendered.keeps(&units[unit]));
    kept.map(|unit| scores[unit]).fold(0.0, f32::max) >= IN_PLACE_OF_BEST_MIN * scores[best]
}

/// Returns the choices of a request in their order, as calibrations need them.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub fn choices(
    request: &CompressRequest,
    reading: &Reading,
    scores: &Scores,
    cancel: &Cancel,
) -> Result<Vec<Choice>, PipelineError> {
    // Costs have no influence on the order.
    let free = vec![0; reading.units.len().max(request.chunks.len())];
    let required = vec![false; reading.units.len()];
    let candidates = Candidates {
        units: &reading.units,
        scores: &scores.units,
        costs: &free,
        frame_costs: &free,
        frame_costs_of_first: &free,
        required: &required,
        outlines: &reading.outlines,
        repeats: &reading.repeats,
        leading: &[],
        rows_together: wants_of(&request.query, reading) == Wants::Rows,
        cancel,
    };
    candidates.choices(&candidates.ranked())
}

/// Returns what a question asks of the chunks. Rows are compared only where there are some.
fn wants_of(query: &str, reading: &Reading) -> Wants {
    match intent::wants(query) {
        Wants::Rows if !reading.outlines.has_rows() => Wants::Parts,
        wants => wants,
    }
}

/// What becomes of a written context besides its text.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    tokens_in: usize,
    best: Option<usize>,
    unit_cut: Option<usize>,
    coverage_cut: Option<f64>,
}

/// Returns the largest effort of units that are kept. A budget with an upper limit alone is filled as far as the largest promise goes: what
/// lies beyond is hardly ever needed.
fn limit_of(budget: Budget, context: &DecideContext) -> Result<f32, InvalidRequest> {
    let limits = context.limits;
    let Some(coverage) = budget.enough() else { return Ok(limits.largest()) };
    if budget.coverage.is_some() && !context.is_calibrated {
        return Err(InvalidRequest::CoverageUncalibrated);
    }
    limits.limit(coverage).or_else(|max| {
        if budget.coverage.is_none() {
            return Ok(limits.largest());
        }
        let (rows, needed) = (limits.rows, coverage::rows_needed(coverage));
        Err(InvalidRequest::CoverageTooHigh { coverage, max, rows, needed })
    })
}

/// Checks that what the request wants kept fits into its budget.
///
/// # Errors
/// Returns [`InvalidRequest::BudgetImpossible`].
fn check_required(
    rendered: &Rendered,
    tokens_max: usize,
    request: &CompressRequest,
    tokens_in: usize,
) -> Result<(), InvalidRequest> {
    let needed = rendered.tokens;
    if needed <= tokens_max {
        return Ok(());
    }
    let minimum = Minimum { of: "what `keep` names", instead: ", or keep fewer chunks" };
    let is_ratio = matches!(request.budget.at_most, Some(AtMost::Ratio(_)));
    let least_ratio = is_ratio.then(|| write::least_ratio(needed, tokens_in));
    Err(InvalidRequest::BudgetImpossible { budget: tokens_max, needed, minimum, least_ratio })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ndarray::Array2;

    use super::*;
    use crate::domain::{Chunk, Format, Order, TokenizerName};
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
        let chunk = |(id, text): (&str, &str)| Chunk::new(id, text);
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
        let (cancel, text_costs) = (Cancel::default(), TextCosts::default());
        // The evidence of twenty labelled questions was complete at efforts up to 10, and that of one at 60.
        let efforts = (1..=20).map(|effort| effort as f32 / 2.0).chain([60.0]).collect();
        let limits = CoverageLimits::of_efforts(efforts, String::new(), String::new()).expect("enough rows");
        let context = DecideContext {
            counter: &counter,
            text_costs: &text_costs,
            limits: &limits,
            is_calibrated: true,
            relevance: Some(Relevance { value: 0.1, related: false, least: 0.5 }),
            conflicts: &[],
            cancel: &cancel,
        };
        let found = match decide(&request, &reading, &scores, &context) {
            Ok(decision) => decision.context,
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn budgets() {
        let check = |name: &str, budget, expect: &str| check(name, request(budget), expect);
        let impossible = |budget: usize| {
            format!(
                "a budget of {budget} tokens is too small: the best word needs 13 tokens; send `tokens` of at least 13"
            )
        };
        let rain = "[1] Rain fell.";
        let tide_and_rain = "[1] Tide rises.\n\n[2] Rain fell.";
        let all = "[1] Tide rises. Moon pulls. Water falls.\n\n[2] Rain fell.";
        check("not even a word fits", Budget::tokens(12), &impossible(12));
        check("a word of the best unit", Budget::tokens(13), "[1] … fell.");
        check("the best unit fits exactly", Budget::tokens(14), rain);
        check("one token too few for two units", Budget::tokens(30), rain);
        check("two units fit exactly", Budget::tokens(31), tide_and_rain);
        // A mark has as many tokens as bytes here: three.
        check("the third unit fits, but not the mark before it", Budget::tokens(47), tide_and_rain);
        check("a gap is marked", Budget::tokens(48), "[1] Tide rises. … Water falls.\n\n[2] Rain fell.");
        check("neighbouring units keep the text between them", Budget::tokens(56), all);
        check("a budget larger than the input", Budget::tokens(1_000_000), all);
        check("a ratio of 1 keeps everything", Budget::ratio(1.0), all);
        check("half of 58 tokens, the last break included", Budget::ratio(0.5), rain);
        check("a ratio of less than a word keeps one", Budget::ratio(0.01), "[1] … fell.");
        // The efforts of the four units: 1.0, 3.0, 6.4 and 12.4.
        check("the best unit is always kept", Budget::coverage(0.5), tide_and_rain);
        check(
            "more is promised, more is kept",
            Budget::coverage(0.6),
            "[1] Tide rises. … Water falls.\n\n[2] Rain fell.",
        );
        check("the default promise", Budget::default(), "[1] Tide rises. … Water falls.\n\n[2] Rain fell.");
        let both = Budget { coverage: Some(0.9), ..Budget::tokens(31) };
        check("an upper limit ends what a promise keeps", both, tide_and_rain);
        let both = Budget { coverage: Some(0.5), ..Budget::tokens(1_000) };
        check("a promise ends what an upper limit allows", both, tide_and_rain);
        check("at least so many tokens", Budget { at_least: 50, ..Budget::coverage(0.5) }, all);
    }

    #[test]
    fn nothing_is_emptied_unless_asked() {
        let unrelated = request(Budget::default());
        let kept = "[1] Tide rises. … Water falls.\n\n[2] Rain fell.";
        check("unrelated chunks are kept", unrelated.clone(), kept);
        check(
            "a request for related text only",
            CompressRequest { related_only: true, ..unrelated.clone() },
            "",
        );
        let named = CompressRequest { related_only: true, keep: vec!["b".to_owned()], ..unrelated };
        check("what the request names stays", named, "[1] Rain fell.");
    }

    #[test]
    fn the_least_ratio_allows_what_is_needed() {
        for tokens_in in 1..400 {
            for needed in 1..=tokens_in {
                let ratio = write::least_ratio(needed, tokens_in);
                assert!(
                    write::share_of(ratio, tokens_in) >= needed && ratio <= 1.0,
                    "{needed} of {tokens_in}: {ratio}"
                );
            }
        }
    }

    #[test]
    fn order_keep_and_format() {
        let keep = |id: &str, tokens| CompressRequest {
            keep: vec![id.to_owned()],
            ..request(Budget::tokens(tokens))
        };
        let relevance = CompressRequest { order: Order::Relevance, ..request(Budget::tokens(31)) };
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
        let plain = CompressRequest { format: Format::Plain, ..request(Budget::tokens(10)) };
        check("plain text has no marker to count", plain, "Rain fell.");
    }
}
