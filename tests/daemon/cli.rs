//! The commands, run with the real model: standard output, standard error and exit status.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{colbert_source, in_checkout, runtime_lib, thresher};
use serde_json::{Value, json};
use thresher_core::model::contract::Contract;

/// The result of a command.
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {:?}", self.out))
    }
}

pub fn run(mut command: Command, input: &str) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    // A command that refuses its arguments does not read its input.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let done = child.wait_with_output().expect("the command ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: done.status.code(), out: text(done.stdout), err: text(done.stderr) }
}

fn request() -> Value {
    json!({
        "query": "Who discovered penicillin?",
        "chunks": [
            {"id": "fleming", "text": "Alexander Fleming discovered penicillin in 1928. He was born in Scotland."},
            {"id": "rain", "text": "Rain fell on the hills all week.", "metadata": {"page": 3}},
        ],
        "budget": {"tokens": 14},
    })
}

#[test]
fn compress_reads_standard_input_or_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("request.json");
    std::fs::write(&path, request().to_string()).expect("a file");
    let path = path.to_str().expect("UTF-8");
    for (arguments, input) in [
        (vec!["compress"], request().to_string()),
        (vec!["compress", "-"], request().to_string()),
        (vec!["compress", path], String::new()),
    ] {
        let ran = run(thresher(&arguments), &input);
        assert_eq!((ran.code, &*ran.err), (Some(0), ""), "{arguments:?}");
        let answer = ran.json();
        assert_eq!(
            answer["context"], "[1] Alexander Fleming discovered penicillin in 1928.",
            "{arguments:?}"
        );
        assert_eq!(answer["citations"][0]["source"], json!({"start": 0, "end": 48}));
        assert_eq!(answer["citations"][0]["output"], json!({"start": 4, "end": 52}));
        assert_eq!(answer["chunks"][1]["metadata"], json!({"page": 3}));
    }
}

#[test]
fn the_relevance_of_a_chunk_does_not_depend_on_the_others() {
    let relevances = |chunks: &[&str]| -> Vec<f64> {
        let body = json!({"query": "Who discovered penicillin?", "chunks": chunks, "budget": {"ratio": 1}});
        let answer = run(thresher(&["compress"]), &body.to_string()).json();
        let found: Vec<f64> = answer["chunks"]
            .as_array()
            .expect("chunks")
            .iter()
            .map(|chunk| chunk["relevance"].as_f64().expect("it is measured"))
            .collect();
        let highest = found.iter().copied().fold(0.0, f64::max);
        assert_eq!(answer["relevance"].as_f64(), Some(highest), "{answer}");
        found
    };
    let fleming = "Alexander Fleming discovered penicillin in 1928. He was born in Scotland.";
    let both = relevances(&[fleming, "Rain fell on the hills all week."]);
    assert!(both[0] > 0.7 && both[1] < 0.05, "{both:?}");
    let others = relevances(&["Penicillin is an antibiotic.", fleming, "Insulin was discovered by Banting."]);
    assert!((others[1] - both[0]).abs() < 1e-6, "{others:?} {both:?}");
    let german = json!({"query": "Wer hat eigentlich das Penicillin entdeckt, und wann war das?", "chunks": [fleming]});
    let answer = run(thresher(&["compress"]), &german.to_string()).json();
    assert_eq!(answer["chunks"][0]["relevance"], Value::Null, "the model was not fitted on German");
}

#[test]
fn a_coverage_is_no_promise_where_several_passages_seem_to_be_needed() {
    const ALDER: &str = "The Alder Bridge was opened in 1921. It is made of granite, and trams cross it twice an hour. Anglers like its shade.";
    const BIRCH: &str = "The Birch Bridge was opened in 1934. It is made of steel, and barges pass it at night. A kiosk stands beside it.";
    const PENGUINS: &str = "Penguins breed on the southern islands. Their eggs are laid in June.";
    let codes_of = |query: &str, coverage: f64, chunks: &[&str]| {
        let body = json!({"query": query, "chunks": chunks, "budget": {"coverage": coverage}});
        let answer = run(thresher(&["compress"]), &body.to_string()).json();
        let warnings = answer["warnings"].as_array().cloned().unwrap_or_default();
        warnings
            .iter()
            .map(|warning| warning["code"].as_str().expect("a code").to_owned())
            .collect::<Vec<_>>()
    };
    let codes = |query: &str, coverage| codes_of(query, coverage, &[ALDER, BIRCH, PENGUINS]);
    let both = "Which bridge was opened first, the Alder Bridge or the Birch Bridge?";
    assert_eq!(codes(both, 0.8), ["coverage_not_promised"]);
    assert_eq!(codes(both, 0.99), [""; 0], "that much holds for such questions, too");
    assert_eq!(codes("When do penguins lay their eggs?", 0.8), [""; 0], "one passage stands out");
    assert_eq!(
        codes_of("When do penguins lay their eggs?", 0.9, &[PENGUINS, PENGUINS]),
        [""; 0],
        "nothing is left out"
    );
    let turn = |at: usize| {
        format!(
            "{}: {}",
            ["Ann", "Bob"][at % 2],
            ["Lunch was late.", "The bridge was opened in 1921."][usize::from(at == 7)]
        )
    };
    let turns: Vec<String> = (0..16).map(turn).collect();
    let turns: Vec<&str> = turns.iter().map(String::as_str).collect();
    assert_eq!(codes_of("When was the bridge opened?", 0.8, &turns), [""; 0], "turns share their scores");
}

#[test]
fn a_title_that_a_later_sentence_needs_is_counted_before_it_is_written() {
    let title = "Lady Winifred Aldersworth of Whitby and Staithes, keeper of the lighthouse";
    let body = json!({
        "query": "When did she die?",
        "chunks": [
            {"id": "a", "title": title, "text": format!("{title}, was born in 1815. She died in 1852.")},
            "Rain fell on the hills of Whitby all week long in autumn, and nobody was surprised by that.",
        ],
        "related_only": false,
    });
    for tokens in [30, 40, 60] {
        let mut body = body.clone();
        body["budget"] = json!({"tokens": tokens});
        let ran = run(thresher(&["compress"]), &body.to_string());
        assert_eq!(ran.code, Some(0), "{tokens}: {}{}", ran.out, ran.err);
        let answer = ran.json();
        assert!(
            answer["usage"]["tokens_out"].as_u64().is_some_and(|out| (1..=tokens).contains(&out)),
            "{answer}"
        );
        let context = answer["context"].as_str().expect("a context");
        assert!(!context.contains("She died") || context.contains(title), "{context}");
    }
}

