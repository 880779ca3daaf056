//! Tests with a hub on loopback that has the paths, redirects and headers of huggingface.co.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use super::*;

const COMMIT: &str = "5c38ec7c405ec4b44b94cc5a9bb96e735b38267a";
const WEIGHTS: &[u8] = b"weights, which are large and come from another host";

/// A hub and the host that has its large files.
struct StandIn {
    url: String,
    /// The lines of each request, of both hosts.
    requests: Arc<Mutex<Vec<Vec<String>>>>,
}

fn git_sha1(bytes: &[u8]) -> String {
    hex::encode(Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

fn small_files() -> BTreeMap<&'static str, &'static [u8]> {
    BTreeMap::from([
        ("config.json", &b"{}"[..]),
        ("tokenizer.json", &b"{\"model\": {}}"[..]),
        ("README.md", &b"---\nlicense: mit\n---\n"[..]),
    ])
}

/// What the hub lists. Files that no export needs may be anywhere, and have any name.
fn listing() -> Value {
    let mut siblings: Vec<Value> = small_files()
        .into_iter()
        .map(|(name, bytes)| json!({"rfilename": name, "size": bytes.len(), "blobId": git_sha1(bytes)}))
        .collect();
    siblings.push(json!({
        "rfilename": "model.safetensors", "size": WEIGHTS.len(), "blobId": "0".repeat(40),
        "lfs": {"sha256": hex::encode(Sha256::digest(WEIGHTS)), "size": WEIGHTS.len(), "pointerSize": 134},
    }));
    siblings.extend(
        ["../../etc/passwd", "onnx/model.onnx", "pytorch_model.bin"].map(|name| json!({"rfilename": name})),
    );
    json!({"id": "acme/small", "sha": COMMIT, "private": false, "siblings": siblings})
}

/// Serves requests on a port of loopback until the test process ends.
fn serve(
    answer: impl Fn(&[String]) -> Vec<u8> + Send + 'static,
    requests: Arc<Mutex<Vec<Vec<String>>>>,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream: TcpStream = stream.expect("a connection");
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let request: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            requests.lock().expect("no panic").push(request.clone());
            let _closed = stream.write_all(&answer(&request));
        }
    });
    format!("http://{address}")
}

