//! Rows about what lies on disk: a full one, who may read it, damage, and a process that is killed while it writes.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Finding;
use super::daemon::{Daemon, Setup};
use super::wire::Ask;
use crate::bench::client::{Answer, Caller};
use crate::bench::workload::{Random, prose_of};

/// Where a daemon with default settings keeps what it writes, in its folder.
const DATA: &str = "data";

/// The small disk.
const DISK_BYTES: u64 = 16 << 20;

/// Conversations while it is full, and when it has room again.
const CONVERSATIONS: usize = 5;

/// How long the daemon may take to notice that there is room.
const ROOM_MAX: Duration = Duration::from_secs(20);

/// Tokens of a tool's result that is compressed.
const RESULT_TOKENS: usize = 600;

/// Files that are damaged, and how often that is tried.
const DAMAGES: u64 = 3;

/// Clients that write while a daemon is killed.
const WRITERS: usize = 4;

/// How long they write.
const WRITING: Duration = Duration::from_secs(4);

/// A directory's and a file's permissions.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A file system in memory, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    /// None where this user may not mount.
    fn new(at: &Path, bytes: u64) -> Option<Self> {
        fs::create_dir_all(at).ok()?;
        let options = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: what is still open does not keep it.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Row `full-disk`.
pub async fn full_disk(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let originals = sandbox.path().join(DATA).join("originals");
    let Some(_mount) = Mount::new(&originals, DISK_BYTES) else {
        return Ok(vec![Finding::skipped("a full disk", "this user may not mount a file system")]);
    };
    let daemon = sandbox.start().await?;
    let caller = daemon.caller();
    let mut random = Random::new(0, "hostile disk");
    let first = conversation(&caller, &mut random).await?;
    ensure!(first.status == StatusCode::OK, "a conversation is answered {}", first.status);
    let ballast = originals.join("ballast");
    fill(&ballast)?;
    let mut while_full = Vec::new();
    for _ in 0..CONVERSATIONS {
        while_full.push(conversation(&caller, &mut random).await?.status.as_u16());
    }
    let alive = Finding::is_true("the daemon runs while the disk is full", daemon.is_alive())
        .note(format!("answered {while_full:?}"));
    fs::remove_file(&ballast)?;
    let until = Instant::now() + ROOM_MAX;
    let (mut answered, mut tries, mut last) = (0, 0, String::new());
    while answered < CONVERSATIONS && Instant::now() < until {
        let answer = conversation(&caller, &mut random).await?;
        tries += 1;
        match answer.status {
            StatusCode::OK => {
                let is_kept = is_kept(&caller, &answer).await?;
                answered += usize::from(is_kept);
                last = if is_kept { "kept" } else { "answered and not kept" }.to_owned();
            }
            status => last = status.to_string(),
        }
        sleep(Duration::from_millis(200)).await;
    }
    let what = "conversations that are answered and kept when there is room again";
    let recovered = Finding::at_least(what, answered as f64, CONVERSATIONS as f64)
        .note(format!("in {tries} tries, the last: {last}"));
    Ok(vec![alive, recovered])
}

/// Fills the file system with one file.
fn fill(ballast: &Path) -> anyhow::Result<()> {
    let mut file = fs::File::create(ballast)?;
    let mut bytes = vec![0; 1 << 20];
    while !bytes.is_empty() {
        if file.write_all(&bytes).is_err() {
            bytes.truncate(bytes.len() / 2);
        }
    }
    Ok(())
}

/// Has a conversation compressed whose tool said something new.
async fn conversation(caller: &Caller, random: &mut Random) -> anyhow::Result<Answer> {
    let call = json!({"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}});
    let body = json!({"messages": [
        {"role": "user", "content": prose_of(random, 16)},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": prose_of(random, RESULT_TOKENS)},
    ]});
    Ask::post("/v1/compress", body.to_string()).send(caller).await
}

/// Under which names an answer says that texts are kept.
fn hashes(answer: &Answer) -> Vec<String> {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let hashes = body["ccr_hashes"].as_array().cloned().unwrap_or_default();
    hashes.iter().filter_map(|hash| hash.as_str().map(str::to_owned)).collect()
}

/// Whether what an answer says to be kept can be fetched, and there is any.
async fn is_kept(caller: &Caller, answer: &Answer) -> anyhow::Result<bool> {
    let hashes = hashes(answer);
    for hash in &hashes {
        let path = format!("/v1/retrieve/{hash}");
        if Ask::get(&path).send(caller).await?.status != StatusCode::OK {
            return Ok(false);
        }
    }
    Ok(!hashes.is_empty())
}

/// Row `permissions`.
pub async fn permissions(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let daemon = sandbox.start().await?;
    let caller = daemon.caller();
    let mut random = Random::new(0, "hostile permissions");
    ensure!(
        conversation(&caller, &mut random).await?.status == StatusCode::OK,
        "a conversation is not answered"
    );
    let chunks = json!({"chunks": [{"id": "a", "text": prose_of(&mut random, 50)}], "wait": true});
    ensure!(
        Ask::post("/v1/chunks", chunks.to_string()).send(&caller).await?.status.is_success(),
        "not registered"
    );
    let attributed =
        json!({"answer": "The tide is at noon.", "chunks": ["The tide is at noon."], "receipt": true});
    ensure!(
        Ask::post("/v1/attribute", attributed.to_string()).send(&caller).await?.status.is_success(),
        "an answer is not attributed"
    );
    daemon.stop().await?;
    let (mut all, mut open) = (0, Vec::new());
    for (path, is_directory) in entries(&sandbox.path().join(DATA))? {
        let mode = fs::symlink_metadata(&path)?.permissions().mode() & 0o7777;
        let expect = if is_directory { DIRECTORY_MODE } else { FILE_MODE };
        all += 1;
        if mode != expect {
            let name = path.strip_prefix(sandbox.path()).unwrap_or(&path);
            open.push(format!("{} {mode:o}", name.display()));
        }
    }
    open.sort();
    let note = format!("of {all}: {}", open.iter().take(6).cloned().collect::<Vec<_>>().join(", "));
    Ok(vec![
        Finding::at_least("files and directories that were written", f64::from(all), 10.0),
        Finding::at_most("of them neither 0700 (directories) nor 0600 (files)", open.len() as f64, 0.0)
            .note(note),
    ])
}

/// A directory and everything below it; whether each is a directory.
fn entries(directory: &Path) -> anyhow::Result<Vec<(PathBuf, bool)>> {
    let mut found = vec![(directory.to_owned(), true)];
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => found.extend(entries(&entry.path())?),
            false => found.push((entry.path(), false)),
        }
    }
    Ok(found)
}

/// Row `bad-block`.
pub async fn bad_block(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let mut random = Random::new(0, "hostile blocks");
    let chunks: Vec<String> = (0..20).map(|_| prose_of(&mut random, 100)).collect();
    let body = json!({"query": "When is the tide?", "chunks": chunks, "explain": true}).to_string();
    let ask = async |daemon: &Daemon| Ask::post("/v1/compress", body.clone()).send(&daemon.caller()).await;
    let daemon = sandbox.start().await?;
    let first = ask(&daemon).await?;
    ensure!(first.status == StatusCode::OK, "the first request is answered {}", first.status);
    let context = |answer: &Answer| {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        (body["context"].clone(), body["blocks"].clone())
    };
    daemon.stop().await?;
    let mut findings = Vec::new();
    for n in 0..DAMAGES {
        let damaged = damage(&sandbox.path().join(DATA).join("kv").join("blocks"), n)?;
        let daemon = sandbox.start().await?;
        let answer = ask(&daemon).await?;
        let ((before, _), (after, blocks)) = (context(&first), context(&answer));
        let right = answer.status == StatusCode::OK && before == after;
        let note = format!("{damaged} files damaged; {}; blocks {blocks}", answer.status);
        let what = format!("start {}: answered 200 with the same context", n + 1);
        findings.push(Finding::is_true(what, right && damaged > 0).note(note));
        daemon.stop().await?;
    }
    Ok(findings)
}

/// Changes files of blocks: a byte of the header, of the middle or of the end, or the length; how many were changed.
fn damage(blocks: &Path, n: u64) -> anyhow::Result<usize> {
    let mut random = Random::new(n, "hostile damage");
    let mut damaged = 0;
    for (path, is_directory) in entries(blocks)? {
        if is_directory || random.between(0, 2) == 0 {
            continue;
        }
        let mut bytes = fs::read(&path)?;
        if bytes.is_empty() {
            continue;
        }
        let last = bytes.len() - 1;
        let at = match random.between(0, 3) {
            0 => random.between(0, last.min(100)),
            1 => random.between(0, last),
            2 => last,
            _ => {
                bytes.truncate(random.between(0, last));
                usize::MAX
            }
        };
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << random.between(0, 7);
        }
        fs::write(&path, &bytes)?;
        damaged += 1;
    }
    Ok(damaged)
}

