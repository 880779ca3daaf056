//! Finds the turns of a conversation, the passages in them that may be compressed, and the question that each turn is compressed for.
//!
//! A turn is the messages between two answers of the model. Its passages are compressed when the turn is the newest one, for the last
//! question of the user. Later requests resend them byte-identically, so that the provider's prompt cache keeps hitting. Instructions apply
//! to the whole conversation and are a turn of their own, which is new whenever their text changes.

use std::cell::LazyCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use blake3::Hasher;
use thiserror::Error;
use thresher_core::text;
pub use thresher_core::text::intent::Wants;
use thresher_core::text::intent::wants;

use super::dialect::{Conversation, Message, PART_COUNT_MAX, Part, PartKind, Role};
use super::json::Located;
use super::question;
use super::records::{Claims, Names, Records};
use super::untouched::{self, TextKind, TextKinds};
use crate::error::ErrorCode;

/// The least bytes of a string in a JSON tool result that is compressed. Shorter strings are names, dates or addresses.
const JSON_STRING_BYTES_MIN: usize = 200;

/// The most bytes of titles, sources, and names and ids of tools, counted for each text and each passage that has them: thousands of texts
/// may share one long title.
const NAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The most bytes of records of one turn. The model has to read them before an answer is cited, although nothing is saved by it.
const RECORD_BYTES_MAX: usize = 16 * 1024;

/// The most bytes of the user's text that are read as the question. They are taken from the end, where the question usually is.
pub const QUERY_BYTES_MAX: usize = 1_000;

/// The delimiters before and after a context inside a message. Programs write them themselves, so one pair is enough.
pub const CONTEXT_DELIMITERS: (&str, &str) = ("<context>", "</context>");

/// Which texts of a conversation may be compressed, in addition to documents and search results.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Names of tools whose results may be compressed, in any spelling; `*`: all tools, except those of `tools_untouched` and those that
    /// [`untouched`] knows.
    pub tools: Vec<String>,
    /// Names of further tools whose results are not compressed unless `tools` names them.
    pub tools_untouched: Vec<String>,
    /// The delimiters before and after a context inside a message; `None`: no context is looked for.
    pub delimiters: Option<(&'static str, &'static str)>,
    /// Whether documents and search results are not compressed, because the upstream cites positions in them.
    pub keeps_documents: bool,
    /// Tokens below which the result of a tool is sent as it is.
    pub result_tokens_min: usize,
    pub bounds: Bounds,
}

impl Policy {
    /// Returns whether the result of a call of this tool may be compressed.
    fn may_compress(&self, name: &str, arguments: Option<&str>) -> bool {
        let is_all = self.tools.iter().any(|tool| tool == "*");
        let is_untouched = || {
            untouched::is_untouched(name)
                || untouched::is_named(name, &self.tools_untouched)
                || arguments.is_some_and(|arguments| untouched::prints_file(name, arguments))
        };
        untouched::is_named(name, &self.tools) || is_all && !is_untouched()
    }

    /// Returns whether a result of this tool may be encoded, unless its text is [quoted](TextKind::is_quoted). A file that a model may edit is sent as it is, since an edit quotes it.
    fn may_encode(&self, name: &str, arguments: Option<&str>) -> bool {
        let is_edited = || {
            untouched::is_untouched(name) && !untouched::lists(name)
                || untouched::is_named(name, &self.tools_untouched)
                || arguments.is_some_and(|arguments| untouched::prints_file(name, arguments))
        };
        untouched::is_named(name, &self.tools) || !is_edited()
    }

    /// Returns whether a result of this tool need not be sent where the model has its text already.
    fn may_refer(&self, name: &str) -> bool {
        untouched::is_named(name, &self.tools) || !untouched::is_named(name, &self.tools_untouched)
    }
}

/// The limits of a conversation. A conversation over a limit is not compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub turn_count_max: usize,
    pub piece_count_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { turn_count_max: 2_000, piece_count_max: 20_000 }
    }
}

/// The limit that a conversation exceeds, which is why it is not compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TooMany {
    #[error(
        "the conversation has more than {PART_COUNT_MAX} messages, texts and tool calls; send a shorter conversation"
    )]
    Parts,
    #[error("the conversation has too many turns; the limit is {0}")]
    Turns(usize),
    #[error("the conversation has too many texts that can be compressed; the limit is {0}")]
    Passages(usize),
    #[error(
        "titles, sources, and names and ids of tools have more than {NAME_BYTES_MAX} bytes, counted for each text that has them; shorten them"
    )]
    NameBytes,
}

impl TooMany {
    /// Returns the code of the limit in error bodies.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Parts | Self::Turns(_) | Self::Passages(_) => ErrorCode::TooMany,
            Self::NameBytes => ErrorCode::TooLong,
        }
    }

    /// Returns the value of the header `x-thresher-reason`. A forwarded request has no other place that says which limit it is.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Parts => "too_many_parts",
            Self::Turns(_) => "too_many_turns",
            Self::Passages(_) => "too_many_texts",
            Self::NameBytes => "too_long_names",
        }
    }
}

