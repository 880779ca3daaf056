//! Forwards the answer of an upstream to the client, with citations added if it may have some.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::response::Parts;
use axum::http::{HeaderValue, Response};
use futures_util::stream;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use metrics::counter;
use serde_json::json;
use thiserror::Error;

use super::has_media_type;
use super::tally::Tally;
use crate::admission::Slot;
use crate::error::ApiError;
use crate::http::Scope;
use crate::http::error::ResponseCode;
use crate::http::traces::Retrieval;
use crate::http::traces::model_call::ModelCall;
use crate::middleware::answer;
use crate::middleware::cite::{self, Additions, Found, SeenTexts};
use crate::middleware::dialect::Dialect;
use crate::middleware::json::{Edits, Located};
use crate::middleware::reported::{Answer, AnswerReader, Wanted};
use crate::middleware::sse::Events;
use crate::middleware::stream::{AnswerStream, FinishedText, Step};

/// The most bytes of JSON that are buffered for each byte of text: JSON writes a letter in up to six bytes, and has fields beside the text.
const JSON_BYTES_PER_TEXT_BYTE: usize = 8;

/// The most bytes of an answer that are buffered to read how many tokens were billed, and in shadow mode its text.
const ANSWER_BYTES_MAX: usize = 2 << 20;

pub struct Forwarder {
    pub service: Scope,
    pub dialect: Dialect,
    pub wanted: Additions,
    /// The texts that the answer may cite; none: the answer is forwarded unchanged.
    pub sources: Option<Arc<SeenTexts>>,
    pub tally: Option<Tally>,
    /// The longest time that the upstream may send nothing.
    pub silence_max: Duration,
    /// The span of the request to the upstream, which ends with the answer.
    pub call: ModelCall,
    /// Reads the answer for the tally and the span.
    pub reader: Option<AnswerReader>,
}

/// Why an answer ends early. The connection to the client is then closed without the end of the body, so that the client notices.
#[derive(Debug, Error)]
enum ForwardError {
    #[error("the upstream broke the connection")]
    Upstream(#[from] hyper::Error),
    #[error("the upstream sent nothing more")]
    Silent,
}

impl Forwarder {
    /// The response for the client. `slot` is freed when all of it has been sent.
    pub async fn forward(mut self, answer: Response<Incoming>, slot: Slot) -> Response<Body> {
        let (mut head, body) = answer.into_parts();
        let (is_stream, is_json) = (
            has_media_type(&head.headers, "text/event-stream"),
            has_media_type(&head.headers, "application/json"),
        );
        let is_plain = head.headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
        // As much of an answer is buffered as can be attributed; without a model, nothing is.
        let limits = self.service.pipeline().map(|pipeline| &pipeline.settings().limits);
        let text_bytes_max = limits.map_or(0, |limits| limits.answer_bytes_max);
        let cites = head.status.is_success() && self.sources.is_some() && is_plain && text_bytes_max > 0;
        if !head.status.is_success() {
            head.extensions.insert(ResponseCode("upstream_error"));
            self.tally = None;
        }
        let is_readable = head.status.is_success() && is_plain && (is_stream || is_json);
        if is_readable && (self.tally.is_some() || self.call.is_recording()) {
            let text = self.tally.as_ref().is_some_and(|tally| tally.would_keep.is_some());
            let wanted = Wanted { text, report: self.call.is_recording() };
            let max = self.service.middleware.limits.body_bytes_max.min(ANSWER_BYTES_MAX);
            self.reader = Some(AnswerReader::new(self.dialect, is_stream, wanted, max));
        }
        let stream = ForwardStream {
            events: Events::new(text_bytes_max.saturating_mul(JSON_BYTES_PER_TEXT_BYTE)),
            arriving: AnswerStream::new(self.dialect, text_bytes_max),
            text_bytes_max,
            steps: VecDeque::new(),
            citing_left: Duration::ZERO,
            out: VecDeque::new(),
            state: State::Unchanged,
            body,
            forwarder: self,
            _slot: slot,
        };
        match cites {
            true if is_stream && !stream.forwarder.wanted.citations => stream.response(head),
            true if is_stream => ForwardStream { state: State::Citing, ..stream }.response(head),
            true if is_json => stream.whole(head).await,
            _ => stream.response(head),
        }
    }

