//! An encoder's weights: how they are copied from a checkpoint into the form that the graphs use. Does not
//! know what the graphs do with them.

use thresher_core::model::contract::Weights;

use super::{Encoder, Positions, colbert::Projection, names::Names, relative};
use crate::{
    ExportError,
    graph::{GraphBuilder, StoredTensor, Value},
    linear::Linear,
    weights::{ByteColumns, ByteTable, Checkpoint, Tensor},
    write::WeightFile,
};

#[derive(Debug)]
pub struct EncoderWeights {
    pub(super) words: Table,
    pub(super) positions: StoredPositions,
    pub(super) norm: Norm,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) final_norm: Option<Norm>,
    /// The projection of a ColBERT, `[d, its size]`.
    pub(super) projection: Option<Linear>,
}

/// The vectors of the vocabulary. They are gathered, and never multiplied as a whole.
#[derive(Debug)]
pub(super) struct Table {
    /// `[vocab, d]` as `f32`, or `[vocab, blocks, d / blocks]` as `i8`.
    pub values: StoredTensor,
    /// By what bytes are multiplied.
    pub steps: Steps,
}

#[derive(Debug)]
pub(super) enum Steps {
    /// The values are not bytes.
    None,
    One(f32),
    /// `[vocab, blocks, 1]` as `f16`, for the elements of a block.
    ByBlock(StoredTensor),
}

impl Table {
    /// Adds to the graph the vectors of `ids [b, t]` → `[b, t, d]`.
    pub fn rows(&self, g: &mut GraphBuilder, ids: &Value) -> Value {
        let values = g.weight(&self.values);
        let rows = g.gather(&values, ids);
        let rows = match &self.steps {
            Steps::None => return rows,
            Steps::One(step) => {
                let (rows, step) = (g.cast_f32(&rows), g.const_f32(*step));
                g.mul(&rows, &step)
            }
            Steps::ByBlock(steps) => {
                let steps = g.weight(steps);
                let (rows, steps) = (g.cast_f32(&rows), g.gather(&steps, ids));
                let steps = g.cast_f32(&steps);
                g.mul(&rows, &steps)
            }
        };
        let [.., blocks, block] = self.values.dims[..] else { return rows };
        g.reshape(&rows, &[0, 0, (blocks * block) as i64])
    }
}

/// What the graphs need to know where tokens are.
#[derive(Debug)]
pub(super) struct StoredPositions {
    /// `[tokens_max, d]`: the embedding of each position. The embedding of token type 0 is added to it,
    /// because a window has no second text.
    pub learned: Option<StoredTensor>,
    /// `[tokens_max]`: the numbers from 0 on.
    pub numbers: Option<StoredTensor>,
    /// `[2 tokens_max - 1, heads]`: the biases of attention logits by distance.
    pub relative_bias: Option<StoredTensor>,
}

#[derive(Debug)]
pub(super) struct LayerWeights {
    /// The query, key and value projections side by side, `[d, 3 d]`. The query's part is multiplied by
    /// 1/√(width of a head).
    pub qkv: Linear,
    pub attention_out: Linear,
    /// `None` in the first layer of ModernBERT, whose input is normalised already.
    pub attention_norm: Option<Norm>,
    /// The projection that goes through the activation; side by side with it, if the activation is gated, the
    /// gate's projection.
    pub up: Linear,
    pub down: Linear,
    pub mlp_norm: Norm,
}

/// The scale and bias of a layer normalisation, `[d]` each.
#[derive(Debug)]
pub(super) struct Norm {
    pub scale: StoredTensor,
    pub bias: StoredTensor,
}

