//! The real binary with the real model: it starts, answers, finishes requests when it is told to stop, and
//! logs nothing of their content.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::SECRET;
use crate::support::thresher;
use crate::support::wait::{WAIT_MAX, eventually};
use crate::support::wire::{Framing, get, parse, post, send};

/// A running daemon. It is killed when this is dropped.
pub struct Running {
    child: Child,
    pub log: Receiver<String>,
}

impl Running {
    /// Starts the binary on free ports. It works on one request at a time.
    fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let mut child = thresher(&["serve"])
            .env("THRESHER__HTTP__LISTEN", "127.0.0.1:0")
            .env("THRESHER__BLOCKS__DIR", "")
            .env("THRESHER__ADMIN__LISTEN", "127.0.0.1:0")
            .env("THRESHER__MODEL__WORKERS", "1")
            .env("THRESHER__REGISTRY__DIR", "")
            .env("THRESHER__ORIGINALS__DIR", "")
            .env("THRESHER__ADMISSION__CONCURRENCY_MAX", "1")
            .env("THRESHER__ADMISSION__DEADLINE_MS_DEFAULT", "120000")
            .env("THRESHER__TELEMETRY__LOG", "trace")
            .envs(settings.iter().copied())
            // The program sets this variable itself.
            .env_remove("ORT_DISABLE_TELEMETRY")
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (lines, log) = channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        Self { child, log }
    }

    /// Reads the public and the admin address from the log. Every line that it reads is added to `seen`.
    fn addresses(&self, seen: &mut Vec<String>) -> (SocketAddr, SocketAddr) {
        loop {
            let line =
                self.log.recv().unwrap_or_else(|_| panic!("the daemon ended before it listened: {seen:#?}"));
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
            seen.push(line);
            if event["message"] == "listening" {
                let address =
                    |name: &str| event[name].as_str().and_then(|a| a.parse().ok()).expect("an address");
                return (address("http"), address("admin"));
            }
        }
    }

    /// The same, and waits until the daemon is ready.
    pub async fn ready(&mut self, seen: &mut Vec<String>) -> (SocketAddr, SocketAddr) {
        let (http, admin) = self.addresses(seen);
        eventually("the daemon is ready", async || {
            assert!(
                self.child.try_wait().expect("a child process").is_none(),
                "the daemon ended while it loaded"
            );
            get(admin, "/readyz").await.status == 200
        })
        .await;
        (http, admin)
    }

    pub fn terminate(&self) {
        let id = self.child.id().to_string();
        let kill = std::process::Command::new("kill").args(["-TERM", &id]).status();
        assert!(kill.expect("kill runs").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_told_to_stop_finishes_its_requests_and_logs_none_of_their_text() {
    let mut daemon = Running::start();
    let mut log = Vec::new();
    let (http, admin) = daemon.ready(&mut log).await;

    let long = format!("The {SECRET} of the coast rises with the moon, twice a day, and falls as often. ")
        .repeat(10);
    let ask = |chunk_count: usize| {
        // Every round has chunks that the daemon has not read before.
        let text = |i: usize| format!("{chunk_count} {i} {long}");
        let chunk = |i: usize| json!({"id": format!("{SECRET}{i}"), "title": SECRET, "text": text(i)});
        let chunks: Vec<_> = (0..chunk_count).map(chunk).collect();
        let request =
            json!({"query": format!("How often does the {SECRET} rise?"), "chunks": chunks}).to_string();
        tokio::spawn(async move { post(http, "/v1/compress", request).await })
    };
    // The daemon is stopped while one request works and another one waits. If the first is answered before
    // the second is seen waiting, both are repeated with more chunks.
    let mut chunk_count = 8;
    let answers = loop {
        let answers = [ask(chunk_count), ask(chunk_count)];
        let mut waits = false;
        while !waits && !answers.iter().any(|answer| answer.is_finished()) {
            waits = get(admin, "/metrics").await.body.contains("requests_waiting 1");
        }
        if waits {
            break answers;
        }
        for answer in answers {
            assert_eq!(answer.await.expect("no panic").status, 200);
        }
        chunk_count *= 2;
        assert!(chunk_count <= 512, "no request was seen waiting");
    };
    daemon.terminate();
    for answer in answers {
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.json()["context"].as_str().is_some_and(|context| context.contains(SECRET)));
    }
    assert_eq!(daemon.child.wait().expect("a child process").code(), Some(0));

    log.extend(daemon.log.iter());
    for message in ["ready", "answered", "draining", "stopped"] {
        // On a busy machine, a request is "answered slowly".
        let is_message = |line: &String| line.contains(&format!("\"message\":\"{message}"));
        assert!(log.iter().any(is_message), "{message:?} was not logged: {log:#?}");
    }
    let quoting: Vec<_> = log.iter().filter(|line| line.contains(SECRET)).collect();
    assert!(quoting.is_empty(), "{quoting:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_told_to_stop_while_the_model_loads_exits_with_0() {
    // Each start is stopped at another moment of loading. No moment is a condition of the test.
    for ms in (0..250).step_by(5) {
        let mut daemon = Running::start();
        daemon.addresses(&mut Vec::new());
        tokio::time::sleep(Duration::from_millis(ms)).await;
        daemon.terminate();
        assert_eq!(daemon.child.wait().expect("a child process").code(), Some(0), "after {ms} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_request_is_logged_with_the_time_of_its_stages_and_without_its_text() {
    let mut daemon = Running::start();
    let mut log = Vec::new();
    let (http, _) = daemon.ready(&mut log).await;
    // Work for several seconds: a request is slow from two on.
    let chunks: Vec<_> = (0..80).map(|i| format!("{i} The {SECRET} rises. ").repeat(60)).collect();
    let request = json!({"query": format!("Does the {SECRET} rise?"), "chunks": chunks}).to_string();
    assert_eq!(post(http, "/v1/compress", request).await.status, 200);
    daemon.terminate();
    daemon.child.wait().expect("a child process");
    log.extend(daemon.log.iter());
    let slow = log.iter().find(|line| line.contains("answered slowly")).expect("a line about the request");
    for part in ["\"level\":\"WARN\"", "/v1/compress", "blocks ", "\"ms\":"] {
        assert!(slow.contains(part), "{slow} lacks {part}");
    }
    assert!(!slow.contains(SECRET), "{slow}");
}

/// Chunks of some 400 tokens each that the daemon has not read before, if no other test uses this name.
fn unread(name: &str, count: usize) -> Vec<String> {
    let text = |i| {
        format!("{name} {i}: ")
            + &"the tide rises with the moon, twice a day, and falls as often; ".repeat(25)
    };
    (0..count).map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_cannot_be_read_before_the_deadline_are_refused_at_once() {
    let mut daemon = Running::start_with(&[("THRESHER__ADMISSION__CONCURRENCY_MAX", "8")]);
    let (http, _) = daemon.ready(&mut Vec::new()).await;
    let ask = async |body: Value| post(http, "/v1/compress", body.to_string()).await;
    let warm = json!({"query": "What rises?", "chunks": unread("warm", 2)});
    assert_eq!(ask(warm.clone()).await.status, 200, "the daemon measures how fast it reads");
    // A quarter of a minute of work for one thread, which has to seem possible before the deadline on a busy machine, too. It is cancelled when
    // the test ends.
    let long = json!({"query": "What rises?", "chunks": unread("long", 150)}).to_string();
    let long = tokio::spawn(async move { post(http, "/v1/compress", long).await });
    // Before the long request reads, others are read and exceed their deadline.
    let mut number = 0;
    let refused = loop {
        assert!(!long.is_finished(), "the long request was answered too soon");
        number += 1;
        let chunks = unread(&format!("late {number}"), 100);
        let response = ask(json!({"query": "What rises?", "chunks": chunks, "deadline_ms": 300})).await;
        match response.status {
            429 => break response,
            status => assert_eq!(status, 504, "{}", response.body),
        }
    };
    let answer = refused.json();
    assert_eq!(answer["error"]["code"], "overloaded", "{answer}");
    assert!(
        answer["error"]["message"].as_str().is_some_and(|m| m.contains("too long for the deadline")),
        "{answer}"
    );
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(ask(warm).await.status, 200, "cached chunks are compressed while the long request is read");
    long.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_gets_the_best_answer_that_there_was_time_for() {
    let mut daemon = Running::start();
    let (http, _) = daemon.ready(&mut Vec::new()).await;
    // Half a minute of work, and the chunk with the answer last.
    let mut chunks = unread("tide", 300);
    chunks.push("The harbour master rang the iron bell of Cape Orrin at noon.".to_owned());
    let ask = async |policy: &str| {
        let body = json!({
            "query": "Who rang the iron bell of Cape Orrin?", "chunks": chunks, "deadline_ms": 6_000, "on_error": policy,
        });
        post(http, "/v1/compress", body.to_string()).await
    };
    let mut unread_before = chunks.len();
    for turn in 1..=2 {
        let asked = Instant::now();
        let response = ask("best_effort").await;
        assert_eq!(response.status, 200, "{turn}: after {:?}: {}", asked.elapsed(), response.body);
        let answer = response.json();
        assert!(
            answer["context"].as_str().is_some_and(|text| text.contains("iron bell")),
            "{turn}: {answer}"
        );
        let outcomes = answer["chunks"].as_array().expect("a list");
        assert_eq!(outcomes.len(), chunks.len());
        assert!(
            outcomes.iter().enumerate().all(|(at, outcome)| outcome["index"] == at),
            "the caller's order"
        );
        let unread = outcomes.iter().filter(|outcome| outcome["unread"] == true).count();
        let is_further = unread < unread_before || unread == 0;
        assert!(is_further, "{turn}: {unread} after {unread_before}, although read ones are cached");
        let warning = format!("no time to read {unread} of {} chunks", chunks.len());
        assert_eq!(answer["warnings"].to_string().contains(&warning), unread > 0, "{}", answer["warnings"]);
        unread_before = unread;
    }
    let response = ask("hurry").await;
    assert!(response.body.contains("on_error"), "{}", response.body);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn workers_share_the_weights_of_the_model() {
    // Anonymous memory: pages that are mapped from a file do not count.
    let mut megabytes = Vec::new();
    for workers in ["1", "9"] {
        let mut daemon = Running::start_with(&[("THRESHER__MODEL__WORKERS", workers)]);
        daemon.ready(&mut Vec::new()).await;
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).expect("the daemon runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line of Linux");
        let kb: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        megabytes.push(kb / 1e3);
    }
    let (one, nine) = (megabytes[0], megabytes[1]);
    // If each worker had weights of its own, eight more workers would need 340 MB for passages alone.
    assert!(nine - one < 200.0, "{one:.0} MB with one worker, {nine:.0} MB with nine");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_request_are_closed_and_slow_ones_are_served() {
    let mut daemon = Running::start();
    let (http, _) = daemon.ready(&mut Vec::new()).await;
    let open = async |http: SocketAddr, bytes: &[u8]| {
        let mut stream = TcpStream::connect(http).await.expect("the daemon listens");
        stream.write_all(bytes).await.expect("the daemon reads");
        stream
    };
    let mut begun = Vec::new();
    for bytes in [
        "",
        "P",
        "PRI * HTTP/2.0\r\n",
        "POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n",
    ] {
        begun.push((bytes, open(http, bytes.as_bytes()).await));
    }
    for (bytes, mut stream) in begun {
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(WAIT_MAX, stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{bytes:?} is still open");
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"), "{bytes:?}: {rest:?}");
    }
    // The pause makes the request arrive in two parts.
    let mut stream = open(http, b"P").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let body = r#"{"query": "tide", "chunks": ["The tide is at noon."]}"#;
    let length = body.len();
    let rest = format!(
        "OST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(rest.as_bytes()).await.expect("the connection is still open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert_eq!(parse(&answer).status, 200, "{answer}");
    // A client that asks before it sends a body that is too large gets the refusal in place of `100
    // Continue`.
    let mut stream = open(
        http,
        b"POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 20000000\r\n\r\n",
    )
    .await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert_eq!(parse(&answer).status, 413, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_clients_are_counted_and_no_files_are_written_to_the_home_directory() {
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().to_str().expect("UTF-8");
    let mut daemon = Running::start_with(&[("HOME", path), ("TMPDIR", path), ("XDG_CACHE_HOME", path)]);
    let (http, admin) = daemon.ready(&mut Vec::new()).await;
    let body = json!({"query": "What rises?", "chunks": unread("left", 300)}).to_string();
    let stream = send(http, "POST", "/v1/compress", body.as_bytes(), Framing::ContentLength).await;
    eventually("the request is in flight", async || {
        get(admin, "/metrics").await.body.contains("requests_in_flight 1")
    })
    .await;
    drop(stream);
    let counted = "requests_total{endpoint=\"/v1/compress\",code=\"client_gone\"} 1";
    eventually("the client that disconnected is counted", async || {
        get(admin, "/metrics").await.body.contains(counted)
    })
    .await;
    let written: Vec<_> = std::fs::read_dir(home.path()).expect("a folder").collect();
    assert!(written.is_empty(), "{written:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decoder_answers_and_uses_its_cached_blocks() {
    let out = tempfile::tempdir().expect("a folder");
    let out = out.path().join("facts");
    let source = crate::support::in_checkout("models/facts");
    let made = thresher(&["export"]).arg(&source).arg("--out").arg(&out).output().expect("the binary starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let dir = out.to_str().expect("UTF-8");
    let mut daemon =
        Running::start_with(&[("THRESHER__MODEL__DIR", dir), ("THRESHER__RC__ESTIMATOR", "mean/self")]);
    let (http, admin) = daemon.ready(&mut Vec::new()).await;
    let rows = std::fs::read_to_string(source.join("rows.jsonl")).expect("rows");
    let row: Value = serde_json::from_str(rows.lines().next().expect("a row")).expect("JSON");
    // More tokens than the context of 2,048.
    let texts: Vec<_> =
        row["chunks"].as_array().expect("chunks").iter().map(|chunk| chunk["text"].as_str()).collect();
    let chunks: Vec<_> =
        (0..90).map(|i| json!({"text": format!("{} {i}", texts[i % 20].expect("text"))})).collect();
    let request = json!({"query": row["query"], "chunks": chunks, "budget": {"ratio": 0.2}}).to_string();
    let ask = || async {
        let answer = post(http, "/v1/compress", &request).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let (cold, warm) = (ask().await, ask().await);
    assert_eq!((&cold["blocks"]["read"], &warm["blocks"]["memory"]), (&json!(90), &json!(90)));
    assert_eq!((&cold["context"], &cold["chunks"]), (&warm["context"], &warm["chunks"]));
    assert_eq!(cold["rc"]["estimator"], "mean/self");
    let models = get(http, "/v1/models").await.json();
    let model = &models["data"][0];
    assert_eq!(
        (&model["device"], &model["heads"], &model["estimator"]),
        (&json!("cpu"), &json!(30), &json!("mean/self"))
    );
    assert!(get(admin, "/metrics").await.body.contains("model_info{model=\"facts\",device=\"cpu\"} 1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_reach_a_collector_before_the_daemon_exits() {
    let (sender, received) = channel();
    let take = axum::routing::post(async move |body: bytes::Bytes| drop(sender.send(body)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().expect("bound"));
    let collector = axum::Router::new().route("/v1/traces", take);
    tokio::spawn(async move { axum::serve(listener, collector).await });

    let mut daemon = Running::start_with(&[("THRESHER__TELEMETRY__OTLP_ENDPOINT", &endpoint)]);
    let (http, _) = daemon.ready(&mut Vec::new()).await;
    let request = json!({"query": "What rises?", "chunks": [format!("The {SECRET} rises.")]}).to_string();
    assert_eq!(post(http, "/v1/compress", request).await.status, 200);
    daemon.terminate();
    assert_eq!(daemon.child.wait().expect("a child process").code(), Some(0));
    let traces: Vec<_> = received.try_iter().collect();
    let contain = |text: &str| traces.iter().any(|t| t.windows(text.len()).any(|w| w == text.as_bytes()));
    assert!(contain("/v1/compress"), "{} batches of traces", traces.len());
    assert!(!contain(SECRET), "a trace has text of a request");
}
