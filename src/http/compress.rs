//! `POST /v1/compress`.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;

use super::error::HttpError;
use super::{Service, body, observe, work};
use crate::api::{self, CompressAnswer, CompressBody, Prefiltered, ServeOptions};
use crate::domain::{Chunk, CompressRequest, OnError};
use crate::pipeline::cancel::Cancel;
use crate::pipeline::{self, Pipeline};
use crate::registry::Registry;

/// A request as it was sent.
struct Asked {
    /// Without chunks yet, where it names registered ones.
    request: CompressRequest,
    options: ServeOptions,
    /// Ids of registered chunks, where it names such.
    ids: Option<Vec<String>>,
}

/// A request with the chunks it is about: what happens to them in the registry from now on does not concern it.
struct Resolved<'a> {
    request: Cow<'a, CompressRequest>,
    prefiltered: Option<Prefiltered>,
}

/// Registered chunks that are looked up at a time.
const LOOKUP_COUNT: usize = 1_000;

/// Parses, waits for its turn, compresses; what the caller asked to survive, it gets back whole.
pub async fn handle(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CompressAnswer>, HttpError> {
    let arrived = Instant::now();
    let asked = body::parsed(&service, &headers, body, |body| Asked::new(api::parse(body)?)).await?;
    let deadline = work::deadline(arrived, asked.options.deadline_ms, &service)?;
    let asked = Arc::new(asked);
    match compress(&service, &asked, deadline).await {
        Err(error) if asked.options.on_error == OnError::Passthrough && error.is_ours() => {
            // Looking chunks up is work: who is told that there is too much of it does not cause more.
            if asked.ids.is_some() && error.code() == "overloaded" {
                return Err(error);
            }
            passed(&service, asked, error, arrived).await.map(Json)
        }
        Err(error) if asked.ids.is_some() => Err(error.of_chunks_in("chunk_ids")),
        outcome => outcome.map(Json),
    }
}

async fn compress(
    service: &Service,
    asked: &Arc<Asked>,
    deadline: Instant,
) -> Result<CompressAnswer, HttpError> {
    service.ready()?;
    let (working, asked) = (service.clone(), Arc::clone(asked));
    work::admitted(service, deadline, move |cancel| {
        let pipeline = working.ready()?;
        let resolved = asked.resolved(&working, working.limits.registry.named_bytes_max, cancel)?;
        let compressed = pipeline.compress(&resolved.request, cancel)?;
        observe::compressed(&compressed);
        Ok(asked.answer(&resolved, compressed, Some(pipeline)))
    })
    .await
}

/// The chunks as they are, and why. Registered ones that nobody could have sent are not: then the error is the answer.
async fn passed(
    service: &Service,
    asked: Arc<Asked>,
    error: HttpError,
    arrived: Instant,
) -> Result<CompressAnswer, HttpError> {
    let service = service.clone();
    work::aside(move || {
        let Ok(resolved) = asked.resolved(&service, service.limits.body_bytes_max, &Cancel::default()) else {
            return Err(error);
        };
        let (code, message) = (error.code(), error.message().to_owned());
        let compressed = pipeline::passthrough(&resolved.request, code, message, arrived.elapsed());
        Ok(asked.answer(&resolved, compressed, service.pipeline.get()))
    })
    .await
}

impl Asked {
    fn new(body: CompressBody) -> Result<Self, HttpError> {
        let ids = body.chunk_ids().map(<[_]>::to_vec);
        let (request, options) = body.into_domain(ids.is_some().then(Vec::new))?;
        Ok(Self { request, options, ids })
    }

    /// The request with its chunks, of at most `bytes_max` where they are registered ones.
    fn resolved(
        &self,
        service: &Service,
        bytes_max: usize,
        cancel: &Cancel,
    ) -> Result<Resolved<'_>, HttpError> {
        let Some(ids) = &self.ids else {
            return Ok(Resolved { request: Cow::Borrowed(&self.request), prefiltered: None });
        };
        let (registry, limits) = (service.registry()?, service.limits.registry);
        check_ids(ids, limits.named_count_max)?;
        let lookup = Lookup { registry, ids, bytes_max, cancel };
        let (chunks, prefiltered) = if limits.prefilter_above == 0 || ids.len() <= limits.prefilter_above {
            (lookup.chunks((0..ids.len()).collect())?, None)
        } else {
            // Unknown ids are refused whether the prefilter would have kept them or not.
            let missing = registry.missing(ids);
            if !missing.is_empty() {
                return Err(HttpError::ids_unknown(ids, &missing));
            }
            let CompressRequest { query, keep, .. } = &self.request;
            let places = kept(registry.prefilter(query, ids, limits.prefilter_to)?, ids, keep);
            (lookup.chunks(places.clone())?, Some(Prefiltered { from: ids.len(), places }))
        };
        let request = Cow::Owned(CompressRequest { chunks, ..self.request.clone() });
        Ok(Resolved { request, prefiltered })
    }

    fn answer(
        &self,
        resolved: &Resolved,
        compressed: pipeline::Compressed,
        pipeline: Option<&Pipeline>,
    ) -> CompressAnswer {
        let answer = CompressAnswer::new(&resolved.request, compressed, self.options.offsets, pipeline);
        match &resolved.prefiltered {
            None => answer,
            Some(prefiltered) => answer.prefiltered(prefiltered),
        }
    }
}

/// Some, not too many, each once.
fn check_ids(ids: &[String], count_max: usize) -> Result<(), HttpError> {
    if ids.is_empty() {
        return Err(HttpError::ids_empty());
    }
    if ids.len() > count_max {
        return Err(HttpError::ids_too_many(ids.len(), count_max));
    }
    let mut first_at = HashMap::with_capacity(ids.len());
    for (second, id) in ids.iter().enumerate() {
        if let Some(first) = first_at.insert(id, second) {
            return Err(HttpError::id_twice(id, first, second));
        }
    }
    Ok(())
}

/// Finds registered chunks, while somebody waits for them and within a request's bytes.
struct Lookup<'a> {
    registry: &'a Registry,
    ids: &'a [String],
    bytes_max: usize,
    cancel: &'a Cancel,
}

impl Lookup<'_> {
    /// The chunks whose ids stand at `places`.
    fn chunks(&self, places: Vec<usize>) -> Result<Vec<Arc<Chunk>>, HttpError> {
        let (mut chunks, mut missing, mut bytes) = (Vec::with_capacity(places.len()), Vec::new(), 0);
        for places in places.chunks(LOOKUP_COUNT) {
            self.cancel.check()?;
            let names: Vec<&str> = places.iter().map(|&place| &*self.ids[place]).collect();
            for (chunk, &place) in self.registry.get(&names)?.into_iter().zip(places) {
                match chunk {
                    None => missing.push(place),
                    Some(chunk) => {
                        bytes += chunk.text.len();
                        chunks.push(chunk);
                    }
                }
            }
            if bytes > self.bytes_max {
                return Err(HttpError::named_too_long(self.bytes_max));
            }
        }
        if missing.is_empty() { Ok(chunks) } else { Err(HttpError::ids_unknown(self.ids, &missing)) }
    }
}

/// What the caller wants kept whatever its score is kept here, too.
fn kept(mut places: Vec<usize>, ids: &[String], keep: &[String]) -> Vec<usize> {
    let keep: HashSet<&String> = keep.iter().collect();
    if !keep.is_empty() {
        places.extend((0..ids.len()).filter(|&place| keep.contains(&ids[place])));
        places.sort_unstable();
        places.dedup();
    }
    places
}
