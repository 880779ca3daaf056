//! Bench of the middleware (`thresher-lab middleware`): the time that it adds to a request, over a request that goes
//! to the same upstream directly.
//!
//! The upstream is in this process and answers at once. For each question the contenders take turns, so that
//! all see the machine in the same state, and each difference is taken between requests about the same
//! question.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::ensure;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::Progress;
use crate::client::{Client, HttpResponse};
use crate::report::{headline, machine, model, quantile, round_to, sorted};
use crate::subject::Subject;
use crate::targets::Bound;
use crate::upstream::{Script, Upstream};
use crate::workload::{RequestBodies, Source, Workload};

/// Questions that are asked before the measured ones, so that chunks are cached and connections are open.
const WARM_UP_COUNT: usize = 5;

/// The most milliseconds that the middleware may add to a request that goes whole, at p50.
const WHOLE_ADDED_MS_MAX: f64 = 3.0;

const REPEATED_WORDS: usize = 6;

/// Share of the context's tokens that is kept of a request that is compressed.
const RATIO: f64 = 0.25;

/// Results of tools in the long conversation, and chunks of the workload in each of them.
const RESULTS: usize = 40;
const CHUNKS_PER_RESULT: usize = 12;

const LONG_COUNT: usize = 20;

/// The most milliseconds that the middleware may add to a request whose long conversation it has seen, at p50, also if the answer is cited.
const SEEN_ADDED_MS_MAX: f64 = 40.0;

const CHAT: &str = "/v1/chat/completions";

/// The server of a language model in this process, which answers every request at once.
pub struct ModelServer {
    upstream: Upstream,
    // Dropped after the server, whose tasks it runs.
    _runtime: Runtime,
}

impl ModelServer {
    /// Starts the server on a free port, with a thread of its own.
    ///
    /// # Errors
    /// Fails if the system provides no port or no thread.
    pub fn start() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let upstream = runtime.block_on(Upstream::start(Script::ShortAnswer))?;
        Ok(Self { upstream, _runtime: runtime })
    }

    /// Returns the URL of the server, for the settings of the middleware.
    pub fn url(&self) -> String {
        format!("http://{}", self.upstream.address())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contender {
    /// To the upstream, without the daemon.
    Direct,
    /// Through the middleware, which reads the conversation and forwards it whole.
    Whole,
    /// On a path that the middleware does not read.
    PassedOn,
    /// Through the middleware, which compresses a context of cached chunks.
    Compressed,
    /// To `/v1/compress`, with the same chunks.
    WarmCompress,
}

impl Contender {
    const ALL: [Self; 5] = [Self::Direct, Self::Whole, Self::PassedOn, Self::Compressed, Self::WarmCompress];

    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Whole => "whole",
            Self::PassedOn => "passed_on",
            Self::Compressed => "compressed",
            Self::WarmCompress => "warm_compress",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Direct => "to the upstream directly",
            Self::Whole => "forwarded whole",
            Self::PassedOn => "on another path (/v1/embeddings)",
            Self::Compressed => "compressed, cached chunks",
            Self::WarmCompress => "POST /v1/compress, cached chunks",
        }
    }
}

pub struct Report {
    json: Value,
    table: String,
    passed: bool,
}

impl Report {
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Returns whether no request took more time than the middleware may add.
    pub fn passed(&self) -> bool {
        self.passed
    }
}

pub fn table(report: &Report) -> &str {
    &report.table
}

struct Question {
    conversation: Bytes,
    compress: Bytes,
}

/// Sends `count` questions about one context, each in every way.
///
/// # Errors
/// Fails if the model, the daemon or the upstream fails, or if the middleware does not do what a contender is
/// about.
pub fn run(
    subject: &Subject,
    server: &ModelServer,
    workload: &Workload,
    count: usize,
    progress: Progress,
) -> anyhow::Result<Report> {
    let (daemon, upstream) = (Client::new(subject.address)?, Client::new(server.upstream.address())?);
    let set = workload.request(0, &subject.tokenizer)?;
    let bodies = Source::Inline.bodies(&set.chunks, subject.deadline_ms_max);
    let context: Vec<&str> = set.chunks.iter().map(|chunk| &*chunk.text).collect();
    let context = context.join("\n\n");
    let mut times = [const { Vec::new() }; Contender::ALL.len()];
    for n in 0..WARM_UP_COUNT + count {
        progress("requests to the middleware", n, WARM_UP_COUNT + count);
        let question = question(subject, workload, &context, &bodies, n as u64)?;
        for step in 0..Contender::ALL.len() {
            let at = (n + step) % Contender::ALL.len();
            let response = send(Contender::ALL[at], &question, &daemon, &upstream)?;
            if n >= WARM_UP_COUNT {
                times[at].push(response.ms());
            }
        }
    }
    let seen = seen_conversation(subject, server, workload, progress)?;
    Ok(report(subject, workload, count, &times, &seen))
}

