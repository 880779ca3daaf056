//! The report of a reader: how well it answers with each arm, beside all chunks.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{Arm, Judgement, Outcome, Price, ReaderOptions, Sample};
use crate::estimate::{Estimate, bootstrap_mean};
use crate::report::number;

#[derive(Debug, Clone)]
pub struct ReaderReport {
    /// Name of the file, without its extension.
    pub data: String,
    pub model: String,
    pub judge: Option<String>,
    pub rows: usize,
    /// Rows that were left out because they have no reference answer.
    pub without_answers: usize,
    /// The currency of the costs; `None` if the price is not known.
    pub currency: Option<String>,
    /// The first arm is all chunks.
    pub arms: Vec<(Arm, ArmReport)>,
}

/// How well a reader answers with one arm. Means are over the rows with an answer.
#[derive(Debug, Clone)]
pub struct ArmReport {
    pub answered: usize,
    /// Rows without an answer that could be scored, by reason.
    pub failures: BTreeMap<&'static str, usize>,
    /// Share of contexts with a reference answer in them.
    pub holds: f64,
    /// Share of answers that say that there is no answer.
    pub declined: f64,
    /// Each measure: its mean, and the mean difference to all chunks over the rows that both have answers for.
    pub measures: Vec<(&'static str, Estimate, Estimate)>,
    /// Answers of which the judge said neither yes nor no.
    pub not_judged: usize,
    /// Mean numbers of tokens of prompts and answers, as the server counted them; NaN if it did not.
    pub tokens_in: f64,
    pub tokens_out: f64,
    /// Median seconds of a response.
    pub seconds: f64,
    /// What a thousand questions cost; `None` if the price is not known.
    pub cost: Option<f64>,
}

type Measure = (&'static str, fn(&Sample) -> Option<f64>);

const MEASURES: [Measure; 4] = [
    ("exact", |sample| Some(sample.score.exact)),
    ("f1", |sample| Some(sample.score.f1)),
    ("contained", |sample| Some(sample.score.contained)),
    ("judged", |sample| match sample.judgement {
        Judgement::Is(is_right) => Some(f64::from(u8::from(is_right))),
        Judgement::None | Judgement::Missing => None,
    }),
];

impl ReaderReport {
    /// Returns the report of outcomes, `[arm][row]`; the first arm is all chunks.
    pub(super) fn new(
        data: String,
        options: &ReaderOptions,
        without_answers: usize,
        outcomes: Vec<(Arm, Vec<Outcome>)>,
    ) -> Self {
        let all = outcomes[0].1.clone();
        let measures = &MEASURES[..if options.judge.is_some() { 4 } else { 3 }];
        let arm = |(arm, own): &(Arm, Vec<Outcome>)| (*arm, ArmReport::new(own, &all, measures, options));
        Self {
            data,
            model: options.model.clone(),
            judge: options.judge.clone(),
            rows: all.len(),
            without_answers,
            currency: options.price.as_ref().map(|price| price.currency.clone()),
            arms: outcomes.iter().map(arm).collect(),
        }
    }

    /// Returns whether nothing can be compared, because no answer from all chunks could be scored.
    pub fn is_empty(&self) -> bool {
        self.arms[0].1.answered == 0
    }

    pub fn json(&self) -> Value {
        let arms: Map<_, _> =
            self.arms.iter().map(|(arm, report)| (arm.to_string(), report.json())).collect();
        json!({
            "data": self.data, "model": self.model, "judge": self.judge, "rows": self.rows, "without_answers": self.without_answers,
            "currency": self.currency, "arms": arms,
        })
    }

    /// Renders the report as a text table with 95 % intervals.
    pub fn table(&self) -> String {
        let mut out = format!("{}: {} questions, answered by {}", self.data, self.rows, self.model);
        if self.without_answers > 0 {
            let _ = write!(out, " ({} without answers left out)", self.without_answers);
        }
        let _ = write!(
            out,
            "\n  {:<17} {:>4} {:>9} {:>4} {:>5} {:>8}",
            "context", "rows", "tokens in", "out", "holds", "declined"
        );
        for (name, ..) in &self.arms[0].1.measures {
            let _ = write!(out, " {name:>10}");
            if shows_difference(name) {
                let _ = write!(out, " {:<24}", "minus all");
            }
        }
        let _ = write!(out, " {:>8}", "seconds");
        if let Some(currency) = &self.currency {
            let _ = write!(out, " {:>12}", format!("{currency}/1,000"));
        }
        out.push('\n');
        for (arm, report) in &self.arms {
            let ArmReport { answered, holds, declined, .. } = report;
            let _ = write!(
                out,
                "  {:<17} {answered:>4} {:>9} {:>4} {:>5} {:>8}",
                arm.to_string(),
                fixed(report.tokens_in, 0),
                fixed(report.tokens_out, 0),
                fixed(*holds, 2),
                fixed(*declined, 2)
            );
            for (name, mean, difference) in &report.measures {
                let _ = write!(out, " {:>10}", fixed(mean.mean, 3));
                if shows_difference(name) {
                    let difference = if *arm == Arm::All { String::new() } else { signed(*difference) };
                    let _ = write!(out, " {difference:<24}");
                }
            }
            let _ = write!(out, " {:>8}", fixed(report.seconds, 2));
            if let Some(cost) = report.cost {
                let _ = write!(out, " {cost:>12.4}");
            }
            out.push('\n');
        }
        for (arm, report) in self.arms.iter().filter(|(_, report)| !report.failures.is_empty()) {
            let failures: Vec<_> =
                report.failures.iter().map(|(name, count)| format!("{count} {name}")).collect();
            let _ = writeln!(out, "  not scored with {arm}: {}", failures.join(", "));
        }
        for (arm, report) in self.arms.iter().filter(|(_, report)| report.not_judged > 0) {
            let _ = writeln!(out, "  not judged with {arm}: {} answers", report.not_judged);
        }
        out
    }
}

/// Exact match is too strict for an interval to say more than those of the other measures.
fn shows_difference(measure: &str) -> bool {
    measure != "exact"
}

/// Writes a number with so many digits after the point; a dash if it is the mean of nothing.
fn fixed(value: f64, digits: usize) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.digits$}") }
}

