//! Reads conversations of three APIs into one form: messages, and their parts of text with the position of each in the body.

use std::collections::HashMap;
use std::sync::Arc;

use super::json::{Edits, Items, Located};

/// The most messages, texts and tool calls that are read of one conversation. Each takes some hundred bytes in addition to its text, and a
/// body can have one for every two dozen bytes.
pub const PART_COUNT_MAX: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Chat,
    Responses,
    Messages,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The author of instructions: system, developer, and every role that is not known.
    System,
    User,
    Assistant,
    /// A tool that the model called.
    Tool,
}

#[derive(Debug, Clone)]
pub struct Message<'a> {
    pub role: Role,
    /// The whole message in the body.
    pub at: Located<'a>,
    /// The texts of the message, in order.
    pub parts: Vec<Part<'a>>,
}

#[derive(Debug, Clone)]
pub struct Part<'a> {
    /// The JSON string of the text in the body.
    pub at: Located<'a>,
    pub text: String,
    pub kind: PartKind,
    /// The title of the document or search result. All texts of a document share it.
    pub title: Option<Arc<str>>,
    /// The source of the search result, such as a URL.
    pub source: Option<Arc<str>>,
    /// The texts in the arguments of the call that a tool result answers, such as a search query or a path.
    pub arguments: Option<Arc<str>>,
}

impl<'a> Part<'a> {
    /// Returns a text without title, source and arguments.
    fn new(at: Located<'a>, text: String, kind: PartKind) -> Self {
        Self { at, text, kind, title: None, source: None, arguments: None }
    }

    /// Returns the bytes of the names of the text: title, source, tool and call. They are repeated for each text that has them.
    pub fn name_bytes(&self) -> usize {
        let of_kind = match &self.kind {
            PartKind::ToolResult { name, id } => name.len() + id.len(),
            _ => 0,
        };
        let len = |name: &Option<Arc<str>>| name.as_ref().map_or(0, |name| name.len());
        of_kind + len(&self.title) + len(&self.source)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartKind {
    /// Text that the author of the message wrote.
    Message,
    /// A document, or one of its content blocks.
    Document {
        /// The index of the document among those of the conversation.
        index: usize,
        /// The index of the block in the document; `None`: the document has no blocks.
        block: Option<usize>,
    },
    SearchResult {
        /// The index of the search result among those of the conversation.
        index: usize,
        /// The index of the block in the search result.
        block: usize,
    },
    ToolResult {
        /// The name of the tool; empty if the conversation has no call with this id.
        name: Arc<str>,
        id: Arc<str>,
    },
}

#[derive(Debug, Clone, Default)]
pub struct Conversation<'a> {
    pub messages: Vec<Message<'a>>,
    /// Whether the request asks the upstream for citations. These name positions in the documents, which must then not be compressed.
    pub cites_itself: bool,
    /// Whether the conversation has more than [`PART_COUNT_MAX`] parts. Then only the last message with text of the user is here.
    pub is_cut: bool,
}

impl Dialect {
    /// Reads the conversation of a request with this body.
    pub fn conversation<'a>(self, body: Located<'a>) -> Conversation<'a> {
        let mut reader = Reader::default();
        match self {
            Self::Chat => reader.chat(body),
            Self::Responses => reader.responses(body),
            Self::Messages => reader.messages(body),
        }
        let is_cut = reader.is_cut();
        Conversation { messages: reader.messages, cites_itself: reader.cites_itself, is_cut }
    }

    /// Removes citations of documents from earlier answers in the request, and joins the text blocks that were one block before the middleware
    /// cited its sentences. If the client did not ask the upstream for citations, the middleware added them, and they may name passages that the
    /// upstream has not seen.
    pub fn remove_citations(self, body: Located, edits: &mut Edits) {
        let answers = items(body, "messages").filter(|m| m.text_of("role").as_deref() == Some("assistant"));
        if self == Self::Chat {
            // No server reads annotations of answers, and some refuse a message that has them.
            answers.for_each(|message| edits.remove_field(message, "annotations"));
            return;
        }
        if self == Self::Responses {
            return;
        }
        for message in answers {
            let mut run: Vec<TextBlock> = Vec::new();
            for block in items(message, "content") {
                match TextBlock::read(block) {
                    Some(block) => run.push(block),
                    None => join(&std::mem::take(&mut run), edits),
                }
            }
            join(&run, edits);
        }
    }

    /// Returns the field of the body that has the messages: a list, or with Responses also a string.
    pub fn messages(self, body: Located) -> Option<Located> {
        body.get(if self == Self::Responses { "input" } else { "messages" })
    }
}

