//! BERT: its configuration, its weights and its encoder as a graph.
//! Knows nothing of tokenizers or of how the files are put in place.
//!
//! The encoder is written with plain MatMul–Softmax–MatMul: ONNX Runtime's fused attention operators are no faster on a
//! CPU at these lengths, and the plain form runs on every execution provider.

use std::path::Path;

use serde::Deserialize;

use super::{
    ExportError,
    graph::{Activation, Axis, GraphBuilder, Stored, Value},
    source::{CONFIG, Header, read_json},
    weights::{Checkpoint, Tensor},
    write::WeightFile,
};

/// Class names of checkpoints that hold a BERT encoder; what they add to it is left out.
const ARCHITECTURES: [&str; 7] = [
    "BertModel",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
];

/// What a masked position adds to a logit: the lowest `f32`, finite, so that a wholly masked row is no NaN.
const MASKED: f32 = f32::MIN;

/// The smallest norm that a readout vector is divided by, as `torch.nn.functional.normalize` has it.
const NORM_MIN: f32 = 1e-12;

/// Sizes and settings of a BERT encoder.
#[derive(Debug, Clone)]
pub struct Bert {
    /// Class name of the checkpoint.
    pub architecture: String,
    /// Components of a hidden state: `d`.
    pub hidden: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Rows of the table of positions.
    pub positions: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    token_types: usize,
    activation: Activation,
    epsilon: f32,
}

/// `config.json`, as far as the encoder depends on it.
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
    // Newer versions of `transformers` leave it out: they know no other than absolute.
    #[serde(default = "absolute")]
    position_embedding_type: String,
    #[serde(default)]
    is_decoder: bool,
}

fn absolute() -> String {
    "absolute".to_owned()
}

impl Bert {
    /// Reads `dir/config.json`, whose `header` has been read already.
    ///
    /// # Errors
    /// A file that is malformed, or a value that this export does not support.
    pub fn read(dir: &Path, header: &Header) -> Result<Self, ExportError> {
        let file = dir.join(CONFIG);
        let refuse = |key: &'static str, found: String, supported: String| {
            Err(ExportError::Unsupported {
                file: file.clone(),
                key,
                found,
                supported,
            })
        };
        let bare = (header.model_type.as_deref() == Some("bert")).then_some("BertModel");
        let architecture = header
            .architectures
            .first()
            .map(String::as_str)
            .or(bare)
            .unwrap_or("none");
        if !ARCHITECTURES.contains(&architecture) {
            return refuse("architectures", architecture.to_owned(), ARCHITECTURES.join(", "));
        }
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
            return refuse(
                "position_embedding_type",
                config.position_embedding_type,
                absolute(),
            );
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

    /// Moves the encoder's weights from `checkpoint` to `out`, in the form that the graphs use.
    ///
    /// # Errors
    /// A tensor is missing or of another shape than the configuration says, or a file fails.
    pub fn store(&self, checkpoint: &Checkpoint, out: &mut WeightFile) -> Result<BertWeights, ExportError> {
        let prefix = if checkpoint.contains("bert.embeddings.word_embeddings.weight") {
            "bert."
        } else {
            ""
        };
        let mut mover = Mover {
            checkpoint,
            out,
            prefix,
        };
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

    /// `input_ids, attention_mask [b, t]` → `key [b, 1, t, d]`.
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
            &[
                Axis::Named("b"),
                Axis::Fixed(1),
                Axis::Named("t"),
                Axis::Fixed(self.hidden),
            ],
            &key,
        );
        g.finish(
            "passage",
            "key: unit readout vector of every position, special tokens included",
        )
    }

    /// `input_ids [1, q], key [1, n, d]` → `cross_logits [1, q, n], self_logits [1, q, q]`.
    pub fn query_graph(&self, weights: &BertWeights, weights_file: &str) -> Vec<u8> {
        let mut g = GraphBuilder::new(weights_file);
        let (one, q, n) = (Axis::Fixed(1), Axis::Named("q"), Axis::Named("n"));
        let ids = g.input_i64("input_ids", &[one, q]);
        let key = g.input_f32("key", &[one, n, Axis::Fixed(self.hidden)]);
        // The batch axis, of size 1, serves as the axis of the one head.
        let unit = self.readout(&mut g, weights, &ids, None);
        let unit_columns = g.transpose(&unit, &[0, 2, 1]);
        // Keys on the left: a key's logits then do not depend, to the last bit, on how many others it came with (but
        // for a key quite alone, where ONNX Runtime takes its matrix-vector kernel). `tests/export_bits.rs` holds it.
        let by_key = g.matmul(&key, &unit_columns);
        let cross = g.transpose(&by_key, &[0, 2, 1]);
        let own = g.matmul(&unit, &unit_columns);
        g.output_f32("cross_logits", &[one, q, n], &cross);
        g.output_f32("self_logits", &[one, q, q], &own);
        g.finish(
            "query",
            "raw logits, no softmax; q counts the special tokens, whose rows and columns the caller drops",
        )
    }

    /// `ids [b, t]`, `bias [b, 1, 1, t]` → unit vectors `[b, t, d]`.
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
            let raised = layer.up.apply(g, &x);
            let active = g.activate(&raised, self.activation);
            let lowered = layer.down.apply(g, &active);
            let sum = g.add(&lowered, &x);
            x = self.normalise(g, &layer.norm, &sum);
        }
        let norm = g.norm(&x);
        let least = g.const_f32(NORM_MIN);
        let norm = g.max(&norm, &least);
        g.div(&x, &norm)
    }

    /// `ids [b, t]` → `[b, t, d]`.
    fn embed(&self, g: &mut GraphBuilder, weights: &BertWeights, ids: &Value) -> Value {
        let (table, positions) = (g.weight(&weights.words), g.weight(&weights.positions));
        let words = g.gather(&table, ids);
        let tokens = g.size_of_axis(ids, 1);
        let places = g.first_rows(&positions, &tokens);
        let sum = g.add(&words, &places);
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
        let shares = g.softmax(&logits);
        let by_head = g.matmul(&shares, &v);
        let by_token = g.transpose(&by_head, &[0, 2, 1, 3]);
        let joined = g.reshape(&by_token, &[0, 0, self.hidden as i64]);
        layer.attention_out.apply(g, &joined)
    }

    fn normalise(&self, g: &mut GraphBuilder, norm: &Pair, x: &Value) -> Value {
        let (scale, bias) = (g.weight(&norm.weight), g.weight(&norm.bias));
        g.layer_norm(x, &scale, &bias, self.epsilon)
    }
}