fn signed(e: Estimate) -> String {
    if e.mean.is_nan() {
        "-".to_owned()
    } else {
        format!("{:+.3} [{:+.3}, {:+.3}]", e.mean, e.interval[0], e.interval[1])
    }
}

impl ArmReport {
    fn new(own: &[Outcome], all: &[Outcome], measures: &[Measure], options: &ReaderOptions) -> Self {
        let samples: Vec<&Sample> = own.iter().filter_map(sample).collect();
        let mut failures = BTreeMap::new();
        for outcome in own {
            if let Outcome::Failed(failure) = outcome {
                *failures.entry(failure.name()).or_default() += 1;
            }
        }
        let mean = |value: &dyn Fn(&Sample) -> f64| {
            samples.iter().map(|sample| value(sample)).sum::<f64>() / samples.len() as f64
        };
        let measured = |&(name, value): &Measure| {
            let own_values: Vec<f64> = samples.iter().filter_map(|sample| value(sample)).collect();
            let pairs = own
                .iter()
                .zip(all)
                .filter_map(|(own, all)| Some((value(sample(own)?)?, value(sample(all)?)?)));
            let differences: Vec<f64> = pairs.map(|(own, all)| own - all).collect();
            (name, bootstrap_mean(&own_values), bootstrap_mean(&differences))
        };
        let mut seconds: Vec<f64> = samples.iter().map(|sample| sample.seconds).collect();
        seconds.sort_unstable_by(f64::total_cmp);
        let tokens = |value: fn(&Sample) -> Option<u64>| {
            mean(&|sample| value(sample).map_or(f64::NAN, |tokens| tokens as f64))
        };
        let (tokens_in, tokens_out) = (tokens(|sample| sample.tokens_in), tokens(|sample| sample.tokens_out));
        let cost = |price: &Price| (price.input * tokens_in + price.output * tokens_out) / 1e6 * 1e3;
        Self {
            answered: samples.len(),
            failures,
            holds: mean(&|sample| f64::from(u8::from(sample.holds))),
            declined: mean(&|sample| f64::from(u8::from(sample.declined))),
            not_judged: samples.iter().filter(|sample| sample.judgement == Judgement::Missing).count(),
            measures: measures.iter().map(measured).collect(),
            tokens_in,
            tokens_out,
            seconds: seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN),
            cost: options.price.as_ref().map(cost).filter(|cost| !cost.is_nan()),
        }
    }

    fn json(&self) -> Value {
        let mut out = json!({
            "answered": self.answered, "failures": self.failures, "not_judged": self.not_judged, "holds": number(self.holds), "declined": number(self.declined),
            "tokens_in": number(self.tokens_in), "tokens_out": number(self.tokens_out), "seconds": number(self.seconds),
            "cost_per_1000": self.cost.map(number),
        });
        for (name, mean, difference) in &self.measures {
            out[name] = json!({
                "mean": number(mean.mean), "ci95": mean.interval.map(number),
                "minus_all": {"mean": number(difference.mean), "ci95": difference.interval.map(number)},
            });
        }
        out
    }
}

fn sample(outcome: &Outcome) -> Option<&Sample> {
    match outcome {
        Outcome::Answered(sample) => Some(sample),
        Outcome::Failed(_) => None,
    }
}
