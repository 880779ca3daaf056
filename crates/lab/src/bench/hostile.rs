//! Attacks a daemon in a process of its own with default settings, and reports for each attack the numbers
//! reached and the aims (`bench --hostile`).
//!
//! The attacks go over loopback to the real binary. Its resident memory and processor time are read from the
//! operating system, separately from those of the bench. Every attack is bounded in number and time. Each row
//! starts its own daemon, so rows do not affect each other and can be run alone. The bench kills a daemon
//! that takes too much of the machine's memory; the row then has not held.

mod connections;
mod process;
mod memory;
mod middleware;
mod origins;
mod storage;
mod tenants;
pub(super) mod upstream;
mod clients;

use std::fmt::Write;
use std::str::FromStr;
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};
use thresher_core::model::device::DeviceInUse;
use tokio::signal::unix::{SignalKind, signal};

pub use self::process::Setup;
use super::Progress;
use super::report::{ModelOnDevice, headline, round_to};
use super::targets::Bound;

/// A row of the report: an attack with its aims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    /// Small requests that name a large field many times.
    RankFields,
    /// Requests that a page of another web site makes a browser send.
    Hosts,
    /// Large bodies of many small values.
    Parsing,
    /// Conversations of many small turns.
    Turns,
    /// Idle connections.
    Connections,
    /// Clients that do not read responses, and clients that send slowly.
    SlowClients,
    /// A full disk that gets free space again.
    FullDisk,
    /// Two tenants, one of which sends as much as it can.
    Tenants,
    /// File permissions of everything that the daemon writes.
    Permissions,
    /// Upstreams that stream without end.
    EndlessUpstream,
    /// Secrets in requests to an upstream, and headers in its responses.
    Credentials,
    /// Damaged block files on disk.
    BadBlock,
    /// A full queue, and clients that obey `Retry-After`.
    RetryAfter,
    /// TLS handshakes that are never finished.
    TlsStall,
    /// `kill -9` while chunks are registered and conversations are compressed.
    Kill,
}

/// Every row with its name and a description of the attack.
#[rustfmt::skip]
const ROWS: [(Row, &str, &str); 15] = [
    (Row::RankFields, "rank-fields", "rerank requests of 0.45 and 0.8 MB that name one field of a document 50,000 and 100,000 times"),
    (Row::Hosts, "hosts", "requests with a foreign Host, Origin or Sec-Fetch-Site header, and bodies sent as text/plain"),
    (Row::Parsing, "parsing", "64 clients that send bodies of 8.3 MB of empty strings to /v1/compress and /v1/rerank for 15 s"),
    (Row::Turns, "turns", "conversations of 3.4 and 8.2 MB of tiny turns, to /v1/compress and to the middleware"),
    (Row::Connections, "connections", "300 and 1,500 idle connections of HTTP/1.1 and HTTP/2 and half-sent heads"),
    (Row::SlowClients, "slow-clients", "40 clients that ask for 8 MB each and do not read, 20 that send a byte a second"),
    (Row::FullDisk, "full-disk", "the disk of the stored originals is filled while conversations are compressed, then freed"),
    (Row::Tenants, "tenants", "32 clients of one tenant that send 20 to 100 new chunks each and 64 idle streams, while another tenant sends warm requests"),
    (Row::Permissions, "permissions", "no attack: modes of files and directories in the data directories after a run that wrote to all of them"),
    (Row::EndlessUpstream, "endless-upstream", "upstreams that stream without end while citing: sentences, one sentence, one line"),
    (Row::Credentials, "credentials", "requests with secrets in headers and query to an upstream that serves every model, and the headers of its responses"),
    (Row::BadBlock, "bad-block", "bytes of the block files of a stopped daemon are changed, then the daemon is started and gets a request with explain"),
    (Row::RetryAfter, "retry-after", "120 clients with new chunks at once, each sending again when Retry-After says so"),
    (Row::TlsStall, "tls-stall", "300 TLS handshakes that are never finished"),
    (Row::Kill, "kill", "kill -9 while chunks are registered and conversations compressed, twice"),
];

impl Row {
    /// Returns all rows in the order in which they run.
    pub fn all() -> Vec<Self> {
        ROWS.iter().map(|(row, ..)| *row).collect()
    }

    /// Returns the names of all rows, separated by commas.
    pub fn names() -> String {
        ROWS.map(|(_, name, _)| name).join(", ")
    }

