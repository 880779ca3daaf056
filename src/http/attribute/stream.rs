//! `POST /v1/attribute/stream`: an answer comes in events, its sentences go out in events, each as soon as its end is sure.

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
use serde_json::json;
use sse_stream::SseByteStream;
use thresher_core::domain::ByteRange;
use thresher_core::pipeline::attribute::Candidates;
use thresher_core::pipeline::clock::Clock;
use thresher_core::text::Arriving;
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::{Asked, Chunks, Found};
use crate::admission;
use crate::api::{self, Arrival, AttributeBody, PartAnswer};

use crate::error::{ApiError, ErrorAnswer};
use crate::executor::run_blocking;
use crate::http::memory::NoRoom;
use crate::http::{Scope, body, observe};

type Events = BoxStream<'static, Result<sse_stream::Sse, sse_stream::Error>>;

/// Reads the first event as a request without an answer, then the answer.
pub async fn handle(
    service: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    body::is_plain(&headers)?;
    body::is_events(&headers)?;
    service.ready()?;
    let place = service.executor().open_stream().await?;
    let begun = Arc::new(AtomicBool::new(false));
    let mut events = events(body, &service, Arc::clone(&begun));
    let first = tokio::time::timeout(service.limits.read_max, next(&mut events, &service));
    let first = first.await.map_err(|_elapsed| ApiError::body_timeout())??;
    let first = first.ok_or_else(ApiError::stream_empty)?;
    let (limits, first_bytes) = (service.limits.bodies, first.len());
    let asked = run_blocking(move || Asked::parse(first.as_bytes(), &limits)).await?;
    begun.store(true, Ordering::Relaxed);
    service.body_memory().shrink_to_parsed(first_bytes);
    let deadline_ms = asked.body.deadline_ms();
    let deadline = service.executor().deadline(Instant::now(), deadline_ms)?;
    let permit = service.executor().permit_in(&place, deadline).await?;
    let read = AttributeBody::into_stream;
    let begun = asked.work(&service, (permit, deadline), read, |service, found, cancel| {
        let pipeline = service.ready()?;
        pipeline.check_sources(&found.request)?;
        let mut clock = Clock::start();
        let candidates = pipeline.candidates(&found.request, &mut clock, cancel)?;
        observe::stages(&clock.finish());
        Ok(Begun { found, candidates })
    });
    let begun = Arc::new(begun.await?);
    // One event waits at most: who does not read stops what it sends from being read.
    let (sender, receiver) = mpsc::channel(1);
    let arriving = Arriving::default();
    let answering = Answering { service, place, deadline_ms, begun, sender, arriving, parts: 0 };
    tokio::spawn(answering.run(events).in_current_span());
    let outgoing = stream::unfold(receiver, async |mut receiver| {
        let event: Event = receiver.recv().await?;
        Some((Ok(event), receiver))
    });
    Ok(Sse::new(outgoing).keep_alive(KeepAlive::default()))
}

/// What all sentences share.
struct Begun {
    found: Found,
    candidates: Candidates,
}

/// One stream on its way.
struct Answering {
    service: Scope,
    place: admission::Stream,
    /// Of each sentence.
    deadline_ms: Option<u64>,
    begun: Arc<Begun>,
    sender: mpsc::Sender<Event>,
    arriving: Arriving,
    parts: usize,
}

/// The client reads no more.
struct Gone;

