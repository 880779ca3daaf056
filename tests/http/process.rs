//! The real binary with the real model: it gets ready, answers, finishes what it began when told to stop, and logs none
//! of what it was sent.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::SECRET;
use crate::support::thresher;
use crate::wire::{Framing, get, parse, post, send};

/// A daemon that is killed if its test fails.
pub struct Running {
    child: Child,
    pub log: Receiver<String>,
}

impl Running {
    /// Starts the binary on free ports, one request at a time.
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with these settings, too.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let mut child = thresher(&["serve"])
            .env("THRESHER__HTTP__LISTEN", "127.0.0.1:0")
            .env("THRESHER__BLOCKS__DIR", "")
            .env("THRESHER__HTTP__DRAIN_MS_MAX", "600000")
            .env("THRESHER__ADMIN__LISTEN", "127.0.0.1:0")
            .env("THRESHER__MODEL__WORKERS", "1")
            .env("THRESHER__REGISTRY__DIR", "")
            .env("THRESHER__ORIGINALS__DIR", "")
            .env("THRESHER__ADMISSION__CONCURRENCY_MAX", "1")
            .env("THRESHER__ADMISSION__DEADLINE_MS_DEFAULT", "600000")
            .env("THRESHER__ADMISSION__DEADLINE_MS_MAX", "600000")
            .env("THRESHER__TELEMETRY__LOG", "trace")
            .envs(settings.iter().copied())
            // What the program itself sees to.
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

    /// The addresses that its log names; every line read on the way is kept in `seen`.
    fn addresses(&self, seen: &mut Vec<String>) -> (SocketAddr, SocketAddr) {
        loop {
            let line = self.log.recv().unwrap_or_else(|_| panic!("ended before it listened: {seen:#?}"));
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
            seen.push(line);
            if event["message"] == "listening" {
                let address =
                    |name: &str| event[name].as_str().and_then(|a| a.parse().ok()).expect("an address");
                return (address("http"), address("admin"));
            }
        }
    }

