//! Counts the floating-point operations of the passage graph from the graph itself.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, bail};
use thresher_core::model::contract::{Contract, Family, Graph};
use thresher_core::model::onnx::read_graph;

/// Floating-point operations; one multiplication and one addition count as two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flops {
    /// Operations per token in products with weights.
    dense: f64,
    /// Attention operations per token and per token that it attends to.
    attention: f64,
    /// Number of special tokens around a window's own tokens.
    specials: usize,
}

impl Flops {
    /// Counts the operations of a model's passage graph: products with constant matrices, and two products as
    /// wide as the model for each softmax.
    ///
    /// # Errors
    /// Fails if the contract or the graph cannot be read, or if the model is not a late-interaction model.
    pub fn of_model(dir: &Path) -> anyhow::Result<Self> {
        let contract = Contract::load(dir)?;
        let path = dir.join(contract.graph_file(Graph::Passage));
        let graph = read_graph(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let dims: HashMap<_, _> = graph.initializer.iter().map(|w| (w.name.as_str(), &w.dims)).collect();
        let specials = contract.tokenizer.prefix.len() + contract.tokenizer.suffix.len();
        let mut flops = Self { dense: 0.0, attention: 0.0, specials };
        let Family::Late(late) = &contract.family else {
            bail!("{} is no late-interaction model", contract.name)
        };
        let width = late.heads * late.head_dim;
        for node in &graph.node {
            match node.op_type.as_str() {
                "MatMul" | "MatMulInteger" => {
                    let weight = node.input.get(1).and_then(|name| dims.get(name.as_str()));
                    flops.dense += weight.map_or(0.0, |dims| 2.0 * dims.iter().product::<i64>() as f64);
                }
                "Softmax" => flops.attention += 4.0 * width as f64,
                _ => {}
            }
        }
        Ok(flops)
    }

    /// Returns the operations of one pass over windows with these numbers of tokens; the special tokens
    /// around each window are added.
    pub fn of_windows(&self, lengths: impl Iterator<Item = usize>) -> f64 {
        let framed = lengths.map(|tokens| (tokens + self.specials) as f64);
        framed.map(|tokens| tokens * (self.dense + self.attention * tokens)).sum()
    }
}
