//! What a soak saw, for programs and for people, and whether it was right.

use std::collections::BTreeMap;
use std::fmt::Write;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::mix::{Ask, Kind};
use super::{SLACK_BYTES, Seen};
use crate::bench::Subject;
use crate::bench::json::{self, round_to};
use crate::bench::statistics::{quantile, sorted};

/// Samples in the JSON at most.
const SAMPLES_MAX: usize = 120;

/// How requests ended.
#[derive(Debug, Default)]
pub struct Tally {
    answered: usize,
    left: usize,
    late: usize,
    passed_through: usize,
    refused: usize,
    /// Requests that should have ended otherwise, by how they ended.
    failed: BTreeMap<String, usize>,
    /// Chunks asked about in requests that were answered.
    chunks: usize,
    blocks: Blocks,
    /// On their way when time was up.
    pub cut_off: usize,
}

/// Where answers say that their chunks' blocks came from.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Blocks {
    memory: usize,
    disk: usize,
    shared: usize,
    joined: usize,
    read: usize,
}

#[derive(Deserialize)]
struct AnswerBody {
    degraded: Option<Code>,
    blocks: Option<Blocks>,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    error: Code,
}

#[derive(Deserialize)]
struct Code {
    code: String,
}

impl Tally {
    /// Counts what came back to `ask`.
    pub fn count(&mut self, ask: &Ask, seen: anyhow::Result<Option<(u16, Bytes)>>) {
        let (status, body) = match seen {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                self.left += 1;
                return;
            }
            Err(error) => return self.fail(format!("no answer: {error:#}")),
        };
        match (ask.kind, status) {
            (Kind::Bad(expected), status) if status == expected => self.refused += 1,
            // Late, or told before that it would be.
            (Kind::Hurry, 504 | 429) => self.late += 1,
            (Kind::Bad(_), _) | (_, 400..) => {
                let code = serde_json::from_slice::<ErrorAnswer>(&body).map(|answer| answer.error.code);
                self.fail(format!("{status} {}", code.as_deref().unwrap_or("without a code")));
            }
            (kind, _) => match serde_json::from_slice(&body) {
                Err(error) => self.fail(format!("no answer in the body: {error}")),
                Ok(AnswerBody { degraded: Some(_), .. }) if kind == Kind::HurryOrPassthrough => {
                    self.passed_through += 1;
                }
                Ok(AnswerBody { degraded: Some(error), .. }) => {
                    self.fail(format!("degraded: {}", error.code))
                }
                Ok(AnswerBody { degraded: None, blocks }) => {
                    self.answered += 1;
                    self.chunks += ask.chunks;
                    self.blocks.add(blocks.unwrap_or_default());
                }
            },
        }
    }

    fn fail(&mut self, how: String) {
        *self.failed.entry(how).or_default() += 1;
    }

    fn failures(&self) -> usize {
        self.failed.values().sum()
    }
}

impl Blocks {
    fn add(&mut self, other: Self) {
        self.memory += other.memory;
        self.disk += other.disk;
        self.shared += other.shared;
        self.joined += other.joined;
        self.read += other.read;
    }
}

/// What was seen, and whether memory stayed within its bounds and no request failed.
#[derive(Debug, Clone)]
pub struct Report {
    json: Value,
    passed: bool,
}

impl Report {
    pub(super) fn new(subject: &Subject, seen: &Seen) -> Self {
        let Seen { settings, base_mb, samples_mb, peak_mb, chunks, tally } = seen;
        let max = samples_mb.iter().copied().fold(peak_mb.max(*base_mb), f64::max);
        let bounds = settings.memory_bytes_max
            + settings.write_queue_bytes_max
            + settings.registry_bytes_max
            + settings.handle_bytes_max;
        let most = (bounds + SLACK_BYTES) as f64 / 1e6;
        let within = max <= most;
        let half = |samples: &[f64]| round_to(quantile(&sorted(samples.iter().copied()), 0.5), 1);
        let (first, second) = samples_mb.split_at(samples_mb.len() / 2);
        let stats = subject.daemon.stats();
        let Tally { answered, left, late, passed_through, refused, failed, cut_off, blocks, .. } = tally;
        let json = json!({
            "soak_s": settings.time.as_secs(),
            "clients": settings.clients,
            "chunks": chunks,
            "rss_mb": {
                "base": round_to(*base_mb, 1),
                "max": round_to(max, 1),
                "peak": round_to(*peak_mb, 1),
                "bounds": round_to(bounds as f64 / 1e6, 1),
                "at_most": round_to(most, 1),
                "median_of_first_half": if first.is_empty() { Value::Null } else { half(first) },
                "median_of_second_half": half(second),
                "samples": samples(samples_mb),
            },
            "requests": {
                "answered": answered,
                "answered_chunks": tally.chunks,
                "left": left,
                "late": late,
                "passed_through": passed_through,
                "refused": refused,
                "cut_off_at_the_end": cut_off,
                "failed": tally.failures(),
                "failures": failed,
            },
            "blocks": {
                "memory": blocks.memory,
                "disk": blocks.disk,
                "joined": blocks.joined,
                "read": blocks.read,
            },
            "kv": {
                "memory_bytes": stats.memory.bytes,
                "memory_bytes_max": settings.memory_bytes_max,
                "disk_bytes": stats.disk.bytes,
                "disk_bytes_max": settings.disk_bytes_max,
            },
            "met": {"memory": within, "requests": tally.failures() == 0 && *answered > 0},
            "model": json::model(subject),
            "machine": json::machine(subject),
            "version": env!("CARGO_PKG_VERSION"),
        });
        Self { passed: json["met"]["memory"] == json!(true) && json["met"]["requests"] == json!(true), json }
    }

