//! An answer that arrives in events. Events go on as they came; citations are events of their own, put in front of the one that ends the
//! text which cites. Only OpenAI's Responses repeat a text and its citations in events that end it, and number their events: there, and
//! only there, an event is changed.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use super::answer;
use super::dialect::Dialect;
use super::json::{Edits, Located};

/// Bytes of a line that is no end of an event: what is longer is not looked into any more.
const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Cuts a stream of bytes behind each event.
#[derive(Debug, Default)]
pub struct Events {
    held: BytesMut,
    /// Up to here no event ends.
    searched: usize,
}

impl Events {
    /// Takes bytes; the events that they complete, with the blank lines that end them.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Bytes> {
        self.held.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.end() {
            events.push(self.held.split_to(end).freeze());
            self.searched = 0;
        }
        events
    }

    /// What is left at the end, or is too long to be an event.
    pub fn rest(&mut self) -> Bytes {
        self.searched = 0;
        self.held.split().freeze()
    }

    /// Whether what is held is too long.
    pub fn is_too_long(&self) -> bool {
        self.held.len() > EVENT_BYTES_MAX
    }

    fn end(&mut self) -> Option<usize> {
        let ends = [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"];
        let from = self.searched.saturating_sub(3);
        for at in from..self.held.len() {
            if let Some(end) = ends.iter().find(|end| self.held[at..].starts_with(end)) {
                return Some(at + end.len());
            }
        }
        self.searched = self.held.len();
        None
    }
}

/// A text that has come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// What it says.
    pub text: String,
    place: Place,
}

/// Where a text stands in the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// A choice, of a chunk with these fields.
    Choice { index: u64, of: String },
    /// A block of a message.
    Block { index: u64 },
    /// A text of an item of a response.
    Item { id: String, output: u64, content: u64 },
}

/// An answer on its way.
#[derive(Debug)]
pub struct Arriving {
    dialect: Dialect,
    texts: HashMap<u64, String>,
    /// Events that were put in, where events are numbered.
    added: u64,
    /// Citations of texts of a response: by item and place.
    cited: HashMap<(String, u64), Vec<Value>>,
    /// How many the server itself has sent of them.
    own: HashMap<(String, u64), usize>,
    /// Whether something came that could not be read: places in texts are not known any more.
    is_blind: bool,
}

impl Arriving {
    /// Nothing has come yet.
    pub fn new(dialect: Dialect) -> Self {
        let (texts, cited, own) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { dialect, texts, added: 0, cited, own, is_blind: false }
    }

    /// Looks at an event; the texts that end with it.
    pub fn look(&mut self, event: &[u8]) -> Vec<Ended> {
        // A comment has none, nor has a name alone.
        let Some(data) = data(event).filter(|data| data != "[DONE]") else { return Vec::new() };
        let Ok(event) = serde_json::from_str::<Value>(&data) else {
            self.is_blind = true;
            return Vec::new();
        };
        let ended = match self.dialect {
            Dialect::Chat => self.chat(&event),
            Dialect::Responses => self.response(&event).into_iter().collect(),
            Dialect::Messages => self.messages(&event).into_iter().collect(),
        };
        // A response's texts are told whole when they end.
        let is_whole = !self.is_blind || self.dialect == Dialect::Responses;
        ended.into_iter().filter(|ended| is_whole && !ended.text.trim().is_empty()).collect()
    }

    fn chat(&mut self, event: &Value) -> Vec<Ended> {
        let mut ended = Vec::new();
        for choice in event["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().unwrap_or(0);
            let text = self.texts.entry(index).or_default();
            text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            if choice["finish_reason"].as_str().is_some_and(|reason| !reason.is_empty()) {
                let mut of = event.clone();
                of.as_object_mut().map(|of| of.shift_remove("usage"));
                ended.push(Ended {
                    text: std::mem::take(text),
                    place: Place::Choice { index, of: of.to_string() },
                });
            }
        }
        ended
    }

    /// A text of a response says itself when it ends.
    fn response(&mut self, event: &Value) -> Option<Ended> {
        let id = || Some((event["item_id"].as_str()?.to_owned(), event["content_index"].as_u64()?));
        match event["type"].as_str()? {
            "response.output_text.annotation.added" => {
                *self.own.entry(id()?).or_default() += 1;
                None
            }
            "response.output_text.done" => {
                let (id, content) = id()?;
                let place = Place::Item { id, output: event["output_index"].as_u64()?, content };
                Some(Ended { text: event["text"].as_str()?.to_owned(), place })
            }
            _ => None,
        }
    }

    fn messages(&mut self, event: &Value) -> Option<Ended> {
        let index = event["index"].as_u64()?;
        let more = match event["type"].as_str()? {
            "content_block_start" => &event["content_block"]["text"],
            "content_block_delta" => &event["delta"]["text"],
            "content_block_stop" => {
                let text = self.texts.remove(&index)?;
                return Some(Ended { text, place: Place::Block { index } });
            }
            _ => return None,
        };
        self.texts.entry(index).or_default().push_str(more.as_str().unwrap_or_default());
        None
    }

