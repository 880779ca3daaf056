//! Paths of the API of a model that the middleware does not read: embeddings, token counts, files, batches, and so on. They go to an upstream as
//! they are, with the same rules for keys and headers, and their answers come back as they are.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use thresher_core::pipeline::cancel::Cancel;

use super::forward::Forwarder;
use super::headers::{self, holds_daemon_key};
use super::upstream::Upstream;
use super::{Middleware, Scope, body, media_type};
use crate::error::ApiError;
use crate::http::traces::model_call::{Call, ModelCall};
use crate::middleware::cite::Additions;
use crate::middleware::dialect::Dialect;
use crate::middleware::form::{self, Form};
use crate::middleware::json::{Edits, Located};
use crate::middleware::settings::{Credential, UpstreamSettings};
use crate::middleware::{paths, shared_key};

/// The route of all paths below `/v1` that no other route has.
pub const ROUTE: &str = "/v1/{*path}";

const MESSAGES: &str = "/v1/messages";

/// The paths of conversations: a body for a path below one of them may have the field `thresher`.
const CONVERSATIONS: [&str; 3] = ["/v1/chat/completions", "/v1/responses", MESSAGES];

const FORM: &str = "multipart/form-data";

/// The header with the host or URL of the upstream, for requests without a model.
const UPSTREAM: &str = "x-thresher-upstream";

struct Forwarded {
    dialect: Dialect,
    method: Method,
    uri: Uri,
    /// The path, decoded and without a slash at its end.
    path: String,
}

/// Passes a request on to the upstream that has its model. A request that names no model goes to the upstream that [`UPSTREAM`] names, or to the
/// only one.
pub async fn handle(service: Scope, method: Method, uri: Uri, headers: HeaderMap, body: Body) -> Response {
    // A mistake in one of the daemon's own paths must not reach another server, and no path may leave the base path of an upstream.
    let Some(path) =
        paths::decoded(uri.path()).filter(|path| !is_ours(path) && !holds_daemon_key(path.as_bytes()))
    else {
        return ApiError::not_found(&crate::http::paths()).into_response();
    };
    if service.middleware.is_off() {
        return ApiError::not_forwarded().into_response();
    }
    let dialect = dialect_of(&path, &headers);
    let response = pass_on(service, Forwarded { dialect, method, uri, path }, headers, body).await;
    response.unwrap_or_else(|error| error.dialect_response(dialect))
}

async fn pass_on(
    service: Scope,
    request: Forwarded,
    mut headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let middleware = Arc::clone(&service.middleware);
    let is_json = media_type::check_json(&headers).is_ok();
    let checked =
        middleware.check_hops(&headers).and_then(|()| check_sender(&service, &request.method, &headers));
    if let Err(error) = checked {
        body::discard(body, &service).await;
        return Err(error);
    }
    let slot = middleware.request_slot(service.sharer())?;
    let body = body::collect(body, middleware.limits.body_bytes_max, &service).await?;
    let is_form = media_type::media_type(&headers).is_some_and(|kind| kind == FORM);
    let boundary =
        headers.get(CONTENT_TYPE).filter(|_| is_form).and_then(|kind| form::boundary(kind.to_str().ok()?));
    let is_below = CONVERSATIONS.iter().any(|path| is_below(&request.path, path));
    let mut read = if body.is_empty() {
        ReadBody { kind: BodyKind::Empty, model: None, body }
    } else if is_json || boundary.is_some() {
        let boundary = boundary.map(str::to_owned);
        // The clone keeps the memory of the body until it has been parsed.
        let scope = service.clone();
        let parse = move |_: &Cancel| {
            let parsed = match boundary {
                Some(boundary) => read_form(body, boundary),
                None => read_json(body, is_below),
            };
            drop(scope);
            Ok(parsed)
        };
        middleware.workers.run(service.settings.time_limits.max, parse).await?
    } else {
        ReadBody { kind: BodyKind::Unread, model: None, body }
    };
    if let Some(model) = request.path.strip_prefix(paths::MODELS) {
        read.model = Some(model.to_owned());
    }
    let upstream = choose(&middleware, read.model.as_deref(), &headers)?;
    if !upstream.settings.forwards(request.method.as_str(), &request.path) {
        return Err(ApiError::path_not_forwarded(request.method.as_str(), &request.path));
    }
    if upstream.settings.credential() == Credential::KeyFile {
        media_type::check_encoding(&headers)?;
        headers::check_query(request.uri.query())?;
        let (settings, path) = (upstream.settings.clone(), request.path.clone());
        let is_opened = paths::is_named(&path, &settings.paths) && !paths::is_stateless(&path);
        if !is_opened {
            headers::check_content_type(&headers)?;
            let rewrite = move |_: &Cancel| read.written_anew(&settings, &path);
            let written = middleware.workers.run(service.settings.time_limits.max, rewrite).await?;
            headers::set_content_type(&mut headers, written.content_type.as_deref());
            read = written.body;
        }
    }
    let ReadBody { model, body, .. } = read;
    let body = service.body_memory().transfer(body, 0);
    let Forwarded { dialect, method, uri, .. } = request;
    let mut call = ModelCall::begin(&Call {
        dialect,
        method: method.as_str(),
        path: uri.path(),
        model: model.as_deref().unwrap_or_default(),
        listed: model.as_deref().and_then(|model| upstream.settings.name_of(model)),
        upstream: upstream.base(),
        body: &body,
    });
    let reads_answer = call.is_recording();
    let answer = call.send(upstream.send(dialect, method, &uri, &headers, body, reads_answer)).await?;
    let forwarder = Forwarder {
        service,
        dialect,
        wanted: Additions::default(),
        sources: None,
        tally: None,
        silence_max: upstream.silence_max(),
        call,
        reader: None,
    };
    Ok(forwarder.forward(answer, slot).await)
}

