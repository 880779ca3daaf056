//! Attacks a daemon in a process of its own with default settings, and says of each attack what held: the number reached beside the aim.
//!
//! Everything goes over loopback to the real binary, whose resident memory and processor time are read from the system, apart from those
//! of the bench. Every attack has a bound in number and time. Each row starts a daemon of its own, so that rows do not disturb each other
//! and can be run alone. A daemon that takes more memory than the machine should lend is killed, and the row has not held.

mod connections;
mod daemon;
mod memory;
mod middleware;
mod origins;
mod storage;
mod tenants;
mod upstream;
mod wire;

use std::fmt::Write;
use std::str::FromStr;
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

pub use self::daemon::Setup;
use super::Progress;
use super::json::{self, round_to};
use super::targets::Bound;

/// An attack, and what has to hold under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    /// Small requests that name a large text many times.
    RankFields,
    /// Requests that a page of another web site has a browser send.
    Hosts,
    /// Large bodies of many small values.
    Parsing,
    /// Conversations of many small turns.
    Turns,
    /// Connections that do nothing.
    Connections,
    /// Clients that do not read, and clients that send slowly.
    SlowClients,
    /// A full disk that gets room again.
    FullDisk,
    /// Two tenants, one of them greedy.
    Tenants,
    /// Who may read what the daemon writes.
    Permissions,
    /// Upstreams that never end.
    EndlessUpstream,
    /// Secrets on their way to an upstream, and headers on their way back.
    Credentials,
    /// Damaged blocks on disk.
    BadBlock,
    /// A full queue, and clients that come back when they are told to.
    RetryAfter,
    /// TLS handshakes that are never finished.
    TlsStall,
    /// `kill -9` while chunks are registered and conversations compressed.
    Kill,
}

/// Every row, its name, and what is done.
#[rustfmt::skip]
const ROWS: [(Row, &str, &str); 15] = [
    (Row::RankFields, "rank-fields", "rerank requests of 0.45 and 0.8 MB that name one field of a document 50,000 and 100,000 times"),
    (Row::Hosts, "hosts", "requests with a foreign Host, Origin or Sec-Fetch-Site header, and bodies sent as text/plain"),
    (Row::Parsing, "parsing", "64 clients that send bodies of 8.3 MB of empty strings to /v1/compress and /v1/rerank for 15 s"),
    (Row::Turns, "turns", "conversations of 3.4 and 8.2 MB of tiny turns, to /v1/compress and to the middleware"),
    (Row::Connections, "connections", "300 and 1,500 idle connections of HTTP/1.1 and HTTP/2 and half-sent heads"),
    (Row::SlowClients, "slow-clients", "40 clients that ask for 8 MB each and do not read, 20 that send a byte a second"),
    (Row::FullDisk, "full-disk", "the disk of the stored originals is filled while conversations are compressed, then has room again"),
    (Row::Tenants, "tenants", "32 clients of one tenant that send 20 to 100 new chunks each and 64 idle streams, beside another tenant's warm requests"),
    (Row::Permissions, "permissions", "none: files and directories under the data directories after a run that wrote to all of them"),
    (Row::EndlessUpstream, "endless-upstream", "upstreams that stream without end while citing: sentences, one sentence, one line"),
    (Row::Credentials, "credentials", "requests with secrets in headers and query to an upstream that has every model, and headers that it sends back"),
    (Row::BadBlock, "bad-block", "bytes of the block files of a stopped daemon are changed, then it is started and asked to explain"),
    (Row::RetryAfter, "retry-after", "120 clients with new chunks at once, each coming back when Retry-After says so"),
    (Row::TlsStall, "tls-stall", "300 TLS handshakes that are never finished"),
    (Row::Kill, "kill", "kill -9 while chunks are registered and conversations compressed, twice"),
];

impl Row {
    /// All of them, in the order in which they are run.
    pub fn all() -> Vec<Self> {
        ROWS.iter().map(|(row, ..)| *row).collect()
    }

    /// The names of all rows, with commas between them.
    pub fn names() -> String {
        ROWS.map(|(_, name, _)| name).join(", ")
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        self.description().1
    }

    /// What is done.
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
            .ok_or_else(|| format!("there is no row {name:?}; rows are {}", Self::names()))
    }
}

/// A number that was reached under an attack, and what was aimed at.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    what: String,
    /// None where it could not be tried.
    reached: Option<(f64, Bound)>,
    note: String,
}

impl Finding {
    /// A number that should be no more than `most`.
    pub fn at_most(what: impl Into<String>, reached: f64, most: f64) -> Self {
        Self { what: what.into(), reached: Some((reached, Bound::AtMost(most))), note: String::new() }
    }

    /// A number that should be no less than `least`.
    pub fn at_least(what: impl Into<String>, reached: f64, least: f64) -> Self {
        Self { what: what.into(), reached: Some((reached, Bound::AtLeast(least))), note: String::new() }
    }

    /// Whether something holds: 1 if so.
    pub fn is_true(what: impl Into<String>, holds: bool) -> Self {
        Self::at_least(what, f64::from(u8::from(holds)), 1.0)
    }