/// A text block of an earlier answer that the upstream has not cited.
struct TextBlock<'a> {
    at: Located<'a>,
    text: String,
    /// Whether the middleware has cited it.
    is_cited: bool,
    /// Whether it has fields that the middleware does not write.
    has_more: bool,
}

impl<'a> TextBlock<'a> {
    /// Reads a block. Returns `None` if it is none of these.
    fn read(at: Located<'a>) -> Option<Self> {
        let ours = ["char_location", "page_location", "content_block_location", "search_result_location"];
        let mut citations = items(at, "citations").peekable();
        let is_cited = citations.peek().is_some();
        let is_text = at.text_of("type").as_deref() == Some("text");
        let all_ours =
            citations.all(|citation| citation.text_of("type").is_some_and(|kind| ours.contains(&&*kind)));
        let text = at.text_of("text").filter(|_| is_text && all_ours)?;
        let has_more = at.fields().any(|(name, _)| !["type", "text", "citations"].contains(&&*name));
        Some(Self { at, text, is_cited, has_more })
    }
}

/// Joins adjacent blocks into one without citations, if the middleware has cited one of them.
fn join(run: &[TextBlock], edits: &mut Edits) {
    if !run.iter().any(|block| block.is_cited) {
        return;
    }
    // A cache mark on one of the blocks stays, because clients put it on the last one.
    let kept = run.iter().rfind(|block| block.has_more).unwrap_or(&run[0]);
    if let [first, .., last] = run {
        let text: String = run.iter().map(|block| &*block.text).collect();
        edits.replace(first.at.range().start..kept.at.range().start, "");
        edits.set_field(kept.at, "text", &serde_json::Value::from(text).to_string());
        edits.replace(kept.at.range().end..last.at.range().end, "");
    }
    edits.remove_field(kept.at, "citations");
}

struct Call {
    name: Arc<str>,
    arguments: Option<Arc<str>>,
}

#[derive(Default)]
struct Reader<'a> {
    messages: Vec<Message<'a>>,
    calls: HashMap<Arc<str>, Call>,
    document_count: usize,
    search_result_count: usize,
    cites_itself: bool,
    /// Messages, texts and tool calls so far.
    part_count: usize,
    /// Whether the message that is being read has a text by its author so far.
    has_text: bool,
}

impl<'a> Reader<'a> {
    fn chat(&mut self, body: Located<'a>) {
        for message in items(body, "messages") {
            let (role, kind) = match message.text_of("role").as_deref() {
                Some("user") => (Role::User, PartKind::Message),
                Some("assistant") => (Role::Assistant, PartKind::Message),
                Some("tool" | "function") => (Role::Tool, self.tool_result(message.text_of("tool_call_id"))),
                _ => (Role::System, PartKind::Message),
            };
            let mut parts = Vec::new();
            self.content(message.get("content"), &kind, &mut parts);
            for call in items(message, "tool_calls") {
                let function = call.get("function").unwrap_or_default();
                self.call(call.text_of("id"), function.text_of("name"), function.get("arguments"));
            }
            self.message(Message { role, at: message, parts });
        }
    }

