//! `POST /v1/attribute`.

pub mod stream;

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;

use super::error::HttpError;
use super::named::{Lookup, check_ids};
use super::{Service, body, observe, work};
use crate::api::{self, AttributeAnswer, AttributeBody, Named, Names};
use crate::domain::Chunk;
use crate::handles::Remembered;
use crate::pipeline::cancel::Cancel;
use crate::receipt::{Receipt, Statement};

/// Ties the parts of an answer to chunks.
pub async fn handle(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<AttributeAnswer>, HttpError> {
    let arrived = Instant::now();
    let (body, named) = body::parsed(&service, &headers, body, |body| {
        let body: AttributeBody = api::parse(body)?;
        let named = body.named()?;
        Ok((body, named))
    })
    .await?;
    let deadline = work::deadline(arrived, body.deadline_ms(), &service)?;
    service.ready()?;
    let by_ids = Chunks::are_named_by_ids(named.as_ref());
    let working = service.clone();
    let answer = work::admitted(&service, deadline, move |cancel| {
        let pipeline = working.ready()?;
        let chunks = named.map(|named| Chunks::of(&working, &named, cancel)).transpose()?;
        let (mut request, options) = body.into_domain(chunks.as_ref().map(Chunks::chunks))?;
        let remembered = chunks.as_ref().and_then(Chunks::remembered);
        request.seen = remembered.map(|remembered| remembered.kept.clone());
        let attributed = pipeline.attribute(&request, cancel)?;
        observe::stages(&attributed.timings);
        let names = chunks.as_ref().map(Chunks::names).unwrap_or_default();
        let answer = AttributeAnswer::new(&request, &attributed, options, pipeline, names);
        let receipt = options.receipt.then(|| {
            let statement = Statement::new(&request, &attributed, pipeline.model());
            Ok::<_, HttpError>(Receipt::sign(&statement, working.signing_key()?))
        });
        Ok(answer.with_receipt(receipt.transpose()?))
    })
    .await;
    match answer {
        Err(error) if by_ids => Err(error.of_chunks_in("chunk_ids")),
        answer => answer.map(Json),
    }
}

/// Chunks that a request names.
enum Chunks {
    Registered(Vec<Arc<Chunk>>),
    Remembered(Arc<Remembered>),
}

impl Chunks {
    fn are_named_by_ids(named: Option<&Named>) -> bool {
        matches!(named, Some(Named::Registered(_)))
    }

    fn of(service: &Service, named: &Named, cancel: &Cancel) -> Result<Self, HttpError> {
        match named {
            Named::Registered(ids) => {
                let limits = service.limits.registry;
                check_ids(ids, limits.named_count_max)?;
                let (registry, bytes_max) = (service.registry()?, limits.named_bytes_max);
                let lookup = Lookup { registry, ids, bytes_max, cancel };
                Ok(Self::Registered(lookup.chunks((0..ids.len()).collect())?))
            }
            Named::Compressed(id) => {
                let found = service.handles.get(id);
                let unknown = || HttpError::compress_id_unknown(service.handles.expire_s());
                Ok(Self::Remembered(found.ok_or_else(unknown)?))
            }
        }
    }

    fn chunks(&self) -> Vec<Arc<Chunk>> {
        match self {
            Self::Registered(chunks) => chunks.clone(),
            Self::Remembered(remembered) => remembered.chunks.clone(),
        }
    }

    fn names(&self) -> Names<'_> {
        match self.remembered() {
            None => Names::default(),
            Some(of) => Names { places: of.places.as_deref(), markers: Some(&of.markers) },
        }
    }

    fn remembered(&self) -> Option<&Remembered> {
        match self {
            Self::Registered(_) => None,
            Self::Remembered(remembered) => Some(remembered),
        }
    }
}
