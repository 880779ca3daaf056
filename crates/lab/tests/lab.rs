//! `thresher-lab`: the JSON that it writes and its exit status, in short runs with the real model. No test
//! asserts a time.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use thresher_export::ExportOptions;

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A command that runs the laboratory in the repository's root, without a settings file.
fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thresher-lab"));
    command.args(arguments).env("THRESHER_CONFIG", "").current_dir(in_repository(""));
    command
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run(arguments: &[&str]) -> Ran {
    let done = lab(arguments).output().expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: done.status.code(), out: text(done.stdout), err: text(done.stderr) }
}

fn export(source: &str, out: &Path) {
    let options = ExportOptions { name: "tiny".to_owned(), ..ExportOptions::default() };
    thresher_export::export(&in_repository(source), out, &options, &|_, _| {}).expect("an export");
}

fn kv_of_row(folder: &Path, model: &str, row: &Value) -> Ran {
    let file = folder.join("one.jsonl");
    std::fs::write(&file, row.to_string()).expect("written");
    run(&["kv", file.to_str().expect("UTF-8"), "--model", model])
}

/// Runs `thresher-lab` with these arguments. Returns its output and the JSON that it has written.
fn measure(arguments: &[&str]) -> (Output, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("bench.json");
    let mut command = lab(arguments);
    command.args(["--workers", "2", "--json", json.to_str().expect("UTF-8")]).env("TMPDIR", folder.path());
    let done = command.output().expect("the binary starts");
    let text = std::fs::read_to_string(&json).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    let entries = std::fs::read_dir(folder.path()).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    assert!(!names.into_iter().any(|name| name.starts_with("thresher-")), "a temporary directory is left");
    (done, serde_json::from_str(&text).expect("JSON"))
}

/// Asserts that these JSON pointers lead to numbers greater than 0.
#[track_caller]
fn has_numbers(json: &Value, paths: &[&str]) {
    for path in paths {
        let number = json.pointer(path).and_then(Value::as_f64);
        assert!(number.is_some_and(|number| number > 0.0), "{path} in {json:#}");
    }
}

#[test]
fn a_run_with_cached_chunks_writes_its_measurements() {
    let shape =
        ["warm", "--chunks", "3", "--tokens", "20", "--rounds", "2", "--requests", "4", "--clients", "2"];
    let (done, json) = measure(&shape);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(
        (&json["chunks"], &json["tokens"], &json["pairs_measured"]),
        (&3.into(), &20.into(), &3.into())
    );
    has_numbers(
        &json,
        &["/question_encode_ms", "/pairs_ms", "/cold_ms", "/warm_ms/p50", "/warm_ms/p99", "/bytes_per_token"],
    );
    has_numbers(
        &json,
        &["/ratios/warm_over_question/median", "/concurrent/requests_per_s", "/cold/graph_ms"],
    );
    assert_eq!(json["warm"]["blocks"]["memory"], 3, "cached chunks come from memory");
    assert_eq!(json["warm"]["stages_ms"].as_object().map(|stages| stages.contains_key("scan")), Some(true));
    let met: Vec<_> =
        json["targets"].as_array().expect("a list").iter().map(|target| &target["met"]).collect();
    assert_eq!(met, [&Value::Null; 4], "there are no targets for this shape of request");
    if cfg!(target_os = "linux") {
        has_numbers(&json, &["/rss_mb", "/rss_peak_mb"]);
    }
    // Another build of ONNX Runtime has another version.
    let version = json["machine"]["onnxruntime"].as_str().expect("a version");
    let headline =
        format!("minilm-l6 in f32 on cpu (CPUExecutionProvider, ONNX Runtime {version}), 2 workers of ");
    let table = String::from_utf8(done.stdout).expect("UTF-8");
    assert!(version.starts_with("1.") && table.starts_with(&headline), "{table}");
}

#[test]
fn a_run_with_registered_chunks_sends_their_ids() {
    let shape = [
        "warm",
        "--registered",
        "--chunks",
        "3",
        "--tokens",
        "20",
        "--rounds",
        "1",
        "--requests",
        "2",
        "--clients",
        "2",
    ];
    let (done, json) = measure(&shape);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(json["workload"]["source"], "registered");
    assert_eq!(json["warm"]["blocks"]["memory"], 3);
}

#[test]
fn a_throughput_run_writes_the_rates_of_reading() {
    let shape = ["throughput", "--chunks", "2", "--tokens", "10", "--rounds", "1", "--clients", "2"];
    let (done, json) = measure(&shape);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    has_numbers(
        &json,
        &[
            "/cold_tokens_per_s",
            "/graph_tokens_per_s",
            "/latency_ms/p50",
            "/concurrent/p99_ms",
            "/flops/per_token",
        ],
    );
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "a soak run: run with `make soak`"]
fn a_soak_run_counts_requests_and_memory() {
    let (done, json) = measure(&["soak", "4", "--clients", "3"]);
    let met = |name: &str| json["met"][name] == true;
    assert_eq!(done.status.code(), Some(i32::from(!(met("memory") && met("requests")))), "{json:#}");
    assert_eq!((met("requests"), &json["requests"]["failures"]), (true, &serde_json::json!({})));
    has_numbers(
        &json,
        &["/rss_mb/base", "/rss_mb/max", "/rss_mb/bounds", "/requests/answered", "/blocks/read"],
    );
    assert_eq!(json["rss_mb"]["at_most"].as_f64(), json["rss_mb"]["bounds"].as_f64().map(|mb| mb + 300.0));
}

