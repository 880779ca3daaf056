//! The row `soak`: clients of several tenants use a daemon with default limits for an hour, or for as long as
//! `THRESHER_SOAK_SECONDS` says. They send requests of every kind, hold conversations of up to 120,000 tokens through
//! the middleware, and register and delete chunks. Meanwhile the daemon is restarted several times, and its disk
//! is full for a while.
//!
//! A client pauses after each request for a multiple of the time that the response took, so the load is moderate on
//! every machine.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use fastrand::Rng;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::Finding;
use crate::clients::{self, HttpRequest};
use crate::memory::resident_growth;
use crate::process::{DaemonProcess, Sandbox, Setup};
use crate::storage::Mount;
use crate::tenants::create_key;
use thresher_lab::client::{Caller, HttpResponse};
use thresher_lab::soak::requests::{ChunkPool, Expectation, RequestGenerator, SoakRequest};
use thresher_lab::soak::{SLACK_BYTES, Tally};
use thresher_lab::upstream::{Script, Upstream};
use thresher_lab::workload::{log_uniform, prose_of, seeded};

/// Length of the run if the environment does not say it: as part of all attacks, it is short.
const DEFAULT_TIME: Duration = Duration::from_secs(60);

/// Restarts at the start of the run. One part of [`PARTS`] of the run passes before each of them.
const RESTARTS: u32 = 4;
const PARTS: u32 = 30;

/// How long the disk is full, at most; never longer than a part of the run.
const FULL_TIME_MAX: Duration = Duration::from_secs(60);

/// How long the registry may take to notice that the disk has space again.
const RECOVERY_TIME: Duration = Duration::from_secs(20);

/// Size of the disk, in bytes. What the daemon stores in an hour takes less.
const DISK_BYTES: u64 = 2 << 30;

/// Time after the last restart in which resident memory may grow: threads and connections of all kinds come into being, and allocators keep pages.
const WARM_UP: Duration = Duration::from_secs(600);

/// Largest growth of resident memory after [`WARM_UP`] that may be certain, in MB an hour: a slope less two standard errors.
const SLOPE_MAX: f64 = 1.0;

/// The slope of fewer minutes than this says nothing.
const SLOPE_MINUTES_MIN: usize = 20;

const TENANTS: [&str; 3] = ["a", "b", "c"];
const CLIENTS_PER_TENANT: usize = 2;

/// Pause after a response, as a multiple of the time that it took: six clients keep two fifths of a core busy.
const PAUSE: u32 = 14;
const PAUSE_RANGE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// How long a client waits for a response: the longest deadline and some more.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(150);

/// Largest share of requests that may be refused or late because the machine is busy with other work (429, 504).
const BUSY_SHARE_MAX: f64 = 0.02;

/// A conversation starts anew when its results of tools have this many tokens.
const CONVERSATION_TOKENS_MAX: usize = 120_000;

/// Fewest and most tokens of a result of a tool, and how many different results there are. Conversations draw from these, so
/// that the blocks of all results fit in memory and do not let it grow.
const RESULT_TOKENS: (usize, usize) = (500, 16_000);
const RESULTS: usize = 24;

/// Chunks of one registration of a client's own chunks, and the number from which it deletes the oldest.
const OWN_CHUNKS: usize = 5;
const OWN_CHUNKS_MAX: usize = 50;

/// State of the daemon that decides which outcomes are expected.
#[derive(Clone, Default)]
struct Phase {
    /// Number of starts so far.
    start: usize,
    /// `None` while the daemon restarts.
    caller: Option<Caller>,
    is_disk_full: bool,
    is_over: bool,
}

/// What clients share.
struct Shared {
    phase: Mutex<Phase>,
    results: Mutex<Results>,
    generator: RequestGenerator,
    /// Results of tools, with their number of tokens.
    tool_results: Vec<(usize, String)>,
}

