//! The decoder family: windows to keys and values, questions to queries that have looked back on them.
//! Knows nothing of the late family.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayView3, ArrayView4, Axis, Ix4, s};
use ort::memory::Allocator;
use ort::value::{DynValue, Tensor};
use rayon::prelude::*;

use super::device::Device;
use super::forward::{ForwardGraph, Input};
use super::frame::Frame;
use super::lanes::Lane;
use super::pool::Pool;
use super::stages::{self, LayerPast, OnTheirWay, Part, Stages, Tokens};
use super::weights::SharedWeights;
use super::workers::{RUN_TOKENS, Workers};
use super::{OrtSettings, builder, environment, graph_error, numerics, ort_error, query_sessions};
use crate::model::contract::{
    Contract, ContractError, Decoder, Family, Graph, IoTensor, QuestionTokens, Side, check_io, cut,
};
use crate::model::onnx::{self, DataType, DimensionValue, ValueInfoProto};
use crate::model::{
    DecoderInfo, Done, EncodedQuestion, Forward, KeyMask, ModelError, ModelInfo, ModelRuntime, Past,
    PlaneLayout, RawLogits, SelfAttention, Wanted,
};

/// Tokens of a question that go through a layer together. Its logits are `heads` × this × everything it looks back on, whatever the
/// question's length.
const QUESTION_TOKENS: usize = 32;

/// The same on a GPU, where what it looks back on goes there for each of them.
const GPU_QUESTION_TOKENS: usize = 256;

/// Tokens that one run on a GPU takes.
const GPU_RUN_TOKENS: usize = 4096;

/// Sessions of a decoder.
#[derive(Clone)]
pub struct DecoderRuntime {
    info: ModelInfo,
    file: Arc<str>,
    shape: Shape,
    workers: Arc<Workers<Array3<f32>>>,
    asks: Arc<Pool<Stages>>,
    forward: Option<Arc<Pool<ForwardGraph>>>,
    /// Whose turn it is, on workers and sessions.
    lane: Lane,
    /// `[plane, prefix token, head_dim]`: what lies before every window, the same for all.
    prefix: Arc<Array3<f32>>,
    tile_tokens: usize,
}

/// What of a decoder is read, and how its planes are numbered: each layer's keys, then its values, head by head.
#[derive(Debug, Clone)]
struct Shape {
    decoder: Decoder,
    depth: usize,
    /// `[layer, head]` of the heads that are scored by.
    readout: Vec<(usize, usize)>,
}