    /// Something that could not be tried here, and why.
    pub fn skipped(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), reached: None, note: why.into() }
    }

    /// With more about how it came to that.
    pub fn note(self, note: impl Into<String>) -> Self {
        let note: String = note.into();
        Self { note: note.trim_end_matches([';', ':', ',', ' ']).to_owned(), ..self }
    }

    /// The same, of one case of several.
    pub fn of(self, case: &str) -> Self {
        Self { what: format!("{case}: {}", self.what), ..self }
    }

    /// Whether the aim was reached; none where it could not be tried.
    pub fn held(&self) -> Option<bool> {
        self.reached.map(|(reached, bound)| bound.is_met_by(reached))
    }
}

/// What was seen of one row.
#[derive(Debug, Clone)]
struct Seen {
    row: Row,
    findings: Vec<Finding>,
    seconds: f64,
}

/// What was seen of all rows that were run.
#[derive(Debug, Clone)]
pub struct Report {
    rows: Vec<Seen>,
}

/// Runs rows, one after the other; none when it was interrupted. Daemons and folders are gone by the time this returns.
///
/// # Errors
/// When the system gives no runtime. Whatever goes wrong in a row is a finding of it.
pub fn run(setup: &Setup, rows: &[Row], progress: Progress) -> anyhow::Result<Option<Report>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).context("no signal handler")?;
        tokio::select! {
            rows = run_rows(setup, rows, progress) => Ok(Some(Report { rows })),
            _ = tokio::signal::ctrl_c() => Ok(None),
            _ = term.recv() => Ok(None),
        }
    })
}

async fn run_rows(setup: &Setup, rows: &[Row], progress: Progress<'_>) -> Vec<Seen> {
    let mut seen = Vec::new();
    for (at, row) in rows.iter().copied().enumerate() {
        progress(row.name(), at, rows.len());
        let started = Instant::now();
        let findings = row.run(setup).await.unwrap_or_else(|error| {
            vec![Finding::is_true("the row ran to its end", false).note(format!("{error:#}"))]
        });
        seen.push(Seen { row, findings, seconds: started.elapsed().as_secs_f64() });
    }
    seen
}

impl Report {
    /// Whether every row held that could be tried.
    pub fn passed(&self) -> bool {
        self.rows.iter().flat_map(|seen| &seen.findings).all(|finding| finding.held() != Some(false))
    }

    /// For programs: one entry for each number.
    pub fn json(&self) -> Value {
        let entry = |seen: &Seen, finding: &Finding| {
            let (at_least, at_most) = match finding.reached {
                Some((_, Bound::AtLeast(least))) => (Some(least), None),
                Some((_, Bound::AtMost(most))) => (None, Some(most)),
                None => (None, None),
            };
            json!({
                "name": seen.row.name(),
                "attack": seen.row.attack(),
                "aim": finding.what,
                "at_least": at_least,
                "at_most": at_most,
                "reached": finding.reached.map(|(reached, _)| round_to(reached, 3)),
                "held": finding.held(),
                "note": finding.note,
            })
        };
        let rows =
            self.rows.iter().flat_map(|seen| seen.findings.iter().map(move |finding| entry(seen, finding)));
        json!({
            "rows": rows.collect::<Vec<_>>(),
            "passed": self.passed(),
            "machine": json::host(),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }
}

/// For people.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    let all: Vec<&Finding> = report.rows.iter().flat_map(|seen| &seen.findings).collect();
    let width = all.iter().map(|finding| finding.what.len()).max().unwrap_or_default();
    for Seen { row, findings, seconds } in &report.rows {
        let _ = writeln!(out, "{}: {} ({seconds:.0} s)", row.name(), row.attack());
        for Finding { what, reached, note } in findings {
            let _ = match reached {
                Some((reached, bound)) => {
                    let held = if bound.is_met_by(*reached) { "held" } else { "NOT HELD" };
                    let (sign, aim) = match bound {
                        Bound::AtLeast(least) => (">=", least),
                        Bound::AtMost(most) => ("<=", most),
                    };
                    writeln!(
                        out,
                        "  {held:<8}  {what:<width$}  {:>9}  {sign} {}",
                        round(*reached),
                        round(*aim)
                    )
                }
                None => writeln!(out, "  skipped   {what}"),
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

/// Whole numbers as they are, large ones without decimals, small ones with two.
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
        Report { rows: vec![Seen { row: Row::Hosts, findings, seconds: 1.0 }] }
    }

    #[test]
    fn rows_are_found_by_their_names() {
        for row in Row::all() {
            assert_eq!(row.name().parse(), Ok(row));
        }
        let unknown = "host".parse::<Row>().expect_err("no such row");
        assert!(unknown.contains("hosts") && unknown.contains("kill"), "{unknown}");
    }

    #[test]
    fn a_run_passes_when_nothing_failed() {
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
    fn tables_and_json_say_what_was_reached_and_aimed_at() {
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
