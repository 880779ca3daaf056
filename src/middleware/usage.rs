//! Reads an answer of an upstream while it is forwarded: the tokens that the upstream counted, and, if wanted, its text. The answer does not
//! change.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answer;
use super::dialect::Dialect;
use super::json::Located;
use super::sse::{self, Events};

/// Tokens that an upstream counted. No token counts in two of the fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BilledTokens")]
pub struct Usage {
    /// Tokens of prompts that were neither read from a cache nor written into one.
    pub input: u64,
    /// Tokens of prompts that were read from a cache.
    pub cached_read: u64,
    /// Tokens of prompts that were written into a cache.
    pub cached_write: u64,
    /// Tokens of answers.
    pub output: u64,
}

impl Usage {
    /// Returns all tokens of prompts, cached or not.
    pub fn prompt(self) -> u64 {
        self.input.saturating_add(self.cached_read).saturating_add(self.cached_write)
    }

    /// Returns the sums of two counts.
    pub fn plus(self, more: Self) -> Self {
        Self {
            input: self.input.saturating_add(more.input),
            cached_read: self.cached_read.saturating_add(more.cached_read),
            cached_write: self.cached_write.saturating_add(more.cached_write),
            output: self.output.saturating_add(more.output),
        }
    }

    /// Reads an object `usage`. Returns `None` if it has no count of a prompt and none of an answer. A count that is no whole number of at least
    /// 0 is taken for missing.
    pub fn read(dialect: Dialect, usage: Located) -> Option<Self> {
        Counted::read(usage).usage(dialect)
    }
}

/// The counts of an object `usage`, as the upstream wrote them. `None`: the object does not have the count.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// Tokens of the prompt. Anthropic counts cached tokens apart, OpenAI among the others.
    prompt: Option<u64>,
    /// Tokens of the prompt that were read from a cache.
    pub read: Option<u64>,
    /// Tokens of the prompt that were written into a cache.
    pub written: Option<u64>,
    pub output: Option<u64>,
}

impl Counted {
    /// Reads an object `usage`.
    pub fn read(usage: Located) -> Self {
        let count = |object: Located, names: &[&str]| -> Option<u64> {
            names.iter().find_map(|name| object.get(name)?.read())
        };
        let details = ["prompt_tokens_details", "input_tokens_details"];
        let details = details.iter().find_map(|name| usage.get(name));
        let detail = |names: &[&str]| details.and_then(|details| count(details, names));
        Self {
            prompt: count(usage, &["prompt_tokens", "input_tokens"]),
            // DeepSeek has a name of its own.
            read: detail(&["cached_tokens"])
                .or_else(|| count(usage, &["cache_read_input_tokens", "prompt_cache_hit_tokens"])),
            written: detail(&["cache_write_tokens", "cache_creation_tokens"])
                .or_else(|| count(usage, &["cache_creation_input_tokens"])),
            output: count(usage, &["completion_tokens", "output_tokens"]),
        }
    }

    /// The counts of `later`, and those of `self` that it does not have: counts of a stream grow, and later ones replace earlier ones.
    #[must_use]
    pub fn replaced_by(self, later: Self) -> Self {
        Self {
            prompt: later.prompt.or(self.prompt),
            read: later.read.or(self.read),
            written: later.written.or(self.written),
            output: later.output.or(self.output),
        }
    }

    /// Returns the tokens of the prompt, cached ones included; `None` if the upstream did not count them.
    pub fn whole_prompt(self, dialect: Dialect) -> Option<u64> {
        let apart = match dialect {
            Dialect::Messages => [self.read, self.written],
            Dialect::Chat | Dialect::Responses => [None, None],
        };
        let prompt = self.prompt?;
        Some(apart.into_iter().flatten().fold(prompt, u64::saturating_add))
    }

    fn usage(self, dialect: Dialect) -> Option<Usage> {
        if self.prompt.is_none() && self.output.is_none() {
            return None;
        }
        let (cached_read, cached_write) = (self.read.unwrap_or(0), self.written.unwrap_or(0));
        let prompt = self.prompt.unwrap_or(0);
        let input = match dialect {
            Dialect::Messages => prompt,
            Dialect::Chat | Dialect::Responses => {
                prompt.saturating_sub(cached_read).saturating_sub(cached_write)
            }
        };
        Some(Usage { input, cached_read, cached_write, output: self.output.unwrap_or(0) })
    }
}