/// Requests whose conversation has passed before, turn by turn.
struct Seen {
    /// The tokens of the results of tools.
    tokens: usize,
    /// Milliseconds to the upstream directly, through the middleware, and through it with a cited answer.
    ms: [Vec<f64>; 3],
}

/// Sends a long conversation with results of tools turn by turn, and then new questions about it.
fn seen_conversation(
    subject: &Subject,
    server: &ModelServer,
    workload: &Workload,
    progress: Progress,
) -> anyhow::Result<Seen> {
    let (daemon, upstream) = (Client::new(subject.address)?, Client::new(server.upstream.address())?);
    let set = Workload { chunks: CHUNKS_PER_RESULT, ..*workload };
    let mut messages = vec![json!({"role": "user", "content": workload.question(0, &subject.tokenizer)?})];
    let send = |messages: &[Value], cite: Option<bool>| {
        let options = json!({"budget": {"ratio": 0.5}, "cite": cite.unwrap_or_default()});
        let body = json!({"model": "any", "messages": messages, "thresher": options}).to_string();
        let client = if cite.is_some() { &daemon } else { &upstream };
        let caller = client.caller();
        let response = client.block_on(caller.send(request(caller.address(), CHAT, true, body.into())?))?;
        let compressed = response.headers.get("x-thresher").is_some_and(|value| value == "compressed");
        ensure!(
            response.status.is_success() && compressed == cite.is_some(),
            "a long conversation was answered {}: {}",
            response.status,
            String::from_utf8_lossy(&response.body)
        );
        anyhow::Ok(response.ms())
    };
    for turn in 0..RESULTS {
        progress("turns of a long conversation", turn, RESULTS);
        let found = set.request(turn as u64 + 1, &subject.tokenizer)?;
        let texts: Vec<&str> = found.chunks.iter().map(|chunk| &*chunk.text).collect();
        let id = format!("call-{turn}");
        let call = json!({"id": id, "type": "function", "function": {"name": "search", "arguments": "{}"}});
        messages.extend([
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "content": texts.join("\n\n")}),
        ]);
        send(&messages, Some(false))?;
    }
    let mut ms = [const { Vec::new() }; 3];
    for n in 0..LONG_COUNT as u64 {
        let question = workload.question(n + 1, &subject.tokenizer)?;
        let mut asked = messages.clone();
        asked.push(json!({"role": "assistant", "content": "The tide is at noon."}));
        asked.push(json!({"role": "user", "content": question}));
        for step in 0..ms.len() {
            let at = (n as usize + step) % ms.len();
            ms[at].push(send(&asked, [None, Some(false), Some(true)][at])?);
        }
    }
    Ok(Seen { tokens: RESULTS * CHUNKS_PER_RESULT * workload.tokens, ms })
}

fn question(
    subject: &Subject,
    workload: &Workload,
    context: &str,
    bodies: &RequestBodies,
    n: u64,
) -> anyhow::Result<Question> {
    // The middleware compresses only what the question is about, so the question repeats a few words of the context.
    let words: Vec<&str> = context.split_whitespace().skip(n as usize).take(REPEATED_WORDS).collect();
    let question = format!("{} {}", words.join(" "), workload.question(n, &subject.tokenizer)?);
    let content = format!("<context>\n{context}\n</context>\n{question}");
    let conversation = json!({
        "model": "any",
        "messages": [{"role": "user", "content": content}],
        "thresher": {"budget": {"ratio": RATIO}, "cite": false},
    });
    Ok(Question { conversation: conversation.to_string().into(), compress: bodies.with_query(&question) })
}

