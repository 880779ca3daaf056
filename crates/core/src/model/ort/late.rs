//! The late-interaction family: loads a contract's two graphs, checks them against it, runs them.
//! Knows nothing of decoders.

use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayView3, Ix3, Ix4, s};
use ort::value::TensorRef;
use rayon::prelude::*;

use super::device::Device;
use super::frame::Frame;
use super::lanes::Lane;
use super::pool::Pool;
use super::weights::{SharedWeights, WeightedSession};
use super::workers::{RUN_TOKENS, Workers};
use super::{OrtSettings, builder, environment, graph_error, io_of, numerics, ort_error, query_sessions};
use crate::model::contract::{Contract, Family, Graph, check_io};
use crate::model::{
    Done, EncodedQuestion, ModelError, ModelInfo, ModelRuntime, Past, RawLogits, SelfAttention, Wanted,
};

/// Sentences that are read side by side: each session takes memory, and an answer has few sentences.
const BESIDE_MAX: usize = 8;

/// Sessions of one contract's graphs.
///
/// Windows run on one thread each, side by side, alone or with others of their length: their keys then depend on their own
/// tokens only, not on the padding that other batches bring or on how many cores there are; on the CPU it is also the
/// faster way (`docs/decisions.md` has the figures). A question runs on the thread that asks, helped by idle cores.
#[derive(Clone)]
pub struct LateRuntime {
    info: ModelInfo,
    frame: Frame,
    pub(super) workers: Arc<Workers<Array3<f32>>>,
    query: Arc<Pool<WeightedSession>>,
    /// On one thread each, one per core and [`BESIDE_MAX`] at most.
    query_beside: Arc<Pool<WeightedSession>>,
    query_file: String,
    /// Whose turn it is, on workers and sessions.
    pub(super) lane: Lane,
}

impl LateRuntime {
    /// Loads the library, the contract and its graphs.
    ///
    /// # Errors
    /// [`ModelError`] names what is missing or does not fit, and what to do.
    pub fn load(settings: &OrtSettings) -> Result<Self, ModelError> {
        let environment = environment(&settings.runtime_lib)?;
        let contract = Contract::load(&settings.model_dir)?;
        let Family::Late(late) = &contract.family else {
            return Err(ModelError::OtherFamily { name: contract.name, expected: "late-interaction model" });
        };
        let device = Device::choose(&environment, settings.device, settings.device_memory_bytes_max)?;
        let cores = if device.is_cpu() { settings.workers.max(1) } else { 1 };
        let weights = SharedWeights::open(&contract, &settings.model_dir, &device)?;
        let load = |graph, count, threads| {
            let file = contract.graph_file(graph);
            let path = settings.model_dir.join(file);
            let load = |_| weights.session(builder(&environment, &device, threads)?, &path);
            let sessions = (0..count).into_par_iter().map(load).collect::<Result<Vec<_>, _>>();
            let sessions = sessions.map_err(|e| graph_error(file, e))?;
            check_io(&contract, graph, &io_of(&sessions[0]))?;
            Ok::<_, ModelError>(sessions)
        };
        let passage = load(Graph::Passage, cores, 1)?;
        let (sessions, threads) = query_sessions(cores);
        let query = load(Graph::Query, sessions, threads)?;
        let query_beside = load(Graph::Query, cores.min(BESIDE_MAX), 1)?;
        weights.drop_pages();
        let frame = Frame::of(&contract);
        let file: Arc<str> = contract.graph_file(Graph::Passage).into();
        let run = |mut session: WeightedSession| {
            let (frame, file) = (frame.clone(), Arc::clone(&file));
            move |windows: &[Box<[u32]>]| {
                run_passage(&mut session, &frame, windows).map_err(|e| graph_error(&file, e))
            }
        };
        let workers = Workers::start(passage.into_iter().map(run).collect::<Vec<_>>(), RUN_TOKENS);
        Ok(Self {
            info: ModelInfo {
                name: contract.name.clone(),
                fingerprint: numerics::fingerprint(&contract, device.is_cpu()),
                window_tokens_max: contract.window.tokens_max - frame.prefix.len() - frame.suffix.len(),
                planes: late.heads,
                head_dim: late.head_dim,
                readout: (0..late.heads).collect(),
                decoder: None,
                device: device.in_use().clone(),
            },
            workers: Arc::new(workers.map_err(|e| graph_error("worker threads", e))?),
            frame,
            query: Arc::new(Pool::new(query)),
            query_beside: Arc::new(Pool::new(query_beside)),
            query_file: late.query.clone(),
            lane: Lane::SHARED,
        })
    }