#[derive(Default)]
struct Results {
    tally: Tally,
    turns: usize,
    /// Requests without a response while the daemon restarted.
    interrupted: usize,
    /// Requests that were refused or late because the machine was busy.
    busy: usize,
    /// Registrations that were refused while the disk was full.
    refused_by_disk: usize,
    chunks_checked: usize,
    /// Chunks that differ after a restart from what was acknowledged.
    chunks_lost: usize,
    /// Turns whose earlier messages reached the upstream in another form than before.
    turns_changed: usize,
}

/// A client with a tenant's key, and an upstream of its own.
struct Client {
    shared: Arc<Shared>,
    bearer: String,
    rng: Rng,
    model: String,
    upstream: Upstream,
    conversation: Conversation,
    own_chunks: OwnChunks,
    start_seen: usize,
}

#[derive(Default)]
struct Conversation {
    messages: Vec<Value>,
    tokens: usize,
    /// The messages of the last answered turn, as the upstream got them. Empty if the disk was full, so that what was sent
    /// could not be stored.
    sent: Vec<Value>,
}

/// Chunks that only this client writes.
#[derive(Default)]
struct OwnChunks {
    name: String,
    count: usize,
    /// Registered chunks, the oldest first: id and text.
    registered: VecDeque<(String, String)>,
    /// Chunks whose deletion was acknowledged since the last check.
    deleted: Vec<String>,
}

/// Runs the row `soak`.
pub async fn soak(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let time = match std::env::var("THRESHER_SOAK_SECONDS") {
        Ok(seconds) => Duration::from_secs(seconds.parse().context("THRESHER_SOAK_SECONDS is not a number")?),
        Err(_) => DEFAULT_TIME,
    };
    let mut sandbox = setup.sandbox()?;
    let disk = Mount::new(&sandbox.path().join("data"), DISK_BYTES).map(Arc::new);
    let mut rng = seeded(0, "soak results");
    let mut tool_results = Vec::new();
    for _ in 0..RESULTS {
        let tokens = log_uniform(&mut rng, RESULT_TOKENS.0, RESULT_TOKENS.1);
        tool_results.push((tokens, prose_of(&mut rng, tokens)));
    }
    let deadline_ms_max = setup.limits.deadline_max.as_millis() as u64;
    let shared = Arc::new(Shared {
        phase: Mutex::default(),
        results: Mutex::default(),
        generator: RequestGenerator::new(ChunkPool::for_disk(0), deadline_ms_max),
        tool_results,
    });
    let mut upstreams: Vec<toml::Value> = Vec::new();
    let mut tasks = JoinSet::new();
    let mut bearers = Vec::new();
    for tenant in TENANTS {
        let bearer = create_key(&sandbox, tenant)?;
        for number in 0..CLIENTS_PER_TENANT {
            let model = format!("soak-{tenant}-{number}");
            let upstream = Upstream::start(Script::ShortAnswer).await?;
            upstreams.push(upstream.setting_with_model(&model));
            let rng = seeded(number as u64, tenant);
            let own_chunks = OwnChunks { name: model.clone(), ..OwnChunks::default() };
            let client = Client {
                shared: Arc::clone(&shared),
                bearer: bearer.clone(),
                rng,
                model,
                upstream,
                conversation: Conversation::default(),
                own_chunks,
                start_seen: 0,
            };
            tasks.spawn(client.run());
        }
        bearers.push(bearer);
    }
    sandbox.set("access.keys_file", "keys.toml");
    sandbox.set("middleware.upstreams", upstreams);
    sandbox.set("middleware.tools", vec!["*".to_owned()]);

    let mut watch = Watch::new(setup, &shared);
    let part = time / PARTS;
    let mut daemon = sandbox.start().await?;
    for bearer in &bearers {
        for registration in shared.generator.registrations() {
            let headers = [("x-thresher-key", bearer.as_str())];
            let request = HttpRequest::post("/v1/chunks", registration).with(&headers);
            let response = request.send_within(&daemon.caller(), RESPONSE_TIME_MAX).await?;
            anyhow::ensure!(
                response.status.is_success(),
                "a registration was answered with {}",
                response.status
            );
        }
    }
    shared.let_clients_send(&daemon);
    for restart in 1..=RESTARTS {
        watch.watch(&daemon, part).await?;
        if restart == RESTARTS - 1
            && let Some(disk) = &disk
        {
            shared.phase().is_disk_full = true;
            // On another thread: clients go on meanwhile.
            let filling = Arc::clone(disk);
            let ballast = spawn_blocking(move || filling.fill()).await??;
            watch.watch(&daemon, part.min(FULL_TIME_MAX)).await?;
            spawn_blocking(move || std::fs::remove_file(ballast)).await??;
            sleep(RECOVERY_TIME).await;
            shared.phase().is_disk_full = false;
        }
        daemon = restart_daemon(&sandbox, daemon, &shared).await?;
    }
    let settled = watch.minutes.len() + WARM_UP.as_secs() as usize / 60;
    watch.watch(&daemon, part * (PARTS - RESTARTS)).await?;
    let slope = slope_per_hour(watch.minutes.get(settled..).unwrap_or_default());
    let daemon = restart_daemon(&sandbox, daemon, &shared).await?;
    // Clients check their chunks when they see a new daemon.
    watch.watch(&daemon, RECOVERY_TIME).await?;
    shared.phase().is_over = true;
    while let Some(done) = tasks.join_next().await {
        done?;
    }
    let mut findings = findings(&shared.results(), &watch, slope);
    if disk.is_none() {
        findings.push(Finding::skipped("a full disk", "this user may not mount a file system (tmpfs)"));
    }
    Ok(findings)
}

