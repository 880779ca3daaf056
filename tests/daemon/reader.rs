//! `thresher eval --reader`: the real model selects, and a small server in place of a language model answers by rules.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::cli::{Ran, run};
use crate::support::thresher;

/// What the server says to a request, as status, headers and body.
type Rule = fn(request: &Value, at: usize) -> (u16, &'static str, String);

/// A server of chat completions on a port of its own, until the test ends.
struct Server {
    url: String,
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn new(rule: Rule) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let at = counted.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || respond(stream, rule, at));
            }
        });
        Self { url, requests }
    }

    /// Returns how many requests arrived since the last call.
    fn arrived(&self) -> usize {
        self.requests.swap(0, Ordering::SeqCst)
    }
}

fn respond(stream: TcpStream, rule: Rule, at: usize) {
    let mut reader = BufReader::new(&stream);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let (status, headers, text) = rule(&serde_json::from_slice(&body).expect("JSON"), at);
    let head = format!(
        "HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    (&stream).write_all((head + &text).as_bytes()).expect("the client reads");
}

fn prompt(request: &Value) -> &str {
    request["messages"][0]["content"].as_str().expect("a prompt")
}

fn says(text: &str) -> (u16, &'static str, String) {
    let body = json!({"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 100, "completion_tokens": 10}});
    (200, "", body.to_string())
}

fn row(query: &str, answers: Value) -> Value {
    json!({
        "query": query,
        "answers": answers,
        "chunks": [
            {"title": "Penicillin", "text": "Alexander Fleming discovered penicillin in 1928. It is an antibiotic."},
            {"title": "Weather", "text": "Rain fell on the hills all week. Nobody was surprised by that."},
            {"title": "Paris", "text": "Paris is the capital of France. The river Seine flows through it."},
        ],
    })
}

fn rows() -> [Value; 3] {
    [
        row("Who discovered penicillin?", json!(["Alexander Fleming"])),
        row("Which river flows through Paris?", json!(["the Seine"])),
        row("Who was surprised?", json!([])),
    ]
}

/// Asks the reader the questions of `rows`, in a folder of the test.
fn ask(folder: &Path, rows: &[Value], server: &Server, arguments: &[&str]) -> Ran {
    let lines: Vec<String> = rows.iter().map(ToString::to_string).collect();
    std::fs::write(folder.join("rows.jsonl"), lines.join("\n")).expect("written");
    let fixed =
        ["eval", "rows.jsonl", "--json", "report.json", "--reader", &server.url, "--reader-model", "reads"];
    let mut command: Command = thresher(&[&fixed[..], arguments].concat());
    command.current_dir(folder);
    run(command, "")
}

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("report.json")).expect("a report")).expect("JSON")
}

/// Answers what is in the context, and judges by the first word.
fn honest(request: &Value, _at: usize) -> (u16, &'static str, String) {
    let prompt = prompt(request);
    if request["model"] == "judges" {
        return says(if prompt.contains("to judge: no answer") { "No." } else { "Yes, it does." });
    }
    match () {
        () if prompt.contains("Who discovered") && prompt.contains("Fleming") => {
            says("It was Alexander Fleming.")
        }
        () if prompt.contains("Which river") && prompt.contains("Seine") => {
            says("<think>A river.</think>Seine")
        }
        () => says("No answer."),
    }
}

#[test]
fn arms_are_compared_with_all_chunks_and_answers_are_asked_for_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::new(honest);
    let arguments = ["--arms", "thresher:1/2,none", "--judge", "judges", "--parallel", "1"];
    let ran = ask(folder.path(), &rows(), &server, &arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(
        ran.out.contains("rows: 2 questions, answered by reads (1 without answers left out)"),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("reads has no price"), "{}", ran.err);
    let found = report(folder.path());
    let arms = &found["arms"];
    assert_eq!(arms.as_object().expect("arms").keys().collect::<Vec<_>>(), ["all", "thresher:1/2", "none"]);
    for arm in ["all", "thresher:1/2"] {
        let arm = &arms[arm];
        assert_eq!(
            [&arm["answered"], &arm["holds"], &arm["tokens_in"]],
            [&json!(2), &json!(1.0), &json!(100.0)],
            "{arm}"
        );
        assert_eq!(
            [&arm["exact"]["mean"], &arm["contained"]["mean"], &arm["judged"]["mean"]],
            [&json!(0.5), &json!(1.0), &json!(1.0)]
        );
    }
    let none = &arms["none"];
    assert_eq!(
        [&none["declined"], &none["holds"], &none["judged"]["mean"]],
        [&json!(1.0), &json!(0.0), &json!(0.0)]
    );
    assert_eq!(none["contained"]["minus_all"], json!({"mean": -1.0, "ci95": [-1.0, -1.0]}));
    // Two rows, three contexts. The judge is asked once about the same answer, and not about one that declines.
    assert_eq!(server.arrived(), 2 * 3 + 2);

    let again = ask(folder.path(), &rows(), &server, &arguments);
    assert_eq!((again.out, server.arrived()), (ran.out, 0));
}

