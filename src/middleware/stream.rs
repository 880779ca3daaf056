//! An answer that arrives as server-sent events. Events are forwarded unchanged; citations are sent as events of their own, before the event
//! that ends the cited text. Only OpenAI's Responses repeat a text and its citations in the events that end it, and number their events:
//! these events are changed.
//!
//! An upstream may send an answer without end. What is buffered of an answer is bounded: when the texts of one answer take more bytes than
//! the limit, no more events are read, and no more citations are added.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::answer::{self, AnswerText, TEXT_BYTES};
use super::dialect::Dialect;
use super::json::{Edits, Items, Located};
use super::sse;

/// A text of the answer that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedText {
    /// The whole text.
    pub text: String,
    location: TextLocation,
}

/// The location of a text in the answer, by which its citations are addressed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TextLocation {
    /// A choice (Chat Completions); `template` is the JSON of the event that ended the text, without choices and usage.
    Choice { index: u64, template: Arc<str> },
    /// A content block (Messages).
    Block { index: u64 },
    /// A content part of an output item (Responses).
    Item { id: String, output: u64, content: u64 },
}

/// An answer that arrives as events: collects its texts, and adds citations.
#[derive(Debug)]
pub struct AnswerStream {
    dialect: Dialect,
    /// The texts of choices or blocks that have arrived so far, by index.
    texts: HashMap<u64, String>,
    /// The number of inserted events, if events are numbered.
    added: u64,
    /// Output items (Responses) by id.
    items: HashMap<String, Item>,
    /// Whether an event could not be parsed. The collected texts may then be incomplete, and positions in them wrong.
    is_incomplete: bool,
    /// Bytes of all texts of the answer, and of what is kept to address their citations.
    counted_bytes: usize,
    /// The limit of `counted_bytes`.
    bytes_max: usize,
}

/// Citations of an output item (Responses), by the index of the content part.
#[derive(Debug, Default)]
struct Item {
    /// The citations that were added.
    citations: HashMap<u64, Vec<Value>>,
    /// The number of annotations that the upstream itself has sent.
    upstream_counts: HashMap<u64, usize>,
}

impl AnswerStream {
    /// Creates the stream of an answer of which nothing has arrived. Its texts may have `bytes_max` bytes together; each counts
    /// [`TEXT_BYTES`] in addition to its own.
    pub fn new(dialect: Dialect, bytes_max: usize) -> Self {
        let (texts, items) = (HashMap::new(), HashMap::new());
        Self { dialect, texts, added: 0, items, is_incomplete: false, counted_bytes: 0, bytes_max }
    }

    /// Returns whether the texts of the answer exceed the limit. No more events are read then.
    pub fn is_full(&self) -> bool {
        self.counted_bytes > self.bytes_max
    }

    /// Returns whether all further events can be forwarded without passing them to this stream.
    pub fn is_over(&self) -> bool {
        self.is_full() && self.added == 0
    }

    /// Returns the buffered bytes: of texts that have not ended, and of what is known about items.
    pub fn held_bytes(&self) -> usize {
        let of_item = |(id, item): (&String, &Item)| {
            id.len() + TEXT_BYTES * (item.citations.len() + item.upstream_counts.len())
        };
        let texts: usize = self.texts.values().map(|text| text.len() + TEXT_BYTES).sum();
        texts + self.items.iter().map(of_item).sum::<usize>()
    }

    /// Reads an event, and returns the texts that end with it. Blank texts are left out.
    pub fn finished_texts(&mut self, event: &[u8]) -> Vec<FinishedText> {
        if self.is_full() {
            return Vec::new();
        }
        let Some(data) = sse::data(event).filter(|data| data != "[DONE]") else { return Vec::new() };
        let Ok(event) = serde_json::from_str::<Value>(&data) else {
            self.is_incomplete = true;
            return Vec::new();
        };
        let finished = match self.dialect {
            Dialect::Chat => self.chat(event),
            Dialect::Responses => self.response(&event).into_iter().collect(),
            Dialect::Messages => self.messages(&event).into_iter().collect(),
        };
        // The event that ends a text of a response contains the whole text.
        let is_complete = !self.is_incomplete || self.dialect == Dialect::Responses;
        finished.into_iter().filter(|finished| is_complete && !finished.text.trim().is_empty()).collect()
    }