/// A text of a conversation that may be compressed.
#[derive(Debug, Clone)]
pub struct Passage {
    /// The range of the JSON string in the body that contains the passage, in bytes.
    pub string: Range<usize>,
    /// The range of the passage in the decoded text of that string, in bytes.
    pub range: Range<usize>,
    /// Whether the passage is a JSON string, in quotes, inside the text: the text is then itself JSON.
    pub is_quoted: bool,
    /// The text of the passage, decoded.
    pub text: String,
    /// The kind of text that contains the passage.
    pub kind: PartKind,
    /// The names of the document, search result, record of a tool result, or paragraph.
    pub names: Names,
    /// For results of tools, what the model wanted of the tool: the last sentence before the call, and the texts in its arguments.
    pub wanted: Arc<str>,
}

/// A record of a tool result that is JSON. It is never compressed; answers may cite its short values.
#[derive(Debug, Clone)]
pub struct CitedRecord {
    /// The JSON of the record, without long strings and the records inside it.
    pub text: String,
    /// The kind of text that contains the record.
    pub kind: PartKind,
    pub names: Names,
}

/// The result of a tool that may be written with fewer tokens, without loss.
#[derive(Debug, Clone)]
pub struct ToolResult {
    /// The range of the JSON string in the body, in bytes.
    pub string: Range<usize>,
    pub tool: Arc<str>,
    /// The beginning of the first line that is not blank.
    pub begins: String,
    pub text_hash: [u8; 32],
    /// A hash of the call and the text: the key of how the result was sent, whatever is before it in the conversation.
    pub key: [u8; 32],
    /// Whether the text may be encoded.
    pub may_encode: bool,
    /// Whether an earlier result with the same text may stand for it.
    pub may_refer: bool,
}

/// How many texts before a question are kept for it.
const HISTORY_TEXTS_MAX: usize = 8;

/// The messages between two answers of the model, or the instructions.
#[derive(Debug, Clone)]
pub struct Turn {
    /// A hash of the conversation up to the end of the turn. For instructions, a hash of their text and of the first message.
    pub key: [u8; 32],
    pub is_instructions: bool,
    /// The question that the turn is compressed for: the end of the user's last text up to the end of the turn that asks for something. For
    /// instructions, of the whole conversation.
    pub query: String,
    pub wants: Wants,
    /// The newest texts of the user and the model before the question, oldest first.
    pub history: Vec<Arc<str>>,
    /// The passages in the order of the conversation.
    pub passages: Vec<Passage>,
    /// The records of tool results, which are cited but not compressed.
    pub records: Vec<CitedRecord>,
    pub results: Vec<ToolResult>,
    /// The range of the last message with a question in the turn, in bytes of the body.
    pub asked_at: Option<Range<usize>>,
}

#[derive(Debug, Clone, Default)]
pub struct Turns {
    /// The turns: instructions first, the newest turn last. If the conversation is over a limit, only the turn with the last question,
    /// without passages.
    pub turns: Vec<Turn>,
    /// The limit that the conversation exceeds.
    pub too_many: Option<TooMany>,
}

/// Finds the turns of a conversation and the passages that `policy` allows to compress.
pub fn turns(conversation: &Conversation, policy: &Policy, kinds: &TextKinds) -> Turns {
    match within_bounds(conversation, policy, kinds) {
        Ok(turns) => Turns { turns, too_many: None },
        Err(too_many) => {
            let last = conversation.messages.iter().rev().find_map(|message| question_turn(message, policy));
            Turns { turns: last.into_iter().collect(), too_many: Some(too_many) }
        }
    }
}

fn within_bounds(
    conversation: &Conversation,
    policy: &Policy,
    kinds: &TextKinds,
) -> Result<Vec<Turn>, TooMany> {
    if conversation.is_cut {
        return Err(TooMany::Parts);
    }
    let mut finder = PassageFinder {
        policy,
        kinds,
        passage_count: 0,
        name_bytes: 0,
        record_count: 0,
        record_name_bytes: 0,
        stated: Arc::default(),
    };
    let mut instructions = Turn::new(true);
    let mut turns: Vec<Turn> = Vec::new();
    let mut hasher = Hasher::new_derive_key("thresher 2026 conversation 1");
    let (mut question, mut answered) = (Question::default(), true);
    let (mut said, mut history) = (VecDeque::new(), Vec::new());
    let messages = &conversation.messages;
    // Checked first, because hashing takes each name once for every text that has it.
    messages.iter().flat_map(|message| &message.parts).try_for_each(|part| finder.count_names(part))?;
    let begins = messages.iter().position(|message| message.role != Role::System).unwrap_or(messages.len());
    let (instructing, messages) = messages.split_at(begins);
    let mut beginning = hasher.clone();
    instructing.iter().chain(messages.first()).for_each(|message| hash(&mut beginning, message));
    for part in instructing.iter().flat_map(|message| &message.parts) {
        finder.passages(part, &mut instructions)?;
    }
    instructions.key = *beginning.finalize().as_bytes();
    for message in messages {
        hash(&mut hasher, message);
        if message.role == Role::Assistant {
            // A message without text is part of the answer before it, such as a call in Responses.
            if let Some(stated) = last_sentence(message) {
                finder.stated = stated;
            }
            answered = true;
            answer_text(message).into_iter().for_each(|text| remember(&mut said, text));
            continue;
        }
        if std::mem::take(&mut answered) {
            if turns.len() == policy.bounds.turn_count_max {
                return Err(TooMany::Turns(policy.bounds.turn_count_max));
            }
            turns.push(Turn::new(false));
        }
        let turn = turns.last_mut().expect("a turn was just pushed");
        let mut user_text = String::new();
        for part in &message.parts {
            let rest = finder.passages(part, turn)?;
            append_user_text(message, part, &rest, &mut user_text);
        }
        if let Some(text) = asked_text(&user_text) {
            history = said.iter().cloned().collect();
            question.follow(&text, &finder.stated);
            remember(&mut said, Arc::from(tail(&text)));
            finder.stated = Arc::default();
            turn.asked_at = Some(message.at.range());
        }
        turn.query = question.query();
        turn.wants = question.wants;
        turn.history.clone_from(&history);
        turn.key = *hasher.finalize().as_bytes();
    }
    (instructions.query, instructions.wants, instructions.history) =
        (question.query(), question.wants, history);
    if !instructions.passages.is_empty() {
        turns.insert(0, instructions);
    }
    Ok(turns)
}