    /// The same, once it is ready.
    pub async fn ready(&mut self, seen: &mut Vec<String>) -> (SocketAddr, SocketAddr) {
        let (http, admin) = self.addresses(seen);
        while get(admin, "/readyz").await.status != 200 {
            assert!(self.child.try_wait().expect("a child").is_none(), "it ended while loading");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (http, admin)
    }

    pub fn terminate(&self) {
        let id = self.child.id().to_string();
        let kill = std::process::Command::new("kill").args(["-TERM", &id]).status();
        assert!(kill.expect("kill is there").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_it_finishes_what_it_began_and_quotes_nobody() {
    let mut daemon = Running::start();
    let mut log = Vec::new();
    let (http, admin) = daemon.ready(&mut log).await;

    // The first one works long enough for the second to be seen waiting: both have then begun.
    let long = format!("The {SECRET} of the coast rises with the moon, twice a day, and falls as often. ")
        .repeat(40);
    let chunks: Vec<_> =
        (0..8).map(|i| json!({"id": format!("{SECRET}{i}"), "title": SECRET, "text": long})).collect();
    let request =
        json!({"query": format!("How often does the {SECRET} rise?"), "chunks": chunks}).to_string();
    let ask = || {
        tokio::spawn({
            let request = request.clone();
            async move { post(http, "/v1/compress", request).await }
        })
    };
    let answers = [ask(), ask()];
    while !get(admin, "/metrics").await.body.contains("requests_waiting 1") {
        assert!(
            !answers.iter().any(|answer| answer.is_finished()),
            "the first was too quick to be waited for"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    daemon.terminate();
    for answer in answers {
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.json()["context"].as_str().is_some_and(|context| context.contains(SECRET)));
    }
    assert_eq!(daemon.child.wait().expect("a child").code(), Some(0));

    log.extend(daemon.log.iter());
    for message in ["ready", "answered", "draining", "stopped"] {
        let said = |line: &String| line.contains(&format!("\"message\":\"{message}\""));
        assert!(log.iter().any(said), "{message:?} was not logged: {log:#?}");
    }
    let quoting: Vec<_> = log.iter().filter(|line| line.contains(SECRET)).collect();
    assert!(quoting.is_empty(), "{quoting:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_while_the_model_loads_it_ends_well() {
    // Somewhere in between its library is busy.
    for ms in (0..250).step_by(5) {
        let mut daemon = Running::start();
        daemon.addresses(&mut Vec::new());
        tokio::time::sleep(Duration::from_millis(ms)).await;
        daemon.terminate();
        assert_eq!(daemon.child.wait().expect("a child").code(), Some(0), "after {ms} ms");
    }
}

/// Chunks that nobody has sent before, of some 400 tokens each.
fn unread(name: &str, count: usize) -> Vec<String> {
    let text = |i| {
        format!("{name} {i}: ")
            + &"the tide rises with the moon, twice a day, and falls as often; ".repeat(25)
    };
    (0..count).map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_would_be_read_too_late_are_refused_before_they_are_begun() {
    let mut daemon = Running::start_with(&[("THRESHER__ADMISSION__CONCURRENCY_MAX", "8")]);
    let (http, _) = daemon.ready(&mut Vec::new()).await;
    let ask = async |body: Value| post(http, "/v1/compress", body.to_string()).await;
    let warm = json!({"query": "What rises?", "chunks": unread("warm", 2)});
    assert_eq!(ask(warm.clone()).await.status, 200, "now it knows how fast it reads");
    // Half a minute of work for one thread, given up when the test ends.
    let long = json!({"query": "What rises?", "chunks": unread("long", 300)}).to_string();
    let long = tokio::spawn(async move { post(http, "/v1/compress", long).await });
    // Until the long one is at it, others are begun, and late.
    let mut number = 0;
    let refused = loop {
        assert!(!long.is_finished(), "the long one is over");
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
    assert_eq!(ask(warm).await.status, 200, "what has been read is answered beside it");
    long.abort();
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn workers_share_the_weights_that_they_multiply_with() {
    // Memory of its own: what is mapped from a file does not count.
    let mut megabytes = Vec::new();
    for workers in ["1", "9"] {
        let mut daemon = Running::start_with(&[("THRESHER__MODEL__WORKERS", workers)]);
        daemon.ready(&mut Vec::new()).await;
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux says it");
        let kb: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        megabytes.push(kb / 1e3);
    }
    let (one, nine) = (megabytes[0], megabytes[1]);
    // With weights of their own eight more workers would take 340 MB for passages alone.
    assert!(nine - one < 200.0, "{one:.0} MB with one worker, {nine:.0} MB with nine");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_do_not_begin_are_closed_and_slow_ones_are_served() {
    let mut daemon = Running::start_with(&[("THRESHER__HTTP__READ_MS_MAX", "400")]);
    let (http, _) = daemon.ready(&mut Vec::new()).await;
    let open = async |bytes: &[u8]| {
        let mut stream = TcpStream::connect(http).await.expect("the daemon listens");
        stream.write_all(bytes).await.expect("it takes bytes");
        stream
    };
    for begun in [
        "",
        "P",
        "PRI * HTTP/2.0\r\n",
        "POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n",
    ] {
        let mut stream = open(begun.as_bytes()).await;
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{begun:?} is still open");
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"), "{begun:?}: {rest:?}");
    }
    let mut stream = open(b"P").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let body = r#"{"query": "tide", "chunks": ["The tide is at noon."]}"#;
    let length = body.len();
    let rest = format!(
        "OST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(rest.as_bytes()).await.expect("it is still open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert_eq!(parse(&answer).status, 200, "{answer}");
    // Who asks first is not told to send what is too much.
    let mut stream = open(
        b"POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 20000000\r\n\r\n",
    )
    .await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert_eq!(parse(&answer).status, 413, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_go_are_counted_and_nothing_is_written_where_nobody_asked_for_it() {
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().to_str().expect("UTF-8");
    let mut daemon = Running::start_with(&[("HOME", path), ("TMPDIR", path), ("XDG_CACHE_HOME", path)]);
    let (http, admin) = daemon.ready(&mut Vec::new()).await;
    let body = json!({"query": "What rises?", "chunks": unread("left", 300)}).to_string();
    let stream = send(http, "POST", "/v1/compress", body.as_bytes(), Framing::ContentLength).await;
    while !get(admin, "/metrics").await.body.contains("requests_in_flight 1") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(stream);
    let counted = "requests_total{endpoint=\"/v1/compress\",code=\"client_gone\"} 1";
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while !get(admin, "/metrics").await.body.contains(counted) {
        assert!(std::time::Instant::now() < until, "nobody has seen that it left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let written: Vec<_> = std::fs::read_dir(home.path()).expect("a folder").collect();
    assert!(written.is_empty(), "{written:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decoder_answers_and_finds_its_blocks_again() {
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
    // More tokens than the context of 2,048 holds at once.
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
async fn traces_reach_a_collector_before_it_ends() {
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
    assert_eq!(daemon.child.wait().expect("a child").code(), Some(0));
    let traces: Vec<_> = received.try_iter().collect();
    let hold = |text: &str| traces.iter().any(|t| t.windows(text.len()).any(|w| w == text.as_bytes()));
    assert!(hold("/v1/compress"), "{} batches of traces", traces.len());
    assert!(!hold(SECRET), "a trace quotes a request");
}
