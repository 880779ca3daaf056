//! An answer that arrives as server-sent events. Events are forwarded unchanged; citations are sent as events of their own, before the event
//! that ends the cited text. OpenAI's Responses repeat a text and its citations in the events that end it, and number their events: these
//! events are changed. Of Anthropic's Messages, text blocks are split (`blocks`).
//!
//! An upstream may send an answer without end. What is buffered of an answer is bounded: when the texts of one answer take more bytes than
//! the limit, no more events are read, and no more citations are added.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::answer::{self, TEXT_BYTES};
use super::blocks::{self, BlockStep, BlockStream};
use super::dialect::Dialect;
use super::json::{Edits, Items, Located};
use super::sse;

/// What follows from an event, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Citations of a text are added here.
    Cite {
        finished: FinishedText,
        event: Bytes,
    },
    /// An event is forwarded as [`AnswerStream::forward`] returns it.
    Forward(Bytes),
    Send(Bytes),
}

/// A text of the answer that is complete: in Messages, a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedText {
    pub text: String,
    location: TextLocation,
}

/// The location of a text in the answer, by which its citations are addressed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TextLocation {
    /// A choice (Chat Completions); `template` is the JSON of the event that ended the text, without choices and usage.
    Choice { index: u64, template: Arc<str> },
    /// A content block (Messages), by its index for the client.
    Block { index: u64 },
    /// A content part of an output item (Responses).
    Item { id: String, output: u64, content: u64 },
}

/// An answer that arrives as events: collects its texts, and adds citations.
#[derive(Debug)]
pub struct AnswerStream {
    dialect: Dialect,
    /// The texts of choices that have arrived so far, by index.
    texts: HashMap<u64, String>,
    blocks: BlockStream,
    /// The number of inserted events, if events are numbered.
    added: u64,
    /// Output items (Responses) by id.
    items: HashMap<String, Item>,
    /// Whether an event could not be parsed. The collected texts may then be incomplete, and positions in them wrong.
    is_incomplete: bool,
    /// Bytes of all texts of the answer, and of what is kept to address their citations.
    counted_bytes: usize,
    bytes_max: usize,
}

/// Citations of an output item (Responses), by the index of the content part.
#[derive(Debug, Default)]
struct Item {
    citations: HashMap<u64, Vec<Value>>,
    /// The number of annotations that the upstream itself has sent.
    upstream_counts: HashMap<u64, usize>,
}

impl AnswerStream {
    /// Creates the stream of an answer of which nothing has arrived. Its texts may have `bytes_max` bytes together; each counts
    /// [`TEXT_BYTES`] in addition to its own.
    pub fn new(dialect: Dialect, bytes_max: usize) -> Self {
        Self {
            dialect,
            texts: HashMap::new(),
            blocks: BlockStream::default(),
            added: 0,
            items: HashMap::new(),
            is_incomplete: false,
            counted_bytes: 0,
            bytes_max,
        }
    }

    /// Returns whether the texts of the answer exceed the limit, or [`Self::stop`] was called. No more texts are read then.
    pub fn is_full(&self) -> bool {
        self.counted_bytes > self.bytes_max
    }

    /// Ends the reading of texts, so that no more citations are added. Returns the text that was held back, as an event.
    pub fn stop(&mut self) -> Option<Bytes> {
        self.counted_bytes = usize::MAX;
        self.bytes_max = self.bytes_max.min(usize::MAX - 1);
        self.texts = HashMap::new();
        self.blocks.end()
    }

    /// Returns the text that was held back, as an event. The answer ends here.
    pub fn end(&mut self) -> Option<Bytes> {
        self.blocks.end()
    }

    /// Returns whether all further events can be forwarded without passing them to this stream.
    pub fn is_over(&self) -> bool {
        self.is_full() && self.added == 0 && !self.blocks.renumbers()
    }

    /// Returns the buffered bytes: of texts that have not ended, and of what is known about items.
    pub fn held_bytes(&self) -> usize {
        let of_item = |(id, item): (&String, &Item)| {
            id.len() + TEXT_BYTES * (item.citations.len() + item.upstream_counts.len())
        };
        let texts: usize = self.texts.values().map(|text| text.len() + TEXT_BYTES).sum();
        texts + self.blocks.held_bytes() + self.items.iter().map(of_item).sum::<usize>()
    }

