//! `thresher bench`: the JSON that it writes and its exit status, in short runs with the real model. No test
//! asserts a time.

use std::process::Output;

use crate::support::thresher;
use serde_json::Value;

/// Runs `thresher bench` with these arguments. Returns its output and the JSON that it has written.
fn bench(arguments: &[&str]) -> (Output, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("bench.json");
    let mut command = thresher(&["bench", "--workers", "2", "--json", json.to_str().expect("UTF-8")]);
    command.args(arguments).env("TMPDIR", folder.path());
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
    let shape = ["--chunks", "3", "--tokens", "20", "--rounds", "2", "--requests", "4", "--clients", "2"];
    let (done, json) = bench(&shape);
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
    let (done, json) = bench(&shape);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(json["workload"]["source"], "registered");
    assert_eq!(json["warm"]["blocks"]["memory"], 3);
}

#[test]
fn a_throughput_run_writes_the_rates_of_reading() {
    let shape = ["--throughput", "--chunks", "2", "--tokens", "10", "--rounds", "1", "--clients", "2"];
    let (done, json) = bench(&shape);
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
    let (done, json) = bench(&["--soak", "4", "--clients", "3"]);
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
    let (done, json) = bench(&["--attribution", "--chunks", "3", "--tokens", "20", "--rounds", "2"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!((&json["answers"], &json["targets"][0]["met"]), (&2.into(), &Value::Null));
    has_numbers(&json, &["/attribute_ms/p50", "/answer_encode_ms", "/ratios/attribution_over_answer/median"]);
    has_numbers(&json, &["/arriving_sentence_ms/p50", "/arriving_sentence_ms/p99", "/stages_ms/answer"]);
}

#[test]
fn a_middleware_run_measures_what_it_adds() {
    let shape = ["--middleware", "--chunks", "3", "--tokens", "60", "--requests", "4"];
    let (done, json) = bench(&shape);
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
    let (done, json) = bench(&["--overload", "3", "--clients", "6", "--chunks", "40"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    has_numbers(
        &json,
        &["/alone/answers_per_s", "/alone/warm_p50_ms", "/warm/answered", "/warm/answered_ms/p50"],
    );
    assert_eq!(json["cold"]["failed"], 0, "{json:#}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_hostile_run_reports_for_each_aim_whether_it_held() {
    let (done, json) = bench(&["--hostile", "--rows", "hosts,bad-block"]);
    let rows = json["rows"].as_array().expect("a list");
    let named = |name: &str| rows.iter().filter(|row| row["name"] == name).collect::<Vec<_>>();
    assert_eq!(rows.len(), named("hosts").len() + named("bad-block").len(), "no other rows: {json:#}");
    let held =
        |row: &Value| row["held"].as_bool().unwrap_or_else(|| panic!("the row was not tried: {row:#}"));
    for row in rows {
        let reached = row["reached"].as_f64().expect("a number");
        let within = row["at_most"].as_f64().is_none_or(|most| reached <= most)
            && row["at_least"].as_f64().is_none_or(|least| reached >= least);
        assert_eq!(held(row), within, "{row:#}");
        assert!(row["attack"].is_string() && row["aim"].is_string(), "{row:#}");
    }
    let passed = rows.iter().all(held);
    assert_eq!((&json["passed"], done.status.code()), (&passed.into(), Some(i32::from(!passed))), "{done:?}");
    // The attacks reach the daemon: it answers allowed requests and survives damage on disk.
    let aim = |name: &str, aim: &str| {
        let found =
            named(name).into_iter().find(|row| row["aim"].as_str().is_some_and(|text| text.contains(aim)));
        found.unwrap_or_else(|| panic!("{aim:?} in {json:#}"))
    };
    assert!(held(aim("hosts", "loopback names")), "{json:#}");
    assert!(held(aim("bad-block", "same context")), "{json:#}");
}

#[test]
fn an_unknown_row_is_refused() {
    let done = thresher(&["bench", "--hostile", "--rows", "hosts,host"]).output().expect("the binary starts");
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("there is no row \"host\"") && stderr.contains("rank-fields"), "{stderr}");
}