impl Encoder {
    /// Copies the encoder's weights from `checkpoint` to `out`, in the form that the graphs use, and the
    /// projection, if there is one.
    ///
    /// With int8 weights, bytes of the checkpoint are copied. Otherwise the query, key and value projections stay `f32`,
    /// because they lose the most accuracy for the time that they save: on MiniLM the mean cosine to the exact readout is
    /// 0.9981 with them as int8 and 0.9989 without, at 1.95 and 1.6 times the speed. So does the projection of a ColBERT.
    /// With f16 weights, all linear layers of the encoder are f16; tables, normalisations and the projection stay
    /// `f32`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a tensor is missing or has another shape than the configuration implies,
    /// if a layer has a tensor that the family does not use, or if a file cannot be read or written.
    pub fn store(
        &self,
        checkpoint: &Checkpoint,
        projection: Option<&Projection>,
        out: &mut WeightFile,
        weights: Weights,
    ) -> Result<EncoderWeights, ExportError> {
        let names = self.names(|key| checkpoint.contains(key));
        let prefix = names.prefix(|key| checkpoint.contains(key));
        let mut copier =
            WeightCopier { encoder: self, checkpoint, out, names, prefix, weights, words_offset: 0.0 };
        let stored = EncoderWeights {
            words: copier.words()?,
            positions: copier.positions()?,
            norm: copier.norm(names.embedding_norm)?,
            layers: (0..self.layers).map(|layer| copier.layer(layer)).collect::<Result<_, ExportError>>()?,
            final_norm: self.pre_norm.then(|| copier.norm(names.final_norm)).transpose()?,
            projection: projection.map(|projection| projection.store(out)).transpose()?,
        };
        let layers = format!("{prefix}{}", names.layer);
        match checkpoint.first_unread(|key| !key.starts_with(&layers)) {
            Some(key) => Err(ExportError::TensorUnknown {
                file: checkpoint.listing().to_owned(),
                key: key.to_owned(),
                architecture: self.architecture.clone(),
            }),
            None => Ok(stored),
        }
    }
}

/// Copies tensors from the checkpoint to the weights file, under the names that the graphs use.
struct WeightCopier<'a> {
    encoder: &'a Encoder,
    checkpoint: &'a Checkpoint,
    out: &'a mut WeightFile,
    names: &'static Names,
    prefix: &'static str,
    /// The element type of the layers that are not always `f32`.
    weights: Weights,
    /// What is to be added to each element of the vectors of the vocabulary.
    words_offset: f32,
}