    /// Reads an event, and returns what follows from it.
    pub fn read(&mut self, event: Bytes) -> Vec<Step> {
        if self.dialect == Dialect::Messages {
            let step = |step| match step {
                BlockStep::Send(bytes) => Step::Send(bytes),
                BlockStep::Sentence { text, index } => Step::Cite {
                    finished: FinishedText { text, location: TextLocation::Block { index } },
                    event: Bytes::new(),
                },
            };
            return self.messages(event).into_iter().map(step).collect();
        }
        let finished = self.finished_texts(&event).into_iter();
        let mut steps: Vec<Step> =
            finished.map(|finished| Step::Cite { finished, event: event.clone() }).collect();
        steps.push(Step::Forward(event));
        steps
    }

    /// Returns the texts that end with an event. Blank texts are left out.
    fn finished_texts(&mut self, event: &[u8]) -> Vec<FinishedText> {
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
            Dialect::Messages => Vec::new(),
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

    /// Appends to the text of a choice. Returns whether the text is within the limit.
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

    fn messages(&mut self, event: Bytes) -> Vec<BlockStep> {
        let pass = |blocks: &BlockStream, event| vec![BlockStep::Send(blocks.renumbered(event))];
        let data = sse::data(&event).filter(|_| !self.is_full());
        let Some(data) = data else { return pass(&self.blocks, event) };
        let Ok(value) = serde_json::from_str::<Value>(&data) else {
            // Some of the text may be missing.
            return self.stop_before(event);
        };
        let (block, delta) = (&value["content_block"], &value["delta"]);
        match (value["type"].as_str(), value["index"].as_u64()) {
            (Some("ping"), _) => pass(&self.blocks, event),
            (Some("content_block_start"), Some(index)) => {
                let is_cited = block["citations"].as_array().is_some_and(|citations| !citations.is_empty());
                let text = (block["type"] == "text" && !is_cited).then(|| block["text"].as_str());
                let text = text.map(Option::unwrap_or_default);
                if text.is_none_or(|text| self.count(text.len() + TEXT_BYTES)) {
                    self.blocks.start(index, text, event)
                } else {
                    self.stop_before(event)
                }
            }
            (Some("content_block_delta"), Some(index)) if self.blocks.is_open(index) => {
                match &delta["text"] {
                    Value::String(more) if self.count(more.len()) => self.blocks.text(index, more, event),
                    Value::String(_) => self.stop_before(event),
                    // The upstream cites the block itself.
                    _ => {
                        let held = self.blocks.forget(index).map(BlockStep::Send);
                        held.into_iter().chain(self.blocks.pass(event)).collect()
                    }
                }
            }
            (Some("content_block_stop"), Some(index)) => self.blocks.stop(index, event),
            _ => self.blocks.pass(event),
        }
    }

    /// Ends the reading of texts, and forwards an event.
    fn stop_before(&mut self, event: Bytes) -> Vec<BlockStep> {
        let held = self.stop().map(BlockStep::Send);
        held.into_iter().chain([BlockStep::Send(self.blocks.renumbered(event))]).collect()
    }

    /// Returns the beginning of an event that is too long to be read, as it is forwarded. Must be called after [`Self::stop`].
    pub fn forward_beginning(&self, beginning: Bytes) -> Bytes {
        match self.dialect {
            Dialect::Messages => self.blocks.renumbered_beginning(beginning),
            Dialect::Responses if self.added > 0 => {
                sse::with_number(beginning, "sequence_number", |number| number.saturating_add(self.added))
            }
            Dialect::Chat | Dialect::Responses => beginning,
        }
    }

    /// Returns the events that add citations to a text; none if there are no citations. `event` is the event that ended the text.
    pub fn cite(&mut self, finished: FinishedText, citations: Vec<Value>, event: &[u8]) -> Bytes {
        if citations.is_empty() {
            return Bytes::new();
        }
        match finished.location {
            TextLocation::Choice { index, template } => {
                let mut chunk: Value = serde_json::from_str(&template).unwrap_or_default();
                let delta = json!({"annotations": citations});
                chunk["choices"] = json!([{"index": index, "delta": delta, "finish_reason": null}]);
                format!("data: {chunk}\n\n").into()
            }
            TextLocation::Block { index } => blocks::citations(index, &citations),
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
                events.into()
            }
        }
    }

    /// Returns an event as it is forwarded: with the added citations if it repeats a cited text, and with a new sequence number if events
    /// were inserted before it. Other events are unchanged.
    pub fn forward(&self, event: Bytes) -> Bytes {
        if self.added == 0 {
            return event;
        }
        let Some(data) = sse::data(&event) else { return event };
        let Ok(body) = Located::parse(&data) else { return event };
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
                    answer::annotate(part, citations, &mut edits);
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
        sse::with_data(&event, &data, &edits.apply(&data))
    }

