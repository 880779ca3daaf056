//! The media types of bodies, as their headers name them.

use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use crate::error::ApiError;

pub const JSON: &str = "application/json";

/// Checks that a body is not compressed.
///
/// # Errors
/// `content_type_unsupported`.
pub fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_plain = headers.get_all(CONTENT_ENCODING).iter().all(|encoding| encoding == "identity");
    if is_plain { Ok(()) } else { Err(ApiError::encoding_unsupported()) }
}

/// Checks that the content type of a body is JSON. A web page can send `text/plain` to any server without a preflight request, so other
/// types are refused.
///
/// # Errors
/// `content_type_unsupported`.
pub fn check_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = media_type(headers);
    match found.as_deref() {
        Some(found) if found == JSON || found.ends_with("+json") => Ok(()),
        found => Err(ApiError::content_type_unsupported(found, JSON)),
    }
}

/// The media type of a body, in lower case and without parameters.
pub fn media_type(headers: &HeaderMap) -> Option<String> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}
