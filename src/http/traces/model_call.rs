//! The span of a request to an upstream. Its attributes are those of a call of a language model, as far as request and answer have them.

use std::time::Instant;

use axum::body::HttpBody as _;
use axum::http::{Response, Uri};
use hyper::body::Incoming;
use opentelemetry::context::FutureExt as _;
use opentelemetry::trace::{SpanKind, TraceContextExt as _};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};

use super::{OPERATION, PROVIDER, REQUEST_MODEL, TRACER, begin, fail};
use crate::error::ApiError;
use crate::middleware::dialect::Dialect;
use crate::middleware::json::Located;
use crate::middleware::reported::{Reported, shortened};

pub struct Call<'a> {
    pub dialect: Dialect,
    pub method: &'a str,
    pub path: &'a str,
    /// The model that the request names; empty if it names none.
    pub model: &'a str,
    /// The entry of the settings that lists the model, such as `gpt-*`; none: the upstream is for all models.
    pub listed: Option<&'a str>,
    pub upstream: &'a Uri,
    pub body: &'a [u8],
}

/// The span of a request to an upstream. It ends with the answer's last byte; if it is dropped before, the client has gone.
pub struct ModelCall {
    context: Context,
    /// The context of the daemon's own request. Its span stays open as long as this one.
    parent: Context,
    started: Instant,
    has_begun: bool,
    has_failed: bool,
    is_over: bool,
}

impl ModelCall {
    pub fn begin(call: &Call) -> Self {
        let parent = Context::current();
        let context = match TRACER.get() {
            None => parent.clone(),
            Some(_) => begin(name(call), SpanKind::Client, attributes(call), &parent),
        };
        let is_over = TRACER.get().is_none();
        Self { context, parent, started: Instant::now(), has_begun: false, has_failed: false, is_over }
    }

    /// Whether the span is recorded, so that the answer should be readable.
    pub fn is_recording(&self) -> bool {
        !self.is_over && self.context.span().is_recording()
    }

    /// Sends the request inside the span, and records the head of the answer.
    ///
    /// # Errors
    /// What `sending` fails with.
    pub async fn send(
        &mut self,
        sending: impl Future<Output = Result<Response<Incoming>, ApiError>>,
    ) -> Result<Response<Incoming>, ApiError> {
        let sent = sending.with_context(self.context.clone()).await;
        match &sent {
            Err(error) => self.end(Reported::default(), Some(error.code.as_str())),
            Ok(answer) => {
                let status = answer.status();
                let value = i64::from(status.as_u16());
                self.context.span().set_attribute(KeyValue::new("http.response.status_code", value));
                if !status.is_success() {
                    fail(&self.context, status.as_str().to_owned());
                }
                self.has_failed = !status.is_success();
                if answer.body().is_end_stream() {
                    self.end(Reported::default(), None);
                }
            }
        }
        sent
    }

    /// Runs work on the answer, whose spans belong to the daemon's own request.
    pub async fn beside<T>(&self, work: impl Future<Output = T>) -> T {
        work.with_context(self.parent.clone()).await
    }

    /// Records the time to the first bytes of a stream.
    pub fn begins(&mut self, is_stream: bool) {
        if is_stream && !std::mem::replace(&mut self.has_begun, true) {
            let seconds = self.started.elapsed().as_secs_f64();
            self.context.span().set_attribute(KeyValue::new("gen_ai.response.time_to_first_chunk", seconds));
        }
    }

    /// Ends the span with what the answer reported; `error`: it failed, or broke off.
    pub fn end(&mut self, reported: Reported, error: Option<&'static str>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        if let Some(error) = error.filter(|_| !self.has_failed) {
            fail(&self.context, error);
        }
        let span = self.context.span();
        span.set_attributes(of_answer(reported));
        span.end();
    }
}

impl Drop for ModelCall {
    fn drop(&mut self) {
        self.end(Reported::default(), Some("client_gone"));
    }
}

/// The name of a model as a client sent it, without the characters that control a terminal.
fn without_control(name: &str) -> String {
    name.replace(char::is_control, "\u{fffd}")
}

