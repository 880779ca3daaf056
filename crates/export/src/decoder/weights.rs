//! A decoder's weights: their names in the checkpoints of each family, and how they are copied into the form
//! that the graph uses. Does not know what the graph does with them.

use thresher_core::model::contract::Weights;

use super::{Decoder, Family, NormKind};
use crate::{
    ExportError,
    graph::StoredTensor,
    linear::Linear,
    weights::{Checkpoint, Tensor},
    write::WeightFile,
};

#[derive(Debug)]
pub struct DecoderWeights {
    /// `[vocab, d]`: a row for each token.
    pub(super) embedding: StoredTensor,
    /// `[context, d]`: learned position embeddings.
    pub(super) positions: Option<StoredTensor>,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) norm: Norm,
    /// `[vocab, d]`: the output projection; the same tensor as `embedding` if the two are tied.
    pub(super) output: StoredTensor,
}

#[derive(Debug)]
pub(super) struct LayerWeights {
    pub(super) attention_norm: Norm,
    /// The projections to all queries, all keys and all values, side by side: `[d, (heads + 2 kv_heads)
    /// head_dim]`.
    pub(super) qkv: Linear,
    /// The scales `[head_dim]` with which queries and keys are normalised.
    pub(super) qk_norms: Option<[StoredTensor; 2]>,
    pub(super) attention_out: Linear,
    /// The normalisation of the attention's output before it is added to the hidden state.
    pub(super) attention_out_norm: Option<Norm>,
    pub(super) mlp_norm: Norm,
    /// The projection that goes through the activation; side by side with it, if the activation is gated, the
    /// gate's projection.
    pub(super) up: Linear,
    pub(super) down: Linear,
    /// The normalisation of the feed-forward part's output before it is added to the hidden state.
    pub(super) mlp_out_norm: Option<Norm>,
}

/// The scale and, for layer normalisation, the bias: `[d]` each.
#[derive(Debug)]
pub(super) struct Norm {
    pub(super) scale: StoredTensor,
    pub(super) bias: Option<StoredTensor>,
}

impl Decoder {
    /// Copies the weights from `checkpoint` to `out`, in the form that the graph uses. `progress` is called
    /// before each layer and at the end, with the number of layers that are done and the number of all
    /// layers.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a tensor is missing, has another shape than the configuration implies,
    /// or does not belong to this architecture, or if a file cannot be read or written.
    pub fn store(
        &self,
        checkpoint: &Checkpoint,
        out: &mut WeightFile,
        weights: Weights,
        progress: &dyn Fn(usize, usize),
    ) -> Result<DecoderWeights, ExportError> {
        let names = self.family.tensor_names();
        let prefix = prefix(checkpoint, names);
        let mut copier = WeightCopier { decoder: self, names, prefix, checkpoint, out, weights };
        let table = [self.vocab_size, self.hidden];
        let embedding = copier.table(names.embedding, &table)?;
        let positions_dims = [self.context_tokens_max, self.hidden];
        let positions = names.positions.map(|positions| copier.table(positions, &positions_dims));
        let positions = positions.transpose()?;
        let mut layers = Vec::with_capacity(self.layers);
        for layer in 0..self.layers {
            progress(layer, self.layers);
            layers.push(copier.layer(layer)?);
        }
        progress(self.layers, self.layers);
        let norm = copier.norm(names.final_norm)?;
        let output = if self.tied_embedding {
            embedding.clone()
        } else {
            // The output projection is not part of the inner model, so its name has no prefix.
            copier.prefix = "";
            copier.table(names.output, &table)?
        };
        match checkpoint.first_unread(|key| is_ignored(key, self)) {
            Some(key) => Err(ExportError::TensorUnknown {
                file: checkpoint.listing().to_owned(),
                key: key.to_owned(),
                architecture: self.architecture.to_owned(),
            }),
            None => Ok(DecoderWeights { embedding, positions, layers, norm, output }),
        }
    }
}

/// Copies tensors from the checkpoint to the weights file, under the same names.
struct WeightCopier<'a> {
    decoder: &'a Decoder,
    names: &'static TensorNames,
    prefix: &'static str,
    checkpoint: &'a Checkpoint,
    out: &'a mut WeightFile,
    weights: Weights,
}

