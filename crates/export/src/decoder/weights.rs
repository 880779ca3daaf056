//! A decoder's weights: out of the checkpoint, into the form that the graph uses.
//! Knows nothing of what the graph does with them.

use thresher_core::model::contract::Weights;

use super::names::{Names, Qkv, is_ignored, prefix};
use super::{Decoder, NormKind};
use crate::{
    ExportError,
    graph::Stored,
    linear::Linear,
    weights::{Checkpoint, Tensor},
    write::WeightFile,
};

/// A decoder's weights as they lie in the weights file.
#[derive(Debug)]
pub struct DecoderWeights {
    /// `[vocab, d]`
    pub(super) embedding: Stored,
    /// `[context, d]`: learned places.
    pub(super) places: Option<Stored>,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) norm: Norm,
    /// `[vocab, d]`; the embedding where both are one.
    pub(super) output: Stored,
}

#[derive(Debug)]
pub(super) struct LayerWeights {
    pub(super) attention_norm: Norm,
    /// All queries, all keys, all values side by side: `[d, (heads + 2 kv_heads) head_dim]`.
    pub(super) qkv: Linear,
    /// Scales `[head_dim]` that queries and keys are normalised with.
    pub(super) qk_norms: Option<[Stored; 2]>,
    pub(super) attention_out: Linear,
    pub(super) mlp_norm: Norm,
    /// What goes through the activation, and beside it what a gated one is multiplied with.
    pub(super) up: Linear,
    pub(super) down: Linear,
}

/// Scale and, for layer normalisation, bias: `[d]` each.
#[derive(Debug)]
pub(super) struct Norm {
    pub(super) scale: Stored,
    pub(super) bias: Option<Stored>,
}

impl Decoder {
    /// Moves the weights from `checkpoint` to `out`, in the form that the graph uses. `progress` is told of each layer.
    ///
    /// # Errors
    /// A tensor is missing, of another shape than the configuration says, or not one of this architecture; a file fails.
    pub fn store(
        &self,
        checkpoint: &Checkpoint,
        out: &mut WeightFile,
        weights: Weights,
        progress: &dyn Fn(usize, usize),
    ) -> Result<DecoderWeights, ExportError> {
        let names = self.family.names();
        let mut mover =
            Mover { decoder: self, names, prefix: prefix(checkpoint, names), checkpoint, out, weights };
        let table = [self.vocab_size, self.hidden];
        let embedding = mover.table(names.embedding, &table)?;
        let places = names.places.map(|places| mover.table(places, &[self.context_tokens_max, self.hidden]));
        let places = places.transpose()?;
        let mut layers = Vec::with_capacity(self.layers);
        for layer in 0..self.layers {
            progress(layer, self.layers);
            layers.push(mover.layer(layer)?);
        }
        progress(self.layers, self.layers);
        let norm = mover.norm(names.final_norm)?;
        let output = match self.tied {
            true => embedding.clone(),
            false => {
                // The output stands beside the model, not in it.
                mover.prefix = "";
                mover.table(names.output, &table)?
            }
        };
        match checkpoint.unread(|key| is_ignored(key, self)) {
            Some(key) => Err(ExportError::TensorUnknown {
                file: checkpoint.listing().to_owned(),
                key: key.to_owned(),
                architecture: self.architecture.to_owned(),
            }),
            None => Ok(DecoderWeights { embedding, places, layers, norm, output }),
        }
    }
}

/// Reads tensors by the checkpoint's names and stores them by the same.
struct Mover<'a> {
    decoder: &'a Decoder,
    names: &'static Names,
    prefix: &'static str,
    checkpoint: &'a Checkpoint,
    out: &'a mut WeightFile,
    weights: Weights,
}