/// The operation of a request; none if the conventions have none for its path.
fn operation(path: &str) -> Option<&'static str> {
    match path.trim_end_matches('/') {
        "/v1/chat/completions" | "/v1/responses" | "/v1/messages" => Some("chat"),
        "/v1/completions" => Some("text_completion"),
        "/v1/embeddings" => Some("embeddings"),
        _ => None,
    }
}

/// The name of the span: the operation, and the model as the settings name it. Names that clients invent would be as many spans.
fn name(call: &Call) -> String {
    match (operation(call.path), call.listed) {
        (Some(operation), None) => operation.to_owned(),
        (Some(operation), Some(model)) => format!("{operation} {}", shortened(model)),
        // As the conventions for HTTP name a request whose path has no pattern.
        (None, _) => call.method.to_owned(),
    }
}

/// The provider by the address of an upstream; for other addresses, the provider of the API.
fn provider(host: &str, dialect: Dialect) -> &'static str {
    let hosts = [
        ("api.openai.com", "openai"),
        ("api.anthropic.com", "anthropic"),
        ("openai.azure.com", "azure.ai.openai"),
        ("services.ai.azure.com", "azure.ai.inference"),
        ("amazonaws.com", "aws.bedrock"),
        ("generativelanguage.googleapis.com", "gcp.gemini"),
        ("aiplatform.googleapis.com", "gcp.vertex_ai"),
        ("api.mistral.ai", "mistral_ai"),
        ("api.groq.com", "groq"),
        ("api.deepseek.com", "deepseek"),
        ("api.cohere.com", "cohere"),
        ("api.x.ai", "x_ai"),
        ("api.perplexity.ai", "perplexity"),
        ("api.moonshot.ai", "moonshot_ai"),
    ];
    let is_at = |domain: &str| {
        host.strip_suffix(domain).is_some_and(|before| before.is_empty() || before.ends_with(['.', '-']))
    };
    let found = hosts.iter().find(|(domain, _)| is_at(domain)).map(|(_, provider)| *provider);
    found.unwrap_or(if dialect == Dialect::Messages { "anthropic" } else { "openai" })
}

fn attributes(call: &Call) -> Vec<KeyValue> {
    let host = call.upstream.host().unwrap_or_default();
    let is_https = call.upstream.scheme_str() == Some("https");
    let port = call.upstream.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    let mut attributes = vec![
        KeyValue::new("server.address", host.to_owned()),
        KeyValue::new("server.port", i64::from(port)),
        KeyValue::new("http.request.method", call.method.to_owned()),
    ];
    let Some(operation) = operation(call.path) else { return attributes };
    let provider = provider(host, call.dialect);
    attributes.extend([KeyValue::new(OPERATION, operation), KeyValue::new(PROVIDER, provider)]);
    if !call.model.is_empty() {
        attributes.push(KeyValue::new(REQUEST_MODEL, without_control(shortened(call.model))));
    }
    if provider == "openai" && operation == "chat" {
        let api = if call.dialect == Dialect::Responses { "responses" } else { "chat_completions" };
        attributes.push(KeyValue::new("openai.api.type", api));
    }
    let body = std::str::from_utf8(call.body).ok().and_then(|body| Located::parse(body).ok());
    attributes.extend(
        body.into_iter().flat_map(Located::fields).filter_map(|(name, value)| of_request(&name, value)),
    );
    attributes
}

/// A field of a request as an attribute.
fn of_request(name: &str, value: Located) -> Option<KeyValue> {
    let integer = |key: &'static str| Some(KeyValue::new(key, value.read::<i64>()?));
    let float = |key: &'static str| Some(KeyValue::new(key, value.read::<f64>()?));
    match name {
        "stream" => value.read::<bool>()?.then(|| KeyValue::new("gen_ai.request.stream", true)),
        "n" => integer("gen_ai.request.choice.count").filter(|count| count.value != Value::I64(1)),
        "seed" => integer("gen_ai.request.seed"),
        "top_k" => integer("gen_ai.request.top_k"),
        "max_tokens" | "max_completion_tokens" | "max_output_tokens" => integer("gen_ai.request.max_tokens"),
        "temperature" => float("gen_ai.request.temperature"),
        "top_p" => float("gen_ai.request.top_p"),
        "frequency_penalty" => float("gen_ai.request.frequency_penalty"),
        "presence_penalty" => float("gen_ai.request.presence_penalty"),
        _ => None,
    }
}