/// The turn of a message with a question of the user, without passages; `None`: the message has no question.
fn question_turn(message: &Message, policy: &Policy) -> Option<Turn> {
    let mut user_text = String::new();
    for part in &message.parts {
        let rest = outside_contexts(&part.text, policy, |_| Ok(())).unwrap_or_default();
        append_user_text(message, part, &rest, &mut user_text);
    }
    let query = tail(&asked_text(&user_text)?);
    Some(Turn { query, asked_at: Some(message.at.range()), ..Turn::new(false) })
}

/// Appends `rest`, the text of `part` outside contexts, if the user wrote it.
fn append_user_text(message: &Message, part: &Part, rest: &str, user_text: &mut String) {
    if message.role == Role::User && part.kind == PartKind::Message {
        user_text.push_str(if user_text.is_empty() { "" } else { "\n" });
        user_text.push_str(rest);
    }
}

/// Appends a text to the newest texts of a conversation.
fn remember(said: &mut VecDeque<Arc<str>>, text: Arc<str>) {
    if said.len() == HISTORY_TEXTS_MAX {
        said.pop_front();
    }
    said.push_back(text);
}

/// Returns the text of an answer of the model, which is read before the next question; `None` if it has none or is too
/// long to be read.
fn answer_text(message: &Message) -> Option<Arc<str>> {
    let parts = message.parts.iter().filter(|part| part.kind == PartKind::Message);
    let text = parts.map(|part| part.text.trim()).collect::<Vec<_>>().join("\n");
    (!text.is_empty() && text.len() <= QUERY_BYTES_MAX).then(|| Arc::from(text))
}

/// Returns what a person wrote of the user's text; `None` if it is nothing.
fn asked_text(user_text: &str) -> Option<String> {
    let written = question::written(user_text);
    let written = written.trim();
    (!written.is_empty()).then(|| written.to_owned())
}

/// Returns the end of the last text of the model before a call or an answer of the user.
fn last_sentence(message: &Message) -> Option<Arc<str>> {
    let text = message.parts.iter().rev().find(|part| !part.text.trim().is_empty())?.text.trim();
    let far = &text[text.ceil_char_boundary(text.len().saturating_sub(STATED_BYTES_MAX))..];
    let last = text::sentences(far).last().map_or(far, |sentence| sentence.slice(far));
    Some(Arc::from(last.trim()))
}

/// The most bytes of what the model said before a call that are read.
const STATED_BYTES_MAX: usize = 300;

/// The question of the user so far.
#[derive(Default)]
struct Question {
    text: String,
    /// What the model proposed and the user agreed to since.
    agreed: Arc<str>,
    wants: Wants,
}

impl Question {
    /// Takes a text of the user, of which the end may be the question. If it only agrees to what the model `stated`, the question before
    /// it still holds, together with this.
    fn follow(&mut self, text: &str, stated: &Arc<str>) {
        let end = tail(text);
        // An instruction may stand before a long text as well as behind it.
        let begin = &text[..text.floor_char_boundary(INSTRUCTION_BYTES_MAX)];
        let wants = match wants(&end) {
            Wants::Parts | Wants::Rows if end.len() < text.len() && self::wants(begin) == Wants::Whole => {
                Wants::Whole
            }
            wants => wants,
        };
        if wants == Wants::Nothing && !self.text.is_empty() && self.wants != Wants::Nothing {
            self.agreed = Arc::clone(stated);
            if self::wants(stated) == Wants::Whole {
                self.wants = Wants::Whole;
            }
            return;
        }
        *self = Self { text: end, agreed: Arc::default(), wants };
    }

