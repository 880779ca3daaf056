//! What the middleware saves: `GET /v1/savings`, its metrics, and shadow mode.
//! `tests/daemon/savings.rs` runs the real binary with the real model.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use thresher::access::{Access, AccessSettings};
use thresher::http::Middleware;
use thresher::middleware::settings::MiddlewareSettings;
use thresher::savings::settings::{Price, SavingsSettings};
use thresher_core::kv::store::KvStore;
use tokio::net::TcpListener;

use crate::keys::entry;
use crate::middleware::{asked_settings, limits, settings};
use crate::support::wait::eventually;
use crate::support::wire::{Response, ask_with, get};
use crate::{Daemon, SECRET, TENANT_COUNT_MAX, check_error, pipeline_of, registry_settings, scripted, serve};

const DOCUMENT: &str =
    "Water is wet. The tide is at noon. The moon is far. Ships are slow. Gulls are loud. Ropes are long.";
const CHAT: &str = "/v1/chat/completions";

/// Status, content type and body of an answer.
type Answer = (u16, &'static str, String);

/// An upstream that answers with what `answer` makes of the request.
#[derive(Clone)]
struct Upstream {
    answer: Arc<dyn Fn(&str) -> Answer + Send + Sync>,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    fn new(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), bodies: Arc::default() }
    }

    fn json(answer: Value) -> Self {
        Self::new(move |_| (200, "application/json", answer.to_string()))
    }

    async fn listen(&self) -> SocketAddr {
        let upstream = self.clone();
        let handle = async move |request: Request| {
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let body = String::from_utf8(body.to_vec()).expect("UTF-8");
            let (status, kind, answer) = (upstream.answer)(&body);
            upstream.bodies.lock().expect("no panic").push(body);
            (StatusCode::from_u16(status).expect("a status"), [(header::CONTENT_TYPE, kind)], answer)
                .into_response()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(axum::serve(listener, Router::new().fallback(handle)).into_future());
        address
    }

    fn last_body(&self) -> String {
        self.bodies.lock().expect("no panic").last().expect("a request").clone()
    }
}

fn usage(prompt: u64, cached: u64, output: u64) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": cached}})
}

fn answer(usage: &Value) -> Value {
    let message = json!({"role": "assistant", "content": "The tide is at noon."});
    json!({"choices": [{"index": 0, "message": message}], "usage": usage})
}

fn prices() -> SavingsSettings {
    let price = Price {
        model: "m-*".to_owned(),
        currency: "USD".to_owned(),
        input: 2.0,
        cached_read: 0.2,
        cached_write: 2.5,
        output: 8.0,
    };
    SavingsSettings { prices: vec![price] }
}

async fn in_front_of(upstream: &Upstream, savings: SavingsSettings) -> Daemon {
    let url = format!("http://{}", upstream.listen().await);
    with(&settings(url), savings, Access::open_to_all()).await
}

async fn with(middleware: &MiddlewareSettings, savings: SavingsSettings, access: Access) -> Daemon {
    let pipeline = pipeline_of(scripted(), KvStore::without_tiers());
    let made = crate::service_that_counts(Some(pipeline), (4, 64), &registry_settings(), (access, savings));
    let (mut service, tenants) = made;
    service.middleware = Arc::new(Middleware::new(middleware, limits()).expect("an upstream"));
    serve((service, tenants)).await
}

fn asked(model: &str, more: &str) -> Value {
    let content = format!("<context>{DOCUMENT} {more}</context> When is the tide?");
    json!({"model": model, "messages": [{"role": "user", "content": content}]})
}

async fn send(daemon: &Daemon, headers: &[&str], body: &Value) -> Response {
    let headers = [&["content-type: application/json"], headers].concat();
    ask_with(daemon.http, ("POST", CHAT), &headers, body.to_string()).await
}

/// The savings once `count` requests have been counted, which is after their answers have been sent.
async fn savings_after(daemon: &Daemon, count: u64) -> Value {
    let requests = |savings: &Value| {
        let of = |totals: &Value| totals["requests"].as_u64().unwrap_or(0);
        of(&savings["totals"]) + of(&savings["shadow"]["totals"])
    };
    eventually("the requests are counted", async || {
        requests(&get(daemon.http, "/v1/savings").await.json()) >= count
    })
    .await;
    let savings = get(daemon.http, "/v1/savings").await.json();
    assert_eq!(requests(&savings), count, "{savings}");
    savings
}

