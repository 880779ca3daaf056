//! Reads request bodies: of the right media type, within the limit of one body and the memory of all bodies, and without waiting for a
//! client that sends too slowly.

use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::EXPECT;
use http_body_util::BodyExt;
use hyper::body::Body as _;

use super::media_type::{check_encoding, check_json};
use super::{Scope, Service};
use crate::error::ApiError;
use crate::executor::run_blocking;
use thresher_core::memory::PoolExhausted;

/// The rate at which a body has to arrive if it takes longer than ten seconds: 256 KiB a second.
const RATE_BYTES_PER_MS_MIN: usize = 256 * 1024 / 1000;

/// The most bytes of a request that the daemon answers itself, if there is enough memory: as much text as a book has. Larger sets of chunks are
/// registered in several requests.
pub const BODY_BYTES_MAX: usize = 8 << 20;

/// How long the head of a request may take to arrive, and again the first byte of its body. A client on a slow line needs one or two seconds.
pub const READ_MAX: Duration = Duration::from_secs(10);

/// The most bytes of a body over its limit that are read and discarded. A client that is still sending does not read the response: if the
/// connection were closed, it would see a broken pipe instead of its mistake.
const DISCARD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The same for a request without a valid key, and the longest time: meanwhile it occupies a connection.
const DISCARD_UNAUTHENTICATED_BYTES_MAX: usize = 64 * 1024;
const DISCARD_UNAUTHENTICATED_MAX: Duration = Duration::from_millis(250);

/// Reads and parses a body. Parsing runs on a thread that may block, since it takes long for a large body.
///
/// # Errors
/// As [`whole`] and `parse`.
pub async fn parsed<T: Send + 'static>(
    scope: &Scope,
    headers: &HeaderMap,
    body: Body,
    parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let body = whole(scope, headers, body, scope.settings.body_bytes_max).await?;
    // The clone keeps the memory of the body until it has been parsed, even if the client has gone.
    let scope = scope.clone();
    run_blocking(move || {
        let parsed = parse(&body);
        let bytes = body.len();
        drop(body);
        scope.body_memory().shrink_to_parsed(bytes);
        parsed
    })
    .await
}

/// Reads a JSON body whole.
///
/// # Errors
/// `content_type_unsupported`, `body_too_large`, `body_timeout`, `overloaded` without memory for it, `body_broken`.
pub async fn whole(
    scope: &Scope,
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
) -> Result<Vec<u8>, ApiError> {
    if let Err(error) = check_encoding(headers).and_then(|()| check_json(headers)) {
        if !headers.contains_key(EXPECT) {
            discard(body, scope).await;
        }
        return Err(error);
    }
    // A client that waits for 100 Continue gets the error without sending the body.
    if headers.contains_key(EXPECT) && declared_bytes(&body) > bytes_max {
        return Err(ApiError::body_too_large(bytes_max));
    }
    collect(body, bytes_max, scope).await
}

/// Reads and discards the body of a request that is refused, so that the client reads the response.
pub async fn discard(body: Body, service: &Service) {
    let bytes_max = service.settings.body_bytes_max;
    if declared_bytes(&body) > bytes_max.saturating_add(DISCARD_BYTES_MAX) {
        return;
    }
    read_and_discard(body, bytes_max, service.settings.read_max).await;
}

async fn read_and_discard(mut body: Body, bytes_max: usize, time_max: Duration) {
    let mut left = bytes_max;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
            if left == 0 {
                return;
            }
        }
    };
    let _in_time = tokio::time::timeout(time_max, reading).await;
}

/// As [`discard`], for a request without a valid key: only a small body that is here already or arrives soon. A client that is still sending
/// after that may see its connection closed instead of the response.
pub async fn discard_unauthenticated(body: Body) {
    read_and_discard(body, DISCARD_UNAUTHENTICATED_BYTES_MAX, DISCARD_UNAUTHENTICATED_MAX).await;
}

/// The declared length of a body; 0 if it declares none.
fn declared_bytes(body: &Body) -> usize {
    usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX)
}

/// Reads a body whole, of any kind.
///
/// # Errors
/// `body_too_large`, `body_timeout`, `overloaded` without memory for it, `body_broken`.
pub async fn collect(mut body: Body, bytes_max: usize, scope: &Scope) -> Result<Vec<u8>, ApiError> {
    let give_up = bytes_max.saturating_add(DISCARD_BYTES_MAX);
    if declared_bytes(&body) > give_up {
        return Err(ApiError::body_too_large(bytes_max));
    }
    let mut reader = PacedReader::start(scope.settings.read_max);
    let (mut bytes, mut len) = (Vec::new(), 0);
    while let Some(data) = reader.next(&mut body).await? {
        len += data.len();
        if len > give_up {
            break;
        }
        if len > bytes_max {
            // The rest is read and discarded, so that the client reads the response.
            bytes = Vec::new();
        } else if let Err(PoolExhausted) = scope.body_memory().grow_to(scope.sharer(), len).await {
            drop(bytes);
            scope.body_memory().release();
            discard(body, scope).await;
            return Err(ApiError::body_memory_full());
        } else {
            bytes.extend_from_slice(&data);
        }
    }
    if len > bytes_max { Err(ApiError::body_too_large(bytes_max)) } else { Ok(bytes) }
}

/// Reads a body that has to arrive at a minimum rate.
struct PacedReader {
    started: Instant,
    /// The longest time for the first bytes, and again for the next ones.
    read_max: Duration,
    arrived: usize,
}

impl PacedReader {
    fn start(read_max: Duration) -> Self {
        Self { started: Instant::now(), read_max, arrived: 0 }
    }

    /// The next bytes; none at the end of the body.
    async fn next(&mut self, body: &mut Body) -> Result<Option<Bytes>, ApiError> {
        loop {
            let earned = Duration::from_millis((self.arrived / RATE_BYTES_PER_MS_MIN) as u64);
            let until = Instant::now().min(self.started + earned) + self.read_max;
            let frame = tokio::time::timeout_at(until.into(), body.frame()).await;
            let Some(frame) = frame.map_err(|_elapsed| ApiError::body_timeout())? else { return Ok(None) };
            if let Ok(data) = frame.map_err(|error| ApiError::body_broken(&error))?.into_data() {
                self.arrived += data.len();
                return Ok(Some(data));
            }
        }
    }
}