    /// Counts the request and ends the span: no more of the answer will arrive. The reason is that of a failure.
    fn end(&mut self, error: Option<&'static str>) {
        let Answer { usage, text, reported } =
            self.reader.take().map(AnswerReader::finish).unwrap_or_default();
        if let Some(tally) = self.tally.take() {
            tally.count(usage, text);
        }
        self.call.end(reported, error);
    }

    fn read(&mut self, bytes: &[u8]) {
        if let Some(reader) = &mut self.reader {
            self.call.begins(reader.is_stream());
            reader.push(bytes);
        }
    }

    /// As [`Self::read`], for an event that was split off already.
    fn read_event(&mut self, event: &[u8]) {
        if let Some(reader) = &mut self.reader {
            self.call.begins(reader.is_stream());
            reader.read_event(event);
        }
    }

    /// The deadline of an attribution that starts now.
    fn deadline(&self) -> Instant {
        Instant::now() + self.time()
    }

    fn time(&self) -> Duration {
        Duration::from_millis(self.service.middleware.settings.deadline_ms)
    }

    /// The citations of a text and the verdicts on it; empty if attributing it fails. None: the deadline has passed, for this text and for
    /// those after it.
    async fn attributed(&self, text: String, deadline: Instant) -> Option<Found> {
        let sources = self.sources.clone().filter(|_| Instant::now() < deadline)?;
        let (scope, wanted) = (self.service.clone(), (self.dialect, self.wanted));
        let cited = self.service.executor().run(deadline, move |cancel| {
            Ok(cite::attribute(wanted, &text, &sources, scope.ready()?, cancel)?)
        });
        let cited = Retrieval::new("attribute").run(self.service.model_name(), cited);
        match self.call.beside(cited).await {
            Ok(cited) => Some(cited),
            Err(error) => {
                tracing::warn!(code = error.code.as_str(), "an answer is forwarded without citations");
                (Instant::now() < deadline).then(|| Found { spans: Vec::new(), verdicts: Vec::new() })
            }
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Some clients disconnect as soon as they have read the last event.
        let is_complete = self.reader.as_ref().is_some_and(AnswerReader::is_complete);
        self.end((!is_complete).then_some("client_gone"));
    }
}

/// Counts and logs that no more citations are added to an answer.
fn citing_stopped(reason: &'static str) {
    counter!("middleware_citing_stopped_total", "reason" => reason).increment(1);
    tracing::warn!(reason, "no more citations are added to an answer");
}

enum State {
    /// Events are buffered until they are whole, and citations are added.
    Citing,
    /// Bytes are forwarded as they arrive.
    Unchanged,
    Done,
    Failed(ForwardError),
}

struct ForwardStream {
    forwarder: Forwarder,
    body: Incoming,
    events: Events,
    arriving: AnswerStream,
    /// The most bytes of text that are buffered of the answer.
    text_bytes_max: usize,
    /// What is still to be done of the events that have arrived.
    steps: VecDeque<Step>,
    /// How much longer citing the texts of these events may take.
    citing_left: Duration,
    out: VecDeque<Bytes>,
    state: State,
    _slot: Slot,
}

impl ForwardStream {
    fn response(self, head: Parts) -> Response<Body> {
        let mut head = head;
        if matches!(self.state, State::Citing) {
            head.headers.remove(CONTENT_LENGTH);
            head.headers.insert("x-thresher-cited", HeaderValue::from_static("true"));
        }
        let body = stream::try_unfold(self, async |mut stream: Self| {
            Ok::<_, ForwardError>(stream.next().await?.map(|bytes| (bytes, stream)))
        });
        Response::from_parts(head, Body::from_stream(body))
    }

