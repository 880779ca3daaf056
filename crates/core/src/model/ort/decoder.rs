//! The decoder family: reads windows into keys and values, and encodes questions that attend to cached keys
//! and values. Knows nothing of late-interaction models.

mod layer_checks;
mod pass;

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayView, ArrayView3, ArrayView4, Dimension, Ix4, s};
use ort::memory::Allocator;
use ort::value::{DynValue, Tensor};
use rayon::prelude::*;

use self::pass::TokenPass;
use super::device::Device;
use super::forward::{ForwardGraph, ForwardPast, ForwardSequence};
use super::scheduling::{Flow, Pool};
use super::stages::{self, LayerPast, Projection, StageSize, Stages, TokenBatch};
use super::weights::SharedWeights;
use super::workers::{Batching, Workers};
use super::{OrtSettings, SpecialTokens, environment, fingerprint, graph_error, ort_error, session_builder};
use crate::model::contract::{Contract, Decoder, Family, Graph, IoTensor, QuestionTokens, Side, check_io};
use crate::model::onnx::{self, DataType, DimensionValue, ValueInfoProto};
use crate::model::rotary::LayerRotary;
use crate::model::{
    DecoderInfo, EncodedQuestion, ModelError, ModelInfo, ModelRuntime, Past, PlaneLayout, RawLogits,
    WindowFilter, WindowSink,
};

/// The number of question tokens that go through a layer at a time on the CPU. It bounds the memory of a
/// layer's logits to `heads` × this number × past tokens, whatever the length of the question.
const CPU_TILE_TOKENS: usize = 32;

/// The number of question tokens that go through a layer at a time on a GPU. It is larger than on the CPU,
/// because the past keys and values are copied to the GPU once for each tile.
const GPU_TILE_TOKENS: usize = 256;

/// Which windows share a batch on a GPU.
///
/// The keys and values of a batch are copied to the memory of the host, and those of the next batch are read
/// meanwhile. With 36 layers and 8 key heads of 128 components, a token has 288 KiB of them, and a batch of this
/// size 1.1 GiB. 4,096 tokens are enough to keep a GPU busy, because every layer multiplies them with large
/// matrices.
const GPU_BATCHING: Batching = Batching { tokens_max: 4096, length_step: 32 };

/// The number of layers of a stage on the CPU, and on a GPU whose memory limit is too small for all layers. With fewer
/// layers a stage needs less memory, but there are more sessions to load.
const STAGE_LAYERS: usize = 2;

/// The longest past that all layers of a GPU should have memory for, in tokens.
const GPU_PAST_TOKENS: usize = 16_384;

/// Returns the size of the stages on `device` for `weights` bytes of weights.
fn stage_size(device: &Device, decoder: &Decoder, weights: usize) -> StageSize {
    if device.is_cpu() {
        StageSize::Layers(STAGE_LAYERS)
    } else {
        gpu_stage_size(device.memory_bytes_max(), weights.saturating_add(past_bytes(decoder)))
    }
}

/// Returns the size of the stages on a GPU whose memory limit, if there is one, is `max` bytes. Every run costs time, so all
/// layers are one stage if three quarters of it hold `needed` bytes. The rest is for logits and other intermediate values.
fn gpu_stage_size(max: Option<usize>, needed: usize) -> StageSize {
    match max {
        Some(max) if needed > max / 4 * 3 => StageSize::Layers(STAGE_LAYERS),
        _ => StageSize::Whole,
    }
}

/// Returns the number of bytes of the keys and values of a long past, or of a batch of windows if that is more.
fn past_bytes(decoder: &Decoder) -> usize {
    let tokens = decoder.context_tokens_max.clamp(GPU_BATCHING.tokens_max, GPU_PAST_TOKENS);
    PlaneLayout::new(decoder.kv_heads).count(decoder.depth()) * tokens * decoder.head_dim * size_of::<f32>()
}

