//! Compresses the passages of a conversation: which strings of the body change, and what the model will see of each source.

mod pieces;
mod plan;
mod repeated;
mod sent;
mod strings;
mod turn;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};
use thresher_core::domain::{Budget, ByteRange, Chunk, Format, Granularity, KeptSpan, Omissions};
use thresher_core::pipeline::answerable::Answerable;
use thresher_core::pipeline::assemble::{self, Style};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, PipelineError};
use thresher_core::text::outline::Layout;

pub use self::plan::{Extent, TurnPlan, plan};
use self::repeated::SeenResults;
pub use self::sent::SentTurn;
use self::sent::Spans;
use self::strings::{Strings, encode_results};
pub use self::turn::ReadTurns;
use self::turn::{TurnWork, add_tokens};
use super::dialect::{Dialect, PartKind};
use super::find::{CONTEXT_DELIMITERS, CitedRecord, Turn};
use super::json::{Edits, Located};
use super::marks::mark;
use super::records::Names;
use super::settings::Mode;
use super::untouched::ToolKinds;
use crate::error::ErrorCode;

/// The text that replaces a passage of which nothing is kept. Some servers refuse an empty text.
const NOTHING_KEPT: &str = "[...]";

#[derive(Debug, Clone, PartialEq)]
pub struct CompressOptions {
    pub mode: Mode,
    pub budget: Budget,
    pub granularity: Granularity,
    /// The least tokens of a prompt after compression with the automatic budget: a shorter prompt is not compressed at all. Providers do
    /// not cache shorter prompts.
    pub prompt_tokens_min: usize,
    /// The least tokens of a tool result that is compressed.
    pub result_tokens_min: usize,
    /// The question; `None`: the last question of the user.
    pub query: Option<String>,
    /// Whether shortened results of tools end with a mark that names the hash of the original.
    pub marks: bool,
    /// Whether nothing is kept of chunks of a retriever that are not related to the question.
    pub related_only: bool,
    /// The results of tools that stay whole because too much of them was lost before.
    pub off: Arc<ToolKinds>,
}

/// A text that an answer may have come from.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenText {
    /// The text, with an id that names its origin in the conversation.
    pub chunk: Arc<Chunk>,
    /// The kind of text in the conversation; `None`: the request added the chunk.
    pub kind: Option<PartKind>,
    /// The ranges of the text that the model sees.
    pub seen: Vec<ByteRange>,
}

/// The changes of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rewritten {
    /// The strings of the body that become shorter.
    pub shortened: Vec<Shortened>,
    /// The insertions into the body.
    pub added: Edits,
    /// The text that they insert; empty if nothing is added.
    pub added_text: String,
    /// Tokens of all passages before and after compression (`o200k_base`); `None`: nothing was compressed.
    pub tokens: Option<(usize, usize)>,
    /// Whether any text that was compressed for this request is related to its question; `None` if the model does not tell.
    pub related: Option<bool>,
    /// Whether the passages of the newest turn answer its question; `None` if this was not measured.
    pub answerable: Option<Answerable>,
    /// The texts that the answer may have come from.
    pub sources: Vec<SeenText>,
    /// The records of tool results that the answer may have come from, in addition to the sources.
    pub cited_records: Vec<SeenText>,
    /// Keys of turns with what was sent of them, to be stored once the request has been sent.
    pub records: Vec<([u8; 32], SentTurn)>,
    /// The strings of `shortened` that have a mark for the first time.
    new_marks: Vec<usize>,
    /// Tokens of the marks of these strings.
    new_mark_tokens: usize,
    /// Tokens before and after compression of what was compressed for this request: the newest turn, and the added chunks.
    pub newest_tokens: Option<(usize, usize)>,
    /// Whether less is sent of the newest turn, or of the added chunks, than the request has.
    pub is_newest_shorter: bool,
    /// Whether the newest turn is kept whole because the prompt has less than the least tokens.
    pub is_short: bool,
    /// Why texts of the newest turn are kept whole, if some are for one of these reasons.
    pub unshortened: Option<Unshortened>,
    /// The texts that were kept whole because there was no time to read them.
    pub late: Vec<Arc<Chunk>>,
    /// Bytes of the sources that the model sees.
    seen_bytes: usize,
    has_added: bool,
}

/// Why texts are kept whole although they could be shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unshortened {
    /// The user asks for nothing by which a part of a text could be chosen: nothing at all, or something like a summary.
    NoQuestion,
    /// A text is not related to the question.
    Unrelated,
    /// There is no time to read it.
    Late,
}