/// Sends SIGTERM to the daemon and starts it again over the same data.
async fn restart_daemon(
    sandbox: &Sandbox,
    daemon: DaemonProcess,
    shared: &Shared,
) -> anyhow::Result<DaemonProcess> {
    shared.phase().caller = None;
    let status = daemon.stop().await?;
    anyhow::ensure!(status.success(), "the daemon exited with {status} after SIGTERM");
    let daemon = sandbox.start().await?;
    shared.let_clients_send(&daemon);
    Ok(daemon)
}

fn findings(results: &Results, watch: &Watch<'_>, slope: Option<(f64, f64)>) -> Vec<Finding> {
    let Results { tally, turns, interrupted, refused_by_disk, chunks_checked, .. } = results;
    let aim = "growth of resident memory without bounded stores, less two standard errors, MB an hour";
    let slope = match slope {
        Some((slope, error)) => Finding::at_most(aim, slope - 2.0 * error, SLOPE_MAX)
            .note(format!("{slope:.2} with a standard error of {error:.2}")),
        None => Finding::skipped(aim, "the run is too short: set THRESHER_SOAK_SECONDS=3600"),
    };
    let note = format!("{interrupted} interrupted by restarts, {refused_by_disk} refused by the full disk");
    let answered = tally.answered() + turns;
    let busy_share = results.busy as f64 / (answered + results.busy).max(1) as f64;
    vec![
        Finding::at_least("requests answered", tally.answered() as f64, 1.0).note(tally.to_string()),
        Finding::at_most(
            "share of requests refused or late because the machine was busy",
            busy_share,
            BUSY_SHARE_MAX,
        ),
        Finding::at_most("requests that ended otherwise than expected", tally.failures() as f64, 0.0)
            .note(note),
        Finding::at_least("turns of conversations", *turns as f64, 1.0),
        Finding::at_most("turns whose earlier messages changed", results.turns_changed as f64, 0.0),
        Finding::at_most(
            "acknowledged registrations and deletions that were lost",
            results.chunks_lost as f64,
            0.0,
        )
        .note(format!("of {chunks_checked} that were checked after restarts")),
        resident_growth("peak of resident memory, MB", watch.peak_mb, watch.most_mb, watch.killed),
        slope,
    ]
}

impl Shared {
    fn phase(&self) -> std::sync::MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn let_clients_send(&self, daemon: &DaemonProcess) {
        let mut phase = self.phase();
        phase.start += 1;
        phase.caller = Some(daemon.caller());
    }

