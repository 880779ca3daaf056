//! Measures what is lost when keys and values are evicted (`calibrate --kv`): how far a
//! decoder's output distribution moves, and whether it still answers correctly.
//!
//! Chunks are read one by one and placed one after another, as the KV export places them. Each method then
//! selects the keys to keep for the question, and the model reads the question over the kept keys. `rows`
//! prepares the data, `reading` runs the model, `methods` select keys by their `scores`, and
//! `forms` compares forms of eviction by RC.

pub mod forms;
mod methods;
pub mod reading;
pub mod rows;
mod scores;

use std::collections::BTreeMap;
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
pub use self::rows::{KvRow, RowOptions};
use self::scores::KeyScores;

/// Compression ratios: one key in N is kept.
pub const RATIOS: [u32; 4] = [2, 4, 8, 16];

pub type LossByCase = BTreeMap<(u32, Method), Loss>;

/// Returns the loss of a row with all keys, and by ratio and method. `rc` has the given form.
pub fn losses_of_methods(
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
pub fn for_each_row<T: Send>(
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