impl Unshortened {
    /// Returns the value of the header `x-thresher-reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoQuestion => "no_question",
            Self::Unrelated => "unrelated",
            Self::Late => ErrorCode::DeadlineExceeded.as_str(),
        }
    }
}

/// A string of the body that becomes shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortened {
    /// The range of the JSON string in the body, in bytes.
    pub at: Range<usize>,
    pub original: String,
    pub text: String,
    pub is_json: bool,
    /// What is missing of the original, such as `lines 3-16, 20 of 60`; empty for JSON.
    pub left_out: String,
    /// Whether the shortened text ends with a mark.
    pub is_marked: bool,
}

impl Rewritten {
    fn add_source(&mut self, source: SeenText) {
        self.seen_bytes += source.seen.iter().map(|bytes| bytes.len()).sum::<usize>();
        self.sources.push(source);
    }

    /// Returns whether the model gets less text than the request has: a string is shorter, or not all of the added chunks are inserted.
    pub fn is_shorter(&self) -> bool {
        let is_less = self.tokens.is_some_and(|(before, after)| after < before);
        !self.shortened.is_empty() || self.has_added && is_less
    }

    /// Returns the originals of the texts that have a mark for the first time. A request may be sent only if they are stored.
    pub fn newly_marked(&self) -> Vec<String> {
        self.new_marks.iter().map(|&at| self.shortened[at].original.clone()).collect()
    }

    /// Removes the marks of these texts, whose originals cannot be stored.
    pub fn remove_new_marks(&mut self) {
        for at in self.new_marks.drain(..) {
            let string = &mut self.shortened[at];
            let mark = mark(&string.original, &string.left_out);
            string.text.truncate(string.text.len() - mark.len());
            string.is_marked = false;
        }
        self.records.iter_mut().for_each(|(_, sent)| sent.marked = false);
        if let Some((_, after)) = &mut self.tokens {
            *after = after.saturating_sub(std::mem::take(&mut self.new_mark_tokens));
        }
    }

    /// Returns all changes as edits of the body.
    pub fn edits(&self) -> Edits {
        let mut edits = self.added.clone();
        for Shortened { at, text, .. } in &self.shortened {
            edits.replace(at.clone(), Value::from(text.as_str()).to_string());
        }
        edits
    }
}

impl CompressOptions {
    /// Returns a text that is the same for equal options, and never empty.
    pub fn id(&self) -> String {
        let marks = if self.marks { " marked" } else { "" };
        let related = if self.related_only { " related" } else { "" };
        let Self { mode, budget, granularity, prompt_tokens_min, result_tokens_min, query, .. } = self;
        format!(
            "{mode:?} {budget:?} {granularity:?} {prompt_tokens_min} {result_tokens_min} {query:?}{marks}{related}"
        )
    }
}

/// The pipeline and the options with which turns are compressed.
#[derive(Clone, Copy)]
pub struct Compressor<'a> {
    pub options: &'a CompressOptions,
    /// The most tokens of a turn, in place of the budget of the options; `None`: the options hold.
    pub tokens_max: Option<usize>,
    /// Bytes of the conversation's texts outside its passages: see [`super::find::other_text_bytes`].
    pub other_text_bytes: usize,
    /// Whether texts that cannot be read before the deadline are kept whole. If not, the compression fails.
    pub skips_late: bool,
    pub pipeline: &'a Pipeline,
}

#[derive(Clone, Copy)]
pub struct Conversation<'a> {
    pub dialect: Dialect,
    pub body: Located<'a>,
    pub turns: &'a [Turn],
    /// Chunks that the request adds to the conversation, for this request alone. They are inserted as a context before the user's last
    /// message.
    pub added: &'a [Arc<Chunk>],
    /// Whether the answer is cited, and what was sent recorded.
    pub is_cited: bool,
}