    /// Returns the question together with what the user agreed to.
    fn query(&self) -> String {
        format!("{} {}", self.text, self.agreed).trim().to_owned()
    }
}

/// The most bytes at the beginning of a text that are read as an instruction.
const INSTRUCTION_BYTES_MAX: usize = 500;

/// Returns the bytes of all texts of a conversation outside the passages of `turns`.
pub fn other_text_bytes(conversation: &Conversation, turns: &[Turn]) -> usize {
    let all: usize = conversation.messages.iter().flat_map(|m| &m.parts).map(|part| part.text.len()).sum();
    let passages: usize =
        turns.iter().flat_map(|turn| &turn.passages).map(|passage| passage.text.len()).sum();
    all.saturating_sub(passages)
}

impl Turn {
    /// Returns the passages of each string of the body that has some, by their indexes.
    pub fn strings(&self) -> Vec<Range<usize>> {
        let mut strings: Vec<Range<usize>> = Vec::new();
        for (at, passage) in self.passages.iter().enumerate() {
            match strings.last_mut() {
                Some(string) if self.passages[string.start].string == passage.string => string.end = at + 1,
                _ => strings.push(at..at + 1),
            }
        }
        strings
    }

    fn new(is_instructions: bool) -> Self {
        Self {
            key: [0; 32],
            is_instructions,
            query: String::new(),
            wants: Wants::Parts,
            history: Vec::new(),
            passages: Vec::new(),
            records: Vec::new(),
            results: Vec::new(),
            asked_at: None,
        }
    }
}

/// Finds the passages of a conversation, and counts them against the limits.
struct PassageFinder<'a> {
    policy: &'a Policy,
    kinds: &'a TextKinds,
    passage_count: usize,
    name_bytes: usize,
    record_count: usize,
    record_name_bytes: usize,
    /// What the model said last.
    stated: Arc<str>,
}

impl Passage {
    /// Returns the key of a tool's result by its call, its passages and the question, whatever is before it in the conversation; `None` for
    /// other texts: the same document may be in many conversations, and sent whole in some of them.
    pub fn key_of_result(passages: &[Self], question: &str) -> Option<[u8; 32]> {
        let mut hasher = Hasher::new_derive_key("thresher 2026 result 1");
        hasher.update(&(question.len() as u64).to_le_bytes());
        hasher.update(question.as_bytes());
        for passage in passages {
            let PartKind::ToolResult { id, .. } = &passage.kind else { return None };
            for text in [&**id, &passage.text] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        Some(*hasher.finalize().as_bytes())
    }
}

impl Passage {
    /// Returns whether the call whose result the passage is has an id that no other conversation has: one with letters and digits at
    /// random, and not `call_0`.
    pub fn has_unique_call(&self) -> bool {
        let PartKind::ToolResult { id, .. } = &self.kind else { return false };
        let end: Vec<u8> = id.bytes().rev().take(8).collect();
        end.len() == 8
            && end.iter().all(u8::is_ascii_alphanumeric)
            && end.iter().any(u8::is_ascii_digit)
            && end.iter().any(u8::is_ascii_alphabetic)
    }
}

impl PassageFinder<'_> {
    /// Appends the passages and records of `part` to `turn`. Returns the text of a message part outside its contexts.
    fn passages(&mut self, part: &Part, turn: &mut Turn) -> Result<String, TooMany> {
        let whole = || Excerpt { range: 0..part.text.len(), text: part.text.clone(), is_quoted: false };
        let found = &mut turn.passages;
        let of_part = || Names { id: None, title: part.title.clone(), source: part.source.clone() };
        match &part.kind {
            PartKind::Document { .. } | PartKind::SearchResult { .. } if self.policy.keeps_documents => {}
            PartKind::Document { .. } | PartKind::SearchResult { .. } => {
                self.passage(part, whole(), of_part(), found)?;
            }
            PartKind::ToolResult { name, id } => {
                let kind = LazyCell::new(|| self.kinds.of(&part.text));
                let is_long = thresher_codec::estimate(&part.text) >= self.policy.result_tokens_min;
                let may_encode = is_long && self.policy.may_encode(name, part.arguments.as_deref());
                turn.results.push(ToolResult {
                    string: part.at.range(),
                    tool: Arc::clone(name),
                    begins: beginning(&part.text),
                    text_hash: *blake3::hash(part.text.as_bytes()).as_bytes(),
                    key: key_of_result(id, &part.text),
                    may_encode: may_encode && !kind.is_some_and(TextKind::is_quoted),
                    may_refer: is_long && self.policy.may_refer(name),
                });
                if self.policy.may_compress(name, part.arguments.as_deref()) {
                    match parse_json(&part.text) {
                        Some(json) => {
                            let records = Records::find(&part.text, json, JSON_STRING_BYTES_MIN);
                            let mut strings = json.strings(JSON_STRING_BYTES_MIN).peekable();
                            // Rows of values are compressed as rows; longer texts in JSON each by itself.
                            if strings.peek().is_none() && has_rows(json, 0) && kind.is_none() {
                                self.passage(part, whole(), of_part(), found)?;
                            }
                            for string in strings {
                                let names = records.names_at(string.range().start);
                                let excerpt = Excerpt::decode(part, string.range());
                                if let Some(excerpt) =
                                    excerpt.filter(|excerpt| self.kinds.of(&excerpt.text).is_none())
                                {
                                    self.passage(part, excerpt, names, found)?;
                                }
                            }
                            self.records(part, records, &mut turn.records);
                        }
                        None if kind.is_none() => self.passage(part, whole(), of_part(), found)?,
                        None => {}
                    }
                }
            }
            PartKind::Message => {
                let mut claims = Claims::default();
                return outside_contexts(&part.text, self.policy, |range| {
                    let names = claims.claim(Names::of_paragraph(&part.text[range.clone()]));
                    let text = part.text[range.clone()].to_owned();
                    self.passage(part, Excerpt { range, text, is_quoted: false }, names, found)
                });
            }
        }
        Ok(String::new())
    }

