//! A conversation with its pieces compressed: what changes in its body, and what of each source the model will see.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thresher_core::domain::{
    Budget, ByteRange, Chunk, CompressRequest, Format, Granularity, KeptSpan, TokenizerName,
};
use thresher_core::pipeline::assemble;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, PipelineError};

use super::dialect::{Dialect, Kind};
use super::find::{self, Piece, Turn};
use super::json::{Edits, Located};

/// Stands where all of a text was left out: an empty one is refused by some servers.
const NOTHING_KEPT: &str = "[...]";

/// What is not compressed is not counted, but taken to have a token for so many bytes: rather too few tokens than too many.
const BYTES_PER_TOKEN: usize = 6;

/// How pieces are compressed.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// How much may be kept of a turn.
    pub budget: Budget,
    /// What is kept or dropped as a whole.
    pub granularity: Granularity,
    /// Prompts are not brought below so many tokens, and shorter ones go whole: a provider's cache takes no shorter ones.
    pub prompt_tokens_min: usize,
    /// The question, where it is not the last thing that the user has said.
    pub query: Option<String>,
}

/// Texts that a request brings beside its conversation: a context is put in front of the user's last message.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Brought {
    /// The texts.
    pub chunks: Vec<Arc<Chunk>>,
    /// What stands around the context.
    pub delimiters: (String, String),
}

/// Bytes of a text, from and to, ascending.
type Spans = Vec<(usize, usize)>;

/// What was sent of a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// How it was compressed, as [`Way::name`] has it.
    way: String,
    /// For each piece what was kept of it; none: all.
    kept: Vec<Option<Spans>>,
}

/// Knows what was sent of turns.
pub trait Ledger {
    /// What was sent of the turn with this key.
    fn get(&self, key: &[u8; 32]) -> Option<Sent>;
}

/// A text that an answer may have come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// The text, called as the conversation calls it.
    pub chunk: Arc<Chunk>,
    /// What it is, where the conversation has it.
    pub kind: Option<Kind>,
    /// What the model sees of it.
    pub seen: Vec<ByteRange>,
}

/// What becomes of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rewritten {
    /// Strings that are shorter now.
    pub shortened: Vec<Shortened>,
    /// What is put in beside them.
    pub added: Edits,
    /// Tokens of all pieces (`o200k_base`) before and after, where some are compressed.
    pub tokens: Option<(usize, usize)>,
    /// What an answer may have come from.
    pub sources: Vec<Source>,
    /// What the ledger is to be told once this has been sent.
    pub news: Vec<([u8; 32], Sent)>,
    /// Bytes of the sources that the model sees.
    seen_bytes: usize,
}

/// A string of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortened {
    /// Where it stands.
    pub at: Range<usize>,
    /// What it said.
    pub original: String,
    /// What it says now.
    pub text: String,
    /// Whether it is JSON, and has to stay that.
    pub is_json: bool,
}

impl Rewritten {
    fn source(&mut self, source: Source) {
        self.seen_bytes += source.seen.iter().map(|bytes| bytes.len()).sum::<usize>();
        self.sources.push(source);
    }

    /// What changes in the body.
    pub fn edits(&self) -> Edits {
        let mut edits = self.added.clone();
        for Shortened { at, text, .. } in &self.shortened {
            edits.replace(at.clone(), Value::from(text.as_str()).to_string());
        }
        edits
    }
}

impl Way {
    /// The same name for the same way.
    pub fn name(&self) -> String {
        format!("{:?} {:?} {} {:?}", self.budget, self.granularity, self.prompt_tokens_min, self.query)
    }
}

/// Who compresses, and how.
#[derive(Clone, Copy)]
pub struct By<'a> {
    /// The way.
    pub way: &'a Way,
    /// Bytes of what the conversation says beside its pieces.
    pub said_bytes: usize,
    /// Who.
    pub pipeline: &'a Pipeline,
}

/// What becomes of the newest turn.
#[derive(Clone, Copy)]
pub enum Newest<'a> {
    /// It is compressed.
    Compressed(By<'a>),
    /// It goes as it went before, whole if it did not.
    AsKnown,
    /// It goes whole.
    Whole,
}