    /// Returns the row's name on the command line and in reports.
    pub fn name(self) -> &'static str {
        self.description().1
    }

    /// Returns the description of the attack.
    pub fn attack(self) -> &'static str {
        self.description().2
    }

    fn description(self) -> (Self, &'static str, &'static str) {
        *ROWS.iter().find(|(row, ..)| *row == self).expect("every row is described")
    }

    async fn run(self, setup: &Setup) -> anyhow::Result<Vec<Finding>> {
        match self {
            Self::RankFields => memory::rank_fields(setup).await,
            Self::Hosts => origins::hosts(setup).await,
            Self::Parsing => memory::parsing(setup).await,
            Self::Turns => memory::turns(setup).await,
            Self::Connections => connections::idle(setup).await,
            Self::SlowClients => connections::slow_clients(setup).await,
            Self::FullDisk => storage::full_disk(setup).await,
            Self::Tenants => tenants::tenants(setup).await,
            Self::Permissions => storage::permissions(setup).await,
            Self::EndlessUpstream => middleware::endless_upstream(setup).await,
            Self::Credentials => middleware::credentials(setup).await,
            Self::BadBlock => storage::bad_block(setup).await,
            Self::RetryAfter => tenants::retry_after(setup).await,
            Self::TlsStall => connections::tls_stall(setup).await,
            Self::Kill => storage::kill(setup).await,
        }
    }
}

impl FromStr for Row {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let row = ROWS.iter().find(|(_, known, _)| *known == name);
        row.map(|(row, ..)| *row)
            .ok_or_else(|| format!("there is no row {name:?}; the rows are {}", Self::names()))
    }
}

/// One aim of a row and the number that was reached.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    aim: String,
    /// `None` if the attack could not be tried on this machine.
    reached: Option<(f64, Bound)>,
    note: String,
}

impl Finding {
    /// Creates a finding whose number must be no more than `most`.
    pub fn at_most(aim: impl Into<String>, reached: f64, most: f64) -> Self {
        Self { aim: aim.into(), reached: Some((reached, Bound::AtMost(most))), note: String::new() }
    }

    /// Creates a finding whose number must be no less than `least`.
    pub fn at_least(aim: impl Into<String>, reached: f64, least: f64) -> Self {
        Self { aim: aim.into(), reached: Some((reached, Bound::AtLeast(least))), note: String::new() }
    }

    /// Creates a finding that must hold: its number is 1 if `holds`, else 0, and must be at least 1.
    pub fn is_true(aim: impl Into<String>, holds: bool) -> Self {
        Self::at_least(aim, f64::from(u8::from(holds)), 1.0)
    }

    /// Creates a finding for an attack that could not be tried on this machine, with the reason.
    pub fn skipped(aim: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { aim: aim.into(), reached: None, note: reason.into() }
    }

    /// Adds a note with details.
    pub fn note(self, note: impl Into<String>) -> Self {
        let note: String = note.into();
        Self { note: note.trim_end_matches([';', ':', ',', ' ']).to_owned(), ..self }
    }

    /// Prefixes the aim with the name of one case of several.
    pub fn in_case(self, case: &str) -> Self {
        Self { aim: format!("{case}: {}", self.aim), ..self }
    }

    /// Returns whether the aim was reached; `None` if the attack could not be tried.
    pub fn held(&self) -> Option<bool> {
        self.reached.map(|(reached, bound)| bound.is_met_by(reached))
    }
}

/// Findings of one row.
#[derive(Debug, Clone)]
struct RowResult {
    row: Row,
    findings: Vec<Finding>,
    seconds: f64,
}

/// Findings of all rows that were run.
#[derive(Debug, Clone)]
pub struct Report {
    results: Vec<RowResult>,
    model: Value,
    machine: Value,
}

/// Runs rows one after another; returns `None` if interrupted by SIGINT or SIGTERM. All daemons and
/// directories are gone when this function returns.
///
/// # Errors
/// Fails if the model's contract or the library cannot be read, or if the system cannot create a runtime or a
/// signal handler. An error inside a row becomes a finding of that row.
pub fn run(setup: &Setup, rows: &[Row], progress: Progress) -> anyhow::Result<Option<Report>> {
    // The daemons have default settings, so their model runs on the CPU.
    let on = ModelOnDevice::new(&setup.model_dir, &setup.runtime_lib, &DeviceInUse::cpu())?;
    let (model, machine) = (on.model(), on.machine());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).context("no signal handler")?;
        tokio::select! {
            results = run_rows(setup, rows, progress) => Ok(Some(Report { results, model, machine })),
            _ = tokio::signal::ctrl_c() => Ok(None),
            _ = term.recv() => Ok(None),
        }
    })
}

async fn run_rows(setup: &Setup, rows: &[Row], progress: Progress<'_>) -> Vec<RowResult> {
    let mut results = Vec::new();
    for (at, row) in rows.iter().copied().enumerate() {
        progress(row.name(), at, rows.len());
        let started = Instant::now();
        let findings = row.run(setup).await.unwrap_or_else(|error| {
            vec![Finding::is_true("the row finished without an error", false).note(format!("{error:#}"))]
        });
        results.push(RowResult { row, findings, seconds: started.elapsed().as_secs_f64() });
    }
    results
}

impl Report {
    /// Returns whether all aims that could be tried were reached.
    pub fn passed(&self) -> bool {
        self.results.iter().flat_map(|result| &result.findings).all(|finding| finding.held() != Some(false))
    }