    fn responses(&mut self, body: Located<'a>) {
        if let Some(instructions) = body.get("instructions") {
            let parts = part(instructions, PartKind::Message).into_iter().collect();
            self.message(Message { role: Role::System, at: instructions, parts });
        }
        let Some(input) = body.get("input") else { return };
        if let Some(text) = input.text() {
            let part = Part::new(input, text, PartKind::Message);
            self.message(Message { role: Role::User, at: input, parts: vec![part] });
            return;
        }
        for item in input.items() {
            let mut parts = Vec::new();
            let role = match item.text_of("type").as_deref() {
                None | Some("message") => {
                    self.content(item.get("content"), &PartKind::Message, &mut parts);
                    match item.text_of("role").as_deref() {
                        Some("user") => Role::User,
                        Some("assistant") => Role::Assistant,
                        _ => Role::System,
                    }
                }
                Some("function_call_output" | "custom_tool_call_output") => {
                    let kind = self.tool_result(item.text_of("call_id"));
                    self.content(item.get("output"), &kind, &mut parts);
                    Role::Tool
                }
                // Outputs of other calls of the model, which the client sends.
                Some(kind) if kind.ends_with("_output") || kind.ends_with("_response") => Role::Tool,
                // Calls, reasoning, and other items of the model.
                Some(_) => {
                    let arguments = item.get("arguments").or_else(|| item.get("input"));
                    self.call(item.text_of("call_id"), item.text_of("name"), arguments);
                    Role::Assistant
                }
            };
            self.message(Message { role, at: item, parts });
        }
    }

    fn messages(&mut self, body: Located<'a>) {
        if let Some(system) = body.get("system") {
            let mut parts = Vec::new();
            self.content(Some(system), &PartKind::Message, &mut parts);
            self.message(Message { role: Role::System, at: system, parts });
        }
        for message in items(body, "messages") {
            let role = match message.text_of("role").as_deref() {
                Some("assistant") => Role::Assistant,
                _ => Role::User,
            };
            let mut parts = Vec::new();
            self.content(message.get("content"), &PartKind::Message, &mut parts);
            self.message(Message { role, at: message, parts });
        }
    }

    /// Keeps a message. Once there are too many parts, only the last message with text of the user is kept: the context that a request adds
    /// is inserted before that message.
    fn message(&mut self, message: Message<'a>) {
        self.has_text = false;
        if self.count_part() {
            self.messages.push(message);
        } else if message.has_user_text() {
            self.messages = vec![message];
        }
    }

    /// Keeps a text of a message. Once there are too many parts, only the first text by the author of the message is kept.
    fn part(&mut self, parts: &mut Vec<Part<'a>>, part: Part<'a>) {
        let has_text = part.has_text();
        let arguments = match &part.kind {
            PartKind::ToolResult { id, .. } => self.calls.get(id).and_then(|call| call.arguments.clone()),
            _ => None,
        };
        let part = Part { arguments, ..part };
        if self.count_part() || has_text && !self.has_text {
            parts.push(part);
        }
        self.has_text |= has_text;
    }

    fn call(&mut self, id: Option<String>, name: Option<String>, arguments: Option<Located>) {
        if let Some((id, name)) = id.zip(name)
            && self.count_part()
        {
            let arguments = arguments.map(argument_texts).filter(|texts| !texts.is_empty()).map(Arc::from);
            self.calls.insert(id.into(), Call { name: name.into(), arguments });
        }
    }

    /// Counts one more message, text or tool call. Returns whether it may be kept.
    fn count_part(&mut self) -> bool {
        self.part_count += 1;
        if self.part_count == PART_COUNT_MAX + 1 {
            let last = self.messages.iter().rposition(Message::has_user_text);
            self.messages = last.map(|at| self.messages.swap_remove(at)).into_iter().collect();
            self.calls = HashMap::new();
        }
        !self.is_cut()
    }

    fn is_cut(&self) -> bool {
        self.part_count > PART_COUNT_MAX
    }

    fn tool_result(&self, id: Option<String>) -> PartKind {
        let id: Arc<str> = id.unwrap_or_default().into();
        let name = self.calls.get(&id).map(|call| Arc::clone(&call.name)).unwrap_or_default();
        PartKind::ToolResult { name, id }
    }