/// What was answered before a daemon was killed.
#[derive(Debug, Default)]
struct Answered {
    /// Registered chunks and their texts, by id.
    chunks: HashMap<String, String>,
    /// Under which names texts are kept.
    hashes: Vec<String>,
}

/// Row `kill`.
pub async fn kill(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let answered = Arc::<Mutex<Answered>>::default();
    let mut findings = Vec::new();
    for round in 0..2_u64 {
        let daemon = sandbox.start().await?;
        let mut writers = JoinSet::new();
        for number in 0..WRITERS as u64 {
            let random = Random::new(round * WRITERS as u64 + number, "hostile kill");
            writers.spawn(write(daemon.caller(), Arc::clone(&answered), random, number % 2 == 0));
        }
        sleep(WRITING).await;
        daemon.kill();
        // They end by themselves: nobody answers.
        while writers.join_next().await.is_some() {}
        let daemon = sandbox.start().await?;
        let caller = daemon.caller();
        let Answered { chunks, hashes } =
            std::mem::take(&mut *answered.lock().unwrap_or_else(PoisonError::into_inner));
        let mut lost = Vec::new();
        for (id, text) in &chunks {
            let path = format!("/v1/chunks/{id}");
            let answer = Ask::get(&path).send(&caller).await?;
            let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            if answer.status != StatusCode::OK || body["text"] != json!(text) {
                lost.push(format!("{id}: {}", answer.status));
            }
        }
        for hash in &hashes {
            let path = format!("/v1/retrieve/{hash}");
            let answer = Ask::get(&path).send(&caller).await?;
            if answer.status != StatusCode::OK {
                lost.push(format!("{hash}: {}", answer.status));
            }
        }
        let what = format!("kill {}: answered before it and gone after", round + 1);
        let note = lost.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        let all = format!("of {} chunks and {} texts; {note}", chunks.len(), hashes.len());
        findings.push(Finding::at_most(what, lost.len() as f64, 0.0).note(all));
        let what = format!("kill {}: chunks and texts that were answered before it", round + 1);
        findings.push(Finding::at_least(what, (chunks.len().min(hashes.len())) as f64, 1.0));
        daemon.stop().await?;
    }
    Ok(findings)
}

/// Registers chunks, or has conversations compressed, until the daemon answers no more.
async fn write(caller: Caller, answered: Arc<Mutex<Answered>>, mut random: Random, registers: bool) {
    let mut count = 0_usize;
    let series = random.between(0, usize::MAX >> 1);
    loop {
        if registers {
            let chunks: Vec<(String, String)> =
                (0..5).map(|n| (format!("{series:x}-{count}-{n}"), prose_of(&mut random, 40))).collect();
            let list: Vec<Value> = chunks.iter().map(|(id, text)| json!({"id": id, "text": text})).collect();
            let ask = Ask::post("/v1/chunks", json!({"chunks": list}).to_string());
            let Ok(answer) = ask.send(&caller).await else { return };
            if answer.status == StatusCode::OK {
                answered.lock().unwrap_or_else(PoisonError::into_inner).chunks.extend(chunks);
            }
        } else {
            let Ok(answer) = conversation(&caller, &mut random).await else { return };
            if answer.status == StatusCode::OK {
                answered.lock().unwrap_or_else(PoisonError::into_inner).hashes.extend(hashes(&answer));
            }
        }
        count += 1;
    }
}
