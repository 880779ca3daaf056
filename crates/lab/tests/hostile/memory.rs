//! Rows about memory and processor time: requests that are small to send and expensive to answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Finding;
use crate::clients::{BackgroundClient, HttpRequest};
use crate::process::{DaemonProcess, MemoryUse, Setup};
use thresher_lab::upstream::{Script, Upstream};

/// Resident memory above the start, in MB, at which the bench kills the daemon. It leaves memory for other
/// programs.
const KILL_ABOVE_MB: f64 = 3_000.0;

/// Resident memory that a refused request may cost, in MB.
const REFUSAL_MB: f64 = 50.0;

/// The longest time of a refusal, in milliseconds.
const REFUSAL_MS: f64 = 1_000.0;

/// How long a row waits for one response.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(40);

/// Resident memory allowed while bodies are parsed, beyond the bodies themselves, in MB.
const PARSING_MB: f64 = 300.0;

/// Resident memory above the start allowed a minute after an attack, in MB.
const AFTERWARDS_MB: f64 = 100.0;

/// Clients that send large bodies.
const CLIENTS: usize = 64;

/// How long these clients send.
const PARSING_TIME: Duration = Duration::from_secs(15);

/// Bytes of a large body.
const LARGE_BYTES: usize = 8_300_000;

/// Bytes of a long chunk, about as many as a request may send.
const CHUNK_BYTES: usize = 1_000_000;

/// Resident memory that such a chunk may cost, in MB.
const CHUNK_MB: f64 = 250.0;

/// Long chunks that are sent at once.
const CHUNKS_AT_ONCE: usize = 8;

/// Resident memory beyond the limit of the settings that these may cost: the bodies and their answers, and what else the
/// work on them takes, in MB.
const AT_ONCE_MB: f64 = 200.0;

/// How a chunk with too many tokens is refused.
const REFUSED: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;

/// Time that a long chunk may take, in milliseconds: two cores read it to its end.
const CHUNK_DEADLINE_MS: u64 = 120_000;

/// Bytes of a text in which each sentence requires the next, and the deadline of a request with it, in milliseconds.
const CHAIN_BYTES: usize = 200_000;
const CHAIN_DEADLINE_MS: u64 = 1_000;

/// Processor time that such a request may take on two cores, in seconds.
const CHAIN_CPU_S: f64 = 2.2;

/// Time after which a client of such a request leaves, and the processor time that may follow, in seconds.
const CHAIN_CLIENT_TIME: Duration = Duration::from_millis(500);
const CHAIN_CPU_LEFT_S: f64 = 0.5;

/// How much longer than its deadline a request may take.
const DEADLINE_SLACK: Duration = Duration::from_secs(2);

/// How long the row waits for the daemon to become idle after a response.
const IDLE_TIME_MAX: Duration = Duration::from_secs(60);

/// Runs the row `rank-fields`.
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
        let guard = daemon.guard(before + KILL_ABOVE_MB);
        let response =
            HttpRequest::post("/v1/rerank", body).send_within(&daemon.caller(), REQUEST_TIME_MAX).await;
        let MemoryUse { peak_mb, killed } = guard.finish();
        let (status, ms) = match &response {
            Ok(response) => (response.status.to_string(), response.ms()),
            Err(error) => (format!("{error:#}"), f64::INFINITY),
        };
        let refused = response.is_ok_and(|response| response.status.is_client_error());
        findings.extend([
            Finding::is_true(format!("{size}: answered with a 4xx status"), refused).note(status),
            Finding::at_most(format!("{size}: response time, ms"), ms, REFUSAL_MS),
            resident_growth(
                &format!("{size}: resident memory above the start, MB"),
                peak_mb - before,
                REFUSAL_MB,
                killed,
            ),
            Finding::is_true(format!("{size}: the daemon runs"), daemon.is_alive()),
        ]);
    }
    Ok(findings)
}