/// A loaded decoder. Clones share its sessions.
#[derive(Clone)]
pub struct DecoderRuntime {
    info: ModelInfo,
    file: Arc<str>,
    shape: DecoderShape,
    workers: Arc<Workers<WindowPlanes>>,
    question_sessions: Arc<Pool<Stages>>,
    forward: Option<Arc<Pool<ForwardGraph>>>,
    /// The flow of this handle's work on workers and sessions.
    flow: Flow,
    /// The keys and values of the special tokens before every window, `[plane, prefix_token, head_dim]`.
    prefix: Arc<Array3<f32>>,
    tile_tokens: usize,
}

/// The part of a decoder that is run, and the numbering of its planes.
#[derive(Debug, Clone)]
struct DecoderShape {
    decoder: Decoder,
    /// The number of layers that are run.
    depth: usize,
    /// (layer, head) of the heads that scores are computed from.
    readout: Vec<(usize, usize)>,
}

impl DecoderRuntime {
    /// Loads ONNX Runtime, the contract and the model's graph.
    ///
    /// # Errors
    /// Fails if a file is missing or does not match the contract, if the library or the device cannot be
    /// used, or if the contract is not that of a decoder.
    pub fn load(settings: &OrtSettings) -> Result<Self, ModelError> {
        let environment = environment(&settings.runtime_lib)?;
        let mut contract = Contract::load(&settings.model_dir)?;
        let Family::Decoder(decoder) = &mut contract.family else {
            return Err(ModelError::WrongFamily { name: contract.name, expected: "decoder" });
        };
        let chosen = (decoder.readout(), decoder.question_tokens());
        let probe = decoder.probe.take().filter(|_| settings.probe);
        if settings.probe && probe.is_none() {
            return Err(ModelError::NoProbe { model: contract.name, encoder: false });
        }
        decoder.probe.clone_from(&probe);
        if settings.all_heads || settings.all_layers {
            // The model then has the fingerprint of the same model without chosen heads, which runs all
            // layers.
            decoder.chosen = None;
        }
        if settings.long_windows {
            contract.window.tokens_max = (decoder.context_tokens_max / 4 * 3).max(1);
        }
        let (readout, question_tokens) =
            if settings.all_heads { (decoder.readout(), QuestionTokens::All) } else { chosen };
        let Family::Decoder(decoder) = &contract.family else {
            unreachable!("the family has been matched above")
        };
        let file: Arc<str> = decoder.graph.as_str().into();
        let failed = |e: ort::Error| graph_error(&file, e);
        let path = settings.model_dir.join(&*file);
        let model = onnx::read_model(&path).map_err(|e| graph_error(&file, e))?;
        check_io(&contract, Graph::Decoder, &io_of_model(&model))?;
        layer_checks::check(decoder, &model)?;
        let device = Device::choose(&environment, settings)?;
        let depth = decoder.depth();
        let device = device.shared_by(1 + usize::from(settings.forward));
        let weights_bytes = stages::weights_bytes(&model, depth).map_err(|e| graph_error(&file, e))?;
        let size = settings.stages.unwrap_or_else(|| stage_size(&device, decoder, weights_bytes));
        let weights = SharedWeights::open(&contract, &settings.model_dir, &device)?;
        let load = |count: usize, threads: usize| {
            let load = |_| {
                let builder =
                    |device: &Device| device.without_arena(session_builder(&environment, device, threads)?);
                Stages::load(&model, depth, size, &weights, &settings.model_dir, &device, builder)
            };
            (0..count).into_par_iter().map(load).collect::<Result<Vec<_>, _>>().map_err(failed)
        };
        let special_tokens = SpecialTokens::read(&contract);
        let shape = DecoderShape { depth, readout, decoder: decoder.clone() };
        // A GPU holds the weights once: reading windows and encoding questions take turns with one set of
        // sessions.
        let (window_sessions, question_sessions) = if device.is_cpu() {
            let workers = settings.workers.max(1);
            let (sessions, threads) = super::question_sessions(workers);
            let of_workers = load(workers, 1)?.into_iter().map(|stages| Arc::new(Pool::new(vec![stages])));
            (of_workers.collect(), Arc::new(Pool::new(load(sessions, threads)?)))
        } else {
            let shared = Arc::new(Pool::new(load(1, 1)?));
            (vec![Arc::clone(&shared)], shared)
        };
        // On the CPU, as many passes run at the same time as there are workers.
        let passes = if device.is_cpu() { settings.workers.max(1) } else { 1 };
        let load_forward = |_| {
            let builder = |device: &Device| device.without_arena(session_builder(&environment, device, 1)?);
            ForwardGraph::load(&model, decoder, &weights, &settings.model_dir, &device, builder)
                .map_err(failed)
        };
        let forward = settings.forward.then(|| (0..passes).map(load_forward).collect::<Result<Vec<_>, _>>());
        let forward = forward.transpose()?.map(|graphs| Arc::new(Pool::new(graphs)));
        weights.drop_pages();
        let prefix = if special_tokens.prefix.is_empty() {
            Array3::zeros((shape.planes(), 0, decoder.head_dim))
        } else {
            let ids = special_tokens.input_ids(&[&[]]);
            let read = |stages: &mut Stages| {
                let whole = 0..special_tokens.prefix.len();
                read_windows(stages, &shape, ids, std::slice::from_ref(&whole))?.remove(0).into_array()
            };
            question_sessions.with(Flow::DEFAULT, read).map_err(failed)?
        };
        // The queue of the workers is already fair between callers. On a GPU, the reading of windows as a
        // whole is one flow beside those of the questions.
        let window_flow = Flow::new();
        let runner = |sessions: Arc<Pool<Stages>>| {
            let (special_tokens, shape, file) = (special_tokens.clone(), shape.clone(), Arc::clone(&file));
            move |windows: &[Box<[u32]>]| {
                let windows: Vec<&[u32]> = windows.iter().map(|window| &**window).collect();
                let ids = special_tokens.input_ids(&windows);
                let own: Vec<_> = windows.iter().map(|window| special_tokens.own_tokens(window)).collect();
                let read = |stages: &mut Stages| read_windows(stages, &shape, ids, &own);
                sessions.with(window_flow, read).map_err(|e| graph_error(&file, e))
            }
        };
        let runners = window_sessions.into_iter().map(runner).collect::<Vec<_>>();
        let workers = Workers::start(runners, settings.batching_on(&device, GPU_BATCHING));
        let workers = Arc::new(workers.map_err(|e| graph_error("worker threads", e))?);
        let window_tokens_max = contract.window.tokens_max - special_tokens.prefix.len();
        let info = ModelInfo {
            name: contract.name.clone(),
            fingerprint: fingerprint(&contract, &device),
            window_tokens_max,
            planes: shape.planes(),
            head_dim: decoder.head_dim,
            readout: shape.readout.iter().map(|&(layer, head)| shape.key_plane(layer, head)).collect(),
            decoder: Some(DecoderInfo {
                context_tokens_max: decoder.context_tokens_max,
                layers: decoder.layers,
                depth,
                heads: decoder.heads,
                prefix: special_tokens.prefix.clone(),
                kv_heads: decoder.kv_heads,
                weights: contract.source.weights.clone(),
                question_tokens,
                rotary: LayerRotary::declared_by(decoder),
                sliding_windows: (0..decoder.layers).map(|layer| decoder.sliding_window(layer)).collect(),
                eviction: decoder.eviction_form(),
                default_eviction: decoder.default_eviction_form(),
                probe: probe.map(Arc::from),
            }),
            windows_at_once: workers.windows_at_once(window_tokens_max),
            device: device.in_use().clone(),
        };
        let tile_tokens = if device.is_cpu() { CPU_TILE_TOKENS } else { GPU_TILE_TOKENS };
        let (prefix, flow) = (Arc::new(prefix), Flow::DEFAULT);
        Ok(Self { info, file, shape, workers, question_sessions, forward, flow, prefix, tile_tokens })
    }