/// The upstream for a model, or for a request without one. Such a request is not guessed to be for any of several upstreams: it may hold a
/// file that only one of them may get.
fn choose<'a>(
    middleware: &'a Middleware,
    model: Option<&str>,
    headers: &HeaderMap,
) -> Result<&'a Upstream, ApiError> {
    if let Some(model) = model {
        return middleware.upstream(model).ok_or_else(|| ApiError::model_unknown(model));
    }
    let Some(name) = headers.get(UPSTREAM).map(|name| String::from_utf8_lossy(name.as_bytes())) else {
        return middleware.only_upstream().ok_or_else(|| ApiError::upstream_unclear(UPSTREAM));
    };
    let named = middleware.upstreams().iter().find(|upstream| upstream.settings.is_named(&name));
    named.ok_or_else(|| ApiError::upstream_unknown(UPSTREAM, &name))
}

/// Checks that no web page can have sent the request without asking first: a page may send forms, plain text and bytes without a type to any
/// server, but no JSON and no keys.
fn check_sender(service: &Scope, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    let has_key = headers.contains_key(AUTHORIZATION) || headers.contains_key("x-api-key");
    let only_reads = [Method::GET, Method::HEAD].contains(method) && !headers.contains_key(CONTENT_TYPE);
    if only_reads || has_key || service.is_keyed() {
        Ok(())
    } else {
        media_type::check_json(headers).map_err(ApiError::or_send_key)
    }
}

/// Whether a decoded path begins as one of the daemon's own paths does, apart from those of the middleware. A version that is there twice, or
/// before the prefix of a dialect, is the mistake of a client whose base URL ends with it.
fn is_ours(path: &str) -> bool {
    let first = |path: &str| {
        let path = path.trim_start_matches("/v1/").trim_start_matches('/');
        path.split('/').next().unwrap_or_default().to_owned()
    };
    let of_models = ["chat", "responses", "messages", "models"];
    let name = first(path).to_ascii_lowercase();
    // A path of several segments begins with the version or with a prefix.
    let ours = crate::http::paths().into_iter().filter(|path| path.matches('/').count() > 1).map(first);
    ["v1", "v2"].contains(&&*name)
        || !of_models.contains(&&*name) && ours.into_iter().any(|ours| ours == name)
}

fn dialect_of(path: &str, headers: &HeaderMap) -> Dialect {
    let is_messages = path == MESSAGES || is_below(path, MESSAGES);
    if is_messages || headers.contains_key("anthropic-version") { Dialect::Messages } else { Dialect::Chat }
}

fn is_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.starts_with('/'))
}

/// A body for the upstream, as far as the daemon reads it.
struct ReadBody {
    kind: BodyKind,
    model: Option<String>,
    body: Vec<u8>,
}

enum BodyKind {
    Empty,
    Json,
    /// A form with this boundary, whose fields name at most one model.
    Form(String),
    /// A body that the daemon does not parse.
    Unread,
}

/// A body as it is sent with a key that all tenants share.
struct WrittenBody {
    body: ReadBody,
    /// The only content type that it is sent with; `None` for an empty body.
    content_type: Option<String>,
}