    fn annotate_item(&self, item: Located, edits: &mut Edits) {
        let Some(known) = item.text_of("id").and_then(|id| self.items.get(&id)) else { return };
        let parts: Items = item.get("content").map(Located::items).unwrap_or_default();
        for (at, part) in parts.enumerate() {
            if let Some(citations) = known.citations.get(&(at as u64)) {
                answer::annotate(part, citations, edits);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that follow from an event, where every text cites itself.
    fn run(answer: &mut AnswerStream, event: Bytes) -> Vec<Bytes> {
        let steps = answer.read(event);
        let bytes = |step| match step {
            Step::Cite { finished, event } => {
                let cited = json!({"cites": finished.text});
                answer.cite(finished, vec![cited], &event)
            }
            Step::Forward(event) => answer.forward(event),
            Step::Send(bytes) => bytes,
        };
        steps.into_iter().map(bytes).collect()
    }

    fn events(answer: &mut AnswerStream, stream: &[&str]) -> Vec<String> {
        let mut out = Vec::new();
        for event in stream {
            let event = Bytes::from(format!("data: {event}\n\n"));
            out.extend(run(answer, event));
        }
        out.extend(answer.end());
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

    /// A message as a client accumulates it: its blocks. Fails if an index does not fit.
    fn accumulated(events: &[String]) -> Vec<Value> {
        let (mut blocks, mut open) = (Vec::<Value>::new(), None);
        for event in events.iter().flat_map(|events| events.split_inclusive("\n\n")) {
            let data: Value =
                serde_json::from_str(&sse::data(event.as_bytes()).expect("data")).expect("JSON");
            let index = data["index"].as_u64().map(|index| usize::try_from(index).expect("an index"));
            match data["type"].as_str().expect("a type") {
                "content_block_start" => {
                    assert_eq!((index, open), (Some(blocks.len()), None), "{event}");
                    blocks.push(data["content_block"].clone());
                    open = index;
                }
                "content_block_delta" => {
                    assert_eq!(index, open, "{event}");
                    let block = blocks.last_mut().expect("a block");
                    match &data["delta"] {
                        delta if delta["type"] == "text_delta" => {
                            let text = block["text"].as_str().expect("a text").to_owned();
                            block["text"] = json!(text + delta["text"].as_str().expect("a text"));
                        }
                        delta if delta["type"] == "citations_delta" => {
                            let mut citations = block["citations"].as_array().cloned().unwrap_or_default();
                            citations.push(delta["citation"].clone());
                            block["citations"] = json!(citations);
                        }
                        _ => {}
                    }
                }
                "content_block_stop" => {
                    assert_eq!(index, open.take(), "{event}");
                }
                _ => {}
            }
        }
        assert_eq!(open, None, "the last block ends");
        blocks
    }

    fn start(index: usize, block: Value) -> String {
        json!({"type": "content_block_start", "index": index, "content_block": block}).to_string()
    }

    fn text_block() -> Value {
        json!({"type": "text", "text": ""})
    }

    /// The events of a text block whose text arrives in these parts.
    fn text_events<'a>(index: usize, parts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let delta = |text| json!({"type": "text_delta", "text": text});
        let delta = |text| json!({"type": "content_block_delta", "index": index, "delta": delta(text)});
        let deltas = parts.into_iter().map(|text| delta(text).to_string());
        let stop = json!({"type": "content_block_stop", "index": index}).to_string();
        [start(index, text_block())].into_iter().chain(deltas).chain([stop]).collect()
    }

    fn streamed(stream: &[String]) -> Vec<String> {
        let stream: Vec<&str> = stream.iter().map(|event| &**event).collect();
        events(&mut AnswerStream::new(Dialect::Messages, 1_000_000), &stream)
    }

    #[test]
    fn a_message_of_one_sentence_keeps_its_events() {
        let mut stream = text_events(0, ["It ", "is."]);
        stream.push(r#"{"type":"message_stop"}"#.to_owned());
        let out = streamed(&stream);
        let cited = r#"{"type":"citations_delta","citation":{"cites":"It is."}}"#;
        assert!(out[3].contains(cited), "{out:?}");
        let kept = [&out[..3], &out[4..]].concat();
        assert_eq!(kept, stream.iter().map(|event| format!("data: {event}\n\n")).collect::<Vec<_>>());
    }

    #[test]
    fn text_is_held_back_only_until_the_next_word_is_complete() {
        let mut answer = AnswerStream::new(Dialect::Messages, 1_000_000);
        let stream = text_events(0, ["The ", "tide. ", "It", " is"]);
        let counts: Vec<usize> = stream[..5]
            .iter()
            .map(|event| {
                let out = run(&mut answer, Bytes::from(format!("data: {event}\n\n"))).concat();
                String::from_utf8(out).expect("text").matches("text_delta").count()
            })
            .collect();
        // The space and the next word come with the event that completes the word.
        assert_eq!(counts, [0, 1, 1, 0, 2]);
    }

    #[test]
    fn other_events_do_not_overtake_text() {
        let mut stream = text_events(0, ["It is. So", "on it was. Th"]);
        stream.insert(2, r#"{"type":"ping"}"#.to_owned());
        stream.pop();
        let error = r#"{"type":"error","error":{"type":"overloaded_error"}}"#;
        stream.push(error.to_owned());
        let out = streamed(&stream);
        let texts = |events: &[String]| {
            let texts = events.concat();
            let deltas = texts.split("\n\n").filter_map(|event| sse::data(event.as_bytes()));
            let text = |data: std::borrow::Cow<str>| {
                let data: Value = serde_json::from_str(&data).expect("JSON");
                data["delta"]["text"].as_str().map(str::to_owned)
            };
            deltas.filter_map(text).collect::<String>()
        };
        assert_eq!(texts(&out), "It is. Soon it was. Th", "no text is lost");
        assert_eq!(out.last().expect("events"), &format!("data: {error}\n\n"));
        // What an upstream does not send any more is sent, too.
        stream.pop();
        assert_eq!(texts(&streamed(&stream)), "It is. Soon it was. Th");
    }

    #[test]
    fn a_block_that_the_upstream_cites_stays_whole() {
        let theirs = json!({"type": "web_search_result_location"});
        let citation = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": theirs}});
        let parts = ["It is. ", "So it ", "was."];
        let mut stream = text_events(0, parts);
        stream.insert(1, citation.to_string());
        let blocks = accumulated(&streamed(&stream));
        assert_eq!(blocks, [json!({"type": "text", "text": "It is. So it was.", "citations": [theirs]})]);
        let mut stream = text_events(0, parts);
        stream[0] = start(0, json!({"type": "text", "text": "", "citations": [theirs]}));
        let out = streamed(&stream);
        assert_eq!(out, stream.iter().map(|event| format!("data: {event}\n\n")).collect::<Vec<_>>());
    }

    #[test]
    fn indexes_stay_consistent_when_no_more_citations_are_added() {
        let long = "x ".repeat(1_000);
        let blocks =
            [text_events(0, ["It is. ", "So it was. ", &long, "No. Yes."]), text_events(1, ["It is. So."])];
        let check = |name: &str, stop: fn(&mut AnswerStream) -> Option<Bytes>| {
            let mut answer = AnswerStream::new(Dialect::Messages, 1_000);
            let mut out = Vec::new();
            for (at, event) in blocks.concat().iter().enumerate() {
                out.extend(run(&mut answer, Bytes::from(format!("data: {event}\n\n"))));
                out.extend(if at == 2 { stop(&mut answer) } else { None });
            }
            assert!(answer.is_full() && !answer.is_over() && answer.held_bytes() == 0, "{name}");
            let out: Vec<String> =
                out.iter().map(|event| String::from_utf8(event.to_vec()).expect("text")).collect();
            let blocks = accumulated(&out);
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            assert_eq!(texts, ["It is. ", &format!("So it was. {long}No. Yes."), "It is. So."], "{name}");
        };
        check("too long", |_| None);
        check("stopped", AnswerStream::stop);
        let mut answer = AnswerStream::new(Dialect::Messages, 1_000);
        events(&mut answer, &blocks[0][..3].iter().map(|event| &**event).collect::<Vec<_>>());
        answer.stop();
        let beginning = r#"data: {"type":"content_block_start","index":1,"content_block":{"type":"x","x":["#;
        let forwarded = answer.forward_beginning(Bytes::from(beginning));
        assert_eq!(forwarded, beginning.replace("\"index\":1", "\"index\":2"));
    }

    #[test]
    fn an_event_of_several_lines_gets_its_index() {
        let mut answer = AnswerStream::new(Dialect::Messages, 1_000);
        events(
            &mut answer,
            &text_events(0, ["It is. So it."]).iter().map(|event| &**event).collect::<Vec<_>>(),
        );
        let event = Bytes::from(
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\ndata: \"index\":1,\"content_block\":{}}\n\n",
        );
        let out = run(&mut answer, event).concat();
        assert!(String::from_utf8(out).expect("text").contains("data:  \"index\":2,"));
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
                assert_eq!(run(&mut answer, Bytes::copy_from_slice(event)), [event], "{dialect:?}");
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
                json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}),
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
        // Shorter than the longest sentence, so that no block is split.
        const BYTES_MAX: usize = 1_900;
        let letters = "x".repeat(500);
        let annotation =
            json!({"type": "response.output_text.annotation.added", "item_id": "m", "content_index": 0});
        for dialect in [Dialect::Chat, Dialect::Responses, Dialect::Messages] {
            // One text without end, and texts without number; below, annotations of items without number.
            let one: fn(Dialect, &str, usize) -> String = |dialect, text, at| match dialect {
                Dialect::Responses => deltas(dialect, at, text).1,
                Dialect::Messages if at == 0 => start(0, text_block()),
                _ => deltas(dialect, 0, text).0,
            };
            let many: fn(Dialect, &str, usize) -> String = |dialect, _, at| match dialect {
                Dialect::Responses => deltas(dialect, at, "x").1,
                Dialect::Messages => start(at, json!({"type": "text", "text": "x"})),
                Dialect::Chat => deltas(dialect, at, "x").0,
            };
            for (name, event) in [("one", one), ("many", many)] {
                let (mut answer, mut finished_bytes) = (AnswerStream::new(dialect, BYTES_MAX), 0);
                for at in 0..20_000 {
                    let event = Bytes::from(format!("data: {}\n\n", event(dialect, &letters, at)));
                    let mut forwarded = Vec::new();
                    for step in answer.read(event.clone()) {
                        match step {
                            Step::Cite { finished, .. } => finished_bytes += finished.text.len(),
                            Step::Forward(event) => forwarded.push(answer.forward(event)),
                            Step::Send(bytes) => forwarded.push(bytes),
                        }
                    }
                    assert!(answer.held_bytes() <= BYTES_MAX, "{dialect:?}, {name}, {at}");
                    assert_eq!(forwarded.concat(), event, "{dialect:?}, {name}, {at}");
                }
                assert!(finished_bytes <= BYTES_MAX, "{dialect:?}, {name}: cited texts are bounded, too");
                assert!(answer.is_full() && answer.is_over(), "{dialect:?}, {name}");
                assert_eq!(
                    answer.held_bytes(),
                    0,
                    "{dialect:?}, {name}: texts that are not cited are dropped"
                );
                let (_, end) = deltas(dialect, 0, "x");
                let steps = answer.read(format!("data: {end}\n\n").into());
                assert!(!matches!(steps[0], Step::Cite { .. }), "{dialect:?}, {name}");
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

    proptest::proptest! {
        #[test]
        fn a_message_keeps_its_text_and_gets_valid_indexes(
            texts in proptest::collection::vec("([A-Za-z]{1,8}[.!?]? |\\n|```\n|é。|[0-9]\\. ){0,40}", 1..4),
            part_bytes in 1..40_usize,
            stop_at in 0..200_usize,
        ) {
            let parts = |text: &str| -> Vec<String> {
                let chars: Vec<char> = text.chars().collect();
                chars.chunks(part_bytes).map(|chars| chars.iter().collect()).collect()
            };
            let block = |(index, text): (usize, &String)| {
                let parts = parts(text);
                text_events(index, parts.iter().map(String::as_str))
            };
            let stream: Vec<String> = texts.iter().enumerate().flat_map(block).collect();
            let (mut answer, mut out) = (AnswerStream::new(Dialect::Messages, 1_000_000), Vec::new());
            for (at, event) in stream.iter().enumerate() {
                out.extend(run(&mut answer, Bytes::from(format!("data: {event}\n\n"))));
                out.extend(if at == stop_at { answer.stop() } else { None });
            }
            let out: Vec<String> = out.iter().map(|event| String::from_utf8(event.to_vec()).expect("text")).collect();
            let blocks = accumulated(&out);
            let found: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            proptest::prop_assert_eq!(found.concat(), texts.concat());
            // Anthropic refuses blank text blocks when a client sends them back.
            let blank = |texts: &[&str]| texts.iter().filter(|text| text.trim().is_empty()).count();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            proptest::prop_assert_eq!(blank(&found), blank(&texts));
        }
    }
}
