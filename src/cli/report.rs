//! `thresher report`: what compression would have saved of recorded traffic.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::app::{self, Limits};
use crate::config::Config;
use crate::savings::counts::Money;
use crate::savings::losses::Loss;
use crate::savings::report::{ModelSavings, ShadowReport};
use crate::savings::traffic::{Recorded, Replay};

#[derive(clap::Args)]
pub struct Args {
    /// Recorded traffic: one JSON object per line, with "path", "request", and optionally "response" and "usage" (docs/savings.md describes the
    /// format). `-` reads standard input.
    #[arg(value_name = "FILE.jsonl")]
    file: PathBuf,
    /// Print the report as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.file.display().to_string();
    let input: Box<dyn BufRead> = match args.file.as_path() {
        path if path == Path::new("-") => Box::new(std::io::stdin().lock()),
        path => Box::new(BufReader::new(File::open(path).with_context(|| format!("cannot read {name}"))?)),
    };
    let pipeline = app::pipeline(config)?;
    let mut replay = Replay::new(config.middleware.clone(), config.savings.clone(), pipeline);
    // A line has a request and its answer.
    let bytes_max = 2 * Limits::new(config, 1).middleware.body_bytes_max;
    let mut lines = Lines { input, bytes_max, number: 0 };
    while let Some(line) = lines.next_line().with_context(|| name.clone())? {
        if line.trim().is_empty() {
            continue;
        }
        let recorded = Recorded::parse(&line).with_context(|| format!("{name}, line {}", lines.number))?;
        replay.add(&recorded);
    }
    let Some((report, losses)) = replay.report() else { bail!("{name} has no request") };
    if args.json {
        let report = json!({"shadow": report, "losses": losses, "not_compressed": replay.whole()});
        return super::success(serde_json::to_string_pretty(&report)?);
    }
    let mut text = table(&report);
    if !losses.is_empty() {
        let _ = write!(text, "\n\n{}", loss_table(&losses));
    }
    for (reason, count) in replay.whole() {
        let _ = write!(text, "\nnot compressed: {count} requests, {reason}");
    }
    super::success(text)
}

struct Lines {
    input: Box<dyn BufRead>,
    bytes_max: usize,
    /// The number of the last line, from 1.
    number: usize,
}

impl Lines {
    fn next_line(&mut self) -> anyhow::Result<Option<String>> {
        self.number += 1;
        let mut line = Vec::new();
        let mut limited = self.input.by_ref().take(self.bytes_max as u64 + 1);
        if limited.read_until(b'\n', &mut line).with_context(|| format!("line {}", self.number))? == 0 {
            return Ok(None);
        }
        if line.len() > self.bytes_max {
            bail!(
                "line {}: it has more than {} bytes, twice the largest body of a request",
                self.number,
                self.bytes_max
            );
        }
        let line = String::from_utf8(line).map_err(|_| anyhow::anyhow!("line {}: not UTF-8", self.number))?;
        Ok(Some(line))
    }
}

/// The report as text: a row for each model, and what the numbers mean.
fn table(report: &ShadowReport) -> String {
    let heads = ["model", "path", "requests", "shortened", "tokens", "left", "saved", "money", "of the bill"];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(report.models.iter().map(row));
    let mut text = aligned(&rows);
    let saved = report.totals.counts.saved_as;
    let _ = write!(
        text,
        "\nsaved tokens would have been billed as: input {}, cached reads {}, cached writes {}, unknown {}",
        saved.input, saved.cached_read, saved.cached_write, saved.unknown
    );
    for money in &report.totals.money {
        let _ = write!(text, "\n{}", amount(money));
    }
    if report.totals.tokens_unpriced > 0 {
        let _ = write!(
            text,
            "\n{} saved tokens are not in the money: their model has no price, or the answer does not say what was billed",
            report.totals.tokens_unpriced
        );
    }
    let coverage = report.coverage;
    let _ = match coverage.sentences_kept_share {
        Some(share) => write!(
            text,
            "\ncoverage: of {} sentences of {} answers that have a source, {} would have kept one ({})",
            coverage.sentences,
            coverage.answers,
            coverage.sentences_kept,
            percent(share)
        ),
        None => write!(text, "\ncoverage: no answer has a sentence with a source"),
    };
    text
}

/// Rows in columns: the first two to the left, all others to the right.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| match at {
            0 | 1 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// What compression lost of the results of tools, and what the table cannot see.
fn loss_table(losses: &[Loss]) -> String {
    let heads = ["tool", "kind", "used", "lost", "share", "at least", "at most", ""];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(losses.iter().map(|loss| {
        [
            super::visible(&loss.tool, "").into_owned(),
            loss.kind.clone(),
            loss.uses.to_string(),
            loss.uses_lost.to_string(),
            percent(loss.uses_lost as f64 / loss.uses as f64),
            percent(loss.share_min),
            percent(loss.share_max),
            if loss.is_off { "too much: live, it would be sent whole".to_owned() } else { String::new() },
        ]
    }));
    let table = aligned(&rows);
    format!(
        "{table}\nused: results from which a later step copied a path, an id, a number, a name or a sentence; lost: something of that had been left \
         out; what is used without being copied is not seen"
    )
}

fn row(model: &ModelSavings) -> [String; 9] {
    let counts = &model.counts;
    let saved = counts.tokens_before - counts.tokens_after;
    let share = if counts.tokens_before > 0 { saved as f64 / counts.tokens_before as f64 } else { 0.0 };
    let (money, of_bill) = match &model.money {
        Some(money) => (
            format!("{:.4} {}", money.saved, money.currency),
            money.share.map_or_else(|| "-".to_owned(), percent),
        ),
        None => ("no price".to_owned(), "-".to_owned()),
    };
    [
        super::visible(&model.model, "").into_owned(),
        model.route.clone(),
        counts.requests.to_string(),
        counts.requests_shortened.to_string(),
        counts.tokens_before.to_string(),
        counts.tokens_after.to_string(),
        percent(share),
        money,
        of_bill,
    ]
}

fn amount(money: &Money) -> String {
    format!(
        "money: {:.4} {currency} would have been saved of a bill of {:.4} {currency}",
        money.saved,
        money.billed,
        currency = money.currency
    )
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
