//! Rows about data on disk: a full disk, file permissions, damaged files, and a process that is killed while
//! it writes.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use fastrand::Rng;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Finding;
use crate::clients::HttpRequest;
use crate::process::{DaemonProcess, Setup};
use crate::tenants::create_key;
use thresher_lab::client::{Caller, HttpResponse};
use thresher_lab::upstream::{Script, Upstream};
use thresher_lab::workload::{prose_of, seeded};

/// Directory in which a daemon with default settings keeps its data.
const DATA: &str = "data";

/// Size of the small disk, in bytes.
const DISK_BYTES: u64 = 16 << 20;

/// Conversations that are sent while the disk is full, and that must succeed afterwards.
const CONVERSATIONS: usize = 5;

/// Clients that go on with a conversation meanwhile, and the turns that each of them sends.
const CLIENTS: usize = 4;
const TURNS_WHILE_FULL: usize = 25;

/// How long the daemon may take to notice free space.
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(20);

/// Approximate number of tokens of a tool result that is compressed.
const TOOL_RESULT_TOKENS: usize = 600;

/// How often files are damaged.
const DAMAGE_ROUNDS: u64 = 3;

/// Clients that write while the daemon is killed.
const WRITERS: usize = 4;

/// How long they write.
const WRITE_TIME: Duration = Duration::from_secs(4);

/// Time after which nothing of what was deleted is in any file.
const DELETION_TIME_MAX: Duration = Duration::from_secs(60);

/// Expected modes of directories and files.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A tmpfs file system, unmounted when dropped.
pub struct Mount(PathBuf);

