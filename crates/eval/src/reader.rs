//! A language model as the reader of contexts: whether it answers as well from compressed context as from all chunks.
//!
//! Each question is asked once for each [`Arm`]: with all chunks, with what Thresher keeps at several budgets, with what simpler methods
//! keep of the same number of tokens, and without any chunk. Answers are scored as SQuAD's script scores them, and each arm is
//! compared with all chunks over the rows that both have answers for.

mod answers;
mod client;
mod contexts;
mod report;
mod squad;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};
use thresher_core::pipeline::validate::InvalidRequest;
use thresher_core::pipeline::{Pipeline, PipelineError};
pub use url::Url;

use self::answers::Answers;
use self::client::{Client, Exchange, Failure};
pub use self::contexts::Arm;
use self::contexts::contexts;
pub use self::report::ReaderReport;
use self::squad::Score;
use super::data::{LabelledChunk, LabelledTurn, RowFile, one_or_many};

/// Calls that fail one after the other before a run ends: the server is gone, or refuses everything.
const FAILURES_IN_A_ROW_MAX: usize = 12;

/// A question, its chunks and its reference answers.
#[derive(Debug, Clone, Deserialize)]
pub struct ReaderRow {
    pub query: String,
    /// The turns of the conversation before the question, oldest first.
    #[serde(default)]
    pub history: Vec<LabelledTurn>,
    pub chunks: Vec<LabelledChunk>,
    /// Accepted answers. A row without any is left out.
    #[serde(default, alias = "answer", deserialize_with = "one_or_many")]
    pub answers: Vec<String>,
}

/// Which server answers, and how it is asked.
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    /// The base of an OpenAI-compatible API, such as `http://127.0.0.1:8000/v1`.
    pub url: Url,
    pub model: String,
    /// The name of a model of the same server that judges the answers; `None`: none does.
    pub judge: Option<String>,
    /// The API key; `None`: the server needs none.
    pub key: Option<String>,
    /// Fields that replace those of the requests; `null` leaves a field out.
    pub body: Map<String, Value>,
    /// What is compared with all chunks.
    pub arms: Vec<Arm>,
    pub parallel: usize,
    /// The file of the answers that are known, to which new ones are added.
    pub answers: PathBuf,
    /// What the server charges, if it is known.
    pub price: Option<Price>,
    /// Is called with how long the next try waits, and why.
    pub on_wait: fn(Duration, &str),
}

#[derive(Debug, Clone)]
pub struct Price {
    pub currency: String,
    pub input: f64,
    pub output: f64,
}

/// What became of an arm of a row.
#[derive(Debug, Clone)]
enum Outcome {
    Answered(Sample),
    /// There is no answer that could be scored.
    Failed(Failure),
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Whether a reference answer is in the context.
    holds: bool,
    score: Score,
    judgement: Judgement,
    /// Whether the model said that the context has no answer.
    declined: bool,
    /// As the server counted them, if it did.
    tokens_in: Option<u64>,
    tokens_out: Option<u64>,
    seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Judgement {
    None,
    /// The judge did not answer, or neither yes nor no.
    Missing,
    Is(bool),
}

/// A row that waits to be asked with the context of each arm.
struct Job<'a> {
    at: usize,
    row: &'a ReaderRow,
    /// `[arm]`: the text that the reader gets with the question.
    contexts: Vec<String>,
}

/// Asks the reader the questions of a file, and returns how well it answers with each arm. `progress` is called with the number of rows that
/// are done and the number of all rows.
///
/// # Errors
/// Fails if the file cannot be read or has no row with an answer, if the file of answers cannot be read or written, if the server
/// refuses all requests (no such model, a wrong key), or if the model that selects fails. Answers that arrived before are kept.
pub fn evaluate(
    path: &Path,
    pipeline: &Pipeline,
    options: &ReaderOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<ReaderReport> {
    let all: Vec<ReaderRow> = RowFile::read(path)?.rows()?;
    let count = all.len();
    let rows: Vec<ReaderRow> = all.into_iter().filter(ReaderRow::has_answer).collect();
    if rows.is_empty() {
        bail!("{}: no row has `answers`; the reader's answers are compared with them", path.display());
    }
    let mut arms = vec![Arm::All];
    arms.extend(options.arms.iter().copied().filter(|arm| *arm != Arm::All));
    let run = Run {
        client: Client::new(options),
        answers: Mutex::new(Answers::open(&options.answers)?),
        outcomes: Mutex::new(BTreeMap::new()),
        failures_in_a_row: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        fatal: Mutex::new(None),
    };
    // Contexts are made as fast as they are asked with, and not all at once.
    let (sender, receiver) = mpsc::sync_channel::<Job>(options.parallel);
    let receiver = Mutex::new(receiver);
    let work = || {
        while let Some(job) = next(&receiver) {
            run.work(&job);
            progress(lock(&run.outcomes).len(), rows.len());
        }
    };
    thread::scope(|scope| {
        let sender = sender;
        for _ in 0..options.parallel {
            scope.spawn(work);
        }
        for (at, row) in rows.iter().enumerate() {
            if run.stop.load(Ordering::Relaxed) {
                break;
            }
            match contexts(row, &arms, pipeline) {
                Ok(contexts) => drop(sender.send(Job { at, row, contexts })),
                Err(error) => match refused_row(&error) {
                    Some(failure) => {
                        drop(lock(&run.outcomes).insert(at, vec![Outcome::Failed(failure); arms.len()]))
                    }
                    None => {
                        let place = format!("{}, question {:?}", path.display(), row.query);
                        return run.end(error.context(place));
                    }
                },
            }
        }
    });
    if let Some(error) = run.fatal.into_inner().unwrap_or_else(PoisonError::into_inner) {
        bail!(
            "{error:#} (the answers so far are in {}; the same command goes on from there)",
            options.answers.display()
        );
    }
    let mut by_arm: Vec<Vec<Outcome>> = vec![Vec::new(); arms.len()];
    for of_row in run.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner).into_values() {
        by_arm.iter_mut().zip(of_row).for_each(|(of_arm, outcome)| of_arm.push(outcome));
    }
    let data = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    Ok(ReaderReport::new(data, options, count - rows.len(), arms.into_iter().zip(by_arm).collect()))
}

