//! A user's own model: fetched from a hub, exported, calibrated and used.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::support::{in_checkout, thresher};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Serves the files of a folder as the hub model `acme/small` until the test process ends. Returns the address.
fn hub(folder: &Path) -> String {
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    let files = names.map(|name| (name, fs::read(folder.join(name)).expect("a file")));
    let siblings = files.iter().map(|(name, bytes)| {
        let sha256 = hex::encode(Sha256::digest(bytes));
        json!({"rfilename": name, "size": bytes.len(), "blobId": "", "lfs": {"sha256": sha256, "size": bytes.len()}})
    });
    let list = json!({"sha": COMMIT, "siblings": siblings.collect::<Vec<_>>()}).to_string();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).expect("a request");
            let file = files
                .iter()
                .find(|(name, _)| line.contains(&format!("/acme/small/resolve/{COMMIT}/{name} ")));
            let (status, body) = match file {
                Some((_, bytes)) => ("200 OK", &**bytes),
                None if line.contains("/api/models/acme/small/revision/v1?blobs=true ") => {
                    ("200 OK", list.as_bytes())
                }
                None => ("404 Not Found", &b"{}"[..]),
            };
            let head =
                format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            let _closed = stream.write_all(&[head.as_bytes(), body].concat());
        }
    });
    address
}

/// Returns questions in English, each with the sentence that answers it among others.
fn questions() -> String {
    let row = |at: usize| {
        let chunks = [
            format!(
                "The lighthouse keeper wrote the letter number {at} before the storm came over the harbour."
            ),
            format!("In the market of the old town they sell about {at} baskets of fresh apples every day."),
            "The children walked along the river and looked at the boats for the whole afternoon.".to_owned(),
        ];
        let chunks = chunks.map(|text| json!({"text": text}));
        json!({"query": format!("Who wrote the letter number {at} before the storm?"), "chunks": chunks, "gold": [0]})
    };
    (0..60).map(|at| row(at).to_string() + "\n").collect()
}

#[test]
fn a_model_of_a_hub_is_installed_calibrated_and_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, file) = (folder.path().join("root"), folder.path().join("thresher.toml"));
    fs::create_dir_all(root.join("runtime")).expect("a folder");
    for entry in fs::read_dir(in_checkout("models/.cache/onnxruntime")).expect("the runtime") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, root.join("runtime").join(path.file_name().expect("a name"))).expect("copied");
    }
    let hub = hub(&in_checkout("models/tiny/bert-gelu"));
    let run = |arguments: &[&str], input: &str| {
        let mut command: Command =
            thresher(&[arguments, &["--config", file.to_str().expect("UTF-8")]].concat());
        command
            .env_remove("THRESHER__MODEL__DIR")
            .env_remove("THRESHER_RUNTIME_LIB")
            .env("HF_ENDPOINT", &hub);
        super::cli::run(command, input)
    };
    let init =
        ["init", "--model", "hf:acme/small@v1", "--root", root.to_str().expect("UTF-8"), "--weights", "f32"];
    let installed = run(&init, "");
    assert_eq!(installed.code, Some(0), "{}{}", installed.out, installed.err);
    assert!(installed.out.contains("`thresher calibrate` fits them on your questions"), "{}", installed.out);
    let model = root.join("models/acme--small");
    let contract: toml::Table =
        fs::read_to_string(model.join("contract.toml")).expect("a contract").parse().expect("TOML");
    let source = &contract["source"];
    assert_eq!((source["name"].as_str(), source["revision"].as_str()), (Some("acme/small"), Some(COMMIT)));
    assert!(
        !root
            .join("models")
            .read_dir()
            .expect("a folder")
            .any(|entry| { entry.expect("an entry").file_name().to_string_lossy().starts_with('.') }),
        "what was fetched is gone"
    );
    assert!(run(&init, "").out.contains("small: present"));
    let plain = run(&["init", "--root", init[4]], "");
    assert!(plain.out.contains("acme--small, as the settings name it"), "{}{}", plain.out, plain.err);
    let unknown = run(&["init", "--model", "hf:acme/none", "--root", init[4]], "");
    assert!(unknown.err.contains("no model acme/none@main (HTTP status 404)"), "{}", unknown.err);

    let request = json!({
        "query": "Who wrote the letter number seven before the storm?",
        "chunks": ["The lighthouse keeper wrote the letter number seven before the storm came over the harbour. He gave it to the captain of the ship, who brought it to the town."],
    })
    .to_string();
    let related = || run(&["compress"], &request).json()["related"].clone();
    assert_eq!(related(), Value::Null, "nothing is fitted");
    let rows = folder.path().join("rows.jsonl");
    fs::write(&rows, questions()).expect("written");
    let rows = rows.to_str().expect("UTF-8");
    let dry = run(&["calibrate", rows, "--dry-run"], "");
    assert!(
        dry.out.contains("related from") && dry.out.contains("answerable: AUROC"),
        "{}{}",
        dry.out,
        dry.err
    );
    assert_eq!(related(), Value::Null, "a dry run writes nothing");
    let fitted = run(&["calibrate", rows], "");
    assert_eq!(fitted.code, Some(0), "{}", fitted.err);
    assert_eq!(related(), Value::Bool(true));
    assert!(
        run(&["compress"], &request.replace("{\"query\"", "{\"budget\":{\"coverage\":0.9},\"query\"")).code
            == Some(0)
    );

    let calibration = model.join("calibration.toml");
    let text = fs::read_to_string(&calibration).expect("a calibration");
    let line = text.lines().find(|line| line.starts_with("fingerprint")).expect("it names its export");
    fs::write(&calibration, text.replace(line, &format!("fingerprint = \"{}\"", "0".repeat(64))))
        .expect("written");
    assert_eq!(related(), Value::Null, "it belongs to another model");
    let doctor = run(&["doctor"], "");
    assert!(doctor.out.contains("was made for another model or export"), "{}", doctor.out);
    fs::write(&calibration, "schema = 1").expect("written");
    assert_eq!(related(), Value::Null, "it is of another version");
    fs::write(&calibration, "schema = 2\nmodel = 3").expect("written");
    let refused = run(&["compress"], &request);
    assert!(
        refused.code != Some(0) && refused.err.contains("calibration.toml is no calibration"),
        "{}",
        refused.err
    );
    // Reading one of these would never end.
    for (tool, arguments) in [("mkfifo", &[][..]), ("ln", &["-s", "/dev/zero"])] {
        fs::remove_file(&calibration).expect("the calibration before");
        let made = std::process::Command::new(tool).args(arguments).arg(&calibration).status();
        assert!(made.expect("a tool of the system").success());
        let refused = run(&["compress"], &request);
        assert!(
            refused.code != Some(0) && refused.err.contains("not a regular file"),
            "{tool}: {}",
            refused.err
        );
    }
}