    /// For programs.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Whether memory stayed within its bounds, something was answered, and nothing that should be was not.
    pub fn passed(&self) -> bool {
        self.passed
    }
}

/// Some of the samples, evenly spread.
fn samples(samples_mb: &[f64]) -> Vec<Value> {
    let step = samples_mb.len().div_ceil(SAMPLES_MAX).max(1);
    samples_mb.iter().step_by(step).map(|&mb| round_to(mb, 1)).collect()
}

/// For people.
pub fn table(report: &Report) -> String {
    let json = &report.json;
    let shown = |path: &str| {
        json.pointer(path).and_then(Value::as_f64).map_or("-".to_owned(), |number| format!("{number:.0}"))
    };
    let met = |name: &str| if json["met"][name] == json!(true) { "met" } else { "missed" };
    let mut out = format!(
        "{} s, {} clients, {} chunks, memory, write queue and registered chunks bounded at {} MB, disk at {} MB\n\n",
        json["soak_s"],
        json["clients"],
        json["chunks"],
        shown("/rss_mb/bounds"),
        json["kv"]["disk_bytes_max"].as_f64().unwrap_or_default() / 1e6,
    );
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<34} {value}");
    };
    for name in ["answered", "left", "late", "passed_through", "refused", "cut_off_at_the_end"] {
        line(&name.replace('_', " "), shown(&format!("/requests/{name}")));
    }
    for name in ["memory", "disk", "joined", "read"] {
        line(&format!("blocks: {name}"), shown(&format!("/blocks/{name}")));
    }
    let (memory, disk) = (shown("/kv/memory_bytes"), shown("/kv/disk_bytes"));
    line("bytes kept", format!("{memory} in memory, {disk} on disk"));
    let (first, second) = (shown("/rss_mb/median_of_first_half"), shown("/rss_mb/median_of_second_half"));
    line("resident, medians of both halves", format!("{first} MB, {second} MB"));
    line("resident after loading", format!("{} MB", shown("/rss_mb/base")));
    let memory = format!(
        "{} MB, at most {} (bounds + {}): {}",
        shown("/rss_mb/max"),
        shown("/rss_mb/at_most"),
        SLACK_BYTES / 1_000_000,
        met("memory")
    );
    line("resident at most", memory);
    line("failed", format!("{}, none expected: {}", shown("/requests/failed"), met("requests")));
    for (how, times) in json["requests"]["failures"].as_object().into_iter().flatten() {
        line(&format!("  {times} times"), how.clone());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_told_apart() {
        let check = |name: &str, kind: Kind, status: u16, body: &'static str, failed: usize| {
            let mut tally = Tally::default();
            let ask = Ask { kind, path: "", body: Bytes::new(), chunks: 1 };
            tally.count(&ask, Ok(Some((status, Bytes::from_static(body.as_bytes())))));
            assert_eq!(tally.failures(), failed, "{name}: {tally:?}");
        };
        let (answer, degraded) = (r#"{"blocks": {"read": 1}}"#, r#"{"degraded": {"code": "overloaded"}}"#);
        check("an answer", Kind::Answered, 200, answer, 0);
        check("a full queue", Kind::Answered, 429, r#"{"error": {"code": "overloaded"}}"#, 1);
        check("a late one that had all the time", Kind::Answered, 504, "", 1);
        check("a degraded one that did not ask for it", Kind::Answered, 200, degraded, 1);
        check("no JSON", Kind::Answered, 200, "", 1);
        check("a hurried answer", Kind::Hurry, 200, answer, 0);
        check("a hurried one that is late", Kind::Hurry, 504, "", 0);
        check("a hurried one that would be late", Kind::Hurry, 429, "", 0);
        check("one that had all the time", Kind::Answered, 429, "", 1);
        check("a hurried one that failed", Kind::Hurry, 500, "", 1);
        check("passed through", Kind::HurryOrPassthrough, 200, degraded, 0);
        check("not passed through", Kind::HurryOrPassthrough, 504, "", 1);
        check("refused", Kind::Bad(422), 422, "", 0);
        check("taken", Kind::Bad(422), 200, answer, 1);
        check("refused otherwise", Kind::Bad(422), 400, "", 1);
        let mut tally = Tally::default();
        let ask = Ask { kind: Kind::Answered, path: "", body: Bytes::new(), chunks: 1 };
        tally.count(&ask, Err(anyhow::anyhow!("reset")));
        assert_eq!(tally.failures(), 1, "no answer at all");
    }
}