/// Sends one request, and checks that it went the way that the contender is about.
fn send(
    contender: Contender,
    question: &Question,
    daemon: &Client,
    upstream: &Client,
) -> anyhow::Result<HttpResponse> {
    let (client, path, compresses) = match contender {
        Contender::Direct => (upstream, CHAT, false),
        Contender::Whole => (daemon, CHAT, false),
        Contender::PassedOn => (daemon, "/v1/embeddings", false),
        Contender::Compressed => (daemon, CHAT, true),
        Contender::WarmCompress => return daemon.compress(question.compress.clone()),
    };
    let caller = client.caller();
    let request = request(caller.address(), path, compresses, question.conversation.clone())?;
    let response = client.block_on(caller.send(request))?;
    let outcome = response.headers.get("x-thresher").and_then(|value| value.to_str().ok());
    let expected = match contender {
        Contender::Whole => Some("uncompressed"),
        Contender::Compressed => Some("compressed"),
        _ => None,
    };
    ensure!(
        response.status.is_success() && outcome == expected,
        "a request {} was answered {} ({}): {}",
        contender.description(),
        response.status,
        outcome.unwrap_or("no x-thresher"),
        String::from_utf8_lossy(&response.body)
    );
    Ok(response)
}

fn request(
    address: SocketAddr,
    path: &str,
    compresses: bool,
    body: Bytes,
) -> anyhow::Result<Request<Full<Bytes>>> {
    let request = Request::post(format!("http://{address}{path}"));
    let request = request.header(CONTENT_TYPE, "application/json");
    let request = request.header("x-thresher-compress", if compresses { "true" } else { "false" });
    Ok(request.body(Full::new(body))?)
}

fn report(subject: &Subject, workload: &Workload, count: usize, times: &[Vec<f64>], seen: &Seen) -> Report {
    let quantiles = |values: &[f64]| {
        let values = sorted(values.iter().copied());
        (quantile(&values, 0.5), quantile(&values, 0.99))
    };
    let quantiles_json = |(p50, p99): (f64, f64)| json!({"p50": round_to(p50, 3), "p99": round_to(p99, 3)});
    let mut json = json!({
        "model": model(subject),
        "machine": machine(subject),
        "workload": {
            "chunks": workload.chunks,
            "tokens": workload.tokens,
            "query_tokens": workload.query_tokens,
            "requests": count,
        },
    });
    let mut table = headline(&json);
    let _ = writeln!(
        table,
        "middleware in front of an upstream that answers at once; context of {} chunks of {} tokens, {count} \
         requests",
        workload.chunks, workload.tokens
    );
    let mut whole_added_ms = f64::NAN;
    for (contender, ms) in Contender::ALL.into_iter().zip(times) {
        let (p50, p99) = quantiles(ms);
        json[format!("{}_ms", contender.name())] = quantiles_json((p50, p99));
        let _ = write!(table, "  {:<34} {p50:>8.2} ms   p99 {p99:>8.2}", contender.description());
        if ![Contender::Direct, Contender::WarmCompress].contains(&contender) {
            let added: Vec<f64> = ms.iter().zip(&times[0]).map(|(ms, direct)| ms - direct).collect();
            let (p50, p99) = quantiles(&added);
            json[format!("{}_added_ms", contender.name())] = quantiles_json((p50, p99));
            let _ = write!(table, "   added {p50:>8.2}   p99 {p99:>8.2}");
            if contender == Contender::Whole {
                whole_added_ms = p50;
            }
        }
        table.push('\n');
    }
    let _ = writeln!(
        table,
        "a conversation of {} tokens that was seen before, {LONG_COUNT} requests",
        seen.tokens
    );
    let mut seen_added_ms = f64::NAN;
    for (at, key, name) in [(1, "seen", "compressed"), (2, "seen_cited", "compressed, answer cited")] {
        let added: Vec<f64> = seen.ms[at].iter().zip(&seen.ms[0]).map(|(ms, direct)| ms - direct).collect();
        let (p50, p99) = quantiles(&added);
        json[format!("{key}_added_ms")] = quantiles_json((p50, p99));
        let _ = writeln!(table, "  {name:<34} added {p50:>8.2}   p99 {p99:>8.2}");
        seen_added_ms = p50;
    }
    let targets = [
        ("added to a request that goes whole", whole_added_ms, WHOLE_ADDED_MS_MAX),
        ("added to a seen conversation whose answer is cited", seen_added_ms, SEEN_ADDED_MS_MAX),
    ];
    let (mut passed, mut outcomes) = (true, Vec::new());
    for (name, reached, most) in targets {
        let bound = Bound::AtMost(most);
        let met = bound.is_met_by(reached);
        passed &= met;
        let outcome = if met { "met" } else { "missed" };
        let _ = writeln!(table, "  {name}: {reached:.2} ms   {bound} ms   {outcome}");
        let name = format!("{name}, ms at p50");
        outcomes.push(json!({"name": name, "reached": round_to(reached, 3), "at_most": most, "met": met}));
    }
    json["targets"] = outcomes.into();
    Report { json, table: table.trim_end().to_owned(), passed }
}