/// Carries out a plan. Without a `compressor`, nothing is compressed or counted, and the added context is inserted whole. With what one call
/// has `read`, the next one compresses the same turns to another budget.
///
/// # Errors
/// Fails if [`Pipeline::compress`] fails, and if `cancel` is cancelled, which is checked before every turn.
pub fn rewrite(
    conversation: Conversation<'_>,
    plans: &[TurnPlan],
    compressor: Option<Compressor>,
    read: &mut ReadTurns,
    cancel: &Cancel,
) -> Result<Rewritten, PipelineError> {
    let Conversation { body, turns, .. } = conversation;
    let mut out = Rewritten::default();
    let mut ids = ChunkIds::default();
    // The id quotes the question, so it is built once and not for every turn.
    let options = compressor.map(|compressor| compressor.options.id()).unwrap_or_default();
    let question_at = last_question(turns);
    let mut seen = SeenResults::new(body, conversation.is_cited);
    let bytes_of_turns = |(turn, plan): (&Turn, &TurnPlan)| match plan {
        TurnPlan::Compress { .. } => turn.passages.iter().map(|passage| passage.text.len()).sum(),
        _ => 0,
    };
    let added_bytes: usize = conversation.added.iter().map(|chunk| chunk.text.len()).sum();
    let bytes_of_all = added_bytes + turns.iter().zip(plans).map(bytes_of_turns).sum::<usize>();
    for (at, (turn, plan)) in turns.iter().zip(plans).enumerate() {
        cancel.check()?;
        let added = if question_at == Some(at) { conversation.added } else { &[] };
        let chunks: Vec<Arc<Chunk>> = ids.passages(turn);
        let work = TurnWork {
            turn,
            chunks: &chunks,
            is_compressed: matches!(plan, TurnPlan::Compress { .. }),
            added,
            sent_bytes: out.seen_bytes,
            at,
            bytes_of_all,
            options: &options,
            cancel,
        };
        let has_work = work.is_compressed || !added.is_empty();
        let (mut compressed, kept_of_added) = match compressor.filter(|_| has_work) {
            Some(compressor) => work.compress(compressor, read, &mut out)?,
            None => work.keep_all(),
        };
        let (mut sent, is_recorded, is_new) = match plan {
            TurnPlan::AsBefore(sent) => (Cow::Borrowed(sent), false, false),
            TurnPlan::Whole { is_recorded, is_late } => {
                let whole = SentTurn { late: *is_late, ..work.keep_all().0 };
                (Cow::Owned(whole), *is_recorded || *is_late, false)
            }
            TurnPlan::Encode { is_recorded, is_late } => {
                compressed = SentTurn { late: *is_late, ..work.keep_all().0 };
                encode_results(body, turn, &mut compressed);
                (Cow::Owned(compressed), *is_recorded || *is_late, true)
            }
            TurnPlan::Compress { is_recorded } => {
                // A prompt that is too short for a provider's cache stays as it is.
                if !out.is_short {
                    encode_results(body, turn, &mut compressed);
                }
                compressed.write(turn);
                let is_recorded = *is_recorded || compressed.late;
                (Cow::Owned(compressed), is_recorded, !out.is_short)
            }
        };
        seen.follow(turn, &mut sent, is_new);
        let is_recorded = is_recorded || is_new && sent.is_shortened();
        if is_recorded && conversation.is_cited {
            out.records.extend(sent.by_result(turn));
            out.records.push((turn.key, sent.clone().into_owned()));
        }
        let first = out.shortened.len();
        let strings = Strings { body, turn, sent: &sent };
        strings.apply(&chunks, &mut out);
        let is_new = at + 1 == turns.len() || work.is_compressed;
        out.is_newest_shorter |= is_new && out.shortened.len() > first;
        if let Some(compressor) = compressor {
            work.count(&sent, &out.shortened[first..], &kept_of_added, compressor, &mut out.tokens)?;
            let marked: Vec<usize> =
                (first..out.shortened.len()).filter(|&at| out.shortened[at].is_marked).collect();
            if !marked.is_empty() {
                let tokens = work.mark_tokens(marked.iter().map(|&at| &out.shortened[at]), compressor)?;
                add_tokens(&mut out.tokens, 0, tokens);
                if is_recorded {
                    out.new_marks.extend(marked);
                    out.new_mark_tokens += tokens;
                }
            }
        }
        // Only answers of the middleware are cited, and only what the model has been sent.
        let cited =
            turn.records.iter().filter(|record| conversation.is_cited && is_sent(record, turn, &sent));
        for CitedRecord { text, kind, names } in cited {
            let seen = vec![ByteRange::new(0, text.len())];
            out.cited_records.push(SeenText {
                chunk: ids.chunk(kind, names, text),
                kind: Some(kind.clone()),
                seen,
            });
        }
        add_context(conversation, turn, added, &kept_of_added, &mut out);
    }
    Ok(out)
}

/// Returns what is between ranges, which ascend, and before and behind them in `0..len`.
pub(super) fn gaps(
    ranges: impl Iterator<Item = Range<usize>> + Clone,
    len: usize,
) -> impl Iterator<Item = Range<usize>> {
    let starts = std::iter::once(0).chain(ranges.clone().map(|range| range.end));
    let ends = ranges.map(|range| range.start).chain([len]);
    starts.zip(ends).map(|(start, end)| start..end).filter(|gap| !gap.is_empty())
}

