//! The headers of an answer that say what was done to the request.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use thresher_core::pipeline::answerable::Answerable;

use crate::http;

const OUTCOME: &str = "x-thresher";
/// The header that says why a request is not shorter.
pub const REASON: &str = "x-thresher-reason";
const TOKENS_BEFORE: &str = "x-thresher-tokens-before";
const TOKENS_AFTER: &str = "x-thresher-tokens-after";

/// The values of the response headers about compression.
pub struct CompressionReport {
    /// `compressed`, `uncompressed` or `shadow`.
    pub outcome: &'static str,
    /// Why the request was sent uncompressed although it was to be compressed.
    pub reason: Option<&'static str>,
    /// Tokens of the compressed texts before and after.
    pub tokens: Option<(usize, usize)>,
    /// Whether any passage of the newest compressed turn is related to its question.
    pub related: Option<bool>,
    /// Whether the passages of the newest compressed turn answer its question.
    pub answerable: Option<Answerable>,
}

impl CompressionReport {
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        let mut add = |name: &'static str, value: String| {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        add(OUTCOME, self.outcome.to_owned());
        if let Some(reason) = self.reason {
            add(REASON, reason.to_owned());
        }
        if let Some((before, after)) = self.tokens {
            add(TOKENS_BEFORE, before.to_string());
            add(TOKENS_AFTER, after.to_string());
        }
        if let Some(related) = self.related {
            headers.insert(http::RELATED, http::boolean_value(related));
        }
        if let Some(answerable) = self.answerable {
            headers.insert(http::ANSWERABLE, http::answerable_value(answerable));
        }
    }
}
