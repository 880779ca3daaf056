//! The sliding windows of a decoder's layers, as `config.json` gives them. Does not know what the graph does
//! with them.

use super::{Decoder, Family};
use crate::{
    ExportError,
    keys::Config,
    rotary::{FULL, SLIDING},
};

/// The default of `transformers` for the size of a sliding window, in tokens.
const WINDOW_DEFAULT: usize = 4096;

/// The default of `transformers` for the number of layers before the first with a sliding window.
const FULL_LAYERS_DEFAULT: usize = 28;

/// The default of `transformers` for Gemma 3: every layer whose number, counted from 1, is a multiple of this
/// has full attention.
const PATTERN_DEFAULT: usize = 6;

impl Decoder {
    /// The sliding windows as the contract has them: empty if all layers have full attention.
    pub fn declared_windows(&self) -> Vec<usize> {
        if self.sliding_windows.iter().any(Option::is_some) {
            self.sliding_windows.iter().map(|window| window.unwrap_or(0)).collect()
        } else {
            Vec::new()
        }
    }
}

impl Config<'_> {
    /// The size of each layer's sliding window in tokens; `None` for full attention.
    pub(super) fn sliding_windows(
        &self,
        family: Family,
        layers: usize,
    ) -> Result<Vec<Option<usize>>, ExportError> {
        // A configuration without the key was written when the window was always on; null switches it off.
        let window =
            if self.contains("sliding_window") { self.get("sliding_window")? } else { Some(WINDOW_DEFAULT) };
        if window == Some(0) {
            return self.refuse("sliding_window", "0".to_owned(), "1 or more".to_owned());
        }
        let is_enabled = match family {
            Family::Mistral | Family::Gemma3 => true,
            Family::Qwen2 | Family::Qwen3 => self.get("use_sliding_window")?.unwrap_or(false),
            _ => false,
        };
        let window = window.filter(|_| is_enabled);
        let types = match self.get::<Vec<String>>("layer_types")? {
            Some(types) => types,
            None if family == Family::Gemma3 => self.types_by_pattern(layers)?,
            None => {
                let first_layer = match family {
                    Family::Mistral => 0,
                    _ => self.get("max_window_layers")?.unwrap_or(FULL_LAYERS_DEFAULT),
                };
                return Ok((0..layers).map(|layer| window.filter(|_| layer >= first_layer)).collect());
            }
        };
        if types.len() != layers {
            return self.refuse(
                "layer_types",
                format!("{} types", types.len()),
                format!("{layers}, one for each layer"),
            );
        }
        let of_type = |kind: &String| match (kind.as_str(), window) {
            (FULL, _) => Ok(None),
            (SLIDING, Some(window)) => Ok(Some(window)),
            (SLIDING, None) => self.refuse(
                "sliding_window",
                "off".to_owned(),
                "a number, since there are layers with sliding_attention".to_owned(),
            ),
            _ => self.refuse("layer_types", kind.clone(), format!("{FULL}, {SLIDING}")),
        };
        types.iter().map(of_type).collect()
    }

    /// The types of the layers of a Gemma 3 whose configuration has no list of them.
    fn types_by_pattern(&self, layers: usize) -> Result<Vec<String>, ExportError> {
        let pattern = self.size("sliding_window_pattern")?.unwrap_or(PATTERN_DEFAULT);
        let of_layer = |layer: usize| if (layer + 1).is_multiple_of(pattern) { FULL } else { SLIDING };
        Ok((0..layers).map(|layer| of_layer(layer).to_owned()).collect())
    }
}
