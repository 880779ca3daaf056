//! `POST /v1/search`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use thresher_core::domain::Granularity;
use thresher_core::pipeline::clock::Clock;

use super::{Scope, body, observe};
use crate::api::{self, Rank, SearchAnswer, SearchBody};
use crate::error::ApiError;

/// Finds candidates by words and has the model rank them.
pub async fn handle(service: Scope, headers: HeaderMap, body: Body) -> Result<Json<SearchAnswer>, ApiError> {
    let arrived = Instant::now();
    let (limits, bodies) = (service.limits.registry.search, service.limits.bodies);
    let request = body::parsed(&service, &headers, body, move |body| {
        Ok(api::parse::<SearchBody>(body, &bodies)?.into_domain(&limits)?)
    })
    .await?;
    let deadline = service.executor().deadline(arrived, request.deadline_ms)?;
    service.registry()?;
    if request.rank == Rank::Rc {
        service.ready()?;
    }
    let working = service.clone();
    let bytes_max = service.limits.registry.named_bytes_max;
    service
        .executor()
        .run(deadline, move |cancel| {
            cancel.check()?;
            let registry = working.registry()?;
            let mut clock = Clock::start();
            let hits = clock.stage("search", || {
                registry.search(&request.query, request.filter.as_ref(), request.candidates, bytes_max)
            })?;
            let scores = match request.rank {
                Rank::Rc if !hits.is_empty() => {
                    let chunks: Vec<_> = hits.iter().map(|hit| Arc::clone(&hit.chunk)).collect();
                    let pipeline = working.ready()?;
                    let ranked = clock
                        .stage("rank", || pipeline.rank(&request.query, &chunks, Granularity::Chunk, cancel));
                    let ranked = ranked.map(|ranked| ranked.chunks);
                    Some(ranked.map_err(|error| ApiError::from(error).of_chunks_in("candidates"))?)
                }
                _ => None,
            };
            let timings = clock.finish();
            observe::stages(&timings);
            Ok(SearchAnswer::new(&request, hits, scores, (&timings).into()))
        })
        .await
        .map(Json)
}