fn attribution() -> Value {
    json!({
        "answer": "Alexander Fleming discovered penicillin in 1928. He sold it in 1931.",
        "chunks": [
            {"id": "rain", "text": "Rain fell on the hills all week."},
            {"id": "fleming", "text": "It was a late summer. Alexander Fleming discovered penicillin in 1928, in London."},
        ],
    })
}

#[test]
fn attribute_names_the_source_of_each_part() {
    let ran = run(thresher(&["attribute"]), &attribution().to_string());
    assert_eq!((ran.code, &*ran.err), (Some(0), ""));
    let answer = ran.json();
    let (first, second) = (&answer["parts"][0], &answer["parts"][1]);
    assert_eq!(first["verdict"], "supported", "{first}");
    let source = &first["sources"][0];
    assert_eq!(
        (&source["chunk"], &source["cited"], &source["index"]),
        (&json!("fleming"), &json!(true), &json!(1))
    );
    assert_eq!(source["sentence"]["text"], "Alexander Fleming discovered penicillin in 1928, in London.");
    assert_ne!(second["verdict"], "supported", "{second}");
    assert!(second["unsupported"].to_string().contains("\"number\""), "{second}");
}

#[test]
fn attribute_refuses_requests_with_the_codes_of_the_daemon() {
    for (body, code) in [
        (json!({"answer": "x", "chunks": []}), "field_empty"),
        (json!({"answer": "x", "compress_id": "cmp_1"}), "unavailable"),
        (json!({"answer": "x", "chunk_ids": ["a"]}), "unavailable"),
    ] {
        let ran = run(thresher(&["attribute"]), &body.to_string());
        assert_eq!((ran.code, &ran.json()["error"]["code"]), (Some(1), &json!(code)), "{}", ran.err);
    }
}

#[test]
fn receipts_are_verified_against_the_sources() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, value: &Value| {
        let path = folder.path().join(name);
        std::fs::write(&path, value.to_string()).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let mut request = attribution();
    request["receipt"] = json!(true);
    let mut sign = thresher(&["attribute"]);
    sign.env("THRESHER__RECEIPTS__KEY_FILE", folder.path().join("key.pem"));
    let answer = run(sign, &request.to_string()).json();
    let receipt = write("receipt.json", &answer["receipt"]);
    let verify = |receipt: &str, request: &Value, more: &[&str]| {
        let request = write("request.json", request);
        let ran = run(thresher(&[&["verify", receipt, "--request", &request], more].concat()), "");
        let report = ran.json();
        assert_eq!(ran.code, Some(if report["verified"] == true { 0 } else { 3 }), "{report}");
        report
    };
    let key = answer["receipt"]["signatures"][0]["keyid"].as_str().expect("a key");
    let report = verify(&receipt, &request, &["--public-key", key]);
    assert_eq!(report["verified"], true, "{report}");
    let whole = write("answer.json", &answer);
    let of_answer = verify(&whole, &request, &["--public-key", key]);
    assert_eq!(of_answer["verified"], true, "a response that contains the receipt");
    let anybodys = verify(&receipt, &request, &[]);
    assert_eq!((&anybodys["verified"], &anybodys["signer_checked"]), (&json!(false), &json!(false)));
    assert!(anybodys["receipt_error"].to_string().contains("signed by an unknown key"), "{anybodys}");
    assert_eq!(anybodys["differences"], json!([]));
    let twice = answer["receipt"].to_string().replacen('{', "{\"payload\": \"e30=\", ", 1);
    let twice_file = folder.path().join("twice.json");
    std::fs::write(&twice_file, twice).expect("a file");
    let twice = twice_file.to_str().expect("UTF-8");
    let request_file = write("request.json", &request);
    let ran = run(thresher(&["verify", twice, "--request", &request_file, "--public-key", key]), "");
    assert_eq!((ran.code, ran.err.contains("holds no receipt")), (Some(1), true), "{}", ran.err);
    let other_key = "A".repeat(43) + "=";
    let other = verify(&receipt, &request, &["--public-key", &other_key]);
    assert!(other["receipt_error"].to_string().contains("not by AAAA"), "{other}");
    let written = write("request.json", &request);
    let ran = run(thresher(&["verify", &receipt, "--request", &written, "--public-key", "AAAA"]), "");
    assert_eq!((ran.code, ran.err.contains("no public key")), (Some(1), true), "{}", ran.err);
    // Each change is reported at the field where it was made.
    for (pointer, value, reported) in [
        ("/answer", "Alexander Fleming discovered penicillin in 1929. He sold it in 1931.", "/answer/sha256"),
        ("/chunks/1/text", "Alexander Fleming discovered penicillin in 1929.", "/chunks/1/text/sha256"),
        ("/chunks/0/id", "snow", "/chunks/0/id"),
    ] {
        let mut changed = request.clone();
        *changed.pointer_mut(pointer).expect("a field") = json!(value);
        let report = verify(&receipt, &changed, &[]);
        assert!(
            report["differences"].to_string().contains(&format!("\"{reported}\"")),
            "{pointer}: {report}"
        );
    }
    // Receipts of every kind of parts can be verified.
    let options: [(&str, Value); 4] = [
        ("word", json!({"granularity": "word"})),
        ("spans", json!({"spans": [{"start": 0, "end": 17}, {"start": 29, "end": 39}]})),
        ("values", json!({"answer": "{\"who\": \"Alexander Fleming\", \"when\": 1928}", "format": "json"})),
        ("fallback", json!({"format": "json"})),
    ];
    for (name, fields) in options {
        let mut changed = request.clone();
        for (field, value) in fields.as_object().expect("fields") {
            changed[field] = value.clone();
        }
        let mut sign = thresher(&["attribute"]);
        sign.env("THRESHER__RECEIPTS__KEY_FILE", folder.path().join("key.pem"));
        let receipt = write(name, &run(sign, &changed.to_string()).json()["receipt"]);
        let plain = json!({"answer": changed["answer"], "chunks": changed["chunks"]});
        let report = verify(&receipt, &plain, &["--public-key", key]);
        assert_eq!(report["verified"], true, "{name}: {report}");
        let short = json!({"answer": "é", "chunks": changed["chunks"]});
        assert_eq!(verify(&receipt, &short, &[])["differences"][0]["place"], "/answer/bytes", "{name}");
    }
    let mut titled = request.clone();
    titled["chunks"][0]["title"] = json!("Weather");
    assert!(verify(&receipt, &titled, &[])["differences"].to_string().contains("/chunks/0/title"));
    let mut forged = answer["receipt"].clone();
    let payload = forged["payload"].as_str().expect("base64").replacen('e', "f", 1);
    forged["payload"] = json!(payload);
    let forged = write("forged.json", &forged);
    assert!(
        verify(&forged, &request, &[])["receipt_error"].to_string().contains("does not match the payload")
    );
}