    /// The events that say what a text cites.
    pub fn cite(&mut self, ended: Ended, citations: Vec<Value>, number: Option<u64>) -> Vec<u8> {
        if citations.is_empty() {
            return Vec::new();
        }
        match ended.place {
            Place::Choice { index, of } => {
                let mut chunk: Value = serde_json::from_str(&of).unwrap_or_default();
                let delta = json!({"annotations": citations});
                chunk["choices"] = json!([{"index": index, "delta": delta, "finish_reason": null}]);
                format!("data: {chunk}\n\n").into_bytes()
            }
            Place::Block { index } => {
                let event = |citation: &Value| {
                    let delta = json!({"type": "citations_delta", "citation": citation});
                    let data = json!({"type": "content_block_delta", "index": index, "delta": delta});
                    format!("event: content_block_delta\ndata: {data}\n\n")
                };
                citations.iter().map(event).collect::<String>().into_bytes()
            }
            Place::Item { id, output, content } => {
                let mut events = String::new();
                let first = self.own.get(&(id.clone(), content)).copied().unwrap_or_default();
                for (at, citation) in (first..).zip(&citations) {
                    let mut data = json!({
                        "type": "response.output_text.annotation.added", "item_id": id, "output_index": output,
                        "content_index": content, "annotation_index": at, "annotation": citation,
                    });
                    if let Some(number) = number {
                        data["sequence_number"] = json!(number + self.added);
                    }
                    self.added += 1;
                    events
                        .push_str(&format!("event: response.output_text.annotation.added\ndata: {data}\n\n"));
                }
                self.cited.insert((id, content), citations);
                events.into_bytes()
            }
        }
    }

    /// An event as it goes on: changed, where it repeats a text that cites, or has a number that another has now.
    pub fn passed(&self, event: Bytes) -> Bytes {
        if self.added == 0 {
            return event;
        }
        let Some(Cow::Borrowed(data)) = data(&event) else { return event };
        let Ok(body) = Located::parse(data) else { return event };
        let mut edits = Edits::default();
        if let Some(number) = body.get("sequence_number").and_then(Located::read::<u64>) {
            edits.set_field(body, "sequence_number", &(number + self.added).to_string());
        }
        match body.text_of("type").as_deref() {
            Some("response.content_part.done") => {
                let place = body.text_of("item_id").zip(body.get("content_index").and_then(Located::read));
                let citations = place.and_then(|place: (String, u64)| self.cited.get(&place));
                for (part, citations) in body.get("part").into_iter().zip(citations) {
                    self.annotate(part, citations, &mut edits);
                }
            }
            Some("response.output_item.done") => {
                body.get("item").into_iter().for_each(|item| self.annotate_item(item, &mut edits));
            }
            Some("response.completed" | "response.incomplete") => {
                let output = body.get("response").and_then(|response| response.get("output"));
                let items = output.map(Located::items).unwrap_or_default();
                items.into_iter().for_each(|item| self.annotate_item(item, &mut edits));
            }
            _ => {}
        }
        let data = edits.apply(data);
        let text = std::str::from_utf8(&event).unwrap_or_default();
        match text.lines().find(|line| line.starts_with("data:")) {
            Some(line) => text.replacen(line, &format!("data: {data}"), 1).into(),
            None => event,
        }
    }

    fn annotate_item(&self, item: Located, edits: &mut Edits) {
        let Some(id) = item.text_of("id") else { return };
        for (at, part) in item.get("content").map(Located::items).unwrap_or_default().into_iter().enumerate()
        {
            if let Some(citations) = self.cited.get(&(id.clone(), at as u64)) {
                self.annotate(part, citations, edits);
            }
        }
    }

    fn annotate(&self, part: Located, citations: &[Value], edits: &mut Edits) {
        answer::cite(self.dialect, &answer::Text::of(part), citations, edits);
    }
}

/// The number of an event, where it has one.
pub fn number(event: &[u8]) -> Option<u64> {
    Located::parse(&data(event)?).ok()?.get("sequence_number")?.read()
}

