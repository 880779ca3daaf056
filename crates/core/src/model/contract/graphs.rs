//! The graphs of a contract: the inputs and outputs that each must have, the comparison with those of a
//! loaded graph, and the names of the values inside a decoder's graph. Knows nothing of ONNX Runtime: the
//! caller translates what its session reports into [`IoTensor`]s.

use std::fmt;

use super::{Contract, ContractError, Cross, Decoder, Family, Late};

/// The names of the values inside a decoder's graph at which it can be split into subgraphs. The exporter
/// gives the values these names, and the runtime extracts the subgraphs between them.
pub mod value_names {
    /// `[b, 1, t, dim / 2]`: the cosine of each rotary pair's angle at each position.
    pub const COS: &str = "rotary.cos";

    /// `[b, 1, t, dim / 2]`: the sine of each rotary pair's angle at each position.
    pub const SIN: &str = "rotary.sin";

    /// The same as [`COS`] for the layers with a sliding window, if they have a rotary position encoding of
    /// their own.
    pub const COS_LOCAL: &str = "rotary_local.cos";

    /// The same as [`SIN`] for the layers with a sliding window, if they have a rotary position encoding of
    /// their own.
    pub const SIN_LOCAL: &str = "rotary_local.sin";

    /// `[b, t, vocab]`: the logits of the token that follows each token.
    pub const LOGITS: &str = "logits";

    /// The prefix of the names of attention masks (see [`attention_mask`]).
    pub const ATTENTION_MASK_PREFIX: &str = "seen.";

    /// `[b, t, d]`: the hidden states that enter `layer`.
    pub fn hidden(layer: usize) -> String {
        format!("hidden.{layer}")
    }

    /// Returns the name of what `layer` of `layers` hands on: the hidden states that enter the next layer, or
    /// [`LOGITS`] behind the last layer.
    pub fn layer_output(layer: usize, layers: usize) -> String {
        if layer + 1 == layers { LOGITS.to_owned() } else { hidden(layer + 1) }
    }

    /// `[b, 1, t, p + t]`: the additive attention mask of layers whose sliding window has `window` positions;
    /// `None` names the mask of layers without a sliding window.
    pub fn attention_mask(window: Option<usize>) -> String {
        window.map_or(format!("{ATTENTION_MASK_PREFIX}all"), |positions| {
            format!("{ATTENTION_MASK_PREFIX}{positions}")
        })
    }

    /// `[b, heads, t, head_dim]`: the queries of `layer`, scaled, and rotated to their positions. Their dot
    /// products with keys are the raw logits.
    pub fn query(layer: usize) -> String {
        format!("query.{layer}")
    }

    /// `[b, kv_heads, t, head_dim]`: the keys of the new tokens in `layer`, rotated to their positions.
    pub fn key(layer: usize) -> String {
        format!("key.{layer}")
    }

    /// `[b, kv_heads, t, head_dim]`: the values of the new tokens in `layer`.
    pub fn value(layer: usize) -> String {
        format!("value.{layer}")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Graph {
    /// The graph of a late-interaction model that computes the keys of windows.
    Passage,
    /// The graph of a late-interaction model that computes logits from a question and keys.
    Query,
    /// The graph of a decoder, which computes keys, values and logits from tokens and cached keys and values.
    Decoder,
    /// The graph of a cross-encoder, which computes the logits of labels from the tokens of two texts.
    Pair,
}

/// Whether a tensor is an input or an output of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Input,
    Output,
}

/// The size of one axis of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dim {
    Fixed(usize),
    /// The axis may have any size, which is known when the graph runs.
    Free,
}

/// An input or output of a graph, as a contract declares it or as a session reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoTensor {
    pub side: Side,
    pub name: String,
    /// The element type, for example `f32` or `i64`.
    pub dtype: String,
    /// The sizes of the axes, slowest first.
    pub dims: Vec<Dim>,
}

impl IoTensor {
    /// Creates a tensor from a shape as ONNX Runtime reports it: a negative size means [`Dim::Free`].
    pub fn new(side: Side, name: impl Into<String>, dtype: impl Into<String>, dims: &[i64]) -> Self {
        let dims = dims.iter().map(|&dim| usize::try_from(dim).map_or(Dim::Free, Dim::Fixed)).collect();
        Self { side, name: name.into(), dtype: dtype.into(), dims }
    }

    /// Returns whether a graph with the tensor `self` conforms to the declaration. An axis that is declared
    /// as fixed may be free in the graph, because shape inference does not reach all axes. An axis that is
    /// declared as free must not be fixed.
    fn conforms_to(&self, declared: &Self) -> bool {
        let dims_fit = |(found, declared): (&Dim, &Dim)| found == declared || *found == Dim::Free;
        self.dtype == declared.dtype
            && self.dims.len() == declared.dims.len()
            && self.dims.iter().zip(&declared.dims).all(dims_fit)
    }
}

impl fmt::Display for IoTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Input => "input",
            Side::Output => "output",
        };
        let dims: Vec<String> = self.dims.iter().map(Dim::to_string).collect();
        write!(f, "{side} `{}` {} [{}]", self.name, self.dtype, dims.join(", "))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => size.fmt(f),
            Self::Free => f.write_str("*"),
        }
    }
}

