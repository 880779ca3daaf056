//! Recorded traffic: reads lines of JSON with requests and answers, and computes what compression would have saved, as shadow mode does.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;
use thresher_core::domain::Granularity;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, PipelineError};
use thresher_core::plain;

use super::counts::{Exchange, Treatment};
use super::ledger::{Ledger, route};
use super::losses::Loss;
use super::report::{Coverage, ShadowReport};
use super::settings::SavingsSettings;
use crate::middleware::copied::Copied;
use crate::middleware::dialect::{Conversation, Dialect};
use crate::middleware::find;
use crate::middleware::json::Located;
use crate::middleware::prompt::{AddedBytes, Prompt};
use crate::middleware::reported::{Answer, AnswerReader, Wanted};
use crate::middleware::rewrite::{self, CompressOptions, Compressor, Extent, ReadTurns, Rewritten, SentTurn};
use crate::middleware::settings::{MiddlewareLimits, MiddlewareSettings};
use crate::middleware::shadow::WouldKeep;
use crate::middleware::untouched::{TextKinds, can_retrieve};
use crate::middleware::usage::Usage;

/// The most turns whose compression is remembered for later requests of their conversations.
const TURN_COUNT_MAX: usize = 100_000;

const ANSWER_BYTES_MAX: usize = 8 << 20;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum LineError {
    #[error("column {column}: {reason}")]
    Json { column: usize, reason: String },
    #[error("{0}")]
    Field(String),
}

/// A request of a line, and its answer.
#[derive(Debug)]
pub struct Recorded<'a> {
    dialect: Dialect,
    request: Located<'a>,
    model: String,
    usage: Option<Usage>,
    text: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    path: String,
    #[serde(borrow)]
    request: &'a RawValue,
    #[serde(borrow, default)]
    response: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
}

impl<'a> Recorded<'a> {
    /// Reads a line.
    ///
    /// # Errors
    /// Fails if the line is not JSON, has an unknown field or lacks one, if `path` is not a path of the middleware, if `request` is not an object
    /// with a `model`, if `response` is neither an object nor a text, and if `usage` has no count of tokens.
    pub fn parse(line: &'a str) -> Result<Self, LineError> {
        let field = |reason: &str| LineError::Field(reason.to_owned());
        let Line { path, request, response, usage } = serde_json::from_str(line).map_err(|error| {
            let text = error.to_string();
            let place = format!(" at line {} column {}", error.line(), error.column());
            LineError::Json {
                column: error.column(),
                reason: plain::message(text.strip_suffix(&place).unwrap_or(&text)),
            }
        })?;
        let dialects = [Dialect::Chat, Dialect::Responses, Dialect::Messages];
        let dialect = dialects.into_iter().find(|dialect| route(*dialect) == path).ok_or_else(|| {
            let paths: Vec<&str> = dialects.iter().map(|dialect| route(*dialect)).collect();
            LineError::Field(format!("path is {path:?}; it must be one of {}", paths.join(", ")))
        })?;
        let request = Located::parse(request.get()).map_err(|_| field("request is not JSON"))?;
        let model = request.text_of("model").filter(|model| !model.is_empty());
        let model = model.ok_or_else(|| field("request has no model; it must be the body of a request"))?;
        let (mut counted, mut text) = (None, None);
        if let Some(response) = response.filter(|response| response.get() != "null") {
            let stream: Option<String> = serde_json::from_str(response.get()).ok();
            if stream.is_none() && !response.get().starts_with('{') {
                return Err(field("response is neither an object nor the text of a stream of events"));
            }
            let wanted = Wanted { text: true, report: false };
            let mut reader = AnswerReader::new(dialect, stream.is_some(), wanted, ANSWER_BYTES_MAX);
            reader.push(stream.as_deref().unwrap_or(response.get()).as_bytes());
            let Answer { usage, text: found, .. } = reader.finish();
            (counted, text) = (usage, found);
        }
        if let Some(usage) = usage.filter(|usage| usage.get() != "null") {
            let usage = Located::parse(usage.get()).ok().and_then(|usage| Usage::read(dialect, usage));
            let missing = "usage has no count of tokens, such as prompt_tokens or input_tokens";
            counted = Some(usage.ok_or_else(|| field(missing))?);
        }
        Ok(Self { dialect, request, model, usage: counted, text })
    }
}