    /// Copies `past` into the form that [`Self::forward`] takes.
    ///
    /// # Errors
    /// Returns errors of the runtime.
    pub fn forward_past(&self, past: &dyn Past) -> Result<ForwardPast, ModelError> {
        let pass = self.pass(&[], Vec::new(), past);
        let allocator = Allocator::default();
        let layers = (0..self.shape.decoder.layers).map(|layer| pass.layer_past(layer, 0, &allocator));
        Ok(ForwardPast {
            layers: layers.collect::<Result<_, _>>().map_err(|e| graph_error(&self.file, e))?,
            positions: pass.past_positions(),
            next_position: past.question_position(),
        })
    }

    /// Runs the whole decoder over each of `sequences`, and returns for each its logits `[token, vocab]`: those
    /// of the token that follows each token. Every sequence follows `past` and attends to the part of it that
    /// it keeps. One pass serves all sequences, and its memory grows with their tokens; callers with many
    /// sequences pass some at a time. Passes that run at the same time use one core each.
    ///
    /// # Errors
    /// Returns [`ModelError::NoForward`] if the model was loaded without [`OrtSettings::forward`], and errors
    /// of the runtime.
    pub fn forward(
        &self,
        past: &ForwardPast,
        sequences: &[ForwardSequence],
    ) -> Result<Vec<Array2<f32>>, ModelError> {
        let graph =
            self.forward.as_ref().ok_or_else(|| ModelError::NoForward { model: self.info.name.clone() })?;
        graph.with(self.flow, |graph| graph.run(past, sequences)).map_err(|e| graph_error(&self.file, e))
    }