/// `mask [b, t]` of 0 and 1 → what to add to logits, `[b, 1, 1, t]`.
fn mask_bias(g: &mut GraphBuilder, mask: &Value) -> Value {
    let kept = g.to_f32(mask);
    let (one, masked) = (g.const_f32(1.0), g.const_f32(MASKED));
    let dropped = g.sub(&one, &kept);
    let bias = g.mul(&dropped, &masked);
    g.unsqueeze(&bias, &[1, 2])
}

/// The encoder's weights as they lie in the weights file.
#[derive(Debug)]
pub struct BertWeights {
    words: Stored,
    /// Positions with the embedding of token type 0 added: a window has no second text.
    positions: Stored,
    norm: Pair,
    layers: Vec<LayerWeights>,
}

#[derive(Debug)]
struct LayerWeights {
    /// Query, key and value side by side, `[d, 3 d]`; the query's part has 1/√width in it.
    qkv: Pair,
    attention_out: Pair,
    attention_norm: Pair,
    up: Pair,
    down: Pair,
    norm: Pair,
}

/// A weight `[in, out]` or `[d]` with its bias.
#[derive(Debug)]
struct Pair {
    weight: Stored,
    bias: Stored,
}

impl Pair {
    fn apply(&self, g: &mut GraphBuilder, x: &Value) -> Value {
        let (weight, bias) = (g.weight(&self.weight), g.weight(&self.bias));
        g.linear(x, &weight, &bias)
    }
}

/// Reads tensors by the checkpoint's names and stores them by ours.
struct Mover<'a> {
    checkpoint: &'a Checkpoint,
    out: &'a mut WeightFile,
    prefix: &'static str,
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
            row.iter_mut()
                .zip(&types.values[..d])
                .for_each(|(value, first)| *value += first);
        }
        self.out.push(name, &table.dims, &table.values)
    }

    /// `name.weight` and `name.bias`, which the oldest checkpoints call gamma and beta.
    fn norm(&mut self, name: &str, d: usize) -> Result<Pair, ExportError> {
        let old = self.checkpoint.contains(&format!("{}{name}.gamma", self.prefix));
        let (weight, bias) = if old {
            ("gamma", "beta")
        } else {
            ("weight", "bias")
        };
        let weight = self.read(&format!("{name}.{weight}"), &[d])?;
        let bias = self.read(&format!("{name}.{bias}"), &[d])?;
        self.pair(name, weight, bias)
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Pair, ExportError> {
        let weight = self.read(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = self.read(&format!("{name}.bias"), &[outputs])?;
        self.pair(name, transposed(&weight), bias)
    }

    fn qkv(&mut self, name: &str, bert: &Bert) -> Result<Pair, ExportError> {
        let d = bert.hidden;
        let mut joined = Tensor {
            dims: vec![3 * d, d],
            values: Vec::with_capacity(3 * d * d),
        };
        let mut biases = Tensor {
            dims: vec![3 * d],
            values: Vec::with_capacity(3 * d),
        };
        // Scaling the query's weights once saves scaling its logits at every run.
        let query_scale = 1.0 / ((d / bert.heads) as f32).sqrt();
        for (part, scale) in [("query", query_scale), ("key", 1.0), ("value", 1.0)] {
            let weight = self.read(&format!("{name}.{part}.weight"), &[d, d])?;
            let bias = self.read(&format!("{name}.{part}.bias"), &[d])?;
            joined
                .values
                .extend(weight.values.iter().map(|value| value * scale));
            biases
                .values
                .extend(bias.values.iter().map(|value| value * scale));
        }
        self.pair(&format!("{name}.qkv"), transposed(&joined), biases)
    }

    fn pair(&mut self, name: &str, weight: Tensor, bias: Tensor) -> Result<Pair, ExportError> {
        Ok(Pair {
            weight: self
                .out
                .push(&format!("{name}.weight"), &weight.dims, &weight.values)?,
            bias: self.out.push(&format!("{name}.bias"), &bias.dims, &bias.values)?,
        })
    }
}

/// A checkpoint stores `[out, in]`, a graph multiplies with `[in, out]`.
fn transposed(tensor: &Tensor) -> Tensor {
    let [rows, columns] = tensor.dims[..] else {
        panic!("a matrix has two axes, not {:?}", tensor.dims)
    };
    let value = |place: usize| tensor.values[place % rows * columns + place / rows];
    Tensor {
        dims: vec![columns, rows],
        values: (0..rows * columns).map(value).collect(),
    }
}