    /// Reads the content of a message: a string, or a list of blocks.
    fn content(&mut self, content: Option<Located<'a>>, kind: &PartKind, parts: &mut Vec<Part<'a>>) {
        let Some(content) = content else { return };
        if let Some(part) = part(content, kind.clone()) {
            self.part(parts, part);
        }
        for block in content.items() {
            self.block(block, kind, parts);
        }
    }

    fn block(&mut self, block: Located<'a>, kind: &PartKind, parts: &mut Vec<Part<'a>>) {
        match block.text_of("type").as_deref() {
            Some("text" | "input_text" | "output_text") => {
                if let Some(part) = block.get("text").and_then(|text| part(text, kind.clone())) {
                    self.part(parts, part);
                }
            }
            // A tool result within another one is skipped, so that the recursion ends.
            Some("tool_result") if *kind == PartKind::Message => {
                let kind = self.tool_result(block.text_of("tool_use_id"));
                self.content(block.get("content"), &kind, parts);
            }
            Some("tool_use") => self.call(block.text_of("id"), block.text_of("name"), block.get("input")),
            Some("document") => {
                self.notice_citations(block);
                let index = self.document_count;
                self.document_count += 1;
                let Some(source) = block.get("source") else { return };
                let title: Option<Arc<str>> = block.text_of("title").map(Arc::from);
                let titled = |part| Part { title: title.clone(), ..part };
                let whole = |field: &str| part(source.get(field)?, PartKind::Document { index, block: None });
                match source.text_of("type").as_deref() {
                    Some("text") => {
                        if let Some(part) = whole("data") {
                            self.part(parts, titled(part));
                        }
                    }
                    Some("content") => {
                        if let Some(part) = whole("content") {
                            self.part(parts, titled(part));
                        }
                        let kind = |block| PartKind::Document { index, block: Some(block) };
                        for part in blocks(source.get("content"), kind) {
                            self.part(parts, titled(part));
                        }
                    }
                    // Files and URLs are not read.
                    _ => {}
                }
            }
            Some("search_result") => {
                self.notice_citations(block);
                let index = self.search_result_count;
                self.search_result_count += 1;
                let title: Option<Arc<str>> = block.text_of("title").map(Arc::from);
                let source: Option<Arc<str>> = block.text_of("source").map(Arc::from);
                let kind = |block| PartKind::SearchResult { index, block };
                for part in blocks(block.get("content"), kind) {
                    self.part(parts, Part { title: title.clone(), source: source.clone(), ..part });
                }
            }
            _ => {}
        }
    }

    fn notice_citations(&mut self, block: Located) {
        let enabled = block.get("citations").and_then(|citations| citations.get("enabled"));
        self.cites_itself |= enabled.is_some_and(|enabled| enabled.json() == "true");
    }
}

impl Message<'_> {
    fn has_user_text(&self) -> bool {
        self.role == Role::User && self.parts.iter().any(Part::has_text)
    }
}

impl Part<'_> {
    fn has_text(&self) -> bool {
        self.kind == PartKind::Message && !self.text.trim().is_empty()
    }
}

/// The values in the list of a field; none if the field is missing or is not a list.
fn items<'a>(object: Located<'a>, field: &str) -> Items<'a> {
    object.get(field).map(Located::items).unwrap_or_default()
}

/// The texts of a list of blocks; `kind` gets the index of each block.
fn blocks<'a>(list: Option<Located<'a>>, kind: impl Fn(usize) -> PartKind) -> impl Iterator<Item = Part<'a>> {
    let items = list.map(Located::items).unwrap_or_default();
    items.enumerate().filter_map(move |(at, block)| part(block.get("text")?, kind(at)))
}

/// The most bytes that are read of one call's arguments.
const ARGUMENT_BYTES_MAX: usize = 300;