/// Reads an answer as its bytes arrive.
#[derive(Debug)]
pub struct AnswerReader {
    dialect: Dialect,
    form: Form,
    counted: Counted,
    /// The texts of the answer, if they are wanted; a line break stands between two texts.
    text: Option<String>,
    /// The most bytes of text, and of JSON or of one event.
    bytes_max: usize,
    /// Whether something was longer than that, and is missing.
    is_cut: bool,
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
    pub fn new(dialect: Dialect, is_stream: bool, reads_text: bool, bytes_max: usize) -> Self {
        let form = if is_stream { Form::Stream(Events::new(bytes_max)) } else { Form::Json(Vec::new()) };
        let text = reads_text.then(String::new);
        Self { dialect, form, counted: Counted::default(), text, bytes_max, is_cut: false }
    }

    /// Reads the next bytes of the answer.
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

    /// Returns what the upstream counted, once all bytes have been read, and the text. `None` instead of the text: it was not wanted, or a part
    /// of it was too long.
    pub fn finish(mut self) -> (Option<Usage>, Option<String>) {
        if let Form::Json(buffer) = std::mem::replace(&mut self.form, Form::Json(Vec::new())) {
            self.read_json(&buffer);
        }
        let text = self.text.filter(|_| !self.is_cut);
        (self.counted.usage(self.dialect), text)
    }

    fn read_json(&mut self, body: &[u8]) {
        let Some(body) = std::str::from_utf8(body).ok().and_then(|body| Located::parse(body).ok()) else {
            return;
        };
        if let Some(usage) = body.get("usage") {
            self.counted = Counted::read(usage);
        }
        if self.text.is_some() {
            let (texts, is_all) = answer::texts(self.dialect, body, self.bytes_max);
            self.is_cut |= !is_all;
            texts.iter().for_each(|text| self.add(&text.text, true));
        }
    }

    fn read_event(&mut self, event: &[u8]) {
        // Most events are a piece of text, and have no counts.
        let has_counts = memchr::memmem::find(event, b"\"usage\"").is_some();
        if !has_counts && self.text.is_none() {
            return;
        }
        let Some(data) = sse::data(event) else { return };
        let Ok(data) = Located::parse(&data) else { return };
        let holder = match self.dialect {
            Dialect::Chat => Some(data),
            Dialect::Responses => data.get("response"),
            // The first event has the counts of the prompt inside the message.
            Dialect::Messages => data.get("message").or(Some(data)),
        };
        if let Some(usage) = holder.filter(|_| has_counts).and_then(|holder| holder.get("usage")) {
            self.counted = self.counted.replaced_by(Counted::read(usage));
        }
        if self.text.is_some() {
            let (text, is_end) = piece(self.dialect, data);
            self.add(&text, is_end);
        }
    }

    fn add(&mut self, more: &str, is_end: bool) {
        let Some(text) = &mut self.text else { return };
        if text.len() + more.len() + 1 > self.bytes_max {
            self.is_cut = true;
            return;
        }
        text.push_str(more);
        if is_end && !text.is_empty() {
            text.push('\n');
        }
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

    fn read(dialect: Dialect, answer: &str, is_stream: bool) -> (Option<[u64; 4]>, Option<String>) {
        let mut found = Vec::new();
        // However the bytes arrive, the result is the same.
        for size in [1, 7, answer.len()] {
            let mut reader = AnswerReader::new(dialect, is_stream, true, MAX);
            answer.as_bytes().chunks(size).for_each(|bytes| reader.push(bytes));
            let (usage, text) = reader.finish();
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
        let mut reader = AnswerReader::new(Dialect::Chat, true, true, MAX);
        for bytes in stream.as_bytes().chunks(64) {
            reader.push(bytes);
            let Form::Stream(events) = &reader.form else { panic!("a stream") };
            assert!(events.held_bytes() <= MAX + 64);
        }
        let (usage, text) = reader.finish();
        assert_eq!((usage.map(Usage::prompt), text), (Some(9), None), "counts behind a long event are read");
    }

    #[test]
    fn an_answer_that_is_one_text_is_read() {
        let answer = r#"{"choices": [{"message": {"content": "At noon."}}], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}"#;
        assert_eq!(read(Dialect::Chat, answer, false), (Some([9, 0, 0, 3]), Some("At noon.\n".to_owned())));
        assert_eq!(read(Dialect::Chat, "not JSON", false), (None, Some(String::new())));
    }
}