    /// Appends the records that fit within the limits. They are counted by themselves, so that no passage exceeds a limit because of them.
    fn records(&mut self, part: &Part, records: Records, found: &mut Vec<CitedRecord>) {
        let mut bytes: usize = found.iter().map(|record| record.text.len()).sum();
        for record in records.into_records() {
            let Some(text) = record.text else { continue };
            let name_bytes = part.name_bytes() + record.names.bytes();
            if self.record_count < self.policy.bounds.piece_count_max
                && bytes + text.len() <= RECORD_BYTES_MAX
                && self.record_name_bytes + name_bytes <= NAME_BYTES_MAX
            {
                self.record_count += 1;
                self.record_name_bytes += name_bytes;
                bytes += text.len();
                found.push(CitedRecord { text, kind: part.kind.clone(), names: record.names });
            }
        }
    }

    fn passage(
        &mut self,
        part: &Part,
        Excerpt { range, text, is_quoted }: Excerpt,
        names: Names,
        found: &mut Vec<Passage>,
    ) -> Result<(), TooMany> {
        let is_result = matches!(part.kind, PartKind::ToolResult { .. });
        if self.passage_count == self.policy.bounds.piece_count_max {
            return Err(TooMany::Passages(self.passage_count));
        }
        self.passage_count += 1;
        self.count_names(part)?;
        let wanted = match &part.arguments {
            _ if !is_result => Arc::default(),
            Some(arguments) => format!("{} {arguments}", self.stated).trim().into(),
            None => Arc::clone(&self.stated),
        };
        found.push(Passage {
            string: part.at.range(),
            range,
            is_quoted,
            text,
            kind: part.kind.clone(),
            names,
            wanted,
        });
        Ok(())
    }

    fn count_names(&mut self, part: &Part) -> Result<(), TooMany> {
        self.name_bytes += part.name_bytes();
        if self.name_bytes > NAME_BYTES_MAX { Err(TooMany::NameBytes) } else { Ok(()) }
    }
}

/// What a passage is made of.
struct Excerpt {
    /// Where it stands in the text of its part.
    range: Range<usize>,
    text: String,
    /// Whether it is a string of JSON, of which `text` is the value.
    is_quoted: bool,
}

impl Excerpt {
    /// Returns the value of a string of JSON; `None` if it is short, or half a surrogate pair.
    fn decode(part: &Part, range: Range<usize>) -> Option<Self> {
        let text: String = serde_json::from_str(&part.text[range.clone()]).ok()?;
        (text.len() >= JSON_STRING_BYTES_MIN).then_some(Self { range, text, is_quoted: true })
    }
}

/// The most characters of the beginning of a result.
const BEGINNING_CHARS_MAX: usize = 60;

fn beginning(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    line.chars().take(BEGINNING_CHARS_MAX).collect()
}

fn key_of_result(id: &str, text: &str) -> [u8; 32] {
    let mut hasher = Hasher::new_derive_key("thresher 2026 encoded result 1");
    hasher.update(&(id.len() as u64).to_le_bytes()).update(id.as_bytes()).update(text.as_bytes());
    *hasher.finalize().as_bytes()
}

/// Returns `text` without its delimited contexts, and calls `found` with the range of every paragraph of the contexts.
fn outside_contexts(
    text: &str,
    policy: &Policy,
    mut found: impl FnMut(Range<usize>) -> Result<(), TooMany>,
) -> Result<String, TooMany> {
    let Some((start, end)) = policy.delimiters else { return Ok(text.to_owned()) };
    let (mut rest, mut at) = (String::new(), 0);
    while let Some(context) = between(text, at, start, end) {
        rest.push_str(&text[at..context.start - start.len()]);
        at = context.end + end.len();
        paragraphs(text, context).try_for_each(&mut found)?;
    }
    rest.push_str(&text[at..]);
    Ok(rest)
}

/// Parses a text that is a JSON object, list or string. After compression it must still be JSON.
fn parse_json(text: &str) -> Option<Located<'_>> {
    let begins = text.trim_start().starts_with(['{', '[', '"']);
    begins.then(|| Located::parse(text).ok()).flatten()
}

/// The fewest items of a list that are rows.
const ROWS_MIN: usize = 8;