/// Returns whether a record is in what is sent of the rows of its turn. Records of other results are always sent.
fn is_sent(record: &CitedRecord, turn: &Turn, sent: &SentTurn) -> bool {
    let has = |text: &str| text.contains(&record.text);
    turn.passages.iter().zip(&sent.kept).filter(|(passage, _)| !passage.is_quoted && has(&passage.text)).all(
        |(passage, kept)| {
            kept.as_ref().is_none_or(|kept| ranges(kept).any(|range| has(range.slice(&passage.text))))
        },
    )
}

/// Leaves a conversation uncompressed; only the added context is inserted, whole. No text is prepared for citations, however many there are.
pub fn uncompressed(conversation: Conversation<'_>) -> Rewritten {
    let Conversation { turns, added, .. } = conversation;
    let mut out = Rewritten::default();
    if let Some(at) = last_question(turns) {
        let all: Vec<Spans> = added.iter().map(|chunk| vec![(0, chunk.text.len())]).collect();
        add_context(conversation, &turns[at], added, &all, &mut out);
    }
    out
}

fn last_question(turns: &[Turn]) -> Option<usize> {
    turns.iter().rposition(|turn| turn.asked_at.is_some())
}

/// Inserts what is kept of the added chunks before the user's last message.
fn add_context(
    conversation: Conversation<'_>,
    turn: &Turn,
    added: &[Arc<Chunk>],
    kept: &[Spans],
    out: &mut Rewritten,
) {
    let Conversation { dialect, body, .. } = conversation;
    let spans_of = |(chunk, spans): (usize, &Spans)| -> Vec<KeptSpan> {
        ranges(spans).map(|range| KeptSpan::unscored(chunk, range)).collect()
    };
    let mut kept: Vec<Vec<KeptSpan>> =
        kept.iter().enumerate().map(spans_of).filter(|spans| !spans.is_empty()).collect();
    let Some(asked) = turn.asked_at.clone().filter(|_| !kept.is_empty()) else { return };
    let spans = kept.iter_mut().map(Vec::as_mut_slice);
    let layouts: Vec<Arc<Layout>> =
        added.iter().map(|chunk| Arc::new(Layout::detect(&chunk.text, chunk.kind))).collect();
    let style = Style { format: Format::Numbered, titles: true, omissions: Omissions::Auto, tag: None };
    let style = Style::for_chunks(added, style);
    let context = assemble::context(added, &layouts, spans, style);
    let (start, end) = CONTEXT_DELIMITERS;
    let context = format!("{start}\n{context}\n{end}");
    let body_start = body.range().start;
    let message = json!({"role": "user", "content": context});
    let asked_json = &body.json()[asked.start - body_start..asked.end - body_start];
    match (after_tool_results(asked_json), dialect.messages(body).filter(|list| list.is_list())) {
        // Tool results must come first in their message.
        (Some(offset), _) => {
            let block = json!({"type": "text", "text": context});
            out.added.replace(asked.start + offset..asked.start + offset, format!("{block},"));
        }
        (None, Some(_)) => out.added.replace(asked.start..asked.start, format!("{message},")),
        // The input is one string (Responses): it becomes the second of two messages.
        (None, None) => {
            let opening = format!("[{message},{{\"role\":\"user\",\"content\":");
            out.added.replace(asked.start..asked.start, opening);
            out.added.replace(asked.end..asked.end, "}]");
        }
    }
    let source = |kept: Vec<KeptSpan>| SeenText {
        chunk: Arc::clone(&added[kept[0].chunk]),
        kind: None,
        seen: kept.iter().map(|span| span.source).collect(),
    };
    kept.into_iter().map(source).for_each(|source| out.add_source(source));
    out.added_text = context;
}

/// The position in a message, in bytes, of the block after its last tool result; `None`: no block follows a tool result.
fn after_tool_results(message: &str) -> Option<usize> {
    let blocks = Located::parse(message).ok()?.get("content")?.items();
    let (mut position, mut follows_result) = (None, false);
    for block in blocks {
        if block.text_of("type").as_deref() == Some("tool_result") {
            (position, follows_result) = (None, true);
        } else if std::mem::take(&mut follows_result) {
            position = Some(block.range().start);
        }
    }
    position
}

fn ranges(spans: &[(usize, usize)]) -> impl Iterator<Item = ByteRange> {
    spans.iter().map(|&(start, end)| ByteRange::new(start, end))
}

/// Returns the chunks with ids that are unique within one request. Citations use the ids that the chunks had before.
pub fn with_unique_ids(chunks: &[Arc<Chunk>]) -> Vec<Arc<Chunk>> {
    let renamed = |(at, chunk): (usize, &Arc<Chunk>)| {
        let Chunk { title, text, kind, .. } = &**chunk;
        Arc::new(Chunk { title: title.clone(), kind: *kind, ..Chunk::new(at.to_string(), text.clone()) })
    };
    chunks.iter().enumerate().map(renamed).collect()
}

