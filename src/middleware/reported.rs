//! Reads an answer of an upstream while it is forwarded: the tokens that the upstream counted, and, where it is wanted, the text and what the
//! answer reports about itself.

use std::borrow::Cow;

use super::answer;
use super::dialect::Dialect;
use super::json::Located;
use super::sse::{self, Events};
use super::usage::{Counted, Usage};

const NAME_BYTES_MAX: usize = 256;

/// The most reasons that are kept: one for each choice.
const REASON_COUNT_MAX: usize = 32;

/// What an answer reports. Each value is `None` where the answer does not have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reported {
    pub id: Option<String>,
    pub model: Option<String>,
    pub finish_reasons: Vec<String>,
    /// The tokens of the input, those that were read from a cache or written to one included.
    pub input_tokens: Option<u64>,
    /// The tokens of the output, those of reasoning included.
    pub output_tokens: Option<u64>,
    /// The tokens of the input that the provider read from its cache.
    pub cache_read_tokens: Option<u64>,
    /// The tokens of the input that the provider wrote to its cache.
    pub cache_write_tokens: Option<u64>,
    /// The tokens of the output that the model used for reasoning.
    pub reasoning_tokens: Option<u64>,
}

/// What is read of an answer beside the tokens that the upstream counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    pub text: bool,
    pub report: bool,
}

/// What was read of an answer.
#[derive(Debug, Default)]
pub struct Answer {
    /// What the upstream counted; `None`: nothing.
    pub usage: Option<Usage>,
    /// The texts, with a line break between them; `None`: they were not wanted, or a part of them was too long.
    pub text: Option<String>,
    /// What the answer says of itself; read in full only where it was wanted.
    pub reported: Reported,
}

/// Reads an answer of an upstream as its bytes arrive. The answer does not change.
#[derive(Debug)]
pub struct AnswerReader {
    dialect: Dialect,
    form: Form,
    wanted: Wanted,
    counted: Counted,
    reported: Reported,
    text: String,
    /// The most bytes of text, and of JSON or of one event.
    bytes_max: usize,
    /// Whether something was longer than that, and is missing.
    is_cut: bool,
    /// Whether the last event of the stream has arrived.
    is_complete: bool,
}

#[derive(Debug)]
enum Form {
    /// One JSON text, which is buffered.
    Json(Vec<u8>),
    Stream(Events),
}

impl AnswerReader {
    /// Creates a reader of an answer that is a stream of events or one JSON text. It buffers at most `bytes_max` bytes of JSON or of one event,
    /// and as many bytes of text.
    pub fn new(dialect: Dialect, is_stream: bool, wanted: Wanted, bytes_max: usize) -> Self {
        let form = if is_stream { Form::Stream(Events::new(bytes_max)) } else { Form::Json(Vec::new()) };
        let (counted, reported, text) = (Counted::default(), Reported::default(), String::new());
        Self { dialect, form, wanted, counted, reported, text, bytes_max, is_cut: false, is_complete: false }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.form {
            Form::Json(_) if self.is_cut => {}
            Form::Json(buffer) if buffer.len() + bytes.len() > self.bytes_max => {
                *buffer = Vec::new();
                self.is_cut = true;
            }
            Form::Json(buffer) => buffer.extend_from_slice(bytes),
            Form::Stream(events) => {
                let found = events.push(bytes);
                if events.is_too_long() {
                    events.skip();
                    self.is_cut = true;
                }
                found.iter().for_each(|event| self.read_event(event));
            }
        }
    }

    /// Returns whether the answer is a stream of events.
    pub fn is_stream(&self) -> bool {
        matches!(self.form, Form::Stream(_))
    }