#[test]
fn compress_can_print_only_the_context() {
    let ran = run(thresher(&["compress", "--context"]), &request().to_string());
    assert_eq!((ran.code, &*ran.out), (Some(0), "[1] Alexander Fleming discovered penicillin in 1928.\n"));
}

#[test]
fn text_files_are_compressed_and_attributed_without_a_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("notes.md");
    let text =
        "Alexander Fleming discovered penicillin in 1928. The weather that year was fine. Gulls are loud.\n";
    std::fs::write(&file, text).expect("written");
    let path = file.to_str().expect("UTF-8");
    let question = "Who discovered penicillin?";
    let kept = run(thresher(&["compress", "--query", question, "--tokens", "14", path]), "");
    assert_eq!(
        (kept.code, &*kept.out),
        (Some(0), "[1] Alexander Fleming discovered penicillin in 1928.\n"),
        "{}",
        kept.err
    );
    let json = run(thresher(&["compress", "--query", question, "--json"]), text).json();
    assert_eq!((&json["chunks"][0]["id"], &json["related"]), (&json!("-"), &json!(true)));
    let found =
        run(thresher(&["attribute", "--answer", "Fleming discovered penicillin in 1928.", path]), "").json();
    assert_eq!(found["parts"][0]["verdict"], "supported", "{found}");
    // What everybody tries first says what is missing.
    let ran = run(thresher(&["compress", path]), "");
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("for text files, add --query"), "{}", ran.err);
    std::fs::write(&file, [0x50, 0xff, 0xfe]).expect("written");
    let ran = run(thresher(&["compress", "--query", question, path]), "");
    assert!(ran.code == Some(1) && ran.err.contains("is not UTF-8 text"), "{}", ran.err);
}

#[test]
fn compress_refuses_requests_with_the_codes_of_the_daemon() {
    let with = |name: &str, value: Value| {
        let mut request = request();
        request[name] = value;
        request.to_string()
    };
    let table = [
        ("broken JSON", "{".to_owned(), "invalid_json", Value::Null),
        ("unknown field", with("top_k", json!(3)), "unknown_field", json!("top_k")),
        ("empty query", with("query", json!(" ")), "field_empty", json!("query")),
        (
            "two budgets",
            with("budget", json!({"tokens": 1, "ratio": 0.5})),
            "fields_conflict",
            json!("budget"),
        ),
        (
            "impossible budget",
            with("budget", json!({"tokens": 1})),
            "budget_impossible",
            json!("budget.tokens"),
        ),
        ("no time", with("deadline_ms", json!(0)), "deadline_exceeded", Value::Null),
        (
            "registered chunks",
            json!({"query": "q", "chunk_ids": ["a"]}).to_string(),
            "unavailable",
            json!("chunk_ids"),
        ),
    ];
    for (case, input, code, param) in table {
        let ran = run(thresher(&["compress"]), &input);
        let error = &ran.json()["error"];
        assert_eq!((ran.code, &error["code"], &error["param"]), (Some(1), &json!(code), &param), "{case}");
        assert_eq!(
            ran.err,
            format!("error: {code}: {}\n", error["message"].as_str().expect("text")),
            "{case}"
        );
    }
}

#[test]
fn compress_passes_chunks_through_with_on_error() {
    let mut late = request();
    late["deadline_ms"] = json!(0);
    late["on_error"] = json!("passthrough");
    let ran = run(thresher(&["compress"]), &late.to_string());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let answer = ran.json();
    assert_eq!(answer["degraded"]["code"], "deadline_exceeded");
    for (chunk, sent) in
        answer["chunks"].as_array().expect("a list").iter().zip(late["chunks"].as_array().expect("a list"))
    {
        assert_eq!(chunk["text"], sent["text"]);
    }
}

/// `thresher doctor` with the daemon's files in `folder`, on free ports.
fn doctor(folder: &Path) -> Command {
    let mut command = thresher(&["doctor"]);
    for listener in ["THRESHER__HTTP__LISTEN", "THRESHER__ADMIN__LISTEN"] {
        command.env(listener, "127.0.0.1:0");
    }
    for (setting, path) in [
        ("THRESHER__BLOCKS__DIR", "kv"),
        ("THRESHER__REGISTRY__DIR", "registry"),
        ("THRESHER__ORIGINALS__DIR", "originals"),
        ("THRESHER__RECEIPTS__KEY_FILE", "receipts.pem"),
    ] {
        command.env(setting, folder.join(path));
    }
    command
}

#[test]
fn doctor_reports_a_sound_installation() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = run(doctor(folder.path()), "");
    assert_eq!(ran.code, Some(0), "{}", ran.out);
    let checks: Vec<_> = ran.out.lines().filter_map(|line| line.strip_prefix("  ok      ")).collect();
    let expect = [
        "settings: ",
        "runtime: ",
        "model: minilm-l6 in ",
        "calibration: related, answerable, coverage, support",
        "keys: none (access.keys_file)",
        "tls: none (http.tls_cert_file)",
        "http.listen: 127.0.0.1:",
        "admin.listen: 127.0.0.1:",
        "blocks.dir: /",
        "registry.dir: /",
        "originals.dir: /",
        "receipts.key_file: /",
        "shared tier: none",
        "file modes: ",
        "upstreams: ",
        "device: cpu",
        "answer: a request took ",
    ];
    for (check, line) in expect.iter().zip(&checks) {
        assert!(line.starts_with(check), "{line:?} does not begin with {check:?}");
    }
    assert_eq!(checks.len(), expect.len(), "{}", ran.out);
    assert!(ran.out.ends_with("all is well\n"), "{}", ran.out);
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 0, "doctor has left files");
}

