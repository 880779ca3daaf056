//! Metrics and log lines of requests: the endpoint, the outcome and the time, never any text of a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::ResponseCode;
use super::request_id;
use super::traces::{self, ServerSpan};
use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use metrics::{counter, gauge, histogram};
use thresher_core::model::ModelInfo;
use thresher_core::pipeline::Compressed;
use thresher_core::pipeline::clock::Timings;
use tracing::Instrument;

use crate::api::{KvAnswer, KvPolicy};
use crate::middleware::usage::Usage;
use crate::savings::counts::{Counts, Exchange, Money, SavedAs, Treatment};
use crate::savings::ledger;
use crate::savings::losses::{Counted, Loss};
use crate::savings::report::Coverage;

/// From this time on a request is logged as a warning, with the time of each stage and without any text: far longer than one whose chunks
/// are cached takes.
const SLOW: Duration = Duration::from_secs(2);

fn is_slow(took: Duration) -> bool {
    took >= SLOW
}

/// The name of the key that a request was sent with: an extension of the response.
#[derive(Debug, Clone)]
pub struct KeyName(pub Arc<str>);

/// Layer around all routes.
pub async fn request(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let matched = request.extensions().get::<MatchedPath>();
    let endpoint = matched.map_or("other", |path| super::route_of(path.as_str())).to_owned();
    let method = request.method().clone();
    let request_id = request_id::choose_id(request.headers());
    // A span below the level of a line would be missing in it.
    let (key, stages) = (tracing::field::Empty, tracing::field::Empty);
    let span = tracing::warn_span!("request", %method, endpoint, request_id, key, stages);
    let traced = ServerSpan::begin(&method, &endpoint, &request_id, request.headers());
    let mut guard = RequestGuard::start(started, endpoint.clone(), span.clone(), traced.clone());
    let mut response = traced.run(next.run(request).instrument(span.clone())).await;
    guard.answered = true;
    request_id::add(response.headers_mut(), &request_id);
    let code = response.extensions().get::<ResponseCode>().map_or("ok", |code| code.0);
    let key = response.extensions().get::<KeyName>().map(|KeyName(key)| &**key);
    traced.answered(response.status(), code, key);
    let status = response.status().as_u16();
    counter!("requests_total", "endpoint" => endpoint.clone(), "code" => code).increment(1);
    if let Some(key) = key {
        counter!("key_requests_total", "key" => key.to_string(), "code" => code).increment(1);
    }
    let took = started.elapsed();
    histogram!("request_seconds", "endpoint" => endpoint).record(took);
    let ms = took.as_secs_f64() * 1e3;
    span.in_scope(|| {
        if is_slow(took) {
            tracing::warn!(status, code, ms, "answered slowly")
        } else {
            tracing::info!(status, code, ms, "answered")
        }
    });
    response
}

pub fn compressed(outcome: &Compressed) {
    stages(&outcome.timings);
    traces::compressed(outcome);
    if let Some(usage) = outcome.usage {
        counter!("tokens_in_total").increment(usage.tokens_in as u64);
        counter!("tokens_out_total").increment(usage.tokens_out as u64);
    }
}

/// The labels of metrics about savings. None of them has text of a request: `model` is a name in the settings.
pub struct SavingsLabels<'a> {
    pub tenant: String,
    /// The name of the model's price, or that of its upstream.
    pub model: String,
    pub exchange: &'a Exchange<'a>,
}

/// Metrics of what a request saved, and of the money, if its model has a price.
pub fn savings(labels: &SavingsLabels, counts: &Counts, money: Option<Money>) {
    let SavingsLabels { tenant, model, exchange } = labels;
    let outcome = match exchange.treatment {
        Treatment::Shadow => "shadow",
        Treatment::Compress if counts.requests_shortened > 0 => "compressed",
        Treatment::Compress => "uncompressed",
    };
    let route = ledger::route(exchange.dialect);
    let (tenant, model) = (|| tenant.clone(), || model.clone());
    counter!("savings_requests_total", "tenant" => tenant(), "model" => model(), "route" => route, "outcome" => outcome)
        .increment(1);
    counter!("savings_tokens_before_total", "tenant" => tenant(), "model" => model(), "route" => route, "outcome" => outcome)
        .increment(counts.tokens_before);
    counter!("savings_tokens_after_total", "tenant" => tenant(), "model" => model(), "route" => route, "outcome" => outcome)
        .increment(counts.tokens_after);
    let SavedAs { input, cached_read, cached_write, unknown } = counts.saved_as;
    let saved = [
        ("input", input),
        ("cached_read", cached_read),
        ("cached_write", cached_write),
        ("unknown", unknown),
    ];
    for (kind, tokens) in saved.into_iter().filter(|(_, tokens)| *tokens > 0) {
        counter!("savings_tokens_saved_total", "tenant" => tenant(), "model" => model(), "route" => route, "outcome" => outcome, "billed_as" => kind)
            .increment(tokens);
    }
    let Usage { input, cached_read, cached_write, output } = counts.billed;
    let billed =
        [("input", input), ("cached_read", cached_read), ("cached_write", cached_write), ("output", output)];
    for (kind, tokens) in billed.into_iter().filter(|(_, tokens)| *tokens > 0) {
        counter!("savings_tokens_billed_total", "tenant" => tenant(), "model" => model(), "route" => route, "outcome" => outcome, "kind" => kind)
            .increment(tokens);
    }
    if let Some(Money { currency, saved, billed, .. }) = money {
        let micros = |amount: f64| (amount * 1e6).round() as u64;
        counter!("savings_saved_micros_total", "tenant" => tenant(), "model" => model(), "route" => route, "outcome" => outcome, "currency" => currency.clone())
            .increment(micros(saved));
        counter!("savings_billed_micros_total", "tenant" => tenant(), "model" => model(), "route" => route, "outcome" => outcome, "currency" => currency)
            .increment(micros(billed));
    }
}

