//! Reports of `eval` as JSON and as a text table. docs/evaluation.md defines every metric.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::estimate::{Estimate, cell};
use super::judged::{Judged, JudgedReport};

#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Name of the file, without its extension.
    pub data: String,
    pub rows: usize,
    /// Number of rows left out because no chunk answers their question.
    pub unlabelled: usize,
    /// Name of the method that answers requests by default.
    pub default: String,
    /// Results by method, the default method first.
    pub methods: Vec<(String, MethodReport)>,
    /// Results of the default method without a budget (`auto`); `None` for attribution data.
    pub auto: Option<AutoReport>,
    /// How well `support` separates supported from unsupported spans; `None` for selection data.
    pub support: Option<SupportReport>,
    /// What the support of each span of an answer was computed from; empty unless the rows are answers.
    pub spans: Vec<Judged>,
    /// How well judgements tell true from false; `None` unless the rows are claims or answerable questions.
    pub judged: Option<JudgedReport>,
    /// How well the relevance of a chunk tells whether a question needs it; `None` if it was not measured.
    pub relevance: Option<JudgedReport>,
}

/// How well `support` separates supported from unsupported spans.
#[derive(Debug, Clone)]
pub struct SupportReport {
    /// AUROC over all unsupported spans: the probability that a supported span has more support than an
    /// unsupported one (0.5 is chance).
    pub auroc: Estimate,
    /// AUROC by kind of unsupported span: `number`, `name`, `negation`, `elsewhere`, or `labelled`.
    pub kinds: Vec<(String, Estimate)>,
    /// Faithfulness: the share of spans whose support falls more when the best chunk is removed than when
    /// another one is. Spans with several cited chunks are left out.
    pub faithful: Option<Estimate>,
}

/// Results of one method. Metrics that do not apply to the data are `None` or empty.
#[derive(Debug, Clone, Default)]
pub struct MethodReport {
    /// R@gold: the share of gold chunks among the |gold| best-ranked ones, from 0 to 1; the best over
    /// `gold_sets` if there are any.
    pub recall_at_gold: Option<Estimate>,
    /// MRR: one over the rank of the first gold chunk, averaged over rows.
    pub mrr: Option<Estimate>,
    /// kept@N×: compression ratio N, with the share of questions for which one of the answers, compared
    /// case-insensitively, is in a plain context of at most 1/N of the tokens.
    pub kept: Vec<(u32, Estimate)>,
    /// Accuracy: the share of spans whose best chunk is the labelled one, from 0 to 1.
    pub accuracy: Option<Estimate>,
    /// Mean time per row in milliseconds: scoring, and reading for methods that need the model.
    pub ms: f64,
}

/// Results of the default method when it chooses how much to keep (`auto`).
#[derive(Debug, Clone, Copy)]
pub struct AutoReport {
    /// Share of the input's tokens that is kept, from 0 to 1.
    pub tokens_share: Estimate,
    /// Share of questions for which one of the answers is in the context; the mean is NaN without answers.
    pub kept: Estimate,
    /// Share of gold chunks of which at least one unit is kept, from 0 to 1.
    pub gold_share: Estimate,
}

impl Report {
    /// Returns the report of one file as a JSON object.
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
        if !self.spans.is_empty() {
            report["spans"] = self.spans.iter().map(Judged::json).collect();
        }
        if let Some(judged) = &self.judged {
            report["judged"] = judged.json();
        }
        if let Some(relevance) = &self.relevance {
            report["relevance"] = relevance.json();
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

/// Converts a number to JSON; NaN (the mean of no values) becomes null.
pub fn number(value: f64) -> Value {
    if value.is_nan() { Value::Null } else { json!(value) }
}

/// Selects the estimate that a column of the table shows, if it applies to the method.
type Column = fn(&MethodReport) -> Option<Estimate>;

/// Renders the report as a text table with 95 % intervals.
pub fn table(report: &Report) -> String {
    if let Some(judged) = &report.judged {
        return format!("{}: {} rows\n{}", report.data, report.rows, judged.table());
    }
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
        let kept = cell_or_dash(auto.kept);
        let (share, gold) = (cell(auto.tokens_share), cell(auto.gold_share));
        let _ = writeln!(
            out,
            "  auto: tokens kept {share}; answers that survive {kept}; gold chunks kept {gold}"
        );
    }
    if let Some(SupportReport { auroc, kinds, faithful }) = &report.support {
        let kinds: Vec<String> =
            kinds.iter().map(|(kind, auroc)| format!("{kind} {}", cell(*auroc))).collect();
        let _ = writeln!(out, "  support: AUROC {}; {}", cell(*auroc), kinds.join("; "));
        if let Some(faithful) = faithful {
            let _ = writeln!(out, "  faithfulness: {}", cell(*faithful));
        }
    }
    if let Some(relevance) = &report.relevance {
        let _ = write!(out, "  relevance of chunks:\n{}", relevance.table());
    }
    out
}

/// Writes a mean with its interval, or a dash if there were no values.
pub fn cell_or_dash(e: Estimate) -> String {
    if e.mean.is_nan() { "-".to_owned() } else { cell(e) }
}