#[test]
fn doctor_warns_of_problems_that_do_not_stop_the_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |command: Command, expect: &[&str], last: &str| {
        let ran = run(command, "");
        assert_eq!(ran.code, Some(0), "{}", ran.out);
        for line in expect {
            assert!(ran.out.contains(line), "{} lacks {line:?}", ran.out);
        }
        assert_eq!(ran.out.matches("  warning ").count(), expect.len(), "{}", ran.out);
        assert!(ran.out.ends_with(&format!("{last}; see above\n")), "{}", ran.out);
        ran.out
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("bound").to_string();
    let mut command = doctor(folder.path());
    command.env("THRESHER__HTTP__LISTEN", &taken);
    check(command, &[&format!("  warning http.listen: {taken} is taken")], "1 warning");

    let mut command = doctor(folder.path());
    command.env("THRESHER__ORIGINALS__DIR", "/dev/null/originals");
    command.env("THRESHER__RECEIPTS__KEY_FILE", "/dev/null/receipts.pem");
    let expect = [
        "  warning originals.dir: conversations cannot be shortened, since their texts cannot be kept: /dev/null is a file",
        "  warning receipts.key_file: no receipt can be signed: cannot read /dev/null/receipts.pem",
    ];
    check(command, &expect, "2 warnings");

    let (key, keys) = (folder.path().join("no-key.pem"), folder.path().join("keys.toml"));
    std::fs::write(&key, "no key").expect("a file");
    let entry = format!("[[key]]\nname = \"a\"\ntenant = \"acme\"\nsha256 = \"{}\"\n", "a".repeat(64));
    std::fs::write(&keys, entry).expect("a file");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&key, mode(0o600)).expect("this user's");
        std::fs::create_dir(folder.path().join("kv")).expect("a folder");
        std::fs::set_permissions(folder.path().join("kv"), mode(0o755)).expect("this user's");
        let line = format!("may use files of the daemon: {}/kv has 0755", folder.path().display());
        check(doctor(folder.path()), &[&line], "1 warning");
        std::fs::remove_dir(folder.path().join("kv")).expect("it is empty");
    }
    let mut command = doctor(folder.path());
    command.env("THRESHER__RECEIPTS__KEY_FILE", &key);
    command.env("THRESHER__ACCESS__KEYS_FILE", &keys).env("THRESHER__HTTP__LISTEN", "0.0.0.0:0");
    let upstreams = r#"[{url = "http://models.example", models = ["m"]}, {url = "https://models.example"}]"#;
    command.env("THRESHER__MIDDLEWARE__UPSTREAMS", upstreams);
    let expect = [
        "no-key.pem holds no key",
        "  warning tls: none (http.tls_cert_file): keys and texts cross the network to 0.0.0.0:0 unencrypted",
        "  warning upstreams: \n            http://models.example is called with the caller's own key; WARNING: keys and texts",
    ];
    let out = check(command, &expect, "3 warnings");
    assert!(out.contains("  ok      keys: read, of 1 tenant\n"), "{out}");
}

#[test]
fn doctor_reports_failures_with_advice() {
    let damaged = tempfile::tempdir().expect("a folder");
    export("models/tiny/bert-gelu", damaged.path(), Some(0));
    let graph = damaged.path().join("query.onnx");
    std::fs::write(&graph, "not this").expect("a file");
    let damaged = damaged.path().to_str().expect("UTF-8");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "no folder").expect("a file");
    let file = file.to_str().expect("UTF-8");
    let is_a_file = format!("FAILED  registry.dir: {file} is a file, not a folder");
    let encoder = tempfile::tempdir().expect("a folder");
    export("models/tiny/bert-gelu", encoder.path(), Some(0));
    let encoder = encoder.path().to_str().expect("UTF-8");
    let table = [
        (
            "no model",
            "THRESHER__MODEL__DIR",
            "/no/model",
            "FAILED  model: no contract.toml in /no/model; run `thresher init`",
        ),
        ("damaged model", "THRESHER__MODEL__DIR", damaged, "contract declares SHA-256 "),
        (
            "no model for exports",
            "THRESHER__MODEL__KV_DIR",
            "/no/model",
            "FAILED  model.kv_dir: no contract.toml in /no/model",
        ),
        (
            "a model that cannot export",
            "THRESHER__MODEL__KV_DIR",
            encoder,
            "FAILED  model.kv_dir: tiny is an encoder",
        ),
        ("no runtime", "THRESHER_RUNTIME_LIB", "/no/lib.so", "run `thresher init`"),
        ("no directory for blocks", "THRESHER__BLOCKS__DIR", "/dev/null/kv", "FAILED  blocks.dir: "),
        (
            "no keys",
            "THRESHER__ACCESS__KEYS_FILE",
            "/no/keys.toml",
            "FAILED  keys: cannot read /no/keys.toml (access.keys_file)",
        ),
        ("no registry", "THRESHER__REGISTRY__DIR", "/dev/null/r", "FAILED  registry.dir: "),
        ("a registry that is a file", "THRESHER__REGISTRY__DIR", file, &*is_a_file),
        (
            "no server",
            "THRESHER__SHARED__URLS",
            "redis://user:hunter2@127.0.0.1:1",
            "FAILED  shared tier: redis://***@127.0.0.1:1 does not answer: connection lost: connection refused",
        ),
        (
            "a provider that is not there",
            "THRESHER__MODEL__DEVICE",
            "cuda:99",
            "FAILED  device: cannot run on cuda:99: ",
        ),
        (
            "no device",
            "THRESHER__MODEL__DEVICE",
            "gpu",
            "FAILED  settings: environment variable THRESHER__MODEL__DEVICE: model.device: device \"gpu\" is not cpu, auto",
        ),
        (
            "no estimator",
            "THRESHER__RC__ESTIMATOR",
            "mean",
            "rc.estimator: unknown variant `mean`, expected one of `peak/ranked+coverage`, `mean/self`, `bound/self`, `probe`",
        ),
        (
            "bad settings",
            "THRESHER__HTTP__PORT",
            "1",
            "FAILED  settings: environment variable THRESHER__HTTP__PORT: http.port: unknown field",
        ),
    ];
    for (case, variable, value, expect) in table {
        let mut command = doctor(folder.path());
        command.env(variable, value);
        let ran = run(command, "");
        assert_eq!(ran.code, Some(1), "{case}: {}", ran.out);
        assert!(ran.out.contains(expect), "{case}: {} lacks {expect:?}", ran.out);
        assert!(ran.out.ends_with("not ready; see above\n"), "{case}: {}", ran.out);
    }
}

