//! BERT: its configuration, its weights, and the graphs of its encoder.
//! Does not know about tokenizers or how the exported folder is put in place.
//!
//! The encoder is written with plain MatMul–Softmax–MatMul: ONNX Runtime's fused attention operators are no
//! faster on a CPU at these lengths, and the plain form runs on every execution provider.

use std::path::Path;

use serde::Deserialize;
use thresher_core::model::contract::Weights;

use super::{
    ExportError,
    graph::{Activation, Axis, GraphBuilder, StoredTensor, Value},
    linear::Linear,
    source::{CONFIG, Header, read_json},
    weights::{Checkpoint, Tensor},
    write::WeightFile,
};

/// The bias that is added to the logit of a masked position: the lowest `f32`. It is finite, so that a row
/// whose positions are all masked does not become NaN.
const MASK_BIAS: f32 = f32::MIN;

/// The smallest norm by which a readout vector is divided, as in `torch.nn.functional.normalize`.
const NORM_MIN: f32 = 1e-12;

/// The class names of checkpoints that contain a BERT encoder. Layers that a class adds to the encoder are
/// not exported.
pub const ARCHITECTURES: [&str; 7] = [
    "BertModel",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
];

/// Sizes and settings of a BERT encoder.
#[derive(Debug, Clone)]
pub struct Bert {
    /// The class name of the checkpoint.
    pub architecture: String,
    /// The number of components of a hidden state: `d`.
    pub hidden: usize,
    /// The number of rows of the embedding table.
    pub vocab_size: usize,
    /// The number of rows of the table of position embeddings.
    pub positions: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    token_types: usize,
    activation: Activation,
    epsilon: f32,
}

/// The keys of `config.json` that the encoder depends on.
#[derive(Deserialize)]
struct Config {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f32,
    hidden_act: String,
    // Newer versions of `transformers` omit this key, because they support only absolute positions.
    #[serde(default = "absolute")]
    position_embedding_type: String,
    #[serde(default)]
    is_decoder: bool,
}

fn absolute() -> String {
    "absolute".to_owned()
}

/// Returns the class name of the checkpoint if it is one of [`ARCHITECTURES`].
pub fn architecture(header: &Header) -> Option<&str> {
    let from_model_type = (header.model_type.as_deref() == Some("bert")).then_some("BertModel");
    let named = header.architectures.first().map(String::as_str).or(from_model_type);
    named.filter(|name| ARCHITECTURES.contains(name))
}

impl Bert {
    /// Reads `dir/config.json` of a checkpoint of the class `architecture`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file is malformed or has a value that the export does not support.
    pub fn read(dir: &Path, architecture: &str) -> Result<Self, ExportError> {
        let file = dir.join(CONFIG);
        let refuse = |key: &'static str, found: String, supported: String| {
            Err(ExportError::Unsupported { file: file.clone(), key, found, supported })
        };
        let config: Config = read_json(&file)?;
        let activation = match config.hidden_act.as_str() {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            other => {
                return refuse(
                    "hidden_act",
                    other.to_owned(),
                    "gelu, gelu_new, gelu_pytorch_tanh, relu".into(),
                );
            }
        };
        if config.position_embedding_type != "absolute" {
            return refuse("position_embedding_type", config.position_embedding_type, absolute());
        }
        if config.type_vocab_size == 0 {
            return refuse("type_vocab_size", "0".into(), "1 or more".into());
        }
        if config.is_decoder {
            return refuse("is_decoder", "true".into(), "false".into());
        }
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
        if heads == 0 || hidden == 0 || !hidden.is_multiple_of(heads) {
            return refuse(
                "num_attention_heads",
                heads.to_string(),
                format!("divisors of hidden_size {hidden}"),
            );
        }
        Ok(Self {
            architecture: architecture.to_owned(),
            hidden,
            vocab_size: config.vocab_size,
            positions: config.max_position_embeddings,
            intermediate: config.intermediate_size,
            layers: config.num_hidden_layers,
            heads,
            token_types: config.type_vocab_size,
            activation,
            epsilon: config.layer_norm_eps,
        })
    }
}

/// The encoder's weights in the weights file.
#[derive(Debug)]
pub struct BertWeights {
    words: StoredTensor,
    /// The position embeddings with the embedding of token type 0 added, because a window has no second text.
    positions: StoredTensor,
    norm: Norm,
    layers: Vec<LayerWeights>,
}

#[derive(Debug)]
struct LayerWeights {
    /// The query, key and value projections side by side, `[d, 3 d]`. The query's part is multiplied by
    /// 1/√(width of a head).
    qkv: Linear,
    attention_out: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    norm: Norm,
}

/// The scale and bias of a layer normalisation, `[d]` each.
#[derive(Debug)]
struct Norm {
    scale: StoredTensor,
    bias: StoredTensor,
}

