//! The model's passage graph without the pipeline around it: the lower bound of the time that reading chunks takes, and the usual way to
//! run such a graph, in padded batches.

use anyhow::Context;
use ndarray::Array2;
use ort::session::Session;
use ort::value::TensorRef;
use thresher_core::model::ModelRuntime;
use thresher_core::model::contract::Contract;
use thresher_core::model::ort::{LateRuntime, OrtSettings, passage_session};

/// Runs the passage graph once on each window, as the pipeline does, and drops the keys.
///
/// # Errors
/// Fails if the model fails.
pub fn run_passage_graph(runtime: &LateRuntime, windows: &[&[u32]]) -> anyhow::Result<()> {
    // The longest windows first, as the pipeline reads them, so that a short one finishes last.
    let mut windows = windows.to_vec();
    windows.sort_by_key(|window| std::cmp::Reverse(window.len()));
    Ok(runtime.read(&windows, &|_| true, &|_, _| {})?)
}

/// The passage graph as one session whose operators use all threads, run on batches of windows with padding.
pub struct BatchedGraph {
    session: Session,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

impl BatchedGraph {
    /// Loads the passage graph as one session with `settings.workers` threads.
    ///
    /// # Errors
    /// Fails if the model is no encoder, or if ONNX Runtime cannot load it.
    pub fn load(settings: &OrtSettings) -> anyhow::Result<Self> {
        let session = passage_session(settings)?;
        let tokenizer = Contract::load(&settings.model_dir)?.tokenizer;
        Ok(Self { session, prefix: tokenizer.prefix, suffix: tokenizer.suffix })
    }

    /// Runs all windows, `batch` at a time. They are sorted by length, so that there is as little padding as possible.
    ///
    /// # Errors
    /// Fails if ONNX Runtime fails.
    pub fn run(&mut self, windows: &[&[u32]], batch: usize) -> anyhow::Result<()> {
        let mut sorted = windows.to_vec();
        sorted.sort_by_key(|ids| std::cmp::Reverse(ids.len()));
        sorted.chunks(batch).try_for_each(|rows| self.run_batch(rows)).context("the passage graph failed")
    }

    /// Runs the windows `rows`, of which the first is the longest.
    fn run_batch(&mut self, rows: &[&[u32]]) -> Result<(), ort::Error> {
        let tokens = self.prefix.len() + rows[0].len() + self.suffix.len();
        let mut input = Array2::<i64>::zeros((rows.len(), tokens));
        let mut mask = Array2::<i64>::zeros(input.dim());
        for (row, &window) in rows.iter().enumerate() {
            let ids = self.prefix.iter().chain(window).chain(&self.suffix);
            for (column, &id) in ids.enumerate() {
                input[[row, column]] = i64::from(id);
                mask[[row, column]] = 1;
            }
        }
        self.session.run(ort::inputs![
            "input_ids" => TensorRef::from_array_view(input.view())?,
            "attention_mask" => TensorRef::from_array_view(mask.view())?,
        ])?;
        Ok(())
    }
}
