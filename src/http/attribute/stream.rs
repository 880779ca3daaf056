//! `POST /v1/attribute/stream`: attributes an answer that is still arriving. The answer arrives as events; each of its sentences is sent as an
//! event as soon as its end is certain.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use opentelemetry::context::FutureExt as _;
use serde_json::json;
use sse_stream::SseByteStream;
use thresher_core::domain::ByteRange;
use thresher_core::pipeline::attribute::Candidates;
use thresher_core::pipeline::clock::Clock;
use thresher_core::text::Arriving;
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::{LoadedRequest, ParsedRequest, ReferencedChunks};
use crate::admission;
use crate::api::{self, Arrival, AttributeBody, PartAnswer};

use crate::error::{ApiError, ErrorAnswer};
use crate::executor::run_blocking;
use crate::http::{Scope, body, observe};
use thresher_core::memory::PoolExhausted;

type Events = BoxStream<'static, Result<sse_stream::Sse, sse_stream::Error>>;

/// `POST /v1/attribute/stream`. The first event is the request; those that follow are the answer.
pub async fn handle(
    service: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    body::check_encoding(&headers)?;
    body::check_events(&headers)?;
    service.ready()?;
    let admitted = service.executor().open_stream().await?;
    let is_first_read = Arc::new(AtomicBool::new(false));
    let mut events = events(body, &service, Arc::clone(&is_first_read));
    let first = tokio::time::timeout(service.settings.http.read_max(), next(&mut events, &service));
    let first = first.await.map_err(|_elapsed| ApiError::body_timeout())??;
    let first = first.ok_or_else(ApiError::stream_empty)?;
    let (limits, first_bytes) = (service.limits(), first.len());
    let request = run_blocking(move || ParsedRequest::parse(first.as_bytes(), &limits)).await?;
    is_first_read.store(true, Ordering::Relaxed);
    service.body_memory().shrink_to_parsed(first_bytes);
    let deadline_ms = request.body.deadline_ms();
    let deadline = service.executor().deadline(Instant::now(), deadline_ms)?;
    let permit = service.executor().permit_in(&admitted, deadline).await?;
    let read = AttributeBody::into_stream;
    let context = request.run(&service, permit, deadline, read, |service, loaded, cancel| {
        let pipeline = service.ready()?;
        pipeline.check_sources(&loaded.request)?;
        let mut clock = Clock::start();
        let candidates = pipeline.candidates_of_stream(&loaded.request, &mut clock, cancel)?;
        observe::stages(&clock.finish());
        Ok(StreamContext { loaded, candidates })
    });
    let context = Arc::new(context.await?);
    // At most one event waits: while a client does not read events, the ones that it sends are not read either.
    let (sender, receiver) = mpsc::channel(1);
    let arriving = Arriving::default();
    let task = StreamTask { service, admitted, deadline_ms, context, sender, arriving, parts: 0 };
    tokio::spawn(task.run(events).in_current_span().with_current_context());
    let outgoing = stream::unfold(receiver, async |mut receiver| {
        let event: Event = receiver.recv().await?;
        Some((Ok(event), receiver))
    });
    Ok(Sse::new(outgoing).keep_alive(KeepAlive::default()))
}

/// What the attribution of all sentences needs.
struct StreamContext {
    loaded: LoadedRequest,
    candidates: Candidates,
}

/// The task that reads the answer of one stream and attributes its sentences.
struct StreamTask {
    service: Scope,
    admitted: admission::Stream,
    deadline_ms: Option<u64>,
    context: Arc<StreamContext>,
    sender: mpsc::Sender<Event>,
    arriving: Arriving,
    parts: usize,
}

/// The client has closed the connection, or does not read.
struct ClientGone;

impl StreamTask {
    async fn run(mut self, mut events: Events) {
        let streaming = observe::StreamGuard::start();
        let (client, max) = (self.sender.clone(), self.service.settings.admission.stream_max());
        let read = tokio::select! {
            // Dropping the other future stops its work.
            () = client.closed() => Err(ClientGone),
            read = tokio::time::timeout(max, self.read(&mut events)) => {
                read.unwrap_or_else(|_elapsed| Ok(Err(ApiError::stream_too_slow(max))))
            }
        };
        let Ok(outcome) = read else { return };
        let code = outcome.as_ref().map_or_else(|error| error.code.as_str(), |_| "ok");
        let last = match outcome {
            Ok(ended) => self.event("done", &json!({"parts": self.parts, "ended": ended})),
            Err(error) => self.event("error", &ErrorAnswer { error }),
        };
        if self.emit(last).await.is_ok() {
            streaming.ended(code);
        }
    }

    /// Reads and attributes the answer. True: an event said that it was complete; false: the body ended without one.
    async fn read(&mut self, events: &mut Events) -> Result<Result<bool, ApiError>, ClientGone> {
        let (mut cut_off, mut until) = (false, self.silent_at());
        loop {
            let next = tokio::time::timeout_at(until, next(events, &self.service)).await;
            let arrival = match next.unwrap_or_else(|_elapsed| Err(self.silent())) {
                Ok(Some(data)) => api::arrival(&data),
                Ok(None) => {
                    cut_off = true;
                    Ok(Arrival::End)
                }
                Err(error) => Err(error),
            };
            let (sentences, ended) = match arrival {
                Err(error) => return Ok(Err(error)),
                Ok(Arrival::Failed) => return Ok(Err(ApiError::answer_failed())),
                Ok(Arrival::Nothing) => continue,
                Ok(Arrival::Text(text)) => match self.check_length(&text) {
                    Err(error) => return Ok(Err(error)),
                    Ok(()) => (self.arriving.push(&text), false),
                },
                Ok(Arrival::End) => (self.arriving.finish(), true),
            };
            for sentence in sentences {
                match self.attribute(sentence).await {
                    Err(error) => return Ok(Err(error)),
                    Ok(parts) => self.send(parts).await?,
                }
            }
            if ended {
                return Ok(Ok(!cut_off));
            }
            until = self.silent_at();
        }
    }