fn with_status(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Answers with `weights`, from the byte on that a range names.
fn with_range(request: &[String], weights: &[u8]) -> Vec<u8> {
    let range =
        request.iter().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    match range.and_then(|range| range.trim_end_matches('-').parse::<usize>().ok()) {
        Some(from) => with_status("206 Partial Content", "", &weights[from..]),
        None => with_status("200 OK", "", weights),
    }
}

/// Starts a hub whose other host has `weights`, and which lists `listing` for those who have the token, if one is wanted.
fn stand_in(listing: Value, weights: &'static [u8], token: Option<&'static str>) -> StandIn {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let files = serve(move |request| with_range(request, weights), Arc::clone(&requests));
    let answer = move |request: &[String]| {
        let path = request[0].split(' ').nth(1).expect("a path");
        let has_token = token.is_none_or(|token| request.contains(&format!("authorization: Bearer {token}")));
        if !has_token {
            return with_status("401 Unauthorized", "x-error-code: GatedRepo\r\n", b"{}");
        }
        let file = path.strip_prefix(&format!("/acme/small/resolve/{COMMIT}/"));
        match (path, file) {
            (
                "/api/models/acme/small/revision/main?blobs=true"
                | "/api/models/acme/small/revision/v1%2Fa?blobs=true",
                _,
            ) => with_status("200 OK", "content-type: application/json\r\n", listing.to_string().as_bytes()),
            (_, Some("model.safetensors")) => {
                let headers = format!(
                    "location: {files}/blob/1\r\nx-repo-commit: {COMMIT}\r\nx-linked-size: {}\r\n",
                    WEIGHTS.len()
                );
                with_status("302 Found", &headers, b"")
            }
            (_, Some(name)) if small_files().contains_key(name) => {
                with_status("200 OK", "", small_files()[name])
            }
            _ => with_status("404 Not Found", "x-error-code: RepoNotFound\r\n", b"{}"),
        }
    };
    let url = serve(answer, Arc::clone(&requests));
    StandIn { url, requests }
}

impl StandIn {
    fn hub(&self, token: Option<&str>) -> Hub {
        Hub::new(&self.url, token.map(str::to_owned)).expect("a URL")
    }

    fn fetch(&self, target: &Path) -> Result<Snapshot, ProvisionError> {
        let hub = self.hub(None);
        let source = HubSource::Hub(&hub);
        let found = Snapshot::find(&model("acme/small"), Wanted::Checkpoint, &source)?;
        found.fetch(&source, target, &|done, all| assert!(done <= all))?;
        Ok(found)
    }
}

fn model(text: &str) -> HubModel {
    text.parse().expect("a model")
}

#[test]
fn a_model_is_fetched_once_and_taken_from_a_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let hub = stand_in(listing(), WEIGHTS, None);
    let found = hub.fetch(folder.path()).expect("the model");
    assert_eq!((&*found.repo, &*found.revision), ("acme/small", COMMIT));
    assert_eq!(fs::read(folder.path().join("model.safetensors")).expect("the weights"), WEIGHTS);
    let names: Vec<String> = fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    assert_eq!(names.len(), 5, "what an export needs, and the list: {names:?}");
    let asked = |hub: &StandIn| hub.requests.lock().expect("no panic").len();
    let before = asked(&hub);
    hub.fetch(folder.path()).expect("the same");
    assert_eq!(asked(&hub), before + 1, "only the list");

    let copy = tempfile::tempdir().expect("a folder");
    let source = HubSource::Folder(folder.path());
    let again = Snapshot::find(&model(&format!("acme/small@{COMMIT}")), Wanted::Checkpoint, &source)
        .expect("it is there");
    again.fetch(&source, copy.path(), &|_, _| {}).expect("copied");
    assert_eq!(again, found);
    assert!(
        Snapshot::find(&model("acme/small@main"), Wanted::Checkpoint, &source).is_ok(),
        "the branch that was asked for"
    );
    for other in ["acme/other", "acme/small@v2"] {
        let refused = Snapshot::find(&model(other), Wanted::Checkpoint, &source)
            .expect_err("another model")
            .to_string();
        assert!(refused.contains("--download-to"), "{refused}");
    }
    fs::write(folder.path().join("config.json"), "{ }").expect("written");
    let refused = again.fetch(&source, &copy.path().join("x"), &|_, _| {}).expect_err("changed").to_string();
    assert!(refused.contains("config.json is not the file"), "{refused}");
}

#[test]
fn a_download_that_was_stopped_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let partial = folder.path().join("model.safetensors.partial");
    // The other host closes the connection in the middle of the file.
    let cut = stand_in(listing(), &WEIGHTS[..20], None);
    let stopped = cut.fetch(folder.path()).expect_err("cut").to_string();
    assert!(stopped.contains("ended after 20 of"), "{stopped}");
    assert_eq!(fs::read(&partial).expect("it stays"), &WEIGHTS[..20]);

    let hub = stand_in(listing(), WEIGHTS, None);
    hub.fetch(folder.path()).expect("the rest");
    assert_eq!(fs::read(folder.path().join("model.safetensors")).expect("the weights"), WEIGHTS);
    assert!(!partial.exists());
    let requests = hub.requests.lock().expect("no panic");
    assert!(
        requests.iter().flatten().any(|line| line.eq_ignore_ascii_case("range: bytes=20-")),
        "{requests:?}"
    );
}

