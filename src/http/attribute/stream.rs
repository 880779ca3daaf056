//! `POST /v1/attribute/stream`: an answer comes in events, its sentences go out in events, each as soon as its end is sure.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use serde_json::json;
use sse_stream::SseByteStream;
use tokio::sync::mpsc;

use super::Chunks;
use crate::api::{self, Arrival, AttributeBody, AttributeOptions, PartAnswer};
use crate::domain::{AttributeRequest, ByteRange};
use crate::http::error::HttpError;
use crate::http::{Service, body, observe, work};
use crate::pipeline::attribute::Candidates;
use crate::pipeline::clock::Clock;
use crate::text::Arriving;

type Events = BoxStream<'static, Result<sse_stream::Sse, sse_stream::Error>>;

/// Reads the first event as a request without an answer, then the answer.
pub async fn handle(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Body,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, HttpError> {
    body::is_plain(&headers)?;
    service.ready()?;
    let mut events = events(body, service.limits.body_bytes_max);
    let first = next(&mut events, &service).await?.ok_or_else(HttpError::stream_empty)?;
    let (body, named) = work::aside(move || {
        let body: AttributeBody = api::parse(first.as_bytes())?;
        let named = body.named()?;
        Ok((body, named))
    })
    .await?;
    let deadline = work::deadline(Instant::now(), body.deadline_ms(), &service)?;
    let by_ids = Chunks::are_named_by_ids(named.as_ref());
    let working = service.clone();
    let begun = work::admitted(&service, deadline, move |cancel| {
        let pipeline = working.ready()?;
        let chunks = named.map(|named| Chunks::of(&working, &named, cancel)).transpose()?;
        let (mut request, options) = body.into_stream(chunks.as_ref().map(Chunks::chunks))?;
        let remembered = chunks.as_ref().and_then(Chunks::remembered);
        request.seen = remembered.map(|remembered| remembered.kept.clone());
        pipeline.check_sources(&request)?;
        let mut clock = Clock::start();
        let candidates = pipeline.candidates(&request, &mut clock, cancel)?;
        observe::stages(&clock.finish());
        Ok(Begun { request, options, candidates, chunks })
    })
    .await;
    let begun = match begun {
        Err(error) if by_ids => return Err(error.of_chunks_in("chunk_ids")),
        begun => begun?,
    };
    // One event waits at most: who does not read stops what it sends from being read.
    let (sender, receiver) = mpsc::channel(1);
    let answering =
        Answering { service, begun: Arc::new(begun), sender, arriving: Arriving::default(), parts: 0 };
    tokio::spawn(answering.run(events));
    let outgoing = stream::unfold(receiver, async |mut receiver| {
        let event: Event = receiver.recv().await?;
        Some((Ok(event), receiver))
    });
    Ok(Sse::new(outgoing).keep_alive(KeepAlive::default()))
}

/// What all sentences share.
struct Begun {
    request: AttributeRequest,
    options: AttributeOptions,
    candidates: Candidates,
    chunks: Option<Chunks>,
}

/// One stream on its way.
struct Answering {
    service: Service,
    begun: Arc<Begun>,
    sender: mpsc::Sender<Event>,
    arriving: Arriving,
    parts: usize,
}

/// The client reads no more.
struct Gone;

impl Answering {
    async fn run(mut self, mut events: Events) {
        let last = match self.read(&mut events).await {
            Ok(Ok(ended)) => self.event("done", &json!({"parts": self.parts, "ended": ended})),
            Ok(Err(error)) => self.event("error", &error.into_body()),
            Err(Gone) => return,
        };
        let _gone = self.sender.send(last).await;
    }

    /// Whether an event said that the answer was over.
    async fn read(&mut self, events: &mut Events) -> Result<Result<bool, HttpError>, Gone> {
        let mut cut_off = false;
        loop {
            let arrival = match next(events, &self.service).await {
                Ok(Some(data)) => api::arrival(&data).map_err(HttpError::from),
                Ok(None) => {
                    cut_off = true;
                    Ok(Arrival::End)
                }
                Err(error) => Err(error),
            };
            let (sentences, ended) = match arrival {
                Err(error) => return Ok(Err(error)),
                Ok(Arrival::Failed) => return Ok(Err(HttpError::answer_failed())),
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
        }
    }

    fn check_length(&self, more: &str) -> Result<(), HttpError> {
        let pipeline = self.service.ready()?;
        Ok(pipeline.check_answer_bytes(self.arriving.text().len() + more.len())?)
    }

    async fn send(&mut self, parts: Vec<PartAnswer>) -> Result<(), Gone> {
        for part in parts {
            self.parts += 1;
            let event = self.event("part", &part);
            self.sender.send(event).await.map_err(|_closed| Gone)?;
        }
        Ok(())
    }

    fn event(&self, name: &str, data: &impl serde::Serialize) -> Event {
        Event::default().event(name).json_data(data).expect("our answers are JSON")
    }

    /// A sentence waits for its turn like any request.
    async fn attribute(&self, sentence: ByteRange) -> Result<Vec<PartAnswer>, HttpError> {
        let deadline = Instant::now() + self.service.limits.deadline_default;
        let (service, begun) = (self.service.clone(), Arc::clone(&self.begun));
        let answer = self.arriving.text()[..sentence.end].to_owned();
        work::admitted(&self.service, deadline, move |cancel| {
            let (pipeline, request) = (service.ready()?, &begun.request);
            let asked = (&request.parts, request.sources_max);
            let found = pipeline.attribute_sentence(&begun.candidates, (&answer, sentence), asked, cancel)?;
            let names = begun.chunks.as_ref().map(Chunks::names).unwrap_or_default();
            Ok(PartAnswer::of_stream(&answer, &request.chunks, &found, (begun.options, names)))
        })
        .await
    }
}

/// The events of a body, which may have so many bytes in all.
fn events(body: Body, bytes_max: usize) -> Events {
    let mut left = bytes_max;
    let counted = body.into_data_stream().map(move |data| {
        let data = data.map_err(|_| io::Error::from(io::ErrorKind::ConnectionAborted))?;
        left = left.checked_sub(data.len()).ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        Ok::<_, io::Error>(data)
    });
    // An event is over at a blank line; one that the end of the body cut off is whole as well.
    let end = stream::once(async { Ok(Bytes::from_static(b"\n\n")) });
    SseByteStream::new(counted.chain(end)).boxed()
}

/// The data of the next event that has some; none at the end.
async fn next(events: &mut Events, service: &Service) -> Result<Option<String>, HttpError> {
    // Comments keep a connection alive, not a stream.
    let until = tokio::time::Instant::now() + service.limits.deadline_max;
    loop {
        match tokio::time::timeout_at(until, events.next()).await {
            Err(_elapsed) => return Err(HttpError::stream_silent(service.limits.deadline_max)),
            Ok(None) => return Ok(None),
            Ok(Some(Ok(event))) => match event.data {
                Some(data) => return Ok(Some(data)),
                None => continue,
            },
            Ok(Some(Err(error))) => return Err(broken(&error, service)),
        }
    }
}

fn broken(error: &sse_stream::Error, service: &Service) -> HttpError {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause.map(io::Error::kind) {
        Some(io::ErrorKind::FileTooLarge) => HttpError::body_too_large(service.limits.body_bytes_max),
        Some(_) => HttpError::body_broken(),
        None => HttpError::stream_invalid(&error.to_string()),
    }
}