    fn check_length(&self, more: &str) -> Result<(), ApiError> {
        let pipeline = self.service.ready()?;
        Ok(pipeline.check_answer_bytes(self.arriving.text().len() + more.len())?)
    }

    async fn send(&mut self, parts: Vec<PartAnswer>) -> Result<(), ClientGone> {
        for part in parts {
            self.parts += 1;
            let event = self.event("part", &part);
            self.emit(event).await?;
        }
        Ok(())
    }

    /// Sends an event. A client that does not read for as long as a request may take is taken to be gone.
    async fn emit(&self, event: Event) -> Result<(), ClientGone> {
        let sent =
            tokio::time::timeout(self.service.settings.admission.deadline_max(), self.sender.send(event));
        sent.await.map_err(|_elapsed| ClientGone)?.map_err(|_closed| ClientGone)
    }

    fn silent(&self) -> ApiError {
        ApiError::stream_silent(self.service.settings.admission.deadline_max())
    }

    /// When the stream ends if no more of the answer arrives. Events that hold nothing of the answer do not count.
    fn silent_at(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.service.settings.admission.deadline_max()
    }

    fn event(&self, name: &str, data: &impl serde::Serialize) -> Event {
        Event::default().event(name).json_data(data).expect("our answers are JSON")
    }

    /// Attributes a sentence. It needs a permit, like any request.
    async fn attribute(&self, sentence: ByteRange) -> Result<Vec<PartAnswer>, ApiError> {
        let deadline = self.service.executor().deadline(Instant::now(), self.deadline_ms)?;
        let (service, context) = (self.service.clone(), Arc::clone(&self.context));
        let answer = Arc::clone(self.arriving.text());
        let started = Instant::now();
        let permit = self.service.executor().permit_in(&self.admitted, deadline).await?;
        let found = self.service.executor().run_with(permit, deadline, move |cancel| {
            let answer = &answer[..sentence.end];
            let LoadedRequest { request, options, chunks } = &context.loaded;
            let found = service.ready()?.attribute_sentence(
                &context.candidates,
                answer,
                sentence,
                &request.parts,
                request.sources_max,
                cancel,
            )?;
            let numbers = chunks.as_ref().map(ReferencedChunks::numbers).unwrap_or_default();
            Ok(PartAnswer::of_stream(answer, &request.chunks, &found, options, numbers))
        });
        let found = found.await?;
        observe::sentence(started.elapsed());
        Ok(found)
    }
}

/// The events of a body, which together may have as many bytes as any body. Until the first event has been read, its bytes count towards the
/// memory of all bodies: it holds the chunks, and each of the others a few words.
fn events(body: Body, scope: &Scope, is_first_read: Arc<AtomicBool>) -> Events {
    let (scope, bytes_max) = (scope.clone(), scope.settings.http.body_bytes_max);
    let arrived = Arc::new(AtomicUsize::new(0));
    let counted = body.into_data_stream().then(move |data| {
        let (scope, arrived, is_first_read) =
            (scope.clone(), Arc::clone(&arrived), Arc::clone(&is_first_read));
        async move {
            let data = data.map_err(|error| io::Error::new(io::ErrorKind::ConnectionAborted, error))?;
            let arrived = arrived.fetch_add(data.len(), Ordering::Relaxed) + data.len();
            if arrived > bytes_max {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
            if !is_first_read.load(Ordering::Relaxed) {
                let grown = scope.body_memory().grow_to(scope.sharer(), arrived).await;
                grown.map_err(|PoolExhausted| io::Error::from(io::ErrorKind::OutOfMemory))?;
            }
            Ok::<_, io::Error>(data)
        }
    });
    // A blank line ends an event; the end of the body ends the last one, too.
    let end = stream::once(async { Ok(Bytes::from_static(b"\n\n")) });
    SseByteStream::new(counted.chain(end)).boxed()
}

/// The data of the next event that has data; none at the end of the body.
async fn next(events: &mut Events, service: &Scope) -> Result<Option<String>, ApiError> {
    loop {
        match events.next().await {
            None => return Ok(None),
            Some(Ok(event)) => match event.data {
                Some(data) => return Ok(Some(data)),
                None => continue,
            },
            Some(Err(error)) => return Err(stream_error(&error, service)),
        }
    }
}

fn stream_error(error: &sse_stream::Error, service: &Scope) -> ApiError {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause.map(|cause| (cause.kind(), cause)) {
        Some((io::ErrorKind::OutOfMemory, _)) => ApiError::body_memory_full(),
        Some((io::ErrorKind::FileTooLarge, _)) => body::BodyLimit::new(service).exceeded(),
        Some((_, cause)) => ApiError::body_broken(cause),
        None => ApiError::stream_invalid(&error.to_string()),
    }
}