#[test]
fn files_with_another_content_are_refused_and_not_kept() {
    for weights in [&b"weights, which are large and come from ANOTHER host"[..], &[b'w'; 1_000]] {
        let folder = tempfile::tempdir().expect("a folder");
        let refused =
            stand_in(listing(), weights, None).fetch(folder.path()).expect_err("changed").to_string();
        assert!(refused.contains("model.safetensors is not the file"), "{refused}");
        assert!(!folder.path().join("model.safetensors").exists());
        assert!(!folder.path().join("model.safetensors.partial").exists());
    }
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let hub = stand_in(listing(), WEIGHTS, Some("secret"));
    let refused = hub.fetch(folder.path()).expect_err("no token").to_string();
    assert!(refused.contains("HTTP status 401") && refused.contains("HF_TOKEN"), "{refused}");
    let with_token = hub.hub(Some(" secret\n"));
    assert!(!format!("{with_token:?}").contains("secret"));
    let source = HubSource::Hub(&with_token);
    let found = Snapshot::find(&model("acme/small@v1/a"), Wanted::Checkpoint, &source).expect("the model");
    found.fetch(&source, folder.path(), &|_, _| {}).expect("its files");
    let requests = hub.requests.lock().expect("no panic");
    let of_other_host = requests.iter().filter(|request| request[0].contains("/blob/1")).collect::<Vec<_>>();
    assert_eq!(of_other_host.len(), 1);
    assert!(of_other_host.iter().all(|request| !request.concat().contains("secret")), "{of_other_host:?}");
}

#[test]
fn what_is_missing_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let without = |name: &str| {
        let mut listing = listing();
        listing["siblings"].as_array_mut().expect("a list").retain(|file| file["rfilename"] != name);
        stand_in(listing, WEIGHTS, None).fetch(folder.path()).expect_err("missing").to_string()
    };
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        assert!(without(name).contains(&format!("has no {name}")), "{}", without(name));
    }
    let hub = stand_in(listing(), WEIGHTS, None);
    let hub = hub.hub(None);
    let refused = Snapshot::find(&model("acme/none"), Wanted::Checkpoint, &HubSource::Hub(&hub))
        .expect_err("none")
        .to_string();
    assert!(refused.contains("no model acme/none@main (HTTP status 404)"), "{refused}");
    let odd = stand_in(json!({"sha": "../..", "siblings": []}), WEIGHTS, None).fetch(folder.path());
    assert!(odd.expect_err("no commit").to_string().contains("not what a hub says"));
}

#[test]
fn names_of_models_and_files_lead_nowhere_else() {
    assert_eq!(model("acme/small.v2@refs/pr/1").folder(), "acme--small.v2");
    assert_eq!(
        model("acme/small@v2").to_string() + &model("acme/small@main").to_string(),
        "acme/small@v2acme/small"
    );
    for wrong in ["", "small", "a/b/c", "../b", "a/..", "a/b@", "a/b@../c", "a/b?x", "a/b@v 1", "/b", "a/"] {
        assert!(wrong.parse::<HubModel>().is_err(), "{wrong}");
    }
    for wrong in [
        "../model.safetensors",
        "model-1-of-2.safetensors",
        "model-00001-of-../2.safetensors",
        "models.safetensors",
    ] {
        assert!(!Wanted::Checkpoint.is_needed(wrong), "{wrong}");
    }
    assert!(Wanted::Checkpoint.is_needed("model-00001-of-00002.safetensors"));
    for wrong in [
        "onnx/../model.onnx",
        "../model.onnx",
        "onnx/x/model.onnx",
        ".onnx",
        "onnx/.x.onnx",
        "model.onnx_data",
    ] {
        assert!(!Wanted::Classifier.is_needed(wrong), "{wrong}");
    }
    assert!(Wanted::Classifier.is_needed("onnx/model.onnx"));
    for url in ["", "huggingface.co", "file:///etc"] {
        assert!(Hub::new(url, None).is_err(), "{url}");
    }
    let in_clear =
        Hub::new("http://hub.example", Some("secret".to_owned())).expect_err("in clear").to_string();
    assert!(in_clear.contains("in clear") && !in_clear.contains("secret"), "{in_clear}");
    assert!(
        Hub::new("http://hub.example", None).is_ok()
            && Hub::new("http://[::1]:1", Some("a".to_owned())).is_ok()
    );
}
