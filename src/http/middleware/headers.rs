//! Which headers and query parameters pass between clients and upstreams. In both directions, only those on a list pass. Keys for this daemon
//! never pass, wherever a client put them.

use axum::http::header::{
    AUTHORIZATION, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    InvalidHeaderName, TRANSFER_ENCODING,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use percent_encoding::percent_decode;

use crate::access::KEY_PREFIX;
use crate::error::ApiError;
use crate::http::media_type::media_type;
use crate::middleware::dialect::Dialect;
use crate::middleware::settings::UpstreamSettings;

/// Request headers that pass: content negotiation, headers of the official clients, and the ids of a trace.
const REQUEST_HEADERS: [&str; 9] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "content-encoding",
    "content-type",
    "idempotency-key",
    "traceparent",
    "tracestate",
    "user-agent",
];

/// Prefixes of request headers that pass, which the official clients send: versions, betas, organizations, platforms.
const REQUEST_PREFIXES: [&str; 3] = ["anthropic-", "openai-", "x-stainless-"];

/// Response headers that pass: the type of the body, when to retry, and the ids that support needs.
const RESPONSE_HEADERS: [&str; 9] = [
    "cache-control",
    "content-encoding",
    "content-type",
    "date",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "x-request-id",
    "x-should-retry",
];

/// Prefixes of response headers that pass, which the official clients read: limits, organizations, processing times.
const RESPONSE_PREFIXES: [&str; 3] = ["anthropic-", "openai-", "x-ratelimit-"];

/// Types of bodies that the APIs of models answer with, and that no browser runs. `image/svg+xml` is none of them.
const API_TYPES: [&str; 6] = [
    "application/json",
    "application/octet-stream",
    "application/x-ndjson",
    "text/event-stream",
    "text/plain",
    "text/vtt",
];

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Characters of a key after its prefix.
const KEY_CHARS: usize = 43;

/// Base64 as the most lenient server decodes it: with or without padding, and with any bits after the last byte.
static LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The headers that pass to and from one upstream, except keys.
pub struct Allowed {
    request: Vec<HeaderName>,
    response: Vec<HeaderName>,
}

impl Allowed {
    /// The lists of this module, with the headers that the settings name.
    ///
    /// # Errors
    /// Fails if a setting is not the name of a header.
    pub fn new(settings: &UpstreamSettings) -> Result<Self, InvalidHeaderName> {
        let names = |names: &[String]| {
            names.iter().map(|name| HeaderName::from_bytes(name.as_bytes())).collect::<Result<_, _>>()
        };
        Ok(Self { request: names(&settings.request_headers)?, response: names(&settings.response_headers)? })
    }

    /// The request headers that pass to the upstream. Keys are not among them: see [`caller_keys`].
    pub fn of_request(&self, headers: &HeaderMap) -> HeaderMap {
        let may_pass = |name: &HeaderName, value: &HeaderValue| {
            let is_listed = is_listed(name, &REQUEST_HEADERS, &REQUEST_PREFIXES);
            (is_listed || self.request.contains(name)) && !holds_daemon_key(value.as_bytes())
        };
        filtered(headers, may_pass)
    }

    /// The response headers that pass to the client. A body of a type that a browser could run is to be saved, and runs nothing if it is shown:
    /// it would have the origin of this daemon's page.
    pub fn of_response(&self, headers: &HeaderMap) -> HeaderMap {
        let mut passed = filtered(headers, |name, _| {
            is_listed(name, &RESPONSE_HEADERS, &RESPONSE_PREFIXES) || self.response.contains(name)
        });
        if !is_of_api(headers) {
            passed.insert(
                CONTENT_SECURITY_POLICY,
                HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'"),
            );
            passed.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
        }
        passed
    }
}

fn is_of_api(headers: &HeaderMap) -> bool {
    let count = headers.get_all(CONTENT_TYPE).iter().count();
    // One that cannot be read, or one of several, may be any type.
    let Some(kind) = media_type(headers).filter(|_| count == 1) else { return count == 0 };
    API_TYPES.contains(&&*kind)
        || kind.ends_with("+json")
        || kind.starts_with("audio/")
        || kind.starts_with("image/") && kind != "image/svg+xml"
}