    fn results(&self) -> std::sync::MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Samples of resident memory.
struct Watch<'a> {
    shared: &'a Shared,
    started: Instant,
    /// Lowest resident memory of each minute, in MB, without what bounded stores hold.
    minutes: Vec<f64>,
    peak_mb: f64,
    most_mb: f64,
    killed: bool,
}

impl<'a> Watch<'a> {
    fn new(setup: &Setup, shared: &'a Shared) -> Self {
        let most_mb = (setup.defaults.memory_bytes_max + SLACK_BYTES) as f64 / 1e6;
        Self { shared, started: Instant::now(), minutes: Vec::new(), peak_mb: 0.0, most_mb, killed: false }
    }

    /// Samples memory every second for this time, and prints a line each minute.
    async fn watch(&mut self, daemon: &DaemonProcess, time: Duration) -> anyhow::Result<()> {
        let guard = daemon.guard(self.most_mb);
        let end = Instant::now() + time;
        while Instant::now() < end {
            let minute_end = end.min(Instant::now() + Duration::from_secs(60));
            let cpu_seconds = daemon.cpu_seconds()?;
            let mut lowest = f64::INFINITY;
            while Instant::now() < minute_end {
                sleep(Duration::from_secs(1)).await;
                lowest = lowest.min(daemon.resident()?.now_mb);
            }
            let cpu_seconds = daemon.cpu_seconds()? - cpu_seconds;
            let stored_mb = stored_bytes(daemon).await? / 1e6;
            let Results { tally, turns, chunks_checked, chunks_lost, .. } = &*self.shared.results();
            self.minutes.push(lowest - stored_mb);
            println!(
                "{} s: {lowest:.1} MB, of these {stored_mb:.1} MB in stores; \
                 {cpu_seconds:.1} s of CPU; {tally}; {turns} turns; {chunks_lost} of {chunks_checked} chunks lost",
                self.started.elapsed().as_secs()
            );
        }
        let memory_use = guard.finish();
        self.peak_mb = self.peak_mb.max(memory_use.peak_mb);
        self.killed |= memory_use.killed;
        Ok(())
    }
}

/// Returns the bytes that the daemon's bounded stores hold, as its metrics report them: cached blocks, recent compressions, pages of files.
async fn stored_bytes(daemon: &DaemonProcess) -> anyhow::Result<f64> {
    let metrics = HttpRequest::get("/metrics").send(&Caller::new(daemon.admin())).await?;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let mut bytes = None;
    for line in metrics.lines() {
        if line.starts_with("kv_bytes{tier=\"memory\"}") || line.starts_with("store_bytes_held{") {
            let value: f64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
            bytes = Some(bytes.unwrap_or_default() + value);
        }
    }
    bytes.context("/metrics has no bytes of stores")
}

/// Returns the slope of values that are one minute apart, by least squares, and its standard error; `None` for too few of
/// them.
fn slope_per_hour(minutes: &[f64]) -> Option<(f64, f64)> {
    if minutes.len() < SLOPE_MINUTES_MIN {
        return None;
    }
    let mean_time = (minutes.len() - 1) as f64 / 2.0;
    let mean: f64 = minutes.iter().sum::<f64>() / minutes.len() as f64;
    let (mut products, mut squares) = (0.0, 0.0);
    for (minute, mb) in minutes.iter().enumerate() {
        let time = minute as f64 - mean_time;
        products += time * (mb - mean);
        squares += time * time;
    }
    let slope = products / squares;
    let mut residuals = 0.0;
    for (minute, mb) in minutes.iter().enumerate() {
        residuals += (mb - mean - slope * (minute as f64 - mean_time)).powi(2);
    }
    let error = (residuals / (minutes.len() - 2) as f64 / squares).sqrt();
    Some((60.0 * slope, 60.0 * error))
}

