//! What each graph takes and gives, and the check of a session's real inputs and outputs against it.
//! Knows nothing of ONNX Runtime: the caller translates what its session reports into [`IoTensor`]s.

use std::fmt;

use super::{Contract, ContractError, Decoder, Family, Late};

/// One of a model's graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Graph {
    /// Windows to keys.
    Passage,
    /// Question and keys to logits.
    Query,
    /// Tokens and what was read before to keys, values and logits.
    Decoder,
}

/// Whether a graph takes or gives a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Taken.
    Input,
    /// Given.
    Output,
}

/// One axis of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dim {
    /// Always this many.
    Fixed(usize),
    /// Any number, known when the graph runs.
    Free,
}

/// An input or output: of a graph as the contract declares it, or of a session as it reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoTensor {
    /// Taken or given.
    pub side: Side,
    /// The graph's name for it.
    pub name: String,
    /// Element type: `f32`, `i64`.
    pub dtype: String,
    /// Axes, slowest first.
    pub dims: Vec<Dim>,
}

impl IoTensor {
    /// From the shape convention of ONNX Runtime, where a negative axis is free.
    pub fn new(side: Side, name: impl Into<String>, dtype: impl Into<String>, dims: &[i64]) -> Self {
        let dims = dims.iter().map(|&dim| usize::try_from(dim).map_or(Dim::Free, Dim::Fixed)).collect();
        Self { side, name: name.into(), dtype: dtype.into(), dims }
    }

    /// Whether a graph that has `self` keeps the promise `declared`. A graph may leave a declared axis open (shape
    /// inference need not reach it); it may not fix one that is declared free.
    fn keeps(&self, declared: &Self) -> bool {
        let dims_fit = |(found, promised): (&Dim, &Dim)| found == promised || *found == Dim::Free;
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
    /// What `graph` takes and gives, in the graph's order; nothing where the family has no such graph.
    pub fn io(&self, graph: Graph) -> Vec<IoTensor> {
        match (&self.family, graph) {
            (Family::Late(late), Graph::Passage) => late.passage_io(),
            (Family::Late(late), Graph::Query) => late.query_io(),
            (Family::Decoder(decoder), Graph::Decoder) => decoder.io(self.tokenizer.vocab_size),
            _ => Vec::new(),
        }
    }

    /// The file name of `graph`; empty where the family has no such graph.
    pub fn graph_file(&self, graph: Graph) -> &str {
        match (&self.family, graph) {
            (Family::Late(late), Graph::Passage) => &late.passage,
            (Family::Late(late), Graph::Query) => &late.query,
            (Family::Decoder(decoder), Graph::Decoder) => &decoder.graph,
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
        tensor(Side::Output, "logits".to_owned(), &[-1, -1, vocab_size as i64]);
        io
    }
}

/// Holds what a session reports of `graph` to the contract: the same inputs and outputs, in any order.
///
/// # Errors
/// [`ContractError::IoMismatch`] names what the contract declares and what the graph has.
pub fn check_io(contract: &Contract, graph: Graph, found: &[IoTensor]) -> Result<(), ContractError> {
    let declared = contract.io(graph);
    let same = |a: &IoTensor, b: &IoTensor| a.side == b.side && a.name == b.name;
    let mismatch = |declared: String, found: String| ContractError::IoMismatch {
        graph: contract.graph_file(graph).to_owned(),
        declared,
        found,
    };
    for promise in &declared {
        match found.iter().find(|tensor| same(tensor, promise)) {
            Some(tensor) if tensor.keeps(promise) => {}
            Some(tensor) => return Err(mismatch(promise.to_string(), tensor.to_string())),
            None => return Err(mismatch(promise.to_string(), list(found))),
        }
    }
    match found.iter().find(|tensor| !declared.iter().any(|promise| same(tensor, promise))) {
        Some(extra) => Err(mismatch(list(&declared), format!("also {extra}"))),
        None => Ok(()),
    }
}

fn list(tensors: &[IoTensor]) -> String {
    tensors.iter().map(IoTensor::to_string).collect::<Vec<_>>().join(", ")
}
