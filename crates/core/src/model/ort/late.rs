//! The late-interaction family: loads the two graphs of a contract, checks them and runs them. Knows nothing of
//! decoders.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array3, ArrayView3, Axis, Ix3, Ix4, s};
use ort::memory::MemoryInfo;
use ort::session::Session;
use ort::value::{DynValue, TensorRef};
use rayon::prelude::*;

use super::device::Device;
use super::scheduling::{Flow, Pool};
use super::weights::{SharedWeights, WeightedSession, integer_inputs, value_named};
use super::workers::{Batching, Workers};
use super::{
    OrtSettings, RowLengths, SpecialTokens, environment, fingerprint, graph_error, io_of_session, ort_error,
    question_sessions, session_builder,
};
use crate::model::contract::{Contract, Family, Graph, Weights, check_io};
use crate::model::{
    EncodedQuestion, ModelError, ModelInfo, ModelRuntime, Past, RawLogits, SelfAttention, WindowFilter,
    WindowSink,
};

/// The largest number of sessions with one thread that encode questions at the same time. Each session takes
/// memory, and an answer has few sentences.
const ONE_THREAD_SESSIONS_MAX: usize = 8;

/// The number of workers on a GPU. Each has its own session and so its own stream: while one computes a batch,
/// the other copies its own and does its work on the CPU.
const GPU_WORKERS: usize = 2;

/// How much more of the memory limit of a GPU a session for passages gets than one for questions, which reads one short
/// window at a time.
const PASSAGE_SHARE: usize = 4;

/// Which windows share a batch on a GPU. Windows of one run of the graph are computed at the same time, and a
/// single window leaves most of a GPU idle.
///
/// With 12 layers of 768 components and 12 heads, 32 windows of 512 tokens need 0.8 GB for the attention
/// logits of a layer before and after the softmax, and 0.4 GB for the components inside its MLP. With f16 weights, these
/// logits are not stored, but biases by distance (MPNet) take 0.2 GB. The padding is at most 31 tokens of a window, and a
/// sixth of one of 180 tokens at the worst, besides that of [`FUSED_ROW_MULTIPLE`].
const GPU_BATCHING: Batching = Batching { tokens_max: 16_384, length_step: 32 };

/// The number of tokens of which the rows of a batch have a multiple on a GPU with f16 weights. With a bias, ONNX Runtime's
/// kernels that do not store the logits need it.
const FUSED_ROW_MULTIPLE: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not zero");

/// A loaded late-interaction model. Clones share its sessions.
///
/// On the CPU, each window is read by one thread, alone or in a batch with windows of equal length, while other
/// threads read other windows. Its keys therefore depend on its own tokens only, not on padding or on the
/// number of cores. This is also faster than batches with padding (`docs/decisions/models-and-runtime.md` has the
/// measurements). On a GPU, windows of similar lengths share large batches with padding, which the model does not
/// attend to. A question is encoded by the calling thread and by idle cores.
#[derive(Clone)]
pub struct LateRuntime {
    info: ModelInfo,
    question_tokens: SpecialTokens,
    workers: Arc<Workers<WindowKeys>>,
    passage_file: Arc<str>,
    query: Arc<Pool<WeightedSession>>,
    /// Sessions with one thread: one per core, and at most [`ONE_THREAD_SESSIONS_MAX`].
    query_on_one_thread: Arc<Pool<WeightedSession>>,
    query_file: String,
    /// The flow of this handle's work on workers and sessions.
    flow: Flow,
}