    /// Returns whether the last event of a stream has arrived.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns what was read of the answer until now, or until its end.
    pub fn finish(mut self) -> Answer {
        if let Form::Json(buffer) = std::mem::replace(&mut self.form, Form::Json(Vec::new())) {
            self.read_json(&buffer);
        }
        let Counted { read, written, output, .. } = self.counted;
        let reported = Reported {
            input_tokens: self.counted.whole_prompt(self.dialect),
            output_tokens: output,
            cache_read_tokens: read,
            cache_write_tokens: written,
            ..self.reported
        };
        Answer {
            usage: self.counted.usage(self.dialect),
            text: (self.wanted.text && !self.is_cut).then_some(self.text),
            reported,
        }
    }

    fn read_json(&mut self, body: &[u8]) {
        let Some(body) = std::str::from_utf8(body).ok().and_then(|body| Located::parse(body).ok()) else {
            return;
        };
        self.reported.read(body, true, &mut self.counted);
        if self.wanted.text {
            let (texts, is_all) = answer::texts(self.dialect, body, self.bytes_max);
            self.is_cut |= !is_all;
            texts.iter().for_each(|text| self.add(&text.text, true));
        }
    }

    /// An event is too long, and missing.
    pub fn skip(&mut self) {
        self.is_cut = true;
    }

    pub fn read_event(&mut self, event: &[u8]) {
        // Most events are a piece of text, and have no counts.
        let has_counts = memchr::memmem::find(event, b"\"usage\"").is_some();
        if !has_counts && !self.wanted.text && !self.wanted.report {
            return;
        }
        let Some(data) = sse::data(event) else { return };
        self.is_complete |= is_last(&data);
        let Ok(data) = Located::parse(&data) else { return };
        if has_counts || self.wanted.report {
            self.reported.read(data, true, &mut self.counted);
        }
        if self.wanted.text {
            let (text, is_end) = piece(self.dialect, data);
            self.add(&text, is_end);
        }
    }

    fn add(&mut self, more: &str, is_end: bool) {
        if self.text.len() + more.len() + 1 > self.bytes_max {
            self.is_cut = true;
            return;
        }
        self.text.push_str(more);
        if is_end && !self.text.is_empty() {
            self.text.push('\n');
        }
    }
}

impl Reported {
    /// Reads an answer, or the data of an event, in which the answer may be a field.
    fn read(&mut self, object: Located, is_outermost: bool, counted: &mut Counted) {
        for (name, value) in object.fields() {
            match &*name {
                "id" => keep(&mut self.id, value),
                "model" => keep(&mut self.model, value),
                "choices" => {
                    value
                        .items()
                        .filter_map(|choice| choice.get("finish_reason"))
                        .for_each(|reason| self.stopped(reason));
                }
                "stop_reason" => self.stopped(value),
                "delta" => value.get("stop_reason").into_iter().for_each(|reason| self.stopped(reason)),
                "usage" => {
                    *counted = counted.replaced_by(Counted::read(value));
                    self.read_reasoning(value);
                }
                "message" | "response" if is_outermost => self.read(value, false, counted),
                _ => {}
            }
        }
    }

    /// Reads the tokens of reasoning. In a stream, later events repeat a count that has grown.
    fn read_reasoning(&mut self, usage: Located) {
        let details = ["completion_tokens_details", "output_tokens_details"];
        let details = details.iter().find_map(|name| usage.get(name));
        let tokens = details.and_then(|details| details.get("reasoning_tokens")?.read());
        self.reasoning_tokens = tokens.or(self.reasoning_tokens);
    }

    fn stopped(&mut self, reason: Located) {
        if let Some(reason) = reason.text().filter(|_| self.finish_reasons.len() < REASON_COUNT_MAX) {
            self.finish_reasons.push(shortened(&reason).to_owned());
        }
    }
}

/// Returns the beginning of a name: at most as many bytes as are kept.
pub fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// Returns whether an event with this data is the last one of its stream.
fn is_last(data: &str) -> bool {
    // Most events are not read a second time.
    let may_be = data == "[DONE]" || data.contains("message_stop") || data.contains("response.");
    let kind = || Located::parse(data).ok()?.text_of("type");
    let ends = ["message_stop", "response.completed", "response.incomplete", "response.failed"];
    may_be && (data == "[DONE]" || kind().is_some_and(|kind| ends.contains(&&*kind)))
}