impl Contract {
    /// Returns the inputs and outputs that `graph` must have; empty if the family has no such graph.
    pub fn io(&self, graph: Graph) -> Vec<IoTensor> {
        match (&self.family, graph) {
            (Family::Late(late), Graph::Passage) => late.passage_io(),
            (Family::Late(late), Graph::Query) => late.query_io(),
            (Family::Decoder(decoder), Graph::Decoder) => decoder.io(self.tokenizer.vocab_size),
            (Family::Cross(cross), Graph::Pair) => cross.io(),
            _ => Vec::new(),
        }
    }

    /// Returns the file name of `graph`; empty if the family has no such graph.
    pub fn graph_file(&self, graph: Graph) -> &str {
        match (&self.family, graph) {
            (Family::Late(late), Graph::Passage) => &late.passage,
            (Family::Late(late), Graph::Query) => &late.query,
            (Family::Decoder(decoder), Graph::Decoder) => &decoder.graph,
            (Family::Cross(cross), Graph::Pair) => &cross.graph,
            _ => "",
        }
    }
}

impl Late {
    fn passage_io(&self) -> Vec<IoTensor> {
        let (h, d, key) = (self.heads as i64, self.head_dim as i64, self.key_dtype.as_str());
        vec![
            IoTensor::new(Side::Input, "input_ids", "i64", &[-1, -1]),
            IoTensor::new(Side::Input, "attention_mask", "i64", &[-1, -1]),
            IoTensor::new(Side::Output, "key", key, &[-1, h, -1, d]),
        ]
    }

    fn query_io(&self) -> Vec<IoTensor> {
        let (h, d, key) = (self.heads as i64, self.head_dim as i64, self.key_dtype.as_str());
        vec![
            IoTensor::new(Side::Input, "input_ids", "i64", &[1, -1]),
            IoTensor::new(Side::Input, "key", key, &[h, -1, d]),
            IoTensor::new(Side::Output, "cross_logits", key, &[h, -1, -1]),
            IoTensor::new(Side::Output, "self_logits", key, &[h, -1, -1]),
        ]
    }
}

impl Cross {
    fn io(&self) -> Vec<IoTensor> {
        let mut io = vec![
            IoTensor::new(Side::Input, "input_ids", "i64", &[1, -1]),
            IoTensor::new(Side::Output, "logits", "f32", &[1, self.labels.len() as i64]),
        ];
        if self.token_types {
            io.push(IoTensor::new(Side::Input, "token_type_ids", "i64", &[1, -1]));
        }
        io
    }
}

impl Decoder {
    fn io(&self, vocab_size: usize) -> Vec<IoTensor> {
        let (h, kv, d) = (self.heads as i64, self.kv_heads as i64, self.head_dim as i64);
        let mut io: Vec<_> = ["input_ids", "position_ids", "key_position_ids"]
            .map(|name| IoTensor::new(Side::Input, name, "i64", &[-1, -1]))
            .into();
        let mut tensor = |side, name: String, dims: &[i64]| {
            io.push(IoTensor::new(side, name, self.kv_dtype.as_str(), dims));
        };
        for layer in 0..self.layers {
            tensor(Side::Input, format!("past.{layer}.key"), &[-1, kv, -1, d]);
            tensor(Side::Input, format!("past.{layer}.value"), &[-1, kv, -1, d]);
            tensor(Side::Output, format!("present.{layer}.key"), &[-1, kv, -1, d]);
            tensor(Side::Output, format!("present.{layer}.value"), &[-1, kv, -1, d]);
            tensor(Side::Output, format!("attn_logits.{layer}"), &[-1, h, -1, -1]);
        }
        tensor(Side::Output, value_names::LOGITS.to_owned(), &[-1, -1, vocab_size as i64]);
        io
    }
}

/// Checks that `found`, the inputs and outputs of the loaded `graph`, are those that the contract declares,
/// in any order.
///
/// # Errors
/// Returns [`ContractError::IoMismatch`] for the first difference.
pub fn check_io(contract: &Contract, graph: Graph, found: &[IoTensor]) -> Result<(), ContractError> {
    let declared = contract.io(graph);
    let same = |a: &IoTensor, b: &IoTensor| a.side == b.side && a.name == b.name;
    let mismatch = |declared: String, found: String| ContractError::IoMismatch {
        graph: contract.graph_file(graph).to_owned(),
        declared,
        found,
    };
    for expected in &declared {
        match found.iter().find(|tensor| same(tensor, expected)) {
            Some(tensor) if tensor.conforms_to(expected) => {}
            Some(tensor) => return Err(mismatch(expected.to_string(), tensor.to_string())),
            None => return Err(mismatch(expected.to_string(), list(found))),
        }
    }
    match found.iter().find(|tensor| !declared.iter().any(|expected| same(tensor, expected))) {
        Some(extra) => Err(mismatch(list(&declared), format!("also {extra}"))),
        None => Ok(()),
    }
}

fn list(tensors: &[IoTensor]) -> String {
    tensors.iter().map(IoTensor::to_string).collect::<Vec<_>>().join(", ")
}