/// The strings in the arguments of a call, an object or the JSON text of one, one after another: what was searched, the path
/// that was read, the command that was run.
fn argument_texts(arguments: Located) -> String {
    let text = arguments.text();
    let arguments = match text.as_deref().map(Located::parse) {
        None => arguments,
        Some(Ok(arguments)) => arguments,
        // Arguments that are no JSON, such as a command.
        Some(Err(_)) => {
            let text = text.unwrap_or_default();
            return text[..text.floor_char_boundary(ARGUMENT_BYTES_MAX)].trim().to_owned();
        }
    };
    let mut texts = String::new();
    for string in arguments.strings(1) {
        let Some(text) = string.text() else { continue };
        let room = ARGUMENT_BYTES_MAX.saturating_sub(texts.len() + 1);
        if room == 0 {
            break;
        }
        // Of a long text, such as the content of a file, the beginning; and what follows it.
        let text = text.trim();
        texts.push_str(if texts.is_empty() { "" } else { " " });
        texts.push_str(&text[..text.floor_char_boundary(room.min(ARGUMENT_BYTES_MAX / 2))]);
    }
    texts
}

fn part(at: Located, kind: PartKind) -> Option<Part> {
    Some(Part::new(at, at.text()?, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(dialect: Dialect, body: &str) -> Vec<(Role, PartKind, String)> {
        let conversation = dialect.conversation(Located::parse(body).expect("JSON"));
        let of = |message: &Message| {
            let role = message.role;
            message
                .parts
                .iter()
                .map(move |part| (role, part.kind.clone(), part.text.clone()))
                .collect::<Vec<_>>()
        };
        conversation.messages.iter().flat_map(of).collect()
    }

    fn message(role: Role, text: &str) -> (Role, PartKind, String) {
        (role, PartKind::Message, text.to_owned())
    }

    fn tool(role: Role, text: &str) -> (Role, PartKind, String) {
        (role, PartKind::ToolResult { name: "search".into(), id: "c1".into() }, text.to_owned())
    }

    #[test]
    fn chat() {
        let body = r#"{"messages": [{"role": "system", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "image_url", "image_url": {"url": "data:"}}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "function": {"name": "search", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "R"}]}"#;
        let expect = [message(Role::System, "S"), message(Role::User, "Q"), tool(Role::Tool, "R")];
        assert_eq!(parts(Dialect::Chat, body), expect);
    }

    #[test]
    fn responses() {
        let body = r#"{"input": [{"role": "user", "content": "Q"}, {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "R"}]}"#;
        assert_eq!(parts(Dialect::Responses, body), [message(Role::User, "Q"), tool(Role::Tool, "R")]);
        assert_eq!(parts(Dialect::Responses, r#"{"input": "Q"}"#), [message(Role::User, "Q")]);
    }

    #[test]
    fn messages() {
        let body = r#"{"system": [{"type": "text", "text": "S"}], "messages": [
            {"role": "user", "content": [
                {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D0"}},
                {"type": "document", "source": {"type": "base64", "data": "xx"}},
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "D2"}]}},
                {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"type": "text", "text": "Q"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "search", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "R"}]}]}]}"#;
        let user = |kind: PartKind, text: &str| (Role::User, kind, text.to_owned());
        let expect = [
            message(Role::System, "S"),
            user(PartKind::Document { index: 0, block: None }, "D0"),
            user(PartKind::Document { index: 2, block: Some(0) }, "D2"),
            user(PartKind::SearchResult { index: 0, block: 0 }, "a"),
            user(PartKind::SearchResult { index: 0, block: 1 }, "b"),
            message(Role::User, "Q"),
            tool(Role::User, "R"),
        ];
        assert_eq!(parts(Dialect::Messages, body), expect);
    }

    #[test]
    fn the_last_question_is_kept_of_a_conversation_with_too_many_parts() {
        let many = r#"{"role":"assistant","content":"A"},"#.repeat(PART_COUNT_MAX / 2);
        let asks = r#"{"role":"user","content":[{"type":"text","text":"Q1"},{"type":"text","text":"Q2"}]}"#;
        let check = |name: &str, body: &str, expect: &[&str], is_cut: bool| {
            let body = format!(r#"{{"messages":[{body}]}}"#);
            let conversation = Dialect::Messages.conversation(Located::parse(&body).expect("JSON"));
            let parts = conversation.messages.iter().flat_map(|message| &message.parts);
            let texts: Vec<&str> =
                parts.map(|part| &*part.text).filter(|text| !["A", " "].contains(text)).collect();
            assert_eq!((texts, conversation.is_cut), (expect.to_vec(), is_cut), "{name}");
            assert!(!is_cut || conversation.messages.len() <= 1, "{name}");
        };
        let few =
            many.strip_suffix(r#"{"role":"assistant","content":"A"},{"role":"assistant","content":"A"},"#);
        check("just as many", &format!("{}{asks}", few.expect("many")), &["Q1", "Q2"], false);
        check("the question comes first", &format!("{asks},{many}null"), &["Q1", "Q2"], true);
        check("the question comes last", &format!("{many}{asks}"), &["Q1"], true);
        check("no question", &format!("{many}null"), &[], true);
        let blocks = r#"{"type":"text","text":" "},"#.repeat(PART_COUNT_MAX);
        let long = format!(r#"{{"role":"user","content":[{blocks}{{"type":"text","text":"Q3"}}]}}"#);
        check("in one message", &format!("{asks},{long}"), &["Q3"], true);
    }

    #[test]
    fn blocks_of_one_text_are_joined_without_their_citations() {
        let ours = r#""citations":[{"type":"char_location"}]"#;
        let theirs = r#"{"type":"text","text":"T","citations":[{"type":"web_search_result_location"}]}"#;
        let tool = r#"{"type":"tool_use"}"#;
        let block = |text: &str, more: &str| format!(r#"{{"type":"text","text":"{text}"{more}}}"#);
        let (first, second) = (block("A ", &format!(",{ours}")), block("b\\n", r#","citations":null"#));
        let check = |name: &str, blocks: &[&str], expect: &[&str]| {
            let message = |blocks: &[&str]| {
                format!(r#"{{"messages":[{{"role":"assistant","content":[{}]}}]}}"#, blocks.join(" , "))
            };
            let (body, mut edits) = (message(blocks), Edits::default());
            Dialect::Messages.remove_citations(Located::parse(&body).expect("JSON"), &mut edits);
            assert_eq!(edits.apply(&body), message(expect), "{name}");
        };
        let joined = block("A b\\nC", "");
        check("three", &[tool, &first, &second, &block("C", "")], &[tool, &joined]);
        check("one", &[&first], &[&block("A ", "")]);
        check("none of ours", &[&second, &second], &[&second, &second]);
        check("the upstream's", &[&first, theirs, &second], &[&block("A ", ""), theirs, &second]);
        let mark = r#","cache_control":{"type":"ephemeral"}"#;
        let expect = block("A b\\nC", mark);
        check("a mark at the end", &[&first, &second, &block("C", mark)], &[&expect]);
        check(
            "a mark inside",
            &[&first, &block("b\\n", &format!("{mark},{ours}")), &block("C", "")],
            &[&expect],
        );
        check("twice", &[&first, tool, &first, &second], &[&block("A ", ""), tool, &block("A b\\n", "")]);
    }

    #[test]
    fn a_request_for_citations_is_noticed() {
        let body = |enabled: bool| {
            format!(
                r#"{{"messages": [{{"role": "user", "content": [{{"type": "document", "citations": {{"enabled": {enabled}}}, "source": {{"type": "text", "data": "D"}}}}]}}]}}"#
            )
        };
        for enabled in [true, false] {
            let body = body(enabled);
            let conversation = Dialect::Messages.conversation(Located::parse(&body).expect("JSON"));
            assert_eq!(conversation.cites_itself, enabled);
        }
    }
}
