//! Rows about memory and processor time: requests that are small to send and large to answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Finding;
use super::daemon::{Daemon, Guarded, Setup};
use super::upstream::{Script, Upstream};
use super::wire::{Ask, Bystander};

/// Above what is resident at the start, a daemon is killed in the rows of this file: other programs need memory, too.
const KILL_MB: f64 = 3_000.0;

/// Resident memory that a refused request may cost, in MB.
const REFUSED_MB: f64 = 50.0;

/// How long a refusal may take.
const REFUSED_MS: f64 = 1_000.0;

/// How long one request of a row is waited for.
const ONE_MAX: Duration = Duration::from_secs(40);

/// Bytes of all bodies together that are held at the same time, where the settings do not say it.
const BODIES_BYTES: u64 = 128 << 20;

/// Bystander the bodies, this much may be resident while they are parsed, in MB.
const PARSING_MB: f64 = 300.0;

/// A minute after an attack, this much may be resident above the start, in MB.
const AFTER_MB: f64 = 100.0;

/// Clients that send large bodies.
const CLIENTS: usize = 64;

/// How long they send.
const PARSING: Duration = Duration::from_secs(15);

/// Bytes of such a body.
const LARGE_BYTES: usize = 8_300_000;

/// What a request may take beyond its deadline.
const SLACK: Duration = Duration::from_secs(2);

/// After an answer, work of the request may go on for so long until it is no more waited for.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// Row `rank-fields`.
pub async fn rank_fields(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let sandbox = setup.sandbox()?;
    for (field_bytes, times) in [(200_000, 50_000), (300_000, 100_000)] {
        let field = "ff";
        let daemon = sandbox.start().await?;
        let body = json!({
            "query": "q",
            "documents": [{field: "x".repeat(field_bytes)}],
            "rank_fields": vec![field; times],
        });
        let body = Bytes::from(body.to_string());
        let size = format!("{:.2} MB", body.len() as f64 / 1e6);
        let before = daemon.resident()?.now_mb;
        let guard = daemon.guard(before + KILL_MB);
        let answer = Ask::post("/v1/rerank", body).send_within(&daemon.caller(), ONE_MAX).await;
        let Guarded { peak_mb, killed } = guard.finish();
        let (status, ms) = match &answer {
            Ok(answer) => (answer.status.to_string(), answer.ms()),
            Err(error) => (format!("{error:#}"), f64::INFINITY),
        };
        let refused = answer.is_ok_and(|answer| answer.status.is_client_error());
        findings.extend([
            Finding::is_true(format!("{size}: answered with a 4xx status"), refused).note(status),
            Finding::at_most(format!("{size}: time to the answer, ms"), ms, REFUSED_MS),
            grown(&format!("{size}: resident above the start, MB"), peak_mb - before, REFUSED_MB, killed),
            Finding::is_true(format!("{size}: the daemon runs"), daemon.is_alive()),
        ]);
    }
    Ok(findings)
}

/// Row `parsing`.
pub async fn parsing(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let bodies_mb = setup.number("/http/bodies_bytes_max").unwrap_or(BODIES_BYTES) as f64 / 1e6;
    let bodies = [("/v1/compress", "chunks"), ("/v1/rerank", "documents")];
    let bodies = bodies.map(|(path, field)| (path, Bytes::from(empty_strings(field))));
    let sandbox = setup.sandbox()?;
    let daemon = sandbox.start().await?;
    let before = daemon.resident()?.now_mb;
    let guard = daemon.guard(before + KILL_MB);
    let bystander = Bystander::start(daemon.http());
    let until = Instant::now() + PARSING;
    let (answered, failed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (caller, (path, body)) = (daemon.caller(), bodies[number % bodies.len()].clone());
        let (answered, failed) = (Arc::clone(&answered), Arc::clone(&failed));
        clients.spawn(async move {
            while Instant::now() < until {
                match Ask::post(path, body.clone()).send(&caller).await {
                    Ok(_) => answered.fetch_add(1, Ordering::Relaxed),
                    Err(_) => {
                        sleep(Duration::from_millis(50)).await;
                        failed.fetch_add(1, Ordering::Relaxed)
                    }
                };
            }
        });
    }
    while !clients.is_empty() {
        if guard.has_killed() {
            clients.abort_all();
        }
        let _ = timeout(Duration::from_millis(100), clients.join_next()).await;
    }
    let Guarded { peak_mb, killed } = guard.finish();
    let note = format!(
        "{before:.0} at the start, {bodies_mb:.0} for bodies, {PARSING_MB:.0} beside; {} answers, {} requests without one",
        answered.load(Ordering::Relaxed),
        failed.load(Ordering::Relaxed)
    );
    let most = before + bodies_mb + PARSING_MB;
    let mut findings =
        vec![killed_note(Finding::at_most("resident at most, MB", peak_mb, most), killed, &note)];
    // Nobody is answered by a daemon that was killed.
    if !killed {
        findings.extend(bystander.finish().await);
        let after = daemon.given_back(before + AFTER_MB, Duration::from_secs(60)).await;
        let what = "resident above the start within a minute after, MB";
        findings.push(match after {
            Ok(after) => Finding::at_most(what, after - before, AFTER_MB),
            Err(error) => Finding::at_most(what, f64::INFINITY, AFTER_MB).note(format!("{error:#}")),
        });
    }
    findings.push(Finding::is_true("the daemon runs", daemon.is_alive()));
    Ok(findings)
}