impl Client {
    async fn run(mut self) {
        loop {
            let phase = self.shared.phase().clone();
            if phase.is_over {
                return;
            }
            let Some(caller) = phase.caller else {
                sleep(PAUSE_RANGE.0).await;
                continue;
            };
            if phase.start != self.start_seen {
                self.start_seen = phase.start;
                self.check_own_chunks(&caller).await;
            }
            let started = Instant::now();
            match self.rng.usize(..=9) {
                0 => self.write_own_chunks(&caller).await,
                1..=3 => self.take_turn(&caller).await,
                _ => {
                    let request = self.shared.generator.draw(&mut self.rng);
                    self.send(&caller, &request).await;
                }
            }
            sleep((PAUSE * started.elapsed()).clamp(PAUSE_RANGE.0, PAUSE_RANGE.1)).await;
        }
    }

    /// Posts a body. Returns `None` if the daemon restarted meanwhile, or refused to write to a full disk.
    async fn post(&self, caller: &Caller, path: &str, body: Bytes) -> Option<anyhow::Result<HttpResponse>> {
        let headers = [("x-thresher-key", self.bearer.as_str()), ("x-thresher-compress", "true")];
        let before = self.shared.phase().is_disk_full;
        let request = HttpRequest::post(path, body).with(&headers);
        let response = request.send_within(caller, RESPONSE_TIME_MAX).await;
        let phase = self.shared.phase().clone();
        let restarted = phase.start != self.start_seen || phase.caller.is_none();
        match &response {
            Err(_) if restarted => self.shared.results().interrupted += 1,
            Ok(response)
                if response.status == StatusCode::INSUFFICIENT_STORAGE && (before || phase.is_disk_full) =>
            {
                self.shared.results().refused_by_disk += 1;
            }
            _ => return Some(response),
        }
        None
    }

    /// Posts a body that must be answered with a success, and returns whether it was.
    async fn post_ok(&self, caller: &Caller, path: &str, body: Value) -> Option<HttpResponse> {
        let failure = match self.post(caller, path, body.to_string().into()).await? {
            Ok(response) if response.status.is_success() => return Some(response),
            Ok(response) if self.wait_if_busy(&response).await => return None,
            Ok(response) => {
                format!("{path}: {} {}", response.status, String::from_utf8_lossy(&response.body))
            }
            Err(error) => format!("{path}: {error:#}"),
        };
        self.shared.results().tally.fail(failure);
        None
    }

    /// Waits as a response says that was refused or late because the machine is busy, and returns whether it was.
    async fn wait_if_busy(&self, response: &HttpResponse) -> bool {
        let is_busy = matches!(response.status.as_u16(), 429 | 504);
        if is_busy {
            self.shared.results().busy += 1;
            sleep(Duration::from_secs(clients::retry_after_s(&response.headers).unwrap_or_default())).await;
        }
        is_busy
    }

    /// Sends a request of the generator. A client that leaves is not counted.
    async fn send(&self, caller: &Caller, request: &SoakRequest) {
        let sending = self.post(caller, request.path, request.body.clone());
        let response = match request.expectation {
            Expectation::DisconnectWhileSending => return,
            Expectation::DisconnectWhileWaiting(after) => timeout(after, sending).await.unwrap_or_default(),
            _ => sending.await,
        };
        let Some(response) = response else { return };
        let may_be_refused =
            matches!(request.expectation, Expectation::LateAllowed | Expectation::Rejected(_));
        if let Ok(response) = &response
            && !may_be_refused
            && self.wait_if_busy(response).await
        {
            return;
        }
        let outcome = response.map(|response| Some((response.status.as_u16(), response.body)));
        self.shared.results().tally.count(request, outcome);
    }