    /// Returns the report as JSON, with one entry per finding.
    pub fn json(&self) -> Value {
        let entry = |result: &RowResult, finding: &Finding| {
            let (at_least, at_most) = match finding.reached {
                Some((_, Bound::AtLeast(least))) => (Some(least), None),
                Some((_, Bound::AtMost(most))) => (None, Some(most)),
                None => (None, None),
            };
            json!({
                "name": result.row.name(),
                "attack": result.row.attack(),
                "aim": finding.aim,
                "at_least": at_least,
                "at_most": at_most,
                "reached": finding.reached.map(|(reached, _)| round_to(reached, 3)),
                "held": finding.held(),
                "note": finding.note,
            })
        };
        let rows = self
            .results
            .iter()
            .flat_map(|result| result.findings.iter().map(move |finding| entry(result, finding)));
        json!({
            "rows": rows.collect::<Vec<_>>(),
            "passed": self.passed(),
            "model": self.model,
            "machine": self.machine,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }
}

/// Renders the report as a text table.
pub fn table(report: &Report) -> String {
    let mut out = headline(&json!({"model": report.model, "machine": report.machine}));
    let all: Vec<&Finding> = report.results.iter().flat_map(|result| &result.findings).collect();
    let width = all.iter().map(|finding| finding.aim.len()).max().unwrap_or_default();
    for RowResult { row, findings, seconds } in &report.results {
        let _ = writeln!(out, "{}: {} ({seconds:.0} s)", row.name(), row.attack());
        for Finding { aim, reached, note } in findings {
            let _ = match reached {
                Some((reached, bound)) => {
                    let held = if bound.is_met_by(*reached) { "held" } else { "NOT HELD" };
                    let (sign, limit) = match bound {
                        Bound::AtLeast(least) => (">=", least),
                        Bound::AtMost(most) => ("<=", most),
                    };
                    writeln!(
                        out,
                        "  {held:<8}  {aim:<width$}  {:>9}  {sign} {}",
                        round(*reached),
                        round(*limit)
                    )
                }
                None => writeln!(out, "  skipped   {aim}"),
            };
            if !note.is_empty() {
                let _ = writeln!(out, "            {note}");
            }
        }
    }
    let count = |held: Option<bool>| all.iter().filter(|finding| finding.held() == held).count();
    let (held, failed, skipped) = (count(Some(true)), count(Some(false)), count(None));
    let _ = write!(out, "\n{held} of {} aims held, {failed} not, {skipped} skipped", all.len());
    out
}

/// Formats a number: without decimals if it is whole or at least 100, else with two.
fn round(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        whole if whole.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        let results = vec![RowResult { row: Row::Hosts, findings, seconds: 1.0 }];
        Report { results, model: json!({"name": "m"}), machine: json!({"cores": 2}) }
    }

    #[test]
    fn rows_parse_from_their_names() {
        for row in Row::all() {
            assert_eq!(row.name().parse(), Ok(row));
        }
        let unknown = "host".parse::<Row>().expect_err("no such row");
        assert!(unknown.contains("hosts") && unknown.contains("kill"), "{unknown}");
    }

    #[test]
    fn a_run_passes_when_no_aim_failed() {
        let check = |name: &str, findings: Vec<Finding>, expect: bool| {
            assert_eq!(report(findings).passed(), expect, "{name}");
        };
        check("nothing", Vec::new(), true);
        check("within", vec![Finding::at_most("a", 1.0, 1.0), Finding::at_least("b", 2.0, 1.0)], true);
        check("above", vec![Finding::at_most("a", 1.1, 1.0), Finding::at_least("b", 2.0, 1.0)], false);
        check("below", vec![Finding::at_least("a", 0.9, 1.0)], false);
        check("no number", vec![Finding::at_most("a", f64::NAN, 1.0)], false);
        check("skipped", vec![Finding::skipped("a", "no mount here")], true);
        check("untrue", vec![Finding::is_true("a", false)], false);
    }

    #[test]
    fn table_and_json_show_value_and_aim() {
        let report = report(vec![
            Finding::at_most("resident, MB", 120.4, 50.0).note("killed"),
            Finding::skipped("mounted", "may not mount"),
        ]);
        let table = table(&report);
        for part in [
            "hosts: ",
            "NOT HELD",
            "resident, MB",
            "120  <= 50",
            "killed",
            "skipped",
            "0 of 2 aims held, 1 not, 1 skipped",
        ] {
            assert!(table.contains(part), "{part:?} in {table}");
        }
        let json = report.json();
        assert_eq!((&json["passed"], &json["rows"][0]["held"]), (&json!(false), &json!(false)));
        assert_eq!((&json["rows"][0]["reached"], &json["rows"][0]["at_most"]), (&json!(120.4), &json!(50.0)));
        assert_eq!((&json["rows"][1]["held"], &json["rows"][1]["reached"]), (&Value::Null, &Value::Null));
    }
}
