//! The report of the warm bench: JSON and a text table with the targets.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::{BlockCounts, ColdRequest, Effort, Measurements, Round, WarmBench, WarmRequest};
use crate::report::{self, Spread, quantile, round_to, sorted, spread, spread_json};
use crate::rss::Rss;
use crate::targets::{Bound, Target};

/// Results of the bench. Times are medians. A ratio is the median of the ratios of each round (or request),
/// with quartiles.
#[derive(Debug, Clone)]
pub struct Report {
    json: Value,
    targets: Vec<Target>,
}

impl Report {
    pub(super) fn new(bench: &WarmBench, effort: Effort, measurements: &Measurements) -> Self {
        let Measurements { rounds, cold, cold_chunks, pairs, concurrent, tokens, block_bytes, .. } =
            measurements;
        let workload = bench.workload;
        let scale = workload.chunks as f64 / *pairs as f64;
        let warm_requests = || rounds.iter().flat_map(|round| &round.warm_requests);
        let warm = sorted(warm_requests().map(|request| request.warm_ms));
        let concurrent_ms = sorted(concurrent.times.iter().map(|took| took.as_secs_f64() * 1e3));
        let (p50, p99) = (quantile(&concurrent_ms, 0.5), quantile(&concurrent_ms, 0.99));
        let per_s = concurrent.times.len() as f64 / concurrent.elapsed.as_secs_f64();
        let of_round =
            |round: &Round| spread(round.warm_requests.iter().map(|request| request.warm_ms)).median;
        let ratios = Ratios {
            pairs_over_warm: spread(rounds.iter().map(|round| round.pairs_ms * scale / of_round(round))),
            warm_over_question: spread(warm_requests().map(|request| request.warm_ms / request.encode_ms)),
            cold_over_graph: spread(cold.iter().map(|cold| cold.request_ms / cold.graph_ms)),
        };
        let encode = spread(warm_requests().map(|request| request.encode_ms));
        let cold_of = |time: &dyn Fn(&ColdRequest) -> f64| round_to(spread(cold.iter().map(time)).median, 1);
        let json = json!({
            "chunks": workload.chunks,
            "tokens": workload.tokens,
            "question_encode_ms": round_to(encode.median, 3),
            "pairs_ms": round_to(spread(rounds.iter().map(|round| round.pairs_ms * scale)).median, 1),
            "pairs_measured": pairs,
            "cold_ms": round_to(spread(rounds.iter().filter_map(|round| round.cold_ms)).median, 1),
            "warm_ms": {"p50": round_to(quantile(&warm, 0.5), 3), "p99": round_to(quantile(&warm, 0.99), 3)},
            "bytes_per_token": round_to(*block_bytes as f64 / *tokens as f64, 1),
            "rss_mb": megabytes(measurements, |rss| rss.now_mb),
            "rss_peak_mb": megabytes(measurements, |rss| rss.peak_mb),
            "ratios": {
                "pairs_over_warm": spread_json(ratios.pairs_over_warm),
                "warm_over_question": spread_json(ratios.warm_over_question),
                "cold_over_graph": spread_json(ratios.cold_over_graph),
                "p99_over_p50": round_to(p99 / p50, 4),
            },
            "question_encode": spread_json(encode),
            "warm": {
                "requests": warm.len(),
                "quartiles_ms": spread_json(spread(warm.iter().copied())),
                "blocks": blocks(warm_requests()),
                "stages_ms": stages(&warm_requests().collect::<Vec<_>>()),
            },
            "cold": {
                "chunks": cold_chunks,
                "request_ms": cold_of(&|cold| cold.request_ms),
                "graph_ms": cold_of(&|cold| cold.graph_ms),
                "rounds": cold.len(),
            },
            "concurrent": {
                "clients": effort.clients,
                "requests": concurrent.times.len(),
                "requests_per_s": round_to(per_s, 1),
                "p50_ms": round_to(p50, 2),
                "p99_ms": round_to(p99, 2),
            },
            "kv": {
                "memory_blocks": measurements.tiers.memory.entries,
                "memory_bytes": measurements.tiers.memory.bytes,
                "disk_blocks": measurements.tiers.disk.entries,
                "disk_bytes": measurements.tiers.disk.bytes,
            },
            "workload": {
                "query_tokens": workload.query_tokens,
                "mixed": workload.mixed,
                "tokens_per_request": tokens,
                "source": bench.source.as_str(),
                "rounds": rounds.len(),
            },
            "model": report::model(bench.subject),
            "machine": report::machine(bench.subject),
            "version": env!("CARGO_PKG_VERSION"),
        });
        let target = |name, reached, bound| Target { name, reached, bound };
        let targets = vec![
            target(
                "question-chunk pairs / warm request",
                ratios.pairs_over_warm.median,
                Bound::pairs_over_warm(workload),
            ),
            target(
                "warm request / question encoding",
                ratios.warm_over_question.median,
                Bound::warm_over_question(workload),
            ),
            target(
                "cold request / model graph alone",
                ratios.cold_over_graph.median,
                Bound::cold_over_graph(workload, *cold_chunks),
            ),
            target("p99 / p50, concurrent clients", p99 / p50, Bound::tail(effort.clients)),
        ];
        let mut report = Self { json, targets };
        report.json["targets"] = report.targets.iter().map(Target::json).collect();
        report
    }