impl LateRuntime {
    /// Loads ONNX Runtime, the contract and the model's graphs.
    ///
    /// # Errors
    /// Fails if a file is missing or does not match the contract, if the library or the device cannot be
    /// used, or if the contract is that of a decoder.
    pub fn load(settings: &OrtSettings) -> Result<Self, ModelError> {
        let environment = environment(&settings.runtime_lib)?;
        let contract = Contract::load(&settings.model_dir)?;
        let Family::Late(late) = &contract.family else {
            return Err(ModelError::WrongFamily { name: contract.name, expected: "late-interaction model" });
        };
        let device = Device::choose(&environment, settings)?;
        let (cores, workers) = if device.is_cpu() {
            (settings.workers.max(1), settings.workers.max(1))
        } else {
            (1, GPU_WORKERS)
        };
        let (query_sessions, query_threads) = question_sessions(cores);
        let one_thread_sessions = cores.min(ONE_THREAD_SESSIONS_MAX);
        let questions = query_sessions + one_thread_sessions;
        let shares = PASSAGE_SHARE * workers + questions;
        let for_passages = device.with_share(PASSAGE_SHARE, shares);
        let for_questions = device.shared_by(shares);
        let weights = SharedWeights::open(&contract, &settings.model_dir, &device)?;
        let load = |graph, device: &Device, count, threads| {
            let file = contract.graph_file(graph);
            let path = settings.model_dir.join(file);
            let load = |_| weights.session_from_file(session_builder(&environment, device, threads)?, &path);
            let sessions = (0..count).into_par_iter().map(load).collect::<Result<Vec<_>, _>>();
            let sessions = sessions.map_err(|e| graph_error(file, e))?;
            check_io(&contract, graph, &io_of_session(&sessions[0]))?;
            Ok::<_, ModelError>(sessions)
        };
        let passage = load(Graph::Passage, &for_passages, workers, 1)?;
        let query = load(Graph::Query, &for_questions, query_sessions, query_threads)?;
        let query_on_one_thread = load(Graph::Query, &for_questions, one_thread_sessions, 1)?;
        weights.drop_pages();
        let is_fused = !device.is_cpu() && contract.weights.dtype == Weights::F16;
        let row_multiple = if is_fused { FUSED_ROW_MULTIPLE } else { NonZeroUsize::MIN };
        let rows = RowLengths {
            multiple_of: settings.row_multiple.unwrap_or(row_multiple),
            tokens_max: contract.window.tokens_max,
        };
        let special_tokens = SpecialTokens { rows, ..SpecialTokens::read(&contract) };
        let file: Arc<str> = contract.graph_file(Graph::Passage).into();
        let host = Arc::new(device.host_memory().map_err(|e| graph_error(&file, e))?);
        let run = |mut session: WeightedSession| {
            let (special_tokens, file, host) = (special_tokens.clone(), Arc::clone(&file), Arc::clone(&host));
            move |windows: &[Box<[u32]>]| {
                run_passage(&mut session, &special_tokens, windows, &host).map_err(|e| graph_error(&file, e))
            }
        };
        let batching = settings.batching_on(&device, GPU_BATCHING);
        let workers = Workers::start(passage.into_iter().map(run).collect::<Vec<_>>(), batching);
        let workers = workers.map_err(|e| graph_error("worker threads", e))?;
        let window_tokens_max = contract.window.tokens_max - contract.tokenizer.special_tokens_max();
        Ok(Self {
            info: ModelInfo {
                name: contract.name.clone(),
                fingerprint: fingerprint(&contract, &device),
                window_tokens_max,
                planes: late.heads,
                head_dim: late.head_dim,
                readout: (0..late.heads).collect(),
                decoder: None,
                windows_at_once: workers.windows_at_once(window_tokens_max),
                device: device.in_use().clone(),
            },
            workers: Arc::new(workers),
            passage_file: Arc::clone(&file),
            question_tokens: SpecialTokens::of_question(&contract),
            query: Arc::new(Pool::new(query)),
            query_on_one_thread: Arc::new(Pool::new(query_on_one_thread)),
            query_file: late.query.clone(),
            flow: Flow::DEFAULT,
        })
    }

    /// Returns the number of threads that read windows.
    pub fn workers(&self) -> usize {
        self.workers.count()
    }
}

impl ModelRuntime for LateRuntime {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn with_own_flow(&self) -> Option<Arc<dyn ModelRuntime>> {
        Some(Arc::new(Self { flow: Flow::new(), ..self.clone() }))
    }

    fn read(
        &self,
        windows: &[&[u32]],
        is_needed: WindowFilter,
        on_read: WindowSink,
    ) -> Result<(), ModelError> {
        self.workers.read(self.flow, windows, is_needed, |i, keys| {
            let keys = keys.view().map_err(|e| graph_error(&self.passage_file, e))?;
            on_read(i, keys);
            Ok(())
        })
    }

    fn encode_question(&self, question: &[u32], _past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        self.encode_with(question, &self.query)
    }

    fn encode_question_on_one_thread(
        &self,
        question: &[u32],
        _past: &dyn Past,
    ) -> Result<EncodedQuestion, ModelError> {
        self.encode_with(question, &self.query_on_one_thread)
    }

    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<RawLogits, ModelError> {
        self.logits_with(question, keys, &self.query)
    }
}

impl LateRuntime {
    /// Returns the question's vectors. They are computed as the logits over the unit vectors: logits are
    /// linear in the keys, and all other terms of each dot product are 0, so the result is exact to the bit.
    fn encode_with(
        &self,
        question: &[u32],
        sessions: &Pool<WeightedSession>,
    ) -> Result<EncodedQuestion, ModelError> {
        let (heads, dim) = (self.info.readout.len(), self.info.head_dim);
        let units = Array3::from_shape_fn((heads, dim, dim), |(_, i, j)| f32::from(u8::from(i == j)));
        let RawLogits { cross: vectors, self_logits } = self.logits_with(question, units.view(), sessions)?;
        Ok(EncodedQuestion { vectors, self_attention: SelfAttention::Logits(self_logits) })
    }