impl DecoderRuntime {
    /// Loads the library, the contract and its graph.
    ///
    /// # Errors
    /// [`ModelError`] names what is missing or does not fit, and what to do.
    pub fn load(settings: &OrtSettings) -> Result<Self, ModelError> {
        let environment = environment(&settings.runtime_lib)?;
        let mut contract = Contract::load(&settings.model_dir)?;
        let Family::Decoder(decoder) = &mut contract.family else {
            return Err(ModelError::OtherFamily { name: contract.name, expected: "decoder" });
        };
        let chosen = (decoder.readout(), decoder.question_tokens());
        if settings.all_heads || settings.all_layers {
            // From here on it is the model that nobody has chosen heads of, and its blocks have that one's name.
            decoder.chosen = None;
        }
        let (readout, question_tokens) =
            if settings.all_heads { (decoder.readout(), QuestionTokens::All) } else { chosen };
        let Family::Decoder(decoder) = &contract.family else { unreachable!("it was one a moment ago") };
        let file: Arc<str> = decoder.graph.as_str().into();
        let failed = |e: ort::Error| graph_error(&file, e);
        let path = settings.model_dir.join(&*file);
        let model = onnx::read_model(&path).map_err(|e| graph_error(&file, e))?;
        check_io(&contract, Graph::Decoder, &io_of(&model))?;
        check_rotary(decoder, &model)?;
        let device = Device::choose(&environment, settings.device, settings.device_memory_bytes_max)?;
        let depth = decoder.depth();
        let device = device.shared_by(stages::sessions(depth));
        let weights = SharedWeights::open(&contract, &settings.model_dir, &device)?;
        let load = |count: usize, threads: usize| {
            let load = |_| {
                let builder = || device.without_arena(builder(&environment, &device, threads)?);
                Stages::load(&model, depth, (&weights, &settings.model_dir), &device, builder)
            };
            (0..count).into_par_iter().map(load).collect::<Result<Vec<_>, _>>().map_err(failed)
        };
        let frame = Frame::of(&contract);
        let shape = Shape { depth, readout, decoder: decoder.clone() };
        // A GPU has one copy of the weights, which reading and context take in turn.
        let (readers, asks) = if device.is_cpu() {
            let workers = settings.workers.max(1);
            let (sessions, threads) = query_sessions(workers);
            let readers = load(workers, 1)?.into_iter().map(|stages| Arc::new(Pool::new(vec![stages])));
            (readers.collect(), Arc::new(Pool::new(load(sessions, threads)?)))
        } else {
            let one = Arc::new(Pool::new(load(1, 1)?));
            (vec![Arc::clone(&one)], one)
        };
        let forward = (settings.forward && device.is_cpu()).then(|| {
            let builder = || device.without_arena(builder(&environment, &device, query_sessions(1).1)?);
            ForwardGraph::load(&model, decoder, (&weights, &settings.model_dir), builder).map_err(failed)
        });
        let forward = forward.transpose()?.map(|forward| Arc::new(Pool::new(vec![forward])));
        weights.drop_pages();
        let prefix = match frame.prefix.is_empty() {
            true => Array3::zeros((shape.planes(), 0, decoder.head_dim)),
            false => {
                let read = |stages: &mut Stages| read(stages, &shape, frame.around(&[&[]]), 0);
                asks.with(Lane::SHARED, read).map_err(failed)?.remove(0)
            }
        };
        let reading = Lane::new();
        let run = |readers: Arc<Pool<Stages>>| {
            let (frame, shape, file) = (frame.clone(), shape.clone(), Arc::clone(&file));
            move |windows: &[Box<[u32]>]| {
                let windows: Vec<&[u32]> = windows.iter().map(|window| &**window).collect();
                let read =
                    |stages: &mut Stages| read(stages, &shape, frame.around(&windows), frame.prefix.len());
                // Whose windows these are has been decided; on a GPU, reading as a whole takes turns with questions.
                readers.with(reading, read).map_err(|e| graph_error(&file, e))
            }
        };
        let run_tokens = if device.is_cpu() { RUN_TOKENS } else { GPU_RUN_TOKENS };
        let workers = Workers::start(readers.into_iter().map(run).collect::<Vec<_>>(), run_tokens);
        let workers = Arc::new(workers.map_err(|e| graph_error("worker threads", e))?);
        let info = ModelInfo {
            name: contract.name.clone(),
            fingerprint: numerics::fingerprint(&contract, device.is_cpu()),
            window_tokens_max: contract.window.tokens_max - frame.prefix.len(),
            planes: shape.planes(),
            head_dim: decoder.head_dim,
            readout: shape.readout.iter().map(|&(layer, head)| shape.key_plane(layer, head)).collect(),
            decoder: Some(DecoderInfo {
                context_tokens_max: decoder.context_tokens_max,
                layers: decoder.layers,
                depth,
                heads: decoder.heads,
                prefix: frame.prefix.clone(),
                kv_heads: decoder.kv_heads,
                weights: contract.source.weights.clone(),
                question_tokens,
                rotary: decoder.rotary.clone(),
            }),
            device: device.in_use().clone(),
        };
        let tile_tokens = if device.is_cpu() { QUESTION_TOKENS } else { GPU_QUESTION_TOKENS };
        let (prefix, lane) = (Arc::new(prefix), Lane::SHARED);
        Ok(Self { info, file, shape, workers, asks, forward, lane, prefix, tile_tokens })
    }
}

impl ModelRuntime for DecoderRuntime {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn with_own_share(&self) -> Option<Arc<dyn ModelRuntime>> {
        Some(Arc::new(Self { lane: Lane::new(), ..self.clone() }))
    }

    fn read(&self, windows: &[&[u32]], wanted: Wanted, done: Done) -> Result<(), ModelError> {
        self.workers.each(self.lane, windows, wanted, |i, planes| done(i, planes.view()))
    }

    fn question(&self, question: &[u32], past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        self.ask(question, past, &self.shape.readout)
    }

    fn question_in_all_heads(
        &self,
        question: &[u32],
        past: &dyn Past,
    ) -> Result<EncodedQuestion, ModelError> {
        let Shape { decoder, depth, .. } = &self.shape;
        let heads: Vec<(usize, usize)> =
            (0..*depth).flat_map(|layer| (0..decoder.heads).map(move |head| (layer, head))).collect();
        self.ask(question, past, &heads)
    }

