//! The three ways in which conversations are written, read as one: messages of parts of text, each where it stands.

use std::collections::HashMap;
use std::sync::Arc;

use super::json::{Edits, Items, Located};

/// Messages, texts in them and calls of tools that are kept of one conversation. Each takes some hundred bytes beside its text, and a body
/// can hold one for every two dozen bytes.
pub const PART_COUNT_MAX: usize = 100_000;

/// Whose API is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's Chat Completions.
    Chat,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Who gives instructions.
    System,
    /// Who asks.
    User,
    /// The model.
    Assistant,
    /// A tool that the model called.
    Tool,
}

/// One message.
#[derive(Debug, Clone)]
pub struct Message<'a> {
    /// Whose.
    pub role: Role,
    /// Where it stands, as a whole.
    pub at: Located<'a>,
    /// What it says, in order.
    pub parts: Vec<Part<'a>>,
}

/// A text in a message.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    /// The string that says it.
    pub at: Located<'a>,
    /// What it says.
    pub text: String,
    /// What it is.
    pub kind: Kind,
    /// What it is called. Shared by all texts of a document.
    pub title: Option<Arc<str>>,
    /// Where it is from.
    pub source: Option<Arc<str>>,
}

impl Part<'_> {
    /// Bytes of what names the text: title, source, tool and call. They are repeated for each text that has them.
    pub fn name_bytes(&self) -> usize {
        let of_kind = match &self.kind {
            Kind::Tool { name, id } => name.len() + id.len(),
            _ => 0,
        };
        let len = |name: &Option<Arc<str>>| name.as_ref().map_or(0, |name| name.len());
        of_kind + len(&self.title) + len(&self.source)
    }
}

/// What a text is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// What somebody says.
    Said,
    /// A document, its place among those of the conversation, and the place in it of a block, where it consists of such.
    Document(usize, Option<usize>),
    /// A block of a search result, the result's place among those of the conversation, and the block's in it.
    SearchResult(usize, usize),
    /// What a tool of this name answered to the call with this id.
    Tool {
        /// The tool; empty where no call with the id is there.
        name: Arc<str>,
        /// The call.
        id: Arc<str>,
    },
}

/// A conversation.
#[derive(Debug, Clone, Default)]
pub struct Conversation<'a> {
    /// Its messages.
    pub messages: Vec<Message<'a>>,
    /// Whether the upstream itself was asked to cite: places in documents are then its to tell.
    pub cites_itself: bool,
    /// Whether there was more than [`PART_COUNT_MAX`]: then only the last message in which the user says something is here.
    pub is_cut: bool,
}

impl Dialect {
    /// The conversation of a request.
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

    /// Takes citations of documents out of what the model has said: who did not ask the upstream to cite has them from us, and there
    /// they name what the upstream has not seen.
    pub fn remove_citations(self, body: Located, edits: &mut Edits) {
        if self != Self::Messages {
            return;
        }
        let ours = ["char_location", "content_block_location", "search_result_location"];
        let is_ours =
            |citation: &Located| citation.text_of("type").is_some_and(|kind| ours.contains(&&*kind));
        let said = items(body, "messages").filter(|m| m.text_of("role").as_deref() == Some("assistant"));
        for block in said.flat_map(|message| items(message, "content")) {
            let citations = items(block, "citations");
            if citations.clone().next().is_some() && citations.clone().all(|citation| is_ours(&citation)) {
                edits.remove_field(block, "citations");
            }
        }
    }

    /// Where the list of messages stands, or what stands for it.
    pub fn list(self, body: Located) -> Option<Located> {
        body.get(if self == Self::Responses { "input" } else { "messages" })
    }
}

#[derive(Default)]
struct Reader<'a> {
    messages: Vec<Message<'a>>,
    /// Tools by the ids of their calls.
    calls: HashMap<Arc<str>, Arc<str>>,
    documents: usize,
    search_results: usize,
    cites_itself: bool,
    /// Messages, texts and calls so far.
    part_count: usize,
    /// Whether a text of the message that is being read says something.
    says_something: bool,
}

impl<'a> Reader<'a> {
    fn chat(&mut self, body: Located<'a>) {
        for message in items(body, "messages") {
            let (role, kind) = match message.text_of("role").as_deref() {
                Some("user") => (Role::User, Kind::Said),
                Some("assistant") => (Role::Assistant, Kind::Said),
                Some("tool" | "function") => (Role::Tool, self.tool(message.text_of("tool_call_id"))),
                _ => (Role::System, Kind::Said),
            };
            let mut parts = Vec::new();
            self.content(message.get("content"), &kind, &mut parts);
            for call in items(message, "tool_calls") {
                let name = call.get("function").and_then(|function| function.text_of("name"));
                self.call(call.text_of("id"), name);
            }
            self.message(Message { role, at: message, parts });
        }
    }