/// The data of an event. Servers that send JSON send it in one line; what has several is put together, and goes on as it is.
fn data(event: &[u8]) -> Option<Cow<'_, str>> {
    // What is no text had data that nobody can read.
    let Ok(text) = std::str::from_utf8(event) else { return Some(Cow::Owned(String::new())) };
    let mut lines = text.split(['\n', '\r']).filter_map(|line| line.strip_prefix("data:"));
    let first = lines.next()?.trim();
    let rest: Vec<&str> = lines.collect();
    Some(if rest.is_empty() {
        Cow::Borrowed(first)
    } else {
        Cow::Owned(format!("{first}\n{}", rest.join("\n")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_where_they_end_however_they_come() {
        let stream = b"data: 1\n\nevent: x\r\ndata: 2\r\n\r\n: ping\n\ndata: 3\r\rdata: cut";
        for size in 1..stream.len() {
            let mut events = Events::default();
            let mut found: Vec<Bytes> = stream.chunks(size).flat_map(|bytes| events.push(bytes)).collect();
            assert_eq!(found.len(), 4, "{size}");
            found.push(events.rest());
            assert_eq!(found.concat(), stream, "{size}");
        }
    }

    fn events(arriving: &mut Arriving, stream: &[&str]) -> Vec<String> {
        let mut out = Vec::new();
        for event in stream {
            let event = Bytes::from(format!("data: {event}\n\n"));
            for ended in arriving.look(&event) {
                let cited = json!({"cites": ended.text});
                out.push(arriving.cite(ended, vec![cited], number(&event)).into());
            }
            out.push(arriving.passed(event));
        }
        out.into_iter().map(|event| String::from_utf8(event.to_vec()).expect("text")).collect()
    }

    #[test]
    fn a_chat_cites_before_it_finishes() {
        let stream = [
            r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"It"}}]}"#,
            r#"{"id":"c","choices":[{"index":1,"delta":{"content":"No"}},{"index":0,"delta":{"content":" is."}}]}"#,
            r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
            "[DONE]",
        ];
        let out = events(&mut Arriving::new(Dialect::Chat), &stream);
        assert_eq!(out.len(), 5);
        let added = r#"data: {"id":"c","choices":[{"index":0,"delta":{"annotations":[{"cites":"It is."}]},"finish_reason":null}]}"#;
        assert_eq!(out[2], format!("{added}\n\n"));
        let kept = [&out[..2], &out[3..]].concat();
        assert_eq!(kept, stream.map(|event| format!("data: {event}\n\n")), "the rest is as it was");
    }

    #[test]
    fn a_block_cites_before_it_stops() {
        let stream = [
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"It is."}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use"}}"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"message_stop"}"#,
        ];
        let out = events(&mut Arriving::new(Dialect::Messages), &stream);
        assert_eq!(out.len(), 7);
        assert!(
            out[2].starts_with(
                "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
            )
        );
        assert!(out[2].contains(r#"{"type":"citations_delta","citation":{"cites":"It is."}}"#), "{}", out[2]);
    }

    #[test]
    fn a_response_repeats_its_citations() {
        let part = r#"{"type":"output_text","text":"It is.","annotations":[]}"#;
        let item = format!(r#"{{"id":"m","type":"message","content":[{part}]}}"#);
        let stream = [
            r#"{"type":"response.output_text.delta","item_id":"m","delta":"It is.","sequence_number":3}"#.to_owned(),
            r#"{"type":"response.output_text.done","item_id":"m","output_index":0,"content_index":0,"text":"It is.","sequence_number":4}"#.to_owned(),
            format!(r#"{{"type":"response.content_part.done","item_id":"m","output_index":0,"content_index":0,"part":{part},"sequence_number":5}}"#),
            format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{item},"sequence_number":6}}"#),
            format!(r#"{{"type":"response.completed","response":{{"output":[{item}]}},"sequence_number":7}}"#),
        ];
        let stream: Vec<&str> = stream.iter().map(|event| &**event).collect();
        let out = events(&mut Arriving::new(Dialect::Responses), &stream);
        assert_eq!(out.len(), 6);
        let numbers: Vec<u64> = out.iter().map(|event| number(event.as_bytes()).expect("a number")).collect();
        assert_eq!(numbers, [3, 4, 5, 6, 7, 8]);
        assert!(out[1].contains(r#""type":"response.output_text.annotation.added""#), "{}", out[1]);
        for event in &out[3..] {
            assert!(event.contains(r#""annotations":[{"cites":"It is."}]"#), "{event}");
        }
    }

    #[test]
    fn what_is_no_event_of_the_api_is_let_pass() {
        for dialect in [Dialect::Chat, Dialect::Responses, Dialect::Messages] {
            let mut arriving = Arriving::new(dialect);
            for event in [
                &b"\xff\xfe\n\n"[..],
                b"data: {\n\n",
                b": ping\n\n",
                b"data: []\n\n",
                b"data: {\"choices\":3}\n\n",
            ] {
                assert!(arriving.look(event).is_empty());
                assert_eq!(arriving.passed(Bytes::copy_from_slice(event)), event);
            }
        }
    }

    #[test]
    fn what_cannot_be_read_leaves_no_places() {
        let delta = |text: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{"content":{text}}}}}]}}"#);
        let end = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
        let check = |name: &str, first: String, second: String, expect: usize| {
            let out = events(&mut Arriving::new(Dialect::Chat), &[&first, &second, end]);
            assert_eq!(out.len(), expect, "{name}: {out:?}");
        };
        check("two deltas", delta("\"It \""), delta("\"is.\""), 4);
        check("half a character", delta("\"It \\ud83d\""), delta("\"\\ude00 is.\""), 3);
        let two_lines = delta("\"It \"").replace(",\"delta\"", ",\ndata: \"delta\"");
        check("two lines", two_lines, delta("\"is.\""), 4);
        let unfinished = delta("\"It \"").replace("}}]}", "},\"finish_reason\":\"\"}]}");
        check("an empty reason", unfinished, delta("\"is.\""), 4);
    }
}
