//! Measures what is lost when keys and values are evicted (`eval --kv`, `calibrate --kv`): how far a
//! decoder's output distribution moves, and whether it still answers correctly.
//!
//! Chunks are read one by one and placed one after another, as the KV export places them. Each method then
//! selects the keys to keep for the question, and the model reads the question over the kept keys. `rows`
//! prepares the data, `reading` runs the model, `methods` select keys by their `scores`, `report` summarises,
//! and `forms` compares forms of eviction by RC.

pub mod forms;
mod methods;
mod reading;
mod report;
mod rows;
mod scores;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::Context as _;
use thresher_core::Engine;
use thresher_core::model::KeyMask;
use thresher_core::model::contract::EvictionForm;
use thresher_core::model::ort::DecoderRuntime;
use thresher_core::pipeline::kv_export;

pub use self::methods::Method;
use self::reading::{Loss, ReadRow};
pub use self::report::{KvReport, Survival, table};
pub use self::rows::{KvRow, RowOptions};
use self::scores::KeyScores;

/// Compression ratios: one key in N is kept.
pub const RATIOS: [u32; 4] = [2, 4, 8, 16];

/// What was measured of one question.
struct Measured {
    kind: Option<String>,
    /// The number of tokens of the chunks.
    tokens: usize,
    /// The loss with all keys: what the model knows without eviction.
    full: Loss,
    evicted: LossByCase,
}

/// The loss by ratio and method.
type LossByCase = BTreeMap<(u32, Method), Loss>;

/// Evaluates all eviction methods on the rows of a file, on all cores. `progress` is called after each row with
/// the number done and the number of all.
///
/// # Errors
/// Fails if the file cannot be read, if a row has another shape (the error names the line), or if the model
/// is not a decoder whose keys and values can be exported and that returns next-token logits.
pub fn evaluate(
    path: &Path,
    engine: &Engine,
    options: &RowOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> anyhow::Result<KvReport> {
    let rows = rows::read(path, options)?;
    let measured = for_each_row(&rows, progress, |row, index| {
        measure(row, index, engine, options).with_context(|| rows::place(path, index))
    })?;
    Ok(report::KvReport::new(path, engine.pipeline().model(), options, &measured))
}

/// Evaluates all methods at all ratios on one row.
fn measure(row: &KvRow, index: usize, engine: &Engine, options: &RowOptions) -> anyhow::Result<Measured> {
    let read = ReadRow::new(row, engine, options)?;
    let form = kv_export::check_model(engine.pipeline().model())?.eviction;
    let (full, evicted) = losses_of_methods(&read, index, engine, &form)?;
    Ok(Measured { kind: row.kind.clone(), tokens: read.tokens(), full, evicted })
}

/// Returns the loss of a row with all keys, and by ratio and method. `rc` has the given form.
fn losses_of_methods(
    read: &ReadRow,
    index: usize,
    engine: &Engine,
    form: &EvictionForm,
) -> anyhow::Result<(Loss, LossByCase)> {
    let decoder = kv_export::check_model(engine.pipeline().model())?;
    let scores = KeyScores::new(read, engine, form, index)?;
    let cases: Vec<_> = RATIOS.iter().flat_map(|&ratio| Method::ALL.map(|method| (ratio, method))).collect();
    let mask = |&(ratio, method): &(u32, Method)| {
        anyhow::Ok(decoder.mask_of_all_layers(&method.select_keys(&scores, ratio)?))
    };
    let masks: Vec<KeyMask> = cases.iter().map(mask).collect::<anyhow::Result<_>>()?;
    let (full, losses) = read.losses(&masks)?;
    Ok((full, cases.into_iter().zip(losses).collect()))
}

/// Calls `each` with every row and its index, on several threads, and returns the results in the order of the
/// rows. After the first error no further row is begun.
fn for_each_row<T: Send>(
    rows: &[KvRow],
    progress: &(dyn Fn(usize, usize) + Sync),
    each: impl Fn(&KvRow, usize) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let (next, done, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let results = Mutex::new(Vec::with_capacity(rows.len()));
    // Threads of their own, not those of rayon: a thread that waits for a session must not be given another
    // row in the meantime.
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(row) = rows.get(index) else { break };
            let result = each(row, index);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, result));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, rows.len());
        }
    };
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get).min(rows.len());
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Returns the engine's model, which must be a decoder.
fn decoder_of(engine: &Engine) -> anyhow::Result<&DecoderRuntime> {
    engine.model().decoder().with_context(|| {
        let name = &engine.pipeline().model().name;
        format!("{name} is an encoder; name a decoder with --model or THRESHER__MODEL__DIR")
    })
}
