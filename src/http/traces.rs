//! Traces of requests: which trace a request continues, the spans of the daemon, and the trace context that upstreams get. The names follow the
//! semantic conventions of OpenTelemetry for HTTP and for generative AI. No span has text of a request or of an answer.

mod context;
pub mod model_call;

use std::borrow::Cow;
use std::sync::OnceLock;

use axum::http::{HeaderMap, Method, StatusCode};
use opentelemetry::context::FutureExt as _;
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use thresher_core::pipeline::Compressed;
use thresher_core::pipeline::answerable::Answerable;

pub use self::context::inject;
use crate::error::ApiError;

const ERROR_TYPE: &str = "error.type";

const OPERATION: &str = "gen_ai.operation.name";

/// Who offers the model of a span of generative AI.
const PROVIDER: &str = "gen_ai.provider.name";

const REQUEST_MODEL: &str = "gen_ai.request.model";

/// Makes spans once traces are exported.
static TRACER: OnceLock<BoxedTracer> = OnceLock::new();

/// Starts to record spans with the tracer provider of this process. Until then no span is recorded, and trace headers pass unchanged.
pub fn start() {
    // A second call changes nothing.
    let _ = TRACER.set(global::tracer("thresher"));
}

/// A span that begins now, in the context that it makes current.
fn begin(
    name: impl Into<Cow<'static, str>>,
    kind: SpanKind,
    attributes: Vec<KeyValue>,
    parent: &Context,
) -> Context {
    let Some(tracer) = TRACER.get() else { return parent.clone() };
    let span = tracer.span_builder(name).with_kind(kind).with_attributes(attributes);
    parent.with_span(span.start_with_context(tracer, parent))
}

fn fail(context: &Context, error: impl Into<Cow<'static, str>>) {
    let span = context.span();
    span.set_attribute(KeyValue::new(ERROR_TYPE, error.into()));
    span.set_status(Status::error(""));
}

/// The span of a request to the daemon. It ends when nothing holds it any more: with the answer, or with the last byte of a stream.
#[derive(Clone)]
pub struct ServerSpan(Context);

impl ServerSpan {
    /// Begins the span, in the trace that the headers name, or in a new one.
    pub fn begin(method: &Method, route: &str, request_id: &str, headers: &HeaderMap) -> Self {
        if TRACER.get().is_none() {
            return Self(Context::new());
        }
        // Any word can be a method.
        let is_known = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]
            .contains(&method.as_str());
        let (method, name) = if is_known {
            (method.to_string(), format!("{method} {route}"))
        } else {
            ("_OTHER".to_owned(), format!("HTTP {route}"))
        };
        let attributes = vec![
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", route.to_owned()),
            KeyValue::new("thresher.request_id", request_id.to_owned()),
        ];
        Self(begin(name, SpanKind::Server, attributes, &context::read_context(headers)))
    }

    /// Runs the handling of the request inside the span.
    pub async fn run<T>(&self, handling: impl Future<Output = T>) -> T {
        handling.with_context(self.0.clone()).await
    }

    /// Records the head of the answer. `code` is `ok`, or the code of an error.
    pub fn answered(&self, status: StatusCode, code: &'static str, key: Option<&str>) {
        let span = self.0.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        span.set_attribute(KeyValue::new("thresher.code", code));
        if let Some(key) = key {
            span.set_attribute(KeyValue::new("thresher.key", key.to_owned()));
        }
        // An error of the caller is no error of the server.
        if status.is_server_error() {
            fail(&self.0, code);
        }
    }

    /// Records that the client disconnected before it was answered.
    pub fn client_gone(&self) {
        fail(&self.0, "client_gone");
    }
}

/// A retrieval: what is chosen for a question, and from where.
#[derive(Debug, Clone, Copy)]
pub struct Retrieval {
    /// `compress`, `rerank`, `score`, `highlight`, `search` or `attribute`.
    pub operation: &'static str,
    /// Whether the chunks are registered ones; otherwise they are in the request.
    pub is_from_registry: bool,
    pub top_k: Option<usize>,
}

impl Retrieval {
    /// A retrieval among the texts of a request.
    pub fn new(operation: &'static str) -> Self {
        Self { operation, is_from_registry: false, top_k: None }
    }

    /// Runs the work inside a span. `model` is the name of the model that scores.
    ///
    /// # Errors
    /// What `work` fails with.
    pub async fn run<T>(
        self,
        model: Option<&str>,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        if TRACER.get().is_none() {
            return work.await;
        }
        let (name, kind) = self.name();
        let context = begin(name, kind, self.attributes(model), &Context::current());
        let outcome = work.with_context(context.clone()).await;
        if let Err(error) = &outcome {
            fail(&context, error.code.as_str());
        }
        context.span().end();
        outcome
    }

    /// Attribution looks for the sources of an answer. The conventions have no operation for it.
    fn is_retrieval(self) -> bool {
        self.operation != "attribute"
    }

    fn name(self) -> (&'static str, SpanKind) {
        let name = match (self.is_retrieval(), self.is_from_registry) {
            (false, _) => "attribute",
            (true, false) => "retrieval",
            (true, true) => "retrieval registry",
        };
        // The model is part of this process.
        (name, SpanKind::Internal)
    }

    fn attributes(self, model: Option<&str>) -> Vec<KeyValue> {
        let operation = if self.is_retrieval() { "retrieval" } else { "attribute" };
        let mut attributes = vec![
            KeyValue::new(OPERATION, operation),
            KeyValue::new(PROVIDER, "thresher"),
            KeyValue::new("thresher.operation", self.operation),
        ];
        attributes.extend(model.map(|model| KeyValue::new(REQUEST_MODEL, model.to_owned())));
        attributes.extend(self.is_from_registry.then(|| KeyValue::new("gen_ai.data_source.id", "registry")));
        attributes.extend(self.top_k.map(|top_k| KeyValue::new("gen_ai.retrieval.top_k", number(top_k))));
        attributes
    }
}

pub fn compressed(outcome: &Compressed) {
    let kept = outcome.chunks.iter().filter(|chunk| chunk.kept).count();
    chunks(outcome.chunks.len(), Some(kept));
    if let Some(usage) = outcome.usage {
        tokens(usage.tokens_in, usage.tokens_out);
    }
    related(outcome.relevance.map(|relevance| relevance.related), outcome.answerable);
}

/// Records in the current span how many chunks there were, and how many of them are in the answer.
pub fn chunks(count: usize, kept_count: Option<usize>) {
    set("thresher.chunk_count", number(count));
    if let Some(kept_count) = kept_count {
        set("thresher.kept_chunk_count", number(kept_count));
    }
}

/// Records the tokens before and after compression in the current span.
pub fn tokens(before: usize, after: usize) {
    set("thresher.tokens_before", number(before));
    set("thresher.tokens_after", number(after));
}

/// Records in the current span whether anything is related to the question, and whether it answers it.
pub fn related(related: Option<bool>, answerable: Option<Answerable>) {
    if let Some(related) = related {
        set("thresher.related", related);
    }
    if let Some(answerable) = answerable {
        set("thresher.answerable", answerable.answerable);
    }
}

fn set(name: &'static str, value: impl Into<opentelemetry::Value>) {
    // Without a tracer there is no span, and the context of another library's span would not be ours to change.
    if TRACER.get().is_some() {
        Context::map_current(|context| context.span().set_attribute(KeyValue::new(name, value)));
    }
}

/// A count as an attribute has it.
fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
