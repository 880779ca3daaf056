//! An answer that arrives in events. Events go on as they came; citations are events of their own, put in front of the one that ends the
//! text which cites. Only OpenAI's Responses repeat a text and its citations in events that end it, and number their events: there, and
//! only there, an event is changed.
//!
//! An upstream may send without end. What is held of its answer is bounded: when the texts of one answer take more bytes than may be held,
//! nothing more of it is read, and no more citations are added.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use super::answer::{self, TEXT_BYTES};
use super::dialect::Dialect;
use super::json::{Edits, Items, Located};

/// Cuts a stream of bytes behind each event.
#[derive(Debug)]
pub struct Events {
    held: BytesMut,
    /// Up to here no event ends.
    searched: usize,
    /// Bytes of one event.
    bytes_max: usize,
}

impl Events {
    /// An event of more than `bytes_max` is too long.
    pub fn new(bytes_max: usize) -> Self {
        Self { held: BytesMut::new(), searched: 0, bytes_max }
    }

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
        self.held.len() > self.bytes_max
    }

    /// Bytes that are held.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }

    fn end(&mut self) -> Option<usize> {
        let ends = [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"];
        let from = self.searched.saturating_sub(3);
        for at in from..self.held.len() {
            if !matches!(self.held[at], b'\n' | b'\r') {
                continue;
            }
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
    Choice { index: u64, of: Arc<str> },
    /// A block of a message.
    Block { index: u64 },
    /// A text of an item of a response.
    Item { id: String, output: u64, content: u64 },
}

/// An answer on its way.
#[derive(Debug)]
pub struct Arriving {
    dialect: Dialect,
    /// Texts of choices or blocks, as far as they have come.
    texts: HashMap<u64, String>,
    /// Events that were put in, where events are numbered.
    added: u64,
    /// Items of a response, by their ids.
    items: HashMap<String, Item>,
    /// Whether something came that could not be read: places in texts are not known any more.
    is_blind: bool,
    /// Bytes of all texts of the answer, and of what is kept to place their citations.
    taken_bytes: usize,
    /// What these may be.
    bytes_max: usize,
}

/// What is known of an item of a response, by the places of its texts.
#[derive(Debug, Default)]
struct Item {
    /// Citations that were added.
    cited: HashMap<u64, Vec<Value>>,
    /// How many the server itself has sent.
    own: HashMap<u64, usize>,
}

impl Arriving {
    /// Nothing has come yet. The texts may take `bytes_max` together, each [`TEXT_BYTES`] more than its own.
    pub fn new(dialect: Dialect, bytes_max: usize) -> Self {
        let (texts, items) = (HashMap::new(), HashMap::new());
        Self { dialect, texts, added: 0, items, is_blind: false, taken_bytes: 0, bytes_max }
    }

    /// Whether the texts of the answer are longer than what may be held: no more of it is read.
    pub fn is_full(&self) -> bool {
        self.taken_bytes > self.bytes_max
    }

    /// Whether nothing of what is still to come is read or changed.
    pub fn is_over(&self) -> bool {
        self.is_full() && self.added == 0
    }

    /// Bytes of texts that are held, and of the names of what is known of items.
    pub fn held_bytes(&self) -> usize {
        let of_item =
            |(id, item): (&String, &Item)| id.len() + TEXT_BYTES * (item.cited.len() + item.own.len());
        let texts: usize = self.texts.values().map(|text| text.len() + TEXT_BYTES).sum();
        texts + self.items.iter().map(of_item).sum::<usize>()
    }

    /// Looks at an event; the texts that end with it.
    pub fn look(&mut self, event: &[u8]) -> Vec<Ended> {
        if self.is_full() {
            return Vec::new();
        }
        // A comment has none, nor has a name alone.
        let Some(data) = data(event).filter(|data| data != "[DONE]") else { return Vec::new() };
        let Ok(event) = serde_json::from_str::<Value>(&data) else {
            self.is_blind = true;
            return Vec::new();
        };
        let ended = match self.dialect {
            Dialect::Chat => self.chat(event),
            Dialect::Responses => self.response(&event).into_iter().collect(),
            Dialect::Messages => self.messages(&event).into_iter().collect(),
        };
        // A response's texts are told whole when they end.
        let is_whole = !self.is_blind || self.dialect == Dialect::Responses;
        ended.into_iter().filter(|ended| is_whole && !ended.text.trim().is_empty()).collect()
    }

    /// Counts bytes that are held from now on; whether they may be.
    fn take(&mut self, bytes: usize) -> bool {
        self.taken_bytes = self.taken_bytes.saturating_add(bytes);
        if self.is_full() {
            self.texts = HashMap::new();
        }
        !self.is_full()
    }

    /// Adds to the text of a choice or block; whether it may be held.
    fn add(&mut self, index: u64, more: &str) -> bool {
        let new = if self.texts.contains_key(&index) { 0 } else { TEXT_BYTES };
        let fits = more.is_empty() || self.take(more.len() + new);
        if fits && !more.is_empty() {
            self.texts.entry(index).or_default().push_str(more);
        }
        fits
    }

    fn chat(&mut self, mut event: Value) -> Vec<Ended> {
        let mut ended = Vec::new();
        let choices = event.get_mut("choices").map(Value::take).unwrap_or_default();
        let mut of: Option<Arc<str>> = None;
        for choice in choices.as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().unwrap_or(0);
            if !self.add(index, choice["delta"]["content"].as_str().unwrap_or_default()) {
                return ended;
            }
            if choice["finish_reason"].as_str().is_none_or(str::is_empty) {
                continue;
            }
            let Some(text) = self.texts.remove(&index) else { continue };
            let of = of.get_or_insert_with(|| {
                event.as_object_mut().map(|of| of.shift_remove("usage"));
                event.to_string().into()
            });
            // It is read again for every choice that ends in this event.
            if !self.take(of.len()) {
                return ended;
            }
            ended.push(Ended { text, place: Place::Choice { index, of: Arc::clone(of) } });
        }
        ended
    }

    /// A text of a response says itself when it ends.
    fn response(&mut self, event: &Value) -> Option<Ended> {
        let id = || Some((event["item_id"].as_str()?, event["content_index"].as_u64()?));
        match event["type"].as_str()? {
            "response.output_text.annotation.added" => {
                let (id, content) = id()?;
                let is_known = self.items.get(id).is_some_and(|item| item.own.contains_key(&content));
                if is_known || self.take(id.len() + TEXT_BYTES) {
                    *self.items.entry(id.to_owned()).or_default().own.entry(content).or_default() += 1;
                }
                None
            }
            "response.output_text.done" => {
                let (id, content) = id()?;
                let (output, text) = (event["output_index"].as_u64()?, event["text"].as_str()?);
                self.take(id.len() + text.len() + TEXT_BYTES).then(|| Ended {
                    text: text.to_owned(),
                    place: Place::Item { id: id.to_owned(), output, content },
                })
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
        self.add(index, more.as_str().unwrap_or_default());
        None
    }

    /// The events that say what a text cites. `event` is the one that ended it.
    pub fn cite(&mut self, ended: Ended, citations: Vec<Value>, event: &[u8]) -> Vec<u8> {
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
                // Read here alone: an event may be long, but it ends one text of a response at most.
                let number = number(event);
                let mut events = String::new();
                let item = self.items.entry(id.clone()).or_default();
                let first = item.own.get(&content).copied().unwrap_or_default();
                for (at, citation) in (first..).zip(&citations) {
                    let mut data = json!({
                        "type": "response.output_text.annotation.added", "item_id": id, "output_index": output,
                        "content_index": content, "annotation_index": at, "annotation": citation,
                    });
                    if let Some(number) = number {
                        data["sequence_number"] = json!(number.saturating_add(self.added));
                    }
                    self.added += 1;
                    events
                        .push_str(&format!("event: response.output_text.annotation.added\ndata: {data}\n\n"));
                }
                item.cited.insert(content, citations);
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
            edits.set_field(body, "sequence_number", &number.saturating_add(self.added).to_string());
        }
        match body.text_of("type").as_deref() {
            Some("response.content_part.done") => {
                let item = body.text_of("item_id").and_then(|id| self.items.get(&id));
                let content = body.get("content_index").and_then(Located::read::<u64>);
                let citations = item.zip(content).and_then(|(item, content)| item.cited.get(&content));
                for (part, citations) in body.get("part").into_iter().zip(citations) {
                    self.annotate(part, citations, &mut edits);
                }
            }
            Some("response.output_item.done") => {
                body.get("item").into_iter().for_each(|item| self.annotate_item(item, &mut edits));
            }
            Some("response.completed" | "response.incomplete") => {
                let output = body.get("response").and_then(|response| response.get("output"));
                let items: Items = output.map(Located::items).unwrap_or_default();
                // An item that an upstream repeats gets its citations once: else a short event would grow without bound.
                let mut seen = HashSet::new();
                items
                    .filter(|item| item.text_of("id").is_none_or(|id| seen.insert(id)))
                    .for_each(|item| self.annotate_item(item, &mut edits));
            }
            _ => {}
        }
        // The data is a part of the event: what stands around it stays, whatever ends its lines.
        let at = data.as_ptr() as usize - event.as_ptr() as usize;
        [&event[..at], edits.apply(data).as_bytes(), &event[at + data.len()..]].concat().into()
    }

    fn annotate_item(&self, item: Located, edits: &mut Edits) {
        let Some(known) = item.text_of("id").and_then(|id| self.items.get(&id)) else { return };
        let parts: Items = item.get("content").map(Located::items).unwrap_or_default();
        for (at, part) in parts.enumerate() {
            if let Some(citations) = known.cited.get(&(at as u64)) {
                self.annotate(part, citations, edits);
            }
        }
    }

    fn annotate(&self, part: Located, citations: &[Value], edits: &mut Edits) {
        answer::cite(self.dialect, &answer::Text::of(part), citations, edits);
    }
}

/// The number of an event, where it has one.
fn number(event: &[u8]) -> Option<u64> {
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
            let mut events = Events::new(1_000);
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
                out.push(arriving.cite(ended, vec![cited], &event).into());
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
        let out = events(&mut Arriving::new(Dialect::Chat, 1_000_000), &stream);
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
        let out = events(&mut Arriving::new(Dialect::Messages, 1_000_000), &stream);
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
        let out = events(&mut Arriving::new(Dialect::Responses, 1_000_000), &stream);
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
            let mut arriving = Arriving::new(dialect, 1_000_000);
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
            let out = events(&mut Arriving::new(Dialect::Chat, 1_000_000), &[&first, &second, end]);
            assert_eq!(out.len(), expect, "{name}: {out:?}");
        };
        check("two deltas", delta("\"It \""), delta("\"is.\""), 4);
        check("half a character", delta("\"It \\ud83d\""), delta("\"\\ude00 is.\""), 3);
        let two_lines = delta("\"It \"").replace(",\"delta\"", ",\ndata: \"delta\"");
        check("two lines", two_lines, delta("\"is.\""), 4);
        let unfinished = delta("\"It \"").replace("}}]}", "},\"finish_reason\":\"\"}]}");
        check("an empty reason", unfinished, delta("\"is.\""), 4);
    }

    /// Data of an event of a text, for each dialect: a piece of the text, and its end.
    fn deltas(dialect: Dialect, index: usize, text: &str) -> (String, String) {
        let (piece, end) = match dialect {
            Dialect::Chat => (
                json!({"choices": [{"index": index, "delta": {"content": text}}]}),
                json!({"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}),
            ),
            Dialect::Messages => (
                json!({"type": "content_block_delta", "index": index, "delta": {"text": text}}),
                json!({"type": "content_block_stop", "index": index}),
            ),
            Dialect::Responses => (
                json!({"type": "response.output_text.delta", "item_id": "m", "delta": text}),
                json!({"type": "response.output_text.done", "item_id": format!("m{index}"), "output_index": 0,
                    "content_index": 0, "text": text}),
            ),
        };
        (piece.to_string(), end.to_string())
    }

    #[test]
    fn an_answer_without_end_is_held_up_to_its_bound_and_goes_on_as_it_came() {
        const BYTES_MAX: usize = 10_000;
        let letters = "x".repeat(500);
        let own =
            json!({"type": "response.output_text.annotation.added", "item_id": "m", "content_index": 0});
        for dialect in [Dialect::Chat, Dialect::Responses, Dialect::Messages] {
            // One text without end, texts without number, and annotations of items without number.
            let one: fn(Dialect, &str, usize) -> String = |dialect, text, at| match dialect {
                Dialect::Responses => deltas(dialect, at, text).1,
                _ => deltas(dialect, 0, text).0,
            };
            let many: fn(Dialect, &str, usize) -> String = |dialect, _, at| match dialect {
                Dialect::Responses => deltas(dialect, at, "x").1,
                _ => deltas(dialect, at, "x").0,
            };
            for (name, event) in [("one", one), ("many", many)] {
                let (mut arriving, mut ended_bytes) = (Arriving::new(dialect, BYTES_MAX), 0);
                for at in 0..20_000 {
                    let event = Bytes::from(format!("data: {}\n\n", event(dialect, &letters, at)));
                    ended_bytes += arriving
                        .look(&event)
                        .iter()
                        .map(|ended| ended.text.len() + TEXT_BYTES)
                        .sum::<usize>();
                    assert!(arriving.held_bytes() <= BYTES_MAX, "{dialect:?}, {name}, {at}");
                    assert_eq!(arriving.passed(event.clone()), event, "{dialect:?}, {name}, {at}");
                }
                assert!(ended_bytes <= BYTES_MAX, "{dialect:?}, {name}: what is cited is bounded, too");
                assert!(arriving.is_full() && arriving.is_over(), "{dialect:?}, {name}");
                assert_eq!(
                    arriving.held_bytes(),
                    0,
                    "{dialect:?}, {name}: texts that are not cited are let go"
                );
                let (_, end) = deltas(dialect, 0, "x");
                assert!(
                    arriving.look(format!("data: {end}\n\n").as_bytes()).is_empty(),
                    "{dialect:?}, {name}"
                );
            }
        }
        let mut arriving = Arriving::new(Dialect::Responses, BYTES_MAX);
        for at in 0..20_000 {
            let event = own.to_string().replace("\"m\"", &format!("\"m{at}\""));
            assert!(arriving.look(format!("data: {event}\n\n").as_bytes()).is_empty());
            assert!(arriving.held_bytes() <= BYTES_MAX, "{at}");
        }
    }

    #[test]
    fn events_keep_their_numbers_apart_when_no_more_citations_are_added() {
        let mut arriving = Arriving::new(Dialect::Responses, 1_000);
        let done = |text: &str, number: u64| {
            json!({"type": "response.output_text.done", "item_id": "m", "output_index": 0, "content_index": 0,
                "text": text, "sequence_number": number})
            .to_string()
        };
        let (first, long, last) = (done("It is.", 1), done(&"x".repeat(2_000), 2), done("So.", 3));
        let out = events(&mut arriving, &[&first, &long, &last]);
        let numbers: Vec<u64> = out.iter().map(|event| number(event.as_bytes()).expect("a number")).collect();
        assert_eq!(numbers, [1, 2, 3, 4], "one citation, and three events");
        assert!(arriving.is_full() && !arriving.is_over());
    }

    #[test]
    fn a_number_that_cannot_grow_stays_as_it_is() {
        let done = json!({"type": "response.output_text.done", "item_id": "m", "output_index": 0,
            "content_index": 0, "text": "It is.", "sequence_number": u64::MAX});
        let out = events(&mut Arriving::new(Dialect::Responses, 1_000), &[&done.to_string()]);
        let numbers: Vec<u64> = out.iter().map(|event| number(event.as_bytes()).expect("a number")).collect();
        assert_eq!(numbers, [u64::MAX; 2]);
    }

    #[test]
    fn choices_that_end_in_one_event_do_not_copy_it_for_each() {
        const CHOICES: usize = 10_000;
        let choice = |index| json!({"index": index, "delta": {"content": "x"}, "finish_reason": "stop"});
        let choices: Vec<Value> = (0..CHOICES).map(choice).collect();
        let event = json!({"id": "y".repeat(1_000), "choices": choices});
        let mut arriving = Arriving::new(Dialect::Chat, 100_000);
        let ended = arriving.look(format!("data: {event}\n\n").as_bytes());
        assert!((1..100).contains(&ended.len()), "{} of 1,000 bytes each", ended.len());
        assert!(arriving.is_full());
    }

    #[test]
    fn an_event_without_end_is_given_up() {
        let mut events = Events::new(1_000);
        let mut sent = 0;
        while !events.is_too_long() {
            assert!(events.push(b"data: xx").is_empty());
            sent += 8;
        }
        assert_eq!((sent, events.held_bytes()), (1_008, 1_008));
        assert_eq!((events.rest().len(), events.held_bytes()), (1_008, 0));
    }
}