    /// Takes the next turn of the conversation: a question, and the result of a tool.
    async fn take_turn(&mut self, caller: &Caller) {
        if self.conversation.tokens > CONVERSATION_TOKENS_MAX {
            self.conversation = Conversation::default();
        }
        let (tokens, result) = &self.shared.tool_results[self.rng.usize(..RESULTS)];
        let id = format!("call-{}", self.conversation.messages.len());
        let call = json!({"id": id, "type": "function", "function": {"name": "search", "arguments": "{}"}});
        let mut messages = self.conversation.messages.clone();
        messages.extend([
            json!({"role": "user", "content": prose_of(&mut self.rng, 16)}),
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "content": result}),
        ]);
        let options = json!({"budget": {"ratio": 0.5}});
        let body = json!({"model": self.model, "messages": messages, "thresher": options});
        // It was full when the turn was to be stored if it was so before or after.
        let was_disk_full = self.shared.phase().is_disk_full;
        let response = self.post_ok(caller, "/v1/chat/completions", body).await;
        let is_disk_full = was_disk_full || self.shared.phase().is_disk_full;
        let received = self.upstream.take_requests();
        let (Some(response), Some(received)) = (response, received.last()) else { return };
        let answer: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        let received: Value = serde_json::from_slice(&received.body).unwrap_or_default();
        let received = received["messages"].as_array().cloned().unwrap_or_default();
        let mut results = self.shared.results();
        results.turns += 1;
        if !received.starts_with(&self.conversation.sent) {
            results.turns_changed += 1;
            println!("a turn of {} has other earlier messages; disk full: {is_disk_full}", self.model);
        }
        messages.push(answer["choices"][0]["message"].clone());
        let tokens = self.conversation.tokens + tokens;
        let sent = if is_disk_full { Vec::new() } else { received };
        self.conversation = Conversation { messages, tokens, sent };
    }

    /// Registers some chunks, and deletes the oldest ones if there are many.
    async fn write_own_chunks(&mut self, caller: &Caller) {
        let mut chunks = Vec::new();
        for _ in 0..OWN_CHUNKS {
            self.own_chunks.count += 1;
            let id = format!("{}-{}", self.own_chunks.name, self.own_chunks.count);
            chunks.push((id, prose_of(&mut self.rng, 40)));
        }
        let list: Vec<Value> = chunks.iter().map(|(id, text)| json!({"id": id, "text": text})).collect();
        if self.post_ok(caller, "/v1/chunks", json!({"chunks": list})).await.is_some() {
            self.own_chunks.registered.extend(chunks);
        }
        if self.own_chunks.registered.len() > OWN_CHUNKS_MAX {
            let oldest = self.own_chunks.registered.drain(..OWN_CHUNKS);
            let ids: Vec<String> = oldest.map(|(id, _)| id).collect();
            // Without a response, nothing is known about them.
            if self.post_ok(caller, "/v1/chunks/delete", json!({"ids": ids})).await.is_some() {
                self.own_chunks.deleted.extend(ids);
            }
        }
    }

    /// Compares the chunks of a daemon that was started anew with what was acknowledged.
    async fn check_own_chunks(&mut self, caller: &Caller) {
        let mut expected: BTreeMap<&str, Option<&str>> = BTreeMap::new();
        for (id, text) in &self.own_chunks.registered {
            expected.insert(id, Some(text));
        }
        for id in &self.own_chunks.deleted {
            expected.insert(id, None);
        }
        for (id, text) in expected {
            let path = format!("/v1/chunks/{id}");
            let headers = [("x-thresher-key", self.bearer.as_str())];
            let Ok(response) = HttpRequest::get(&path).with(&headers).send(caller).await else { continue };
            let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
            let is_kept = match text {
                Some(text) => response.status == StatusCode::OK && body["text"] == json!(text),
                None => response.status == StatusCode::NOT_FOUND,
            };
            let mut results = self.shared.results();
            results.chunks_checked += 1;
            results.chunks_lost += usize::from(!is_kept);
        }
        self.own_chunks.deleted.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_of_values_by_minute() {
        let line: Vec<f64> = (0..30).map(|minute| 200.0 + f64::from(minute) / 60.0).collect();
        let (slope, error) = slope_per_hour(&line).expect("enough minutes");
        assert!((slope - 1.0).abs() < 1e-9 && error < 1e-9);
        assert_eq!(slope_per_hour(&[1.0; 30]), Some((0.0, 0.0)));
        assert_eq!(slope_per_hour(&[1.0; 10]), None);
    }
}
