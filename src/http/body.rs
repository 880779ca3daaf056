//! Reads a request body: JSON, within its limit of bytes, within the room that all bodies share, and without waiting for a client that
//! sends too slowly.

use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use http_body_util::BodyExt;
use hyper::body::Body as _;

use super::memory::NoRoom;
use super::{Scope, Service};
use crate::error::ApiError;
use crate::executor::run_blocking;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// A body may take longer than `http.read_ms_max` if it arrives at this rate at least: 256 KiB a second.
const RATE_BYTES_PER_MS_MIN: usize = 256 * 1024 / 1000;

/// How much of a body over its limit is read and thrown away: a client that is still sending does not read the answer,
/// and would be told of a broken pipe instead of its mistake.
const DISCARD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The same where a request shows no valid key, and how long that may take: a connection is held meanwhile.
const DISCARD_OF_NOBODY_BYTES_MAX: usize = 64 * 1024;
const DISCARD_OF_NOBODY_MAX: Duration = Duration::from_millis(250);

/// How long a body may be, and where that is said.
#[derive(Debug, Clone, Copy)]
pub struct Max {
    /// Bytes.
    pub bytes: usize,
    /// The setting.
    pub setting: &'static str,
}

impl Max {
    /// Of requests that are answered here.
    pub fn of(service: &Service) -> Self {
        Self { bytes: service.limits.body_bytes_max, setting: "http.body_bytes_max" }
    }

    /// What is said of a body that is longer.
    pub fn exceeded(self) -> ApiError {
        ApiError::body_too_large(self.bytes, self.setting)
    }
}

/// Refuses a body that the client has compressed: bodies are read as they are.
///
/// # Errors
/// 415.
pub fn is_plain(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(ApiError::encoding_unsupported()),
        _ => Ok(()),
    }
}

/// Refuses a body that is not said to be JSON. A web page can send any other text to a server that it has no leave to ask
/// (`text/plain` needs none), and a body of another kind is a mistake.
///
/// # Errors
/// 415.
pub fn is_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = media_type(headers);
    match found.as_deref() {
        Some(found) if found == JSON || found.ends_with("+json") => Ok(()),
        found => Err(ApiError::content_type_unsupported(found, JSON)),
    }
}

/// Refuses a body that is not said to be a stream of events, as [`is_json`] does.
///
/// # Errors
/// 415.
pub fn is_events(headers: &HeaderMap) -> Result<(), ApiError> {
    match media_type(headers).as_deref() {
        Some(found) if found == EVENTS || found == JSON || found.ends_with("+json") => Ok(()),
        found => Err(ApiError::content_type_unsupported(found, "text/event-stream (or application/json)")),
    }
}

/// The media type of a body in lower case, without parameters.
pub fn media_type(headers: &HeaderMap) -> Option<String> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

/// The body of a request, parsed. A large one takes long; the threads that carry connections are not for that.
///
/// # Errors
/// As [`whole`], and what `parse` says.
pub async fn parsed<T: Send + 'static>(
    scope: &Scope,
    headers: &HeaderMap,
    body: Body,
    parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let body = whole(scope, headers, body, Max::of(scope)).await?;
    // The memory that the body takes is held until the work is over, also where nobody waits for it any more.
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

/// The body of a request, as it is: JSON of at most so many bytes.
///
/// # Errors
/// 415 where it is compressed or not JSON; 413 when it is longer than `max`; 408 when it arrives too slowly; 429 when there is no room
/// for it; 400 when the connection breaks.
pub async fn whole(scope: &Scope, headers: &HeaderMap, body: Body, max: Max) -> Result<Vec<u8>, ApiError> {
    if let Err(error) = is_plain(headers).and_then(|()| is_json(headers)) {
        if !headers.contains_key(EXPECT) {
            discard(body, scope).await;
        }
        return Err(error);
    }
    // A client that asks before it sends gets its answer without sending the rest.
    if headers.contains_key(EXPECT) && declared(&body) > max.bytes {
        return Err(max.exceeded());
    }
    collect(body, max, scope).await
}

/// Reads off the body of a request that is refused without it, as far as it might be one, and keeps none of it.
pub async fn discard(body: Body, service: &Service) {
    let bytes_max = service.limits.body_bytes_max;
    if declared(&body) > bytes_max.saturating_add(DISCARD_BYTES_MAX) {
        return;
    }
    read_off(body, bytes_max, service.limits.read_max).await;
}

async fn read_off(mut body: Body, bytes_max: usize, time_max: Duration) {
    let mut left = bytes_max;
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
            if left == 0 {
                return;
            }
        }
    };
    let _in_time = tokio::time::timeout(time_max, read).await;
}

/// The same for a request that shows no valid key: only what is here already, or arrives within a moment. A client that is still
/// sending then may see its connection closed in place of the answer; one that has sent a small body reads it.
pub async fn discard_of_nobody(body: Body) {
    read_off(body, DISCARD_OF_NOBODY_BYTES_MAX, DISCARD_OF_NOBODY_MAX).await;
}

/// Bytes that the body says it has; 0 where it does not say.
fn declared(body: &Body) -> usize {
    usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX)
}

async fn collect(mut body: Body, max: Max, scope: &Scope) -> Result<Vec<u8>, ApiError> {
    let bytes_max = max.bytes;
    let give_up = bytes_max.saturating_add(DISCARD_BYTES_MAX);
    if declared(&body) > give_up {
        return Err(max.exceeded());
    }
    let mut pace = Pace::start(scope.limits.read_max);
    let (mut bytes, mut len) = (Vec::new(), 0);
    while let Some(data) = pace.next(&mut body).await? {
        len += data.len();
        if len > give_up {
            break;
        }
        if len > bytes_max {
            // Read to its end, so that the client reads the answer.
            bytes = Vec::new();
        } else if let Err(NoRoom) = scope.body_memory().grow_to(scope.claim(), len).await {
            drop(bytes);
            scope.body_memory().release();
            discard(body, scope).await;
            return Err(ApiError::body_memory_full());
        } else {
            bytes.extend_from_slice(&data);
        }
    }
    if len > bytes_max { Err(max.exceeded()) } else { Ok(bytes) }
}

/// How fast a body has to arrive.
struct Pace {
    started: Instant,
    /// For its first bytes, and again for every further ones.
    read_max: Duration,
    arrived: usize,
}

impl Pace {
    fn start(read_max: Duration) -> Self {
        Self { started: Instant::now(), read_max, arrived: 0 }
    }

    /// The next bytes; none at the end.
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