    fn pass<'a>(&'a self, ids: &'a [u32], positions: Vec<i64>, past: &'a dyn Past) -> TokenPass<'a> {
        let (shape, prefix) = (&self.shape, self.prefix.view());
        TokenPass { shape, prefix, ids, positions, past, tile_tokens: self.tile_tokens }
    }

    /// Runs `work` with the sessions of questions as soon as they are free.
    fn with_question_sessions<T>(
        &self,
        past: &dyn Past,
        work: impl FnOnce(&mut Stages) -> Result<Option<T>, ort::Error>,
    ) -> Result<T, ModelError> {
        let done = self.question_sessions.with_while(self.flow, || past.go_on(), work);
        let done = done.ok_or(ModelError::Cancelled)?.map_err(|e| graph_error(&self.file, e))?;
        done.ok_or(ModelError::Cancelled)
    }

    /// Encodes a question in `heads`, (layer, head) each.
    fn encode_in_heads(
        &self,
        question: &[u32],
        past: &dyn Past,
        heads: &[(usize, usize)],
    ) -> Result<EncodedQuestion, ModelError> {
        let positions = (past.question_position()..).take(question.len()).collect();
        let pass = self.pass(question, positions, past);
        self.with_question_sessions(past, |stages| pass.encode(stages, heads))
    }
}

impl ModelRuntime for DecoderRuntime {
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
        self.workers.read(self.flow, windows, is_needed, |i, window| {
            let planes = window.into_array().map_err(|e| graph_error(&self.file, e))?;
            on_read(i, planes.view());
            Ok(())
        })
    }

    fn encode_question(&self, question: &[u32], past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        self.encode_in_heads(question, past, &self.shape.readout)
    }

    fn encode_question_in_all_heads(
        &self,
        question: &[u32],
        past: &dyn Past,
    ) -> Result<EncodedQuestion, ModelError> {
        let DecoderShape { decoder, depth, .. } = &self.shape;
        let heads: Vec<(usize, usize)> =
            (0..*depth).flat_map(|layer| (0..decoder.heads).map(move |head| (layer, head))).collect();
        self.encode_in_heads(question, past, &heads)
    }

    fn read_in_place(
        &self,
        ids: &[u32],
        positions: &[i64],
        past: &dyn Past,
    ) -> Result<Array3<f32>, ModelError> {
        let pass = self.pass(ids, positions.to_vec(), past);
        self.with_question_sessions(past, |stages| pass.read(stages))
    }

    fn prefix(&self) -> ArrayView3<'_, f32> {
        self.prefix.view()
    }

    fn logits(&self, _question: &[u32], _keys: ArrayView3<f32>) -> Result<RawLogits, ModelError> {
        Err(ModelError::NoQueryGraph { model: self.info.name.clone() })
    }
}

