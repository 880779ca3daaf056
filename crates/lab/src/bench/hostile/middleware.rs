//! Rows about the middleware: upstreams that do not end, secrets that go where they should not.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Finding;
use super::daemon::Setup;
use super::memory::grown;
use super::upstream::{Script, Upstream};
use super::wire::{self, Ask};

/// Above what is resident at the start, a daemon is killed.
const KILL_MB: f64 = 2_000.0;

/// How long an endless answer is read.
const READING: Duration = Duration::from_secs(10);

/// Within the last of these seconds something has to arrive.
const LAST: Duration = Duration::from_secs(2);

/// What an endless answer may add to resident memory, beside one body that the middleware may hold, in MB.
const ENDLESS_MB: f64 = 100.0;

/// What it may add from its middle to its end, in MB: memory that grows with an endless answer has no bound.
const GROWTH_MB: f64 = 20.0;

const CHAT: &str = "/v1/chat/completions";

/// Row `endless-upstream`.
pub async fn endless_upstream(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let body_mb = setup.number("/middleware/body_bytes_max").unwrap_or_default() as f64 / 1e6;
    let scripts = [
        ("sentences", Script::Sentences, true),
        ("one sentence", Script::OneSentence, true),
        // A line that is longer than any event may be ended.
        ("one line", Script::OneLine, false),
    ];
    let mut findings = Vec::new();
    for (name, script, goes_on) in scripts {
        let upstream = Upstream::start(script).await?;
        let mut sandbox = setup.sandbox()?;
        sandbox.set("middleware.upstreams", upstream.setting());
        let daemon = sandbox.start().await?;
        let before = daemon.resident()?.now_mb;
        let guard = daemon.guard(before + KILL_MB);
        let body = json!({
            "model": "m",
            "stream": true,
            "messages": [{"role": "user", "content": "When is the tide?"}],
            "thresher": {"chunks": ["The tide is at noon. Ships are slow. Gulls are loud."]},
        })
        .to_string();
        let request = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            daemon.http(),
            body.len()
        );
        let mut stream = wire::sent(daemon.http(), request.as_bytes()).await?;
        let first = read_for(&mut stream, READING / 2).await;
        let middle = daemon.resident();
        let read = read_for(&mut stream, READING / 2).await;
        let end = daemon.resident();
        let guarded = guard.finish();
        let bytes = format!("{:.1} MB arrived, {:.3} of them at the end", first.mb + read.mb, read.last_mb);
        let what = format!("{name}: resident above the start, MB");
        findings.push(grown(&what, guarded.peak_mb - before, ENDLESS_MB + body_mb, guarded.killed));
        if let (Ok(middle), Ok(end)) = (middle, end) {
            let what = format!("{name}: resident at the end above the middle, MB");
            findings.push(Finding::at_most(what, end.now_mb - middle.now_mb, GROWTH_MB));
        }
        if goes_on {
            findings.push(
                Finding::is_true(format!("{name}: the answer goes on"), read.last_mb > 0.0).note(bytes),
            );
        }
        findings.push(Finding::is_true(format!("{name}: the daemon runs"), daemon.is_alive()));
    }
    Ok(findings)
}

/// What has arrived, in MB.
struct Read {
    mb: f64,
    /// During [`LAST`].
    last_mb: f64,
}

async fn read_for(stream: &mut TcpStream, time: Duration) -> Read {
    let (mut mb, mut last_mb) = (0.0, 0.0);
    let (end, mut bytes) = (Instant::now() + time, vec![0; 64 * 1024]);
    while let Ok(Ok(count @ 1..)) =
        timeout(end.saturating_duration_since(Instant::now()), stream.read(&mut bytes)).await
    {
        mb += count as f64 / 1e6;
        if end.saturating_duration_since(Instant::now()) < LAST {
            last_mb += count as f64 / 1e6;
        }
        if Instant::now() >= end {
            break;
        }
    }
    Read { mb, last_mb }
}

/// Row `credentials`.
pub async fn credentials(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let upstream = Upstream::start(Script::Answer).await?;
    let mut sandbox = setup.sandbox()?;
    sandbox.set("middleware.upstreams", upstream.setting());
    let daemon = sandbox.start().await?;
    let caller = daemon.caller();
    let body =
        json!({"model": "m", "messages": [{"role": "user", "content": "When is the tide?"}]}).to_string();
    let (ours, theirs) = ("thr_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG", "sk-caller-0123456789");
    let (bearer_ours, bearer_theirs) = (format!("Bearer {ours}"), format!("Bearer {theirs}"));
    let (cookie, query) = (format!("session={ours}"), format!("{CHAT}?key={ours}"));
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str);
    let cases: [Case; 7] = [
        ("a caller's Authorization", CHAT, &[("authorization", &bearer_theirs)], theirs),
        ("a key of ours in Authorization", CHAT, &[("authorization", &bearer_ours)], ours),
        ("a key of ours in x-api-key", CHAT, &[("x-api-key", ours)], ours),
        ("a key of ours in api-key", CHAT, &[("api-key", ours)], ours),
        ("a key of ours in x-goog-api-key", CHAT, &[("x-goog-api-key", ours)], ours),
        ("a key of ours in a cookie", CHAT, &[("cookie", &cookie)], ours),
        ("a key of ours in the query", &query, &[], ours),
    ];
    let mut findings = Vec::new();
    for (name, path, headers, secret) in cases {
        let answer = Ask::post(path, body.clone()).with(headers).send(&caller).await?;
        let arrived = upstream.take();
        let has = |value: &[u8]| value.windows(secret.len()).any(|window| window == secret.as_bytes());
        let leaked = arrived
            .iter()
            .filter(|arrived| {
                has(arrived.uri.as_bytes()) || arrived.headers.values().any(|value| has(value.as_bytes()))
            })
            .count();
        let note = format!("answered {}; {} requests arrived", answer.status, arrived.len());
        findings.push(
            Finding::at_most(format!("{name}: arrived at the upstream"), leaked as f64, 0.0).note(note),
        );
    }
    let answer = Ask::post(CHAT, body).send(&caller).await?;
    let is_back = |name: &&&str| answer.headers.contains_key(**name);
    let back: Vec<&str> =
        ["set-cookie", "alt-svc", "access-control-allow-origin"].iter().filter(is_back).copied().collect();
    let what = "headers of the upstream's own web site that came back";
    findings.push(Finding::at_most(what, back.len() as f64, 0.0).note(back.join(", ")));
    findings.push(Finding::is_true("a request without secrets is answered", answer.status.is_success()));
    Ok(findings)
}