    fn responses(&mut self, body: Located<'a>) {
        if let Some(instructions) = body.get("instructions") {
            let parts = part(instructions, Kind::Said).into_iter().collect();
            self.message(Message { role: Role::System, at: instructions, parts });
        }
        let Some(input) = body.get("input") else { return };
        if let Some(text) = input.text() {
            let part = Part { at: input, text, kind: Kind::Said, title: None, source: None };
            self.message(Message { role: Role::User, at: input, parts: vec![part] });
            return;
        }
        for item in input.items() {
            let mut parts = Vec::new();
            let role = match item.text_of("type").as_deref() {
                None | Some("message") => {
                    self.content(item.get("content"), &Kind::Said, &mut parts);
                    match item.text_of("role").as_deref() {
                        Some("user") => Role::User,
                        Some("assistant") => Role::Assistant,
                        _ => Role::System,
                    }
                }
                Some("function_call_output" | "custom_tool_call_output") => {
                    let kind = self.tool(item.text_of("call_id"));
                    self.content(item.get("output"), &kind, &mut parts);
                    Role::Tool
                }
                // What a client says to other calls of the model.
                Some(kind) if kind.ends_with("_output") || kind.ends_with("_response") => Role::Tool,
                // Calls, reasoning, and whatever else a model says.
                Some(_) => {
                    self.call(item.text_of("call_id"), item.text_of("name"));
                    Role::Assistant
                }
            };
            self.message(Message { role, at: item, parts });
        }
    }

    fn messages(&mut self, body: Located<'a>) {
        if let Some(system) = body.get("system") {
            let mut parts = Vec::new();
            self.content(Some(system), &Kind::Said, &mut parts);
            self.message(Message { role: Role::System, at: system, parts });
        }
        for message in items(body, "messages") {
            let role = match message.text_of("role").as_deref() {
                Some("assistant") => Role::Assistant,
                _ => Role::User,
            };
            let mut parts = Vec::new();
            self.content(message.get("content"), &Kind::Said, &mut parts);
            self.message(Message { role, at: message, parts });
        }
    }

    /// Keeps a message. Once there is too much, only the last one in which the user says something is kept: texts that a request brings
    /// are put in front of it.
    fn message(&mut self, message: Message<'a>) {
        self.says_something = false;
        if self.fits() {
            self.messages.push(message);
        } else if message.is_asking() {
            self.messages = vec![message];
        }
    }

    /// Keeps a text of a message. Once there is too much, only the first one that says something is kept.
    fn part(&mut self, parts: &mut Vec<Part<'a>>, part: Part<'a>) {
        let says_something = part.says_something();
        if self.fits() || says_something && !self.says_something {
            parts.push(part);
        }
        self.says_something |= says_something;
    }

    fn call(&mut self, id: Option<String>, name: Option<String>) {
        if let Some((id, name)) = id.zip(name)
            && self.fits()
        {
            self.calls.insert(id.into(), name.into());
        }
    }

    /// Counts one more, and whether it may be kept.
    fn fits(&mut self) -> bool {
        self.part_count += 1;
        if self.part_count == PART_COUNT_MAX + 1 {
            let last = self.messages.iter().rposition(Message::is_asking);
            self.messages = last.map(|at| self.messages.swap_remove(at)).into_iter().collect();
            self.calls = HashMap::new();
        }
        !self.is_cut()
    }

    fn is_cut(&self) -> bool {
        self.part_count > PART_COUNT_MAX
    }

    fn tool(&self, id: Option<String>) -> Kind {
        let id: Arc<str> = id.unwrap_or_default().into();
        Kind::Tool { name: self.calls.get(&id).cloned().unwrap_or_default(), id }
    }

    /// A string, or a list of blocks.
    fn content(&mut self, content: Option<Located<'a>>, kind: &Kind, parts: &mut Vec<Part<'a>>) {
        let Some(content) = content else { return };
        if let Some(part) = part(content, kind.clone()) {
            self.part(parts, part);
        }
        for block in content.items() {
            self.block(block, kind, parts);
        }
    }