impl DecoderShape {
    fn layout(&self) -> PlaneLayout {
        PlaneLayout::new(self.decoder.kv_heads)
    }

    fn planes(&self) -> usize {
        self.layout().count(self.depth)
    }

    fn keys(&self, layer: usize) -> Range<usize> {
        self.layout().keys(layer)
    }

    fn values(&self, layer: usize) -> Range<usize> {
        self.layout().values(layer)
    }

    fn kv_head(&self, head: usize) -> usize {
        head / (self.decoder.heads / self.decoder.kv_heads)
    }

    fn key_plane(&self, layer: usize, head: usize) -> usize {
        self.keys(layer).start + self.kv_head(head)
    }
}

/// The keys and values of a window.
enum WindowPlanes {
    /// `[plane, token, head_dim]`. With several stages, they are copied after each stage, so that the outputs of all stages
    /// are never in memory at the same time.
    Copied(Array3<f32>),
    /// In the outputs of their batch. With one stage, they are in memory in any case, and other threads than that of the
    /// session copy them.
    InBatch {
        outputs: Arc<BatchOutputs>,
        row: usize,
        /// The tokens without special tokens and padding.
        own: Range<usize>,
    },
}

/// The keys and values of a batch.
struct BatchOutputs {
    /// The planes of each output, `[b, kv_heads, t, head_dim]`.
    outputs: Vec<(Range<usize>, DynValue)>,
    planes: usize,
    head_dim: usize,
}

impl WindowPlanes {
    /// Returns the keys and values, `[plane, token, head_dim]`.
    fn into_array(self) -> Result<Array3<f32>, ort::Error> {
        match self {
            Self::Copied(planes) => Ok(planes),
            Self::InBatch { outputs, row, own } => {
                let mut window = Array3::zeros((outputs.planes, own.len(), outputs.head_dim));
                for (range, output) in &outputs.outputs {
                    copy_planes(&mut window, range.clone(), output, row, own.clone())?;
                }
                Ok(window)
            }
        }
    }
}

/// Copies the planes `range` of a window: those of its own tokens in its row of `output`, `[b, kv_heads, t, head_dim]`.
/// Fails if a value is not finite, because such values can neither be cached nor compared.
fn copy_planes(
    window: &mut Array3<f32>,
    range: Range<usize>,
    output: &DynValue,
    row: usize,
    own: Range<usize>,
) -> Result<(), ort::Error> {
    let of_batch = four_axes(output)?;
    let computed = of_batch.slice(s![row, .., own, ..]);
    check_finite(computed, "keys or values")?;
    window.slice_mut(s![range, .., ..]).assign(&computed);
    Ok(())
}

/// Computes the keys and values of windows, `ids [b, t]`: for each window those of the tokens in its range of `own`.
/// Special tokens are before this range and padding is after it. Tokens do not attend to later ones, so padding needs
/// no mask.
fn read_windows(
    stages: &mut Stages,
    shape: &DecoderShape,
    ids: Array2<i64>,
    own: &[Range<usize>],
) -> Result<Vec<WindowPlanes>, ort::Error> {
    let (batch, tokens) = ids.dim();
    let positions = Array2::from_shape_fn((batch, tokens), |(_, t)| t as i64);
    let (planes, head_dim) = (shape.planes(), shape.decoder.head_dim);
    let copies_at_once = !stages.are_one();
    let zeros = |own: &Range<usize>| Array3::zeros((planes, own.len(), head_dim));
    let mut copied: Vec<Array3<f32>> =
        if copies_at_once { own.iter().map(zeros).collect() } else { Vec::new() };
    let mut outputs = Vec::new();
    let mut staged = stages.start(&TokenBatch { ids, key_positions: positions.clone(), positions })?;
    for layers in stages.layers() {
        let past = layers.clone().filter(|&layer| stages.attends(layer));
        let past = past.map(|_| Ok([empty_past(batch, shape)?, empty_past(batch, shape)?]));
        let past = past.collect::<Result<Vec<LayerPast>, ort::Error>>()?;
        let computed =
            stages.run_stage(layers.start, &mut staged, &past, &[Projection::Key, Projection::Value])?;
        for (layer, computed) in layers.zip(computed) {
            outputs.extend([shape.keys(layer), shape.values(layer)].into_iter().zip(computed));
        }
        if copies_at_once {
            for (range, output) in outputs.drain(..) {
                for (row, (window, own)) in copied.iter_mut().zip(own).enumerate() {
                    copy_planes(window, range.clone(), &output, row, own.clone())?;
                }
            }
        }
    }
    if copies_at_once {
        return Ok(copied.into_iter().map(WindowPlanes::Copied).collect());
    }
    let outputs = Arc::new(BatchOutputs { outputs, planes, head_dim });
    let window = |(row, own): (usize, &Range<usize>)| WindowPlanes::InBatch {
        outputs: Arc::clone(&outputs),
        row,
        own: own.clone(),
    };
    Ok(own.iter().enumerate().map(window).collect())
}