/// Returns why the pipeline does not take a row; `None` if the error is not about the row.
fn refused_row(error: &anyhow::Error) -> Option<Failure> {
    match error.downcast_ref::<PipelineError>()? {
        PipelineError::Invalid(
            InvalidRequest::CoverageUncalibrated | InvalidRequest::CoverageTooHigh { .. },
        ) => None,
        PipelineError::Invalid(why) => Some(Failure::NotSelected(why.to_string())),
        _ => None,
    }
}

fn next<'a>(receiver: &Mutex<mpsc::Receiver<Job<'a>>>) -> Option<Job<'a>> {
    lock(receiver).recv().ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReaderRow {
    fn has_answer(&self) -> bool {
        self.answers.iter().any(|answer| !squad::normalized(answer).is_empty())
    }

    /// Returns whether a reference answer is in `text`.
    fn answer_in(&self, text: &str) -> bool {
        squad::contains_any(text, &self.answers)
    }
}

/// What the threads of a run share.
struct Run {
    client: Client,
    answers: Mutex<Answers>,
    /// `[arm]` for each row that was asked.
    outcomes: Mutex<BTreeMap<usize, Vec<Outcome>>>,
    failures_in_a_row: AtomicUsize,
    stop: AtomicBool,
    fatal: Mutex<Option<anyhow::Error>>,
}

impl Run {
    /// Asks for the answers of a row, one after the other, since arms often have the same context.
    fn work(&self, job: &Job) {
        let mut outcomes = Vec::with_capacity(job.contexts.len());
        for context in &job.contexts {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            match self.ask(job.row, context) {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => return self.end(error),
            }
        }
        lock(&self.outcomes).insert(job.at, outcomes);
    }

    fn end(&self, error: anyhow::Error) {
        self.stop.store(true, Ordering::Relaxed);
        lock(&self.fatal).get_or_insert(error);
    }

    /// Asks for an answer, and the judge for its opinion.
    ///
    /// # Errors
    /// Fails if no request can succeed.
    fn ask(&self, row: &ReaderRow, context: &str) -> Result<Outcome> {
        let exchange = match self.exchange(&self.client.request(&client::question(row, context)))? {
            Ok(exchange) => exchange,
            Err(failure) => return Ok(Outcome::Failed(failure)),
        };
        let declined = client::declines(&exchange.text);
        let judgement = match self.client.judgement(row, &exchange.text) {
            None => Judgement::None,
            Some(_) if declined => Judgement::Is(false),
            Some(request) => match self.exchange(&request)? {
                Ok(judgement) => client::opinion(&judgement.text).map_or(Judgement::Missing, Judgement::Is),
                Err(_) => Judgement::Missing,
            },
        };
        Ok(Outcome::Answered(Sample {
            holds: row.answer_in(context),
            // "No answer" is not the answer "no".
            score: if declined { Score::ZERO } else { squad::score(&exchange.text, &row.answers) },
            judgement,
            declined,
            tokens_in: exchange.tokens_in,
            tokens_out: exchange.tokens_out,
            seconds: exchange.seconds,
        }))
    }

    /// Returns the known response to a request, or asks the server and remembers what it says.
    ///
    /// # Errors
    /// Fails if no request can succeed, if too many failed one after the other, or if the file of answers cannot be written.
    fn exchange(&self, request: &Value) -> Result<Result<Exchange, Failure>> {
        let key = answers::key(self.client.url(), request);
        if let Some(known) = lock(&self.answers).get(&key) {
            return Ok(Ok(known));
        }
        let settled = self.client.ask(request, &self.stop)?;
        match &settled {
            Ok(exchange) => {
                lock(&self.answers).add(key, exchange)?;
                self.failures_in_a_row.store(0, Ordering::Relaxed);
            }
            Err(failure) if failure.is_of_the_server() => {
                let failed = self.failures_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
                if failed >= FAILURES_IN_A_ROW_MAX {
                    bail!("{failed} requests failed one after the other; the last: {failure}");
                }
            }
            Err(_) => {}
        }
        Ok(settled)
    }
}
