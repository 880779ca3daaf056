//! Reads a request body within its byte limit and its time.

use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, EXPECT};
use http_body_util::BodyExt;
use hyper::body::Body as _;

use super::{HttpError, Service, work};

/// How much of a body over its limit is read and thrown away: a client that is still sending does not read the answer,
/// and would be told of a broken pipe instead of its mistake.
const DISCARD_BYTES_MAX: usize = 64 * 1024 * 1024;

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
    pub fn exceeded(self) -> HttpError {
        HttpError::body_too_large(self.bytes, self.setting)
    }
}

/// Bodies are read as they are.
///
/// # Errors
/// 415 when the client has compressed it.
pub fn is_plain(headers: &HeaderMap) -> Result<(), HttpError> {
    match headers.get(CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(HttpError::encoding_unsupported()),
        _ => Ok(()),
    }
}

/// The whole body.
///
/// # Errors
/// 413 when it is longer than `max`; 408 when it does not arrive within `time`; 400 when the connection breaks.
async fn read(body: Body, max: Max, time: Duration) -> Result<Vec<u8>, HttpError> {
    let read = tokio::time::timeout(time, collect(body, max));
    read.await.unwrap_or_else(|_elapsed| Err(HttpError::body_timeout()))
}

/// The body of a request, parsed. A large one takes long; the threads that carry connections are not for that.
///
/// # Errors
/// As [`is_plain`] and [`read`], and what `parse` says.
pub async fn parsed<T: Send + 'static>(
    service: &Service,
    headers: &HeaderMap,
    body: Body,
    parse: impl FnOnce(&[u8]) -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    let body = whole(service, headers, body, Max::of(service)).await?;
    work::aside(move || parse(&body)).await
}

/// The body of a request, as it is: at most so many bytes.
///
/// # Errors
/// As [`is_plain`] and [`read`].
pub async fn whole(
    service: &Service,
    headers: &HeaderMap,
    body: Body,
    max: Max,
) -> Result<Vec<u8>, HttpError> {
    is_plain(headers)?;
    // Who asks before it sends needs no answer that waits for the rest.
    if headers.contains_key(EXPECT) && declared(&body) > max.bytes {
        return Err(max.exceeded());
    }
    read(body, max, service.limits.read_max).await
}

/// Reads off the body of a request that is refused without it, as far as it might be one, and keeps none of it.
pub async fn discard(mut body: Body, service: &Service) {
    let bytes_max = service.limits.body_bytes_max;
    if declared(&body) > bytes_max.saturating_add(DISCARD_BYTES_MAX) {
        return;
    }
    let mut left = bytes_max;
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
            if left == 0 {
                return;
            }
        }
    };
    let _in_time = tokio::time::timeout(service.limits.read_max, read).await;
}

/// Bytes that the body says it has; 0 where it does not say.
fn declared(body: &Body) -> usize {
    usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX)
}

async fn collect(mut body: Body, max: Max) -> Result<Vec<u8>, HttpError> {
    let bytes_max = max.bytes;
    let give_up = bytes_max.saturating_add(DISCARD_BYTES_MAX);
    let declared = declared(&body);
    if declared > give_up {
        return Err(max.exceeded());
    }
    let mut bytes = Vec::with_capacity(if declared <= bytes_max { declared } else { 0 });
    let mut len = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| HttpError::body_broken())?.into_data() else { continue };
        len += data.len();
        if len > give_up {
            break;
        }
        if len <= bytes_max {
            bytes.extend_from_slice(&data);
        }
    }
    if len > bytes_max { Err(max.exceeded()) } else { Ok(bytes) }
}
