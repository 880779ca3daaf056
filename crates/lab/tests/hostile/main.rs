//! Attacks on a daemon in a process of its own with default settings. Each test prints the numbers reached beside their aims, and fails if
//! an aim was missed.
//!
//! The attacks go over loopback to the real binary. Its resident memory and processor time are read from the
//! operating system, separately from those of the attacker. Every attack is bounded in number and time. Each test
//! starts its own daemon, so tests do not affect each other and can be run alone. A daemon
//! that takes too much of the machine's memory is killed; its aim is then missed.
//!
//! ```text
//! make hostile                 all attacks, about a quarter of an hour
//! make hostile ROWS=kill       those whose names contain "kill"
//! ```

mod connections;
mod process;
mod memory;
mod middleware;
mod origins;
mod soak;
mod storage;
mod tenants;
mod clients;

use std::fmt::Write as _;

use thresher_lab::targets::Bound;

use self::process::Setup;

/// Defines a test for each attack: its name, what it does, and the function that carries it out.
macro_rules! attacks {
    ($($name:ident, $description:literal, $run:path;)*) => {
        $(
            #[test]
            #[ignore = "an attack: run with `make hostile`"]
            fn $name() {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let findings = runtime.expect("a runtime").block_on(async {
                    let setup = Setup::from_environment()?;
                    $run(&setup).await
                });
                check($description, &findings.unwrap_or_else(|error| panic!("{error:#}")));
            }
        )*
    };
}

attacks! {
    rank_fields, "rerank requests of 0.45 and 0.8 MB that name one field of a document 50,000 and 100,000 times", memory::rank_fields;
    hosts, "requests with a foreign Host, Origin or Sec-Fetch-Site header, and bodies sent as text/plain", origins::hosts;
    parsing, "64 clients that send bodies of 8.3 MB of empty strings to /v1/compress and /v1/rerank for 15 s", memory::parsing;
    long_chunks, "chunks of 1 MB: prose, lines of one letter, only signs; then eight at once", memory::long_chunks;
    chains, "texts in which each sentence requires the next, with a deadline that is shorter than the work", memory::chains;
    turns, "conversations of 3.4 and 8.2 MB of tiny turns, to /headroom/v1/compress and to the middleware", memory::turns;
    idle_connections, "300 and 1,500 idle connections of HTTP/1.1 and HTTP/2 and half-sent heads", connections::idle;
    slow_clients, "40 clients that ask for 8 MB each and do not read, 20 that send a byte a second", connections::slow_clients;
    full_disk, "the disk of the stored originals is filled while conversations are compressed, then freed", storage::full_disk;
    tenants, "32 clients of one tenant that send 20 to 100 new chunks each and 64 idle streams, while another tenant sends warm requests", tenants::tenants;
    permissions, "no attack: modes of files and directories in the data directories after a run that wrote to all of them", storage::permissions;
    endless_upstream, "upstreams that stream without end while citing: sentences, one sentence, one line", middleware::endless_upstream;
    credentials, "requests with secrets in headers and query to an upstream that serves every model, and the headers of its responses", middleware::credentials;
    links, "sources with addresses that run or hide something, named by chunks and by the result of a tool", middleware::links;
    shared_key, "bodies for an upstream with the operator's key whose model, encoding or stored state is not what it serves", middleware::shared_key;
    frames, "answers of an upstream with frames that contradict themselves, unknown statuses, and a page with a script", middleware::frames;
    markers, "chunks that imitate the markers of other sources, in both forms of a context", middleware::markers;
    deletion, "chunks and a tenant are deleted; then all files of the data directory are searched for their words", storage::deletion;
    bad_block, "bytes of the block files of a stopped daemon are changed, then the daemon is started and gets a request with explain", storage::bad_block;
    retry_after, "120 clients with new chunks at once, each sending again when Retry-After says so", tenants::retry_after;
    tls_stall, "300 TLS handshakes that are never finished", connections::tls_stall;
    soak, "tenants that use a daemon with requests of every kind and long conversations, over restarts and a full disk, for a minute or THRESHER_SOAK_SECONDS", soak::soak;
    kill, "kill -9 while chunks are registered and conversations compressed, twice", storage::kill;
}

/// Prints what was found, and fails if an aim was missed.
fn check(attack: &str, findings: &[Finding]) {
    let mut out = format!("{attack}\n");
    for Finding { aim, reached, note } in findings {
        let _ = match reached {
            Some((reached, bound)) => {
                let held = if bound.is_met_by(*reached) { "held" } else { "MISSED" };
                let (sign, limit) = match bound {
                    Bound::AtLeast(least) => (">=", least),
                    Bound::AtMost(most) => ("<=", most),
                };
                writeln!(out, "  {held:<7} {:>9} {sign} {:<9} {aim}", round(*reached), round(*limit))
            }
            None => writeln!(out, "  skipped {aim}"),
        };
        if !note.is_empty() {
            let _ = writeln!(out, "          {note}");
        }
    }
    println!("{out}");
    assert!(findings.iter().all(|finding| finding.held() != Some(false)), "an aim was missed");
}

/// One aim of an attack and the number that was reached.
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

/// Formats a number: without decimals if it is whole or at least 100, else with two.
fn round(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        whole if whole.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}