    fn prefix(&self) -> ArrayView3<'_, f32> {
        self.prefix.view()
    }

    fn logits(&self, _question: &[u32], _keys: ArrayView3<f32>) -> Result<RawLogits, ModelError> {
        Err(ModelError::NoQueryGraph { model: self.info.name.clone() })
    }
}

impl DecoderRuntime {
    /// Runs the whole decoder over `tokens`, which attend to the part of `past` that `kept` leaves, up to the logits of the next token.
    ///
    /// # Errors
    /// [`ModelError::NoForward`] where [`OrtSettings::forward`] was not set when the model was loaded; else what the runtime reports.
    pub fn forward(
        &self,
        tokens: &[u32],
        past: &dyn Past,
        kept: Option<&KeyMask>,
    ) -> Result<Forward, ModelError> {
        let graph =
            self.forward.as_ref().ok_or_else(|| ModelError::NoForward { model: self.info.name.clone() })?;
        let asked = self.asked(tokens, past, &self.shape.readout);
        let (position, before) = (past.question_position(), asked.positions_before());
        let positions: Vec<i64> = (position..position + tokens.len() as i64).collect();
        let input = Input { ids: tokens, positions: &positions, past_positions: &before, kept };
        let past = |layer: usize| {
            Ok([asked.past_of(self.shape.keys(layer), 0)?, asked.past_of(self.shape.values(layer), 0)?])
        };
        graph.with(self.lane, |graph| graph.run(&input, past)).map_err(|e| graph_error(&self.file, e))
    }

    fn asked<'a>(
        &'a self,
        question: &'a [u32],
        past: &'a dyn Past,
        heads: &'a [(usize, usize)],
    ) -> Asked<'a> {
        let (shape, prefix) = (&self.shape, self.prefix.view());
        Asked { shape, prefix, question, past, heads, tile_tokens: self.tile_tokens }
    }

    fn ask(
        &self,
        question: &[u32],
        past: &dyn Past,
        heads: &[(usize, usize)],
    ) -> Result<EncodedQuestion, ModelError> {
        let asked = self.asked(question, past, heads);
        let found = self.asks.with_while(self.lane, || past.go_on(), |stages| asked.ask(stages));
        found.ok_or(ModelError::Stopped)?.map_err(|e| graph_error(&self.file, e))?.ok_or(ModelError::Stopped)
    }
}

impl Shape {
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

    /// The key head that a query head meets.
    fn kv_head(&self, head: usize) -> usize {
        head / (self.decoder.heads / self.decoder.kv_heads)
    }

    fn key_plane(&self, layer: usize, head: usize) -> usize {
        self.keys(layer).start + self.kv_head(head)
    }
}

/// Planes `[plane, t, head_dim]` of each row of `ids [b, t]`, the first `dropped` tokens left out.
fn read(
    stages: &mut Stages,
    shape: &Shape,
    ids: Array2<i64>,
    dropped: usize,
) -> Result<Vec<Array3<f32>>, ort::Error> {
    let (batch, tokens) = ids.dim();
    let positions = Array2::from_shape_fn((batch, tokens), |(_, t)| t as i64);
    let dim = shape.decoder.head_dim;
    let mut windows = vec![Array3::zeros((shape.planes(), tokens - dropped, dim)); batch];
    let mut on_their_way = stages.enter(&Tokens { ids, key_positions: positions.clone(), positions })?;
    for layers in stages.layers() {
        let past = layers.clone().filter(|&layer| stages.attends(layer));
        let past = past.map(|_| Ok([empty(batch, shape)?, empty(batch, shape)?]));
        let past = past.collect::<Result<Vec<LayerPast>, ort::Error>>()?;
        let made = stages.pass(layers.start, &mut on_their_way, &past, &[Part::Key, Part::Value])?;
        for (layer, made) in layers.zip(made) {
            for (range, made) in [shape.keys(layer), shape.values(layer)].into_iter().zip(&made) {
                let made = finite(made, "keys and values")?;
                for (window, made) in windows.iter_mut().zip(made.outer_iter()) {
                    let mut planes = window.slice_mut(s![range.clone(), .., ..]);
                    planes.assign(&made.slice(s![.., dropped.., ..]));
                }
            }
        }
    }
    Ok(windows)
}