fn number(response: &Response, header: &str) -> u64 {
    response.header(header).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{header}"))
}

#[track_caller]
fn assert_close(found: &Value, expect: f64) {
    let found = found.as_f64().expect("a number");
    assert!((found - expect).abs() < 1e-9, "{found} is not {expect}");
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_tokens_are_priced_as_they_would_have_been_billed() {
    // The text that is left out stands in the middle of the prompt.
    for (cached, kind, price) in [(0, "input", 2.0), (900, "cached_read", 0.2)] {
        let upstream = Upstream::json(answer(&usage(1_000, cached, 50)));
        let daemon = in_front_of(&upstream, prices()).await;
        let response = send(&daemon, &[], &asked("m-1", "")).await;
        let (before, after) =
            (number(&response, "x-thresher-tokens-before"), number(&response, "x-thresher-tokens-after"));
        assert!(after < before);
        let savings = savings_after(&daemon, 1).await;
        let row = &savings["models"][0];
        assert_eq!((&row["model"], &row["route"]), (&json!("m-1"), &json!(CHAT)));
        assert_eq!((&row["tokens_before"], &row["tokens_after"]), (&json!(before), &json!(after)));
        assert_eq!(row["saved_as"][kind], before - after, "{row}");
        assert_eq!(
            row["billed"],
            json!({"input": 1_000 - cached, "cached_read": cached, "cached_write": 0, "output": 50})
        );
        let saved = (before - after) as f64 * price / 1e6;
        let billed = ((1_000 - cached) as f64 * 2.0 + cached as f64 * 0.2 + 50.0 * 8.0) / 1e6;
        for money in [&row["money"], &savings["totals"]["money"][0]] {
            assert_eq!(money["currency"], "USD");
            assert_close(&money["saved"], saved);
            assert_close(&money["billed"], billed);
            assert_close(&money["share"], saved / (saved + billed));
        }
        assert_eq!(savings["shadow"], Value::Null);
        assert!(savings["since_unix_s"].as_u64().is_some_and(|since| since > 1_600_000_000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_price_or_a_usage_there_are_tokens_only() {
    let upstream = Upstream::new(|body| {
        let no_usage = body.contains("m-silent");
        let usage = if no_usage { Value::Null } else { usage(1_000, 0, 50) };
        (200, "application/json", answer(&usage).to_string())
    });
    let daemon = in_front_of(&upstream, SavingsSettings::default()).await;
    send(&daemon, &[], &asked("m-1", "")).await;
    let savings = savings_after(&daemon, 1).await;
    let row = &savings["models"][0];
    assert_eq!(row["money"], Value::Null);
    assert!(row["money_missing"].as_str().is_some_and(|why| why.contains("savings.prices")), "{row}");
    assert_eq!(row["tokens_unpriced"], row["saved_as"]["input"]);
    assert_eq!(savings["totals"]["money"], json!([]));
    let daemon = in_front_of(&upstream, prices()).await;
    send(&daemon, &[], &asked("m-silent", "")).await;
    let savings = savings_after(&daemon, 1).await;
    let row = &savings["models"][0];
    assert_eq!((&row["requests_without_usage"], &row["money"]["saved"]), (&json!(1), &json!(0.0)), "{row}");
    assert_eq!(row["saved_as"]["unknown"], row["tokens_unpriced"]);
    assert!(row["tokens_unpriced"].as_u64().is_some_and(|tokens| tokens > 0), "{row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_of_streams_are_read_and_errors_are_not_counted() {
    let upstream = Upstream::new(|body| {
        if body.contains("m-fail") {
            (429, "application/json", answer(&usage(1_000, 0, 50)).to_string())
        } else {
            let delta = json!({"choices": [{"index": 0, "delta": {"content": "The tide is at noon."}, "finish_reason": null}]});
            let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
            let counts = json!({"choices": [], "usage": usage(700, 0, 9)});
            let events = [delta, end, counts].map(|event| format!("data: {event}\n\n")).concat();
            (200, "text/event-stream", format!("{events}data: [DONE]\n\n"))
        }
    });
    let daemon = in_front_of(&upstream, prices()).await;
    assert_eq!(send(&daemon, &[], &asked("m-fail", "")).await.status, 429);
    for cites in ["x-thresher-cite: true", "x-thresher-cite: false"] {
        let response = send(&daemon, &[cites], &asked("m-1", "")).await;
        assert_eq!(response.header("x-thresher"), Some("compressed"));
    }
    let savings = savings_after(&daemon, 2).await;
    assert_eq!(savings["totals"]["billed"]["input"], 1_400, "{savings}");
    assert_eq!(savings["totals"]["billed"]["output"], 18);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_requests_that_were_to_be_compressed_are_counted() {
    let upstream = Upstream::json(answer(&usage(1_000, 0, 50)));
    let url = format!("http://{}", upstream.listen().await);
    let asks = asked_settings(url);
    let daemon = with(&asks, prices(), Access::open_to_all()).await;
    send(&daemon, &[], &asked("m-1", "")).await;
    send(&daemon, &["x-thresher-compress: true"], &asked("m-1", "")).await;
    // A request with nothing to compress is counted, and saves nothing.
    let nothing = json!({"model": "m-1", "messages": [{"role": "user", "content": "Hello"}]});
    send(&daemon, &["x-thresher-compress: true"], &nothing).await;
    let savings = savings_after(&daemon, 2).await;
    assert_eq!(savings["totals"]["requests_shortened"], 1, "{savings}");
    let check = async |path: &str, expect: &str| {
        check_error(path, &get(daemon.http, path).await, expect, "");
    };
    check("/v1/savings?tenant=b", "400 wrong_type tenant").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_sees_its_own_savings_and_the_operator_sees_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys_file = folder.path().join("keys.toml");
    let keys = entry("a", "tenant = \"a\"") + &entry("b", "tenant = \"b\"");
    std::fs::write(&keys_file, keys).expect("written");
    let (access, _) = Access::open_within(&AccessSettings { keys_file }, TENANT_COUNT_MAX).expect("keys");
    let upstream = Upstream::json(answer(&usage(1_000, 0, 50)));
    let url = format!("http://{}", upstream.listen().await);
    let daemon = with(&settings(url), prices(), access).await;
    let key = |name: &str| format!("x-thresher-key: thr_{name}");
    let of = async |name: &str| ask_with(daemon.http, ("GET", "/v1/savings"), &[&key(name)], "").await.json();
    for _ in 0..2 {
        assert_eq!(send(&daemon, &[&key("a")], &asked("m-1", "")).await.status, 200);
    }
    // The name of a model is not in a label: only what the settings name.
    assert_eq!(send(&daemon, &[&key("b")], &asked(&format!("m-{SECRET}"), "")).await.status, 200);
    eventually("a and b are counted", async || {
        of("a").await["totals"]["requests"] == 2 && of("b").await["totals"]["requests"] == 1
    })
    .await;
    assert_eq!(of("a").await["models"].as_array().map(Vec::len), Some(1));
    assert!(!of("a").await.to_string().contains(SECRET));
    let all = get(daemon.admin, "/v1/savings").await.json();
    let found: Vec<(&str, u64)> = all["tenants"]
        .as_array()
        .expect("tenants")
        .iter()
        .map(|one| {
            (one["tenant"].as_str().expect("a name"), one["totals"]["requests"].as_u64().expect("a count"))
        })
        .collect();
    assert!(found.contains(&("a", 2)) && found.contains(&("b", 1)), "{found:?}");
    let metrics = get(daemon.admin, "/metrics").await.body;
    let labels = format!("{{tenant=\"a\",model=\"m-*\",route=\"{CHAT}\",outcome=\"compressed\"");
    assert!(metrics.contains(&format!("savings_requests_total{labels}}} 2")), "{metrics}");
    for name in ["savings_tokens_saved_total", "savings_saved_micros_total", "savings_tokens_billed_total"] {
        assert!(metrics.contains(&format!("{name}{labels}")), "{name}");
    }
    assert!(!metrics.contains(SECRET));
}

#[tokio::test(flavor = "multi_thread")]
async fn shadow_mode_changes_nothing_and_says_what_would_have_been_kept() {
    let upstream = Upstream::new(|body| {
        let about_ropes = body.contains("Gulls again");
        let text = if about_ropes { "Gulls are loud." } else { "The tide is at noon." };
        let message = json!({"role": "assistant", "content": text});
        let answer = json!({"choices": [{"index": 0, "message": message}], "usage": usage(1_000, 900, 50)});
        (200, "application/json", answer.to_string())
    });
    let url = format!("http://{}", upstream.listen().await);
    let mut shadow = settings(url.clone());
    shadow.upstreams[0].shadow = true;
    let daemon = with(&shadow, prices(), Access::open_to_all()).await;
    let mut body = asked("m-1", "");
    let first = send(&daemon, &[], &body).await;
    assert_eq!(
        (first.status, first.header("x-thresher"), first.header("x-thresher-reason")),
        (200, Some("shadow"), None)
    );
    assert_eq!(upstream.last_body(), body.to_string());
    assert!(!first.body.contains("annotations"), "{}", first.body);
    let tokens = |response: &Response| {
        (number(response, "x-thresher-tokens-before"), number(response, "x-thresher-tokens-after"))
    };
    assert!(tokens(&first).1 < tokens(&first).0);
    // In the second turn, the first one would have been sent again as it was compressed.
    let messages = body["messages"].as_array_mut().expect("messages");
    messages.push(json!({"role": "assistant", "content": "The tide is at noon."}));
    messages.push(json!({"role": "user", "content": "Gulls again?"}));
    let second = send(&daemon, &[], &body).await;
    assert_eq!(upstream.last_body(), body.to_string());
    assert_eq!(tokens(&second), tokens(&first));
    let savings = savings_after(&daemon, 2).await;
    assert_eq!((&savings["totals"]["requests"], &savings["models"]), (&json!(0), &json!([])));
    let totals = &savings["shadow"]["totals"];
    let saved = 2 * (tokens(&first).0 - tokens(&first).1);
    assert_eq!(
        (&totals["requests_shortened"], &totals["saved_as"]["cached_read"]),
        (&json!(2), &json!(saved))
    );
    assert_close(&totals["money"][0]["saved"], saved as f64 * 0.2 / 1e6);
    // The first answer's source would have been kept, the second one's not.
    let coverage = async || get(daemon.http, "/v1/savings").await.json()["shadow"]["coverage"].clone();
    eventually("both answers are attributed", async || coverage().await["answers"] == 2).await;
    let found = coverage().await;
    assert_eq!((&found["sentences"], &found["sentences_kept"]), (&json!(2), &json!(1)), "{found}");
    assert_close(&found["sentences_kept_share"], 0.5);
    let metrics = get(daemon.admin, "/metrics").await.body;
    assert!(metrics.contains("savings_shadow_sentences_total{tenant=\"\",kept=\"false\"} "), "{metrics}");
    // A request can leave shadow mode and enter it.
    let response = send(&daemon, &["x-thresher-shadow: false"], &asked("m-1", "A")).await;
    assert_eq!(response.header("x-thresher"), Some("compressed"));
    let daemon = with(&settings(url), prices(), Access::open_to_all()).await;
    let mut body = asked("m-1", "B");
    body["thresher"] = json!({"shadow": true});
    let response = send(&daemon, &["x-thresher-shadow: false"], &body).await;
    assert_eq!(response.header("x-thresher"), Some("shadow"), "the body takes precedence");
    assert_eq!(upstream.last_body(), asked("m-1", "B").to_string());
    let maybe = send(&daemon, &["x-thresher-shadow: maybe"], &body).await;
    assert_eq!((maybe.status, &maybe.json()["error"]["param"]), (422, &json!("x-thresher-shadow")));
}

/// A step of an agent: a call of a tool and its result.
fn step(id: &str, tool: &str, arguments: Value, result: &str) -> [Value; 2] {
    let function = json!({"name": tool, "arguments": arguments.to_string()});
    let call = json!({"id": id, "type": "function", "function": function});
    [
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": id, "content": result}),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_later_step_copies_was_needed() {
    let upstream = Upstream::json(answer(&usage(1_000, 0, 50)));
    let url = format!("http://{}", upstream.listen().await);
    // Everything that is lost is too much.
    let settings = MiddlewareSettings { tools: vec!["*".to_owned()], loss_max: 0.0, ..settings(url) };
    let daemon = with(&settings, prices(), Access::open_to_all()).await;
    // What is sent of a page is seen at another daemon.
    let live = with(&settings, prices(), Access::open_to_all()).await;
    let code = |page: u32, gate: u32| format!("code-{page}{gate}");
    let page = |page: u32| {
        let gates: Vec<String> =
            (1..9).map(|gate| format!("Gate {gate} has {}.", code(page, gate))).collect();
        format!("Water is wet. The tide is at noon. {} Ropes are long.", gates.join(" "))
    };
    let mut messages = vec![json!({"role": "user", "content": "When is the tide?"})];
    let body = |messages: &[Value]| json!({"model": "m-1", "messages": messages});
    let shadow = ["x-thresher-shadow: true"];
    let losses = async || get(daemon.http, "/v1/savings").await.json()["losses"].clone();
    for at in 70..80 {
        messages.extend(step(&format!("a{at}"), "browse", json!({"page": at}), &page(at)));
        send(&live, &[], &body(&messages)).await;
        let sent = upstream.last_body();
        let lost = (1..9).map(|gate| code(at, gate)).find(|code| !sent.contains(code));
        send(&daemon, &shadow, &body(&messages)).await;
        let with = lost.expect("the page became shorter");
        messages.extend(step(&format!("b{at}"), "open", json!({"with": with}), "It is open."));
        // A request that is sent again counts once.
        for _ in 0..2 {
            send(&daemon, &shadow, &body(&messages)).await;
        }
        let found = losses().await;
        assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
        let uses = at - 69;
        let expect = json!({"tool": "browse", "kind": "prose", "uses": uses, "uses_lost": uses, "pieces": uses,
            "pieces_lost": uses, "is_off": uses == 10});
        for (field, value) in expect.as_object().expect("an object") {
            assert_eq!(&found[0][field], value, "{field}: {found}");
        }
    }
    let metrics = get(daemon.admin, "/metrics").await.body;
    for line in [
        "savings_results_used_total{tenant=\"\",kept=\"false\"} 10",
        "savings_tools_off_total{tenant=\"\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // From now on, such results are sent whole.
    messages.extend(step("c", "browse", json!({"page": "more"}), &page(99)));
    let last = send(&daemon, &[], &body(&messages)).await;
    assert_eq!(last.header("x-thresher-reason"), Some("nothing_shortened"));
    assert!(upstream.last_body().contains(&page(99)), "{}", upstream.last_body());
    // A budget changes nothing.
    let mut half = body(&messages);
    half["thresher"] = json!({"budget": {"ratio": 0.5}});
    send(&daemon, &[], &half).await;
    assert!(upstream.last_body().contains(&page(99)), "{}", upstream.last_body());
}

#[tokio::test(flavor = "multi_thread")]
async fn shadow_mode_of_an_upstream_and_chunks_of_a_request() {
    let upstream = Upstream::json(answer(&usage(1_000, 0, 50)));
    let url = format!("http://{}", upstream.listen().await);
    let mut middleware = settings(url);
    middleware.upstreams[0].shadow = true;
    let daemon = with(&middleware, prices(), Access::open_to_all()).await;
    let question = json!({"role": "user", "content": "When is the tide?"});
    let body = json!({"model": "m-1", "messages": [question], "thresher": {"chunks": [DOCUMENT, "Ropes are short."]}});
    let response = send(&daemon, &[], &body).await;
    assert_eq!(response.header("x-thresher"), Some("shadow"));
    let sent = upstream.last_body();
    assert!(
        sent.contains(DOCUMENT) && sent.contains("Ropes are short.") && !sent.contains("thresher"),
        "{sent}"
    );
    let savings = savings_after(&daemon, 1).await;
    assert!(
        savings["shadow"]["totals"]["saved_as"]["input"].as_u64().is_some_and(|tokens| tokens > 0),
        "{savings}"
    );
    // While the model is being loaded, the request goes on, and the header says why nothing was computed.
    let (service, tenants) = crate::service(None, 1, 1, &registry_settings());
    let mut service = service;
    service.middleware = Arc::new(Middleware::new(&middleware, limits()).expect("an upstream"));
    let loading = serve((service, tenants)).await;
    let response = send(&loading, &[], &asked("m-1", "")).await;
    assert_eq!((response.status, response.header("x-thresher-reason")), (200, Some("not_ready")));
}