    /// The next bytes for the client; none at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ForwardError> {
        loop {
            if let Some(bytes) = self.out.pop_front() {
                return Ok(Some(bytes));
            }
            if let Some(step) = self.steps.pop_front() {
                self.take_step(step).await;
                continue;
            }
            let cites = match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return Ok(None),
                State::Failed(error) => return Err(error),
                State::Citing => true,
                State::Unchanged => false,
            };
            // What has arrived is sent, however the answer ends.
            match self.frame().await {
                Ok(Some(bytes)) if cites => {
                    self.state = State::Citing;
                    self.take(&bytes);
                    self.end_if_last();
                }
                Ok(Some(bytes)) => {
                    self.state = State::Unchanged;
                    self.forwarder.read(&bytes);
                    self.end_if_last();
                    return Ok(Some(bytes));
                }
                Ok(None) => self.flush(),
                Err(error) => {
                    self.flush();
                    self.state = State::Failed(error);
                }
            }
        }
    }

    /// The next bytes of the upstream, which the span of the request gets to know, too.
    async fn frame(&mut self) -> Result<Option<Bytes>, ForwardError> {
        let frame = self.data_frame().await;
        let forwarder = &mut self.forwarder;
        match &frame {
            Ok(Some(_)) => {}
            Ok(None) => forwarder.end(None),
            Err(ForwardError::Silent) => forwarder.end(Some("upstream_silent")),
            Err(ForwardError::Upstream(_)) => forwarder.end(Some("upstream_failed")),
        }
        frame
    }

    /// If the length of the answer is known, nobody asks for bytes after the last ones.
    fn end_if_last(&mut self) {
        if self.body.is_end_stream() {
            self.forwarder.end(None);
        }
    }

    async fn data_frame(&mut self) -> Result<Option<Bytes>, ForwardError> {
        loop {
            let frame = tokio::time::timeout(self.forwarder.silence_max, self.body.frame());
            match frame.await.map_err(|_elapsed| ForwardError::Silent)?.transpose()? {
                None => return Ok(None),
                Some(frame) => match frame.into_data() {
                    Ok(bytes) => return Ok(Some(bytes)),
                    Err(_trailers) => continue,
                },
            }
        }
    }

    fn take(&mut self, bytes: &Bytes) {
        let was_full = self.arriving.is_full();
        for event in self.events.push(bytes) {
            self.forwarder.read_event(&event);
            self.steps.extend(self.arriving.read(event));
        }
        self.citing_left = self.forwarder.time();
        if self.arriving.is_full() && !was_full {
            citing_stopped("answer_too_long");
        }
        if self.events.is_too_long() {
            if !self.arriving.is_full() {
                citing_stopped("event_too_long");
            }
            self.stop_citing();
            let beginning = self.events.skip();
            self.forwarder.reader.iter_mut().for_each(AnswerReader::skip);
            self.steps.push_back(Step::Send(self.arriving.forward_beginning(beginning)));
        }
        if self.arriving.is_over() {
            self.flush();
            self.state = State::Unchanged;
        }
    }

    fn stop_citing(&mut self) {
        self.steps.extend(self.arriving.stop().map(Step::Send));
    }

    async fn take_step(&mut self, step: Step) {
        let bytes = match step {
            Step::Send(bytes) => bytes,
            Step::Forward(event) => self.arriving.forward(event),
            Step::Cite { finished, event } => self.cite(finished, &event).await,
        };
        if !bytes.is_empty() {
            self.out.push_back(bytes);
        }
    }

    async fn cite(&mut self, finished: FinishedText, event: &Bytes) -> Bytes {
        // The time that a client takes to read events does not count.
        let started = Instant::now();
        let cited = self.forwarder.attributed(finished.text.clone(), started + self.citing_left).await;
        self.citing_left = self.citing_left.saturating_sub(started.elapsed());
        // Thousands of texts may end with one event: other connections get the thread in between.
        tokio::task::yield_now().await;
        let Some(Found { spans, .. }) = cited else {
            // Every sentence could wait as long again, and the text behind it would wait, too.
            if self.forwarder.dialect == Dialect::Messages && !self.arriving.is_full() {
                citing_stopped("citing_too_slow");
                self.stop_citing();
            }
            return Bytes::new();
        };
        let citations = spans.into_iter().flat_map(|span| span.citations).collect();
        self.arriving.cite(finished, cite::distinct(citations), event)
    }

    fn flush(&mut self) {
        self.steps.extend(self.arriving.end().map(Step::Send));
        let rest = self.events.rest();
        // What follows arrives unsplit.
        self.forwarder.read(&rest);
        self.steps.push_back(Step::Send(rest));
    }

