//! What was measured, as JSON and as a table.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::bootstrap::Estimate;

/// Results of one file.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The file's name.
    pub data: String,
    /// Rows evaluated.
    pub rows: usize,
    /// Rows left out: questions that no chunk answers.
    pub unlabelled: usize,
    /// The method that answers requests.
    pub default: String,
    /// Results per method, the default first.
    pub methods: Vec<(String, MethodReport)>,
    /// The default method without a budget.
    pub auto: Option<AutoReport>,
    /// How well attribution tells what chunks say from what they do not.
    pub support: Option<SupportReport>,
    /// What the registry's prefilter keeps, among the chunks of all rows.
    pub prefilter: Option<PrefilterReport>,
}

/// How well support tells what chunks say from what they do not.
#[derive(Debug, Clone)]
pub struct SupportReport {
    /// Area under the ROC curve, over all unsupported spans.
    pub auroc: Estimate,
    /// The same by kind.
    pub kinds: Vec<(String, Estimate)>,
    /// How often support falls more without the best chunk than without another.
    pub faithful: Option<Estimate>,
}

/// What the registry's prefilter keeps of what is needed.
#[derive(Debug, Clone)]
pub struct PrefilterReport {
    /// Chunks that every question was put to.
    pub chunks: usize,
    /// How many chunks are kept → share of the gold chunks among them.
    pub kept: Vec<(usize, Estimate)>,
}

/// Results of one method; what does not apply to a file is none.
#[derive(Debug, Clone, Default)]
pub struct MethodReport {
    /// Of the |gold| best chunks, the share that is gold.
    pub recall_at_gold: Option<Estimate>,
    /// One over the rank of the first gold chunk.
    pub mrr: Option<Estimate>,
    /// Compression ratio → share of questions whose answer text survives.
    pub kept: Vec<(u32, Estimate)>,
    /// Share of spans that are tied to the right chunk.
    pub accuracy: Option<Estimate>,
    /// Milliseconds per row: reading included where the method reads.
    pub ms: f64,
}

/// What the default keeps when it may choose how much.
#[derive(Debug, Clone, Copy)]
pub struct AutoReport {
    /// Share of the input's tokens that is kept.
    pub tokens_share: Estimate,
    /// Share of questions whose answer text survives.
    pub kept: Estimate,
    /// Share of the gold chunks of which something is kept.
    pub gold_share: Estimate,
}

impl Report {
    /// The JSON shape of one file.
    pub fn json(&self) -> Value {
        let methods: Map<_, _> = self.methods.iter().map(|(name, m)| (name.clone(), m.json())).collect();
        let mut report = json!({
            "data": self.data, "rows": self.rows, "unlabelled": self.unlabelled, "default": self.default, "methods": methods,
        });
        if let Some(auto) = &self.auto {
            report["auto"] = json!({
                "tokens_share": auto.tokens_share.mean, "kept": number(auto.kept.mean), "gold_share": auto.gold_share.mean,
                "ci95": {
                    "tokens_share": auto.tokens_share.interval,
                    "kept": auto.kept.interval.map(number),
                    "gold_share": auto.gold_share.interval,
                },
            });
        }
        if let Some(support) = &self.support {
            report["auroc"] = json!(support.auroc.mean);
            report["support"] =
                json!({"auroc": support.auroc.mean, "ci95": {"auroc": support.auroc.interval}});
            for (kind, auroc) in &support.kinds {
                report["support"]["by_kind"][kind] = json!(auroc.mean);
                report["support"]["ci95"]["by_kind"][kind] = json!(auroc.interval);
            }
            if let Some(faithful) = &support.faithful {
                report["support"]["faithful"] = json!(faithful.mean);
                report["support"]["ci95"]["faithful"] = json!(faithful.interval);
            }
        }
        if let Some(prefilter) = &self.prefilter {
            report["prefilter"] = json!({"chunks": prefilter.chunks, "gold_share": {}, "ci95": {}});
            for (keep, share) in &prefilter.kept {
                report["prefilter"]["gold_share"][keep.to_string()] = json!(share.mean);
                report["prefilter"]["ci95"][keep.to_string()] = json!(share.interval);
            }
        }
        report
    }
}

