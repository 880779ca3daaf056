//! Savings with the real model: `thresher report` over recorded traffic, and a daemon in shadow mode.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use axum::Router;
use axum::extract::Request;
use axum::http::header;
use serde_json::{Value, json};

use crate::support::thresher;
use crate::support::wait::eventually;
use crate::support::wire::{get, post};

const CHAT: &str = "/v1/chat/completions";
const DOCUMENT: &str = "Alexander Fleming discovered penicillin in 1928 in London. Rain fell on the hills all week. The harbour was closed \
                        for repairs in spring. Bread prices rose twice that year. A new tram line reached the northern suburbs. The orchestra \
                        played Brahms on Sunday. Sheep were driven over the pass in October. The bakery on the corner sold rye loaves.";
const PRICES: &str = r#"[{ model = "gpt-*", currency = "USD", input = 2.0, cached_read = 0.2, cached_write = 2.0, output = 8.0 }]"#;

fn conversation(model: &str) -> Value {
    let content = format!("<context>{DOCUMENT}</context> Who discovered penicillin?");
    json!({"model": model, "messages": [{"role": "user", "content": content}]})
}

fn answer(text: &str, cached: u64) -> Value {
    let message = json!({"role": "assistant", "content": text});
    let usage = json!({"prompt_tokens": 200, "completion_tokens": 12, "prompt_tokens_details": {"cached_tokens": cached}});
    json!({"choices": [{"index": 0, "message": message}], "usage": usage})
}

fn report(arguments: &[&str]) -> Command {
    let mut command = thresher(&[&["report"], arguments].concat());
    // The texts are short: without a budget, most of them would be kept.
    let settings =
        [("SAVINGS__PRICES", PRICES), ("MIDDLEWARE__PROMPT_TOKENS_MIN", "0"), ("MIDDLEWARE__RATIO", "0.4")];
    command.envs(settings.map(|(name, value)| (format!("THRESHER__{name}"), value)));
    command
}

/// Exit status, standard output and standard error.
fn run(mut command: Command, input: &str) -> (Option<i32>, String, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let done = child.wait_with_output().expect("the command ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (done.status.code(), text(done.stdout), text(done.stderr))
}

/// A conversation of two turns, and one without price and answer.
fn traffic() -> String {
    let first = conversation("gpt-5");
    let mut second = first.clone();
    let messages = second["messages"].as_array_mut().expect("messages");
    messages.push(json!({"role": "assistant", "content": "Alexander Fleming."}));
    messages.push(json!({"role": "user", "content": "What did the bakery sell?"}));
    let stream = format!(
        "data: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
        json!({"choices": [{"index": 0, "delta": {"content": "The bakery on the corner sold rye loaves."}}]}),
        json!({"choices": [], "usage": answer("", 190)["usage"]})
    );
    let lines = [
        json!({"path": CHAT, "request": first, "response": answer("Alexander Fleming discovered penicillin in 1928 in London.", 0)}),
        json!({"path": CHAT, "request": second, "response": stream}),
        json!({"path": CHAT, "request": conversation("llama")}),
    ];
    lines.map(|line| format!("{line}\n\n")).concat()
}

#[test]
fn report_says_what_compression_would_have_saved_of_recorded_traffic() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("traffic.jsonl");
    std::fs::write(&path, traffic()).expect("a file");
    let path = path.to_str().expect("UTF-8");
    let (code, out, err) = run(report(&[path, "--json"]), "");
    assert_eq!((code, &*err), (Some(0), ""), "{out}");
    let found: Value = serde_json::from_str(&out).expect("JSON");
    let shadow = &found["shadow"];
    assert_eq!(found["not_compressed"], json!({}));
    let rows: Vec<(&Value, &Value)> = shadow["models"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (&row["model"], &row["requests"]))
        .collect();
    assert_eq!(rows, [(&json!("gpt-5"), &json!(2)), (&json!("llama"), &json!(1))]);
    let gpt = &shadow["models"][0];
    assert_eq!(gpt["requests_shortened"], 2, "{gpt}");
    let tokens = |name: &str| gpt["saved_as"][name].as_u64().expect("a count");
    // The first request was not cached; of the second one, the text that would have been left out was.
    assert!(tokens("input") > 20 && tokens("input") == tokens("cached_read"), "{gpt}");
    let saved = tokens("input") as f64 * 2.0 / 1e6 + tokens("cached_read") as f64 * 0.2 / 1e6;
    assert!((gpt["money"]["saved"].as_f64().expect("money") - saved).abs() < 1e-12, "{gpt}");
    assert_eq!(shadow["models"][1]["money"], Value::Null);
    assert_eq!(shadow["models"][1]["saved_as"]["unknown"], shadow["models"][1]["tokens_unpriced"]);
    // Compression for the first question keeps the source of the first answer, and not that of the second.
    let coverage = &shadow["coverage"];
    assert_eq!(
        (&coverage["answers"], &coverage["sentences"], &coverage["sentences_kept"]),
        (&json!(2), &json!(2), &json!(1)),
        "{coverage}"
    );

    let (code, table, err) = run(report(&["-"]), &traffic());
    assert_eq!((code, &*err), (Some(0), ""), "{table}");
    for part in [
        "model",
        "gpt-5",
        "no price",
        "USD would have been saved",
        "cached reads",
        "1 would have kept one (50.0 %)",
    ] {
        assert!(table.contains(part), "{part:?} is not in\n{table}");
    }
}