impl Answering {
    async fn run(mut self, mut events: Events) {
        let streaming = observe::Streaming::begin();
        let (client, max) = (self.sender.clone(), self.service.limits.stream_max);
        let read = tokio::select! {
            // Work that nobody waits for stops with what is dropped here.
            () = client.closed() => Err(Gone),
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

    /// Whether an event said that the answer was over.
    async fn read(&mut self, events: &mut Events) -> Result<Result<bool, ApiError>, Gone> {
        let (mut cut_off, mut until) = (false, self.silent_at());
        loop {
            let next = tokio::time::timeout_at(until, next(events, &self.service)).await;
            let arrival = match next.unwrap_or_else(|_elapsed| Err(self.silent())) {
                Ok(Some(data)) => api::arrival(&data).map_err(ApiError::from),
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

    async fn send(&mut self, parts: Vec<PartAnswer>) -> Result<(), Gone> {
        for part in parts {
            self.parts += 1;
            let event = self.event("part", &part);
            self.emit(event).await?;
        }
        Ok(())
    }

    /// Who does not read for as long as a request may take has gone.
    async fn emit(&self, event: Event) -> Result<(), Gone> {
        let sent = tokio::time::timeout(self.service.limits.deadline_max, self.sender.send(event));
        sent.await.map_err(|_elapsed| Gone)?.map_err(|_closed| Gone)
    }

    fn silent(&self) -> ApiError {
        ApiError::stream_silent(self.service.limits.deadline_max)
    }

    /// When an answer of which nothing more comes is given up: events that bring nothing keep a connection alive, not a stream.
    fn silent_at(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.service.limits.deadline_max
    }

    fn event(&self, name: &str, data: &impl serde::Serialize) -> Event {
        Event::default().event(name).json_data(data).expect("our answers are JSON")
    }

    /// A sentence waits for its turn like any request.
    async fn attribute(&self, sentence: ByteRange) -> Result<Vec<PartAnswer>, ApiError> {
        let deadline = self.service.executor().deadline(Instant::now(), self.deadline_ms)?;
        let (service, begun) = (self.service.clone(), Arc::clone(&self.begun));
        let answer = self.arriving.text()[..sentence.end].to_owned();
        let started = Instant::now();
        let permit = self.service.executor().permit_in(&self.place, deadline).await?;
        let found = self.service.executor().run_with(permit, deadline, move |cancel| {
            let Found { request, options, chunks } = &begun.found;
            let asked = (&request.parts, request.sources_max);
            let sentence = (&*answer, sentence);
            let found = service.ready()?.attribute_sentence(&begun.candidates, sentence, asked, cancel)?;
            let names = chunks.as_ref().map(Chunks::names).unwrap_or_default();
            Ok(PartAnswer::of_stream(&answer, &request.chunks, &found, (options, names)))
        });
        let found = found.await?;
        observe::sentence(started.elapsed());
        Ok(found)
    }
}

/// The events of a body, which may have so many bytes in all as any. Until the first event is `begun`, they take memory of those that
/// all bodies share: the first one holds the chunks, the others a few words each.
fn events(body: Body, scope: &Scope, begun: Arc<AtomicBool>) -> Events {
    let (scope, bytes_max) = (scope.clone(), scope.limits.body_bytes_max);
    let arrived = Arc::new(AtomicUsize::new(0));
    let counted = body.into_data_stream().then(move |data| {
        let (scope, arrived, begun) = (scope.clone(), Arc::clone(&arrived), Arc::clone(&begun));
        async move {
            let data = data.map_err(|error| io::Error::new(io::ErrorKind::ConnectionAborted, error))?;
            let arrived = arrived.fetch_add(data.len(), Ordering::Relaxed) + data.len();
            if arrived > bytes_max {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
            if !begun.load(Ordering::Relaxed) {
                let room = scope.body_memory().grow_to(scope.claim(), arrived).await;
                room.map_err(|NoRoom| io::Error::from(io::ErrorKind::OutOfMemory))?;
            }
            Ok::<_, io::Error>(data)
        }
    });
    // An event is over at a blank line; one that the end of the body cut off is whole as well.
    let end = stream::once(async { Ok(Bytes::from_static(b"\n\n")) });
    SseByteStream::new(counted.chain(end)).boxed()
}

/// The data of the next event that has some; none at the end.
async fn next(events: &mut Events, service: &Scope) -> Result<Option<String>, ApiError> {
    loop {
        match events.next().await {
            None => return Ok(None),
            Some(Ok(event)) => match event.data {
                Some(data) => return Ok(Some(data)),
                None => continue,
            },
            Some(Err(error)) => return Err(broken(&error, service)),
        }
    }
}

fn broken(error: &sse_stream::Error, service: &Scope) -> ApiError {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause.map(|cause| (cause.kind(), cause)) {
        Some((io::ErrorKind::OutOfMemory, _)) => ApiError::body_memory_full(),
        Some((io::ErrorKind::FileTooLarge, _)) => body::Max::of(service).exceeded(),
        Some((_, cause)) => ApiError::body_broken(cause),
        None => ApiError::stream_invalid(&error.to_string()),
    }
}
