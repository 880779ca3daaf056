//! `POST /v1/compress`.

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
use crate::pipeline::{self, Pipeline};

/// A request with the chunks it is about: what happens to them in the registry from now on does not concern it.
struct Asked {
    request: CompressRequest,
    options: ServeOptions,
    prefiltered: Option<Prefiltered>,
}

/// Parses, waits for its turn, compresses; what the caller asked to survive, it gets back whole.
pub async fn handle(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CompressAnswer>, HttpError> {
    let arrived = Instant::now();
    let asking = service.clone();
    let asked =
        body::parsed(&service, &headers, body, move |body| Asked::new(api::parse(body)?, &asking)).await?;
    let deadline = work::deadline(arrived, asked.options.deadline_ms, &service)?;
    let asked = Arc::new(asked);
    match compress(&service, &asked, deadline).await {
        Err(error) if asked.options.on_error == OnError::Passthrough && error.is_ours() => {
            let compressed = pipeline::passthrough(&asked.request, error.code(), error.message().to_owned());
            Ok(Json(asked.answer(compressed, service.pipeline.get())))
        }
        Err(error) if asked.request.registered => Err(error.of_chunks_in("chunk_ids")),
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
        let compressed = pipeline.compress(&asked.request, cancel)?;
        observe::compressed(&compressed);
        Ok(asked.answer(compressed, Some(pipeline)))
    })
    .await
}

impl Asked {
    fn new(body: CompressBody, service: &Service) -> Result<Self, HttpError> {
        // Both kinds of chunks at once is a mistake that needs no registry to be seen.
        let named = body.chunk_ids().filter(|_| !body.has_chunks());
        let (registered, prefiltered) = match named {
            None => (None, None),
            Some(ids) => {
                let (chunks, prefiltered) = resolve(ids, &body, service)?;
                (Some(chunks), prefiltered)
            }
        };
        let (request, options) = body.into_domain(registered)?;
        Ok(Self { request, options, prefiltered })
    }

    fn answer(&self, compressed: pipeline::Compressed, pipeline: Option<&Pipeline>) -> CompressAnswer {
        let model = pipeline.map(Pipeline::model);
        let answer = CompressAnswer::new(&self.request, compressed, self.options.offsets, model);
        match &self.prefiltered {
            None => answer,
            Some(prefiltered) => answer.prefiltered(prefiltered),
        }
    }
}

/// The registered chunks that `ids` name, the best of them only when they are very many.
fn resolve(
    ids: &[String],
    body: &CompressBody,
    service: &Service,
) -> Result<(Vec<Arc<Chunk>>, Option<Prefiltered>), HttpError> {
    let (registry, limits) = (service.registry()?, service.limits.registry);
    if ids.is_empty() {
        return Err(HttpError::ids_empty());
    }
    if ids.len() > limits.named_count_max {
        return Err(HttpError::ids_too_many(ids.len(), limits.named_count_max));
    }
    let mut first_at = HashMap::with_capacity(ids.len());
    for (second, id) in ids.iter().enumerate() {
        if let Some(first) = first_at.insert(id, second) {
            return Err(HttpError::id_twice(id, first, second));
        }
    }
    let unknown = |found: &[Option<Arc<Chunk>>], places: &[usize]| {
        let missing = found.iter().zip(places).filter(|(chunk, _)| chunk.is_none()).map(|(_, &place)| place);
        HttpError::ids_unknown(ids, &missing.collect::<Vec<_>>())
    };
    if limits.prefilter_above == 0 || ids.len() <= limits.prefilter_above {
        let found = registry.get(ids)?;
        let places: Vec<usize> = (0..ids.len()).collect();
        let known: Option<Vec<_>> = found.iter().cloned().collect();
        return known.map(|chunks| (chunks, None)).ok_or_else(|| unknown(&found, &places));
    }
    // Unknown ids are refused whether the prefilter would have kept them or not.
    let missing = registry.missing(ids);
    if !missing.is_empty() {
        return Err(HttpError::ids_unknown(ids, &missing));
    }
    let places = kept(registry.prefilter(body.query(), ids, limits.prefilter_to)?, ids, body.keep());
    let names: Vec<&str> = places.iter().map(|&place| &*ids[place]).collect();
    let found = registry.get(&names)?;
    let known: Option<Vec<_>> = found.iter().cloned().collect();
    let chunks = known.ok_or_else(|| unknown(&found, &places))?;
    Ok((chunks, Some(Prefiltered { from: ids.len(), places })))
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
