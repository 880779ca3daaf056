//! Compresses one turn of a conversation, and counts its tokens.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use thresher_core::domain::{
    AtMost, Budget, ByteRange, Chunk, CompressRequest, Format, Kind, Omissions, TokenizerName,
};
use thresher_core::pipeline::answerable::Answerable;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::validate::InvalidRequest;
use thresher_core::pipeline::{Compressed, PipelineError, Prepared, Warning, assemble};
use thresher_core::text::outline::Layout;

use super::{
    CompressOptions, Compressor, NOTHING_KEPT, Rewritten, SentTurn, Shortened, Spans, Unshortened, ranges,
    with_unique_ids,
};
use crate::middleware::dialect::PartKind;
use crate::middleware::find::{self, Turn, Wants};
use crate::middleware::marks::mark;
use crate::middleware::settings::Mode;

/// Bytes per token by which texts that are not compressed are estimated instead of counted: rather too few tokens than too many.
const BYTES_PER_TOKEN: usize = 6;

/// The largest share of a document or a result that may be left for its compression to be worth the gaps, as a fraction, where the request
/// sets no budget.
const WORTH: (usize, usize) = (3, 4);

/// Bytes that hardly any token of a natural text has.
const TOKEN_BYTES_MAX: usize = 16;

pub(super) struct TurnWork<'a> {
    pub(super) turn: &'a Turn,
    pub(super) chunks: &'a [Arc<Chunk>],
    /// Whether the passages are compressed. If not, only the added chunks are.
    pub(super) is_compressed: bool,
    pub(super) added: &'a [Arc<Chunk>],
    /// Bytes that are sent of the turns before this one.
    pub(super) sent_bytes: usize,
    /// The index of the turn in its conversation.
    pub(super) at: usize,
    /// Bytes of all texts that are compressed for the request, among which a budget in tokens is divided.
    pub(super) bytes_of_all: usize,
    /// The id of the options with which the turn is compressed.
    pub(super) options: &'a str,
    pub(super) cancel: &'a Cancel,
}

