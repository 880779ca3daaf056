//! `GET /v1/models`: the models of the upstreams, and the daemon's own. Without upstreams, the daemon's own.

use std::collections::HashSet;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};
use thresher_core::pipeline::cancel::Cancel;

use super::upstream::Upstream;
use super::{Middleware, Scope};
use crate::api::ModelsAnswer;
use crate::error::ApiError;
use crate::middleware::dialect::Dialect;
use crate::middleware::settings::Credential;

const PATH: &str = "/v1/models";

/// The query parameter that is `false` if a request wants the daemon's own models only, as the page does again and again.
const UPSTREAMS: &str = "upstreams";

const LIST_BYTES_MAX: usize = 4 << 20;

/// The longest time for an upstream to answer with its list.
const WAIT_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Listed {
    models: Vec<Value>,
    /// Whether the upstream has more models than these; `None`: its API does not say.
    has_more: Option<bool>,
}

/// `GET /v1/models`. An upstream that does not answer is represented by the names in its settings.
pub async fn handle(service: Scope, uri: Uri, headers: HeaderMap) -> Result<Response, ApiError> {
    let middleware = &service.middleware;
    let is_own = is_own(uri.query().unwrap_or_default())?;
    if middleware.is_off() || is_own {
        return Ok(Json(ModelsAnswer::new(service.ready()?)).into_response());
    }
    middleware.check_hops(&headers)?;
    let _slot = middleware.request_slot(service.sharer())?;
    let upstreams = middleware.upstreams();
    let lists = upstreams.iter().map(|upstream| list(middleware, upstream, &uri, &headers));
    let lists = join_all(lists).await;
    let mut models: Vec<Value> = Vec::new();
    let mut ids: HashSet<String> = HashSet::new();
    let mut has_more = None;
    for (upstream, listed) in upstreams.iter().zip(lists) {
        // A model is listed where a request for it would go.
        let is_reached = |model: &Value| {
            let id = model["id"].as_str()?;
            middleware.upstream(id).filter(|reached| std::ptr::eq(*reached, upstream))
        };
        let reached = listed.models.into_iter().filter(|model| is_reached(model).is_some());
        models
            .extend(reached.filter(|model| model["id"].as_str().is_some_and(|id| ids.insert(id.to_owned()))));
        has_more = listed.has_more.map(|more| more || has_more.unwrap_or(false)).or(has_more);
    }
    let page = has_more.map(|has_more| {
        let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
        [("has_more", json!(has_more)), ("first_id", id(models.first())), ("last_id", id(models.last()))]
    });
    Ok(Json(ModelsAnswer::of_upstreams(models, page, service.pipeline())).into_response())
}

/// Whether a query string wants the daemon's own models only. Its other parameters are for the upstreams.
fn is_own(query: &str) -> Result<bool, ApiError> {
    let value = query.split('&').find_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name == UPSTREAMS).then_some(value)
    });
    match value {
        None | Some("true") => Ok(false),
        Some("false") => Ok(true),
        Some(other) => Err(ApiError::query_not_boolean(UPSTREAMS, other)),
    }
}

/// The models of an upstream. Nobody else than the upstream that the caller means may get the caller's key, so an upstream that takes it is asked
/// only if it is the only one that does.
async fn list(middleware: &Middleware, upstream: &Upstream, uri: &Uri, headers: &HeaderMap) -> Listed {
    let takes_key = |upstream: &Upstream| upstream.settings.credential() == Credential::Caller;
    let others = middleware.upstreams().iter().filter(|upstream| takes_key(upstream)).count();
    let asked = if takes_key(upstream) && others > 1 {
        None
    } else {
        tokio::time::timeout(WAIT_MAX, ask(middleware, upstream, uri, headers)).await.ok().flatten()
    };
    asked.unwrap_or_else(|| {
        let names = upstream.settings.models.iter().filter(|name| !name.ends_with('*'));
        Listed { models: names.map(|name| json!({"id": name, "object": "model"})).collect(), has_more: None }
    })
}

async fn ask(middleware: &Middleware, upstream: &Upstream, uri: &Uri, headers: &HeaderMap) -> Option<Listed> {
    let dialect = if headers.contains_key("anthropic-version") { Dialect::Messages } else { Dialect::Chat };
    let path = match uri.query() {
        Some(query) => format!("{PATH}?{query}"),
        None => PATH.to_owned(),
    };
    let uri: Uri = path.parse().ok()?;
    // The list is read, so the upstream must not compress it.
    let answer = upstream.send(dialect, Method::GET, &uri, headers, Bytes::new(), true).await.ok()?;
    let status = answer.status();
    if !status.is_success() {
        tracing::debug!(%status, "an upstream does not list its models");
        return None;
    }
    let body = Limited::new(answer.into_body(), LIST_BYTES_MAX).collect().await.ok()?.to_bytes();
    let parse = move |_: &Cancel| Ok(serde_json::from_slice::<Value>(&body).ok());
    let mut body = middleware.workers.run(WAIT_MAX, parse).await.ok()??;
    let Value::Array(models) = body["data"].take() else { return None };
    Some(Listed { models, has_more: body["has_more"].as_bool() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_upstreams_is_true_or_false() {
        let check = |query: &str, expect: Option<bool>| {
            let found = is_own(query).map_err(|error| error.param);
            assert_eq!(found, expect.ok_or(Some("upstreams".to_owned())), "{query}");
        };
        check("", Some(false));
        check("limit=3", Some(false));
        check("upstreams=true", Some(false));
        check("limit=3&upstreams=false", Some(true));
        check("upstreams=no", None);
        check("upstreams", None);
    }
}