/// Runs the row `parsing`.
pub async fn parsing(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let bodies_mb = setup.limits.memory.bodies as f64 / 1e6;
    let bodies = [("/v1/compress", "chunks"), ("/v1/rerank", "documents")];
    let bodies = bodies.map(|(path, field)| (path, Bytes::from(empty_strings(field))));
    let sandbox = setup.sandbox()?;
    let daemon = sandbox.start().await?;
    let before = daemon.resident()?.now_mb;
    let guard = daemon.guard(before + KILL_ABOVE_MB);
    let background_client = BackgroundClient::start(daemon.http());
    let until = Instant::now() + PARSING_TIME;
    let (answered, failed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (caller, (path, body)) = (daemon.caller(), bodies[number % bodies.len()].clone());
        let (answered, failed) = (Arc::clone(&answered), Arc::clone(&failed));
        clients.spawn(async move {
            while Instant::now() < until {
                match HttpRequest::post(path, body.clone()).send(&caller).await {
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
    let MemoryUse { peak_mb, killed } = guard.finish();
    let note = format!(
        "limit: {before:.0} at the start + {bodies_mb:.0} for bodies + {PARSING_MB:.0}; {} responses, {} requests without one",
        answered.load(Ordering::Relaxed),
        failed.load(Ordering::Relaxed)
    );
    let limit_mb = before + bodies_mb + PARSING_MB;
    let mut findings =
        vec![killed_note(Finding::at_most("resident memory, maximum, MB", peak_mb, limit_mb), killed, &note)];
    // A killed daemon answers nobody.
    if !killed {
        findings.extend(background_client.finish().await);
        let after = daemon.wait_until_below(before + AFTERWARDS_MB, Duration::from_secs(60)).await;
        let aim = "resident memory above the start a minute after the attack, MB";
        findings.push(match after {
            Ok(after) => Finding::at_most(aim, after - before, AFTERWARDS_MB),
            Err(error) => Finding::at_most(aim, f64::INFINITY, AFTERWARDS_MB).note(format!("{error:#}")),
        });
    }
    findings.push(Finding::is_true("the daemon runs", daemon.is_alive()));
    Ok(findings)
}

/// Runs the row `long-chunks`.
pub async fn long_chunks(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let prose = "The tide at the harbour is high at noon, and the pilot waits for it. ";
    let texts = [
        ("prose", prose, StatusCode::OK),
        ("short words", "at sea\n", StatusCode::OK),
        ("signs", "\\", REFUSED),
    ];
    let body = |text: &str, bytes: usize| {
        let text = text.repeat(bytes.div_ceil(text.len()));
        json!({"query": "When is the tide?", "chunks": [text], "deadline_ms": CHUNK_DEADLINE_MS}).to_string()
    };
    let time_max = Duration::from_millis(CHUNK_DEADLINE_MS) + DEADLINE_SLACK;
    let sandbox = setup.sandbox()?;
    let mut findings = Vec::new();
    for (name, text, expected) in texts {
        let daemon = sandbox.start().await?;
        // What the first request loads, such as the tokenizer of budgets, stays and is not the chunk's.
        HttpRequest::post("/v1/compress", body("tide", 1)).send(&daemon.caller()).await?;
        let before = daemon.resident()?.now_mb;
        let guard = daemon.guard(before + KILL_ABOVE_MB);
        let response = HttpRequest::post("/v1/compress", body(text, CHUNK_BYTES))
            .send_within(&daemon.caller(), time_max)
            .await;
        let MemoryUse { peak_mb, killed } = guard.finish();
        let (status, note) = match response {
            Ok(response) => (Some(response.status), String::new()),
            Err(error) => (None, format!("{error:#}")),
        };
        let aim = format!("{name}: resident memory above the start, MB");
        findings.push(killed_note(Finding::at_most(aim, peak_mb - before, CHUNK_MB), killed, &note));
        findings
            .push(Finding::is_true(format!("{name}: answered with {expected}"), status == Some(expected)));
        findings.push(Finding::is_true(format!("{name}: the daemon runs"), daemon.is_alive()));
    }
    let daemon = sandbox.start().await?;
    let before = daemon.resident()?.now_mb;
    let guard = daemon.guard(before + KILL_ABOVE_MB);
    let mut clients = JoinSet::new();
    for number in 0..CHUNKS_AT_ONCE {
        // Equal texts would be read once.
        let text = format!("at sea {number}\n");
        let (caller, body) = (daemon.caller(), body(&text, CHUNK_BYTES));
        clients.spawn(async move {
            let response = HttpRequest::post("/v1/compress", body).send_within(&caller, time_max).await;
            response.map(|response| response.status).ok()
        });
    }
    let statuses = clients.join_all().await;
    let MemoryUse { peak_mb, killed } = guard.finish();
    let memory = &setup.limits.memory;
    let limit = memory.blocks_of_requests as u64 + memory.blocks;
    let limit_mb = limit as f64 / 1e6 + AT_ONCE_MB;
    let aim = "at once: resident memory above the start, MB";
    findings.push(resident_growth(aim, peak_mb - before, limit_mb, killed));
    let late = [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::GATEWAY_TIMEOUT];
    let expected = statuses.iter().flatten().filter(|status| late.contains(status)).count();
    let aim = "at once: requests that are answered, or refused for their deadline";
    let note = format!("{statuses:?}");
    findings.push(Finding::at_least(aim, expected as f64, CHUNKS_AT_ONCE as f64).note(note));
    findings.push(Finding::is_true("at once: the daemon runs", daemon.is_alive()));
    Ok(findings)
}

/// Runs the row `chains`.
pub async fn chains(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let mut findings = Vec::new();
    for sentences in ["Who? Yes. ", "Was it so? It was. ", "---------- Forwarded message ---------\n"] {
        let daemon = sandbox.start().await?;
        let kind = if sentences.contains("Forwarded") { "mail" } else { "auto" };
        let text = sentences.repeat(CHAIN_BYTES / sentences.len());
        let send = async |text: &str, deadline_ms: u64, within: Duration| {
            let chunk = json!({"text": text, "kind": kind});
            let body = json!({"query": "Who?", "chunks": [chunk], "budget": {"ratio": 0.3}, "deadline_ms": deadline_ms});
            HttpRequest::post("/v1/compress", body.to_string()).send_within(&daemon.caller(), within).await
        };
        // A client leaves while the chunk is encoded.
        let other_text = format!("Ann. {text}");
        let response = send(&other_text, CHUNK_DEADLINE_MS, CHAIN_CLIENT_TIME).await;
        let before = daemon.cpu_seconds()?;
        let seconds = daemon.wait_until_idle(IDLE_TIME_MAX).await? - before;
        let aim = format!("{sentences:?}: processor time after the client has left, s");
        let note = if response.is_ok() { "it had an answer before" } else { "" };
        findings.push(Finding::at_most(aim, seconds, CHAIN_CPU_LEFT_S).note(note));
        // The second request finds the block of the chunk, so that its time is that of the selection.
        send(&text, CHUNK_DEADLINE_MS, REQUEST_TIME_MAX).await?;
        daemon.wait_until_idle(IDLE_TIME_MAX).await?;
        let before = daemon.cpu_seconds()?;
        let response = send(&text, CHAIN_DEADLINE_MS, REQUEST_TIME_MAX).await?;
        let seconds = daemon.wait_until_idle(IDLE_TIME_MAX).await? - before;
        let aim = format!("{sentences:?}: time of a request with a deadline of 1 s, ms");
        let most = Duration::from_millis(CHAIN_DEADLINE_MS) + DEADLINE_SLACK;
        findings.push(
            Finding::at_most(aim, response.ms(), most.as_secs_f64() * 1e3).note(response.status.to_string()),
        );
        let aim = format!("{sentences:?}: its processor time, s");
        findings.push(Finding::at_most(aim, seconds, CHAIN_CPU_S));
    }
    Ok(findings)
}

/// Runs the row `turns`.
pub async fn turns(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let upstream = Upstream::start(Script::ShortAnswer).await?;
    let mut sandbox = setup.sandbox()?;
    sandbox.set("middleware.upstreams", upstream.setting());
    let compress_time_max =
        Duration::from_millis(setup.defaults.admission.deadline_ms_default) + DEADLINE_SLACK;
    // The deadline covers compression only; reading and writing the body have none.
    let middleware_time_max =
        Duration::from_millis(setup.defaults.middleware.deadline_ms) + 2 * DEADLINE_SLACK;
    let speech = r#"{"role":"user","content":"a"},{"role":"assistant","content":"b"}"#;
    let tool = r#"{"role":"user","content":"a?"},{"role":"tool","tool_call_id":"c","content":"b c."},{"role":"assistant","content":"d"}"#;
    let context =
        r#"{"role":"user","content":"<context>a b.</context>c?"},{"role":"assistant","content":"d"}"#;
    let (compress, chat) = ("/headroom/v1/compress", "/v1/chat/completions");
    let cases = [
        ("3.4 MB with tools to /headroom/v1/compress", compress, tool, 3_400_000, compress_time_max),
        ("8.2 MB with tools to /headroom/v1/compress", compress, tool, 8_200_000, compress_time_max),
        ("3.4 MB with contexts to the middleware", chat, context, 3_400_000, middleware_time_max),
        ("8.2 MB with contexts to the middleware", chat, context, 8_200_000, middleware_time_max),
        ("8.2 MB of plain messages to the middleware", chat, speech, 8_200_000, middleware_time_max),
    ];
    let mut findings = Vec::new();
    for (name, path, turn, bytes, time_max) in cases {
        // A new daemon for each case, so that unfinished work does not count for the next case.
        let daemon = sandbox.start().await?;
        findings.extend(
            send_conversation(&daemon, name, HttpRequest::post(path, conversation(turn, bytes)), time_max)
                .await?,
        );
    }
    Ok(findings)
}

/// Sends one conversation; measures its response time, the processor time until the daemon is idle, and the
/// requests of a background client.
async fn send_conversation(
    daemon: &DaemonProcess,
    name: &str,
    request: HttpRequest<'_>,
    time_max: Duration,
) -> anyhow::Result<Vec<Finding>> {
    let before = daemon.resident()?.now_mb;
    let guard = daemon.guard(before + KILL_ABOVE_MB);
    let background_client = BackgroundClient::start(daemon.http());
    let cpu_seconds_before = daemon.cpu_seconds()?;
    let headers = [("x-thresher-compress", "true")];
    let started = Instant::now();
    let response = request.with(&headers).send_within(&daemon.caller(), REQUEST_TIME_MAX).await;
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let background_client = background_client.finish().await;
    let cpu_seconds_result = daemon.wait_until_idle(IDLE_TIME_MAX).await;
    let MemoryUse { peak_mb, killed } = guard.finish();
    let (status, ms) = match response {
        Ok(response) => (response.status.to_string(), ms),
        Err(error) => (format!("{error:#}"), f64::INFINITY),
    };
    let note = format!("{status}; resident memory at most {:.0} MB above the start", peak_mb - before);
    let cpu_aim = "processor time until the daemon is idle, s";
    let mut findings = vec![
        killed_note(
            Finding::at_most(format!("{name}: response time, ms"), ms, time_max.as_secs_f64() * 1e3),
            killed,
            &note,
        ),
        match cpu_seconds_result {
            Ok(after) => {
                let limit_s = (time_max + DEADLINE_SLACK).as_secs_f64();
                Finding::at_most(format!("{name}: {cpu_aim}"), after - cpu_seconds_before, limit_s)
            }
            Err(error) => Finding::is_true(format!("{name}: {cpu_aim}"), false).note(format!("{error:#}")),
        },
    ];
    findings.extend(background_client.into_iter().map(|finding| finding.in_case(name)));
    Ok(findings)
}

/// Creates a finding on resident memory above the start, with a note if the bench killed the daemon.
pub fn resident_growth(aim: &str, reached_mb: f64, most_mb: f64, killed: bool) -> Finding {
    killed_note(Finding::at_most(aim, reached_mb, most_mb), killed, "")
}

fn killed_note(finding: Finding, killed: bool, note: &str) -> Finding {
    if killed {
        finding.note(format!("the bench killed the daemon for it; {note}"))
    } else {
        finding.note(note)
    }
}

/// Returns a body of at most [`LARGE_BYTES`] whose list has only empty strings.
fn empty_strings(field: &str) -> String {
    let (start, end) = (format!("{{\"query\":\"q\",\"{field}\":[\"\""), "]}");
    let mut body = String::with_capacity(LARGE_BYTES);
    body.push_str(&start);
    while body.len() + ",\"\"".len() + end.len() <= LARGE_BYTES {
        body.push_str(",\"\"");
    }
    body + end
}

/// Returns a conversation of at most `bytes` bytes that repeats `turn` and ends with a question.
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
