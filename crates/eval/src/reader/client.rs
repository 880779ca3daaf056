//! A client of OpenAI-compatible servers, and the prompts that it sends.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use ureq::http::{Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::{ReaderOptions, ReaderRow};

/// A response takes at most this long; a model on a CPU is slow.
const RESPONSE_MAX: Duration = Duration::from_secs(600);
const CONNECT_MAX: Duration = Duration::from_secs(15);

/// Times that a request is sent.
const TRIES: u32 = 6;
/// The longest wait between two tries, also if the server names a longer one.
const WAIT_MAX: Duration = Duration::from_secs(60);
const RESPONSE_BYTES_MAX: u64 = 4 << 20;

/// What a model is told to say if the context has no answer.
const NO_ANSWER: &str = "no answer";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    pub text: String,
    /// The numbers of tokens that the server counted, if it says them.
    pub tokens_in: Option<u64>,
    pub tokens_out: Option<u64>,
    pub seconds: f64,
}

/// Why there is no answer to score.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// The prompt is longer than the model's context.
    TooLong,
    /// The server or the model refused to answer.
    Refused,
    /// The model said nothing.
    Empty,
    /// The answer ended at the limit of tokens before the model had stopped thinking.
    CutOff,
    /// The server does not take this request.
    Rejected(String),
    /// Thresher does not take the row.
    NotSelected(String),
    RateLimited(String),
    /// The server failed, or could not be reached.
    Unavailable(String),
    /// The response is not one of this API.
    NotUnderstood(String),
}

impl Failure {
    /// Returns whether it says something about the server, and not about the prompt.
    pub fn is_of_the_server(&self) -> bool {
        matches!(self, Self::RateLimited(_) | Self::Unavailable(_) | Self::NotUnderstood(_))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::TooLong => "too long for the model",
            Self::Refused => "refused",
            Self::Empty => "empty",
            Self::CutOff => "cut off while thinking",
            Self::Rejected(_) => "rejected by the server",
            Self::NotSelected(_) => "refused by Thresher",
            Self::RateLimited(_) => "rate limited",
            Self::Unavailable(_) => "server failed",
            Self::NotUnderstood(_) => "response not understood",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why)
            | Self::NotUnderstood(why)
            | Self::Rejected(why)
            | Self::NotSelected(why)
            | Self::RateLimited(why) => write!(f, "{}: {why}", self.name()),
            Self::TooLong | Self::Refused | Self::Empty | Self::CutOff => f.write_str(self.name()),
        }
    }
}

/// Returns the prompt of a question with a context, which may be empty.
pub fn question(row: &ReaderRow, context: &str) -> String {
    let mut prompt = String::new();
    if !context.is_empty() {
        prompt += context;
        prompt += "\n\n";
    }
    if !row.history.is_empty() {
        prompt += "Conversation before the question:\n";
        for turn in &row.history {
            prompt += &format!("- {}\n", turn.content);
        }
        prompt.push('\n');
    }
    let source = if context.is_empty() { "" } else { ", taken from the text above" };
    prompt
        + &format!(
            "Answer the question with a few words{source}. If you cannot answer it, write: {NO_ANSWER}.\nQuestion: {}\nAnswer:",
            row.query
        )
}

/// How an answer begins, without punctuation, that says that there is none.
const DECLINES: [&str; 10] = [
    NO_ANSWER,
    "i cannot answer",
    "i do not know",
    "i dont know",
    "it is not stated",
    "not stated",
    "question cannot be answered",
    "context does not",
    "text does not",
    "there is no answer",
];

/// Returns whether a model said that there is no answer.
pub fn declines(answer: &str) -> bool {
    let answer = super::squad::normalized(answer);
    DECLINES.iter().any(|words| answer.starts_with(words))
}

/// Returns the prompt by which a model judges an answer.
pub fn judge_prompt(query: &str, references: &[String], answer: &str) -> String {
    format!(
        "Question: {query}\nCorrect answers: {}\nAnswer to judge: {answer}\n\nDoes the answer to judge say the same as one of the correct answers? \
         It may use other words or say more, if nothing contradicts. Write yes or no.",
        references.join(" | ")
    )
}