/// What is sent of the newest turn of a conversation. Of other turns the ledger says what was sent; they stay whole where it does not
/// know. What is brought stands with what the user asked last, and belongs to this request alone.
///
/// # Errors
/// As [`Pipeline::compress`] where it is compressed; where it is not, only that of `cancel`, which is asked before every turn.
pub fn newest(
    (dialect, body): (Dialect, Located),
    turns: &[Turn],
    brought: &Brought,
    ledger: &dyn Ledger,
    (how, cancel): (Newest, &Cancel),
) -> Result<Rewritten, PipelineError> {
    let mut out = Rewritten::default();
    let mut names = Names::default();
    let none = Brought::default();
    let by = match how {
        Newest::Compressed(by) => Some(by),
        Newest::AsKnown | Newest::Whole => None,
    };
    // The name quotes the question: it is written once, not for every turn.
    let way = by.map(|by| by.way.name()).unwrap_or_default();
    let asking = last_asking(turns);
    for (at, turn) in turns.iter().enumerate() {
        cancel.check()?;
        let newest = at + 1 == turns.len();
        let brought = if asking == Some(at) { brought } else { &none };
        let chunks: Vec<Arc<Chunk>> = turn.pieces.iter().map(|piece| names.chunk(piece)).collect();
        let work = Work { turn, chunks: &chunks, brought, sent_bytes: out.seen_bytes, way: &way, cancel };
        let known = ledger.get(&turn.key).filter(|sent| sent.fits(turn));
        let stays = match (&known, how) {
            (Some(_), _) if !newest => true,
            (Some(sent), Newest::Compressed(_)) => sent.way == way,
            (Some(_), Newest::AsKnown) => true,
            (Some(_), Newest::Whole) => false,
            (None, _) => !newest && !turn.stands,
        };
        let (sent, of_brought) = match by {
            Some(by) if !stays || !brought.chunks.is_empty() => work.compress(by, &mut out.tokens)?,
            _ => work.whole(),
        };
        let sent = match (stays, known) {
            (true, Some(known)) => {
                if let Some(by) = by.filter(|_| brought.chunks.is_empty()) {
                    work.count(&known, by, &mut out.tokens)?;
                }
                known
            }
            (true, None) => work.whole().0,
            (false, known) => {
                // A turn that nobody has shortened is known to be whole.
                if known.is_some() || turn.stands || sent.kept.iter().any(Option::is_some) {
                    out.news.push((turn.key, sent.clone()));
                }
                sent
            }
        };
        place(body, turn, (&chunks, &sent), &mut out);
        bring((dialect, body), turn, (brought, &of_brought), &mut out);
    }
    Ok(out)
}

/// A conversation as it came; only what is brought is put into it.
pub fn whole((dialect, body): (Dialect, Located), turns: &[Turn], brought: &Brought) -> Rewritten {
    let mut out = Rewritten::default();
    if let Some(asking) = last_asking(turns) {
        let all: Vec<Spans> = brought.chunks.iter().map(|chunk| vec![(0, chunk.text.len())]).collect();
        bring((dialect, body), &turns[asking], (brought, &all), &mut out);
    }
    out
}

fn last_asking(turns: &[Turn]) -> Option<usize> {
    turns.iter().rposition(|turn| turn.asked_at.is_some())
}

/// Compresses every turn of a conversation, each as if it were the newest.
///
/// # Errors
/// As [`Pipeline::compress`]; `cancel` is asked before every turn.
pub fn all(body: Located, turns: &[Turn], by: By, cancel: &Cancel) -> Result<Rewritten, PipelineError> {
    let mut out = Rewritten::default();
    let mut names = Names::default();
    let way = by.way.name();
    for turn in turns {
        cancel.check()?;
        let chunks: Vec<Arc<Chunk>> = turn.pieces.iter().map(|piece| names.chunk(piece)).collect();
        let (brought, sent_bytes) = (&Brought::default(), out.seen_bytes);
        let work = Work { turn, chunks: &chunks, brought, sent_bytes, way: &way, cancel };
        let (sent, _) = work.compress(by, &mut out.tokens)?;
        place(body, turn, (&chunks, &sent), &mut out);
    }
    Ok(out)
}

