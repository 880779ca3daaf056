//! Compares what a contract declares of each layer of a decoder with the layer's part of the graph: the rotary
//! frequencies, which move cached keys to other positions, and the sliding windows.

use crate::model::ModelError;
use crate::model::contract::{ContractError, Decoder, value_names};
use crate::model::onnx::{self, GraphProto, MissingValue, ModelProto};

/// Checks every layer of the graph.
///
/// # Errors
/// Returns [`ContractError::IoMismatch`] for the first layer that differs from the contract, or if the graph
/// lacks one of the values of [`value_names`].
pub fn check(decoder: &Decoder, model: &ModelProto) -> Result<(), ModelError> {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    let is_mask = |name: &&String| name.starts_with(value_names::ATTENTION_MASK_PREFIX);
    let masks = nodes.flat_map(|node| &node.output).filter(is_mask).cloned().collect();
    let graph = DecoderGraph { decoder, model, masks };
    for layer in 0..decoder.layers {
        graph.check_rotary(layer)?;
        graph.check_window(layer)?;
    }
    Ok(())
}

struct DecoderGraph<'a> {
    decoder: &'a Decoder,
    model: &'a ModelProto,
    /// The names of all attention masks in the graph.
    masks: Vec<String>,
}

impl DecoderGraph<'_> {
    /// Checks that the keys of `layer` rotate with the frequencies that the contract declares.
    fn check_rotary(&self, layer: usize) -> Result<(), ModelError> {
        let declared = self.decoder.rotary_of_layer(layer).map(|rotary| &rotary.frequencies);
        let cosines = [value_names::COS, value_names::COS_LOCAL].map(str::to_owned);
        let used = self.used_of(&cosines, layer, value_names::key(layer))?;
        let bytes: Option<Vec<u8>> = declared.map(|all| all.iter().flat_map(|f| f.to_le_bytes()).collect());
        let matches = match (&used[..], &bytes) {
            ([], None) => true,
            ([cosine], Some(bytes)) => {
                let constants = self.part(&[], cosine.clone())?.initializer;
                constants.iter().any(|constant| constant.raw_data.as_ref() == Some(bytes))
            }
            _ => false,
        };
        let key = if self.decoder.rotary_local.is_some() && self.decoder.sliding_window(layer).is_some() {
            "decoder.rotary_local"
        } else {
            "decoder.rotary"
        };
        let declared = declared.map_or(format!("no {key}"), |_| format!("these {key}.frequencies"));
        let found = if used.is_empty() { "learned positions" } else { "other rotary frequencies" };
        if matches { Ok(()) } else { self.refuse(layer, declared, found.to_owned()) }
    }

    /// Checks that `layer` has the sliding window that the contract declares. A contract without sliding
    /// windows declares nothing.
    fn check_window(&self, layer: usize) -> Result<(), ModelError> {
        if self.decoder.sliding_windows.is_empty() {
            return Ok(());
        }
        let output = value_names::layer_output(layer, self.decoder.layers);
        let declared = value_names::attention_mask(self.decoder.sliding_window(layer));
        let used = self.used_of(&self.masks, layer, output)?;
        if used == [declared.as_str()] {
            return Ok(());
        }
        self.refuse(layer, format!("the attention mask `{declared}`"), format!("`{}`", used.join("`, `")))
    }

    /// Returns those of `values` from which `layer` computes `output`.
    fn used_of(&self, values: &[String], layer: usize, output: String) -> Result<Vec<String>, ContractError> {
        let given = [&[value_names::hidden(layer)], values].concat();
        let inputs = self.part(&given, output)?.input.into_iter().map(|input| input.name);
        Ok(inputs.filter(|name| values.contains(name)).collect())
    }

    /// Returns the part of the graph that computes `output` from `given`.
    fn part(&self, given: &[String], output: String) -> Result<GraphProto, ContractError> {
        let part = onnx::extract_subgraph(self.model, given, &[output]);
        let missing = |MissingValue(name)| ContractError::IoMismatch {
            graph: self.decoder.graph.clone(),
            declared: format!("the value `{name}`"),
            found: "no value with this name".to_owned(),
        };
        part.map_err(missing).map(|model| model.graph.unwrap_or_default())
    }

    fn refuse(&self, layer: usize, declared: String, found: String) -> Result<(), ModelError> {
        let graph = self.decoder.graph.clone();
        let declared = format!("{declared} in layer {layer}");
        Err(ContractError::IoMismatch { graph, declared, found }.into())
    }
}