/// Returns past keys or values without tokens, `[batch, kv_heads, 0, head_dim]`.
fn empty_past(batch: usize, shape: &DecoderShape) -> Result<DynValue, ort::Error> {
    let (kv_heads, dim) = (shape.decoder.kv_heads, shape.decoder.head_dim);
    Ok(Tensor::<f32>::new(&Allocator::default(), [batch, kv_heads, 0, dim])?.into_dyn())
}

/// Returns the elements of an output, `[b, heads or kv_heads, t, head_dim]`.
fn four_axes(output: &DynValue) -> Result<ArrayView4<'_, f32>, ort::Error> {
    output.try_extract_array::<f32>()?.into_dimensionality::<Ix4>().map_err(ort_error)
}

/// Fails if a value is not finite. `content` names the values in the error.
fn check_finite<D: Dimension>(values: ArrayView<f32, D>, content: &str) -> Result<(), ort::Error> {
    if values.iter().all(|value| value.is_finite()) {
        Ok(())
    } else {
        Err(ort_error(format_args!("the {content} contain a value that is not finite")))
    }
}

/// Returns the inputs and outputs that the file declares. No session has the whole graph, so they cannot come
/// from one.
fn io_of_model(model: &onnx::ModelProto) -> Vec<IoTensor> {
    let Some(graph) = &model.graph else { return Vec::new() };
    let tensor = |side: Side, info: &ValueInfoProto| {
        let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let dtype = match tensor.map(|tensor| DataType::try_from(tensor.elem_type)) {
            Some(Ok(DataType::Float)) => "f32",
            Some(Ok(DataType::Float16)) => "f16",
            Some(Ok(DataType::Int64)) => "i64",
            _ => "(unsupported type)",
        };
        let dims = tensor.and_then(|tensor| tensor.shape.as_ref()).into_iter().flat_map(|shape| &shape.dim);
        let dims = dims.map(|dim| match dim.value {
            Some(DimensionValue::Value(size)) => size,
            _ => -1,
        });
        IoTensor::new(side, &info.name, dtype, &dims.collect::<Vec<_>>())
    };
    let inputs = graph.input.iter().map(|info| tensor(Side::Input, info));
    inputs.chain(graph.output.iter().map(|info| tensor(Side::Output, info))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_layers_are_one_stage_if_the_memory_limit_allows_it() {
        let check = |name: &str, max: Option<usize>, needed: usize, expect: StageSize| {
            assert_eq!(gpu_stage_size(max, needed), expect, "{name}");
        };
        let parts = StageSize::Layers(STAGE_LAYERS);
        // SmolLM2-135M in f32: 30 layers, 3 key heads of 64 components, 8,192 tokens, 540 MB of weights.
        let smol = 30 * 2 * 3 * 64 * 8192 * 4 + 540_000_000;
        check("no limit", None, usize::MAX, StageSize::Whole);
        check("4 GB for SmolLM2", Some(4_000_000_000), smol, StageSize::Whole);
        check("1 GB for SmolLM2", Some(1_000_000_000), smol, parts);
        check("just enough", Some(400), 300, StageSize::Whole);
        check("a byte too little", Some(400), 301, parts);
    }
}