/// A question and what it looks back on.
struct Asked<'a> {
    shape: &'a Shape,
    /// `[plane, prefix token, head_dim]`
    prefix: ArrayView3<'a, f32>,
    question: &'a [u32],
    past: &'a dyn Past,
    /// `[layer, head]` of the heads that are wanted.
    heads: &'a [(usize, usize)],
    tile_tokens: usize,
}

/// Some tokens of the question on their way through the layers.
struct Tile {
    /// Of the question.
    tokens: Range<usize>,
    on_their_way: OnTheirWay,
}

impl Asked<'_> {
    /// Queries and own keys of the heads that are read; none when nobody waits for them any more.
    ///
    /// Layers on the outside, tiles of the question within: only one stage's keys and values are there as numbers, and a tile's
    /// logits over them.
    fn ask(&self, stages: &mut Stages) -> Result<Option<EncodedQuestion>, ort::Error> {
        let (heads, dim) = (self.heads.len(), self.shape.decoder.head_dim);
        let mut vectors = Array3::zeros((heads, self.question.len(), dim));
        let mut keys = vectors.clone();
        let mut tiles = self.enter(stages)?;
        for layers in stages.layers() {
            if !self.past.go_on() {
                return Ok(None);
            }
            let mut past = layers
                .clone()
                .filter(|&layer| stages.attends(layer))
                .map(|layer| {
                    let room = self.own_room();
                    Ok([
                        self.past_of(self.shape.keys(layer), room)?,
                        self.past_of(self.shape.values(layer), room)?,
                    ])
                })
                .collect::<Result<Vec<LayerPast>, ort::Error>>()?;
            for tile in &mut tiles {
                if !self.past.go_on() {
                    return Ok(None);
                }
                let parts = [Part::Query, Part::Key, Part::Value];
                let made = stages.pass(layers.start, &mut tile.on_their_way, &past, &parts)?;
                for (i, (layer, made)) in layers.clone().zip(made).enumerate() {
                    let made: Vec<_> =
                        made.iter().map(|made| finite(made, "a question")).collect::<Result<_, _>>()?;
                    let rows = s![tile.tokens.clone(), ..];
                    let of_layer = self.heads.iter().enumerate().filter(|(_, (of, _))| *of == layer);
                    for (at, &(_, head)) in of_layer {
                        let mut vectors = vectors.index_axis_mut(Axis(0), at);
                        vectors.slice_mut(rows).assign(&made[0].slice(s![0, head, .., ..]));
                        let mut keys = keys.index_axis_mut(Axis(0), at);
                        keys.slice_mut(rows).assign(&made[1].slice(s![0, self.shape.kv_head(head), .., ..]));
                    }
                    if let Some(past) = past.get_mut(i) {
                        self.remember(past, &made[1..], tile.tokens.clone())?;
                    }
                }
            }
        }
        Ok(Some(EncodedQuestion { vectors, self_attention: SelfAttention::CausalKeys(keys) }))
    }

    /// Room for the question's own tokens behind what it looks back on: none where it is one tile.
    fn own_room(&self) -> usize {
        if self.question.len() > self.tile_tokens { self.question.len() } else { 0 }
    }

    /// Tokens of prefix and past.
    fn looked_back_on(&self) -> usize {
        self.prefix.len_of(Axis(1)) + self.past.positions().len()
    }

    fn enter(&self, stages: &mut Stages) -> Result<Vec<Tile>, ort::Error> {
        let first = self.past.question_position();
        let position = |token: usize| first + token as i64;
        let before = self.positions_before();
        let tile = |start: usize| {
            let tokens = start..(start + self.tile_tokens).min(self.question.len());
            let own = (0..self.own_room()).map(|token| if token < start { position(token) } else { -1 });
            let key_positions = before.iter().copied().chain(own).chain(tokens.clone().map(position));
            let row =
                |values: Vec<i64>| Array2::from_shape_vec((1, values.len()), values).expect("it is one row");
            let entering = Tokens {
                ids: row(self.question[tokens.clone()].iter().map(|&id| i64::from(id)).collect()),
                positions: row(tokens.clone().map(position).collect()),
                key_positions: row(key_positions.collect()),
            };
            Ok(Tile { on_their_way: stages.enter(&entering)?, tokens })
        };
        (0..self.question.len()).step_by(self.tile_tokens).map(tile).collect()
    }

    /// Places of prefix and past.
    fn positions_before(&self) -> Vec<i64> {
        (0..self.prefix.len_of(Axis(1)) as i64).chain(self.past.positions().iter().copied()).collect()
    }

    /// The `planes` of one layer's keys or values, of prefix and past, with room for `own` tokens behind them:
    /// `[1, kv_heads, p, head_dim]`.
    fn past_of(&self, planes: Range<usize>, own: usize) -> Result<DynValue, ort::Error> {
        let (kv_heads, dim) = (planes.len(), self.shape.decoder.head_dim);
        let (prefix, held) = (self.prefix.len_of(Axis(1)), self.looked_back_on());
        let tokens = held + own;
        let mut tensor = Tensor::<f32>::new(&Allocator::default(), [1, kv_heads, tokens, dim])?;
        let (_, values) = tensor.try_extract_tensor_mut::<f32>()?;
        for (plane, values) in planes.zip(values.chunks_exact_mut((tokens * dim).max(1))) {
            let (before, own) = values.split_at_mut(held * dim);
            let (before, past) = before.split_at_mut(prefix * dim);
            before.iter_mut().zip(self.prefix.index_axis(Axis(0), plane)).for_each(|(to, from)| *to = *from);
            self.past.read_plane(plane, past);
            own.fill(0.0);
        }
        Ok(tensor.into_dyn())
    }

    /// Puts a tile's keys and values where later tiles look back on them.
    fn remember(
        &self,
        past: &mut LayerPast,
        made: &[ArrayView4<f32>],
        tokens: Range<usize>,
    ) -> Result<(), ort::Error> {
        if self.own_room() == 0 {
            return Ok(());
        }
        let held = self.looked_back_on();
        for (past, made) in past.iter_mut().zip(made) {
            let past = past.try_extract_array_mut::<f32>()?;
            let mut past = past.into_dimensionality::<Ix4>().map_err(ort_error)?;
            past.slice_mut(s![.., .., held + tokens.start..held + tokens.end, ..]).assign(made);
        }
        Ok(())
    }
}