/// How deep in a JSON text a list of rows may be.
const ROWS_DEPTH_MAX: usize = 3;

/// Returns whether a JSON value is or has a list of rows.
fn has_rows(json: Located, depth: usize) -> bool {
    json.items().take(ROWS_MIN).count() == ROWS_MIN
        || depth < ROWS_DEPTH_MAX && json.fields().any(|(_, value)| has_rows(value, depth + 1))
}

/// Returns the last sentences of a query, at most 1,000 bytes. If the last sentence alone is longer, returns its end.
pub fn tail(query: &str) -> String {
    tail_within(query, QUERY_BYTES_MAX)
}

/// Returns the last sentences of a query, at most `bytes_max` bytes. If the last sentence alone is longer, returns its end.
pub fn tail_within(query: &str, bytes_max: usize) -> String {
    // Bounds the search for sentences in a long text.
    let far = query.ceil_char_boundary(query.len().saturating_sub(4 * bytes_max));
    let query = &query[far..];
    let mut from = query.len();
    for sentence in text::sentences(query).into_iter().rev() {
        if query.len() - sentence.start > bytes_max && from < query.len() {
            break;
        }
        from = sentence.start;
    }
    let last = &query[from..];
    last[last.ceil_char_boundary(last.len().saturating_sub(bytes_max))..].to_owned()
}

/// The range between the next start and end delimiter at or after `at`.
fn between(text: &str, at: usize, start: &str, end: &str) -> Option<Range<usize>> {
    let from = at + text[at..].find(start)? + start.len();
    let to = from + text[from..].find(end)?;
    Some(from..to)
}

/// The paragraphs of a range: separated by blank lines, and without the white space around them. They are found one at a time, because a long
/// text of short lines may have as many paragraphs as lines.
fn paragraphs(text: &str, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    let mut lines = text[range].split_inclusive('\n');
    std::iter::from_fn(move || {
        let mut open: Option<Range<usize>> = None;
        for line in lines.by_ref() {
            let words = line.trim();
            let start = at + (line.len() - line.trim_start().len());
            at += line.len();
            match (words.is_empty(), &mut open) {
                (true, None) => {}
                (true, Some(_)) => return open,
                (false, Some(paragraph)) => paragraph.end = start + words.len(),
                (false, None) => open = Some(start..start + words.len()),
            }
        }
        open
    })
}