impl Bert {
    /// Copies the encoder's weights from `checkpoint` to `out`, in the form that the graphs use.
    ///
    /// With int8 weights, the query, key and value projections stay `f32`, because they lose the most
    /// accuracy for the time that they save: on MiniLM the mean cosine to the exact readout is 0.9974 with
    /// them as int8 and 0.9985 without, at 2.1 and 1.7 times the speed.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a tensor is missing or has another shape than the configuration implies,
    /// or if a file cannot be read or written.
    pub fn store(
        &self,
        checkpoint: &Checkpoint,
        out: &mut WeightFile,
        weights: Weights,
    ) -> Result<BertWeights, ExportError> {
        let prefixed = checkpoint.contains("bert.embeddings.word_embeddings.weight");
        let prefix = if prefixed { "bert." } else { "" };
        let mut copier = WeightCopier { checkpoint, out, prefix, weights };
        let (d, inner) = (self.hidden, self.intermediate);
        Ok(BertWeights {
            words: copier.table("embeddings.word_embeddings.weight", &[self.vocab_size, d])?,
            positions: copier.positions(self)?,
            norm: copier.norm("embeddings.LayerNorm", d)?,
            layers: (0..self.layers)
                .map(|layer| {
                    let name = |part: &str| format!("encoder.layer.{layer}.{part}");
                    Ok(LayerWeights {
                        qkv: copier.qkv(&name("attention.self"), self)?,
                        attention_out: copier.linear(&name("attention.output.dense"), d, d)?,
                        attention_norm: copier.norm(&name("attention.output.LayerNorm"), d)?,
                        up: copier.linear(&name("intermediate.dense"), d, inner)?,
                        down: copier.linear(&name("output.dense"), inner, d)?,
                        norm: copier.norm(&name("output.LayerNorm"), d)?,
                    })
                })
                .collect::<Result<_, ExportError>>()?,
        })
    }
}

/// Copies tensors from the checkpoint to the weights file, under the names that the graphs use.
struct WeightCopier<'a> {
    checkpoint: &'a Checkpoint,
    out: &'a mut WeightFile,
    prefix: &'static str,
    /// The element type of the layers that are not always `f32`.
    weights: Weights,
}