impl WeightCopier<'_> {
    fn layer(&mut self, layer: usize) -> Result<LayerWeights, ExportError> {
        let (decoder, names) = (self.decoder, self.names);
        let name = |part: &str| format!("{}.{layer}.{part}", names.layers);
        let (d, inner) = (decoder.hidden, decoder.intermediate);
        let (queries, _) = decoder.qk_widths();
        let biases = decoder.biases;
        let [attention_out_norm, mlp_out_norm] = match names.out_norms {
            Some(norms) => norms.map(|norm| Some(name(norm))),
            None => [None, None],
        };
        Ok(LayerWeights {
            attention_norm: self.norm(&name(names.attention_norm))?,
            qkv: self.qkv(&name)?,
            qk_norms: self.qk_norms(&name)?,
            attention_out: self.linear(&name(names.attention_out), queries, d, biases.attention_out)?,
            attention_out_norm: attention_out_norm.map(|name| self.norm(&name)).transpose()?,
            mlp_norm: self.norm(&name(names.mlp_norm))?,
            up: if decoder.gated {
                self.side_by_side(
                    &name("mlp.up_and_gate"),
                    &[(name(names.up), inner), (name(names.gate), inner)],
                    biases.mlp,
                )?
            } else {
                self.linear(&name(names.up), d, inner, biases.mlp)?
            },
            down: self.linear(&name(names.down), inner, d, biases.mlp)?,
            mlp_out_norm: mlp_out_norm.map(|name| self.norm(&name)).transpose()?,
        })
    }

    fn read(&self, name: &str, dims: &[usize]) -> Result<Tensor, ExportError> {
        self.checkpoint.read(&format!("{}{name}", self.prefix), dims)
    }

    fn table(&mut self, name: &str, dims: &[usize]) -> Result<StoredTensor, ExportError> {
        let name = format!("{name}.weight");
        let table = self.read(&name, dims)?;
        match self.weights {
            Weights::F16 => self.out.push_f16(&name, dims, &table.values),
            _ => self.out.push(&name, dims, &table.values),
        }
    }

    fn vector(&mut self, name: &str, size: usize) -> Result<StoredTensor, ExportError> {
        let vector = self.read(name, &[size])?;
        self.out.push(name, &[size], &vector.values)
    }

    fn norm(&mut self, name: &str) -> Result<Norm, ExportError> {
        let d = self.decoder.hidden;
        let scale = self.norm_scale(name, d)?;
        let bias = match self.decoder.norm {
            NormKind::Layer => Some(self.vector(&format!("{name}.bias"), d)?),
            NormKind::Rms | NormKind::RmsPlusOne => None,
        };
        Ok(Norm { scale, bias })
    }

    /// Copies the scale of a normalisation. The stored scale is the whole factor, so that the graph is the same
    /// for all kinds of scales.
    fn norm_scale(&mut self, name: &str, size: usize) -> Result<StoredTensor, ExportError> {
        let name = format!("{name}.weight");
        let mut scale = self.read(&name, &[size])?;
        if self.decoder.norm == NormKind::RmsPlusOne {
            scale.values.iter_mut().for_each(|value| *value += 1.0);
        }
        self.out.push(&name, &[size], &scale.values)
    }

    fn bias(&self, name: &str, size: usize, has_one: bool) -> Result<Option<Tensor>, ExportError> {
        has_one.then(|| self.read(&format!("{name}.bias"), &[size])).transpose()
    }

    /// Reads the weight of a linear layer as `[in, out]`.
    fn weight(&self, name: &str, inputs: usize, outputs: usize) -> Result<Tensor, ExportError> {
        let name = format!("{name}.weight");
        if self.decoder.family.stores_in_out() {
            self.read(&name, &[inputs, outputs])
        } else {
            Ok(self.read(&name, &[outputs, inputs])?.transposed())
        }
    }

    fn linear(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        has_bias: bool,
    ) -> Result<Linear, ExportError> {
        let weight = self.weight(name, inputs, outputs)?;
        let bias = self.bias(name, outputs, has_bias)?;
        Linear::store(self.out, name, (&weight, bias.as_ref()), self.weights)
    }

    /// Joins linear layers that read the same hidden state into one layer, with their outputs side by side.
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
        let (queries, keys) = self.decoder.qk_widths();
        let has_bias = self.decoder.biases.qkv;
        match self.names.qkv {
            QkvNames::Separate { parts: [q, k, v], .. } => {
                let parts = [(name(q), queries), (name(k), keys), (name(v), keys)];
                self.side_by_side(&name("self_attn.qkv"), &parts, has_bias)
            }
            QkvNames::Joined(joined) => {
                self.linear(&name(joined), self.decoder.hidden, queries + 2 * keys, has_bias)
            }
            QkvNames::JoinedByHead(joined) => {
                let (name, outputs) = (name(joined), queries + 2 * keys);
                let weight = self.read(&format!("{name}.weight"), &[outputs, self.decoder.hidden])?;
                let bias = self.bias(&name, outputs, has_bias)?;
                let (weight, bias) =
                    (self.reorder_by_part(weight), bias.map(|bias| self.reorder_by_part(bias)));
                Linear::store(self.out, &name, (&weight.transposed(), bias.as_ref()), self.weights)
            }
        }
    }

    /// Reorders rows from "query, key and value of each head" to "all queries, all keys, all values".
    fn reorder_by_part(&self, tensor: Tensor) -> Tensor {
        let per_row = tensor.dims[1..].iter().product::<usize>();
        let head = self.decoder.head_dim * per_row;
        let rows_of = |part: usize| tensor.values.chunks(head).skip(part).step_by(3);
        let values = (0..3).flat_map(rows_of).flatten().copied().collect();
        Tensor { values, dims: tensor.dims.clone() }
    }

    fn qk_norms(&mut self, name: &impl Fn(&str) -> String) -> Result<Option<[StoredTensor; 2]>, ExportError> {
        match self.names.qkv {
            QkvNames::Separate { norms: [q, k], .. } if self.decoder.qk_norm => {
                let size = self.decoder.head_dim;
                Ok(Some([self.norm_scale(&name(q), size)?, self.norm_scale(&name(k), size)?]))
            }
            _ => Ok(None),
        }
    }
}