/// Hashes the texts of a message. Fields that clients change between turns, such as cache marks and citations, are not hashed.
pub(super) fn hash(hasher: &mut Hasher, message: &Message) {
    // Clients may leave out a message without texts the next time, such as reasoning.
    if message.parts.is_empty() {
        return;
    }
    hasher.update(&[message.role as u8]);
    hasher.update(&(message.parts.len() as u64).to_le_bytes());
    for part in &message.parts {
        let kind = match &part.kind {
            PartKind::Message => "",
            PartKind::Document { .. } => "document",
            PartKind::SearchResult { .. } => "search_result",
            PartKind::ToolResult { id, .. } => id,
        };
        for text in [kind, part.title.as_deref().unwrap_or_default(), &part.text] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::middleware::dialect::Dialect;

    fn turns_of(body: &str, policy: &Policy) -> Turns {
        turns(&Dialect::Chat.conversation(Located::parse(body).expect("JSON")), policy, &TextKinds::default())
    }

    fn found(body: &str, policy: &Policy) -> Vec<Turn> {
        let Turns { turns, too_many } = turns_of(body, policy);
        assert_eq!(too_many, None);
        turns
    }

    fn chat(messages: &[(&str, &str)]) -> String {
        let message = |(role, content): &(&str, &str)| serde_json::json!({"role": role, "content": content});
        serde_json::json!({"messages": messages.iter().map(message).collect::<Vec<_>>()}).to_string()
    }

    fn policy() -> Policy {
        let delimiters = Some(("<c>", "</c>"));
        Policy { tools: vec!["*".to_owned()], delimiters, ..Policy::default() }
    }

    #[test]
    fn contexts_are_split_at_blank_lines_and_are_not_part_of_the_question() {
        let body = chat(&[("user", "Look: <c>\nOne.\nTwo.\n\n  Three. \n</c> When? <c>Four</c>")]);
        let turns = found(&body, &policy());
        let texts: Vec<&str> = turns[0].passages.iter().map(|passage| &*passage.text).collect();
        assert_eq!(texts, ["One.\nTwo.", "Three.", "Four"]);
        assert_eq!(turns[0].query, "Look:  When?");
        assert_eq!(found(&body, &Policy::default())[0].passages.len(), 0);
        assert_eq!(found(&chat(&[("user", "<c>open")]), &policy())[0].passages.len(), 0, "never closed");
    }

    #[test]
    fn a_question_is_read_with_the_texts_before_it() {
        let long = "a".repeat(QUERY_BYTES_MAX + 1);
        let asked =
            [("system", "S"), ("user", "Q1"), ("assistant", "A1"), ("user", "Q2"), ("assistant", &long)];
        let called = [&asked[..], &[("user", "Q3 <c>One</c>"), ("assistant", "A3"), ("tool", "R")]].concat();
        let turns = found(&chat(&called), &policy());
        let histories: Vec<(&str, Vec<&str>)> = turns
            .iter()
            .map(|turn| (&*turn.query, turn.history.iter().map(|text| &**text).collect()))
            .collect();
        let before_third = vec!["Q1", "A1", "Q2"];
        let expect = [
            ("Q1", vec![]),
            ("Q2", vec!["Q1", "A1"]),
            ("Q3", before_third.clone()),
            // The result of a tool is read for the question that the tool was called for.
            ("Q3", before_third),
        ];
        assert_eq!(histories, expect);
        let questions: Vec<String> = (0..20).map(|number| format!("Q{number}")).collect();
        let messages: Vec<(&str, &str)> = questions.iter().map(|question| ("user", &**question)).collect();
        let last = found(&chat(&messages), &policy()).remove(0);
        assert_eq!((&*last.query, last.history.len(), &*last.history[0]), ("Q19", HISTORY_TEXTS_MAX, "Q11"));
    }

    #[test]
    fn turns_end_with_an_answer() {
        let first = [("system", "S"), ("user", "Q1"), ("assistant", "A1")];
        let second = [&first[..], &[("tool", "R"), ("user", "Q2")]].concat();
        let turns = found(&chat(&second), &policy());
        let queries: Vec<_> = turns.iter().map(|turn| (&*turn.query, turn.passages.len())).collect();
        assert_eq!(queries, [("Q1", 0), ("Q2", 1)]);
        assert_eq!(found(&chat(&first), &policy())[0].key, turns[0].key, "the key of a turn does not change");
        let other = [("system", "T"), ("user", "Q1")];
        assert_eq!(
            found(&chat(&other), &policy())[0].key,
            turns[0].key,
            "the key does not depend on instructions"
        );
        let later = [&second[..], &[("assistant", "A2"), ("system", "Be brief."), ("user", "Q3")]].concat();
        let later = found(&chat(&later), &policy());
        assert_eq!((later[0].key, later[1].key), (turns[0].key, turns[1].key), "nor on later instructions");
    }

    #[test]
    fn instructions_are_a_new_turn_when_their_text_changes() {
        let instructions = |context: &str, more: &[(&str, &str)]| {
            let system = format!("Answer. <c>{context}</c>");
            let body = chat(&[&[("system", &*system), ("user", "Q1")], more].concat());
            let first = found(&body, &policy()).remove(0);
            assert!(first.is_instructions);
            (first.key, first.query)
        };
        let later = [("assistant", "A1"), ("user", "Q2")];
        let ((first, query), (second, next)) = (instructions("One.", &[]), instructions("One.", &later));
        assert_eq!((first, &*query, &*next), (second, "Q1", "Q2"));
        assert_ne!(instructions("Two.", &later).0, second);
    }

    #[test]
    fn json_stays_json() {
        let long = "A sentence of some length. ".repeat(10);
        let result = serde_json::json!({"hits": [{"id": "x", "text": long}], "n": 1}).to_string();
        let turns = found(&chat(&[("tool", &result)]), &policy());
        let [passage] = &turns[0].passages[..] else { panic!("one long string") };
        assert!(passage.is_quoted);
        assert_eq!((&*passage.text, &result[passage.range.clone()]), (&*long, &*format!("{long:?}")));
        let turns = found(&chat(&[("tool", &serde_json::json!(long).to_string())]), &policy());
        assert!(turns[0].passages[0].is_quoted, "a string alone");
        let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
        assert_eq!(found(&chat(&[("tool", &deep)]), &policy())[0].passages.len(), 0, "deeper than any stack");
        let deep = format!("{}{long:?}{}", "[".repeat(50_000), "]".repeat(50_000));
        assert_eq!(
            found(&chat(&[("tool", &deep)]), &policy())[0].passages[0].text,
            long,
            "a deeply nested string"
        );
        let rows: Vec<_> = (0..ROWS_MIN).map(|id| serde_json::json!({"id": id, "shop": "Voss"})).collect();
        for rows in [serde_json::json!(rows), serde_json::json!({"page": 1, "found": {"rows": rows}})] {
            let turns = found(&chat(&[("tool", &rows.to_string())]), &policy());
            let [passage] = &turns[0].passages[..] else { panic!("the rows are one text") };
            assert_eq!((passage.is_quoted, &*passage.text), (false, &*rows.to_string()));
        }
        let few = serde_json::json!([{"id": 1}, {"id": 2}]).to_string();
        assert_eq!(found(&chat(&[("tool", &few)]), &policy())[0].passages.len(), 0, "a few rows");
        let turns = found(&chat(&[("tool", "[1] not JSON")]), &policy());
        assert_eq!(turns[0].passages.len(), 1, "a text that begins like JSON");
    }

    #[test]
    fn short_values_of_json_are_records_that_are_not_compressed() {
        let flight = r#"{"flight":"BA 117","gate":"B42"}"#;
        let turns = found(&chat(&[("tool", flight)]), &policy());
        assert_eq!((turns[0].passages.len(), turns[0].records.len()), (0, 1));
        assert_eq!(turns[0].records[0].text, flight);
        let long = "A sentence of some length. ".repeat(10);
        let hits =
            serde_json::json!([{"id": "d7", "title": "T", "url": "https://u", "text": long}]).to_string();
        let turns = found(&chat(&[("tool", &hits)]), &policy());
        let names =
            Names { id: Some("d7".into()), title: Some("T".into()), source: Some("https://u".into()) };
        assert_eq!((&turns[0].passages[0].names, turns[0].records.len()), (&names, 0));
        let none = Policy { tools: Vec::new(), ..policy() };
        assert_eq!(found(&chat(&[("tool", flight)]), &none)[0].records.len(), 0, "a tool that is not named");
        let many: Vec<String> = (0..2_000).map(|at| format!(r#"{{"at":{at},"is":"here"}}"#)).collect();
        let many = format!("[{}]", many.join(","));
        let bounded = Policy { bounds: Bounds { turn_count_max: 9, piece_count_max: 10 }, ..policy() };
        let messages: Vec<(&str, &str)> = vec![("tool", &many); 3];
        let records = |policy: &Policy| -> Vec<CitedRecord> {
            found(&chat(&messages), policy).into_iter().flat_map(|turn| turn.records).collect()
        };
        assert_eq!(records(&bounded).len(), 10);
        let bytes: usize = records(&policy()).iter().map(|record| record.text.len()).sum();
        assert!((RECORD_BYTES_MAX - 100..=RECORD_BYTES_MAX).contains(&bytes), "of one turn: {bytes}");
    }

    #[test]
    fn paragraphs_keep_the_ids_that_they_begin_with() {
        let body = chat(&[("user", "<c>[doc-7] One.\n\nTwo.\n\n[3] Three.</c> When?")]);
        let turns = found(&body, &policy());
        let ids: Vec<Option<&str>> =
            turns[0].passages.iter().map(|passage| passage.names.id.as_deref()).collect();
        assert_eq!(ids, [Some("doc-7"), None, Some("3")]);
    }

    #[test]
    fn a_conversation_over_a_limit_has_only_its_last_question() {
        let bounded = |turn_count_max, piece_count_max| Policy {
            bounds: Bounds { turn_count_max, piece_count_max },
            ..policy()
        };
        let context = "<c>One.\n\nTwo.</c> When?";
        let three =
            [("user", context), ("assistant", "A"), ("user", context), ("assistant", "A"), ("tool", "R")];
        let body = chat(&three);
        assert_eq!(found(&body, &bounded(3, 5)).len(), 3);
        let check = |name: &str, policy: &Policy, too_many: TooMany| {
            let found = turns_of(&body, policy);
            assert_eq!(found.too_many, Some(too_many), "{name}");
            let [turn] = &found.turns[..] else { panic!("{name}: the turn with the question") };
            assert_eq!((&*turn.query, turn.passages.len()), ("When?", 0), "{name}");
            let asked = turn.asked_at.clone().expect(name);
            assert_eq!(body.find(&body[asked.clone()]), body.find(r#"{"role":"user""#), "{name}");
            assert!(body[..asked.start].contains("assistant"), "{name}: the last question");
        };
        check("turns", &bounded(2, 5), TooMany::Turns(2));
        check("passages", &bounded(3, 4), TooMany::Passages(4));
        let only_context = turns_of(&chat(&[("user", "<c>One.</c>"), ("tool", "R")]), &bounded(9, 1));
        assert_eq!((only_context.turns.len(), only_context.too_many), (0, Some(TooMany::Passages(1))));
        let mut messages = Vec::new();
        let id = "i".repeat(NAME_BYTES_MAX / 8);
        let of_tool = serde_json::json!({"role": "tool", "tool_call_id": id, "content": "R"});
        for is_too_long in [false, true] {
            messages.extend(vec![of_tool.clone(); 4]);
            let found = turns_of(&serde_json::json!({"messages": messages}).to_string(), &policy());
            let expect = is_too_long.then_some(TooMany::NameBytes);
            assert_eq!(found.too_many, expect, "for each text, and again for its passage");
        }
    }

    #[test]
    fn only_named_tools() {
        let call = r#"{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "find"}}]}"#;
        let body =
            format!(r#"{{"messages": [{call}, {{"role": "tool", "tool_call_id": "1", "content": "R"}}]}}"#);
        let named = |name: &str| Policy { tools: vec![name.to_owned()], ..Policy::default() };
        assert_eq!(found(&body, &named("find"))[0].passages.len(), 1);
        assert_eq!(found(&body, &named("other"))[0].passages.len(), 0);
        let spelled = |name: &str| body.replace("\"find\"", &format!("\"{name}\""));
        for name in ["mcp__files__ReadFile", "read-file", "files.read_file"] {
            assert_eq!(found(&spelled(name), &named("read_file"))[0].passages.len(), 1, "{name}");
        }
        assert_eq!(found(&spelled("read_files"), &named("read_file"))[0].passages.len(), 0);
    }
}
