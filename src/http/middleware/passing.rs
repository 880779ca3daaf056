//! An answer on its way back: as it comes, or, where it may cite, with what it cites.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::response::Parts;
use axum::http::{HeaderValue, Response};
use futures_util::stream;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use metrics::counter;
use serde_json::Value;
use thiserror::Error;

use super::is_of;
use crate::admission::Slot;
use crate::error::ApiError;
use crate::http::Scope;
use crate::http::error::ResponseCode;
use crate::middleware::answer;
use crate::middleware::cite::{self, Sources};
use crate::middleware::dialect::Dialect;
use crate::middleware::json::{Edits, Located};
use crate::middleware::sse::Events;
use crate::middleware::stream::AnswerStream;

/// An event, or an answer that is one JSON, may have so many bytes for each byte of text that may be held: JSON writes a letter in up to six,
/// and has fields beside the text.
const WRITTEN_BYTES_PER_BYTE: usize = 8;

/// What an answer's texts are tied to their sources with.
pub struct Citing {
    pub service: Scope,
    pub dialect: Dialect,
    /// None: the answer goes on as it comes.
    pub sources: Option<Arc<Sources>>,
    /// How long the server may say nothing.
    pub silence: Duration,
}

/// Why an answer breaks off: its client then sees that it did.
#[derive(Debug, Error)]
enum Broken {
    #[error("the upstream broke off")]
    Upstream(#[from] hyper::Error),
    #[error("the upstream says no more")]
    Silent,
}

impl Citing {
    /// The answer for the client. `place` is given back when the last of it has gone out.
    pub async fn pass(self, answer: Response<Incoming>, place: Slot) -> Response<Body> {
        let (mut head, body) = answer.into_parts();
        let (is_stream, is_json) =
            (is_of(&head.headers, "text/event-stream"), is_of(&head.headers, "application/json"));
        let is_plain = head.headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
        // What may be held of an answer is what may be attributed; without a model, nothing is.
        let limits = self.service.pipeline().map(|pipeline| &pipeline.settings().limits);
        let held_max = limits.map_or(0, |limits| limits.answer_bytes_max);
        let cites = head.status.is_success() && self.sources.is_some() && is_plain && held_max > 0;
        if !head.status.is_success() {
            head.extensions.insert(ResponseCode("upstream_error"));
        }
        let arriving = Passing {
            events: Events::new(held_max.saturating_mul(WRITTEN_BYTES_PER_BYTE)),
            arriving: AnswerStream::new(self.dialect, held_max),
            held_max,
            out: VecDeque::new(),
            state: State::AsItComes,
            body,
            citing: self,
            _place: place,
        };
        match cites {
            true if is_stream => Passing { state: State::Cites, ..arriving }.response(head),
            true if is_json => arriving.whole(head).await,
            _ => arriving.response(head),
        }
    }

    /// When citing that begins now is late.
    fn deadline(&self) -> Instant {
        Instant::now() + self.time()
    }

    fn time(&self) -> Duration {
        Duration::from_millis(self.service.middleware.settings.deadline_ms)
    }

    /// What a text cites; nothing, when that takes too long or fails. None: it is late, for this text and for every one after it.
    async fn citations(&self, text: String, deadline: Instant) -> Option<Vec<Value>> {
        let sources = self.sources.clone().filter(|_| Instant::now() < deadline)?;
        let (working, dialect) = (self.service.clone(), self.dialect);
        let cited = self.service.executor().run(deadline, move |cancel| {
            Ok(cite::citations(dialect, &text, &sources, (working.ready()?, cancel))?)
        });
        Some(cited.await.unwrap_or_else(|error| {
            tracing::warn!(code = error.code.as_str(), "an answer goes on without citations");
            Vec::new()
        }))
    }
}

/// Says that no more citations are added to an answer, and why.
fn stopped(why: &'static str) {
    counter!("middleware_citing_stopped_total", "reason" => why).increment(1);
    tracing::warn!(reason = why, "no more citations are added to an answer");
}

enum State {
    Cites,
    AsItComes,
    Over,
    Broken(Broken),
}

/// An answer of which some has come.
struct Passing {
    citing: Citing,
    body: Incoming,
    events: Events,
    arriving: AnswerStream,
    /// Bytes of texts that may be held of the answer.
    held_max: usize,
    out: VecDeque<Bytes>,
    state: State,
    _place: Slot,
}

impl Passing {
    fn response(self, head: Parts) -> Response<Body> {
        let mut head = head;
        if matches!(self.state, State::Cites) {
            head.headers.remove(CONTENT_LENGTH);
            head.headers.insert("x-thresher-cited", HeaderValue::from_static("true"));
        }
        let body = stream::try_unfold(self, async |mut passing: Self| {
            Ok::<_, Broken>(passing.next().await?.map(|bytes| (bytes, passing)))
        });
        Response::from_parts(head, Body::from_stream(body))
    }