    pub fn json(&self) -> &Value {
        &self.json
    }
}

struct Ratios {
    pairs_over_warm: Spread,
    warm_over_question: Spread,
    cold_over_graph: Spread,
}

fn megabytes(measurements: &Measurements, of: impl Fn(Rss) -> f64) -> Value {
    measurements.rss.map_or(Value::Null, |rss| round_to(of(rss), 1))
}

/// Returns where the last request's blocks came from: the memory tier, as far as they fit, else the disk
/// tier.
fn blocks<'a>(requests: impl Iterator<Item = &'a WarmRequest>) -> Value {
    let BlockCounts { memory, disk, .. } =
        requests.last().map(|request| request.block_counts).unwrap_or_default();
    json!({"memory": memory, "disk": disk})
}

/// Returns the median time of each stage of warm requests in milliseconds, as the responses report it.
fn stages(requests: &[&WarmRequest]) -> Value {
    let names = requests.first().map(|request| &request.stages).into_iter().flatten().map(|(name, _)| name);
    let median = |name: &String| {
        let found = requests.iter().flat_map(|a| a.stages.iter().filter(|(stage, _)| stage == name));
        round_to(spread(found.map(|&(_, ms)| ms)).median, 3)
    };
    Value::Object(names.map(|name| (name.clone(), median(name))).collect::<Map<_, _>>())
}

pub fn table(report: &Report) -> String {
    let json = &report.json;
    let shown = |path: &str, digits: usize| {
        let number = json.pointer(path).and_then(Value::as_f64);
        number.map_or("-".to_owned(), |n| format!("{n:.digits$}"))
    };
    let ratio = |name: &str| {
        let part = |part: &str| shown(&format!("/ratios/{name}/{part}"), 2);
        format!("{} [{}, {}]", part("median"), part("low"), part("high"))
    };
    let workload = &json["workload"];
    let mut out = report::headline(json);
    let _ = writeln!(
        out,
        "{} chunks of {}{} tokens, questions of {}, {} rounds\n",
        json["chunks"],
        if workload["mixed"] == json!(true) { "10 to twice " } else { "" },
        json["tokens"],
        workload["query_tokens"],
        workload["rounds"],
    );
    let mut line = |name: &str, value: String, unit: &str, note: String| {
        let _ = writeln!(out, "{}", format!("  {name:<32} {value:>10} {unit:<11} {note}").trim_end());
    };
    line(
        "question encoding",
        shown("/question_encode_ms", 2),
        "ms",
        "the model graph alone, all threads".to_owned(),
    );
    let note =
        format!("{} pairs run; {} times the warm request", json["pairs_measured"], ratio("pairs_over_warm"));
    line("question-chunk pairs", shown("/pairs_ms", 1), "ms", note);
    let cold = format!("HTTP, cold, {} chunks", json["chunks"]);
    line(&cold, shown("/cold_ms", 1), "ms", "the first request of each round".to_owned());
    let note = format!(
        "{} requests; {} times question encoding",
        json["warm"]["requests"],
        ratio("warm_over_question")
    );
    line("HTTP, warm p50", shown("/warm_ms/p50", 2), "ms", note);
    line("HTTP, warm p99", shown("/warm_ms/p99", 2), "ms", String::new());
    for (stage, _) in json["warm"]["stages_ms"].as_object().into_iter().flatten() {
        line(&format!("  stage {stage}"), shown(&format!("/warm/stages_ms/{stage}"), 3), "ms", String::new());
    }
    let cold = format!("HTTP, cold, {} chunks", json["cold"]["chunks"]);
    let note = format!(
        "separate run; model graph alone {} ms; {} times that",
        shown("/cold/graph_ms", 1),
        ratio("cold_over_graph")
    );
    line(&cold, shown("/cold/request_ms", 1), "ms", note);
    let clients = format!("HTTP, warm, {} clients", json["concurrent"]["clients"]);
    let note =
        format!("p50 {} ms, p99 {} ms", shown("/concurrent/p50_ms", 1), shown("/concurrent/p99_ms", 1));
    line(&clients, shown("/concurrent/requests_per_s", 1), "requests/s", note);
    line("blocks", shown("/bytes_per_token", 1), "bytes/token", String::new());
    let note = format!("peak {}; daemon, client and the graphs that run alone", shown("/rss_peak_mb", 0));
    line("resident memory", shown("/rss_mb", 0), "MB", note);
    out.push('\n');
    for target in &report.targets {
        let _ = writeln!(out, "  {target}");
    }
    out
}
