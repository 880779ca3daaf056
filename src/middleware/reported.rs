//! What the answer of an upstream reports about itself: its id, its model, why the model stopped, and how many tokens were used. No text of the
//! answer is read.

use super::dialect::Dialect;
use super::json::Located;
use super::sse::{self, Events};
use super::usage::Counted;

/// The most bytes of an answer in one JSON text, or of one event, that are buffered in order to read them. Longer ones report nothing.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// The most bytes of a name that are kept.
const NAME_BYTES_MAX: usize = 256;

/// The most reasons that are kept: one for each choice.
const REASON_COUNT_MAX: usize = 32;

/// What an answer reports. Each value is `None` where the answer does not have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reported {
    pub id: Option<String>,
    pub model: Option<String>,
    /// Why the model stopped, for each choice.
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

/// Reads what an answer reports while its bytes arrive.
#[derive(Debug)]
pub struct ReportedReader {
    dialect: Dialect,
    arriving: Arriving,
    found: Reported,
    counted: Counted,
    /// Whether the last event of the stream has arrived.
    is_complete: bool,
}

#[derive(Debug)]
enum Arriving {
    Json(Vec<u8>),
    Events(Events),
    /// The answer is too long, and is not read any further.
    TooLong,
}

impl ReportedReader {
    /// Creates a reader of an answer that is a stream of events, or one JSON text.
    pub fn new(dialect: Dialect, is_stream: bool) -> Self {
        let arriving = if is_stream {
            Arriving::Events(Events::new(BUFFER_BYTES_MAX))
        } else {
            Arriving::Json(Vec::new())
        };
        Self {
            dialect,
            arriving,
            found: Reported::default(),
            counted: Counted::default(),
            is_complete: false,
        }
    }

    /// Reads the next bytes of the answer.
    pub fn push(&mut self, bytes: &[u8]) {
        let is_too_long = match &mut self.arriving {
            Arriving::TooLong => return,
            Arriving::Json(buffer) if buffer.len() + bytes.len() > BUFFER_BYTES_MAX => true,
            Arriving::Json(buffer) => {
                buffer.extend_from_slice(bytes);
                false
            }
            Arriving::Events(events) => {
                for event in events.push(bytes) {
                    if let Some(data) = sse::data(&event) {
                        self.found.read(&data, &mut self.counted);
                        self.is_complete |= is_last(&data);
                    }
                }
                events.is_too_long()
            }
        };
        if is_too_long {
            self.arriving = Arriving::TooLong;
        }
    }

    /// Returns whether the last event of a stream has arrived.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns what the answer reported until now, or until its end.
    pub fn finish(mut self) -> Reported {
        if let Arriving::Json(buffer) = &self.arriving
            && let Ok(text) = std::str::from_utf8(buffer)
        {
            self.found.read(text, &mut self.counted);
        }
        let Counted { read, written, output, .. } = self.counted;
        Reported {
            input_tokens: self.counted.whole_prompt(self.dialect),
            output_tokens: output,
            cache_read_tokens: read,
            cache_write_tokens: written,
            ..self.found
        }
    }
}

impl Reported {
    fn read(&mut self, json: &str, counted: &mut Counted) {
        if let Ok(object) = Located::parse(json) {
            self.read_object(object, true, counted);
        }
    }

    /// Reads an answer, or the data of an event, in which the answer may be a field.
    fn read_object(&mut self, object: Located, is_outermost: bool, counted: &mut Counted) {
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
                "message" | "response" if is_outermost => self.read_object(value, false, counted),
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

/// Keeps the first text.
fn keep(kept: &mut Option<String>, value: Located) {
    if kept.is_none() {
        *kept = value.text().map(|text| shortened(&text).to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dialect: Dialect, is_stream: bool, answer: &str, size: usize) -> Reported {
        let mut reader = ReportedReader::new(dialect, is_stream);
        answer.as_bytes().chunks(size).for_each(|bytes| reader.push(bytes));
        reader.finish()
    }

    fn check(dialect: Dialect, answer: &str, expect: &Reported) {
        let is_stream = answer.contains("data:");
        for size in [1, 7, answer.len().max(1)] {
            assert_eq!(&read(dialect, is_stream, answer, size), expect, "{size}: {answer}");
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
            let mut reader = ReportedReader::new(Dialect::Chat, true);
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
        assert_eq!(read(Dialect::Chat, false, &long, 100).id.expect("an id").len(), NAME_BYTES_MAX);
    }

    #[test]
    fn the_buffer_is_bounded() {
        let long = format!(r#"{{"id": "c", "text": "{}"}}"#, "x".repeat(BUFFER_BYTES_MAX));
        assert_eq!(read(Dialect::Chat, false, &long, 65_536), Reported::default());
        let event = format!("data: {{\"id\": \"c\"}}\n\ndata: {long}\n\n");
        assert_eq!(read(Dialect::Chat, true, &event, 65_536).id.as_deref(), Some("c"));
    }
}