impl WeightCopier<'_> {
    fn read(&self, name: &str, dims: &[usize]) -> Result<Tensor, ExportError> {
        self.checkpoint.read(&format!("{}{name}", self.prefix), dims)
    }

    fn table(&mut self, name: &str, dims: &[usize]) -> Result<StoredTensor, ExportError> {
        let table = self.read(name, dims)?;
        self.out.push(name, dims, &table.values)
    }

    fn positions(&mut self, bert: &Bert) -> Result<StoredTensor, ExportError> {
        let (d, name) = (bert.hidden, "embeddings.position_embeddings.weight");
        let mut table = self.read(name, &[bert.positions, d])?;
        let types = self.read("embeddings.token_type_embeddings.weight", &[bert.token_types, d])?;
        for row in table.values.chunks_exact_mut(d) {
            row.iter_mut().zip(&types.values[..d]).for_each(|(value, first)| *value += first);
        }
        self.out.push(name, &table.dims, &table.values)
    }

    /// Copies `name.weight` and `name.bias`, which the oldest checkpoints call `name.gamma` and `name.beta`.
    fn norm(&mut self, name: &str, d: usize) -> Result<Norm, ExportError> {
        let is_old = self.checkpoint.contains(&format!("{}{name}.gamma", self.prefix));
        let (weight, bias) = if is_old { ("gamma", "beta") } else { ("weight", "bias") };
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
        // Scaling the query's weights here saves scaling the logits at every run.
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

impl Bert {
    /// The graph for passages: `input_ids, attention_mask [b, t]` → `key [b, 1, t, d]`.
    pub fn passage_graph(&self, weights: &BertWeights, weights_file: &str) -> Vec<u8> {
        let mut g = GraphBuilder::new(weights_file);
        let tokens = [Axis::Named("b"), Axis::Named("t")];
        let ids = g.input_i64("input_ids", &tokens);
        let mask = g.input_i64("attention_mask", &tokens);
        let bias = mask_bias(&mut g, &mask);
        let unit = self.readout(&mut g, weights, &ids, Some(&bias));
        let key = g.unsqueeze(&unit, &[1]);
        g.output_f32(
            "key",
            &[Axis::Named("b"), Axis::Fixed(1), Axis::Named("t"), Axis::Fixed(self.hidden)],
            &key,
        );
        g.finish("passage", "key: unit readout vector of every position, special tokens included")
    }

    /// The graph for queries: `input_ids [1, q], key [1, n, d]` → `cross_logits [1, q, n], self_logits [1, q,
    /// q]`.
    pub fn query_graph(&self, weights: &BertWeights, weights_file: &str) -> Vec<u8> {
        let mut g = GraphBuilder::new(weights_file);
        let (one, q, n) = (Axis::Fixed(1), Axis::Named("q"), Axis::Named("n"));
        let ids = g.input_i64("input_ids", &[one, q]);
        let key = g.input_f32("key", &[one, n, Axis::Fixed(self.hidden)]);
        // The batch axis has size 1 and is also the axis of the only head.
        let unit = self.readout(&mut g, weights, &ids, None);
        let unit_columns = g.transpose(&unit, &[0, 2, 1]);
        // The keys are the left operand, so that a key's logits are bit-identical for any number of other
        // keys, except for a single key, for which ONNX Runtime uses its matrix-vector kernel. The test
        // `export_bits` checks this.
        let by_key = g.matmul(&key, &unit_columns);
        let cross = g.transpose(&by_key, &[0, 2, 1]);
        let self_logits = g.matmul(&unit, &unit_columns);
        g.output_f32("cross_logits", &[one, q, n], &cross);
        g.output_f32("self_logits", &[one, q, q], &self_logits);
        g.finish(
            "query",
            "raw logits, no softmax; q counts the special tokens, whose rows and columns the caller drops",
        )
    }

    /// The readout vectors: `ids [b, t]`, `bias [b, 1, 1, t]` → unit vectors `[b, t, d]`.
    fn readout(
        &self,
        g: &mut GraphBuilder,
        weights: &BertWeights,
        ids: &Value,
        bias: Option<&Value>,
    ) -> Value {
        let mut x = self.embed(g, weights, ids);
        for layer in &weights.layers {
            let attended = self.attend(g, layer, &x, bias);
            let sum = g.add(&attended, &x);
            x = self.normalise(g, &layer.attention_norm, &sum);
            let up = layer.up.apply(g, &x);
            let active = g.activate(&up, self.activation);
            let down = layer.down.apply(g, &active);
            let sum = g.add(&down, &x);
            x = self.normalise(g, &layer.norm, &sum);
        }
        let norm = g.norm(&x);
        let least = g.const_f32(NORM_MIN);
        let norm = g.max(&norm, &least);
        g.div(&x, &norm)
    }

    /// The sum of word and position embeddings: `ids [b, t]` → `[b, t, d]`.
    fn embed(&self, g: &mut GraphBuilder, weights: &BertWeights, ids: &Value) -> Value {
        let (table, positions) = (g.weight(&weights.words), g.weight(&weights.positions));
        let words = g.gather(&table, ids);
        let tokens = g.size_of_axis(ids, 1);
        let positions = g.first_rows(&positions, &tokens);
        let sum = g.add(&words, &positions);
        self.normalise(g, &weights.norm, &sum)
    }

    /// Self-attention with its output projection: `x [b, t, d]` → `[b, t, d]`.
    fn attend(&self, g: &mut GraphBuilder, layer: &LayerWeights, x: &Value, bias: Option<&Value>) -> Value {
        let (heads, width) = (self.heads as i64, (self.hidden / self.heads) as i64);
        let qkv = layer.qkv.apply(g, x);
        let [q, k, v] = g.split(&qkv);
        let [q, k, v] = [(q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3])].map(|(part, order)| {
            let by_head = g.reshape(&part, &[0, 0, heads, width]);
            g.transpose(&by_head, &order)
        });
        let logits = g.matmul(&q, &k);
        let logits = bias.map_or(logits.clone(), |bias| g.add(&logits, bias));
        let probabilities = g.softmax(&logits);
        let by_head = g.matmul(&probabilities, &v);
        let by_token = g.transpose(&by_head, &[0, 2, 1, 3]);
        let joined = g.reshape(&by_token, &[0, 0, self.hidden as i64]);
        layer.attention_out.apply(g, &joined)
    }

    fn normalise(&self, g: &mut GraphBuilder, norm: &Norm, x: &Value) -> Value {
        let (scale, bias) = (g.weight(&norm.scale), g.weight(&norm.bias));
        g.layer_norm(x, &scale, &bias, self.epsilon)
    }
}

/// Converts a mask of 0 and 1, `[b, t]`, to the bias that is added to the logits, `[b, 1, 1, t]`.
fn mask_bias(g: &mut GraphBuilder, mask: &Value) -> Value {
    let kept = g.cast_f32(mask);
    let (one, masked) = (g.const_f32(1.0), g.const_f32(MASK_BIAS));
    let dropped = g.sub(&one, &kept);
    let bias = g.mul(&dropped, &masked);
    g.unsqueeze(&bias, &[1, 2])
}