fn of_answer(reported: Reported) -> Vec<KeyValue> {
    let Reported { id, model, finish_reasons, .. } = reported;
    let count = |key: &'static str, count: Option<u64>| {
        Some(KeyValue::new(key, i64::try_from(count?).unwrap_or(i64::MAX)))
    };
    let reasons: Vec<StringValue> = finish_reasons.into_iter().map(StringValue::from).collect();
    let attributes = [
        id.map(|id| KeyValue::new("gen_ai.response.id", id)),
        model.map(|model| KeyValue::new("gen_ai.response.model", model)),
        (!reasons.is_empty())
            .then(|| KeyValue::new("gen_ai.response.finish_reasons", Value::Array(Array::String(reasons)))),
        count("gen_ai.usage.input_tokens", reported.input_tokens),
        count("gen_ai.usage.output_tokens", reported.output_tokens),
        count("gen_ai.usage.cache_read.input_tokens", reported.cache_read_tokens),
        count("gen_ai.usage.cache_write.input_tokens", reported.cache_write_tokens),
        count("gen_ai.usage.reasoning.output_tokens", reported.reasoning_tokens),
    ];
    attributes.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provider_is_known_by_the_address_or_else_by_the_api() {
        let check = |host: &str, dialect: Dialect, expect: &str| {
            assert_eq!(provider(host, dialect), expect, "{host} {dialect:?}");
        };
        check("api.openai.com", Dialect::Chat, "openai");
        check("mine.openai.azure.com", Dialect::Responses, "azure.ai.openai");
        check("us-central1-aiplatform.googleapis.com", Dialect::Messages, "gcp.vertex_ai");
        check("bedrock-runtime.us-east-1.amazonaws.com", Dialect::Messages, "aws.bedrock");
        check("notapi.openai.com", Dialect::Messages, "anthropic");
        check("127.0.0.1", Dialect::Chat, "openai");
        check("127.0.0.1", Dialect::Messages, "anthropic");
    }

    #[test]
    fn names_are_the_operation_and_the_model_as_the_settings_name_it() {
        let check = |path: &str, listed: &str, expect: &str| {
            let upstream = Uri::from_static("http://127.0.0.1:1");
            let call = Call {
                dialect: Dialect::Chat,
                method: "POST",
                path,
                model: "gpt-5\n\u{1b}[31m",
                listed: Some(listed).filter(|listed| !listed.is_empty()),
                upstream: &upstream,
                body: b"",
            };
            assert_eq!(name(&call), expect, "{path} {listed}");
        };
        check("/v1/chat/completions", "gpt-*", "chat gpt-*");
        check("/v1/responses/", "gpt-5", "chat gpt-5");
        check("/v1/responses", "", "chat");
        check("/v1/embeddings", "", "embeddings");
        check("/v1/completions", "m", "text_completion m");
        check("/v1/files", "m", "POST");
        check("/v1/messages", &"m".repeat(1_000), &format!("chat {}", "m".repeat(256)));
    }

    #[test]
    fn attributes_of_a_request_have_no_text() {
        let upstream = Uri::from_static("https://api.openai.com/v1");
        let body = br#"{"model": "gpt-5", "messages": [{"content": "secret"}], "stream": true, "n": 1, "max_completion_tokens": 5,
            "temperature": 0.5, "seed": "none", "top_k": 3.5, "stop": ["secret"]}"#;
        let call = Call {
            dialect: Dialect::Chat,
            method: "POST",
            path: "/v1/chat/completions",
            model: "gpt-5",
            listed: None,
            upstream: &upstream,
            body,
        };
        let found: Vec<String> =
            attributes(&call).iter().map(|one| format!("{}={}", one.key, one.value)).collect();
        assert_eq!(
            found,
            [
                "server.address=api.openai.com",
                "server.port=443",
                "http.request.method=POST",
                "gen_ai.operation.name=chat",
                "gen_ai.provider.name=openai",
                "gen_ai.request.model=gpt-5",
                "openai.api.type=chat_completions",
                "gen_ai.request.stream=true",
                "gen_ai.request.max_tokens=5",
                "gen_ai.request.temperature=0.5",
            ]
        );
    }
}
