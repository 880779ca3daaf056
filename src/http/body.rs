//! Reads a request body within its byte limit and its time.

use std::time::Instant;

use axum::body::{Body, Bytes};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;

use super::HttpError;

/// The whole body.
///
/// # Errors
/// 413 when it is longer than `bytes_max`, said before reading it where the client declares its length; 408 when it does
/// not arrive by `deadline`; 400 when the connection breaks.
pub async fn read(body: Body, bytes_max: usize, deadline: Instant) -> Result<Bytes, HttpError> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(HttpError::body_too_large(bytes_max));
    }
    let read = tokio::time::timeout_at(deadline.into(), Limited::new(body, bytes_max).collect());
    match read.await {
        Err(_elapsed) => Err(HttpError::body_timeout()),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(HttpError::body_too_large(bytes_max)),
        Ok(Err(_broken)) => Err(HttpError::body_broken()),
    }
}
