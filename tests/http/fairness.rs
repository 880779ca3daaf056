//! What one tenant leaves to another: permits, places in the queue, streams, places on the way to upstream servers. And when those
//! that are refused are told to come back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thresher::http::Middleware;
use thresher::middleware::settings::{MiddlewareSettings, UpstreamSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::keys::{Keyed, entry};
use crate::wire::{self, Response, post};
use crate::{
    BODIES_BYTES_MAX, Gate, STREAM_COUNT_MAX, assert_good, check_error, daemon, double, good,
    registry_settings, scripted, until, with,
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

/// `Retry-After` of a refusal.
#[track_caller]
fn retry_after_s(refused: &Response) -> u64 {
    let said = refused.header("retry-after").unwrap_or_else(|| panic!("no Retry-After: {refused:?}"));
    said.parse().expect("whole seconds")
}

/// A stream whose answer never goes on, once the daemon has said whether it takes it: the connection, and the head of its answer.
async fn idle_stream(keyed: &Keyed, key: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(keyed.daemon.http).await.expect("the daemon listens");
    let first = format!("data: {}\n\n", json!({"chunks": ["The tide is at noon."]}));
    let head = format!(
        "POST /v1/attribute/stream HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/event-stream\r\nauthorization: Bearer thr_{key}\r\ncontent-length: 4000\r\n\r\n"
    );
    stream.write_all(format!("{head}{first}").as_bytes()).await.expect("the daemon reads");
    let mut said = Vec::new();
    while !said.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 1024];
        let read = stream.read(&mut piece).await.expect("an answer");
        assert!(read > 0, "the daemon hung up");
        said.extend(&piece[..read]);
    }
    (stream, String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_streams_of_one_tenant_leave_streams_to_another() {
    let keyed = Keyed::start(&two_tenants(), scripted(), &registry_settings()).await;
    let mut held = Vec::new();
    let refused = loop {
        let (stream, head) = idle_stream(&keyed, "b").await;
        if !head.starts_with("HTTP/1.1 200") {
            break head;
        }
        held.push(stream);
        assert!(held.len() <= STREAM_COUNT_MAX, "more than there are");
    };
    assert_eq!(held.len(), STREAM_COUNT_MAX / 2, "a tenant with rivals takes half");
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("retry-after: "), "{refused}");
    let whole = [json!({"chunks": ["The tide is at noon."]}), json!({"delta": "The tide is at noon."})];
    let body: String = whole.iter().map(|event| format!("data: {event}\n\n")).collect();
    let answer = keyed.ask("a", ("POST", "/v1/attribute/stream"), body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.body.contains("event: done"), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_tenant_keeps_no_other_out() {
    let (gate, model) = gated();
    // Four permits, four places in the queue.
    let keyed = Arc::new(Keyed::start(&two_tenants(), model, &registry_settings()).await);
    let ask = |key: &'static str, text: String| {
        let keyed = Arc::clone(&keyed);
        let body = with(json!({"chunks": ["The tide is at noon.", text]}));
        tokio::spawn(async move { keyed.post(key, "/v1/compress", &body).await })
    };
    let mut flood: Vec<_> = (0..2).map(|n| ask("b", n.to_string())).collect();
    let arrived = || gate.arrived.load(Ordering::SeqCst);
    until("two of b work", || arrived() == 2).await;
    let waiting = || keyed.daemon.service.admission.waiting();
    for n in 0..2 {
        flood.push(ask("b", format!("waiting {n}")));
        until("b waits, though permits are free: they are kept for others", || waiting() == n + 1).await;
    }
    let refused = ask("b", "one too many".to_owned()).await.expect("no panic");
    check_error("b's share of the queue is full", &refused, "429 overloaded -", "admission.queue_max");
    assert!(retry_after_s(&refused) >= 1);
    let other = ask("a", "of a".to_owned());
    until("a works at once", || arrived() == 3).await;
    assert_eq!(waiting(), 2, "b still waits");
    gate.open.store(true, Ordering::SeqCst);
    assert_good("a", &other.await.expect("no panic"));
    for one in flood {
        assert_good("b", &one.await.expect("no panic"));
    }
    assert_eq!(waiting(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_nobody_shares_with_takes_all() {
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
    until("all permits are taken", || gate.arrived.load(Ordering::SeqCst) == 4).await;
    gate.open.store(true, Ordering::SeqCst);
    for one in all {
        assert_good("b", &one.await.expect("no panic"));
    }
}

#[test]
fn places_on_the_way_to_upstream_servers_are_shared() {
    let upstream = UpstreamSettings { url: "http://127.0.0.1:1".to_owned(), ..UpstreamSettings::default() };
    let settings = MiddlewareSettings {
        upstreams: vec![upstream],
        request_count_max: 4,
        ..MiddlewareSettings::default()
    };
    let middleware = Middleware::new(&settings).expect("an upstream");
    let [a, b] = ["a", "b"].map(|name| thresher_core::domain::Tenant::new(name).expect("a name"));
    let place = |tenant| middleware.place(thresher::admission::Claim { tenant, has_rivals: true });
    let held = [place(&b).expect("the first"), place(&b).expect("the second")];
    assert!(place(&b).is_err(), "the rest is left to others");
    place(&a).expect("one of the rest");
    drop(held);
    place(&b).expect("it came back");
}

/// With one permit and a request that holds it, the estimate for a request that comes too late is the time for which that one has held
/// it, once for each that waits in front, and once more.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_to_come_back_grows_with_the_queue() {
    let (gate, model) = gated();
    let daemon = daemon(Some(model), 1, 8).await;
    let ask = |body: Value| {
        let address = daemon.http;
        tokio::spawn(async move { post(address, "/v1/compress", body.to_string()).await })
    };
    let before = Instant::now();
    let working = ask(good());
    until("one is at work", || gate.arrived.load(Ordering::SeqCst) == 1).await;
    let held = Instant::now();
    let late = async || {
        let response = ask(with(json!({"deadline_ms": 1}))).await.expect("no panic");
        check_error("late", &response, "504 deadline_exceeded -", "deadline");
        retry_after_s(&response)
    };
    // Held for more than a second.
    let alone = loop {
        let said = late().await;
        assert!(said <= before.elapsed().as_secs() + 1, "nobody waits in front: {said} s");
        if said > 1 {
            break said;
        }
    };
    let waiting: Vec<_> = (0..6).map(|_| ask(good())).collect();
    until("six wait", || daemon.service.admission.waiting() == 6).await;
    let least = held.elapsed();
    let behind = late().await;
    assert!(behind >= (7 * least.as_secs()).min(60), "seven in front of it: {behind} s, {alone} s before");
    assert!(behind > alone || alone == 60, "{behind} s, {alone} s before");
    gate.open.store(true, Ordering::SeqCst);
    for one in waiting.into_iter().chain([working]) {
        assert_good("in the end", &one.await.expect("no panic"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_deadline_passes_while_it_works_is_told_when_to_come_back() {
    let (_gate, model) = gated();
    let daemon = daemon(Some(model), 1, 0).await;
    let response = post(daemon.http, "/v1/compress", with(json!({"deadline_ms": 50})).to_string()).await;
    check_error("late", &response, "504 deadline_exceeded -", "deadline");
    assert!((1..=60).contains(&retry_after_s(&response)));
}

/// A client that repeats refused requests at once is slowed down; one that obeys is not.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_a_tenant_are_spaced_when_it_repeats_them_at_once() {
    let (gate, model) = gated();
    let keyed = Arc::new(Keyed::start(&two_tenants(), model, &registry_settings()).await);
    let ask = |text: String| {
        let keyed = Arc::clone(&keyed);
        let body = with(json!({"chunks": ["The tide is at noon.", text]}));
        tokio::spawn(async move { keyed.post("b", "/v1/compress", &body).await })
    };
    let held: Vec<_> = (0..4).map(|n| ask(n.to_string())).collect();
    until("b's share is full", || {
        gate.arrived.load(Ordering::SeqCst) == 2 && keyed.daemon.service.admission.waiting() == 2
    })
    .await;
    let started = Instant::now();
    for n in 0..30 {
        let refused = ask(format!("again {n}")).await.expect("no panic");
        check_error("b", &refused, "429 overloaded -", "admission.queue_max");
    }
    // Twenty at once, ten after pauses: this bound only grows on a busy machine.
    assert!(started.elapsed() >= Duration::from_millis(400), "{:?}", started.elapsed());
    gate.open.store(true, Ordering::SeqCst);
    for one in held {
        let answer: wire::Response = one.await.expect("no panic");
        assert_good("b", &answer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_one_tenant_leave_memory_to_another() {
    let keyed = Keyed::start(&two_tenants(), scripted(), &registry_settings()).await;
    let pool = keyed.daemon.service.bodies().clone();
    let mut held = Vec::new();
    // Bodies that stop before their last byte, twice as many as there is memory for.
    for _ in 0..BODIES_BYTES_MAX / (64 * 1024) {
        let mut stream = TcpStream::connect(keyed.daemon.http).await.expect("the daemon listens");
        let head = "POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: Bearer thr_a\r\ncontent-length: 100\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.expect("the daemon reads");
        held.push(stream);
    }
    until("one tenant holds what it may", || pool.held() >= BODIES_BYTES_MAX / 2).await;
    assert_good("the other", &keyed.post("b", "/v1/compress", &good()).await);
    assert_eq!(pool.held(), BODIES_BYTES_MAX / 2, "no more than half");
}