impl Sent {
    /// Whether it can be what was sent of this turn.
    fn fits(&self, turn: &Turn) -> bool {
        let inside = |(kept, piece): (&Option<Spans>, &Piece)| {
            let ends = kept.iter().flatten().all(|&(start, end)| piece.text.get(start..end).is_some());
            let ascends = kept.iter().flatten().is_sorted_by(|a, b| a.1 <= b.0);
            ends && ascends
        };
        self.kept.len() == turn.pieces.len() && self.kept.iter().zip(&turn.pieces).all(inside)
    }
}

/// One turn to compress.
struct Work<'a> {
    turn: &'a Turn,
    chunks: &'a [Arc<Chunk>],
    brought: &'a Brought,
    /// Bytes that are sent of turns in front of it.
    sent_bytes: usize,
    /// The name of the way in which it is compressed.
    way: &'a str,
    cancel: &'a Cancel,
}

impl Work<'_> {
    /// All of it; in no way, so that it is compressed where that is asked for again.
    fn whole(&self) -> (Sent, Vec<Spans>) {
        let all = |chunk: &Arc<Chunk>| vec![(0, chunk.text.len())];
        let sent = Sent { way: String::new(), kept: vec![None; self.turn.pieces.len()] };
        (sent, self.brought.chunks.iter().map(all).collect())
    }

    /// What is kept of the turn's pieces, and of the texts that are brought with it.
    fn compress(
        &self,
        by: By,
        tokens: &mut Option<(usize, usize)>,
    ) -> Result<(Sent, Vec<Spans>), PipelineError> {
        let By { way, said_bytes, pipeline } = by;
        let query = way.query.as_deref().unwrap_or(&self.turn.query);
        let nothing = self.chunks.is_empty() && self.brought.chunks.is_empty();
        // Nobody has asked anything yet: all may matter.
        if nothing || query.trim().is_empty() {
            return Ok(self.whole());
        }
        let all = [self.chunks, &self.brought.chunks].concat();
        let mut request = CompressRequest {
            chunks: renamed(&all),
            budget: way.budget,
            granularity: way.granularity,
            format: Format::Plain,
            tokenizer: TokenizerName::O200kBase,
            ..CompressRequest::new(find::tail(query), Vec::new())
        };
        let usage = |compressed: &thresher_core::pipeline::Compressed| {
            compressed.usage.map_or((0, 0), |usage| (usage.tokens_in, usage.tokens_out))
        };
        let mut compressed = pipeline.compress(&request, self.cancel)?;
        let few = (said_bytes + self.sent_bytes) / BYTES_PER_TOKEN;
        let least = way.prompt_tokens_min;
        // What is brought comes once, and is in nobody's cache.
        if way.budget == Budget::Auto && !self.chunks.is_empty() {
            // A budget is a limit that may not be reached by the length of a sentence, or of many; by a text that is too short by itself,
            // never.
            let steps: &[usize] =
                if usage(&compressed).0 + few < least { &[usize::MAX] } else { &[0, 64, 256, usize::MAX] };
            for &more in steps {
                if usage(&compressed).1 + few >= least {
                    break;
                }
                request.budget = Budget::Tokens((least - few).saturating_add(more));
                compressed = pipeline.compress(&request, self.cancel)?;
            }
        }
        let (before, after) = usage(&compressed);
        add(tokens, (before, after));
        let mut kept = vec![Vec::new(); request.chunks.len()];
        for outcome in &compressed.chunks {
            kept[outcome.index] =
                outcome.spans.iter().map(|span| (span.source.start, span.source.end)).collect::<Vec<_>>();
        }
        let of_brought = kept.split_off(self.chunks.len());
        // A text that loses less than a twentieth stays whole: it could even have a token more.
        let pieces = kept.into_iter().zip(&self.turn.pieces).map(|(kept, piece)| {
            let bytes = ranges(&kept).map(ByteRange::len).sum::<usize>().max(NOTHING_KEPT.len());
            (bytes <= piece.text.len() * 19 / 20).then_some(kept)
        });
        Ok((Sent { way: self.way.to_owned(), kept: pieces.collect() }, of_brought))
    }

    /// Tokens of what was sent before.
    fn count(&self, sent: &Sent, by: By, tokens: &mut Option<(usize, usize)>) -> Result<(), PipelineError> {
        for (piece, kept) in self.turn.pieces.iter().zip(&sent.kept) {
            let Some(kept) = kept else { continue };
            self.cancel.check()?;
            let count = |text: &str| by.pipeline.count(text, TokenizerName::O200kBase);
            add(tokens, (count(&piece.text)?, count(&shortened(piece, kept))?));
        }
        Ok(())
    }
}