/// Exports a directory of the checkout and asserts the exit status.
#[track_caller]
fn export(source: &str, out: &Path, code: Option<i32>) -> Ran {
    let (source, out) = (in_checkout(source), out.to_str().expect("UTF-8"));
    let ran = run(thresher(&["export", source.to_str().expect("UTF-8"), "--out", out, "--name", "tiny"]), "");
    assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
    ran
}

#[test]
fn export_prints_its_result_or_the_reason_of_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("tiny");
    let made = export("models/tiny/bert-gelu", &out, Some(0));
    assert_eq!(made.out, format!("tiny: BertModel in {}\n", out.display()));
    let refused = export("models/no-such-model", &folder.path().join("other"), Some(1));
    let start = format!("error: cannot read {}: ", in_checkout("models/no-such-model/config.json").display());
    assert!(refused.err.starts_with(&start), "{:?}", refused.err);
    assert_eq!(refused.err.matches("os error").count(), 1, "a cause appears twice: {:?}", refused.err);
    assert!(!folder.path().join("other").exists(), "a refused export has left files");
}

#[test]
fn invalid_arguments_and_settings_are_refused() {
    let table: [(&[&str], i32, &str); 5] = [
        (&["compress", "--budget", "3"], 2, "unexpected argument '--budget'"),
        (&["thresh"], 2, "unrecognized subcommand 'thresh'"),
        (&["compress", "/no/request.json"], 1, "error: cannot read /no/request.json: "),
        (&["serve", "--config", "/no/thresher.toml"], 1, "error: cannot read /no/thresher.toml: "),
        (&["export", "models/tiny/bert-gelu"], 2, "--out"),
    ];
    for (arguments, code, expect) in table {
        let ran = run(thresher(arguments), "");
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(expect), "{arguments:?}: {:?}", ran.err);
        assert_eq!(ran.out, "", "{arguments:?}");
    }
}

/// `export`, `calibrate` and `compress` with the small decoder, as docs/models.md shows them.
#[test]
fn a_decoder_can_be_exported_calibrated_and_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("facts");
    assert!(export("models/facts", &out, Some(0)).out.starts_with("tiny: LlamaForCausalLM in "));
    let with = |arguments: &[&str]| {
        let mut command = thresher(arguments);
        command.env("THRESHER__MODEL__DIR", &out);
        command
    };
    let questions = in_checkout("models/facts/questions.jsonl");
    let questions = questions.to_str().expect("UTF-8");
    let contract = || std::fs::read_to_string(out.join("contract.toml")).expect("a contract");

    let before = contract();
    let dry = run(with(&["calibrate", questions, "--dry-run", "--heads", "4", "--by", "expected-rc"]), "");
    assert_eq!(dry.code, Some(0), "{}", dry.err);
    assert!(dry.out.contains("by expected RC on half of 80 questions: "), "{}", dry.out);
    assert_eq!(contract(), before, "a dry run changed the contract");
    let chosen = run(with(&["calibrate", questions, "--heads", "4"]), "");
    assert_eq!(chosen.code, Some(0), "{}", chosen.err);
    assert!(
        chosen.out.contains("by accuracy on half of 80 questions: 3.1 3.3 3.4\n")
            && chosen.out.contains("4 of 5 layers are run and kept"),
        "{}",
        chosen.out
    );
    let written = contract();
    for part in ["[decoder.chosen]", "by = \"accuracy\"", "questions = 80", "held_out = ", "held_out_all = "]
    {
        assert!(written.contains(part), "{part} is not in {written}");
    }
    // A second calibration considers all heads again, not only those of the first one.
    let again = run(with(&["calibrate", questions, "--heads", "4", "--by", "expected-rc"]), "");
    let heads = |out: &str| out.lines().next().map(str::to_owned);
    assert_eq!(heads(&again.out), heads(&dry.out), "{}{}", again.out, again.err);
    run(with(&["calibrate", questions]), "");

    let rows = std::fs::read_to_string(in_checkout("models/facts/rows.jsonl")).expect("rows");
    let rows = rows.lines().map(|row| serde_json::from_str::<Value>(row).expect("JSON"));
    let rows: Vec<Value> = rows.filter(|row| row["kind"] == "single").take(12).collect();
    let mut found = 0;
    for row in &rows {
        let request = json!({"query": row["query"], "chunks": row["chunks"], "granularity": "chunk", "budget": {"ratio": 0.3}});
        let ran = run(with(&["compress"]), &request.to_string());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let answer: Value = serde_json::from_str(&ran.out).expect("JSON");
        let gold = row["gold"][0].as_u64().expect("an index") as usize;
        found += usize::from(answer["chunks"][gold]["kept"] == true);
        assert_eq!(answer["relevance"], Value::Null, "a decoder reports no largest cosine");
        for citation in answer["citations"].as_array().expect("an array") {
            let text = citation["text"].as_str().expect("text");
            assert!(
                row["chunks"]
                    .as_array()
                    .expect("chunks")
                    .iter()
                    .any(|chunk| chunk["text"].as_str().expect("text").contains(text))
            );
        }
    }
    // Six of twenty chunks are kept, so chance would keep less than a third of the needed ones.
    assert!(found >= 10, "{found} of 12 needed chunks are kept");

    let answers = folder.path().join("answers.jsonl");
    std::fs::write(&answers, r#"{"answer": "No.", "spans": [], "chunks": [{"text": "No."}]}"#)
        .expect("written");
    let refused = run(with(&["calibrate", answers.to_str().expect("UTF-8")]), "");
    assert!(
        refused.code == Some(1) && refused.err.contains("has answers; heads and probes need questions"),
        "{}",
        refused.err
    );
}