    /// Runs the query graph over `keys`, `[head, key, head_dim]`.
    fn logits_with(
        &self,
        question: &[u32],
        keys: ArrayView3<f32>,
        sessions: &Pool<WeightedSession>,
    ) -> Result<RawLogits, ModelError> {
        let input = self.question_tokens.input_ids(&[question]);
        let keys = keys.as_standard_layout();
        let first = self.question_tokens.prefix.len();
        let rows = first..first + question.len();
        let run = |session: &mut WeightedSession| {
            let outputs = session.run(ort::inputs![
                "input_ids" => TensorRef::from_array_view(input.view())?,
                "key" => TensorRef::from_array_view(keys.view())?,
            ])?;
            let output = |name: &str| -> Result<Array3<f32>, ort::Error> {
                let logits = outputs[name].try_extract_array::<f32>()?;
                let logits = logits.into_dimensionality::<Ix3>().map_err(ort_error)?;
                // RC is defined for finite logits only. A model that returns others is broken.
                if logits.iter().any(|logit| !logit.is_finite()) {
                    return Err(ort_error(format_args!(
                        "the output {name} contains a value that is not finite"
                    )));
                }
                Ok(logits.slice(s![.., rows.clone(), ..]).to_owned())
            };
            let (cross, self_logits) = (output("cross_logits")?, output("self_logits")?);
            Ok(RawLogits { cross, self_logits: self_logits.slice(s![.., .., rows.clone()]).to_owned() })
        };
        sessions.with(self.flow, run).map_err(|e: ort::Error| graph_error(&self.query_file, e))
    }
}

/// The keys of a window, in the output of its batch. They are not copied, because the thread of a GPU's session would
/// copy those of all windows, one after the other.
struct WindowKeys {
    /// `[b, head, t, head_dim]`
    batch: Arc<DynValue>,
    row: usize,
    /// The tokens without special tokens and padding.
    own: Range<usize>,
}

impl WindowKeys {
    /// Returns the keys, `[head, token, head_dim]`. Fails if one is not finite: the cache's codecs need finite values
    /// to compute the scale of a key.
    fn view(&self) -> Result<ArrayView3<'_, f32>, ort::Error> {
        let batch = self.batch.try_extract_array::<f32>()?.into_dimensionality::<Ix4>().map_err(ort_error)?;
        let keys = batch.index_axis_move(Axis(0), self.row).slice_move(s![.., self.own.clone(), ..]);
        if keys.iter().all(|value| value.is_finite()) {
            Ok(keys)
        } else {
            Err(ort_error("the output key contains a value that is not finite"))
        }
    }
}

/// Computes the keys of the windows of a batch, in the memory `host`.
fn run_passage(
    session: &mut WeightedSession,
    special_tokens: &SpecialTokens,
    windows: &[Box<[u32]>],
    host: &MemoryInfo,
) -> Result<Vec<WindowKeys>, ort::Error> {
    let windows: Vec<&[u32]> = windows.iter().map(|window| &**window).collect();
    let (ids, mask) = (special_tokens.input_ids(&windows), special_tokens.attention_mask(&windows));
    let inputs = integer_inputs(&[("input_ids", &ids), ("attention_mask", &mask)])?;
    let outputs = session.run_with_binding(|name| value_named(name, &inputs), &[("key", host)])?;
    let batch = Arc::new(outputs.into_iter().next().ok_or_else(|| ort_error("the graph returned no keys"))?);
    let keys_of = |(row, window): (usize, &&[u32])| WindowKeys {
        batch: Arc::clone(&batch),
        row,
        own: special_tokens.own_tokens(window),
    };
    Ok(windows.iter().enumerate().map(keys_of).collect())
}

/// Opens the passage graph of a late-interaction model as one session with `settings.workers` threads, for
/// programs that run it themselves, such as benchmarks.
///
/// # Errors
/// As [`LateRuntime::load`].
pub fn passage_session(settings: &OrtSettings) -> Result<Session, ModelError> {
    let environment = environment(&settings.runtime_lib)?;
    let contract = Contract::load(&settings.model_dir)?;
    let file = contract.graph_file(Graph::Passage).to_owned();
    let device = Device::choose(&environment, settings)?;
    session_builder(&environment, &device, settings.workers.max(1))
        .and_then(|mut builder| builder.commit_from_file(settings.model_dir.join(&file)))
        .map_err(|e| graph_error(&file, e))
}