#[test]
fn report_names_the_line_that_it_cannot_read() {
    let check = |name: &str, input: &str, expect: &[&str]| {
        let (code, out, err) = run(report(&["-"]), input);
        assert_eq!((code, &*out), (Some(1), ""), "{name}: {err}");
        expect.iter().for_each(|part| assert!(err.contains(part), "{name}: {err:?} lacks {part:?}"));
    };
    let good = json!({"path": CHAT, "request": conversation("gpt-5")});
    check("not JSON", &format!("{good}\n\n{{\"path\": \n"), &["-, line 3", "column"]);
    check("an unknown field", &format!("{good}\n{{\"path\": \"{CHAT}\", \"body\": 1}}"), &["line 2", "body"]);
    check(
        "another path",
        r#"{"path": "/v1/embeddings", "request": {"model": "m"}}"#,
        &["line 1", "/v1/embeddings"],
    );
    check("nothing", "\n", &["no request"]);
    let (code, _, err) = run(report(&["/nonexistent.jsonl"]), "");
    assert!(code == Some(1) && err.contains("cannot read /nonexistent.jsonl"), "{err}");
}

#[test]
fn wrong_settings_of_savings_are_named() {
    let check = |name: &str, value: &str, expect: &[&str]| {
        let mut command = report(&["-"]);
        command.env(format!("THRESHER__SAVINGS__{name}"), value);
        let (code, _, err) = run(command, "");
        assert_eq!(code, Some(1), "{name} {value}: {err}");
        expect.iter().for_each(|part| assert!(err.contains(part), "{name} {value}: {err:?} lacks {part:?}"));
    };
    let gap = r#"[{ model = "gpt-*", currency = "USD", input = 2.0, output = 8.0 }]"#;
    check("PRICES", gap, &["savings.prices", "cached_read"]);
    let negative = PRICES.replace("8.0", "-8.0");
    check("PRICES", &negative, &["savings.prices[0] (gpt-*)", "output is -8"]);
    let entry = PRICES.trim_matches(['[', ']']);
    check("PRICES", &format!("[{entry}, {entry}]"), &["savings.prices[1] (gpt-*)", "another price"]);
}

/// A process that is killed when it is dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_in_shadow_mode_counts_the_sources_that_it_would_have_kept() {
    let handle = async |_: Request| {
        let answer = answer("Alexander Fleming discovered penicillin in 1928 in London.", 0);
        ([(header::CONTENT_TYPE, "application/json")], answer.to_string())
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(axum::serve(listener, Router::new().fallback(handle)).into_future());
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let mut daemon = Daemon(
        thresher(&["serve"])
            .env("THRESHER__HTTP__LISTEN", "127.0.0.1:0")
            .env("THRESHER__ADMIN__LISTEN", "127.0.0.1:0")
            .env("THRESHER__BLOCKS__DIR", at("kv"))
            .env("THRESHER__REGISTRY__DIR", at("registry"))
            .env("THRESHER__ORIGINALS__DIR", at("originals"))
            .env(
                "THRESHER__MIDDLEWARE__UPSTREAMS",
                format!("[{{ url = \"{url}\", compress = \"always\", shadow = true }}]"),
            )
            .env("THRESHER__MIDDLEWARE__PROMPT_TOKENS_MIN", "0")
            .env("THRESHER__MIDDLEWARE__DEADLINE_MS", "60000")
            .env("THRESHER__SAVINGS__PRICES", PRICES)
            .env("THRESHER__TELEMETRY__LOG", "trace")
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts"),
    );
    let mut lines = BufReader::new(daemon.0.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let listening = lines
        .by_ref()
        .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
        .find(|event| event["message"] == "listening")
        .expect("the daemon logs its addresses");
    let log = std::thread::spawn(move || lines.collect::<Vec<String>>());
    let address = |name: &str| -> SocketAddr {
        listening[name].as_str().and_then(|text| text.parse().ok()).expect("an address")
    };
    let (http, admin) = (address("http"), address("admin"));
    eventually("the daemon is ready", async || get(admin, "/readyz").await.status == 200).await;
    let response = post(http, CHAT, conversation("gpt-5").to_string()).await;
    assert_eq!((response.status, response.header("x-thresher")), (200, Some("shadow")), "{}", response.body);
    let savings = async || get(http, "/v1/savings").await.json();
    eventually("the answer is attributed", async || savings().await["shadow"]["coverage"]["answers"] == 1)
        .await;
    let found = savings().await;
    let shadow = &found["shadow"];
    assert_eq!(
        (&shadow["coverage"]["sentences"], &shadow["coverage"]["sentences_kept"]),
        (&json!(1), &json!(1)),
        "{shadow}"
    );
    assert!(shadow["totals"]["money"][0]["saved"].as_f64().is_some_and(|saved| saved > 0.0), "{shadow}");
    assert_eq!(found["totals"]["requests"], 0);
    let metrics = get(admin, "/metrics").await.body;
    assert!(metrics.contains("savings_requests_total{tenant=\"\",model=\"gpt-*\""), "{metrics}");
    // Even the trace log has no text of requests, and no characters of it line by line.
    drop(daemon);
    let log = log.join().expect("the log ends with the daemon");
    assert!(log.iter().any(|line| line.contains("\"TRACE\"")), "{} lines", log.len());
    for line in log {
        assert!(!line.contains("penicillin") && !line.contains("tokenizers"), "{line}");
    }
}