/// A probe of the small decoder is trained, selects better than RC over all heads, and belongs to its model.
#[test]
fn a_probe_can_be_trained_and_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("facts");
    export("models/facts", &out, Some(0));
    let with = |estimator: &str, arguments: &[&str]| {
        let mut command = thresher(arguments);
        command.env("THRESHER__MODEL__DIR", &out).env("THRESHER__RC__ESTIMATOR", estimator);
        command
    };
    let questions = in_checkout("models/facts/questions.jsonl");
    let questions = questions.to_str().expect("UTF-8");
    let rows = std::fs::read_to_string(in_checkout("models/facts/rows.jsonl")).expect("rows");
    let single: Vec<&str> = rows.lines().filter(|row| row.contains("\"kind\": \"single\"")).collect();
    let first: Value = serde_json::from_str(single[0]).expect("JSON");
    let request = json!({"query": first["query"], "chunks": first["chunks"], "explain": true, "budget": {"ratio": 0.1}});
    let request = request.to_string();
    let (file, report) = (folder.path().join("single.jsonl"), folder.path().join("report.json"));
    std::fs::write(&file, single.join("\n")).expect("written");
    let recall = |estimator: &str, method: &str| {
        let [file, report] = [&file, &report].map(|path| path.to_str().expect("UTF-8"));
        let ran = run(with(estimator, &["eval", file, "--json", report]), "");
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let json: Value = serde_json::from_slice(&std::fs::read(report).expect("a report")).expect("JSON");
        json["methods"][method]["recall_at_gold"].as_f64().expect("a number")
    };

    let none = run(with("probe", &["compress"]), &request);
    assert!(none.err.contains("has no probe; train one with `thresher calibrate --probe"), "{}", none.err);
    let before = std::fs::read_to_string(out.join("contract.toml")).expect("a contract");
    let dry = run(with("probe", &["calibrate", "--probe", questions, "--dry-run"]), "");
    assert_eq!(dry.code, Some(0), "{}", dry.err);
    assert_eq!(std::fs::read_to_string(out.join("contract.toml")).expect("a contract"), before, "a dry run");
    let prompt = ["--template", "Question: {question}\nAnswer:", "--layers", "4"];
    let other = run(with("probe", &[&["calibrate", "--probe", questions], &prompt[..]].concat()), "");
    // Without chosen heads, RC needs all layers.
    assert!(other.out.contains("5 of 5 layers are run"), "{}{}", other.out, other.err);
    let trained = run(with("probe", &["calibrate", "--probe", questions]), "");
    assert_eq!(trained.code, Some(0), "{}", trained.err);
    for part in
        ["  probe        ", "  chosen heads ", "  all heads    ", "  BM25         ", "5 of 5 layers are run"]
    {
        assert!(trained.out.contains(part), "{part} is not in {}", trained.out);
    }
    let by_probe = recall("probe", "probe over int8");
    let by_rc = recall("peak/ranked+coverage", "peak/ranked+coverage");
    assert!(by_probe > by_rc && by_probe > 0.95, "R@gold: {by_probe} by the probe, {by_rc} by RC");

    let sentences = run(with("probe", &["compress"]), &request);
    assert_eq!(sentences.code, Some(0), "{}", sentences.err);
    let answer: Value = serde_json::from_str(&sentences.out).expect("JSON");
    assert_eq!((&answer["rc"]["estimator"], &answer["related"]), (&json!("probe"), &Value::Null));
    assert_eq!(answer.get("explain"), None, "RC does not explain a probe");
    let gold = first["gold"][0].as_u64().expect("an index") as usize;
    assert_eq!(answer["chunks"][gold]["kept"], true, "{answer}");
    let scores = answer["chunks"].as_array().expect("chunks").iter().map(|chunk| chunk["score"].as_f64());
    assert!(scores.clone().all(|score| score.is_some_and(|score| (0.0..=1.0).contains(&score))), "{answer}");

    let contract = std::fs::read_to_string(out.join("contract.toml")).expect("a contract");
    let (others, own) = contract.split_at(contract.find("[decoder.probe]").expect("a probe"));
    let at = own.find("weights = \"").expect("a hash") + "weights = \"".len();
    let changed = format!("{others}{}{}{}", &own[..at], "0".repeat(64), &own[at + 64..]);
    std::fs::write(out.join("contract.toml"), changed).expect("written");
    let other = run(with("probe", &["compress"]), &request);
    assert!(other.err.contains(&format!("trained with the weights {}", "0".repeat(64))), "{}", other.err);
}