impl TurnWork<'_> {
    pub(super) fn keep_all(&self) -> (SentTurn, Vec<Spans>) {
        let all = |chunk: &Arc<Chunk>| vec![(0, chunk.text.len())];
        (SentTurn::whole(self.turn), self.added.iter().map(all).collect())
    }

    /// Compresses the turn's passages, if they are to be, and the added chunks. Returns what is kept of both. `read` has the groups of turns
    /// that were compressed before.
    pub(super) fn compress(
        &self,
        compressor: Compressor,
        read: &mut ReadTurns,
        out: &mut Rewritten,
    ) -> Result<(SentTurn, Vec<Spans>), PipelineError> {
        let Compressor { options, other_text_bytes, .. } = compressor;
        out.has_added |= !self.added.is_empty();
        if self.passages().is_empty() && self.added.is_empty() {
            return Ok(self.keep_all());
        }
        // A question that the caller wrote for this purpose stands, whatever the user asks.
        let query = options.query.as_deref().unwrap_or(&self.turn.query);
        if query.trim().is_empty() || options.query.is_none() && self.turn.wants == Wants::Whole {
            out.unshortened = Some(Unshortened::NoQuestion);
            return Ok(self.keep_all());
        }
        let asks_nothing = options.query.is_none() && self.turn.wants == Wants::Nothing;
        let (retrieved, others): (Vec<Group>, _) =
            self.groups().into_iter().partition(|group| group.kind == GroupKind::Retrieved);
        if asks_nothing && !others.is_empty() {
            out.unshortened = Some(Unshortened::NoQuestion);
        }
        // Chunks of a retriever were fetched for the text, whatever it says.
        let groups = retrieved.into_iter().chain(others.into_iter().filter(|_| !asks_nothing));
        // The added chunks are a group of their own if the passages are not compressed.
        let key = (self.at, self.is_compressed);
        let known = read.groups.remove(&key).filter(|fitted| {
            // Only a budget takes a part of the groups that were not even read.
            compressor.tokens_max.is_none() || !fitted.iter().any(|group| group.is_unselected)
        });
        let mut fitted = match known {
            Some(fitted) => fitted,
            None => {
                groups.map(|group| Fitted::new(self, group, query, compressor)).collect::<Result<_, _>>()?
            }
        };
        if fitted.is_empty() {
            return Ok(self.keep_all());
        }
        if compressor.skips_late {
            out.late.extend(skip_late(&mut fitted, compressor, self.cancel));
        }
        let budget = compressor.tokens_max.map_or(options.budget, Budget::tokens);
        let mut bytes_left = READ_BYTES_MAX;
        for group in &mut fitted {
            group.keeps_read = group.bytes <= bytes_left;
            bytes_left -= if group.keeps_read { group.bytes } else { 0 };
            group.fit(budget_of(budget, group.bytes, self.bytes_of_all), compressor, self.cancel)?;
        }
        if let Some(AtMost::Tokens(tokens)) = budget.at_most {
            self.fit_beside_whole(&mut fitted, tokens, compressor)?;
        }
        let tokens_in: usize = fitted.iter().map(|group| group.tokens_in).sum();
        let other_tokens = (other_text_bytes + self.sent_bytes) / BYTES_PER_TOKEN;
        let least = options.prompt_tokens_min.saturating_sub(other_tokens);
        // Chunks that are only added are sent once and never cached by a provider, so the least length does not matter for them.
        let has_least = budget.at_most.is_none() && !self.passages().is_empty();
        out.is_short = has_least && tokens_in < least;
        if out.is_short {
            fitted.iter_mut().for_each(Fitted::keep_whole);
        } else if has_least {
            fill(&mut fitted, least, compressor, self.cancel)?;
        }
        let tokens_out: usize = fitted.iter().map(|group| group.tokens_out).sum();
        add_tokens(&mut out.newest_tokens, tokens_in, tokens_out);
        let related = fitted.iter().filter_map(|group| group.related);
        out.related = related.chain(out.related).reduce(|one, other| one || other);
        let answers = fitted.iter().filter_map(|group| group.answerable).chain(out.answerable);
        out.answerable =
            answers.reduce(|best, next| if next.probability > best.probability { next } else { best });
        if fitted.iter().any(|group| group.is_unrelated) {
            out.unshortened = Some(Unshortened::Unrelated);
        }
        let is_late = fitted.iter().any(|group| group.is_late);
        if is_late {
            out.unshortened = Some(Unshortened::Late);
        }
        let mut kept: Vec<Option<Spans>> = vec![None; self.turn.passages.len()];
        let mut kept_of_added = self.keep_all().1;
        for group in &fitted {
            for (&index, spans) in group.indexes.iter().zip(&group.kept) {
                match (index.checked_sub(self.passages().len()), spans) {
                    (Some(added), Some(spans)) => kept_of_added[added].clone_from(spans),
                    // All of it, as before.
                    (Some(_), None) => {}
                    (None, spans) => kept[index].clone_from(spans),
                }
            }
        }
        let added = self.added.iter().zip(&kept_of_added);
        out.is_newest_shorter |= added
            .into_iter()
            .any(|(chunk, kept)| ranges(kept).map(ByteRange::len).sum::<usize>() < chunk.text.len());
        if read.is_kept {
            read.groups.insert(key, fitted);
        }
        // A passage that loses less than a twentieth is sent whole: it could even have a token more when shortened.
        for (kept, passage) in kept.iter_mut().zip(&self.turn.passages) {
            kept.take_if(|kept| {
                let bytes = ranges(kept).map(ByteRange::len).sum::<usize>().max(NOTHING_KEPT.len());
                bytes > passage.text.len() * 19 / 20
            });
        }
        let sent = SentTurn {
            options: self.options.to_owned(),
            kept,
            written: Vec::new(),
            encoded: Vec::new(),
            marked: options.marks,
            late: is_late,
        };
        Ok((sent, kept_of_added))
    }

    /// Fits the groups again, if some of them stay whole whatever their share of a budget in tokens is: what is left of it is divided among
    /// the others.
    fn fit_beside_whole(
        &self,
        fitted: &mut [Fitted],
        tokens: usize,
        compressor: Compressor,
    ) -> Result<(), PipelineError> {
        let is_whole = |group: &&mut Fitted| group.kept.iter().all(Option::is_none);
        let bytes: usize = fitted.iter().map(|group| group.bytes).sum();
        let (whole, others): (Vec<_>, Vec<_>) = fitted.iter_mut().partition(is_whole);
        if whole.is_empty() || others.is_empty() {
            return Ok(());
        }
        let spent: usize = whole.iter().map(|group| group.tokens_out).sum();
        let left = tokens_of_share(tokens, bytes, self.bytes_of_all).saturating_sub(spent);
        let bytes: usize = others.iter().map(|group| group.bytes).sum();
        others.into_iter().try_for_each(|group| {
            group.fit(budget_of(Budget::tokens(left), group.bytes, bytes), compressor, self.cancel)
        })
    }

    /// Returns whether results of this tool with texts of this kind stay whole.
    fn is_off(&self, indexes: &[usize], chunks: &[Arc<Chunk>], options: &CompressOptions) -> bool {
        let kind = &self.turn.passages[indexes[0]].kind;
        let PartKind::ToolResult { name, .. } = kind else { return false };
        let kinds: Vec<&str> =
            options.off.iter().filter(|(tool, _)| **tool == **name).map(|(_, kind)| *kind).collect();
        // Finding out the kind of a text takes longer than the rest.
        let kind_of = |chunk: &Arc<Chunk>| Layout::detect(&chunk.text, Kind::Auto).kind.name();
        !kinds.is_empty() && chunks.iter().any(|chunk| kinds.contains(&kind_of(chunk)))
    }

    /// The passages that are compressed.
    fn passages(&self) -> &[Arc<Chunk>] {
        if self.is_compressed { self.chunks } else { &[] }
    }

    /// Divides the passages and the added chunks into those that compete with each other: chunks of a retriever, attached documents, and
    /// each result of a tool. Added chunks have the indexes after the passages.
    fn groups(&self) -> Vec<Group> {
        let mut retrieved = Group { kind: GroupKind::Retrieved, indexes: Vec::new() };
        let mut documents = Group { kind: GroupKind::Documents, indexes: Vec::new() };
        let mut results: Vec<Group> = Vec::new();
        let mut last_string = None;
        for (index, passage) in self.turn.passages.iter().take(self.passages().len()).enumerate() {
            match passage.kind {
                PartKind::Message | PartKind::SearchResult { .. } => retrieved.indexes.push(index),
                PartKind::Document { .. } => documents.indexes.push(index),
                PartKind::ToolResult { .. } => {
                    if last_string.replace(&passage.string) != Some(&passage.string) {
                        results.push(Group { kind: GroupKind::Result, indexes: Vec::new() });
                    }
                    results.last_mut().expect("a group was just pushed").indexes.push(index);
                }
            }
        }
        let first = self.passages().len();
        retrieved.indexes.extend(first..first + self.added.len());
        let groups = [retrieved, documents].into_iter().chain(results);
        groups.filter(|group| !group.indexes.is_empty()).collect()
    }

    pub(super) fn mark_tokens<'a>(
        &self,
        mut marked: impl Iterator<Item = &'a Shortened>,
        compressor: Compressor,
    ) -> Result<usize, PipelineError> {
        marked.try_fold(0, |tokens, string| {
            self.cancel.check()?;
            let mark = mark(&string.original, &string.left_out);
            Ok(tokens + compressor.pipeline.count(&mark, TokenizerName::O200kBase)?)
        })
    }

    /// Counts the tokens of the turn's passages and of the added chunks, before and after compression. Whether a passage is compressed now,
    /// was compressed before or is sent whole makes no difference, so that a turn counts the same in every request of its conversation.
    pub(super) fn count(
        &self,
        sent: &SentTurn,
        shortened_strings: &[Shortened],
        kept_of_added: &[Spans],
        compressor: Compressor,
        tokens: &mut Option<(usize, usize)>,
    ) -> Result<(), PipelineError> {
        let count = |text: &str| compressor.pipeline.count(text, TokenizerName::O200kBase);
        // Texts that were left out as a whole, because nothing in them is related to the question, are no savings.
        let is_emptied = compressor.options.related_only
            && !sent.kept.is_empty()
            && sent.kept.iter().all(|kept| kept.as_ref().is_some_and(Vec::is_empty));
        let encoded: HashSet<usize> = sent.encoded_strings(self.turn).map(|string| string.start).collect();
        for string in shortened_strings.iter().filter(|string| encoded.contains(&string.at.start)) {
            add_tokens(tokens, count(&string.original)?, count(string.text_without_mark())?);
        }
        for (index, passage) in self.turn.passages.iter().enumerate() {
            if encoded.contains(&passage.string.start) {
                continue;
            }
            let before = count(&passage.text)?;
            let after = match sent.text_of(self.turn, index) {
                Some(text) if !is_emptied => count(&text)?,
                _ => before,
            };
            add_tokens(tokens, before, after);
        }
        for (chunk, kept) in self.added.iter().zip(kept_of_added) {
            let layout = Layout::detect(&chunk.text, chunk.kind);
            let spans: Vec<ByteRange> = ranges(kept).collect();
            let kept = assemble::joined(&chunk.text, &spans, &layout, Omissions::Auto);
            add_tokens(tokens, count(&chunk.text)?, count(&kept)?);
        }
        Ok(())
    }
}