impl Mover<'_> {
    fn layer(&mut self, layer: usize) -> Result<LayerWeights, ExportError> {
        let (decoder, names) = (self.decoder, self.names);
        let name = |part: &str| format!("{}.{layer}.{part}", names.layers);
        let (d, inner) = (decoder.hidden, decoder.intermediate);
        let (queries, _) = decoder.widths();
        let biases = decoder.biases;
        Ok(LayerWeights {
            attention_norm: self.norm(&name(names.attention_norm))?,
            qkv: self.qkv(&name)?,
            qk_norms: self.qk_norms(&name)?,
            attention_out: self.linear(&name(names.attention_out), (queries, d), biases.attention_out)?,
            mlp_norm: self.norm(&name(names.mlp_norm))?,
            up: match decoder.gated {
                true => self.side_by_side(
                    &name("mlp.up_and_gate"),
                    &[(name(names.up), inner), (name(names.gate), inner)],
                    biases.mlp,
                )?,
                false => self.linear(&name(names.up), (d, inner), biases.mlp)?,
            },
            down: self.linear(&name(names.down), (inner, d), biases.mlp)?,
        })
    }

    fn read(&self, name: &str, dims: &[usize]) -> Result<Tensor, ExportError> {
        self.checkpoint.read(&format!("{}{name}", self.prefix), dims)
    }

    fn table(&mut self, name: &str, dims: &[usize]) -> Result<Stored, ExportError> {
        let name = format!("{name}.weight");
        let table = self.read(&name, dims)?;
        match self.weights {
            Weights::F16 => self.out.push_f16(&name, dims, &table.values),
            _ => self.out.push(&name, dims, &table.values),
        }
    }

    fn vector(&mut self, name: &str, size: usize) -> Result<Stored, ExportError> {
        let vector = self.read(name, &[size])?;
        self.out.push(name, &[size], &vector.values)
    }

    fn norm(&mut self, name: &str) -> Result<Norm, ExportError> {
        let d = self.decoder.hidden;
        let scale = self.vector(&format!("{name}.weight"), d)?;
        let bias = match self.decoder.norm {
            NormKind::Layer => Some(self.vector(&format!("{name}.bias"), d)?),
            NormKind::Rms => None,
        };
        Ok(Norm { scale, bias })
    }

    fn bias(&self, name: &str, size: usize, has_one: bool) -> Result<Option<Tensor>, ExportError> {
        has_one.then(|| self.read(&format!("{name}.bias"), &[size])).transpose()
    }

    /// A layer's weight as it is multiplied with, `[in, out]`.
    fn weight(&self, name: &str, (inputs, outputs): (usize, usize)) -> Result<Tensor, ExportError> {
        let name = format!("{name}.weight");
        match self.decoder.family.stores_columns() {
            true => self.read(&name, &[inputs, outputs]),
            false => Ok(self.read(&name, &[outputs, inputs])?.transposed()),
        }
    }

    fn linear(
        &mut self,
        name: &str,
        (inputs, outputs): (usize, usize),
        has_bias: bool,
    ) -> Result<Linear, ExportError> {
        let weight = self.weight(name, (inputs, outputs))?;
        let bias = self.bias(name, outputs, has_bias)?;
        Linear::store(self.out, name, (&weight, bias.as_ref()), self.weights)
    }

    /// Layers over the same hidden state as one, their outputs side by side.
    fn side_by_side(
        &mut self,
        name: &str,
        parts: &[(String, usize)],
        has_bias: bool,
    ) -> Result<Linear, ExportError> {
        let d = self.decoder.hidden;
        let outputs = parts.iter().map(|(_, outputs)| outputs).sum();
        let mut weight = Tensor { dims: vec![outputs, d], values: Vec::with_capacity(outputs * d) };
        let mut bias = Tensor { dims: vec![outputs], values: Vec::new() };
        for (part, outputs) in parts {
            weight.values.extend(self.read(&format!("{part}.weight"), &[*outputs, d])?.values);
            bias.values.extend(self.bias(part, *outputs, has_bias)?.into_iter().flat_map(|bias| bias.values));
        }
        Linear::store(self.out, name, (&weight.transposed(), has_bias.then_some(&bias)), self.weights)
    }

    fn qkv(&mut self, name: &impl Fn(&str) -> String) -> Result<Linear, ExportError> {
        let (queries, keys) = self.decoder.widths();
        let has_bias = self.decoder.biases.qkv;
        match self.names.qkv {
            Qkv::Apart { parts: [q, k, v], .. } => {
                let parts = [(name(q), queries), (name(k), keys), (name(v), keys)];
                self.side_by_side(&name("self_attn.qkv"), &parts, has_bias)
            }
            Qkv::Joined(joined) => {
                self.linear(&name(joined), (self.decoder.hidden, queries + 2 * keys), has_bias)
            }
            Qkv::ByHead(joined) => {
                let (name, outputs) = (name(joined), queries + 2 * keys);
                let weight = self.read(&format!("{name}.weight"), &[outputs, self.decoder.hidden])?;
                let bias = self.bias(&name, outputs, has_bias)?;
                let (weight, bias) = (self.by_part(weight), bias.map(|bias| self.by_part(bias)));
                Linear::store(self.out, &name, (&weight.transposed(), bias.as_ref()), self.weights)
            }
        }
    }

    /// Rows of each head's query, key and value → rows of all queries, all keys, all values.
    fn by_part(&self, tensor: Tensor) -> Tensor {
        let per_row = tensor.dims[1..].iter().product::<usize>();
        let head = self.decoder.head_dim * per_row;
        let of_part = |part: usize| tensor.values.chunks(head).skip(part).step_by(3);
        let values = (0..3).flat_map(of_part).flatten().copied().collect();
        Tensor { values, dims: tensor.dims.clone() }
    }

    fn qk_norms(&mut self, name: &impl Fn(&str) -> String) -> Result<Option<[Stored; 2]>, ExportError> {
        match self.names.qkv {
            Qkv::Apart { norms: [q, k], .. } if self.decoder.qk_norm => {
                let size = self.decoder.head_dim;
                let q = self.vector(&format!("{}.weight", name(q)), size)?;
                Ok(Some([q, self.vector(&format!("{}.weight", name(k)), size)?]))
            }
            _ => Ok(None),
        }
    }
}