#[test]
fn requests_that_a_decoder_does_not_support_are_refused_with_advice() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("tiny");
    export("models/tiny/llama", &out, Some(0));
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let chunks = json!([{"text": "the tide rose in the sea"}, {"text": "a late moon"}]);
    let labelled = json!({"query": "the moon", "chunks": chunks, "gold": [1]}).to_string();
    let (one, beyond) = (write("one", &labelled), write("beyond", &labelled.replace("[1]", "[7]")));
    let empty = write("empty", "\n");
    let unlabelled = write("unlabelled", &format!("{labelled}\n{}", json!({"query": "a", "chunks": chunks})));
    let bert = folder.path().join("bert");
    export("models/tiny/bert-gelu", &bert, Some(0));
    let no_chunks = write("no-chunks", &json!({"query": "a", "chunks": []}).to_string());
    let table: [(&str, &Path, Vec<&str>, &str); 12] = [
        ("no chunks", &out, vec!["calibrate", &no_chunks], "question 1: chunks is empty"),
        ("an encoder", &bert, vec!["calibrate", &one, "--by", "accuracy"], "tiny is not a decoder"),
        ("no file", &out, vec!["calibrate", "/no/questions.jsonl"], "cannot read /no/questions.jsonl"),
        ("no question", &out, vec!["calibrate", &empty], "holds no row"),
        ("one question", &out, vec!["calibrate", &one], "at least two are needed"),
        (
            "a label beyond the chunks",
            &out,
            vec!["calibrate", &beyond],
            "question 1: gold names chunk 7 of 2",
        ),
        (
            "labels are missing",
            &out,
            vec!["calibrate", &unlabelled, "--by", "accuracy"],
            "only where every question has \"gold\"",
        ),
        ("no heads", &out, vec!["calibrate", &one, "--heads", "0"], "--heads"),
        (
            "too few labels for a probe",
            &out,
            vec!["calibrate", "--probe", &one],
            "1 of these 1 questions are such",
        ),
        (
            "no labels for a probe",
            &out,
            vec!["calibrate", "--probe", &unlabelled],
            "a probe needs at least 20 questions whose \"gold\"",
        ),
        (
            "a template without a question",
            &out,
            vec!["calibrate", "--probe", &one, "--template", "Answer:"],
            "--template is \"Answer:\"; it must contain {question} once",
        ),
        (
            "more layers than the model has",
            &out,
            vec!["calibrate", "--probe", &one, "--layers", "99"],
            "--layers is 99; tiny has",
        ),
    ];
    for (case, model, arguments, expect) in table {
        let mut command = thresher(&arguments);
        command.env("THRESHER__MODEL__DIR", model);
        let ran = run(command, "");
        assert_ne!(ran.code, Some(0), "{case}: {}", ran.out);
        assert!(ran.err.contains(expect), "{case}: {:?} lacks {expect:?}", ran.err);
    }
    let mut command = thresher(&["compress"]);
    command.env("THRESHER__MODEL__DIR", &out);
    let long = json!({"query": "the tide ".repeat(20), "chunks": chunks}).to_string();
    let ran = run(command, &long);
    assert!(ran.err.contains("the model's context has room for 31 beside a chunk"), "{:?}", ran.err);
    // An edited contract, with other rotary frequencies than the graph's.
    let contract = std::fs::read_to_string(out.join("contract.toml")).expect("a contract");
    std::fs::write(out.join("contract.toml"), contract.replace("frequencies = [1.0", "frequencies = [7.0"))
        .expect("written");
    let mut command = thresher(&["compress"]);
    command.env("THRESHER__MODEL__DIR", &out);
    let ran = run(command, &json!({"query": "the tide", "chunks": chunks}).to_string());
    assert!(ran.err.contains("graph has other rotary frequencies"), "{:?}", ran.err);
    // The contract of another model in this model's directory.
    std::fs::copy(bert.join("contract.toml"), out.join("contract.toml")).expect("a copy");
    let mut command = thresher(&["compress"]);
    command.env("THRESHER__MODEL__DIR", &out);
    let ran = run(command, &json!({"query": "the tide", "chunks": chunks}).to_string());
    assert!(ran.err.contains("passage.onnx, which does not exist; export the model again"), "{:?}", ran.err);
}

/// `calibrate --kv` chooses how keys are evicted, and writes it to the contract.
#[test]
fn calibrate_kv_writes_the_form_of_eviction() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("facts");
    export("models/facts", &out, Some(0));
    let contract = || std::fs::read_to_string(out.join("contract.toml")).expect("a contract");
    let model = out.to_str().expect("UTF-8");
    let questions = in_checkout("models/facts/questions.jsonl");
    let calibrate = |file: &std::path::Path, more: &[&str]| {
        let mut command = thresher(&[&["calibrate", "--kv", file.to_str().expect("UTF-8")], more].concat());
        command.env("THRESHER__MODEL__DIR", model);
        run(command, "")
    };
    let before = contract();
    let dry = calibrate(&questions, &["--rows", "8", "--dry-run"]);
    assert_eq!((dry.code, contract()), (Some(0), before.clone()), "{}", dry.err);
    let ran = calibrate(&questions, &["--rows", "12"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for expect in ["on the other half", "snapkv", "chosen: ", "written to "] {
        assert!(ran.out.contains(expect), "{expect}: {}", ran.out);
    }
    let after = contract();
    for expect in ["[decoder.eviction]", "[decoder.eviction.form]", "questions = 12"] {
        assert!(after.contains(expect), "{expect}: {after}");
    }
    assert!(after.starts_with(before.split("[files]").next().expect("a part")), "nothing else changes");

    // A file without answers is enough.
    let few = std::fs::read_to_string(&questions).expect("questions");
    let without_answers = |line: &str| {
        let mut row: Value = serde_json::from_str(line).expect("JSON");
        row.as_object_mut().expect("an object").remove("answers");
        row.to_string()
    };
    let lines: Vec<String> = few.lines().take(8).map(without_answers).collect();
    let unlabelled = folder.path().join("unlabelled.jsonl");
    std::fs::write(&unlabelled, lines.join("\n")).expect("written");
    let ran = calibrate(&unlabelled, &["--dry-run"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);

    let short = folder.path().join("short.jsonl");
    std::fs::write(&short, lines[..3].join("\n")).expect("written");
    for (name, file, more, expect) in [
        ("too few questions", &short, &[][..], "has 3 questions; at least 8 are needed"),
        (
            "no question in the template",
            &questions,
            &["--template", "Answer:"],
            "does not contain {question}",
        ),
        ("no rows", &questions, &["--rows", "0"], "must be 1 or more"),
        ("two choices at once", &questions, &["--probe"], "cannot be used with"),
    ] {
        let ran = calibrate(file, more);
        assert!(ran.code != Some(0) && ran.err.contains(expect), "{name}: {}", ran.err);
    }
}

/// The options are a symbol that jemalloc looks for. Without it, the program would use several times as much memory.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn the_program_allocates_with_its_options() {
    let mut command = thresher(&["--version"]);
    command.env("MALLOC_CONF", "stats_print:true,stats_print_opts:a");
    let printed = run(command, "").err;
    for option in ["narenas: 1", "oversize_threshold: 0", "background_thread: true", "dirty_decay_ms: 1000"] {
        assert!(printed.contains(&format!("opt.{option}")), "{option} is not among the options: {printed}");
    }
}

/// Names and texts that a caller or a provider chooses must not control the terminal on which they are shown.
#[test]
fn control_characters_are_shown_as_escapes() {
    let folder = tempfile::tempdir().expect("a folder");
    let red = "\u{1b}[31m\u{9b}red";
    let exchange = json!({
        "path": "/v1/chat/completions",
        "request": {"model": red, "messages": [{"role": "user", "content": "Who?"}]},
        "usage": {"prompt_tokens": 9, "completion_tokens": 1},
    });
    let absent = folder.path().join(red);
    let mut of_absent_model = doctor(folder.path());
    of_absent_model.env("THRESHER__MODEL__DIR", &absent);
    let runs = [
        run(thresher(&["report", "-"]), &exchange.to_string()),
        run(thresher(&["export", absent.to_str().expect("UTF-8"), "--out", "unused"]), ""),
        run(of_absent_model, ""),
    ];
    for ran in runs {
        let shown = format!("{}{}", ran.out, ran.err);
        assert!(shown.contains("\\u{1b}[31m\\u{9b}red"), "{shown:?}");
        assert!(!shown.contains(['\u{1b}', '\u{9b}']), "{shown:?}");
    }
}

/// Reading one of them would never end.
#[cfg(unix)]
#[test]
fn a_checkpoint_with_a_pipe_or_a_device_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let made = Command::new("mkfifo").arg(folder.path().join("config.json")).status();
    assert!(made.expect("mkfifo").success());
    let device = folder.path().join("device");
    std::fs::create_dir(&device).expect("a folder");
    std::os::unix::fs::symlink("/dev/zero", device.join("config.json")).expect("a link");
    for source in [folder.path(), &device] {
        let ran = run(
            thresher(&["export", source.to_str().expect("UTF-8"), "--out", out.to_str().expect("UTF-8")]),
            "",
        );
        assert_eq!(ran.code, Some(1), "{}", ran.err);
        assert!(ran.err.contains("config.json") && ran.err.contains("not a regular file"), "{}", ran.err);
    }
}