    fn block(&mut self, block: Located<'a>, kind: &Kind, parts: &mut Vec<Part<'a>>) {
        match block.text_of("type").as_deref() {
            Some("text" | "input_text" | "output_text") => {
                if let Some(part) = block.get("text").and_then(|text| part(text, kind.clone())) {
                    self.part(parts, part);
                }
            }
            // One inside another is nobody's: it would have no end.
            Some("tool_result") if *kind == Kind::Said => {
                let kind = self.tool(block.text_of("tool_use_id"));
                self.content(block.get("content"), &kind, parts);
            }
            Some("tool_use") => self.call(block.text_of("id"), block.text_of("name")),
            Some("document") => {
                self.notice_citations(block);
                let document = self.documents;
                self.documents += 1;
                let Some(source) = block.get("source") else { return };
                let title: Option<Arc<str>> = block.text_of("title").map(Arc::from);
                let called = |part| Part { title: title.clone(), ..part };
                let whole = |field: &str| part(source.get(field)?, Kind::Document(document, None));
                match source.text_of("type").as_deref() {
                    Some("text") => {
                        if let Some(part) = whole("data") {
                            self.part(parts, called(part));
                        }
                    }
                    Some("content") => {
                        if let Some(part) = whole("content") {
                            self.part(parts, called(part));
                        }
                        let kind = |at| Kind::Document(document, Some(at));
                        for part in blocks(source.get("content"), kind) {
                            self.part(parts, called(part));
                        }
                    }
                    // Files and addresses are not ours to read.
                    _ => {}
                }
            }
            Some("search_result") => {
                self.notice_citations(block);
                let result = self.search_results;
                self.search_results += 1;
                let title: Option<Arc<str>> = block.text_of("title").map(Arc::from);
                let source: Option<Arc<str>> = block.text_of("source").map(Arc::from);
                for part in blocks(block.get("content"), |at| Kind::SearchResult(result, at)) {
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
    fn is_asking(&self) -> bool {
        self.role == Role::User && self.parts.iter().any(Part::says_something)
    }
}

impl Part<'_> {
    fn says_something(&self) -> bool {
        self.kind == Kind::Said && !self.text.trim().is_empty()
    }
}

/// The values in the list of a field; none where there is no such list.
fn items<'a>(object: Located<'a>, field: &str) -> Items<'a> {
    object.get(field).map(Located::items).unwrap_or_default()
}

/// The texts of a list of blocks, by their places.
fn blocks<'a>(list: Option<Located<'a>>, kind: impl Fn(usize) -> Kind) -> impl Iterator<Item = Part<'a>> {
    let items = list.map(Located::items).unwrap_or_default();
    items.enumerate().filter_map(move |(at, block)| part(block.get("text")?, kind(at)))
}

fn part(at: Located, kind: Kind) -> Option<Part> {
    Some(Part { text: at.text()?, at, kind, title: None, source: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(dialect: Dialect, body: &str) -> Vec<(Role, Kind, String)> {
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

    fn said(role: Role, text: &str) -> (Role, Kind, String) {
        (role, Kind::Said, text.to_owned())
    }

    fn tool(role: Role, text: &str) -> (Role, Kind, String) {
        (role, Kind::Tool { name: "search".into(), id: "c1".into() }, text.to_owned())
    }

    #[test]
    fn chat() {
        let body = r#"{"messages": [{"role": "system", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "image_url", "image_url": {"url": "data:"}}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "function": {"name": "search", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "R"}]}"#;
        let expect = [said(Role::System, "S"), said(Role::User, "Q"), tool(Role::Tool, "R")];
        assert_eq!(parts(Dialect::Chat, body), expect);
    }

    #[test]
    fn responses() {
        let body = r#"{"input": [{"role": "user", "content": "Q"}, {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "R"}]}"#;
        assert_eq!(parts(Dialect::Responses, body), [said(Role::User, "Q"), tool(Role::Tool, "R")]);
        assert_eq!(parts(Dialect::Responses, r#"{"input": "Q"}"#), [said(Role::User, "Q")]);
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
        let user = |kind: Kind, text: &str| (Role::User, kind, text.to_owned());
        let expect = [
            said(Role::System, "S"),
            user(Kind::Document(0, None), "D0"),
            user(Kind::Document(2, Some(0)), "D2"),
            user(Kind::SearchResult(0, 0), "a"),
            user(Kind::SearchResult(0, 1), "b"),
            said(Role::User, "Q"),
            tool(Role::User, "R"),
        ];
        assert_eq!(parts(Dialect::Messages, body), expect);
    }

    #[test]
    fn of_a_conversation_with_too_many_parts_the_last_question_is_kept() {
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
        check("nobody asks", &format!("{many}null"), &[], true);
        let blocks = r#"{"type":"text","text":" "},"#.repeat(PART_COUNT_MAX);
        let long = format!(r#"{{"role":"user","content":[{blocks}{{"type":"text","text":"Q3"}}]}}"#);
        check("in one message", &format!("{asks},{long}"), &["Q3"], true);
    }

    #[test]
    fn who_cites_itself() {
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
