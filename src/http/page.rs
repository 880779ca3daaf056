//! The page at `/`: files for a browser, built from `web/` and part of the binary. They are the same for all callers and hold no data, so they
//! need no key; what the page shows it requests from the other endpoints, with the key that the user typed.

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::error::ApiError;

/// The path of the document; the other files are beside it.
pub const PATH: &str = "/";

/// What the document may load and do: only the files below, and requests to the daemon that served it. No other page may embed it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct File {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

macro_rules! built {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/web/dist/", $name))
    };
}

static FILES: [File; 4] = [
    File { path: PATH, content_type: "text/html; charset=utf-8", bytes: built!("index.html") },
    File { path: "/app.js", content_type: "text/javascript; charset=utf-8", bytes: built!("app.js") },
    File { path: "/app.css", content_type: "text/css; charset=utf-8", bytes: built!("app.css") },
    File { path: "/favicon.svg", content_type: "image/svg+xml", bytes: built!("favicon.svg") },
];

/// The routes of the page's files; none if the page is not served.
pub fn router<S: Clone + Send + Sync + 'static>(is_served: bool) -> Router<S> {
    if !is_served {
        return Router::new();
    }
    let add = |router: Router<S>, file: &'static File| {
        let tag = tag_of(file);
        router.route(file.path, get(async move |headers: HeaderMap| answer(file, &tag, &headers)))
    };
    FILES.iter().fold(Router::new(), add).method_not_allowed_fallback(async || ApiError::method_not_allowed())
}

/// The entity tag of a file: a hash of its bytes.
fn tag_of(file: &File) -> HeaderValue {
    let hash = blake3::hash(file.bytes).to_hex();
    HeaderValue::try_from(format!("\"{}\"", &hash[..16])).expect("hexadecimal digits")
}

/// The file, or 304 if the browser has it. Browsers ask each time, because the files of the next version have the same names.
fn answer(file: &File, tag: &HeaderValue, headers: &HeaderMap) -> Response {
    let known = headers.get_all(IF_NONE_MATCH).iter().any(|tags| is_in(tags, tag));
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(file.content_type)),
        (ETAG, tag.clone()),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    if known {
        (StatusCode::NOT_MODIFIED, headers).into_response()
    } else {
        (headers, file.bytes).into_response()
    }
}

/// Whether `tag` is one of a list of entity tags.
fn is_in(tags: &HeaderValue, tag: &HeaderValue) -> bool {
    let tags = tags.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    tags.map(|other| other.strip_prefix(b"W/").unwrap_or(other)).any(|other| other == tag.as_bytes())
}