impl MethodReport {
    fn json(&self) -> Value {
        let mut out = json!({ "ms_per_request": self.ms, "ci95": {} });
        let single =
            [("recall_at_gold", self.recall_at_gold), ("mrr", self.mrr), ("accuracy", self.accuracy)];
        for (name, estimate) in single.into_iter().filter_map(|(name, e)| Some((name, e?))) {
            out[name] = json!(estimate.mean);
            out["ci95"][name] = json!(estimate.interval);
        }
        for (ratio, estimate) in &self.kept {
            out["kept"][ratio.to_string()] = json!(estimate.mean);
            out["ci95"]["kept"][ratio.to_string()] = json!(estimate.interval);
        }
        out
    }
}

/// JSON has no NaN: a mean over nothing is null.
fn number(value: f64) -> Value {
    if value.is_nan() { Value::Null } else { json!(value) }
}

/// What a column of the table shows of a method, where it applies.
type Column = fn(&MethodReport) -> Option<Estimate>;

/// A table for people, with 95 % intervals.
pub fn table(report: &Report) -> String {
    let unlabelled = match report.unlabelled {
        0 => String::new(),
        some => format!(" ({some} without gold left out)"),
    };
    let mut out = format!("{}: {} rows{unlabelled}, default {}\n", report.data, report.rows, report.default);
    let columns: [(&str, Column); 6] = [
        ("R@gold", |m| m.recall_at_gold),
        ("MRR", |m| m.mrr),
        ("kept@4x", |m| m.kept.first().map(|k| k.1)),
        ("kept@8x", |m| m.kept.get(1).map(|k| k.1)),
        ("kept@16x", |m| m.kept.get(2).map(|k| k.1)),
        ("accuracy", |m| m.accuracy),
    ];
    let used =
        |value: fn(&MethodReport) -> Option<Estimate>| report.methods.iter().any(|(_, m)| value(m).is_some());
    let columns: Vec<_> = columns.into_iter().filter(|(_, value)| used(*value)).collect();
    let _ = write!(out, "  {:<22}", "method");
    for (title, _) in &columns {
        let _ = write!(out, " {title:>22}");
    }
    let _ = writeln!(out, " {:>9}", "ms");
    for (name, method) in &report.methods {
        let _ = write!(out, "  {name:<22}");
        for (_, value) in &columns {
            let cell = value(method).map_or_else(String::new, cell);
            let _ = write!(out, " {cell:>22}");
        }
        let _ = writeln!(out, " {:>9.2}", method.ms);
    }
    if let Some(auto) = &report.auto {
        let kept = if auto.kept.mean.is_nan() { "-".to_owned() } else { cell(auto.kept) };
        let (share, gold) = (cell(auto.tokens_share), cell(auto.gold_share));
        let _ = writeln!(
            out,
            "  auto: keeps {share} of the tokens; answers survive {kept}; gold chunks kept {gold}"
        );
    }
    if let Some(SupportReport { auroc, kinds, faithful }) = &report.support {
        let kinds: Vec<String> =
            kinds.iter().map(|(kind, auroc)| format!("{kind} {}", cell(*auroc))).collect();
        let _ = writeln!(out, "  support: AUROC {}; {}", cell(*auroc), kinds.join("; "));
        if let Some(faithful) = faithful {
            let _ = writeln!(out, "  support falls most without the best chunk: {}", cell(*faithful));
        }
    }
    if let Some(PrefilterReport { chunks, kept }) = &report.prefilter
        && !kept.is_empty()
    {
        let kept: Vec<String> =
            kept.iter().map(|(keep, share)| format!("{keep}: {}", cell(*share))).collect();
        let _ =
            writeln!(out, "  prefilter of {chunks} chunks, gold chunks kept in the best {}", kept.join("; "));
    }
    out
}

fn cell(e: Estimate) -> String {
    format!("{:.3} [{:.3}, {:.3}]", e.mean, e.interval[0], e.interval[1])
}