/// Creates chunks from passages and records. Their ids are those of their documents, or name the origin in the conversation, with a number if
/// several have the same origin.
#[derive(Default)]
struct ChunkIds(HashMap<String, usize>);

impl ChunkIds {
    fn passages(&mut self, turn: &Turn) -> Vec<Arc<Chunk>> {
        turn.passages.iter().map(|passage| self.chunk(&passage.kind, &passage.names, &passage.text)).collect()
    }

    fn chunk(&mut self, kind: &PartKind, names: &Names, text: &str) -> Arc<Chunk> {
        let id = names.id.as_deref().map_or_else(|| self.id_of_origin(kind), str::to_owned);
        Arc::new(Chunk {
            title: names.title.as_deref().map(str::to_owned),
            metadata: names.source.as_ref().map(|source| json!({"url": &**source}).to_string()),
            ..Chunk::new(id, text)
        })
    }

    fn id_of_origin(&mut self, kind: &PartKind) -> String {
        let name = match kind {
            PartKind::Document { index, .. } => format!("document-{index}"),
            PartKind::SearchResult { index, .. } => format!("search-result-{index}"),
            PartKind::ToolResult { id, .. } if !id.is_empty() => id.to_string(),
            PartKind::ToolResult { .. } => "tool".to_owned(),
            PartKind::Message => "context".to_owned(),
        };
        let count = self.0.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}-{count}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::middleware::find::{Policy, turns};
    use crate::middleware::untouched::TextKinds;

    /// A conversation of `count` turns, each with one passage.
    pub(super) fn conversation(count: usize) -> String {
        let message = |role, content| json!({"role": role, "content": content});
        let turn = |_| [message("user", "When? <c>At noon.</c>"), message("assistant", "A")];
        json!({"messages": (0..count).flat_map(turn).collect::<Vec<_>>()}).to_string()
    }

    pub(super) fn turns_of(body: Located) -> Vec<Turn> {
        let delimiters = Some(("<c>", "</c>"));
        let policy = Policy { delimiters, ..Policy::default() };
        turns(&Dialect::Chat.conversation(body), &policy, &TextKinds::default()).turns
    }

    #[test]
    fn a_source_is_counted_once_by_what_is_seen_of_it() {
        let text = conversation(7);
        let body = Located::parse(&text).expect("JSON");
        let turns = turns_of(body);
        let chunk = Chunk::new("b", "Added.");
        let added = [Arc::new(chunk)];
        let conversation =
            Conversation { dialect: Dialect::Chat, body, turns: &turns, added: &added, is_cited: true };
        let cancel = Cancel::default();
        let plans = plan(&turns, Extent::AsBefore, "", &|_| None, &cancel).expect("not cancelled");
        let as_before =
            rewrite(conversation, &plans, None, &mut ReadTurns::new(false), &cancel).expect("not cancelled");
        assert_eq!(as_before.seen_bytes, 7 * "At noon.".len() + "Added.".len());
        let whole = uncompressed(conversation);
        assert_eq!((whole.sources.len(), whole.seen_bytes), (1, "Added.".len()));
        assert_eq!(whole.added, as_before.added, "the added context is in the same position");
    }

    #[test]
    fn a_row_that_was_left_out_is_not_cited() {
        let rows: Vec<Value> = (0..9).map(|id| json!({"id": format!("S-{id}"), "shop": "Voss"})).collect();
        let result = json!(rows).to_string();
        let call = json!({"id": "c1", "type": "function", "function": {"name": "sales", "arguments": "{}"}});
        let messages = json!([
            {"role": "user", "content": "Which?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": result},
        ]);
        let text = json!({ "messages": messages }).to_string();
        let policy = Policy { tools: vec!["*".to_owned()], ..Policy::default() };
        let turn = turns(
            &Dialect::Chat.conversation(Located::parse(&text).expect("JSON")),
            &policy,
            &TextKinds::default(),
        )
        .turns
        .pop()
        .expect("a turn");
        let second = result.find(r#"{"id":"S-1""#).expect("a row");
        let kept = vec![(second, second + rows[1].to_string().len())];
        let cited = |kept| {
            let sent = SentTurn { kept: vec![kept], ..SentTurn::whole(&turn) };
            turn.records.iter().filter(|record| is_sent(record, &turn, &sent)).count()
        };
        assert_eq!((cited(None), cited(Some(kept)), cited(Some(Vec::new()))), (9, 1, 0));
    }
}