impl Mount {
    /// Mounts a file system; returns `None` if this user may not mount.
    pub fn new(at: &Path, bytes: u64) -> Option<Self> {
        fs::create_dir_all(at).ok()?;
        let options = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.to_owned()))
    }

    /// Fills the file system with one file, and returns its path.
    pub fn fill(&self) -> anyhow::Result<PathBuf> {
        let ballast = self.0.join("ballast");
        let mut file = fs::File::create(&ballast)?;
        let mut bytes = vec![0; 1 << 20];
        while !bytes.is_empty() {
            if file.write_all(&bytes).is_err() {
                bytes.truncate(bytes.len() / 2);
            }
        }
        Ok(ballast)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A lazy unmount works even if files are open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Runs the row `deletion`.
pub async fn deletion(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let mut sandbox = setup.sandbox()?;
    let bearers = [create_key(&sandbox, "a")?, create_key(&sandbox, "b")?].map(|key| format!("Bearer {key}"));
    sandbox.set("access.keys_file", "keys.toml");
    let daemon = sandbox.start().await?;
    let caller = daemon.caller();
    // Words that nothing else contains: of a text, its title and its metadata, and of a text of the other tenant.
    let secrets = ["qzvtext", "qzvtitle", "qzvmetadata", "qzvtenant"];
    let [text, title, metadata, of_tenant] = secrets;
    for (bearer, word) in bearers.iter().zip([text, of_tenant]) {
        let text = format!("The tide of {word} is at noon. Ships are slow.");
        let chunk = json!({"id": "secret", "text": text, "title": title, "metadata": {"note": metadata}});
        let kept = json!({"id": "kept", "text": "The pilot waits for the tide."});
        let headers = [("authorization", bearer.as_str())];
        for (path, body) in [
            ("/v1/chunks", json!({"chunks": [chunk, kept]})),
            ("/v1/compress", json!({"query": "When is the tide?", "chunk_ids": ["secret", "kept"]})),
        ] {
            let response = HttpRequest::post(path, body.to_string()).with(&headers).send(&caller).await?;
            ensure!(response.status.is_success(), "{path} was answered with {}", response.status);
        }
    }
    let data = sandbox.path().join(DATA);
    sleep(Duration::from_secs(2)).await;
    let found = |words: &[&str]| -> anyhow::Result<usize> {
        let mut count = 0;
        for (file, _) in entries(&data)?.into_iter().filter(|(_, is_directory)| !is_directory) {
            // A file may be gone by now.
            let bytes = fs::read(&file).unwrap_or_default();
            let has = |word: &&&str| bytes.windows(word.len()).any(|window| window == word.as_bytes());
            count += words.iter().filter(has).count();
        }
        Ok(count)
    };
    let before = found(&secrets)?;
    let headers = [("authorization", bearers[0].as_str())];
    let body = json!({"ids": ["secret"]}).to_string();
    let deleted = HttpRequest::post("/v1/chunks/delete", body).with(&headers).send(&caller).await?;
    let admin = Caller::new(daemon.admin());
    let request = HttpRequest { method: hyper::Method::DELETE, ..HttpRequest::get("/admin/tenants/b") };
    let tenant = request.send(&admin).await?;
    let until = Instant::now() + DELETION_TIME_MAX;
    let mut left = found(&secrets)?;
    while left > 0 && Instant::now() < until {
        sleep(Duration::from_secs(2)).await;
        left = found(&secrets)?;
    }
    let kept = HttpRequest::get("/v1/chunks/kept").with(&headers).send(&caller).await?;
    Ok(vec![
        Finding::at_least("words in files before the deletion", before as f64, 1.0),
        Finding::is_true("deleting is answered", deleted.status.is_success() && tenant.status.is_success())
            .note(format!("{}, {}", deleted.status, tenant.status)),
        Finding::at_most("words in files a minute after the deletion", left as f64, 0.0),
        Finding::is_true("the other chunk is there", kept.status.is_success()),
    ])
}

/// Runs the row `full-disk`.
pub async fn full_disk(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let mut sandbox = setup.sandbox()?;
    let mut conversations = Vec::new();
    for number in 0..CLIENTS {
        conversations.push(StoredConversation::new(number, Upstream::start(Script::ShortAnswer).await?));
    }
    let upstreams = conversations.iter().map(|one| one.upstream.setting_with_model(&one.model));
    sandbox.set("middleware.upstreams", upstreams.collect::<Vec<toml::Value>>());
    sandbox.set("middleware.tools", vec!["*".to_owned()]);
    let originals = sandbox.path().join(DATA).join("originals");
    let Some(disk) = Mount::new(&originals, DISK_BYTES) else {
        return Ok(vec![Finding::skipped("a full disk", "this user may not mount a file system (tmpfs)")]);
    };
    let daemon = sandbox.start().await?;
    let caller = daemon.caller();
    let mut rng = seeded(0, "hostile disk");
    let first = compress_conversation(&caller, &mut rng).await?;
    ensure!(first.status == StatusCode::OK, "a conversation was answered with {}", first.status);
    for conversation in &mut conversations {
        conversation.store_first_turn(&caller).await?;
    }
    let ballast = disk.fill()?;
    let mut clients = JoinSet::new();
    for conversation in conversations {
        clients.spawn(conversation.count_changes(daemon.caller()));
    }
    let mut while_full = Vec::new();
    for _ in 0..CONVERSATIONS {
        while_full.push(compress_conversation(&caller, &mut rng).await?.status.as_u16());
    }
    let answered = while_full.iter().filter(|status| **status == 200).count();
    let alive = Finding::at_least(
        "conversations answered while the disk is full",
        answered as f64,
        CONVERSATIONS as f64,
    )
    .note(format!("answered {while_full:?}"));
    let mut changed = 0;
    while let Some(done) = clients.join_next().await {
        changed += done??;
    }
    let unchanged =
        Finding::at_most("turns with other earlier messages while the disk is full", changed as f64, 0.0)
            .note(format!("of {}", CLIENTS * TURNS_WHILE_FULL));
    fs::remove_file(&ballast)?;
    let until = Instant::now() + RECOVERY_TIME_MAX;
    let (mut answered, mut tries, mut last) = (0, 0, String::new());
    while answered < CONVERSATIONS && Instant::now() < until {
        let response = compress_conversation(&caller, &mut rng).await?;
        tries += 1;
        match response.status {
            StatusCode::OK => {
                let is_stored = originals_are_stored(&caller, &response).await?;
                answered += usize::from(is_stored);
                last = if is_stored { "answered and stored" } else { "answered but not stored" }.to_owned();
            }
            status => last = status.to_string(),
        }
        sleep(Duration::from_millis(200)).await;
    }
    let aim = "conversations answered and stored once the disk has space again";
    let recovered = Finding::at_least(aim, answered as f64, CONVERSATIONS as f64)
        .note(format!("after {tries} requests; the last one: {last}"));
    Ok(vec![alive, unchanged, recovered])
}

/// A conversation through the middleware, whose first turn was stored before the disk was full.
struct StoredConversation {
    model: String,
    upstream: Upstream,
    rng: Rng,
    messages: Vec<Value>,
    /// The messages of the first turn, as the upstream got them.
    sent: Vec<Value>,
}

impl StoredConversation {
    fn new(number: usize, upstream: Upstream) -> Self {
        let rng = seeded(number as u64, "hostile disk conversation");
        Self { model: format!("disk-{number}"), upstream, rng, messages: Vec::new(), sent: Vec::new() }
    }

    async fn store_first_turn(&mut self, caller: &Caller) -> anyhow::Result<()> {
        self.messages = self.next_messages();
        self.sent = self.send(caller, &self.messages).await?;
        ensure!(self.sent != self.messages, "the first turn was not compressed");
        self.messages.push(json!({"role": "assistant", "content": "At noon."}));
        Ok(())
    }

    /// Sends turns that follow the first one, and counts those in which the first one reaches the upstream in another form than before.
    async fn count_changes(mut self, caller: Caller) -> anyhow::Result<usize> {
        let mut changed = 0;
        for _ in 0..TURNS_WHILE_FULL {
            let mut messages = self.messages.clone();
            messages.extend(self.next_messages());
            let received = self.send(&caller, &messages).await?;
            changed += usize::from(!received.starts_with(&self.sent));
        }
        Ok(changed)
    }

    /// A question, a call of a tool, and its result.
    fn next_messages(&mut self) -> Vec<Value> {
        let call = json!({"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}});
        vec![
            json!({"role": "user", "content": prose_of(&mut self.rng, 16)}),
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "c", "content": prose_of(&mut self.rng, 4 * TOOL_RESULT_TOKENS)}),
        ]
    }

    /// Returns the messages as the upstream gets them.
    async fn send(&self, caller: &Caller, messages: &[Value]) -> anyhow::Result<Vec<Value>> {
        let body = json!({"model": self.model, "messages": messages, "thresher": {"budget": {"ratio": 0.5}}});
        let response = HttpRequest::post("/v1/chat/completions", body.to_string()).send(caller).await?;
        ensure!(response.status.is_success(), "a turn was answered with {}", response.status);
        let received = self.upstream.take_requests();
        let last = received.last().context("the upstream got no request")?;
        let body: Value = serde_json::from_slice(&last.body)?;
        Ok(body["messages"].as_array().cloned().unwrap_or_default())
    }
}

/// Compresses a conversation with a new tool result.
async fn compress_conversation(caller: &Caller, rng: &mut Rng) -> anyhow::Result<HttpResponse> {
    let call = json!({"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}});
    let messages = json!([
        {"role": "user", "content": prose_of(rng, 16)},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": prose_of(rng, TOOL_RESULT_TOKENS)},
    ]);
    // Without a budget, nothing is left out of a result that is not related to the question.
    let body = json!({"messages": messages, "config": {"target_ratio": 0.5}});
    HttpRequest::post("/headroom/v1/compress", body.to_string()).send(caller).await
}

/// Returns the hashes under which a response says that original texts are stored.
fn ccr_hashes(response: &HttpResponse) -> Vec<String> {
    let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let hashes = body["ccr_hashes"].as_array().cloned().unwrap_or_default();
    hashes.iter().filter_map(|hash| hash.as_str().map(str::to_owned)).collect()
}

/// Returns whether a response names stored originals and all of them can be fetched.
async fn originals_are_stored(caller: &Caller, response: &HttpResponse) -> anyhow::Result<bool> {
    let hashes = ccr_hashes(response);
    for hash in &hashes {
        let path = format!("/v1/retrieve/{hash}");
        if HttpRequest::get(&path).send(caller).await?.status != StatusCode::OK {
            return Ok(false);
        }
    }
    Ok(!hashes.is_empty())
}

/// Runs the row `permissions`.
pub async fn permissions(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let daemon = sandbox.start().await?;
    let caller = daemon.caller();
    let mut rng = seeded(0, "hostile permissions");
    ensure!(
        compress_conversation(&caller, &mut rng).await?.status == StatusCode::OK,
        "a conversation was not answered with 200"
    );
    let chunks = json!({"chunks": [{"id": "a", "text": prose_of(&mut rng, 50)}], "wait": true});
    ensure!(
        HttpRequest::post("/v1/chunks", chunks.to_string()).send(&caller).await?.status.is_success(),
        "registering a chunk failed"
    );
    let attributed =
        json!({"answer": "The tide is at noon.", "chunks": ["The tide is at noon."], "receipt": true});
    ensure!(
        HttpRequest::post("/v1/attribute", attributed.to_string()).send(&caller).await?.status.is_success(),
        "attributing an answer failed"
    );
    daemon.stop().await?;
    let (mut count, mut wrong_modes) = (0, Vec::new());
    for (path, is_directory) in entries(&sandbox.path().join(DATA))? {
        let mode = fs::symlink_metadata(&path)?.permissions().mode() & 0o7777;
        let expect = if is_directory { DIRECTORY_MODE } else { FILE_MODE };
        count += 1;
        if mode != expect {
            let name = path.strip_prefix(sandbox.path()).unwrap_or(&path);
            wrong_modes.push(format!("{} {mode:o}", name.display()));
        }
    }
    wrong_modes.sort();
    let note = format!("of {count}: {}", wrong_modes.iter().take(6).cloned().collect::<Vec<_>>().join(", "));
    Ok(vec![
        Finding::at_least("files and directories that the daemon wrote", f64::from(count), 10.0),
        Finding::at_most(
            "of these, with other modes than 0700 (directories) and 0600 (files)",
            wrong_modes.len() as f64,
            0.0,
        )
        .note(note),
    ])
}

/// Returns a directory and everything below it, with whether each entry is a directory.
fn entries(directory: &Path) -> anyhow::Result<Vec<(PathBuf, bool)>> {
    let mut found = vec![(directory.to_owned(), true)];
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(entries(&entry.path())?)
        } else {
            found.push((entry.path(), false))
        }
    }
    Ok(found)
}

/// Runs the row `bad-block`.
pub async fn bad_block(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let mut rng = seeded(0, "hostile blocks");
    let chunks: Vec<String> = (0..20).map(|_| prose_of(&mut rng, 100)).collect();
    let body = json!({"query": "When is the tide?", "chunks": chunks, "explain": true}).to_string();
    let send_request = async |daemon: &DaemonProcess| {
        HttpRequest::post("/v1/compress", body.clone()).send(&daemon.caller()).await
    };
    let daemon = sandbox.start().await?;
    let first = send_request(&daemon).await?;
    ensure!(first.status == StatusCode::OK, "the first request was answered with {}", first.status);
    let context = |response: &HttpResponse| {
        let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        (body["context"].clone(), body["blocks"].clone())
    };
    daemon.stop().await?;
    let mut findings = Vec::new();
    for n in 0..DAMAGE_ROUNDS {
        let damaged = damage_blocks(&sandbox.path().join(DATA).join("kv").join("blocks"), n)?;
        let daemon = sandbox.start().await?;
        let response = send_request(&daemon).await?;
        let ((before, _), (after, blocks)) = (context(&first), context(&response));
        let is_equal = response.status == StatusCode::OK && before == after;
        let note = format!("{damaged} files damaged; {}; blocks {blocks}", response.status);
        let aim = format!("start {}: answered 200 with the same context", n + 1);
        findings.push(Finding::is_true(aim, is_equal && damaged > 0).note(note));
        daemon.stop().await?;
    }
    Ok(findings)
}

/// Damages block files: changes a bit of the header, of any byte or of the last byte, or truncates the file.
/// Returns the number of damaged files.
fn damage_blocks(blocks: &Path, n: u64) -> anyhow::Result<usize> {
    let mut rng = seeded(n, "hostile damage");
    let mut damaged = 0;
    for (path, is_directory) in entries(blocks)? {
        if is_directory || rng.usize(..=2) == 0 {
            continue;
        }
        let mut bytes = fs::read(&path)?;
        if bytes.is_empty() {
            continue;
        }
        let last = bytes.len() - 1;
        let at = match rng.usize(..=3) {
            0 => rng.usize(..=last.min(100)),
            1 => rng.usize(..=last),
            2 => last,
            _ => {
                bytes.truncate(rng.usize(..=last));
                usize::MAX
            }
        };
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << rng.usize(..=7);
        }
        fs::write(&path, &bytes)?;
        damaged += 1;
    }
    Ok(damaged)
}

