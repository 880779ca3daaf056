//! BERT's weights: out of the checkpoint, into the form that the graphs use.
//! Knows nothing of what the graphs do with them.

use thresher_core::model::contract::Weights;

use super::Bert;
use crate::ExportError;
use crate::graph::Stored;
use crate::linear::Linear;
use crate::weights::{Checkpoint, Tensor};
use crate::write::WeightFile;

/// The encoder's weights as they lie in the weights file.
#[derive(Debug)]
pub struct BertWeights {
    pub(super) words: Stored,
    /// Positions with the embedding of token type 0 added: a window has no second text.
    pub(super) positions: Stored,
    pub(super) norm: Norm,
    pub(super) layers: Vec<LayerWeights>,
}

#[derive(Debug)]
pub(super) struct LayerWeights {
    /// Query, key and value side by side, `[d, 3 d]`; the query's part has 1/√width in it.
    pub(super) qkv: Linear,
    pub(super) attention_out: Linear,
    pub(super) attention_norm: Norm,
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) norm: Norm,
}

/// Scale and bias `[d]` of a layer normalisation.
#[derive(Debug)]
pub(super) struct Norm {
    pub(super) scale: Stored,
    pub(super) bias: Stored,
}

impl Bert {
    /// Moves the encoder's weights from `checkpoint` to `out`, in the form that the graphs use.
    ///
    /// With int8 weights, query, key and value stay `f32`: on MiniLM they cost most accuracy for the time they save
    /// (mean cosine to the exact readout 0.9974 with them as bytes, 0.9985 without; 2.1 and 1.7 times as fast).
    ///
    /// # Errors
    /// A tensor is missing or of another shape than the configuration says, or a file fails.
    pub fn store(
        &self,
        checkpoint: &Checkpoint,
        out: &mut WeightFile,
        weights: Weights,
    ) -> Result<BertWeights, ExportError> {
        let prefixed = checkpoint.contains("bert.embeddings.word_embeddings.weight");
        let prefix = if prefixed { "bert." } else { "" };
        let mut mover = Mover { checkpoint, out, prefix, weights };
        let (d, inner) = (self.hidden, self.intermediate);
        Ok(BertWeights {
            words: mover.table("embeddings.word_embeddings.weight", &[self.vocab_size, d])?,
            positions: mover.positions(self)?,
            norm: mover.norm("embeddings.LayerNorm", d)?,
            layers: (0..self.layers)
                .map(|layer| {
                    let name = |part: &str| format!("encoder.layer.{layer}.{part}");
                    Ok(LayerWeights {
                        qkv: mover.qkv(&name("attention.self"), self)?,
                        attention_out: mover.linear(&name("attention.output.dense"), d, d)?,
                        attention_norm: mover.norm(&name("attention.output.LayerNorm"), d)?,
                        up: mover.linear(&name("intermediate.dense"), d, inner)?,
                        down: mover.linear(&name("output.dense"), inner, d)?,
                        norm: mover.norm(&name("output.LayerNorm"), d)?,
                    })
                })
                .collect::<Result<_, ExportError>>()?,
        })
    }
}

/// Reads tensors by the checkpoint's names and stores them by ours.
struct Mover<'a> {
    checkpoint: &'a Checkpoint,
    out: &'a mut WeightFile,
    prefix: &'static str,
    /// Of the layers that are not always `f32`.
    weights: Weights,
}

impl Mover<'_> {
    fn read(&self, name: &str, dims: &[usize]) -> Result<Tensor, ExportError> {
        self.checkpoint.read(&format!("{}{name}", self.prefix), dims)
    }

    fn table(&mut self, name: &str, dims: &[usize]) -> Result<Stored, ExportError> {
        let table = self.read(name, dims)?;
        self.out.push(name, dims, &table.values)
    }

    fn positions(&mut self, bert: &Bert) -> Result<Stored, ExportError> {
        let (d, name) = (bert.hidden, "embeddings.position_embeddings.weight");
        let mut table = self.read(name, &[bert.positions, d])?;
        let types = self.read("embeddings.token_type_embeddings.weight", &[bert.token_types, d])?;
        for row in table.values.chunks_exact_mut(d) {
            row.iter_mut().zip(&types.values[..d]).for_each(|(value, first)| *value += first);
        }
        self.out.push(name, &table.dims, &table.values)
    }

    /// `name.weight` and `name.bias`, which the oldest checkpoints call gamma and beta.
    fn norm(&mut self, name: &str, d: usize) -> Result<Norm, ExportError> {
        let old = self.checkpoint.contains(&format!("{}{name}.gamma", self.prefix));
        let (weight, bias) = if old { ("gamma", "beta") } else { ("weight", "bias") };
        let weight = self.read(&format!("{name}.{weight}"), &[d])?;
        let bias = self.read(&format!("{name}.{bias}"), &[d])?;
        Ok(Norm {
            scale: self.out.push(&format!("{name}.weight"), &[d], &weight.values)?,
            bias: self.out.push(&format!("{name}.bias"), &[d], &bias.values)?,
        })
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, ExportError> {
        let weight = self.read(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = self.read(&format!("{name}.bias"), &[outputs])?;
        Linear::store(self.out, name, (&weight.transposed(), Some(&bias)), self.weights)
    }

    fn qkv(&mut self, name: &str, bert: &Bert) -> Result<Linear, ExportError> {
        let d = bert.hidden;
        let mut joined = Tensor { dims: vec![3 * d, d], values: Vec::with_capacity(3 * d * d) };
        let mut biases = Tensor { dims: vec![3 * d], values: Vec::with_capacity(3 * d) };
        // Scaling the query's weights once saves scaling its logits at every run.
        let query_scale = 1.0 / ((d / bert.heads) as f32).sqrt();
        for (part, scale) in [("query", query_scale), ("key", 1.0), ("value", 1.0)] {
            let weight = self.read(&format!("{name}.{part}.weight"), &[d, d])?;
            let bias = self.read(&format!("{name}.{part}.bias"), &[d])?;
            joined.values.extend(weight.values.iter().map(|value| value * scale));
            biases.values.extend(bias.values.iter().map(|value| value * scale));
        }
        Linear::store(self.out, &format!("{name}.qkv"), (&joined.transposed(), Some(&biases)), Weights::F32)
    }
}