#[test]
fn failures_are_counted_and_never_scored_as_wrong() {
    fn rule(request: &Value, _at: usize) -> (u16, &'static str, String) {
        let prompt = prompt(request);
        match () {
            () if !prompt.contains("Weather") && !prompt.contains("Fleming") => {
                if prompt.contains("river") {
                    says(" ")
                } else {
                    says("<think>It may be")
                }
            }
            () if prompt.contains("Rain fell") => {
                let message =
                    json!({"error": {"message": "This model's maximum context length is 10 tokens."}});
                (400, "", message.to_string())
            }
            () => honest(request, 0),
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::new(rule);
    let ran = ask(folder.path(), &rows(), &server, &["--arms", "thresher:1/4,none"]);
    assert_eq!(ran.code, Some(1), "nothing can be compared: {}", ran.err);
    let arms = report(folder.path())["arms"].clone();
    assert_eq!(arms["all"]["failures"], json!({"too long for the model": 2}));
    assert_eq!(arms["none"]["failures"], json!({"cut off while thinking": 1, "empty": 1}));
    assert_eq!([&arms["all"]["exact"]["mean"], &arms["none"]["f1"]["mean"]], [&Value::Null; 2]);
    let kept = &arms["thresher:1/4"];
    assert_eq!(kept["contained"]["minus_all"]["mean"], Value::Null, "no row has both answers");
    assert!(ran.out.contains("not scored with all: 2 too long for the model"), "{}", ran.out);
}

#[test]
fn a_model_that_declines_is_not_right_by_chance() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::new(|_, _| says("No answer."));
    let ran = ask(folder.path(), &[row("Is Paris in Spain?", json!(["no"]))], &server, &["--arms", "none"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let all = report(folder.path())["arms"]["all"].clone();
    assert_eq!(
        [&all["declined"], &all["f1"]["mean"], &all["contained"]["mean"]],
        [&json!(1.0), &json!(0.0), &json!(0.0)]
    );
}

#[test]
fn a_busy_server_is_asked_again() {
    fn rule(request: &Value, at: usize) -> (u16, &'static str, String) {
        match at {
            0 => (429, "retry-after: 0\r\n", "{}".to_owned()),
            1 => (503, "retry-after: 0\r\n", "<html>Bad gateway</html>".to_owned()),
            _ => honest(request, at),
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::new(rule);
    let ran = ask(folder.path(), &rows()[..1], &server, &["--arms", "none", "--parallel", "1"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!((server.arrived(), report(folder.path())["arms"]["all"]["failures"].clone()), (4, json!({})));
    assert_eq!(ran.err.matches("the next try is in 1 s").count(), 2, "{}", ran.err);
}

#[test]
fn a_run_ends_early_if_no_request_can_succeed() {
    let check = |name: &str, rule: Rule, expect: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Server::new(rule);
        let many: Vec<Value> =
            (0..8).map(|at| row(&format!("Who discovered penicillin, {at}?"), json!("Fleming"))).collect();
        let ran = ask(folder.path(), &many, &server, &["--arms", "none", "--parallel", "1"]);
        assert_eq!(ran.code, Some(1), "{name}: {}", ran.err);
        assert!(ran.err.contains(expect), "{name}: {}", ran.err);
        assert!(server.arrived() < 2 * many.len(), "{name}");
    };
    check(
        "a wrong key",
        |_, _| (401, "", json!({"error": {"message": "bad key"}}).to_string()),
        "bad key; set OPENAI_API_KEY",
    );
    check(
        "no such model",
        |_, _| (404, "", json!({"detail": "no model reads"}).to_string()),
        "no model reads; check the URL",
    );
    check(
        "a field",
        |_, _| (400, "", json!({"error": {"message": "use max_completion_tokens"}}).to_string()),
        "use max_completion_tokens; check the key",
    );
    check(
        "no credit",
        |_, _| (429, "", json!({"error": {"code": "insufficient_quota"}}).to_string()),
        "insufficient_quota",
    );
    check("a page", |_, _| (200, "", "<!doctype html>".to_owned()), "12 requests failed one after the other");
}

#[test]
fn rows_without_answers_and_wrong_arguments_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::new(honest);
    let none = ask(folder.path(), &rows()[2..], &server, &[]);
    assert!(none.code == Some(1) && none.err.contains("no row has `answers`"), "{}", none.err);
    let arm = ask(folder.path(), &rows(), &server, &["--arms", "thresher"]);
    assert!(arm.code == Some(2) && arm.err.contains("use one of all, thresher:1/2"), "{}", arm.err);
    for wrong in ["[]", r#"{"stream": true}"#] {
        let body = ask(folder.path(), &rows(), &server, &["--body", wrong]);
        assert!(body.code == Some(2) && body.err.contains("--body"), "{}", body.err);
    }
    let nowhere = [
        "eval",
        "rows.jsonl",
        "--reader",
        "http://127.0.0.1:1/v1",
        "--reader-model",
        "m",
        "--answers",
        "a.jsonl",
    ];
    let mut command = thresher(&nowhere);
    command.current_dir(folder.path());
    let unreachable = run(command, "");
    assert!(
        unreachable.code == Some(1) && unreachable.err.contains("cannot reach http://127.0.0.1:1/v1"),
        "{}",
        unreachable.err
    );
    for wrong in ["localhost:8000/v1", "http://a:b@localhost/v1", "http://localhost/v1?a=b"] {
        let url = run(thresher(&["eval", "rows.jsonl", "--reader", wrong, "--reader-model", "m"]), "");
        assert!(url.code == Some(2) && url.err.contains("it must be http"), "{}", url.err);
    }
    let answers = ask(folder.path(), &rows(), &server, &["--arms", "none", "--answers", "rows.jsonl"]);
    assert!(answers.code == Some(1) && answers.err.contains("name another file"), "{}", answers.err);
    assert_eq!(server.arrived(), 0);
}