/// Sets `kept`, unless it is set already.
fn keep(kept: &mut Option<String>, value: Located) {
    if kept.is_none() {
        *kept = value.text().map(|text| shortened(&text).to_owned());
    }
}

/// The piece of text of an event, and whether the text ends with it. Only the first choice of a chat is read: the others would be mixed with it.
fn piece<'a>(dialect: Dialect, event: Located<'a>) -> (Cow<'a, str>, bool) {
    let text = |object: Option<Located>, name: &str| -> Cow<'static, str> {
        object.and_then(|object| object.text_of(name)).map_or(Cow::Borrowed(""), Cow::Owned)
    };
    match dialect {
        Dialect::Chat => {
            let choice = event.get("choices").and_then(|choices| choices.items().next());
            let choice = choice.filter(|choice| choice.get("index").is_none_or(|index| index.json() == "0"));
            (text(choice.and_then(|choice| choice.get("delta")), "content"), false)
        }
        Dialect::Responses => match event.text_of("type").as_deref() {
            Some("response.output_text.delta") => (text(Some(event), "delta"), false),
            Some("response.output_text.done") => (Cow::Borrowed(""), true),
            _ => (Cow::Borrowed(""), false),
        },
        Dialect::Messages => match event.text_of("type").as_deref() {
            Some("content_block_delta") => {
                let delta = event.get("delta");
                let is_text = delta.and_then(|delta| delta.text_of("type")).as_deref() == Some("text_delta");
                (text(delta.filter(|_| is_text), "text"), false)
            }
            Some("content_block_stop") => (Cow::Borrowed(""), true),
            _ => (Cow::Borrowed(""), false),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1_000;

    const ALL: Wanted = Wanted { text: true, report: true };

    fn report(dialect: Dialect, is_stream: bool, answer: &str, size: usize) -> Reported {
        let mut reader = AnswerReader::new(dialect, is_stream, ALL, MAX);
        answer.as_bytes().chunks(size).for_each(|bytes| reader.push(bytes));
        reader.finish().reported
    }

    fn check(dialect: Dialect, answer: &str, expect: &Reported) {
        let is_stream = answer.contains("data:");
        for size in [1, 7, answer.len().max(1)] {
            assert_eq!(&report(dialect, is_stream, answer, size), expect, "{size}: {answer}");
        }
    }

    fn named(id: &str, model: &str) -> Reported {
        Reported { id: Some(id.to_owned()), model: Some(model.to_owned()), ..Reported::default() }
    }

    #[test]
    fn json_answers_of_three_apis() {
        check(
            Dialect::Chat,
            r#"{"id": "c", "model": "m-1", "choices": [{"finish_reason": "stop"}, {"finish_reason": "length"}], "usage": {"prompt_tokens": 9,
            "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens_details": {"reasoning_tokens": 2}}}"#,
            &Reported {
                finish_reasons: vec!["stop".to_owned(), "length".to_owned()],
                input_tokens: Some(9),
                output_tokens: Some(4),
                cache_read_tokens: Some(5),
                reasoning_tokens: Some(2),
                ..named("c", "m-1")
            },
        );
        check(
            Dialect::Responses,
            r#"{"id": "r", "model": "m", "output": [{"id": "other"}], "usage": {"input_tokens": 9, "output_tokens": 4}}"#,
            &Reported { input_tokens: Some(9), output_tokens: Some(4), ..named("r", "m") },
        );
        check(
            Dialect::Messages,
            r#"{"id": "a", "model": "m", "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 4,
            "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}}"#,
            &Reported {
                finish_reasons: vec!["end_turn".to_owned()],
                input_tokens: Some(129),
                output_tokens: Some(4),
                cache_read_tokens: Some(100),
                cache_write_tokens: Some(20),
                ..named("a", "m")
            },
        );
    }

    #[test]
    fn streams_of_three_apis() {
        check(
            Dialect::Chat,
            "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":null}],\"usage\":null}\n\n\
             data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
             data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n",
            &Reported {
                finish_reasons: vec!["stop".to_owned()],
                input_tokens: Some(9),
                output_tokens: Some(4),
                ..named("c", "m")
            },
        );
        check(
            Dialect::Responses,
            "data: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"model\":\"m\",\"usage\":null}}\n\n\
             data: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"model\":\"m\",\"usage\":{\"input_tokens\":9,\"output_tokens\":4}}}\n\n",
            &Reported { input_tokens: Some(9), output_tokens: Some(4), ..named("r", "m") },
        );
        check(
            Dialect::Messages,
            "data: {\"type\":\"message_start\",\"message\":{\"id\":\"a\",\"model\":\"m\",\"stop_reason\":null,\"usage\":{\"input_tokens\":9,\
             \"output_tokens\":1,\"cache_read_input_tokens\":10}}}\n\n\
             data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":4}}\n\n",
            &Reported {
                finish_reasons: vec!["end_turn".to_owned()],
                input_tokens: Some(19),
                output_tokens: Some(4),
                cache_read_tokens: Some(10),
                ..named("a", "m")
            },
        );
    }

    #[test]
    fn the_last_event_of_a_stream_is_known() {
        let check = |data: &str, expect: bool| {
            let mut reader = AnswerReader::new(Dialect::Chat, true, ALL, MAX);
            reader.push(format!("data: {data}\n\n").as_bytes());
            assert_eq!(reader.is_complete(), expect, "{data}");
        };
        check("[DONE]", true);
        check(r#"{"type": "message_stop"}"#, true);
        check(r#"{"type": "response.completed", "response": {}}"#, true);
        check(r#"{"type": "response.output_text.delta", "delta": "message_stop"}"#, false);
        check(r#"{"choices": [{"delta": {"content": "[DONE]"}}]}"#, false);
    }

    #[test]
    fn answers_that_report_nothing_or_something_else() {
        let nothing = Reported::default();
        check(Dialect::Chat, "", &nothing);
        check(Dialect::Chat, "[1]", &nothing);
        check(
            Dialect::Chat,
            r#"{"id": 1, "model": null, "usage": {"prompt_tokens": -1, "completion_tokens": "9"}}"#,
            &nothing,
        );
        check(Dialect::Messages, "data: {\"usage\": 1}\n\ndata: not JSON\n\n: data: comment\n\n", &nothing);
        // A message inside a message is not the answer.
        check(Dialect::Chat, r#"{"message": {"message": {"id": "x"}}}"#, &nothing);
        let long = format!(r#"{{"id": "{}"}}"#, "ü".repeat(NAME_BYTES_MAX));
        assert_eq!(report(Dialect::Chat, false, &long, 100).id.expect("an id").len(), NAME_BYTES_MAX);
    }

    fn read(dialect: Dialect, answer: &str, is_stream: bool) -> (Option<[u64; 4]>, Option<String>) {
        let mut found = Vec::new();
        // However the bytes arrive, the result is the same.
        for size in [1, 7, answer.len()] {
            let mut reader = AnswerReader::new(dialect, is_stream, ALL, MAX);
            answer.as_bytes().chunks(size).for_each(|bytes| reader.push(bytes));
            let Answer { usage, text, .. } = reader.finish();
            let usage = usage.map(|usage| [usage.input, usage.cached_read, usage.cached_write, usage.output]);
            found.push((usage, text));
        }
        assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
        found.remove(0)
    }

    #[test]
    fn counts_are_read_in_the_formats_of_upstreams() {
        let check = |dialect: Dialect, usage: &str, expect: Option<[u64; 4]>| {
            let answer = format!(r#"{{"id": "a", "usage": {usage}}}"#);
            assert_eq!(read(dialect, &answer, false).0, expect, "{dialect:?} {usage}");
        };
        let (chat, responses, messages) = (Dialect::Chat, Dialect::Responses, Dialect::Messages);
        check(chat, r#"{"prompt_tokens": 100, "completion_tokens": 7}"#, Some([100, 0, 0, 7]));
        check(
            chat,
            r#"{"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}"#,
            Some([36, 64, 0, 7]),
        );
        check(chat, r#"{"prompt_tokens": 100, "prompt_cache_hit_tokens": 64}"#, Some([36, 64, 0, 0]));
        check(
            chat,
            r#"{"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 30}}"#,
            Some([6, 64, 30, 0]),
        );
        check(
            responses,
            r#"{"input_tokens": 100, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 64}}"#,
            Some([36, 64, 0, 7]),
        );
        check(
            messages,
            r#"{"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 31}"#,
            Some([5, 64, 31, 7]),
        );
        check(messages, r#"{"input_tokens": 5, "cache_read_input_tokens": null}"#, Some([5, 0, 0, 0]));
        // More cached than read is a mistake of the upstream, and never less than nothing.
        check(chat, r#"{"prompt_tokens": 1, "prompt_cache_hit_tokens": 64}"#, Some([0, 64, 0, 0]));
        for nothing in ["null", "{}", "[]", "3", r#"{"prompt_tokens": -1}"#, r#"{"prompt_tokens": "7"}"#] {
            check(chat, nothing, None);
        }
    }

    #[test]
    fn counts_and_text_of_a_stream_are_read() {
        let chat = concat!(
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"The tide\"}}],\"usage\":null}\n\n",
            ": ping\n\n",
            "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"Another\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" is at noon.\"}}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\n",
            "data: [DONE]\n\n",
        );
        let text = Some("The tide is at noon.".to_owned());
        assert_eq!(read(Dialect::Chat, chat, true), (Some([9, 0, 0, 3]), text));
        let messages = concat!(
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":1,",
            "\"cache_read_input_tokens\":64,\"cache_creation_input_tokens\":0}}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"At noon.\"}}\n\n",
            "data: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\"}}\n\n",
            "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
            "data: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":42}}\n\n",
        );
        assert_eq!(
            read(Dialect::Messages, messages, true),
            (Some([5, 64, 0, 42]), Some("At noon.\n".to_owned()))
        );
        let responses = concat!(
            "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n",
            "data: {\"type\":\"response.output_text.delta\",\"delta\":\"At noon.\"}\n\n",
            "data: {\"type\":\"response.output_text.done\",\"text\":\"At noon.\"}\n\n",
            "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":3}}}\n\n",
        );
        assert_eq!(
            read(Dialect::Responses, responses, true),
            (Some([9, 0, 0, 3]), Some("At noon.\n".to_owned()))
        );
        assert_eq!(
            read(Dialect::Chat, "data: {\"choices\":[]}\n\ndata: x\n\n", true),
            (None, Some(String::new()))
        );
    }

    #[test]
    fn what_is_too_long_is_not_buffered() {
        let long = "x".repeat(2 * MAX);
        let answer = format!(r#"{{"usage": {{"prompt_tokens": 9}}, "x": "{long}"}}"#);
        assert_eq!(read(Dialect::Chat, &answer, false), (None, None));
        let stream = format!(
            "data: {{\"x\": \"{long}\"}}\n\ndata: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":9}}}}\n\n"
        );
        let mut reader = AnswerReader::new(Dialect::Chat, true, ALL, MAX);
        for bytes in stream.as_bytes().chunks(64) {
            reader.push(bytes);
            let Form::Stream(events) = &reader.form else { panic!("a stream") };
            assert!(events.held_bytes() <= MAX + 64);
        }
        let Answer { usage, text, .. } = reader.finish();
        assert_eq!((usage.map(Usage::prompt), text), (Some(9), None), "counts behind a long event are read");
    }

    #[test]
    fn an_answer_that_is_one_text_is_read() {
        let answer = r#"{"choices": [{"message": {"content": "At noon."}}], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}"#;
        assert_eq!(read(Dialect::Chat, answer, false), (Some([9, 0, 0, 3]), Some("At noon.\n".to_owned())));
        assert_eq!(read(Dialect::Chat, "not JSON", false), (None, Some(String::new())));
    }
}
