//! The passage graph with nothing around it: what `bench` holds the pipeline against.
//! Runs and drops; no key leaves this file.

use ndarray::Array2;
use ort::session::Session;
use ort::value::TensorRef;

use super::device::Device;
use super::{LateRuntime, OrtSettings, builder, environment, graph_error};
use crate::model::ModelError;
use crate::model::contract::{Contract, Graph};

impl LateRuntime {
    /// Runs the passage graph once on each window, as `read` does, and drops what it returns: reading cannot be faster.
    ///
    /// # Errors
    /// What the runtime reports.
    pub fn run_passage_graph(&self, windows: &[&[u32]]) -> Result<(), ModelError> {
        // Long windows first, as the pipeline has them: the last to finish is a short one.
        let mut windows = windows.to_vec();
        windows.sort_by_key(|window| std::cmp::Reverse(window.len()));
        self.workers.each(self.lane, &windows, |_| true, |_, keys| drop(keys))
    }
}

/// The other way to use all cores: one session whose operators are split over the threads, windows in padded batches.
pub struct BatchedGraph {
    session: Session,
    file: String,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

impl BatchedGraph {
    /// Loads the passage graph once, with `settings.workers` threads inside it.
    ///
    /// # Errors
    /// As [`LateRuntime::load`].
    pub fn load(settings: &OrtSettings) -> Result<Self, ModelError> {
        let environment = environment(&settings.runtime_lib)?;
        let contract = Contract::load(&settings.model_dir)?;
        let file = contract.graph_file(Graph::Passage).to_owned();
        let path = settings.model_dir.join(&file);
        let device = Device::choose(&environment, settings.device, settings.device_memory_bytes_max)?;
        let session = builder(&environment, &device, settings.workers.max(1))
            .and_then(|mut builder| builder.commit_from_file(path))
            .map_err(|e| graph_error(&file, e))?;
        let (prefix, suffix) = (contract.tokenizer.prefix, contract.tokenizer.suffix);
        Ok(Self { session, file, prefix, suffix })
    }

    /// Runs all windows, `batch` at a time, sorted by length so that as little as possible is padding.
    ///
    /// # Errors
    /// What the runtime reports.
    pub fn run(&mut self, windows: &[&[u32]], batch: usize) -> Result<(), ModelError> {
        let mut sorted = windows.to_vec();
        sorted.sort_by_key(|ids| std::cmp::Reverse(ids.len()));
        sorted.chunks(batch).try_for_each(|rows| self.run_batch(rows)).map_err(|e| graph_error(&self.file, e))
    }

    /// `rows`, the longest first, as `[row, t]`.
    fn run_batch(&mut self, rows: &[&[u32]]) -> Result<(), ort::Error> {
        let tokens = self.prefix.len() + rows[0].len() + self.suffix.len();
        let mut input = Array2::<i64>::zeros((rows.len(), tokens));
        let mut mask = Array2::<i64>::zeros(input.dim());
        for (index, ids) in rows.iter().enumerate() {
            let framed = self.prefix.iter().chain(*ids).chain(&self.suffix);
            for (at, &id) in framed.enumerate() {
                input[[index, at]] = i64::from(id);
                mask[[index, at]] = 1;
            }
        }
        self.session.run(ort::inputs![
            "input_ids" => TensorRef::from_array_view(input.view())?,
            "attention_mask" => TensorRef::from_array_view(mask.view())?,
        ])?;
        Ok(())
    }
}
