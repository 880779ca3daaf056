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
use serde_json::Value;
use thiserror::Error;
use tokio::sync::OwnedSemaphorePermit;

use super::is_of;
use crate::http::error::{ErrorCode, HttpError};
use crate::http::{Scope, work};
use crate::proxy::answer;
use crate::proxy::cite;
use crate::proxy::dialect::Dialect;
use crate::proxy::json::{Edits, Located};
use crate::proxy::rewrite::Source;
use crate::proxy::stream::{Arriving, Events, number};

/// What an answer's texts are tied to their sources with.
pub struct Citing {
    pub service: Scope,
    pub dialect: Dialect,
    /// None: the answer goes on as it comes.
    pub sources: Arc<[Source]>,
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
    pub async fn pass(self, answer: Response<Incoming>, place: OwnedSemaphorePermit) -> Response<Body> {
        let (mut head, body) = answer.into_parts();
        let (is_stream, is_json) =
            (is_of(&head.headers, "text/event-stream"), is_of(&head.headers, "application/json"));
        let is_plain = head.headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
        let cites = head.status.is_success() && !self.sources.is_empty() && is_plain;
        if !head.status.is_success() {
            head.extensions.insert(ErrorCode("upstream_error"));
        }
        let arriving = Passing {
            events: Events::default(),
            arriving: Arriving::new(self.dialect),
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

    /// What a text cites; nothing, when that takes too long or fails.
    async fn citations(&self, text: String) -> Vec<Value> {
        let wait = Duration::from_millis(self.service.middleware.settings.deadline_ms);
        let (working, sources, dialect) = (self.service.clone(), Arc::clone(&self.sources), self.dialect);
        let cited = work::admitted(&self.service, Instant::now() + wait, move |cancel| {
            Ok(cite::citations(dialect, &text, &sources, (working.ready()?, cancel))?)
        });
        cited.await.unwrap_or_else(|error| {
            tracing::warn!(code = error.code(), "an answer goes on without citations");
            Vec::new()
        })
    }
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
    arriving: Arriving,
    out: VecDeque<Bytes>,
    state: State,
    _place: OwnedSemaphorePermit,
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
        for event in self.events.push(bytes) {
            for ended in self.arriving.look(&event) {
                let citations = self.citing.citations(ended.text.clone()).await;
                let told = self.arriving.cite(ended, citations, number(&event));
                self.out.push_back(told.into());
            }
            self.out.push_back(self.arriving.passed(event));
        }
        if self.events.is_too_long() {
            self.flush();
            self.state = State::AsItComes;
        }
        self.out.retain(|bytes| !bytes.is_empty());
    }

    fn flush(&mut self) {
        let rest = self.events.rest();
        if !rest.is_empty() {
            self.out.push_back(rest);
        }
    }

    /// An answer that is one JSON: held until it is whole, if it is not too long.
    async fn whole(mut self, mut head: Parts) -> Response<Body> {
        let max = self.citing.service.middleware.settings.body_bytes_max;
        let mut held = Vec::new();
        loop {
            match self.frame().await {
                Ok(Some(bytes)) => held.extend_from_slice(&bytes),
                Ok(None) => break,
                // Nothing has gone out yet: it can still be said.
                Err(error) => {
                    tracing::warn!(%error, "an answer broke off");
                    return HttpError::upstream_failed(false).in_words_of(self.citing.dialect);
                }
            }
            if held.len() > max {
                self.out.push_back(held.into());
                return self.response(head);
            }
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

    /// An answer with what its texts cite, where they cite anything.
    async fn cited(&self, held: &[u8]) -> Option<Vec<u8>> {
        let (dialect, held) = (self.citing.dialect, Arc::<str>::from(std::str::from_utf8(held).ok()?));
        let body = Arc::clone(&held);
        let found = work::aside(move || {
            let texts = Located::parse(&body).map(|body| answer::texts(dialect, body)).unwrap_or_default();
            Ok(texts.into_iter().map(|text| text.text).collect::<Vec<_>>())
        });
        let mut citations = Vec::new();
        for text in found.await.ok()? {
            citations.push(self.citing.citations(text).await);
        }
        let edited = work::aside(move || {
            let mut edits = Edits::default();
            if let Ok(body) = Located::parse(&held) {
                for (text, citations) in answer::texts(dialect, body).iter().zip(&citations) {
                    answer::cite(dialect, text, citations, &mut edits);
                }
            }
            Ok((!edits.is_empty()).then(|| edits.apply(&held).into_bytes()))
        });
        edited.await.ok()?
    }
}