/// Computes what compression would have saved of recorded requests, in the order in which they were sent.
pub struct Replay {
    middleware: MiddlewareSettings,
    limits: MiddlewareLimits,
    kinds: TextKinds,
    pipeline: Arc<Pipeline>,
    ledger: Ledger,
    turns: Turns,
    whole: BTreeMap<String, u64>,
}

/// What was sent of turns.
#[derive(Default)]
struct Turns {
    sent: HashMap<[u8; 32], SentTurn>,
    order: VecDeque<[u8; 32]>,
}

impl Turns {
    fn put(&mut self, records: Vec<([u8; 32], SentTurn)>) {
        for (key, sent) in records {
            if self.sent.insert(key, sent).is_none() {
                self.order.push_back(key);
            }
            if self.order.len() > TURN_COUNT_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.sent.remove(&oldest);
            }
        }
    }
}

impl Replay {
    pub fn new(middleware: MiddlewareSettings, savings: SavingsSettings, pipeline: Arc<Pipeline>) -> Self {
        let (limits, ledger) = (MiddlewareLimits::default(), Ledger::new(Arc::new(savings)));
        let (kinds, turns) = (TextKinds::default(), Turns::default());
        Self { middleware, limits, kinds, pipeline, ledger, turns, whole: BTreeMap::new() }
    }

    /// Adds a request and its answer. A request that cannot be compressed is counted as whole.
    pub fn add(&mut self, recorded: &Recorded) {
        let Recorded { dialect, request: body, model, usage, text } = recorded;
        let conversation = dialect.conversation(*body);
        let found = find::turns(
            &conversation,
            &self.middleware.policy(&self.limits, conversation.cites_itself),
            &self.kinds,
        );
        let rewritten = match found.too_many {
            Some(too_many) => Err(too_many.reason().to_owned()),
            None => {
                let compressed = self.compress(*dialect, *body, &conversation, &found.turns);
                compressed.map_err(|error| plain::message(&error.to_string()))
            }
        };
        let mut rewritten = rewritten.unwrap_or_else(|reason| {
            *self.whole.entry(reason).or_default() += 1;
            Rewritten::default()
        });
        let prompt = Prompt::new(&conversation, *body);
        let omissions = if rewritten.is_shorter() {
            prompt.omissions(&rewritten, AddedBytes::default(), true)
        } else {
            Vec::new()
        };
        let (before, after) = rewritten.tokens.unwrap_or_default();
        self.ledger.add(&Exchange {
            dialect: *dialect,
            model,
            treatment: Treatment::Shadow,
            tokens: (before as u64, after as u64),
            omissions: &omissions,
            prompt: prompt.bytes(),
            usage: *usage,
        });
        let would_keep = WouldKeep::new(&rewritten, &[]);
        let text = text.as_deref().filter(|text| !text.trim().is_empty());
        if let (Some(text), Some(would_keep)) = (text, would_keep) {
            self.ledger.cover(match would_keep.sources_of(text, &self.pipeline, &Cancel::default()) {
                Ok(kept) => Coverage {
                    answers: 1,
                    sentences: kept.sentences,
                    sentences_kept: kept.sentences_kept,
                    sources: kept.sources,
                    sources_kept: kept.sources_kept,
                    ..Coverage::default()
                },
                Err(_) => Coverage { answers_skipped: 1, ..Coverage::default() },
            });
        }
        self.turns.put(std::mem::take(&mut rewritten.records));
    }

    /// Returns what compression would have saved, and lost of the results of tools; `None` if there was no request.
    pub fn report(&self) -> Option<(ShadowReport, Vec<Loss>)> {
        let report = self.ledger.report();
        report.shadow.map(|shadow| (shadow, report.losses))
    }

    /// Returns why requests could not be compressed, and how many of them.
    pub fn whole(&self) -> &BTreeMap<String, u64> {
        &self.whole
    }