    /// The response to an answer that is one JSON text. The answer is buffered until it is whole; one that is too long or takes too long is
    /// forwarded unchanged.
    async fn whole(mut self, mut head: Parts) -> Response<Body> {
        let limits = &self.forwarder.service.middleware.limits;
        let max = limits.body_bytes_max.min(self.text_bytes_max.saturating_mul(JSON_BYTES_PER_TEXT_BYTE));
        let until = Instant::now() + self.forwarder.silence_max;
        let mut buffer = Vec::new();
        let reason = loop {
            match tokio::time::timeout_at(until.into(), self.frame()).await {
                Ok(Ok(Some(bytes))) => {
                    self.forwarder.read(&bytes);
                    self.end_if_last();
                    buffer.extend_from_slice(&bytes);
                }
                Ok(Ok(None)) => break None,
                Err(_elapsed) if !buffer.is_empty() => break Some("answer_too_slow"),
                // Nothing has been sent yet, so that an error can be sent instead.
                Ok(Err(error)) => return self.failed(error),
                Err(_elapsed) => {
                    self.forwarder.end(Some("upstream_silent"));
                    return self.failed(ForwardError::Silent);
                }
            }
            if buffer.len() > max {
                break Some("answer_too_long");
            }
        };
        if let Some(reason) = reason {
            citing_stopped(reason);
            self.out.push_back(buffer.into());
            return self.response(head);
        }
        if let Some(cited) = self.cited(&buffer).await {
            buffer = cited;
            if self.forwarder.wanted.citations {
                head.headers.insert("x-thresher-cited", HeaderValue::from_static("true"));
            }
        }
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(buffer.len()));
        self.out.push_back(buffer.into());
        // The slot is freed when all of it has been sent.
        Self { state: State::Done, ..self }.response(head)
    }

    fn failed(&self, error: ForwardError) -> Response<Body> {
        tracing::warn!(%error, "the answer of an upstream ended early");
        ApiError::upstream_failed(false).dialect_response(self.forwarder.dialect)
    }

    /// The answer with citations; none if its texts cite nothing.
    async fn cited(&self, answer: &[u8]) -> Option<Vec<u8>> {
        let (dialect, text_bytes_max) = (self.forwarder.dialect, self.text_bytes_max);
        let answer = Arc::<str>::from(std::str::from_utf8(answer).ok()?);
        let (workers, time) = (&self.forwarder.service.middleware.workers, self.forwarder.time());
        let body = Arc::clone(&answer);
        let found = workers.run(time, move |_| {
            let Ok(body) = Located::parse(&body) else { return Ok((Vec::new(), true)) };
            let (texts, is_all) = answer::texts(dialect, body, text_bytes_max);
            Ok((texts.into_iter().map(|text| text.text).collect::<Vec<_>>(), is_all))
        });
        // If many answers are being parsed, this one does not wait for long: it is forwarded without citations.
        let (texts, is_all) = tokio::time::timeout(time, found).await.ok()?.ok()?;
        if !is_all {
            citing_stopped("answer_too_long");
        }
        let deadline = self.forwarder.deadline();
        let (mut citations, mut verdicts) = (Vec::new(), Vec::new());
        for text in texts {
            // The remaining texts get no citations.
            let Some(found) = self.forwarder.attributed(text, deadline).await else { break };
            citations.push(found.spans);
            verdicts.extend(found.verdicts);
        }
        let wants_verdicts = self.forwarder.wanted.verdicts;
        let edited = workers.run(time, move |_| {
            let mut edits = Edits::default();
            if let Ok(body) = Located::parse(&answer) {
                for (text, citations) in answer::texts(dialect, body, text_bytes_max).0.iter().zip(&citations)
                {
                    answer::cite(dialect, text, citations, &mut edits);
                }
                if wants_verdicts {
                    edits.set_field(body, "thresher", &json!({"verdicts": verdicts}).to_string());
                }
            }
            Ok((!edits.is_empty()).then(|| edits.apply(&answer).into_bytes()))
        });
        tokio::time::timeout(time, edited).await.ok()?.ok()?
    }
}
