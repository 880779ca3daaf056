//! Rounds to numbers: JSON for programs, a table for people.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::Effort;
use super::latency::Latency;
use super::rounds::{BATCHES, Round};
use crate::bench::Subject;
use crate::bench::json::{self, round_to, spread_json};
use crate::bench::statistics::{quantile, sorted, spread};
use crate::bench::workload::Workload;

/// What was measured. Rates are medians over rounds, ratios medians of each round's ratio, spreads quartiles.
#[derive(Debug, Clone)]
pub struct Report {
    json: Value,
}

impl Report {
    pub(super) fn new(
        subject: &Subject,
        workload: &Workload,
        effort: Effort,
        rounds: Vec<Round>,
        latency: Latency,
        peer: Option<Value>,
    ) -> Self {
        let rate = |took: &dyn Fn(&Round) -> f64| spread(rounds.iter().map(|r| r.tokens as f64 / took(r)));
        let cold = |r: &Round| r.cold.as_secs_f64();
        let graph = |r: &Round| r.graph.as_secs_f64();
        let sequential = sorted(latency.sequential.iter().map(|d| d.as_secs_f64() * 1e3));
        let concurrent = sorted(latency.concurrent.took.iter().map(|d| d.as_secs_f64() * 1e3));
        let tokens = rounds.iter().map(|r| r.tokens).sum::<usize>() as f64 / rounds.len() as f64;
        let mut json = json!({
            "cold_tokens_per_s": round_to(rate(&cold).median, 0),
            "graph_tokens_per_s": round_to(rate(&graph).median, 0),
            "cold_to_graph": spread_json(spread(rounds.iter().map(|r| graph(r) / cold(r)))),
            "graph_batched_tokens_per_s": batched(&rounds),
            "latency_ms": {
                "p50": round_to(quantile(&sequential, 0.5), 2),
                "p99": round_to(quantile(&sequential, 0.99), 2),
                "requests": sequential.len(),
            },
            "concurrent": {
                "clients": effort.clients,
                "tokens_per_s": round_to(
                    latency.concurrent_tokens as f64 / latency.concurrent.elapsed.as_secs_f64(), 0),
                "p50_ms": round_to(quantile(&concurrent, 0.5), 2),
                "p99_ms": round_to(quantile(&concurrent, 0.99), 2),
                "requests": concurrent.len(),
            },
            "stages_ms": stages(&rounds),
            "question_ms": stage(&rounds, "question"),
            "flops": {
                "per_token": round_to(rounds.iter().map(|r| r.flops / r.tokens as f64).sum::<f64>()
                    / rounds.len() as f64, 0),
                "graph_gflop_per_s": round_to(
                    spread(rounds.iter().map(|r| r.flops / graph(r) / 1e9)).median, 1),
                "cold_gflop_per_s": round_to(
                    spread(rounds.iter().map(|r| r.flops / cold(r) / 1e9)).median, 1),
            },
            "workload": {
                "chunks": workload.chunks,
                "tokens": workload.tokens,
                "query_tokens": workload.query_tokens,
                "mixed": workload.mixed,
                "tokens_per_request": round_to(tokens, 0),
                "rounds": effort.rounds,
            },
            "model": json::model(subject),
            "machine": json::machine(subject),
            "version": env!("CARGO_PKG_VERSION"),
        });
        if let Some(mut peer) = peer {
            let took = |r: &Round| r.peer.map_or(f64::NAN, |d| d.as_secs_f64());
            peer["tokens_per_s"] = round_to(rate(&took).median, 0);
            peer["cold_to_peer"] = spread_json(spread(rounds.iter().map(|r| took(r) / cold(r))));
            json["peer"] = peer;
        }
        Self { json }
    }

    /// For programs.
    pub fn json(&self) -> &Value {
        &self.json
    }
}