fn add(tokens: &mut Option<(usize, usize)>, (before, after): (usize, usize)) {
    let (all_before, all_after) = tokens.unwrap_or_default();
    *tokens = Some((all_before + before, all_after + after));
}

/// Places what is sent of a turn in its body.
fn place(body: Located, turn: &Turn, (chunks, sent): (&[Arc<Chunk>], &Sent), out: &mut Rewritten) {
    type InString<'a> = Vec<(&'a Piece, &'a [(usize, usize)])>;
    let mut strings: Vec<(Range<usize>, InString)> = Vec::new();
    for ((piece, chunk), kept) in turn.pieces.iter().zip(chunks).zip(&sent.kept) {
        let all = [(0, piece.text.len())];
        let seen = ranges(kept.as_deref().unwrap_or(&all)).collect();
        out.source(Source { chunk: Arc::clone(chunk), kind: Some(piece.kind.clone()), seen });
        let Some(kept) = kept else { continue };
        match strings.last_mut() {
            Some((at, pieces)) if *at == piece.at => pieces.push((piece, kept)),
            _ => strings.push((piece.at.clone(), vec![(piece, kept)])),
        }
    }
    let whole = body.range().start;
    for (at, pieces) in strings {
        let written = &body.json()[at.start - whole..at.end - whole];
        let original: String = serde_json::from_str(written).expect("a piece is written in a string");
        let mut edits = Edits::default();
        let is_json = pieces.iter().any(|(piece, _)| piece.quoted);
        for (piece, kept) in pieces {
            let text = shortened(piece, kept);
            edits
                .replace(piece.part.clone(), if piece.quoted { Value::from(text).to_string() } else { text });
        }
        out.shortened.push(Shortened { at, text: edits.apply(&original), original, is_json });
    }
}

/// Puts what is kept of texts that are brought in front of the user's last message.
fn bring(
    (dialect, body): (Dialect, Located),
    turn: &Turn,
    (brought, kept): (&Brought, &[Spans]),
    out: &mut Rewritten,
) {
    let of = |(chunk, spans): (usize, &Spans)| -> Vec<KeptSpan> {
        ranges(spans).map(|range| KeptSpan::unscored(chunk, range)).collect()
    };
    let mut kept: Vec<Vec<KeptSpan>> =
        kept.iter().enumerate().map(of).filter(|spans| !spans.is_empty()).collect();
    let Some(asked) = turn.asked_at.clone().filter(|_| !kept.is_empty()) else { return };
    let spans = kept.iter_mut().map(Vec::as_mut_slice);
    let context = assemble::context(&brought.chunks, spans, Format::Numbered);
    let (start, end) = &brought.delimiters;
    let context = format!("{start}\n{context}\n{end}");
    let whole = body.range().start;
    let message = json!({"role": "user", "content": context});
    let at = &body.json()[asked.start - whole..asked.end - whole];
    match (behind_results(at), dialect.list(body).filter(|list| list.is_list())) {
        // What tools answered has to stand first in its message.
        (Some(offset), _) => {
            let block = json!({"type": "text", "text": context});
            out.added.replace(asked.start + offset..asked.start + offset, format!("{block},"));
        }
        (None, Some(_)) => out.added.replace(asked.start..asked.start, format!("{message},")),
        // The input is one text: it becomes the second of two messages.
        (None, None) => {
            let opening = format!("[{message},{{\"role\":\"user\",\"content\":");
            out.added.replace(asked.start..asked.start, opening);
            out.added.replace(asked.end..asked.end, "}]");
        }
    }
    let source = |kept: Vec<KeptSpan>| Source {
        chunk: Arc::clone(&brought.chunks[kept[0].chunk]),
        kind: None,
        seen: kept.iter().map(|span| span.source).collect(),
    };
    kept.into_iter().map(source).for_each(|source| out.source(source));
}