/// Writes that the daemon acknowledged before it was killed.
#[derive(Debug, Default)]
struct AcknowledgedWrites {
    /// Texts of registered chunks, by id.
    chunks: HashMap<String, String>,
    /// Hashes of stored originals.
    ccr_hashes: Vec<String>,
}

/// Runs the row `kill`.
pub async fn kill(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let acknowledged = Arc::<Mutex<AcknowledgedWrites>>::default();
    let mut findings = Vec::new();
    for round in 0..2_u64 {
        let daemon = sandbox.start().await?;
        let mut writers = JoinSet::new();
        for number in 0..WRITERS as u64 {
            let rng = seeded(round * WRITERS as u64 + number, "hostile kill");
            writers.spawn(write_until_killed(
                daemon.caller(),
                Arc::clone(&acknowledged),
                rng,
                number % 2 == 0,
            ));
        }
        sleep(WRITE_TIME).await;
        daemon.kill();
        // The writers end by themselves once nobody answers.
        while writers.join_next().await.is_some() {}
        let daemon = sandbox.start().await?;
        let caller = daemon.caller();
        let AcknowledgedWrites { chunks, ccr_hashes } =
            std::mem::take(&mut *acknowledged.lock().unwrap_or_else(PoisonError::into_inner));
        let mut lost = Vec::new();
        for (id, text) in &chunks {
            let path = format!("/v1/chunks/{id}");
            let response = HttpRequest::get(&path).send(&caller).await?;
            let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
            if response.status != StatusCode::OK || body["text"] != json!(text) {
                lost.push(format!("{id}: {}", response.status));
            }
        }
        for hash in &ccr_hashes {
            let path = format!("/v1/retrieve/{hash}");
            let response = HttpRequest::get(&path).send(&caller).await?;
            if response.status != StatusCode::OK {
                lost.push(format!("{hash}: {}", response.status));
            }
        }
        let aim = format!("kill {}: writes acknowledged before it and lost after it", round + 1);
        let note = lost.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        let count = format!("of {} chunks and {} texts; {note}", chunks.len(), ccr_hashes.len());
        findings.push(Finding::at_most(aim, lost.len() as f64, 0.0).note(count));
        let aim = format!("kill {}: writes acknowledged before it, chunks or texts", round + 1);
        findings.push(Finding::at_least(aim, (chunks.len().min(ccr_hashes.len())) as f64, 1.0));
        daemon.stop().await?;
    }
    Ok(findings)
}

/// Registers chunks, or compresses conversations, until the daemon stops answering.
async fn write_until_killed(
    caller: Caller,
    acknowledged: Arc<Mutex<AcknowledgedWrites>>,
    mut rng: Rng,
    registers: bool,
) {
    let mut count = 0_usize;
    let series = rng.usize(..=usize::MAX >> 1);
    loop {
        if registers {
            let chunks: Vec<(String, String)> =
                (0..5).map(|n| (format!("{series:x}-{count}-{n}"), prose_of(&mut rng, 40))).collect();
            let list: Vec<Value> = chunks.iter().map(|(id, text)| json!({"id": id, "text": text})).collect();
            let request = HttpRequest::post("/v1/chunks", json!({"chunks": list}).to_string());
            let Ok(response) = request.send(&caller).await else { return };
            if response.status == StatusCode::OK {
                acknowledged.lock().unwrap_or_else(PoisonError::into_inner).chunks.extend(chunks);
            }
        } else {
            let Ok(response) = compress_conversation(&caller, &mut rng).await else { return };
            if response.status == StatusCode::OK {
                acknowledged
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .ccr_hashes
                    .extend(ccr_hashes(&response));
            }
        }
        count += 1;
    }
}