fn batched(rounds: &[Round]) -> Value {
    let rate = |at: usize| spread(rounds.iter().map(|r| r.tokens as f64 / r.batched[at].as_secs_f64()));
    let rates =
        BATCHES.iter().enumerate().map(|(at, batch)| (batch.to_string(), round_to(rate(at).median, 0)));
    Value::Object(rates.collect())
}

fn stages(rounds: &[Round]) -> Value {
    let names = rounds[0].timings.stages.iter().map(|&(name, _)| name);
    Value::Object(names.map(|name| (name.to_owned(), stage(rounds, name))).collect::<Map<_, _>>())
}

/// Median milliseconds of a stage.
fn stage(rounds: &[Round], name: &str) -> Value {
    let found = rounds.iter().flat_map(|r| r.timings.stages.iter().find(|(stage, _)| *stage == name));
    round_to(spread(found.map(|(_, took)| took.as_secs_f64() * 1e3)).median, 3)
}

/// For people.
pub fn table(report: &Report) -> String {
    let json = &report.json;
    let number = |path: &str| json.pointer(path).and_then(Value::as_f64);
    let shown = |path: &str, digits: usize| number(path).map_or("-".to_owned(), |n| format!("{n:.digits$}"));
    let of = |path: &str| {
        let part = |name: &str| shown(&format!("{path}/{name}"), 3);
        format!("{} [{}, {}]", part("median"), part("low"), part("high"))
    };
    let (workload, machine) = (&json["workload"], &json["machine"]);
    let mut out = format!(
        "{} on {} workers of {} cores ({}); {} chunks of {}{} tokens, question of {}, {} rounds\n\n",
        json["model"]["name"].as_str().unwrap_or("no model"),
        machine["workers"],
        machine["cores"],
        machine["arch"].as_str().unwrap_or_default(),
        workload["chunks"],
        if workload["mixed"] == json!(true) { "10 to twice " } else { "" },
        workload["tokens"],
        workload["query_tokens"],
        workload["rounds"],
    );
    let mut line = |name: &str, value: String, unit: &str, note: String| {
        let _ = writeln!(out, "  {name:<28} {value:>9} {unit:<9} {note}");
    };
    let gflops = |name: &str| format!("{} GFLOP/s", shown(&format!("/flops/{name}_gflop_per_s"), 0));
    line("graph alone", shown("/graph_tokens_per_s", 0), "tokens/s", gflops("graph"));
    for batch in BATCHES {
        let path = format!("/graph_batched_tokens_per_s/{batch}");
        line(&format!("graph alone, batches of {batch}"), shown(&path, 0), "tokens/s", String::new());
    }
    let ratio = format!("{}; {} of the graph alone", gflops("cold"), of("/cold_to_graph"));
    line("pipeline, cold", shown("/cold_tokens_per_s", 0), "tokens/s", ratio);
    if json.get("peer").is_some() {
        let ratio = format!("ours is {} times as fast", of("/peer/cold_to_peer"));
        line("sentence-transformers", shown("/peer/tokens_per_s", 0), "tokens/s", ratio);
    }
    for (stage, _) in json["stages_ms"].as_object().into_iter().flatten() {
        line(&format!("  stage {stage}"), shown(&format!("/stages_ms/{stage}"), 2), "ms", String::new());
    }
    let requests = format!("{} requests, each new", json["latency_ms"]["requests"]);
    line("HTTP p50", shown("/latency_ms/p50", 1), "ms", requests);
    line("HTTP p99", shown("/latency_ms/p99", 1), "ms", String::new());
    let clients = format!("HTTP, {} clients", json["concurrent"]["clients"]);
    let tail =
        format!("p50 {} ms, p99 {} ms", shown("/concurrent/p50_ms", 1), shown("/concurrent/p99_ms", 1));
    line(&clients, shown("/concurrent/tokens_per_s", 0), "tokens/s", tail);
    let flops = number("/flops/per_token").map_or("-".to_owned(), |n| format!("{:.1}", n / 1e6));
    line("arithmetic per token", flops, "MFLOP", String::new());
    out
}