/// The most bytes of the texts of a turn for which what was read is kept, to fit them again. Vectors take some hundred times as much memory.
const READ_BYTES_MAX: usize = 1 << 20;

/// The groups of turns that were read for a request: they can be fitted again to a smaller budget.
pub struct ReadTurns {
    /// By the index of a turn, and whether its passages are compressed.
    groups: BTreeMap<(usize, bool), Vec<Fitted>>,
    is_kept: bool,
}

impl ReadTurns {
    /// Nothing has been read yet. What will be read is kept only if `is_kept`.
    pub fn new(is_kept: bool) -> Self {
        Self { groups: BTreeMap::new(), is_kept }
    }
}

/// Texts of a turn that are compressed together.
struct Group {
    kind: GroupKind,
    /// The indexes of the texts among the passages, followed by the added chunks.
    indexes: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupKind {
    /// Chunks of a retriever: contexts in messages, search results, and chunks that the request adds.
    Retrieved,
    /// Documents that the user attached.
    Documents,
    /// The result of one call of a tool.
    Result,
}

struct Fitted {
    kind: GroupKind,
    indexes: Vec<usize>,
    /// The group with its question; `None`: it stays whole, because it is too short, or there is no time to read it.
    request: Option<CompressRequest>,
    /// The request as the model has read it; `None`: it is read when it is fitted.
    prepared: Option<Prepared>,
    /// Whether that is kept, to fit the group again.
    keeps_read: bool,
    bytes: usize,
    tokens_in: usize,
    tokens_out: usize,
    /// For each text, the ranges that are kept; `None`: all of it.
    kept: Vec<Option<Spans>>,
    related: Option<bool>,
    answerable: Option<Answerable>,
    /// Whether the group is kept whole because it has nothing to do with the question.
    is_unrelated: bool,
    /// Whether the group is kept whole because there is no time to read it.
    is_late: bool,
    /// Whether the group is kept whole because the mode leaves nothing out of such texts. A budget may still ask for it.
    is_unselected: bool,
}

impl Fitted {
    /// Returns a group, kept whole, with its question: for a result of a tool, together with what the model wanted of the tool.
    fn new(
        work: &TurnWork,
        group: Group,
        query: &str,
        compressor: Compressor,
    ) -> Result<Self, PipelineError> {
        let Compressor { options, pipeline, .. } = compressor;
        let Group { kind, indexes } = group;
        work.cancel.check()?;
        let passages = work.passages();
        let text = |&index: &usize| match index.checked_sub(passages.len()) {
            Some(added) => Arc::clone(&work.added[added]),
            None => Arc::clone(&passages[index]),
        };
        let chunks: Vec<Arc<Chunk>> = indexes.iter().map(text).collect();
        let bytes: usize = chunks.iter().map(|chunk| chunk.text.len()).sum();
        // Longer texts need not be counted to know that they are long enough.
        let mut tokens_in = usize::MAX;
        if kind == GroupKind::Result && bytes < options.result_tokens_min.saturating_mul(TOKEN_BYTES_MAX) {
            let count = |chunk: &Arc<Chunk>| pipeline.count(&chunk.text, TokenizerName::O200kBase);
            tokens_in = chunks.iter().map(count).sum::<Result<usize, _>>()?;
        }
        let is_callers = options.query.is_some();
        if tokens_in < options.result_tokens_min {
            return Ok(Self::whole(kind, indexes, bytes, tokens_in));
        }
        if kind == GroupKind::Result && work.is_off(&indexes, &chunks, options) {
            return Ok(Self::whole(kind, indexes, bytes, bytes / BYTES_PER_TOKEN));
        }
        let is_selected = match options.mode {
            Mode::Lossless => false,
            Mode::Relevant => {
                kind != GroupKind::Result || chunks.iter().any(|chunk| is_running_text(&chunk.text))
            }
        };
        if !is_selected && compressor.tokens_max.is_none() && options.budget == Budget::default() {
            let whole = Self::whole(kind, indexes, bytes, bytes / BYTES_PER_TOKEN);
            return Ok(Self { is_unselected: true, ..whole });
        }
        let first = work.turn.passages.get(indexes[0]).filter(|_| indexes[0] < passages.len());
        let query = match first {
            Some(passage) if !is_callers && !passage.wanted.is_empty() => {
                // Neither part takes all of the room.
                let room = find::QUERY_BYTES_MAX.saturating_sub(passage.wanted.len() + 1);
                format!("{} {}", find::tail_within(query, room), passage.wanted)
            }
            _ => query.to_owned(),
        };
        let history = if is_callers { &[][..] } else { &work.turn.history };
        let request = CompressRequest {
            history: history.iter().map(|text| text.to_string()).collect(),
            chunks: with_unique_ids(&chunks),
            granularity: options.granularity,
            format: Format::Plain,
            titles: false,
            related_only: options.related_only && kind == GroupKind::Retrieved,
            tokenizer: TokenizerName::O200kBase,
            keeps_notable: kind == GroupKind::Result,
            // As the result will be written.
            omissions: if kind == GroupKind::Result { Omissions::Range } else { Omissions::Auto },
            ..CompressRequest::new(find::tail(&query), Vec::new())
        };
        Ok(Self { request: Some(request), ..Self::whole(kind, indexes, bytes, tokens_in) })
    }