/// What was fetched is deleted, and a file that is not the pinned one leaves nothing behind.
#[test]
fn init_installs_colbert_from_the_pinned_file_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, root) = (folder.path().join("from"), folder.path().join("root"));
    let source = colbert_source();
    let model = from.join("answerai-colbert-small-v1");
    std::fs::create_dir_all(&model).expect("a folder");
    std::os::unix::fs::symlink(runtime_lib().parent().expect("a folder"), from.join("onnxruntime"))
        .expect("a link");
    for file in std::fs::read_dir(&source).expect("the model").map(|entry| entry.expect("a file").file_name())
    {
        std::fs::copy(source.join(&file), model.join(&file)).expect("copied");
    }
    let init = || {
        let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let arguments = ["init", "--model", "colbert", "--weights", "int8", "--from"].map(str::to_owned);
        let places = [
            path(&from),
            "--root".into(),
            path(&root),
            "--config".into(),
            path(&folder.path().join("t.toml")),
        ];
        let all: Vec<&str> = arguments.iter().chain(&places).map(String::as_str).collect();
        run(thresher(&all), "")
    };
    let sound = std::fs::read(model.join("model.onnx")).expect("the file");
    std::fs::write(model.join("model.onnx"), [&sound[..1000], b"!", &sound[1001..]].concat())
        .expect("written");
    let ran = init();
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.err.contains("model.onnx"), "{}", ran.err);
    assert!(!root.join("models/answerai-colbert-small").exists());

    std::fs::write(model.join("model.onnx"), sound).expect("written");
    let ran = init();
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("answerai-colbert-small: exported to"), "{}", ran.out);
    assert!(!ran.out.contains("nothing is fitted for this model"), "{}", ran.out);
    let left = std::fs::read_dir(root.join("models"))
        .expect("models")
        .map(|entry| entry.expect("an entry").file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["answerai-colbert-small"]);
    let contract = Contract::load(&root.join("models/answerai-colbert-small")).expect("a contract");
    assert_eq!(contract.source.licence.as_deref(), Some("apache-2.0"));
    assert!(init().out.contains("answerai-colbert-small: present"));
}

/// The question is in another language than the texts, and shares no word with the one that answers it.
#[test]
fn init_installs_the_multilingual_model_which_answers_across_languages() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, file) = (folder.path().join("root"), folder.path().join("thresher.toml"));
    let (root, file) = (root.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
    let from = in_checkout("models/.cache");
    let from = from.to_str().expect("UTF-8");
    // The settings file alone names the model and the runtime.
    let thresher = |arguments: &[&str]| {
        let mut command = thresher(arguments);
        command.env_remove("THRESHER__MODEL__DIR").env_remove("THRESHER_RUNTIME_LIB");
        command
    };
    let init = ["init", "--model", "multilingual", "--weights", "int8", "--from", from];
    let ran = run(thresher(&[&init[..], &["--root", root, "--config", file]].concat()), "");
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("multilingual-e5-small: exported to"), "{}", ran.out);
    let again = run(thresher(&["init", "--from", from, "--root", root, "--config", file]), "");
    assert!(again.out.contains("multilingual-e5-small: present"), "the settings name it: {}", again.out);

    let request = json!({
        "query": "Wann legt die Fähre ab?",
        "chunks": ["The boat to the island departs at seven.", "Bread is sold at the market every morning."],
        "budget": {"tokens": 14},
    });
    let ran = run(thresher(&["compress", "--config", file]), &request.to_string());
    let found = ran.json();
    assert_eq!(found["context"], "[1] The boat to the island departs at seven.", "{}", ran.err);
    assert_eq!((&found["related"], &found["answerable"]), (&Value::Null, &Value::Null));
    let german = json!({
        "query": "Wann legt die Fähre zur Insel ab?",
        "chunks": ["Die Fähre zur Insel legt jeden Morgen um sieben Uhr ab und kehrt am Abend zurück."],
    });
    let found = run(thresher(&["compress", "--config", file]), &german.to_string()).json();
    assert_eq!(
        (&found["related"], &found["answerable"]["answerable"]),
        (&Value::Bool(true), &Value::Bool(true)),
        "{found}"
    );
    let judged = |answer: &str| {
        let chunks =
            ["The boat to the island departs at 7:30 in the morning, and the crossing takes one hour."];
        let request = json!({"answer": answer, "chunks": chunks}).to_string();
        run(thresher(&["attribute", "--config", file]), &request).json()["parts"][0].clone()
    };
    let (same, other) = (
        judged("Das Schiff zur Insel fährt um 7:30 Uhr ab."),
        judged("Das Schiff zur Insel fährt um 9:30 Uhr ab."),
    );
    assert_eq!(same["verdict"], "unjudged", "{same}");
    assert!(!other["unsupported"].as_array().expect("a list").is_empty(), "{other}");
    assert_ne!(other["verdict"], "supported", "{other}");
}