/// Row `turns`.
pub async fn turns(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let upstream = Upstream::start(Script::Answer).await?;
    let mut sandbox = setup.sandbox()?;
    sandbox.set("middleware.upstreams", upstream.setting());
    let asked = setup.time("/admission/deadline_ms_default")? + SLACK;
    // One deadline for compressing; the body is read and written without one.
    let passed = setup.time("/middleware/deadline_ms")? + 2 * SLACK;
    let said = r#"{"role":"user","content":"a"},{"role":"assistant","content":"b"}"#;
    let tool = r#"{"role":"user","content":"a?"},{"role":"tool","tool_call_id":"c","content":"b c."},{"role":"assistant","content":"d"}"#;
    let context =
        r#"{"role":"user","content":"<context>a b.</context>c?"},{"role":"assistant","content":"d"}"#;
    let (compress, chat) = ("/v1/compress", "/v1/chat/completions");
    let cases = [
        ("3.4 MB with tools to /v1/compress", compress, tool, 3_400_000, asked),
        ("8.2 MB with tools to /v1/compress", compress, tool, 8_200_000, asked),
        ("3.4 MB with contexts to the middleware", chat, context, 3_400_000, passed),
        ("8.2 MB with contexts to the middleware", chat, context, 8_200_000, passed),
        ("8.2 MB of speech to the middleware", chat, said, 8_200_000, passed),
    ];
    let mut findings = Vec::new();
    for (name, path, turn, bytes, time) in cases {
        // What one leaves unfinished does not count for the next.
        let daemon = sandbox.start().await?;
        findings
            .extend(one_conversation(&daemon, name, Ask::post(path, conversation(turn, bytes)), time).await?);
    }
    Ok(findings)
}

/// Sends one conversation; its time, the processor time it takes in all, and what a client beside it sees.
async fn one_conversation(
    daemon: &Daemon,
    name: &str,
    ask: Ask<'_>,
    time: Duration,
) -> anyhow::Result<Vec<Finding>> {
    let before = daemon.resident()?.now_mb;
    let guard = daemon.guard(before + KILL_MB);
    let bystander = Bystander::start(daemon.http());
    let processor_before = daemon.processor_s()?;
    let headers = [("x-thresher-compress", "true")];
    let started = Instant::now();
    let answer = ask.with(&headers).send_within(&daemon.caller(), ONE_MAX).await;
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let bystander = bystander.finish().await;
    let processor_s = daemon.settled(SETTLE_MAX).await;
    let Guarded { peak_mb, killed } = guard.finish();
    let (status, ms) = match answer {
        Ok(answer) => (answer.status.to_string(), ms),
        Err(error) => (format!("{error:#}"), f64::INFINITY),
    };
    let note = format!("{status}; {:.0} MB resident above the start at most", peak_mb - before);
    let processor = "processor time until it is idle, s";
    let mut findings = vec![
        killed_note(
            Finding::at_most(format!("{name}: time to the answer, ms"), ms, time.as_secs_f64() * 1e3),
            killed,
            &note,
        ),
        match processor_s {
            Ok(after) => {
                let most = (time + SLACK).as_secs_f64();
                Finding::at_most(format!("{name}: {processor}"), after - processor_before, most)
            }
            Err(error) => Finding::is_true(format!("{name}: {processor}"), false).note(format!("{error:#}")),
        },
    ];
    findings.extend(bystander.into_iter().map(|finding| finding.of(name)));
    Ok(findings)
}

/// Resident memory above the start, and whether the daemon was killed for it.
pub fn grown(what: &str, reached_mb: f64, most_mb: f64, killed: bool) -> Finding {
    killed_note(Finding::at_most(what, reached_mb, most_mb), killed, "")
}

fn killed_note(finding: Finding, killed: bool, note: &str) -> Finding {
    match killed {
        true => finding.note(format!("killed for it by the bench; {note}")),
        false => finding.note(note),
    }
}

/// A body of [`LARGE_BYTES`] whose list has nothing but empty strings.
fn empty_strings(field: &str) -> String {
    let (start, end) = (format!("{{\"query\":\"q\",\"{field}\":[\"\""), "]}");
    let mut body = String::with_capacity(LARGE_BYTES);
    body.push_str(&start);
    while body.len() + ",\"\"".len() + end.len() <= LARGE_BYTES {
        body.push_str(",\"\"");
    }
    body + end
}

/// A conversation of so many bytes, with a last question.
fn conversation(turn: &str, bytes: usize) -> String {
    let (start, end) = (r#"{"model":"m","messages":["#, r#"{"role":"user","content":"When is the tide?"}]}"#);
    let mut body = String::with_capacity(bytes);
    body.push_str(start);
    while body.len() + turn.len() + end.len() < bytes {
        body.push_str(turn);
        body.push(',');
    }
    body + end
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn bodies_are_json_within_the_limit() {
        let body = empty_strings("chunks");
        assert!(body.len() <= LARGE_BYTES && body.len() > LARGE_BYTES - 10);
        let json: Value = serde_json::from_str(&body).expect("JSON");
        assert!(json["chunks"].as_array().is_some_and(|chunks| chunks.len() > 2_000_000));
        let body = conversation(r#"{"role":"user","content":"a"}"#, 100_000);
        assert!(body.len() < 100_000);
        let json: Value = serde_json::from_str(&body).expect("JSON");
        assert!(json["messages"].as_array().is_some_and(|messages| messages.len() > 3_000));
    }
}