    /// The next bytes for the client; none at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        loop {
            if let Some(bytes) = self.out.pop_front() {
                return Ok(Some(bytes));
            }
            let cites = match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return Ok(None),
                State::Broken(error) => return Err(error),
                State::Cites => true,
                State::AsItComes => false,
            };
            // What has come goes out, whatever the end.
            match self.frame().await {
                Ok(Some(bytes)) if cites => {
                    self.state = State::Cites;
                    self.take(&bytes).await;
                }
                Ok(Some(bytes)) => {
                    self.state = State::AsItComes;
                    return Ok(Some(bytes));
                }
                Ok(None) => self.flush(),
                Err(error) => {
                    self.flush();
                    self.state = State::Broken(error);
                }
            }
        }
    }

    async fn frame(&mut self) -> Result<Option<Bytes>, Broken> {
        loop {
            let frame = tokio::time::timeout(self.citing.silence, self.body.frame());
            match frame.await.map_err(|_elapsed| Broken::Silent)?.transpose()? {
                None => return Ok(None),
                Some(frame) => match frame.into_data() {
                    Ok(bytes) => return Ok(Some(bytes)),
                    Err(_trailers) => continue,
                },
            }
        }
    }

    async fn take(&mut self, bytes: &Bytes) {
        let was_full = self.arriving.is_full();
        for event in self.events.push(bytes) {
            self.cite(&event).await;
            self.out.push_back(self.arriving.forward(event));
        }
        if self.arriving.is_full() && !was_full {
            stopped("answer_too_long");
        }
        if self.events.is_too_long() {
            stopped("event_too_long");
        }
        if self.arriving.is_over() || self.events.is_too_long() {
            self.flush();
            self.state = State::AsItComes;
        }
        self.out.retain(|bytes| !bytes.is_empty());
    }

    /// Puts citations in front of an event: those of the texts that end with it.
    async fn cite(&mut self, event: &Bytes) {
        // For all these texts together.
        let deadline = self.citing.deadline();
        for ended in self.arriving.finished_texts(event) {
            let Some(citations) = self.citing.citations(ended.text.clone(), deadline).await else { return };
            let told = self.arriving.cite(ended, citations, event);
            self.out.push_back(told.into());
            // Thousands of texts may end with one event: other connections have their turn in between.
            tokio::task::yield_now().await;
        }
    }

    fn flush(&mut self) {
        let rest = self.events.rest();
        if !rest.is_empty() {
            self.out.push_back(rest);
        }
    }

    /// An answer that is one JSON: held until it is whole, if it is neither too long nor too long on its way. One that is goes on as it comes.
    async fn whole(mut self, mut head: Parts) -> Response<Body> {
        let settings = &self.citing.service.middleware.settings;
        let max = settings.body_bytes_max.min(self.held_max.saturating_mul(WRITTEN_BYTES_PER_BYTE));
        let until = Instant::now() + self.citing.silence;
        let mut held = Vec::new();
        let why = loop {
            match tokio::time::timeout_at(until.into(), self.frame()).await {
                Ok(Ok(Some(bytes))) => held.extend_from_slice(&bytes),
                Ok(Ok(None)) => break None,
                Err(_elapsed) if !held.is_empty() => break Some("answer_too_slow"),
                // Nothing has gone out yet: it can still be said.
                Ok(Err(error)) => return self.failed(error),
                Err(_elapsed) => return self.failed(Broken::Silent),
            }
            if held.len() > max {
                break Some("answer_too_long");
            }
        };
        if let Some(why) = why {
            stopped(why);
            self.out.push_back(held.into());
            return self.response(head);
        }
        if let Some(cited) = self.cited(&held).await {
            held = cited;
            head.headers.insert("x-thresher-cited", HeaderValue::from_static("true"));
        }
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(held.len()));
        self.out.push_back(held.into());
        // Its place is given back when all of it has gone out.
        Self { state: State::Over, ..self }.response(head)
    }

    fn failed(&self, error: Broken) -> Response<Body> {
        tracing::warn!(%error, "an answer broke off");
        ApiError::upstream_failed(false).dialect_response(self.citing.dialect)
    }

    /// An answer with what its texts cite, where they cite anything.
    async fn cited(&self, held: &[u8]) -> Option<Vec<u8>> {
        let (dialect, held_max) = (self.citing.dialect, self.held_max);
        let held = Arc::<str>::from(std::str::from_utf8(held).ok()?);
        let (slots, time) = (&self.citing.service.middleware.slots, self.citing.time());
        let body = Arc::clone(&held);
        let found = slots.run(time, move |_| {
            let Ok(body) = Located::parse(&body) else { return Ok((Vec::new(), true)) };
            let (texts, is_all) = answer::texts(dialect, body, held_max);
            Ok((texts.into_iter().map(|text| text.text).collect::<Vec<_>>(), is_all))
        });
        // An answer does not wait for long where many are being read: it goes on without citations.
        let (texts, is_all) = tokio::time::timeout(time, found).await.ok()?.ok()?;
        if !is_all {
            stopped("answer_too_long");
        }
        let deadline = self.citing.deadline();
        let mut citations = Vec::new();
        for text in texts {
            // The texts that are left cite nothing.
            let Some(cited) = self.citing.citations(text, deadline).await else { break };
            citations.push(cited);
        }
        let edited = slots.run(time, move |_| {
            let mut edits = Edits::default();
            if let Ok(body) = Located::parse(&held) {
                for (text, citations) in answer::texts(dialect, body, held_max).0.iter().zip(&citations) {
                    answer::cite(dialect, text, citations, &mut edits);
                }
            }
            Ok((!edits.is_empty()).then(|| edits.apply(&held).into_bytes()))
        });
        tokio::time::timeout(time, edited).await.ok()?.ok()?
    }
}