impl ReadBody {
    /// Checks a body that is sent with a key that all tenants share: the daemon must know its model, if the upstream is not for all of them,
    /// and it must have nothing to do with what the provider stores. Returns what is sent instead of it: the object with storing turned off,
    /// or the form written anew from what was read.
    fn written_anew(self, settings: &UpstreamSettings, path: &str) -> Result<WrittenBody, ApiError> {
        let is_model_known = self.model.is_some() || settings.is_for_any_model();
        let (body, content_type) = match &self.kind {
            BodyKind::Empty => return Ok(WrittenBody { body: self, content_type: None }),
            BodyKind::Json | BodyKind::Form(_) if !is_model_known => return Err(ApiError::model_missing()),
            BodyKind::Json if paths::is_stateless(path) => {
                let text = std::str::from_utf8(&self.body).map_err(|_| ApiError::body_not_utf8())?;
                let located = Located::parsed(text);
                let mut edits = Edits::default();
                if check_shared_key(located, settings, path)? {
                    shared_key::store_nothing(located, false, &mut edits);
                }
                let changed = (!edits.is_empty()).then(|| edits.apply(text).into_bytes());
                (changed.unwrap_or(self.body), media_type::JSON.to_owned())
            }
            // Another server may read JSON before the form, or instead of it.
            BodyKind::Form(boundary) if paths::takes_form(path) => {
                let form = Form::parse(&self.body, boundary).ok_or_else(ApiError::body_not_readable)?;
                let stored = form.names().find(|name| shared_key::names_stored(name));
                if let Some(field) = stored.filter(|_| settings.refuses_state(path)) {
                    return Err(ApiError::state_not_forwarded(field, path));
                }
                // Keys of a hash map are random, so no value can have been made to contain the new boundary.
                let boundary =
                    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(0));
                (form.write(&boundary), format!("{FORM}; boundary={boundary}"))
            }
            BodyKind::Json | BodyKind::Form(_) | BodyKind::Unread => {
                return Err(ApiError::body_not_readable());
            }
        };
        Ok(WrittenBody { body: Self { body, ..self }, content_type: Some(content_type) })
    }
}

/// Checks a JSON body that is sent with a key that all tenants share: it names one model, and, unless the upstream's settings allow that for its
/// path, nothing that the provider stores. Returns whether the provider may not store anything of it.
///
/// # Errors
/// `duplicate_field`, `unavailable`.
pub fn check_shared_key(body: Located, settings: &UpstreamSettings, path: &str) -> Result<bool, ApiError> {
    if shared_key::names_several_models(body) {
        return Err(ApiError::models_several());
    }
    let has = |model: &str| settings.has(model);
    if let Some((field, model)) = shared_key::other_model(body, &has) {
        return Err(ApiError::model_not_allowed(&field, &model));
    }
    let is_stateless = settings.refuses_state(path);
    match is_stateless.then(|| shared_key::stored(body)).flatten() {
        Some(field) => Err(ApiError::state_not_forwarded(&field, path)),
        None => Ok(is_stateless),
    }
}

/// Reads a JSON body. Below a path of conversations, it loses the field `thresher`.
fn read_json(body: Vec<u8>, removes_field: bool) -> ReadBody {
    let read = || {
        let text = std::str::from_utf8(&body).ok()?;
        let located = Located::parse(text).ok()?;
        let mut edits = Edits::default();
        if removes_field {
            edits.remove_field(located, "thresher");
        }
        let kind = if located.json().starts_with('{') { BodyKind::Json } else { BodyKind::Unread };
        Some((kind, located.text_of("model"), (!edits.is_empty()).then(|| edits.apply(text).into_bytes())))
    };
    let (kind, model, changed) = read().unwrap_or((BodyKind::Unread, None, None));
    ReadBody { kind, model, body: changed.unwrap_or(body) }
}

/// Reads a form. It names a model if a part with that name is a text, and no other part's name may be read as that one.
fn read_form(body: Vec<u8>, boundary: String) -> ReadBody {
    let read = || {
        let form = Form::parse(&body, &boundary)?;
        let is_one = form.names().filter(|name| shared_key::names_model(name)).count() <= 1;
        let models = form.texts("model").ok()?;
        // A part with the name in another case is one that only some servers read.
        is_one.then(|| models.first().map(|&model| model.to_owned()))
    };
    match read() {
        Some(model) => ReadBody { kind: BodyKind::Form(boundary), model, body },
        None => ReadBody { kind: BodyKind::Unread, model: None, body },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_begin_as_the_daemons_own_are_not_passed_on() {
        let check = |path: &str, expect: bool| {
            let found = paths::decoded(path).is_none_or(|path| is_ours(&path));
            assert_eq!(found, expect, "{path}");
        };
        check("/v1/compress/x", true);
        check("/v1/attribute/strem", true);
        check("/v1/chunks/a/b", true);
        check("/v1/savings/x", true);
        check("/v1/embeddings", false);
        check("/v1/messages/count_tokens", false);
        check("/v1/chat/completions/x", false);
        check("/v1/models/gpt-5", false);
        check("/v1/v1/compress", true);
        check("/v1/headroom/v1/compress", true);
        check("/v1/v2/rerank", true);
        check("/v1//compress", true);
        check("/v1/./compress", true);
        check("/v1/%63ompress", true);
        check("/v1/Compress", true);
        check("/v1/%63ompletions", false);
    }

    #[test]
    fn the_api_of_a_request_is_known_by_its_path_or_its_version() {
        let check = |path: &str, version: bool, expect: Dialect| {
            let mut headers = HeaderMap::new();
            if version {
                headers.insert("anthropic-version", "2023-06-01".parse().expect("a value"));
            }
            assert_eq!(dialect_of(path, &headers), expect, "{path} {version}");
        };
        check("/v1/messages/count_tokens", false, Dialect::Messages);
        check("/v1/messagesx", false, Dialect::Chat);
        check("/v1/models/claude-sonnet-5", true, Dialect::Messages);
        check("/v1/embeddings", false, Dialect::Chat);
    }
}