#[test]
fn an_attribution_run_measures_whole_and_streamed_answers() {
    let (done, json) = measure(&["attribution", "--chunks", "3", "--tokens", "20", "--rounds", "2"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!((&json["answers"], &json["targets"][0]["met"]), (&2.into(), &Value::Null));
    has_numbers(&json, &["/attribute_ms/p50", "/answer_encode_ms", "/ratios/attribution_over_answer/median"]);
    has_numbers(&json, &["/stages_ms/answer"]);
}

#[test]
fn a_middleware_run_measures_what_it_adds() {
    let shape = ["middleware", "--chunks", "3", "--tokens", "60", "--requests", "4"];
    let (done, json) = measure(&shape);
    let is_met = json["targets"][0]["met"].as_bool().unwrap_or_else(|| panic!("{json:#}"));
    assert_eq!(done.status.code(), Some(i32::from(!is_met)), "{done:?}");
    for name in ["direct", "whole", "passed_on", "compressed", "warm_compress"] {
        has_numbers(&json, &[&format!("/{name}_ms/p50"), &format!("/{name}_ms/p99")]);
    }
    let added =
        ["whole", "passed_on", "compressed"].map(|name| json[format!("{name}_added_ms")]["p50"].is_number());
    assert_eq!((added, &json["workload"]["requests"]), ([true; 3], &4.into()));
}

#[test]
#[ignore = "an overload run: run with `make soak`"]
fn an_overload_run_counts_outcomes_of_requests() {
    let (done, json) = measure(&["overload", "3", "--clients", "6", "--chunks", "40"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    has_numbers(
        &json,
        &["/alone/answers_per_s", "/alone/warm_p50_ms", "/warm/answered", "/warm/answered_ms/p50"],
    );
    assert_eq!(json["cold"]["failed"], 0, "{json:#}");
}

/// The loss from evicting keys and values, by RC and by other methods, in the JSON that scripts read.
#[test]
fn kv_measures_every_method_at_every_ratio() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, rows, json) =
        (folder.path().join("facts"), folder.path().join("rows.jsonl"), folder.path().join("out.json"));
    export("models/facts", &model);
    let all = std::fs::read_to_string(in_repository("models/facts/rows.jsonl")).expect("rows");
    std::fs::write(&rows, all.lines().take(6).collect::<Vec<_>>().join("\n")).expect("written");
    let of = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let (model, rows, json) = (of(&model), of(&rows), of(&json));
    let ran = run(&["kv", &rows, "--model", &model, "--json", &json]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("a report")).expect("JSON");
    assert!(report["full_accuracy"].as_f64().is_some_and(|right| right > 0.0), "{report}");
    for ratio in ["2", "4", "8", "16"] {
        for method in [
            "rc",
            "rc_paper",
            "snapkv",
            "ada_snapkv",
            "pyramid_kv",
            "quest",
            "h2o",
            "streaming_llm",
            "key_norm",
            "random",
        ] {
            let of = &report["ratios"][ratio][method];
            let number =
                |field: &str| of[field].as_f64().unwrap_or_else(|| panic!("{ratio} {method} {field}: {of}"));
            let most = 1.0 / ratio.parse::<f64>().expect("a number");
            assert!(
                (0.0..=1.0).contains(&number("accuracy")) && number("kl") >= 0.0,
                "{ratio} {method}: {of}"
            );
            // All methods keep the same number of keys.
            let (kept, of_rc) =
                (number("kept"), report["ratios"][ratio]["rc"]["kept"].as_f64().expect("a number"));
            assert!(
                kept > 0.9 * most && kept <= most && (kept - of_rc).abs() < 1e-12,
                "{ratio} {method}: {of}"
            );
        }
        // Eviction by RC loses less than random eviction.
        let kl = |method: &str| report["ratios"][ratio][method]["kl"].as_f64().expect("a number");
        assert!(kl("rc") < kl("random"), "{ratio}x: {} and {}", kl("rc"), kl("random"));
    }
    assert!(ran.out.contains("all keys: accuracy") && ran.out.contains("snapkv"), "{}", ran.out);

    let short = json!({"query": "what", "chunks": [{"text": "a b c"}], "answers": ["no", "nothing"]});
    let ok = kv_of_row(folder.path(), &model, &short);
    assert_eq!(ok.code, Some(0), "a short text is measured, too: {}", ok.err);
    for (field, value, expect) in [
        ("chunks", json!([]), "question 1: chunks is empty"),
        ("answers", json!([]), "question 1: answers is empty"),
        ("answers", json!(["no", " "]), "question 1: answer \" \" is not read"),
        ("query", json!(""), "question 1: query is empty"),
    ] {
        let mut row = short.clone();
        row[field] = value;
        let ran = kv_of_row(folder.path(), &model, &row);
        assert_eq!(ran.code, Some(1), "{row}: {}", ran.out);
        assert!(ran.err.contains(expect), "{row}: {}", ran.err);
    }

    let encoder = run(&["kv", &rows]);
    assert_eq!(encoder.code, Some(1), "{}", encoder.out);
    assert!(encoder.err.contains("is an encoder; name a decoder"), "{}", encoder.err);

    let decoder = run(&["warm", "--model", &model]);
    assert_eq!(decoder.code, Some(1), "{}", decoder.out);
    assert!(decoder.err.contains("speed is measured of late-interaction models"), "{}", decoder.err);
}