    fn whole(kind: GroupKind, indexes: Vec<usize>, bytes: usize, tokens_in: usize) -> Self {
        Self {
            kind,
            request: None,
            prepared: None,
            keeps_read: false,
            bytes,
            tokens_in,
            tokens_out: tokens_in,
            kept: vec![None; indexes.len()],
            indexes,
            related: None,
            answerable: None,
            is_unrelated: false,
            is_late: false,
            is_unselected: false,
        }
    }

    fn keep_whole(&mut self) {
        self.tokens_out = self.tokens_in;
        self.kept = vec![None; self.indexes.len()];
    }

    /// Compresses the group to a budget. Texts that are not related to the question stay whole: what a retriever found, a user attached or a
    /// model asked a tool for may matter for reasons that no likeness of words shows. A request can ask for chunks of a retriever that are
    /// related only.
    fn fit(&mut self, budget: Budget, compressor: Compressor, cancel: &Cancel) -> Result<(), PipelineError> {
        let Some(request) = &self.request else { return Ok(()) };
        let prepared = match self.prepared.take() {
            Some(prepared) => prepared,
            None => compressor.pipeline.prepare(request, cancel)?,
        };
        let prepared = self.prepared.insert(prepared);
        let fit = |budget| compressor.pipeline.compress_prepared(prepared, budget, cancel);
        let mut compressed = fit(budget);
        // Not even one word fits: the least that can be kept is better than everything.
        if let Err(PipelineError::Invalid(InvalidRequest::BudgetImpossible { needed, .. })) = compressed {
            compressed = fit(Budget::tokens(needed));
        }
        let compressed = compressed?;
        // A share of a sentence says little.
        let is_cut = compressed.warnings.iter().any(|warning| matches!(warning, Warning::UnitCut { .. }));
        if is_cut && !matches!(budget.at_most, Some(AtMost::Tokens(_))) {
            self.tokens_in = compressed.usage.map_or(self.tokens_in, |usage| usage.tokens_in);
            self.keep_whole();
            return Ok(());
        }
        if !self.keeps_read {
            self.prepared = None;
        }
        self.take(&compressed, budget.at_most.is_none(), compressor.options.related_only);
        Ok(())
    }

