//! `POST /v1/attribute`.

pub mod stream;

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use thresher_core::domain::{AttributeRequest, Chunk};
use thresher_core::pipeline::cancel::Cancel;

use super::named::{Lookup, check_ids};
use super::{Scope, body, observe};
use crate::admission::Permit;
use crate::api::{self, AttributeAnswer, AttributeBody, AttributeOptions, BodyLimits, Named, Names};
use crate::error::ApiError;
use crate::executor::run_blocking;
use crate::receipt::Receipt;
use crate::tenants::ttl_store::RecentRequest;

/// Ties the parts of an answer to chunks.
pub async fn handle(
    service: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<AttributeAnswer>, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits.bodies;
    let parse = move |body: &[u8]| Asked::parse(body, &limits);
    let asked = body::parsed(&service, &headers, body, parse).await?;
    attributed(service, asked, arrived).await.map(Json)
}

/// The answer to a body.
pub async fn answer(service: Scope, body: Vec<u8>) -> Result<AttributeAnswer, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits.bodies;
    let asked = run_blocking(move || Asked::parse(&body, &limits)).await?;
    attributed(service, asked, arrived).await
}

async fn attributed(service: Scope, asked: Asked, arrived: Instant) -> Result<AttributeAnswer, ApiError> {
    let deadline = service.executor().deadline(arrived, asked.body.deadline_ms())?;
    service.ready()?;
    let permit = service.executor().permit(deadline).await?;
    let read = AttributeBody::into_domain;
    let answer = asked.work(&service, (permit, deadline), read, |service, found, cancel| {
        let Found { request, options, chunks } = found;
        let pipeline = service.ready()?;
        let attributed = pipeline.attribute(&request, cancel)?;
        observe::stages(&attributed.timings);
        let names = chunks.as_ref().map(Chunks::names).unwrap_or_default();
        let answer = AttributeAnswer::new(&request, &attributed, &options, pipeline, names);
        let receipt = options.receipt.then(|| {
            let key = service.signing_key()?;
            Ok::<_, ApiError>(Receipt::of(&request, &attributed, pipeline, key))
        });
        Ok(answer.with_receipt(receipt.transpose()?))
    });
    answer.await
}

/// A request as it came, and the chunks that it names instead of sending them.
struct Asked {
    body: AttributeBody,
    named: Option<Named>,
}

/// A request whose chunks are there.
struct Found {
    request: AttributeRequest,
    options: AttributeOptions,
    chunks: Option<Chunks>,
}

type Read = fn(
    AttributeBody,
    Option<Vec<Arc<Chunk>>>,
    &BodyLimits,
) -> Result<(AttributeRequest, AttributeOptions), ApiError>;

impl Asked {
    fn parse(json: &[u8], limits: &BodyLimits) -> Result<Self, ApiError> {
        let body: AttributeBody = api::parse(json, limits)?;
        let named = body.named()?;
        Ok(Self { body, named })
    }

    /// Finds its chunks, then works on it.
    async fn work<T: Send + 'static>(
        self,
        service: &Scope,
        (permit, deadline): (Permit, Instant),
        read: Read,
        work: impl FnOnce(&Scope, Found, &Cancel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Self { body, named } = self;
        let by_ids = matches!(named, Some(Named::Registered(_)));
        let working = service.clone();
        let answer = service.executor().run_with(permit, deadline, move |cancel| {
            let chunks = named.map(|named| Chunks::of(&working, &named, cancel)).transpose()?;
            let (mut request, options) =
                read(body, chunks.as_ref().map(Chunks::chunks), &working.limits.bodies)?;
            let remembered = chunks.as_ref().and_then(Chunks::remembered);
            request.seen = remembered.map(|remembered| remembered.kept.clone());
            work(&working, Found { request, options, chunks }, cancel)
        });
        answer.await.map_err(|error| if by_ids { error.of_chunks_in("chunk_ids") } else { error })
    }
}

/// Chunks that a request names.
enum Chunks {
    Registered(Vec<Arc<Chunk>>),
    RecentRequest(Arc<RecentRequest>),
}

impl Chunks {
    fn of(service: &Scope, named: &Named, cancel: &Cancel) -> Result<Self, ApiError> {
        match named {
            Named::Registered(ids) => {
                let limits = service.limits.registry;
                check_ids(ids, limits.named_count_max)?;
                let (registry, bytes_max) = (service.registry()?, limits.named_bytes_max);
                let lookup = Lookup { registry, ids, bytes_max, cancel };
                Ok(Self::Registered(lookup.chunks((0..ids.len()).collect())?))
            }
            Named::Compressed(id) => {
                let found = service.handles().get(id);
                let unknown = || ApiError::compress_id_unknown(service.handles().expire_s());
                Ok(Self::RecentRequest(found.ok_or_else(unknown)?))
            }
        }
    }

    fn chunks(&self) -> Vec<Arc<Chunk>> {
        match self {
            Self::Registered(chunks) => chunks.clone(),
            Self::RecentRequest(remembered) => remembered.chunks.clone(),
        }
    }

    fn names(&self) -> Names<'_> {
        match self.remembered() {
            None => Names::default(),
            Some(of) => Names { places: of.places.as_deref(), markers: Some(&of.markers) },
        }
    }

    fn remembered(&self) -> Option<&RecentRequest> {
        match self {
            Self::Registered(_) => None,
            Self::RecentRequest(remembered) => Some(remembered),
        }
    }
}