/// Where in a message with results of tools what is said begins, in bytes.
fn behind_results(message: &str) -> Option<usize> {
    let blocks = Located::parse(message).ok()?.get("content")?.items();
    let (mut behind, mut is_behind) = (None, false);
    for block in blocks {
        if block.text_of("type").as_deref() == Some("tool_result") {
            (behind, is_behind) = (None, true);
        } else if std::mem::take(&mut is_behind) {
            behind = Some(block.range().start);
        }
    }
    behind
}

/// What is left of a piece.
fn shortened(piece: &Piece, kept: &[(usize, usize)]) -> String {
    match (kept.is_empty(), &piece.kind) {
        // What stands around a paragraph says enough.
        (true, Kind::Said) => String::new(),
        (true, _) => NOTHING_KEPT.to_owned(),
        (false, _) => assemble::joined(&piece.text, ranges(kept)),
    }
}

fn ranges(spans: &[(usize, usize)]) -> impl Iterator<Item = ByteRange> {
    spans.iter().map(|&(start, end)| ByteRange::new(start, end))
}

/// Chunks of one request have different ids; what a conversation calls them is told to those who cite.
pub fn renamed(chunks: &[Arc<Chunk>]) -> Vec<Arc<Chunk>> {
    let renamed = |(at, chunk): (usize, &Arc<Chunk>)| {
        let Chunk { title, text, .. } = &**chunk;
        Arc::new(Chunk { id: at.to_string(), title: title.clone(), text: text.clone(), metadata: None })
    };
    chunks.iter().enumerate().map(renamed).collect()
}

/// What chunks are called: by what the conversation calls them, each once.
#[derive(Default)]
struct Names(HashMap<String, usize>);

impl Names {
    fn chunk(&mut self, piece: &Piece) -> Arc<Chunk> {
        let name = match &piece.kind {
            Kind::Document(at, _) => format!("document-{at}"),
            Kind::SearchResult(at, _) => format!("search-result-{at}"),
            Kind::Tool { id, .. } if !id.is_empty() => id.to_string(),
            Kind::Tool { .. } => "tool".to_owned(),
            Kind::Said => "context".to_owned(),
        };
        let count = self.0.entry(name.clone()).or_default();
        *count += 1;
        let id = if *count == 1 { name } else { format!("{name}-{count}") };
        let metadata = piece.source.as_ref().map(|source| json!({"source": &**source}).to_string());
        Arc::new(Chunk {
            id,
            title: piece.title.as_deref().map(str::to_owned),
            text: piece.text.clone(),
            metadata,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::middleware::find::{Policy, turns};

    struct KnowsNothing;

    impl Ledger for KnowsNothing {
        fn get(&self, _: &[u8; 32]) -> Option<Sent> {
            None
        }
    }

    #[test]
    fn a_source_is_counted_once_by_what_is_seen_of_it() {
        let message = |role, content| json!({"role": role, "content": content});
        let turn = |_| [message("user", "When? <c>At noon.</c>"), message("assistant", "A")];
        let text = json!({"messages": (0..7).flat_map(turn).collect::<Vec<_>>()}).to_string();
        let body = Located::parse(&text).expect("JSON");
        let delimiters = Some(("<c>".to_owned(), "</c>".to_owned()));
        let policy = Policy { delimiters, ..Policy::default() };
        let turns = turns(&Dialect::Chat.conversation(body), &policy).turns;
        let chunk = Chunk { id: "b".to_owned(), title: None, text: "Brought.".to_owned(), metadata: None };
        let brought = Brought { chunks: vec![Arc::new(chunk)], ..Brought::default() };
        let how = (Newest::AsKnown, &Cancel::default());
        let known = newest((Dialect::Chat, body), &turns, &brought, &KnowsNothing, how).expect("goes on");
        assert_eq!(known.seen_bytes, 7 * "At noon.".len() + "Brought.".len());
        let whole = whole((Dialect::Chat, body), &turns, &brought);
        assert_eq!((whole.sources.len(), whole.seen_bytes), (1, "Brought.".len()));
        assert_eq!(whole.added, known.added, "what is brought stands in the same place");
    }
}