    /// Counts bytes against the limit. Returns whether they are within it.
    fn count(&mut self, bytes: usize) -> bool {
        self.counted_bytes = self.counted_bytes.saturating_add(bytes);
        if self.is_full() {
            self.texts = HashMap::new();
        }
        !self.is_full()
    }

    /// Appends to the text of a choice or block. Returns whether the text is within the limit.
    fn append(&mut self, index: u64, more: &str) -> bool {
        let new = if self.texts.contains_key(&index) { 0 } else { TEXT_BYTES };
        let fits = more.is_empty() || self.count(more.len() + new);
        if fits && !more.is_empty() {
            self.texts.entry(index).or_default().push_str(more);
        }
        fits
    }

    fn chat(&mut self, mut event: Value) -> Vec<FinishedText> {
        let mut finished = Vec::new();
        let choices = event.get_mut("choices").map(Value::take).unwrap_or_default();
        let mut template: Option<Arc<str>> = None;
        for choice in choices.as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().unwrap_or(0);
            if !self.append(index, choice["delta"]["content"].as_str().unwrap_or_default()) {
                return finished;
            }
            if choice["finish_reason"].as_str().is_none_or(str::is_empty) {
                continue;
            }
            let Some(text) = self.texts.remove(&index) else { continue };
            let template = template.get_or_insert_with(|| {
                event.as_object_mut().map(|fields| fields.shift_remove("usage"));
                event.to_string().into()
            });
            // The template is parsed again for every choice that ends in this event, so it counts for each.
            if !self.count(template.len()) {
                return finished;
            }
            let location = TextLocation::Choice { index, template: Arc::clone(template) };
            finished.push(FinishedText { text, location });
        }
        finished
    }

    /// The event that ends a text of a response contains the whole text, so the deltas before it are not collected.
    fn response(&mut self, event: &Value) -> Option<FinishedText> {
        let id = || Some((event["item_id"].as_str()?, event["content_index"].as_u64()?));
        match event["type"].as_str()? {
            "response.output_text.annotation.added" => {
                let (id, content) = id()?;
                let counts = self.items.get(id).map(|item| &item.upstream_counts);
                let is_known = counts.is_some_and(|counts| counts.contains_key(&content));
                if is_known || self.count(id.len() + TEXT_BYTES) {
                    let item = self.items.entry(id.to_owned()).or_default();
                    *item.upstream_counts.entry(content).or_default() += 1;
                }
                None
            }
            "response.output_text.done" => {
                let (id, content) = id()?;
                let (output, text) = (event["output_index"].as_u64()?, event["text"].as_str()?);
                self.count(id.len() + text.len() + TEXT_BYTES).then(|| FinishedText {
                    text: text.to_owned(),
                    location: TextLocation::Item { id: id.to_owned(), output, content },
                })
            }
            _ => None,
        }
    }

    fn messages(&mut self, event: &Value) -> Option<FinishedText> {
        let index = event["index"].as_u64()?;
        let more = match event["type"].as_str()? {
            "content_block_start" => &event["content_block"]["text"],
            "content_block_delta" => &event["delta"]["text"],
            "content_block_stop" => {
                let text = self.texts.remove(&index)?;
                return Some(FinishedText { text, location: TextLocation::Block { index } });
            }
            _ => return None,
        };
        self.append(index, more.as_str().unwrap_or_default());
        None
    }

    /// Returns the events that add citations to a text; none if there are no citations. `event` is the event that ended the text.
    pub fn cite(&mut self, finished: FinishedText, citations: Vec<Value>, event: &[u8]) -> Vec<u8> {
        if citations.is_empty() {
            return Vec::new();
        }
        match finished.location {
            TextLocation::Choice { index, template } => {
                let mut chunk: Value = serde_json::from_str(&template).unwrap_or_default();
                let delta = json!({"annotations": citations});
                chunk["choices"] = json!([{"index": index, "delta": delta, "finish_reason": null}]);
                format!("data: {chunk}\n\n").into_bytes()
            }
            TextLocation::Block { index } => {
                let event = |citation: &Value| {
                    let delta = json!({"type": "citations_delta", "citation": citation});
                    let data = json!({"type": "content_block_delta", "index": index, "delta": delta});
                    format!("event: content_block_delta\ndata: {data}\n\n")
                };
                citations.iter().map(event).collect::<String>().into_bytes()
            }
            TextLocation::Item { id, output, content } => {
                // Parsing a long event here is cheap enough, because it ends at most one text of a response.
                let number = sse::sequence_number(event);
                let mut events = String::new();
                let item = self.items.entry(id.clone()).or_default();
                let first = item.upstream_counts.get(&content).copied().unwrap_or_default();
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
                item.citations.insert(content, citations);
                events.into_bytes()
            }
        }
    }

    /// Returns an event as it is forwarded: with the added citations if it repeats a cited text, and with a new sequence number if events
    /// were inserted before it. Other events are unchanged.
    pub fn forward(&self, event: Bytes) -> Bytes {
        if self.added == 0 {
            return event;
        }
        let Some(Cow::Borrowed(data)) = sse::data(&event) else { return event };
        let Ok(body) = Located::parse(data) else { return event };
        let mut edits = Edits::default();
        if let Some(number) = body.get("sequence_number").and_then(Located::read::<u64>) {
            edits.set_field(body, "sequence_number", &number.saturating_add(self.added).to_string());
        }
        match body.text_of("type").as_deref() {
            Some("response.content_part.done") => {
                let item = body.text_of("item_id").and_then(|id| self.items.get(&id));
                let content = body.get("content_index").and_then(Located::read::<u64>);
                let citations = item.zip(content).and_then(|(item, content)| item.citations.get(&content));
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
                // An item that the upstream repeats gets its citations once; otherwise a short event could grow without limit.
                let mut seen = HashSet::new();
                items
                    .filter(|item| item.text_of("id").is_none_or(|id| seen.insert(id)))
                    .for_each(|item| self.annotate_item(item, &mut edits));
            }
            _ => {}
        }
        // The data is a slice of the event: the rest of the event does not change, whatever its line endings are.
        let at = data.as_ptr() as usize - event.as_ptr() as usize;
        [&event[..at], edits.apply(data).as_bytes(), &event[at + data.len()..]].concat().into()
    }

    fn annotate_item(&self, item: Located, edits: &mut Edits) {
        let Some(known) = item.text_of("id").and_then(|id| self.items.get(&id)) else { return };
        let parts: Items = item.get("content").map(Located::items).unwrap_or_default();
        for (at, part) in parts.enumerate() {
            if let Some(citations) = known.citations.get(&(at as u64)) {
                self.annotate(part, citations, edits);
            }
        }
    }

    fn annotate(&self, part: Located, citations: &[Value], edits: &mut Edits) {
        answer::cite(self.dialect, &AnswerText::of(part), citations, edits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(answer: &mut AnswerStream, stream: &[&str]) -> Vec<String> {
        let mut out = Vec::new();
        for event in stream {
            let event = Bytes::from(format!("data: {event}\n\n"));
            for finished in answer.finished_texts(&event) {
                let cited = json!({"cites": finished.text});
                out.push(answer.cite(finished, vec![cited], &event).into());
            }
            out.push(answer.forward(event));
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
        let out = events(&mut AnswerStream::new(Dialect::Chat, 1_000_000), &stream);
        assert_eq!(out.len(), 5);
        let added = r#"data: {"id":"c","choices":[{"index":0,"delta":{"annotations":[{"cites":"It is."}]},"finish_reason":null}]}"#;
        assert_eq!(out[2], format!("{added}\n\n"));
        let kept = [&out[..2], &out[3..]].concat();
        assert_eq!(kept, stream.map(|event| format!("data: {event}\n\n")), "the other events are unchanged");
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
        let out = events(&mut AnswerStream::new(Dialect::Messages, 1_000_000), &stream);
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
        let out = events(&mut AnswerStream::new(Dialect::Responses, 1_000_000), &stream);
        assert_eq!(out.len(), 6);
        let numbers: Vec<u64> =
            out.iter().map(|event| sse::sequence_number(event.as_bytes()).expect("a number")).collect();
        assert_eq!(numbers, [3, 4, 5, 6, 7, 8]);
        assert!(out[1].contains(r#""type":"response.output_text.annotation.added""#), "{}", out[1]);
        for event in &out[3..] {
            assert!(event.contains(r#""annotations":[{"cites":"It is."}]"#), "{event}");
        }
    }

    #[test]
    fn an_event_that_is_not_of_the_api_is_forwarded() {
        for dialect in [Dialect::Chat, Dialect::Responses, Dialect::Messages] {
            let mut answer = AnswerStream::new(dialect, 1_000_000);
            for event in [
                &b"\xff\xfe\n\n"[..],
                b"data: {\n\n",
                b": ping\n\n",
                b"data: []\n\n",
                b"data: {\"choices\":3}\n\n",
            ] {
                assert!(answer.finished_texts(event).is_empty());
                assert_eq!(answer.forward(Bytes::copy_from_slice(event)), event);
            }
        }
    }

    #[test]
    fn an_event_that_cannot_be_parsed_ends_citing() {
        let delta = |text: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{"content":{text}}}}}]}}"#);
        let end = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
        let check = |name: &str, first: String, second: String, expect: usize| {
            let out = events(&mut AnswerStream::new(Dialect::Chat, 1_000_000), &[&first, &second, end]);
            assert_eq!(out.len(), expect, "{name}: {out:?}");
        };
        check("two deltas", delta("\"It \""), delta("\"is.\""), 4);
        check("half a character", delta("\"It \\ud83d\""), delta("\"\\ude00 is.\""), 3);
        let two_lines = delta("\"It \"").replace(",\"delta\"", ",\ndata: \"delta\"");
        check("two lines", two_lines, delta("\"is.\""), 4);
        let unfinished = delta("\"It \"").replace("}}]}", "},\"finish_reason\":\"\"}]}");
        check("an empty reason", unfinished, delta("\"is.\""), 4);
    }

    /// The data of two events of a text: a delta, and the end of the text.
    fn deltas(dialect: Dialect, index: usize, text: &str) -> (String, String) {
        let (delta, end) = match dialect {
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
        (delta.to_string(), end.to_string())
    }

    #[test]
    fn an_answer_without_end_is_buffered_up_to_the_limit_and_forwarded_unchanged() {
        const BYTES_MAX: usize = 10_000;
        let letters = "x".repeat(500);
        let annotation =
            json!({"type": "response.output_text.annotation.added", "item_id": "m", "content_index": 0});
        for dialect in [Dialect::Chat, Dialect::Responses, Dialect::Messages] {
            // One text without end, and texts without number; below, annotations of items without number.
            let one: fn(Dialect, &str, usize) -> String = |dialect, text, at| match dialect {
                Dialect::Responses => deltas(dialect, at, text).1,
                _ => deltas(dialect, 0, text).0,
            };
            let many: fn(Dialect, &str, usize) -> String = |dialect, _, at| match dialect {
                Dialect::Responses => deltas(dialect, at, "x").1,
                _ => deltas(dialect, at, "x").0,
            };
            for (name, event) in [("one", one), ("many", many)] {
                let (mut answer, mut finished_bytes) = (AnswerStream::new(dialect, BYTES_MAX), 0);
                for at in 0..20_000 {
                    let event = Bytes::from(format!("data: {}\n\n", event(dialect, &letters, at)));
                    let finished = answer.finished_texts(&event);
                    finished_bytes += finished.iter().map(|text| text.text.len() + TEXT_BYTES).sum::<usize>();
                    assert!(answer.held_bytes() <= BYTES_MAX, "{dialect:?}, {name}, {at}");
                    assert_eq!(answer.forward(event.clone()), event, "{dialect:?}, {name}, {at}");
                }
                assert!(finished_bytes <= BYTES_MAX, "{dialect:?}, {name}: cited texts are bounded, too");
                assert!(answer.is_full() && answer.is_over(), "{dialect:?}, {name}");
                assert_eq!(
                    answer.held_bytes(),
                    0,
                    "{dialect:?}, {name}: texts that are not cited are dropped"
                );
                let (_, end) = deltas(dialect, 0, "x");
                assert!(
                    answer.finished_texts(format!("data: {end}\n\n").as_bytes()).is_empty(),
                    "{dialect:?}, {name}"
                );
            }
        }
        let mut answer = AnswerStream::new(Dialect::Responses, BYTES_MAX);
        for at in 0..20_000 {
            let event = annotation.to_string().replace("\"m\"", &format!("\"m{at}\""));
            assert!(answer.finished_texts(format!("data: {event}\n\n").as_bytes()).is_empty());
            assert!(answer.held_bytes() <= BYTES_MAX, "{at}");
        }
    }

    #[test]
    fn sequence_numbers_stay_unique_when_no_more_citations_are_added() {
        let mut answer = AnswerStream::new(Dialect::Responses, 1_000);
        let done = |text: &str, number: u64| {
            json!({"type": "response.output_text.done", "item_id": "m", "output_index": 0, "content_index": 0,
                "text": text, "sequence_number": number})
            .to_string()
        };
        let (first, long, last) = (done("It is.", 1), done(&"x".repeat(2_000), 2), done("So.", 3));
        let out = events(&mut answer, &[&first, &long, &last]);
        let numbers: Vec<u64> =
            out.iter().map(|event| sse::sequence_number(event.as_bytes()).expect("a number")).collect();
        assert_eq!(numbers, [1, 2, 3, 4], "one citation, and three events");
        assert!(answer.is_full() && !answer.is_over());
    }

    #[test]
    fn the_largest_sequence_number_does_not_change() {
        let done = json!({"type": "response.output_text.done", "item_id": "m", "output_index": 0,
            "content_index": 0, "text": "It is.", "sequence_number": u64::MAX});
        let out = events(&mut AnswerStream::new(Dialect::Responses, 1_000), &[&done.to_string()]);
        let numbers: Vec<u64> =
            out.iter().map(|event| sse::sequence_number(event.as_bytes()).expect("a number")).collect();
        assert_eq!(numbers, [u64::MAX; 2]);
    }

    #[test]
    fn choices_that_end_in_one_event_do_not_copy_it_for_each() {
        const CHOICES: usize = 10_000;
        let choice = |index| json!({"index": index, "delta": {"content": "x"}, "finish_reason": "stop"});
        let choices: Vec<Value> = (0..CHOICES).map(choice).collect();
        let event = json!({"id": "y".repeat(1_000), "choices": choices});
        let mut answer = AnswerStream::new(Dialect::Chat, 100_000);
        let finished = answer.finished_texts(format!("data: {event}\n\n").as_bytes());
        assert!((1..100).contains(&finished.len()), "{} of 1,000 bytes each", finished.len());
        assert!(answer.is_full());
    }
}
