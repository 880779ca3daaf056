//! Fairness between tenants: each leaves permits, places in the queue, requests to upstreams and
//! memory to the others. And the time after which a refused request should be repeated.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thresher::http::Middleware;
use thresher::middleware::settings::{MiddlewareLimits, MiddlewareSettings, UpstreamSettings};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::keys::{Keyed, entry};
use crate::support::wait::eventually;
use crate::support::wire::{self, Response, post};
use crate::{
    BODIES_BYTES_MAX, Gate, assert_good, check_error, daemon, double, good, registry_settings, scripted, with,
};

fn two_tenants() -> String {
    entry("a", "tenant = \"a\"") + &entry("b", "tenant = \"b\"")
}

fn gated() -> (Arc<Gate>, Arc<dyn thresher_core::model::ModelRuntime>) {
    let gate = Arc::new(Gate::default());
    let model = double({
        let gate = Arc::clone(&gate);
        move |go_on| gate.pass(go_on)
    });
    (gate, model)
}

#[track_caller]
fn retry_after_s(refused: &Response) -> u64 {
    let value = refused.header("retry-after").unwrap_or_else(|| panic!("no Retry-After: {refused:?}"));
    value.parse().expect("whole seconds")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_requests_of_one_tenant_does_not_delay_another() {
    let (gate, model) = gated();
    // There are four permits and four places in the queue.
    let keyed = Arc::new(Keyed::start(&two_tenants(), model, &registry_settings()).await);
    let ask = |key: &'static str, text: String| {
        let keyed = Arc::clone(&keyed);
        let body = with(json!({"chunks": ["The tide is at noon.", text]}));
        tokio::spawn(async move { keyed.post(key, "/v1/compress", &body).await })
    };
    let mut flood: Vec<_> = (0..2).map(|n| ask("b", n.to_string())).collect();
    let arrived = || gate.arrived.load(Ordering::SeqCst);
    eventually("two requests of b work", async || arrived() == 2).await;
    let waiting = || keyed.daemon.service.admission.waiting();
    for n in 0..2 {
        flood.push(ask("b", format!("waiting {n}")));
        eventually(
            "a request of b waits although permits are free, since those are kept for other tenants",
            async || waiting() == n + 1,
        )
        .await;
    }
    let refused = ask("b", "one too many".to_owned()).await.expect("no panic");
    check_error(
        "b's share of the queue is full",
        &refused,
        "429 overloaded -",
        "too many requests are waiting",
    );
    assert!(retry_after_s(&refused) >= 1);
    let other = ask("a", "of a".to_owned());
    eventually("the request of a works at once", async || arrived() == 3).await;
    assert_eq!(waiting(), 2, "requests of b still wait");
    gate.open.store(true, Ordering::SeqCst);
    assert_good("a", &other.await.expect("no panic"));
    for one in flood {
        assert_good("b", &one.await.expect("no panic"));
    }
    assert_eq!(waiting(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_without_rivals_may_use_all_permits() {
    let (gate, model) = gated();
    let keys = entry("b", "tenant = \"b\"") + &entry("gone", "tenant = \"a\"\nrevoked = true");
    let keyed = Arc::new(Keyed::start(&keys, model, &registry_settings()).await);
    let all: Vec<_> = (0..4)
        .map(|n| {
            let keyed = Arc::clone(&keyed);
            let body = with(json!({"chunks": ["The tide is at noon.", n.to_string()]}));
            tokio::spawn(async move { keyed.post("b", "/v1/compress", &body).await })
        })
        .collect();
    eventually("all permits are taken", async || gate.arrived.load(Ordering::SeqCst) == 4).await;
    gate.open.store(true, Ordering::SeqCst);
    for one in all {
        assert_good("b", &one.await.expect("no panic"));
    }
}

#[test]
fn the_limit_of_requests_to_upstreams_is_shared_between_tenants() {
    let upstream = UpstreamSettings { url: "http://127.0.0.1:1".to_owned(), ..UpstreamSettings::default() };
    let settings = MiddlewareSettings { upstreams: vec![upstream], ..MiddlewareSettings::default() };
    let limits = MiddlewareLimits { request_count_max: 4, ..MiddlewareLimits::default() };
    let middleware = Middleware::new(&settings, limits).expect("an upstream");
    let [a, b] = ["a", "b"].map(|name| thresher_core::domain::Tenant::new(name).expect("a name"));
    let place = |tenant| middleware.request_slot(thresher::admission::Sharer { tenant, has_rivals: true });
    let held = [place(&b).expect("the first place"), place(&b).expect("the second place")];
    assert!(place(&b).is_err(), "the other places are kept for other tenants");
    place(&a).expect("a place for another tenant");
    drop(held);
    place(&b).expect("a place that was given back");
}

/// With one permit, the time to retry is estimated as the time for which the present request has held the
/// permit, times the requests that wait in front, plus once more.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_to_retry_grows_with_the_queue() {
    let (gate, model) = gated();
    let daemon = daemon(Some(model), 1, 8).await;
    let ask = |body: Value| {
        let address = daemon.http;
        tokio::spawn(async move { post(address, "/v1/compress", body.to_string()).await })
    };
    let before = Instant::now();
    let working = ask(good());
    eventually("one request works", async || gate.arrived.load(Ordering::SeqCst) == 1).await;
    let held = Instant::now();
    let late = async || {
        let response = ask(with(json!({"deadline_ms": 1}))).await.expect("no panic");
        check_error("late", &response, "504 deadline_exceeded -", "deadline");
        retry_after_s(&response)
    };
    // Until the permit has been held for more than a second.
    let alone = loop {
        let seconds = late().await;
        assert!(seconds <= before.elapsed().as_secs() + 1, "no request waits in front: {seconds} s");
        if seconds > 1 {
            break seconds;
        }
    };
    let waiting: Vec<_> = (0..6).map(|_| ask(good())).collect();
    eventually("six requests wait", async || daemon.service.admission.waiting() == 6).await;
    let least = held.elapsed();
    let behind = late().await;
    assert!(
        behind >= (7 * least.as_secs()).min(60),
        "seven requests are in front: {behind} s, {alone} s before"
    );
    assert!(behind > alone || alone == 60, "{behind} s, {alone} s before");
    gate.open.store(true, Ordering::SeqCst);
    for one in waiting.into_iter().chain([working]) {
        assert_good("a request that waited", &one.await.expect("no panic"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_deadline_passes_while_it_works_gets_a_time_to_retry() {
    let (_gate, model) = gated();
    let daemon = daemon(Some(model), 1, 0).await;
    let response = post(daemon.http, "/v1/compress", with(json!({"deadline_ms": 50})).to_string()).await;
    check_error("late", &response, "504 deadline_exceeded -", "deadline");
    assert!((1..=60).contains(&retry_after_s(&response)));
}

/// The daemon delays refusals to a client that repeats refused requests at once.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_delayed_for_a_tenant_that_repeats_requests_at_once() {
    let (gate, model) = gated();
    let keyed = Arc::new(Keyed::start(&two_tenants(), model, &registry_settings()).await);
    let ask = |text: String| {
        let keyed = Arc::clone(&keyed);
        let body = with(json!({"chunks": ["The tide is at noon.", text]}));
        tokio::spawn(async move { keyed.post("b", "/v1/compress", &body).await })
    };
    let held: Vec<_> = (0..4).map(|n| ask(n.to_string())).collect();
    eventually("b's share is full", async || {
        gate.arrived.load(Ordering::SeqCst) == 2 && keyed.daemon.service.admission.waiting() == 2
    })
    .await;
    let started = Instant::now();
    for n in 0..30 {
        let refused = ask(format!("again {n}")).await.expect("no panic");
        check_error("b", &refused, "429 overloaded -", "too many requests are waiting");
    }
    // Twenty refusals come at once and ten after a delay. A busy machine can only make this take longer.
    assert!(started.elapsed() >= Duration::from_millis(400), "{:?}", started.elapsed());
    gate.open.store(true, Ordering::SeqCst);
    for one in held {
        let answer: wire::Response = one.await.expect("no panic");
        assert_good("b", &answer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_one_tenant_leave_memory_for_another() {
    let keyed = Keyed::start(&two_tenants(), scripted(), &registry_settings()).await;
    let pool = keyed.daemon.service.bodies.clone();
    let mut held = Vec::new();
    // Bodies that never end, twice as many as there is memory for.
    for _ in 0..BODIES_BYTES_MAX / (64 * 1024) {
        let mut stream = TcpStream::connect(keyed.daemon.http).await.expect("the daemon listens");
        let head = "POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: Bearer thr_a\r\ncontent-length: 100\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.expect("the daemon reads");
        held.push(stream);
    }
    eventually("the first tenant holds all memory that it may have", async || {
        pool.held() >= BODIES_BYTES_MAX / 2
    })
    .await;
    assert_good("the other tenant", &keyed.post("b", "/v1/compress", &good()).await);
    assert_eq!(pool.held(), BODIES_BYTES_MAX / 2, "the first tenant holds more than half");
}