    fn take(&mut self, compressed: &Compressed, is_open: bool, related_only: bool) {
        self.related = compressed.relevance.map(|relevance| relevance.related);
        self.answerable = compressed.answerable;
        let may_be_emptied = related_only && self.kind == GroupKind::Retrieved;
        self.is_unrelated = self.related == Some(false) && !may_be_emptied;
        let (tokens_in, tokens_out) =
            compressed.usage.map_or((0, 0), |usage| (usage.tokens_in, usage.tokens_out));
        self.tokens_in = tokens_in;
        // A compression that saves nothing is undone. So is one that saves little of a text that no retriever chose: a text with gaps is
        // worth less than a whole one.
        let saves_little =
            self.kind != GroupKind::Retrieved && is_open && tokens_out * WORTH.1 > self.tokens_in * WORTH.0;
        if self.is_unrelated || tokens_out >= self.tokens_in || saves_little {
            return self.keep_whole();
        }
        self.tokens_out = tokens_out;
        for outcome in &compressed.chunks {
            let spans = outcome.spans.iter().map(|span| (span.source.start, span.source.end));
            self.kept[outcome.index] = Some(spans.collect());
        }
    }
}

/// The least bytes of a log of which lines are left out: about 6,000 tokens once it is encoded. A model reads shorter ones.
const LOG_BYTES_MIN: usize = 32 << 10;

/// Returns whether sentences may be left out of a result of a tool: of running text, and of a long log. The rows of a table, the values of JSON
/// and the lines of a program matter for reasons that no likeness of words shows.
fn is_running_text(text: &str) -> bool {
    match Layout::detect(text, Kind::Auto).kind {
        Kind::Prose | Kind::Markdown | Kind::Chat | Kind::Html | Kind::Pdf | Kind::Mail | Kind::Subtitles => {
            true
        }
        Kind::Log => text.len() >= LOG_BYTES_MIN,
        Kind::Auto | Kind::Code | Kind::Json | Kind::Table => false,
    }
}

/// Returns the budget of a group with so many of all bytes: of a number of tokens, its share.
fn budget_of(budget: Budget, bytes: usize, bytes_of_all: usize) -> Budget {
    match budget.at_most {
        Some(AtMost::Tokens(tokens)) => {
            let share = tokens_of_share(tokens, bytes, bytes_of_all);
            Budget { at_most: Some(AtMost::Tokens(share)), ..budget }
        }
        Some(AtMost::Ratio(_)) | None => budget,
    }
}

/// Returns the tokens that so many of all bytes get; at least one.
fn tokens_of_share(tokens: usize, bytes: usize, bytes_of_all: usize) -> usize {
    let share = tokens as u128 * bytes as u128 / bytes_of_all.max(1) as u128;
    usize::try_from(share).unwrap_or(usize::MAX).max(1)
}

/// The share of the time until the deadline that may be spent on reading.
const READING_SHARE: f64 = 0.8;

/// Keeps the groups whole that cannot be read before the deadline, at the speed that was measured, and returns their texts. Waiting for them
/// would cost the time and gain nothing. The groups are read in their order, as far as there is time.
fn skip_late(fitted: &mut [Fitted], compressor: Compressor, cancel: &Cancel) -> Vec<Arc<Chunk>> {
    let pipeline = compressor.pipeline;
    let Some(mut time) = cancel.time_left().map(|left| left.mul_f64(READING_SHARE)) else {
        return Vec::new();
    };
    let bytes = fitted.iter().filter(|group| group.request.is_some()).map(|group| group.bytes).sum();
    if pipeline.time_to_read(bytes) <= time {
        return Vec::new();
    }
    let mut late = Vec::new();
    for group in fitted.iter_mut().filter(|group| group.prepared.is_none()) {
        let Some(request) = &group.request else { continue };
        let needed = pipeline.time_to_read(pipeline.bytes_to_read(&request.chunks, cancel));
        match time.checked_sub(needed) {
            Some(left) => time = left,
            None => {
                late.extend(group.request.take().into_iter().flat_map(|request| request.chunks));
                (group.is_late, group.tokens_in) = (true, group.bytes / BYTES_PER_TOKEN);
                group.keep_whole();
            }
        }
    }
    late
}

/// Keeps more of the groups, with their best units, until they have `least` tokens together.
fn fill(
    fitted: &mut [Fitted],
    least: usize,
    compressor: Compressor,
    cancel: &Cancel,
) -> Result<(), PipelineError> {
    let mut tokens_out: usize = fitted.iter().map(|group| group.tokens_out).sum();
    for group in fitted {
        if tokens_out >= least {
            break;
        }
        // Nothing that is unrelated is sent only to reach a length.
        if group.tokens_out >= group.tokens_in || group.related == Some(false) {
            continue;
        }
        let others = tokens_out - group.tokens_out;
        group.fit(Budget { at_least: least - others, ..compressor.options.budget }, compressor, cancel)?;
        tokens_out = others + group.tokens_out;
    }
    Ok(())
}

pub(super) fn add_tokens(tokens: &mut Option<(usize, usize)>, before: usize, after: usize) {
    let (all_before, all_after) = tokens.unwrap_or_default();
    *tokens = Some((all_before + before, all_after + after));
}