/// Returns what a judge said; `None` if it is neither yes nor no.
pub fn opinion(response: &str) -> Option<bool> {
    match super::squad::normalized(response).split(' ').next()? {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

pub struct Client {
    agent: Agent,
    completions: String,
    model: String,
    judge: Option<String>,
    key: Option<String>,
    body: Map<String, Value>,
    on_wait: fn(Duration, &str),
    /// Whether any request was answered: a refusal then says something about the request, and not about the server.
    has_answered: AtomicBool,
}

impl Client {
    pub fn new(options: &ReaderOptions) -> Self {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_global(Some(RESPONSE_MAX))
            .user_agent(concat!("thresher/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let base = options.url.as_str().trim_end_matches('/');
        Self {
            agent,
            completions: format!("{base}/chat/completions"),
            has_answered: AtomicBool::new(false),
            model: options.model.clone(),
            judge: options.judge.clone(),
            key: options.key.clone(),
            body: options.body.clone(),
            on_wait: options.on_wait,
        }
    }

    pub fn url(&self) -> &str {
        &self.completions
    }

    pub fn request(&self, prompt: &str) -> Value {
        self.request_to(&self.model, prompt)
    }

    /// Returns the request that asks the judge for its opinion; `None` if there is no judge.
    pub fn judgement(&self, row: &ReaderRow, answer: &str) -> Option<Value> {
        let judge = self.judge.as_deref()?;
        Some(self.request_to(judge, &judge_prompt(&row.query, &row.answers, answer)))
    }

    fn request_to(&self, model: &str, prompt: &str) -> Value {
        let mut request = json!({"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 64});
        let fields = request.as_object_mut().expect("it is an object");
        for (name, value) in &self.body {
            match value {
                Value::Null => drop(fields.shift_remove(name)),
                value => drop(fields.insert(name.clone(), value.clone())),
            }
        }
        request
    }

    /// Sends a request until it is answered, at most [`TRIES`] times.
    ///
    /// # Errors
    /// Fails if no request can succeed: the key is wrong, there is no credit, the server has no such model or path, or, as long as it has
    /// answered none, it does not take a request.
    pub fn ask(&self, request: &Value, stop: &AtomicBool) -> Result<Result<Exchange, Failure>> {
        let mut tried = 0;
        loop {
            let (failure, wait) = match self.try_once(request)? {
                (Err(failure @ (Failure::RateLimited(_) | Failure::Unavailable(_))), wait) => (failure, wait),
                (settled, _) => {
                    if settled.is_ok() {
                        self.has_answered.store(true, Ordering::Relaxed);
                    }
                    return Ok(settled);
                }
            };
            tried += 1;
            if tried == TRIES || stop.load(Ordering::Relaxed) {
                return Ok(Err(failure));
            }
            let wait = wait.unwrap_or(Duration::from_secs(1 << (tried - 1))).min(WAIT_MAX);
            (self.on_wait)(wait, failure.name());
            pause(wait, stop);
        }
    }

    /// Sends a request once. Returns also how long the server asks to wait, if it does.
    fn try_once(&self, request: &Value) -> Result<(Result<Exchange, Failure>, Option<Duration>)> {
        let began = Instant::now();
        let mut call = self.agent.post(&self.completions);
        if let Some(key) = &self.key {
            call = call.header("authorization", format!("Bearer {key}"));
        }
        let body = serde_json::to_vec(request)?;
        let response = match call.content_type("application/json").send(&body[..]) {
            Ok(response) => response,
            Err(error) if !self.has_answered.load(Ordering::Relaxed) => {
                bail!("cannot reach {}: {error}", self.completions)
            }
            Err(error) => return Ok((Err(Failure::Unavailable(error.to_string())), None)),
        };
        let (status, wait) = (response.status(), wait_of(&response));
        let settled = match text_of(response) {
            Ok(text) => self.understand(status, &text, began.elapsed().as_secs_f64())?,
            // It would be as long again.
            Err(error @ ureq::Error::BodyExceedsLimit(_)) => Err(Failure::NotUnderstood(error.to_string())),
            Err(error) => Err(Failure::Unavailable(error.to_string())),
        };
        Ok((settled, wait))
    }

    fn understand(&self, status: StatusCode, text: &str, seconds: f64) -> Result<Result<Exchange, Failure>> {
        let start: String = text.chars().take(200).collect();
        let body: Option<Value> = serde_json::from_str(text).ok();
        let message = body.as_ref().and_then(message_of).unwrap_or_else(|| start.clone());
        let is_first = !self.has_answered.load(Ordering::Relaxed);
        let server = &self.completions;
        match status.as_u16() {
            200 => {}
            _ if text.contains("insufficient_quota") => bail!("{server} answers {status}: {message}"),
            401 => bail!("{server} refuses the key ({status}): {message}; set OPENAI_API_KEY"),
            404 | 405 => {
                bail!("{server} answers {status}: {message}; check the URL and the name of the model")
            }
            429 => return Ok(Err(Failure::RateLimited(message))),
            400 | 413 | 422 if status == StatusCode::PAYLOAD_TOO_LARGE || is_too_long(text) => {
                return Ok(Err(Failure::TooLong));
            }
            400 | 403 | 422 if text.contains("content") && text.contains("filter") => {
                return Ok(Err(Failure::Refused));
            }
            400 | 403 | 422 if is_first => {
                bail!(
                    "{server} answers {status}: {message}; check the key, and the fields of the request (--body)"
                )
            }
            400 | 403 | 422 => return Ok(Err(Failure::Rejected(message))),
            _ => return Ok(Err(Failure::Unavailable(format!("{status}: {message}")))),
        }
        let Some(choice) = body.as_ref().and_then(|body| body.pointer("/choices/0")) else {
            return Ok(Err(Failure::NotUnderstood(format!("no choices in {start:?}"))));
        };
        let finish = choice.get("finish_reason").and_then(Value::as_str);
        if choice.pointer("/message/refusal").is_some_and(Value::is_string)
            || finish == Some("content_filter")
        {
            return Ok(Err(Failure::Refused));
        }
        let said = choice.pointer("/message/content").and_then(Value::as_str).unwrap_or_default();
        // What a model thought before its answer is no part of it.
        let answer = said.rsplit_once("</think>").map_or(said, |(_, answer)| answer).trim();
        let is_thinking = said.trim_start().starts_with("<think>") && !said.contains("</think>");
        if is_thinking || answer.is_empty() && finish == Some("length") {
            return Ok(Err(Failure::CutOff));
        }
        if answer.is_empty() {
            return Ok(Err(Failure::Empty));
        }
        let tokens = |name: &str| body.as_ref()?.pointer(&format!("/usage/{name}"))?.as_u64();
        Ok(Ok(Exchange {
            text: answer.to_owned(),
            tokens_in: tokens("prompt_tokens"),
            tokens_out: tokens("completion_tokens"),
            seconds,
        }))
    }
}

/// Waits, unless the run ends.
fn pause(wait: Duration, stop: &AtomicBool) {
    let until = Instant::now() + wait;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(100).min(until.saturating_duration_since(Instant::now())));
    }
}

fn wait_of(response: &Response<Body>) -> Option<Duration> {
    let seconds: f64 = response.headers().get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn text_of(response: Response<Body>) -> Result<String, ureq::Error> {
    response.into_body().into_with_config().limit(RESPONSE_BYTES_MAX).lossy_utf8(true).read_to_string()
}

/// Returns the message of an error: OpenAI's, or that of servers with a shape of their own.
fn message_of(body: &Value) -> Option<String> {
    let places = ["/error/message", "/message", "/detail", "/error"];
    places.iter().find_map(|place| body.pointer(place)?.as_str().map(str::to_owned))
}

/// Returns whether an error says that the prompt is longer than the model's context. Servers have no common code for it.
fn is_too_long(body: &str) -> bool {
    const WORDS: [&str; 9] = [
        "context length",
        "context_length",
        "context window",
        "context size",
        "maximum model length",
        "maximum number of tokens",
        "max_model_len",
        "prompt is too long",
        "too many tokens",
    ];
    let body = body.to_lowercase();
    WORDS.iter().any(|words| body.contains(words))
}