/// Metrics of how much of the sources of an answer would have been kept, in shadow mode.
pub fn coverage(tenant: &str, coverage: &Coverage) {
    let lost = coverage.sentences - coverage.sentences_kept;
    for (kept, sentences) in [("true", coverage.sentences_kept), ("false", lost)] {
        counter!("savings_shadow_sentences_total", "tenant" => tenant.to_owned(), "kept" => kept)
            .increment(sentences);
    }
    for (outcome, answers) in [("attributed", coverage.answers), ("skipped", coverage.answers_skipped)] {
        counter!("savings_shadow_answers_total", "tenant" => tenant.to_owned(), "outcome" => outcome)
            .increment(answers);
    }
}

/// Metrics of the results of tools from which the model copied, by whether what it copied had been sent, and of tools that are turned off.
pub fn uses(tenant: &str, counted: &Counted) {
    for (kept, results) in [("true", counted.uses - counted.lost), ("false", counted.lost)] {
        counter!("savings_results_used_total", "tenant" => tenant.to_owned(), "kept" => kept)
            .increment(results);
    }
    counted.turned_off.iter().for_each(|loss| turned_off(tenant, loss));
}

/// Says that results of a tool are sent whole from now on.
fn turned_off(tenant: &str, loss: &Loss) {
    let Loss { tool, kind, uses, uses_lost, share_min, .. } = loss;
    counter!("savings_tools_off_total", "tenant" => tenant.to_owned()).increment(1);
    tracing::warn!(
        tenant,
        tool,
        kind,
        uses,
        uses_lost,
        share_min,
        "too much of what the model needed was left out: results of this tool and kind are sent whole from now on"
    );
}

/// Metrics of a request to the middleware: `compressed`, `uncompressed` or `shadow`, and tokens before and after.
pub fn middleware(outcome: &'static str, tokens: Option<(usize, usize)>) {
    counter!("middleware_requests_total", "outcome" => outcome).increment(1);
    if let Some((before, after)) = tokens {
        counter!("middleware_tokens_before_total").increment(before as u64);
        counter!("middleware_tokens_after_total").increment(after as u64);
    }
}

/// Metrics of a call of an MCP tool; `code` is `ok` or the code of its error.
pub fn tool(tool: &'static str, code: &'static str) {
    counter!("mcp_calls_total", "tool" => tool, "code" => code).increment(1);
}

pub fn kv_export(export: &KvAnswer) {
    let policy = match export.policy {
        KvPolicy::Chunks => "chunks",
        KvPolicy::Heads => "heads",
    };
    counter!("kv_exports_total", "policy" => policy).increment(1);
    let (recomputed, cached) = (export.recomputed as u64, (export.tokens - export.recomputed) as u64);
    counter!("kv_export_tokens_total", "kind" => "recomputed").increment(recomputed);
    counter!("kv_export_tokens_total", "kind" => "cached").increment(cached);
}

/// Metrics of a part of an export's file that is sent.
pub fn kv_export_part(bytes: usize) {
    counter!("kv_export_bytes_sent_total").increment(bytes as u64);
}

pub fn model(model: &ModelInfo) {
    gauge!("model_info", "model" => model.name.clone(), "device" => model.device.name.clone()).set(1.0);
}

/// Metrics of the stages that a request went through.
pub fn stages(timings: &Timings) {
    for (stage, time) in &timings.stages {
        histogram!("stage_seconds", "stage" => *stage).record(*time);
    }
    if is_slow(timings.total) {
        let ms = |(stage, time): &(&str, Duration)| format!("{stage} {:.1}", time.as_secs_f64() * 1e3);
        let stages: Vec<String> = timings.stages.iter().map(ms).collect();
        tracing::Span::current().record("stages", stages.join(", "));
    }
}

/// Counts a request in flight. If it is dropped before the request is answered, the client has gone, which is counted and logged, too.
struct RequestGuard {
    started: Instant,
    endpoint: String,
    span: tracing::Span,
    traced: ServerSpan,
    answered: bool,
}

impl RequestGuard {
    fn start(started: Instant, endpoint: String, span: tracing::Span, traced: ServerSpan) -> Self {
        gauge!("requests_in_flight").increment(1.0);
        Self { started, endpoint, span, traced, answered: false }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        gauge!("requests_in_flight").decrement(1.0);
        if !self.answered {
            let (code, endpoint) = ("client_gone", std::mem::take(&mut self.endpoint));
            counter!("requests_total", "endpoint" => endpoint, "code" => code).increment(1);
            let ms = self.started.elapsed().as_secs_f64() * 1e3;
            self.span.in_scope(|| tracing::info!(code, ms, "not answered"));
            self.traced.client_gone();
        }
    }
}