/// The length of a body that an upstream sends, as it says itself; none if it says nothing, or several things. Answers to HEAD have it without a
/// body.
pub fn declared_length(headers: &HeaderMap) -> Option<u64> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next()?.to_str().ok()?.parse().ok()?;
    lengths.next().is_none().then_some(length)
}

/// Why an answer of an upstream cannot be passed on; none if it can. Where its frame is unclear, two readers may see two different answers.
pub fn unusable(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    if status.is_informational() || status.as_u16() > 599 {
        return Some(format!("with status {}, which no final answer has", status.as_u16()));
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_plain = codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    (!is_plain).then(|| "with a transfer-encoding other than chunked".to_owned())
}

/// The headers with the client's own key: `Authorization`, and for Anthropic's Messages also `x-api-key`.
pub fn caller_keys(dialect: Dialect, headers: &HeaderMap) -> HeaderMap {
    filtered(headers, |name, value| {
        let is_key = *name == AUTHORIZATION || dialect == Dialect::Messages && *name == X_API_KEY;
        is_key && !holds_daemon_key(value.as_bytes())
    })
}

/// The header with a key from the settings, as the API takes it.
///
/// # Errors
/// Fails if the key cannot be the value of a header.
pub fn own_key(
    dialect: Dialect,
    key: &str,
) -> Result<(HeaderName, HeaderValue), axum::http::header::InvalidHeaderValue> {
    let (name, value) = match dialect {
        Dialect::Messages => (X_API_KEY, HeaderValue::from_str(key)),
        Dialect::Chat | Dialect::Responses => {
            (AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {key}")))
        }
    };
    let mut value = value?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Checks the content type of a request that is sent with a key that all tenants share: there is at most one, and no charset but UTF-8.
///
/// # Errors
/// `content_type_unsupported`.
pub fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut kinds = headers.get_all(CONTENT_TYPE).iter();
    let Some(kind) = kinds.next() else { return Ok(()) };
    let text = kind.to_str().unwrap_or_default().to_ascii_lowercase();
    let charset =
        text.split(';').skip(1).find_map(|parameter| parameter.trim_start().strip_prefix("charset"));
    let is_utf8 = charset.is_none_or(|charset| {
        charset.trim_start_matches(['=', '"', ' ']).trim_end_matches(['"', ' ']) == "utf-8"
    });
    if kinds.next().is_none() && is_utf8 { Ok(()) } else { Err(ApiError::body_not_readable()) }
}

/// Sets the only content type of a request; `None` for an empty body.
pub fn set_content_type(headers: &mut HeaderMap, kind: Option<&str>) {
    headers.remove(CONTENT_TYPE);
    if let Some(kind) = kind.and_then(|kind| HeaderValue::from_str(kind).ok()) {
        headers.insert(CONTENT_TYPE, kind);
    }
}

/// Checks that no parameter of a URL names a model, which a server could take instead of the one in the body.
///
/// # Errors
/// `invalid_value`.
pub fn check_query(query: Option<&str>) -> Result<(), ApiError> {
    let is_of_model = |parameter: &str| {
        let name = parameter.split('=').next().unwrap_or_default();
        let names = decodings(name.as_bytes());
        names.is_none_or(|names| {
            names.iter().any(|name| name.to_ascii_lowercase().windows(5).any(|part| part == b"model"))
        })
    };
    let mut parameters = query.unwrap_or_default().split(['&', ';']);
    if parameters.any(is_of_model) { Err(ApiError::model_in_query()) } else { Ok(()) }
}

/// The most times that a text is percent-decoded.
const DECODINGS_MAX: usize = 4;

/// A text, and what it becomes when it is percent-decoded again and again. `None` if it is encoded more often than any server decodes it.
fn decodings(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut found = vec![text.to_vec()];
    while let Some(last) = found.last() {
        let next: Vec<u8> = percent_decode(last).collect();
        if next == *last {
            return Some(found);
        }
        if found.len() > DECODINGS_MAX {
            return None;
        }
        found.push(next);
    }
    None
}

/// A query string without the parameters that hold a key for this daemon; none if no parameter is left.
pub fn query_without_daemon_keys(query: &str) -> Option<String> {
    let kept: Vec<&str> =
        query.split('&').filter(|parameter| !holds_daemon_key(parameter.as_bytes())).collect();
    let kept = kept.join("&");
    (!kept.is_empty()).then_some(kept)
}

/// Whether a text holds a key for this daemon: plain, percent-encoded several times, or in the base64 of HTTP basic authentication.
pub fn holds_daemon_key(text: &[u8]) -> bool {
    let is_in = |text: &[u8]| {
        let key = KEY_PREFIX.as_bytes();
        let is_of_key = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        text.windows(key.len()).enumerate().any(|(at, window)| {
            // Inside a longer word, such as `anthr_x`, the prefix is the start of a key only if as much follows as a key has.
            let begins = !at.checked_sub(1).is_some_and(|before| text[before].is_ascii_alphanumeric());
            let rest = &text[at + key.len()..];
            window == key && (begins || rest.iter().take_while(|byte| is_of_key(byte)).count() >= KEY_CHARS)
        })
    };
    let in_basic = || {
        let (scheme, encoded) = text.split_at_checked(6)?;
        let encoded = scheme.eq_ignore_ascii_case(b"basic ").then(|| encoded.trim_ascii())?;
        // Some servers also accept the alphabet for URLs.
        let in_standard = |&letter: &u8| match letter {
            b'-' => b'+',
            b'_' => b'/',
            letter => letter,
        };
        let encoded: Vec<u8> = encoded.iter().map(in_standard).collect();
        LENIENT.decode(encoded).ok().map(|decoded| is_in(&decoded))
    };
    decodings(text).is_none_or(|texts| texts.iter().any(|text| is_in(text))) || in_basic().unwrap_or(false)
}

fn is_listed(name: &HeaderName, names: &[&str], prefixes: &[&str]) -> bool {
    let name = name.as_str();
    names.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// The headers for which `may_pass` is true, except those that `Connection` names: these are for one connection only (RFC 9110, 7.6.1).
fn filtered(headers: &HeaderMap, may_pass: impl Fn(&HeaderName, &HeaderValue) -> bool) -> HeaderMap {
    let of_connection: Vec<String> = headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let passes = |(name, value): &(&HeaderName, &HeaderValue)| {
        may_pass(name, value) && !of_connection.iter().any(|named| named == name.as_str())
    };
    headers.iter().filter(passes).map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse::<HeaderValue>().expect("a value"))
        };
        lines.iter().map(header).collect()
    }

    fn allowed() -> Allowed {
        Allowed::new(&UpstreamSettings::default()).expect("names")
    }

    #[test]
    fn headers_that_connection_names_do_not_pass() {
        let received = headers(&[
            ("accept", "*/*"),
            ("connection", "close, OpenAI-Hop"),
            ("forwarded", "for=10.0.0.1"),
            ("host", "here"),
            ("openai-hop", "1"),
            ("openai-organization", "o"),
        ]);
        let passed = allowed().of_request(&received);
        assert_eq!(passed, headers(&[("accept", "*/*"), ("openai-organization", "o")]));
    }

    #[test]
    fn a_body_that_a_browser_could_run_is_to_be_saved() {
        let check = |kind: &[(&'static str, &str)], expect: bool| {
            let passed = allowed().of_response(&headers(kind));
            let found = [CONTENT_SECURITY_POLICY, CONTENT_DISPOSITION].map(|name| passed.contains_key(name));
            assert_eq!(found, [expect; 2], "{kind:?}");
        };
        check(&[("content-type", "text/html; charset=utf-8")], true);
        check(&[("content-type", "image/svg+xml")], true);
        check(&[("content-type", "application/xhtml+xml")], true);
        check(&[("content-type", "text/html"), ("content-disposition", "inline")], true);
        check(&[("content-type", "application/json")], false);
        check(&[("content-type", "audio/mpeg")], false);
        check(&[("content-type", "image/png")], false);
        check(&[], false);
    }

    #[test]
    fn an_answer_with_an_unclear_frame_cannot_be_used() {
        let check = |status: u16, lines: &[(&'static str, &str)], expect: bool| {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(unusable(status, &headers(lines)).is_some(), expect, "{status} {lines:?}");
        };
        check(200, &[("transfer-encoding", "Chunked")], false);
        check(599, &[], false);
        check(101, &[], true);
        check(999, &[], true);
        check(200, &[("transfer-encoding", "chunked, identity")], true);
        check(200, &[("transfer-encoding", "gzip, chunked")], true);
        assert_eq!(declared_length(&headers(&[("content-length", "5")])), Some(5));
        assert_eq!(declared_length(&headers(&[("content-length", "5, 5")])), None);
    }

    #[test]
    fn keys_for_this_daemon_are_found_in_every_encoding() {
        let check =
            |text: &str, expect: bool| assert_eq!(holds_daemon_key(text.as_bytes()), expect, "{text}");
        check("thr_0123", true);
        check("Bearer thr_0123", true);
        check("a=b; session=thr_0123", true);
        check("key=%74hr%5F0123", true);
        check("x=%2574hr_0123", true);
        check("x=%25252525252574hr_0123", true);
        check("x=100%25", false);
        check("Basic dGhyXzAxMjM6", true);
        check("basic dXNlcjp0aHJfMDEyMw==", true);
        // Without padding, with too little of it, and with other bits behind the last byte.
        check("Basic dXNlcjp0aHJfMDEyMw", true);
        check("Basic dXNlcjp0aHJfMDEyMw=", true);
        check("Basic dXNlcjp0aHJfMDEyMx==", true);
        // "us?r" and "u>>r", in both alphabets.
        check("Basic dXM/cjp0aHJfMDEyMw==", true);
        check("Basic dXM_cjp0aHJfMDEyMw==", true);
        check("Basic dT4-cjp0aHJfMDEyMw", true);
        check("Basic dXNlcjpzZWNyZXQ=", false);
        check("Basic dXNlcjpzZWNyZXQ", false);
        check("Basic", false);
        check("sk-anthr_0123", false);
        check(&format!("foothr_{}bar", "a".repeat(43)), true);
        check("", false);
    }

    #[test]
    fn the_content_type_and_the_query_leave_no_doubt() {
        let kind = |kinds: &[&str]| {
            let lines: Vec<_> = kinds.iter().map(|&kind| ("content-type", kind)).collect();
            let mut all = HeaderMap::new();
            lines.iter().for_each(|(name, value)| {
                all.append(*name, value.parse().expect("a value"));
            });
            check_content_type(&all).is_ok()
        };
        assert!(kind(&[]) && kind(&["application/json"]) && kind(&["application/json; charset=\"UTF-8\""]));
        for charset in ["utf-7", "utf-16", "", "\"utf-7\"", "utf-8,utf-7"] {
            assert!(!kind(&[&format!("application/json; charset={charset}")]), "{charset}");
        }
        assert!(!kind(&["application/json", "multipart/form-data; boundary=b"]));
        assert!(!kind(&["application/json; charset*=utf-8''utf-7"]));
        for query in ["beta=true", "api-version=1&x=model", ""] {
            assert!(check_query(Some(query)).is_ok(), "{query}");
        }
        for query in [
            "model=x",
            "a=b&Model=x",
            "a;model=x",
            "mo%64el=x",
            "mo%2564el=x",
            "model[]=x",
            "%25252525252541=x",
        ] {
            assert!(check_query(Some(query)).is_err(), "{query}");
        }
    }

    #[test]
    fn parameters_with_keys_for_this_daemon_are_removed() {
        let check = |query: &str, expect: Option<&str>| {
            assert_eq!(query_without_daemon_keys(query).as_deref(), expect, "{query}");
        };
        check("beta=true", Some("beta=true"));
        check("beta=true&key=thr_0123&api-version=1", Some("beta=true&api-version=1"));
        check("key=thr%5f0123", None);
        check("", None);
    }
}