    /// How many windows run side by side.
    pub fn workers(&self) -> usize {
        self.workers.count()
    }
}

impl ModelRuntime for LateRuntime {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn with_own_share(&self) -> Option<Arc<dyn ModelRuntime>> {
        Some(Arc::new(Self { lane: Lane::new(), ..self.clone() }))
    }

    fn read(&self, windows: &[&[u32]], wanted: Wanted, done: Done) -> Result<(), ModelError> {
        self.workers.each(self.lane, windows, wanted, |i, keys| done(i, keys.view()))
    }

    /// Logits are linear in the keys, so the logits over the unit vectors are the question's vectors, to the bit: every
    /// other term of each product is 0.
    fn question(&self, question: &[u32], _past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        self.vectors(question, &self.query)
    }

    fn question_beside(&self, question: &[u32], _past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        self.vectors(question, &self.query_beside)
    }

    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<RawLogits, ModelError> {
        self.logits_by(question, keys, &self.query)
    }
}

impl LateRuntime {
    fn vectors(
        &self,
        question: &[u32],
        sessions: &Pool<WeightedSession>,
    ) -> Result<EncodedQuestion, ModelError> {
        let (heads, dim) = (self.info.readout.len(), self.info.head_dim);
        let units = Array3::from_shape_fn((heads, dim, dim), |(_, i, j)| f32::from(u8::from(i == j)));
        let RawLogits { cross: vectors, self_logits: own } =
            self.logits_by(question, units.view(), sessions)?;
        Ok(EncodedQuestion { vectors, self_attention: SelfAttention::Logits(own) })
    }

    fn logits_by(
        &self,
        question: &[u32],
        keys: ArrayView3<f32>,
        sessions: &Pool<WeightedSession>,
    ) -> Result<RawLogits, ModelError> {
        let input = self.frame.around(&[question]);
        let keys = keys.as_standard_layout();
        let first = self.frame.prefix.len();
        let rows = first..first + question.len();
        let run = |session: &mut WeightedSession| {
            let outputs = session.run(ort::inputs![
                "input_ids" => TensorRef::from_array_view(input.view())?,
                "key" => TensorRef::from_array_view(keys.view())?,
            ])?;
            let take = |name: &str| -> Result<Array3<f32>, ort::Error> {
                let logits = outputs[name].try_extract_array::<f32>()?;
                let logits = logits.into_dimensionality::<Ix3>().map_err(ort_error)?;
                // The statistic is defined for finite logits; a model that gives others is broken.
                if logits.iter().any(|logit| !logit.is_finite()) {
                    return Err(ort_error(format_args!("{name} holds a value that is not finite")));
                }
                Ok(logits.slice(s![.., rows.clone(), ..]).to_owned())
            };
            let (cross, own) = (take("cross_logits")?, take("self_logits")?);
            Ok(RawLogits { cross, self_logits: own.slice(s![.., .., rows.clone()]).to_owned() })
        };
        sessions.with(self.lane, run).map_err(|e: ort::Error| graph_error(&self.query_file, e))
    }
}

/// Keys `[head, t, head_dim]` of windows of one length, `[window, t]`, special tokens dropped.
fn run_passage(
    session: &mut WeightedSession,
    frame: &Frame,
    windows: &[Box<[u32]>],
) -> Result<Vec<Array3<f32>>, ort::Error> {
    let windows: Vec<&[u32]> = windows.iter().map(|window| &**window).collect();
    let input = frame.around(&windows);
    let mask = Array2::<i64>::ones(input.dim());
    let outputs = session.run(ort::inputs![
        "input_ids" => TensorRef::from_array_view(input.view())?,
        "attention_mask" => TensorRef::from_array_view(mask.view())?,
    ])?;
    let keys = outputs["key"].try_extract_array::<f32>()?;
    let keys = keys.into_dimensionality::<Ix4>().map_err(ort_error)?;
    // A key that is not finite has no scale to be stored with.
    if keys.iter().any(|value| !value.is_finite()) {
        return Err(ort_error("key holds a value that is not finite"));
    }
    let first = frame.prefix.len();
    let tokens = input.ncols() - frame.suffix.len();
    Ok(keys.outer_iter().map(|window| window.slice(s![.., first..tokens, ..]).to_owned()).collect())
}
