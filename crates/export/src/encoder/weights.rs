//! An encoder's weights: how they are copied from a checkpoint into the form that the graphs use. Does not
//! know what the graphs do with them.

use thresher_core::model::contract::Weights;

use super::{Encoder, Positions, colbert::Projection, names::Joined, names::Names, relative};
use crate::{
    ExportError,
    graph::{GraphBuilder, StoredTensor, Value},
    linear::Linear,
    weights::{ByteTable, Checkpoint, Tensor},
    write::WeightFile,
};

/// An encoder's weights in the weights file.
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
    /// `[vocab, blocks, 1]` as `f16`: by what the elements of a block of bytes are multiplied.
    pub steps: Option<StoredTensor>,
}

impl Table {
    /// Adds to the graph the vectors of `ids [b, t]` → `[b, t, d]`.
    pub fn rows(&self, g: &mut GraphBuilder, ids: &Value) -> Value {
        let values = g.weight(&self.values);
        let rows = g.gather(&values, ids);
        let Some(steps) = &self.steps else { return rows };
        let steps = g.weight(steps);
        let (rows, steps) = (g.cast_f32(&rows), g.gather(&steps, ids));
        let steps = g.cast_f32(&steps);
        let rows = g.mul(&rows, &steps);
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
    /// With int8 weights, the query, key and value projections stay `f32`, because they lose the most
    /// accuracy for the time that they save: on MiniLM the mean cosine to the exact readout is 0.9981 with
    /// them as int8 and 0.9989 without, at 1.95 and 1.6 times the speed. So does the projection of a ColBERT.
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
        let mut copier = WeightCopier { encoder: self, checkpoint, out, names, prefix, weights };
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
}

impl WeightCopier<'_> {
    fn read(&self, name: &str, dims: &[usize]) -> Result<Tensor, ExportError> {
        self.checkpoint.read(&format!("{}{name}", self.prefix), dims)
    }

    fn words(&mut self) -> Result<Table, ExportError> {
        let name = format!("{}.weight", self.names.words);
        let key = format!("{}{name}", self.prefix);
        let adds_nothing = matches!(self.encoder.positions, Positions::Learned { .. });
        if adds_nothing && let Some(table) = self.checkpoint.byte_table(&key) {
            return self.byte_table(&name, &table);
        }
        let mut table = self.read(&name, &[self.encoder.vocab_size, self.encoder.hidden])?;
        if let Positions::Rotary { .. } = self.encoder.positions {
            self.add_token_type(&mut table)?;
        }
        Ok(Table { values: self.out.push(&name, &table.dims, &table.values)?, steps: None })
    }

    fn byte_table(&mut self, name: &str, table: &ByteTable) -> Result<Table, ExportError> {
        let (rows, blocks) = (self.encoder.vocab_size, self.encoder.hidden / table.block);
        let steps = self.out.push_f16(&format!("{name}.step"), &[rows, blocks, 1], &table.steps)?;
        Ok(Table {
            values: self.out.push_i8(name, &[rows, blocks, table.block], &table.values)?,
            steps: Some(steps),
        })
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
        let up_parts = if gated { 2 } else { 1 };
        // The order of the calls is that of the tensors in the file.
        let qkv = self.qkv(&name)?;
        let attention_out = self.linear(&name(names.attention_out), [d, d], biases.attention, None)?;
        let is_normalised = pre_norm && layer == 0;
        let attention_norm = if is_normalised { None } else { Some(self.norm(&name(names.attention_norm))?) };
        let (weight, bias) = self.joined(&names.up, &name, [d, up_parts * intermediate], biases.mlp)?;
        let stored = name(names.up.stored);
        let up = Linear::store(self.out, &stored, (&weight.transposed(), bias.as_ref()), self.weights)?;
        // The product with a gate has no lowest value.
        let down_min = (!gated).then(|| self.encoder.activation.lowest());
        let down = self.linear(&name(names.down), [intermediate, d], biases.mlp, down_min)?;
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

    fn linear(
        &mut self,
        name: &str,
        [inputs, outputs]: [usize; 2],
        has_bias: bool,
        input_min: Option<f32>,
    ) -> Result<Linear, ExportError> {
        let weight = self.read(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = has_bias.then(|| self.read(&format!("{name}.bias"), &[outputs])).transpose()?;
        let weight = weight.transposed();
        Linear::store_bounded(self.out, name, &weight, bias.as_ref(), self.weights, input_min)
    }

    fn qkv(&mut self, name: &impl Fn(&str) -> String) -> Result<Linear, ExportError> {
        let (d, joined) = (self.encoder.hidden, &self.names.qkv);
        let (mut weight, mut bias) = self.joined(joined, name, [d, 3 * d], self.encoder.biases.attention)?;
        // Scaling the query's weights here saves scaling the logits at every run.
        let scale = 1.0 / (self.encoder.head_dim() as f32).sqrt();
        weight.values[..d * d].iter_mut().for_each(|value| *value *= scale);
        if let Some(bias) = &mut bias {
            bias.values[..d].iter_mut().for_each(|value| *value *= scale);
        }
        let stored = name(joined.stored);
        let weights = if self.weights == Weights::F16 { Weights::F16 } else { Weights::F32 };
        Linear::store(self.out, &stored, (&weight.transposed(), bias.as_ref()), weights)
    }

    /// Reads projections and joins them: `weight [outputs, inputs]`, where `outputs` are those of all parts,
    /// and `bias [outputs]`.
    fn joined(
        &self,
        joined: &Joined,
        name: &impl Fn(&str) -> String,
        [inputs, outputs]: [usize; 2],
        has_bias: bool,
    ) -> Result<(Tensor, Option<Tensor>), ExportError> {
        let rows = outputs / joined.parts.len();
        let (mut weight, mut bias) = (Vec::with_capacity(outputs * inputs), Vec::new());
        for part in joined.parts.iter().map(|part| name(part)) {
            weight.extend(self.read(&format!("{part}.weight"), &[rows, inputs])?.values);
            if has_bias {
                bias.extend(self.read(&format!("{part}.bias"), &[rows])?.values);
            }
        }
        let weight = Tensor { dims: vec![outputs, inputs], values: weight };
        Ok((weight, has_bias.then(|| Tensor { dims: vec![outputs], values: bias })))
    }
}