/// Nothing, `[batch, kv_heads, 0, head_dim]`.
fn empty(batch: usize, shape: &Shape) -> Result<DynValue, ort::Error> {
    let (kv_heads, dim) = (shape.decoder.kv_heads, shape.decoder.head_dim);
    Ok(Tensor::<f32>::new(&Allocator::default(), [batch, kv_heads, 0, dim])?.into_dyn())
}

/// What a layer made, if all of it is numbers: nothing else can be stored or compared.
fn finite<'a>(made: &'a DynValue, what: &str) -> Result<ArrayView4<'a, f32>, ort::Error> {
    let values = made.try_extract_array::<f32>()?.into_dimensionality::<Ix4>().map_err(ort_error)?;
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err(ort_error(format_args!("{what} hold a value that is not finite"))),
    }
}

/// Holds the contract's frequencies, by which keys are moved, to those that the graph turns by.
fn check_rotary(decoder: &Decoder, model: &onnx::ModelProto) -> Result<(), ModelError> {
    let graph = model.graph.iter();
    let turns = graph
        .clone()
        .flat_map(|graph| &graph.node)
        .any(|node| node.output.iter().any(|name| name == cut::COS));
    let frequencies = decoder.rotary.as_ref().map(|rotary| &rotary.frequencies);
    let bytes: Option<Vec<u8>> = frequencies.map(|all| all.iter().flat_map(|f| f.to_le_bytes()).collect());
    let in_graph = graph.flat_map(|graph| &graph.initializer).any(|tensor| tensor.raw_data == bytes);
    if turns == bytes.is_some() && (!turns || in_graph) {
        return Ok(());
    }
    let declared = match frequencies {
        Some(_) => "these decoder.rotary.frequencies",
        None => "no decoder.rotary",
    };
    let (graph, declared) = (decoder.graph.clone(), declared.to_owned());
    let found = if turns { "others to turn keys by" } else { "learned positions" };
    Err(ContractError::IoMismatch { graph, declared, found: found.to_owned() }.into())
}

/// What the file says that its graph takes and gives. It is never one session: its stages are.
fn io_of(model: &onnx::ModelProto) -> Vec<IoTensor> {
    let Some(graph) = &model.graph else { return Vec::new() };
    let tensor = |side: Side, info: &ValueInfoProto| {
        let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let dtype = match tensor.map(|tensor| DataType::try_from(tensor.elem_type)) {
            Some(Ok(DataType::Float)) => "f32",
            Some(Ok(DataType::Float16)) => "f16",
            Some(Ok(DataType::Int64)) => "i64",
            _ => "of another type",
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
