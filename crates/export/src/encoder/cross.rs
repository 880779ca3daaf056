//! Cross-encoders: what a checkpoint for sequence classification adds to an encoder. It reads two texts in one window;
//! a layer with an activation and an output layer follow the hidden state of the first token.

use std::collections::BTreeMap;

use thresher_core::model::contract::{Cross, Weights};

use super::{Encoder, Family};
use crate::{
    ExportError,
    graph::{Activation, GraphBuilder, StoredTensor, Value},
    input::Input,
    keys::Config,
    linear::Linear,
    source::PairTokens,
    weights::Checkpoint,
    write::WeightFile,
};

/// The class names of cross-encoders that can be exported, with their families.
pub const ARCHITECTURES: [(&str, Family); 6] = [
    ("BertForSequenceClassification", Family::Bert),
    ("RobertaForSequenceClassification", Family::Roberta),
    ("XLMRobertaForSequenceClassification", Family::Roberta),
    ("CamembertForSequenceClassification", Family::Roberta),
    ("DistilBertForSequenceClassification", Family::DistilBert),
    ("MPNetForSequenceClassification", Family::MpNet),
];

/// What the name of the label begins with that says that the first text supports the second.
const SUPPORT_NAMES: [&str; 2] = ["entail", "support"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    names: Vec<String>,
    /// The index of the label that says that the first text supports the second.
    support: usize,
}

/// The two layers after the encoder in the weights file, and what token types add to an embedding.
#[derive(Debug)]
pub struct Head {
    dense: Linear,
    is_relu: bool,
    out: Linear,
    /// `[2, d]`: what a token of type 1 has more than one of type 0, behind a row of zeros.
    type_steps: Option<StoredTensor>,
}

/// The names of the two layers in a family's checkpoints.
fn layers(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::Bert => ("bert.pooler.dense", "classifier"),
        Family::DistilBert => ("pre_classifier", "classifier"),
        _ => ("classifier.dense", "classifier.out_proj"),
    }
}

impl Labels {
    /// Reads the labels of a configuration. `named` is the name of the label that says that the first text supports
    /// the second; without it, that is the only label, or the one whose name begins with `entail` or `support`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the labels are not numbered from 0, or if it is not clear which one is meant.
    pub fn read(config: &Config, named: Option<&str>) -> Result<Self, ExportError> {
        const KEY: &str = "id2label";
        let by_id: BTreeMap<String, String> = config.get(KEY)?.unwrap_or_default();
        let count = match by_id.len() {
            // As in `transformers`.
            0 => config.size("num_labels")?.unwrap_or(2),
            count => count,
        };
        let name = |id: usize| {
            if by_id.is_empty() { Some(format!("LABEL_{id}")) } else { by_id.get(&id.to_string()).cloned() }
        };
        let Some(names) = (0..count).map(name).collect::<Option<Vec<String>>>() else {
            let found = by_id.keys().cloned().collect::<Vec<_>>().join(", ");
            return config.refuse(KEY, found, "the numbers from 0 on".to_owned());
        };
        let is_meant = |name: &String| match named {
            Some(named) => name.eq_ignore_ascii_case(named),
            None => SUPPORT_NAMES.iter().any(|support| name.to_lowercase().starts_with(support)),
        };
        let mut meant = (0..count).filter(|&id| is_meant(&names[id]) || named.is_none() && count == 1);
        match (meant.next(), meant.next()) {
            (Some(support), None) => Ok(Self { names, support }),
            _ => {
                let supported = match named {
                    Some(named) => format!("a label of this name for --support-label {named}"),
                    None => "one label whose name begins with entail or support; name another one with \
                             --support-label"
                        .to_owned(),
                };
                config.refuse(KEY, names.join(", "), supported)
            }
        }
    }

    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Returns the contract's table for a graph with these labels.
    pub fn contract(self, graph: &str, pair: PairTokens, head: &Head) -> Cross {
        Cross {
            graph: graph.to_owned(),
            between: pair.between,
            token_types: head.type_steps.is_some(),
            labels: self.names,
            support: self.support,
            verdicts: None,
        }
    }
}

impl Head {
    /// Copies the layers after `encoder` from `input` to `out`. They stay `f32`, because they are small. `pair` is how
    /// the tokenizer joins two texts.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a tensor is missing or has another shape, or if a file cannot be written.
    pub fn store(
        encoder: &Encoder,
        input: &Input,
        labels: &Labels,
        pair: &PairTokens,
        out: &mut WeightFile,
    ) -> Result<Self, ExportError> {
        let (dense, last) = layers(encoder.family);
        let (d, count) = (encoder.hidden, labels.count());
        let mut linear = |name: &str, outputs: usize| {
            let weight = input.checkpoint.read(&format!("{name}.weight"), &[outputs, d])?;
            let bias = input.checkpoint.read(&format!("{name}.bias"), &[outputs])?;
            Linear::store(out, name, (&weight.transposed(), Some(&bias)), Weights::F32)
        };
        let (dense, last) = (linear(dense, d)?, linear(last, count)?);
        let type_steps = if pair.has_types { type_steps(encoder, &input.checkpoint, out)? } else { None };
        Ok(Self { dense, is_relu: encoder.family == Family::DistilBert, out: last, type_steps })
    }

    /// Adds what the types of tokens add to their embeddings: `x [b, t, d]`, `types [b, t]` → `[b, t, d]`.
    pub(super) fn with_types(&self, g: &mut GraphBuilder, x: &Value, types: &Value) -> Value {
        let Some(steps) = &self.type_steps else { return x.clone() };
        let steps = g.weight(steps);
        let steps = g.gather(&steps, types);
        g.add(x, &steps)
    }

    /// Computes the logits of the labels from the last hidden states: `x [1, t, d]` → `[1, labels]`.
    pub(super) fn logits(&self, g: &mut GraphBuilder, x: &Value) -> Value {
        let first = g.const_i64(&[0]);
        let first = g.gather_along(x, &first, 1);
        let first = g.reshape(&first, &[1, -1]);
        let hidden = self.dense.apply(g, &first);
        let active = if self.is_relu { g.activate(&hidden, Activation::Relu) } else { g.tanh(&hidden) };
        self.out.apply(g, &active)
    }

    /// Returns whether the graph reads the types of tokens.
    pub(super) fn has_types(&self) -> bool {
        self.type_steps.is_some()
    }
}

/// Copies the difference of the embeddings of the first two token types; `None` if the encoder has only one type.
fn type_steps(
    encoder: &Encoder,
    checkpoint: &Checkpoint,
    out: &mut WeightFile,
) -> Result<Option<StoredTensor>, ExportError> {
    let Encoder { token_types, hidden: d, .. } = *encoder;
    if token_types < 2 {
        return Ok(None);
    }
    let names = encoder.names(|key| checkpoint.contains(key));
    let key = format!("{}{}.weight", names.prefix(|key| checkpoint.contains(key)), names.token_types);
    let types = checkpoint.read(&key, &[token_types, d])?.values;
    let steps = types[..d].iter().zip(&types[d..2 * d]).map(|(zero, one)| one - zero);
    let rows: Vec<f32> = std::iter::repeat_n(0.0, d).chain(steps).collect();
    out.push("token_type_steps", &[2, d], &rows).map(Some)
}
