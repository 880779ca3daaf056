//! `POST /v1/compress`: chunks for a question, or a conversation.

mod messages;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use thresher_core::domain::CompressRequest;
use thresher_core::pipeline;
use thresher_core::pipeline::cancel::Cancel;

use super::named::{Lookup, check_ids};
use super::{Scope, body, kv, observe};
use crate::api::{self, CompressAnswer, CompressBody, Prefiltered, ServeOptions};
use crate::error::ApiError;
use crate::executor::{self, run_blocking};
use crate::tenants::ttl_store::RecentRequest;

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

/// What a body holds.
enum Shape {
    Chunks(Asked),
    Messages(messages::Asked),
}

/// A body with `messages` is a conversation, any other has chunks.
pub async fn handle(service: Scope, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits.bodies;
    let parse = move |body: &[u8]| match messages::Asked::new(body, &limits)? {
        Some(asked) => Ok(Shape::Messages(asked)),
        None => Ok(Shape::Chunks(Asked::new(api::parse(body, &limits)?)?)),
    };
    match body::parsed(&service, &headers, body, parse).await? {
        Shape::Chunks(asked) => Ok(Json(chunks(service, asked, arrived).await?).into_response()),
        Shape::Messages(asked) => Ok(messages::compress(service, asked, arrived).await?.into_response()),
    }
}

/// The answer to a body that has chunks.
pub async fn answer(service: Scope, body: Vec<u8>) -> Result<CompressAnswer, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits.bodies;
    let asked = run_blocking(move || Asked::new(api::parse(&body, &limits)?)).await?;
    chunks(service, asked, arrived).await
}

/// Waits for its turn, compresses; what the caller asked to survive, it gets back whole.
async fn chunks(service: Scope, asked: Asked, arrived: Instant) -> Result<CompressAnswer, ApiError> {
    let deadline = service.executor().deadline(arrived, asked.options.deadline_ms)?;
    let asked = Arc::new(asked);
    match compress(&service, &asked, deadline).await {
        Err(error) if executor::passes_through(&error, asked.options.on_error, asked.ids.is_some()) => {
            passed(&service, asked, error, arrived).await
        }
        Err(error) if asked.ids.is_some() => Err(error.of_chunks_in("chunk_ids")),
        outcome => outcome,
    }
}

async fn compress(
    service: &Scope,
    asked: &Arc<Asked>,
    deadline: Instant,
) -> Result<CompressAnswer, ApiError> {
    let pipeline = service.ready()?;
    if let Some(wanted) = &asked.options.kv {
        kv::check(service, pipeline, wanted)?;
    }
    let (working, asked) = (service.clone(), Arc::clone(asked));
    service
        .executor()
        .run(deadline, move |cancel| {
            let pipeline = working.ready()?;
            let resolved = asked.resolved(&working, working.limits.registry.named_bytes_max, cancel)?;
            let mut compressed = pipeline.compress(&resolved.request, cancel)?;
            let kv = asked.options.kv.map(|wanted| {
                let started = Instant::now();
                let question = (&*resolved.request.query, &resolved.request.chunks[..]);
                let kv_export = kv::export(pipeline, question, &compressed, &wanted, cancel)?;
                let answer = kv::keep(&working, kv_export, &wanted);
                compressed.timings.push("kv", started.elapsed());
                answer
            });
            observe::compressed(&compressed);
            let kv = kv.transpose()?;
            Ok(asked.answer(&resolved, compressed, &working).with_kv(kv))
        })
        .await
}

/// The chunks as they are, and why. Registered ones that nobody could have sent are not: then the error is the answer.
async fn passed(
    service: &Scope,
    asked: Arc<Asked>,
    error: ApiError,
    arrived: Instant,
) -> Result<CompressAnswer, ApiError> {
    let service = service.clone();
    run_blocking(move || {
        let Ok(resolved) = asked.resolved(&service, service.limits.body_bytes_max, &Cancel::default()) else {
            return Err(error);
        };
        let compressed = pipeline::passthrough(&resolved.request, arrived.elapsed());
        Ok(asked.answer(&resolved, compressed, &service).degraded(error))
    })
    .await
}

impl Asked {
    fn new(body: CompressBody) -> Result<Self, ApiError> {
        let ids = body.chunk_ids().map(<[_]>::to_vec);
        let (request, options) = body.into_domain(ids.is_some().then(Vec::new))?;
        Ok(Self { request, options, ids })
    }

    /// The request with its chunks, of at most `bytes_max` where they are registered ones.
    fn resolved(&self, service: &Scope, bytes_max: usize, cancel: &Cancel) -> Result<Resolved<'_>, ApiError> {
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
                return Err(ApiError::ids_unknown(ids, &missing));
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
        service: &Scope,
    ) -> CompressAnswer {
        let remembered = remembered(resolved, &compressed);
        let pipeline = service.pipeline();
        let answer = CompressAnswer::new(&resolved.request, compressed, self.options.offsets, pipeline);
        let answer = match &resolved.prefiltered {
            None => answer,
            Some(prefiltered) => answer.prefiltered(prefiltered),
        };
        answer.named(service.handles().insert(remembered))
    }
}

/// What an answer to this context will be asked about.
fn remembered(resolved: &Resolved, compressed: &pipeline::Compressed) -> RecentRequest {
    let chunks = &resolved.request.chunks;
    let (mut kept, mut markers) = (vec![Vec::new(); chunks.len()], vec![None; chunks.len()]);
    for (before, outcome) in compressed.chunks.iter().filter(|outcome| outcome.kept).enumerate() {
        kept[outcome.index] = outcome.spans.iter().map(|span| span.source).collect();
        markers[outcome.index] = Some(before + 1);
    }
    let places = resolved.prefiltered.as_ref().map(|prefiltered| prefiltered.places.clone());
    RecentRequest { chunks: chunks.clone(), places, kept, markers }
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