/// The names of a family's tensors, without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy)]
struct TensorNames {
    /// The prefix of all names except that of the output projection, in checkpoints that have one.
    prefix: &'static str,
    embedding: &'static str,
    /// The table of learned position embeddings.
    positions: Option<&'static str>,
    /// The name before the number of a layer.
    layers: &'static str,
    attention_norm: &'static str,
    qkv: QkvNames,
    attention_out: &'static str,
    mlp_norm: &'static str,
    /// The normalisations of the outputs of attention and of the feed-forward part.
    out_norms: Option<[&'static str; 2]>,
    /// The projection that goes through the activation.
    up: &'static str,
    /// The projection by which the result of a gated activation is multiplied; empty if the activation is not
    /// gated.
    gate: &'static str,
    down: &'static str,
    final_norm: &'static str,
    output: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum QkvNames {
    /// Three layers, and the normalisations of queries and keys.
    Separate { parts: [&'static str; 3], norms: [&'static str; 2] },
    /// One layer with all queries, then all keys, then all values.
    Joined(&'static str),
    /// One layer with the query, key and value of each head in turn.
    JoinedByHead(&'static str),
}

const LLAMA: TensorNames = TensorNames {
    prefix: "model.",
    embedding: "embed_tokens",
    positions: None,
    layers: "layers",
    attention_norm: "input_layernorm",
    qkv: QkvNames::Separate {
        parts: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        norms: ["self_attn.q_norm", "self_attn.k_norm"],
    },
    attention_out: "self_attn.o_proj",
    mlp_norm: "post_attention_layernorm",
    out_norms: None,
    up: "mlp.gate_proj",
    gate: "mlp.up_proj",
    down: "mlp.down_proj",
    final_norm: "norm",
    output: "lm_head",
};

const GEMMA3: TensorNames = TensorNames {
    mlp_norm: "pre_feedforward_layernorm",
    out_norms: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
    ..LLAMA
};

const GPT_NEOX: TensorNames = TensorNames {
    prefix: "gpt_neox.",
    embedding: "embed_in",
    positions: None,
    layers: "layers",
    attention_norm: "input_layernorm",
    qkv: QkvNames::JoinedByHead("attention.query_key_value"),
    attention_out: "attention.dense",
    mlp_norm: "post_attention_layernorm",
    out_norms: None,
    up: "mlp.dense_h_to_4h",
    gate: "",
    down: "mlp.dense_4h_to_h",
    final_norm: "final_layer_norm",
    output: "embed_out",
};

const GPT2: TensorNames = TensorNames {
    prefix: "transformer.",
    embedding: "wte",
    positions: Some("wpe"),
    layers: "h",
    attention_norm: "ln_1",
    qkv: QkvNames::Joined("attn.c_attn"),
    attention_out: "attn.c_proj",
    mlp_norm: "ln_2",
    out_norms: None,
    up: "mlp.c_fc",
    gate: "",
    down: "mlp.c_proj",
    final_norm: "ln_f",
    output: "lm_head",
};

impl Family {
    fn tensor_names(self) -> &'static TensorNames {
        match self {
            Self::Llama | Self::Mistral | Self::Qwen2 | Self::Qwen3 => &LLAMA,
            Self::Gemma3 => &GEMMA3,
            Self::GptNeox => &GPT_NEOX,
            Self::Gpt2 => &GPT2,
        }
    }

    /// Whether checkpoints store linear layers as `[in, out]`, which only GPT-2 does.
    fn stores_in_out(self) -> bool {
        self == Self::Gpt2
    }
}

/// Whether a tensor need not be read: it is a buffer that older versions of `transformers` stored, or an
/// output projection that is tied to the embedding.
fn is_ignored(key: &str, decoder: &Decoder) -> bool {
    let names = decoder.family.tensor_names();
    let is_output = key == format!("{}.weight", names.output);
    let is_buffer = [
        ".rotary_emb.inv_freq",
        ".attn.bias",
        ".attn.masked_bias",
        ".attention.bias",
        ".attention.masked_bias",
    ]
    .iter()
    .any(|buffer| key.ends_with(buffer));
    is_buffer || is_output && decoder.tied_embedding
}

/// The prefix that this checkpoint uses. GPT-2 was published without a prefix.
fn prefix(checkpoint: &Checkpoint, names: &TensorNames) -> &'static str {
    let prefixed = format!("{}{}.weight", names.prefix, names.embedding);
    let bare = format!("{}.weight", names.embedding);
    if !checkpoint.contains(&prefixed) && checkpoint.contains(&bare) { "" } else { names.prefix }
}