    fn compress(
        &self,
        dialect: Dialect,
        body: Located,
        conversation: &Conversation,
        turns: &[find::Turn],
    ) -> Result<Rewritten, PipelineError> {
        let options = CompressOptions {
            mode: self.middleware.mode,
            result_tokens_min: self.limits.result_tokens_min,
            budget: self.middleware.budget(),
            granularity: Granularity::default(),
            prompt_tokens_min: self.middleware.prompt_tokens_min,
            query: None,
            related_only: false,
            marks: can_retrieve(body),
            off: Arc::default(),
        };
        let pipeline = &self.pipeline;
        let other_text_bytes = find::other_text_bytes(conversation, turns);
        let compressor =
            Compressor { options: &options, tokens_max: None, other_text_bytes, skips_late: false, pipeline };
        let before = |key: &[u8; 32]| self.turns.sent.get(key).cloned();
        let cancel = Cancel::default();
        let plans =
            rewrite::plan(turns, Extent::NewestTurn { again: false }, &options.id(), &before, &cancel)?;
        let uses = Copied::find(conversation, turns, &cancel)?.uses(turns, &plans, &cancel)?;
        self.ledger.used(&uses, self.middleware.loss_max);
        let conversation = rewrite::Conversation { dialect, body, turns, added: &[], is_cited: true };
        rewrite::rewrite(conversation, &plans, Some(compressor), &mut ReadTurns::new(false), &cancel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_request_with_its_answer() {
        let line = r#"{"path": "/v1/messages", "request": {"model": "m", "messages": []},
            "response": {"content": [{"type": "text", "text": "At noon."}], "usage": {"input_tokens": 9, "output_tokens": 3}}}"#;
        let recorded = Recorded::parse(line).expect("a line");
        assert_eq!((recorded.dialect, &*recorded.model), (Dialect::Messages, "m"));
        assert_eq!(recorded.usage, Some(Usage { input: 9, output: 3, ..Usage::default() }));
        assert_eq!(recorded.text.as_deref(), Some("At noon.\n"));
        let line = r#"{"path": "/v1/chat/completions", "request": {"model": "m"}, "usage": {"prompt_tokens": 7},
            "response": "data: {\"choices\":[{\"delta\":{\"content\":\"At noon.\"}}]}\n\ndata: {\"usage\":{\"prompt_tokens\":9}}\n\n"}"#;
        let recorded = Recorded::parse(line).expect("a line");
        assert_eq!(recorded.usage.map(Usage::prompt), Some(7), "`usage` takes precedence");
        assert_eq!(recorded.text.as_deref(), Some("At noon."));
        let bare =
            Recorded::parse(r#"{"path": "/v1/responses", "request": {"model": "m"}, "response": null}"#);
        let bare = bare.expect("a line");
        assert_eq!((bare.usage, bare.text), (None, None));
    }

    #[test]
    fn malformed_lines_are_refused_with_the_reason() {
        let check = |line: &str, expect: &str| {
            let message = Recorded::parse(line).expect_err(line).to_string();
            assert!(message.contains(expect), "{line}: {message:?} lacks {expect:?}");
        };
        check("{", "column 1");
        check("[]", "column");
        check("3", "column");
        check(r#"{"request": {"model": "m"}}"#, "path");
        check(r#"{"path": "/v1/messages"}"#, "request");
        check(r#"{"path": "/v1/embeddings", "request": {"model": "m"}}"#, "path is \"/v1/embeddings\"");
        check(r#"{"path": "/v1/messages", "request": {"model": "m"}, "respones": 1}"#, "respones");
        check(r#"{"path": "/v1/messages", "request": 3}"#, "request has no model");
        check(r#"{"path": "/v1/messages", "request": {"model": ""}}"#, "request has no model");
        check(r#"{"path": "/v1/messages", "request": {"model": "m"}, "response": 3}"#, "response");
        check(
            r#"{"path": "/v1/messages", "request": {"model": "m"}, "usage": {"input_tokens": -1}}"#,
            "usage",
        );
        check(r#"{"path": "/v1/messages", "request": {"model": "m"}} x"#, "column");
    }
}