impl WeightCopier<'_> {
    fn read(&self, name: &str, dims: &[usize]) -> Result<Tensor, ExportError> {
        self.checkpoint.read(&format!("{}{name}", self.prefix), dims)
    }

    fn words(&mut self) -> Result<Table, ExportError> {
        let name = format!("{}.weight", self.names.words);
        let key = format!("{}{name}", self.prefix);
        let dims = [self.encoder.vocab_size, self.encoder.hidden];
        let adds_nothing = matches!(self.encoder.positions, Positions::Learned { .. });
        if adds_nothing && let Some(table) = self.checkpoint.byte_table(&key, &dims) {
            return self.byte_table(&name, &table);
        }
        let mut table = self.read(&name, &dims)?;
        if let Positions::Rotary { .. } = self.encoder.positions {
            self.add_token_type(&mut table)?;
        }
        Ok(Table { values: self.out.push(&name, &table.dims, &table.values)?, steps: Steps::None })
    }

    fn byte_table(&mut self, name: &str, table: &ByteTable) -> Result<Table, ExportError> {
        let (rows, blocks) = (self.encoder.vocab_size, self.encoder.hidden / table.block);
        // A vector of positions is added to each row.
        self.words_offset = table.offset;
        let steps = match table.steps[..] {
            [step] => Steps::One(step),
            _ => Steps::ByBlock(self.out.push_f16(
                &format!("{name}.step"),
                &[rows, blocks, 1],
                &table.steps,
            )?),
        };
        Ok(Table { values: self.out.push_i8(name, &[rows, blocks, table.block], &table.values)?, steps })
    }

    /// Adds the embedding of token type 0, if the encoder has token types, to each row of a table.
    fn add_token_type(&self, table: &mut Tensor) -> Result<(), ExportError> {
        let Encoder { token_types, hidden: d, .. } = *self.encoder;
        if token_types == 0 {
            return Ok(());
        }
        let types = self.read(&format!("{}.weight", self.names.token_types), &[token_types, d])?;
        for row in table.values.chunks_exact_mut(d) {
            row.iter_mut().zip(&types.values[..d]).for_each(|(value, first)| *value += first);
        }
        Ok(())
    }

    fn positions(&mut self) -> Result<StoredPositions, ExportError> {
        let Encoder { hidden: d, tokens_max, heads, .. } = *self.encoder;
        let (unused, has_relative_bias) = match self.encoder.positions {
            Positions::Rotary { .. } => {
                let numbers = Some(self.numbers()?);
                return Ok(StoredPositions { learned: None, numbers, relative_bias: None });
            }
            Positions::Learned { unused, has_relative_bias } => (unused, has_relative_bias),
        };
        let name = format!("{}.weight", self.names.positions);
        let mut table = self.read(&name, &[unused + tokens_max, d])?;
        table.values.drain(..unused * d);
        table.dims[0] = tokens_max;
        self.add_token_type(&mut table)?;
        table.values.iter_mut().for_each(|value| *value += self.words_offset);
        let learned = Some(self.out.push(&name, &table.dims, &table.values)?);
        if !has_relative_bias {
            return Ok(StoredPositions { learned, numbers: None, relative_bias: None });
        }
        let name = format!("{}.weight", self.names.relative_bias);
        let by_bucket = self.read(&name, &[2 * relative::BUCKETS, heads])?;
        let biases = relative::biases_by_distance(&by_bucket.values, heads, tokens_max);
        let relative_bias = Some(self.out.push(&name, &[2 * tokens_max - 1, heads], &biases)?);
        Ok(StoredPositions { learned, numbers: Some(self.numbers()?), relative_bias })
    }

    fn numbers(&mut self) -> Result<StoredTensor, ExportError> {
        let numbers: Vec<f32> = (0..self.encoder.tokens_max).map(|number| number as f32).collect();
        self.out.push("position_numbers", &[numbers.len()], &numbers)
    }

    fn layer(&mut self, layer: usize) -> Result<LayerWeights, ExportError> {
        let Encoder { hidden: d, intermediate, biases, pre_norm, gated, .. } = *self.encoder;
        let names = self.names;
        let name = |part: &str| format!("{}{layer}.{part}", names.layer);
        let projections = |stored, parts: &[&str], [inputs, outputs]: [usize; 2], has_bias| Projections {
            stored: name(stored),
            parts: parts.iter().map(|part| name(part)).collect(),
            inputs,
            outputs,
            has_bias,
            scaled: (0, 1.0),
            input_min: None,
            weights: self.weights,
        };
        let up_parts = if gated { 2 } else { 1 };
        let qkv = Projections {
            // Scaling the query's weights here saves scaling the logits at every run.
            scaled: (d, 1.0 / (self.encoder.head_dim() as f32).sqrt()),
            weights: if self.weights == Weights::Int8 { Weights::F32 } else { self.weights },
            ..projections(names.qkv.stored, names.qkv.parts, [d, 3 * d], biases.attention)
        };
        let attention_out =
            projections(names.attention_out, &[names.attention_out], [d, d], biases.attention);
        let up = projections(names.up.stored, names.up.parts, [d, up_parts * intermediate], biases.mlp);
        let down = Projections {
            // The product with a gate has no lowest value.
            input_min: (!gated).then(|| self.encoder.activation.lowest()),
            ..projections(names.down, &[names.down], [intermediate, d], biases.mlp)
        };
        // The order of the calls is that of the tensors in the file.
        let qkv = self.linear(&qkv)?;
        let attention_out = self.linear(&attention_out)?;
        let is_normalised = pre_norm && layer == 0;
        let attention_norm = if is_normalised { None } else { Some(self.norm(&name(names.attention_norm))?) };
        let up = self.linear(&up)?;
        let down = self.linear(&down)?;
        let mlp_norm = self.norm(&name(names.mlp_norm))?;
        Ok(LayerWeights { qkv, attention_out, attention_norm, up, down, mlp_norm })
    }

    /// Copies `name.weight` and `name.bias`, which the oldest checkpoints call `name.gamma` and `name.beta`. A
    /// normalisation without a bias gets one of zeros.
    fn norm(&mut self, name: &str) -> Result<Norm, ExportError> {
        let d = self.encoder.hidden;
        let is_old = self.checkpoint.contains(&format!("{}{name}.gamma", self.prefix));
        let (weight, bias) = if is_old { ("gamma", "beta") } else { ("weight", "bias") };
        let weight = self.read(&format!("{name}.{weight}"), &[d])?;
        let bias = if self.encoder.biases.norm {
            self.read(&format!("{name}.{bias}"), &[d])?.values
        } else {
            vec![0.0; d]
        };
        Ok(Norm {
            scale: self.out.push(&format!("{name}.weight"), &[d], &weight.values)?,
            bias: self.out.push(&format!("{name}.bias"), &[d], &bias)?,
        })
    }

    /// Copies projections of the same vectors side by side.
    fn linear(&mut self, layer: &Projections) -> Result<Linear, ExportError> {
        let columns = if self.weights == Weights::Int8 { self.byte_columns(layer) } else { None };
        let part_outputs = layer.part_outputs();
        let (scaled, scale) = layer.scaled;
        let mut weight = Vec::new();
        if columns.is_none() {
            weight.reserve_exact(layer.outputs * layer.inputs);
            for part in &layer.parts {
                weight.extend(self.read(&format!("{part}.weight"), &[part_outputs, layer.inputs])?.values);
            }
            weight[..scaled * layer.inputs].iter_mut().for_each(|value| *value *= scale);
        }
        let mut bias = None;
        if layer.has_bias {
            let mut values = Vec::with_capacity(layer.outputs);
            for part in &layer.parts {
                values.extend(self.read(&format!("{part}.bias"), &[part_outputs])?.values);
            }
            values[..scaled].iter_mut().for_each(|value| *value *= scale);
            bias = Some(Tensor { dims: vec![layer.outputs], values });
        }
        let (out, name, bias) = (&mut *self.out, &layer.stored, bias.as_ref());
        match columns {
            Some(columns) => Linear::store_bytes(out, name, &columns, bias, layer.input_min),
            None => {
                let dims = vec![layer.outputs, layer.inputs];
                let weight = Tensor { dims, values: weight }.transposed();
                Linear::store_bounded(out, name, &weight, bias, layer.weights, layer.input_min)
            }
        }
    }

    /// Returns the matrix of the layer as bytes, if the checkpoint has all parts so.
    fn byte_columns(&self, layer: &Projections) -> Option<ByteColumns> {
        let (inputs, outputs) = (layer.inputs, layer.part_outputs());
        let part = |name: &String| {
            let key = format!("{}{name}.weight", self.prefix);
            self.checkpoint.byte_columns(&key, &[outputs, inputs])
        };
        let parts = layer.parts.iter().map(part).collect::<Option<Vec<ByteColumns>>>()?;
        let (scaled, scale) = layer.scaled;
        let rows = (0..inputs)
            .flat_map(|row| parts.iter().map(move |part| &part.values[row * outputs..][..outputs]));
        let values = rows.flatten().copied().collect();
        let mut scales: Vec<f32> = parts.iter().flat_map(|part| part.scales.iter().copied()).collect();
        scales[..scaled].iter_mut().for_each(|of_column| *of_column *= scale);
        Some(ByteColumns { values, scales })
    }
}

/// A linear layer of the graphs: one or more of the checkpoint, side by side.
struct Projections {
    /// The name in the exported file.
    stored: String,
    /// The names in the checkpoint.
    parts: Vec<String>,
    inputs: usize,
    outputs: usize,
    has_bias: bool,
    /// How many of the first outputs are multiplied, and by what. A checkpoint may store queries, keys and values as one part.
    scaled: (usize, f32),
    /// The lowest value of the inputs, if it is known.
    input_min: Option<f32>,
    /// The element type, if the checkpoint's bytes are not used.
    weights: Weights,
}

impl Projections {
    fn part_outputs(&self) -> usize {
        self.outputs / self.parts.len()
    }
}
