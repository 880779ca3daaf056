//! Rotary position embeddings: computes the frequencies that a `config.json` describes. Does not know about
//! graphs.

use std::f64::consts::TAU;
use std::path::Path;

use serde_json::{Map, Value};
use thresher_core::model::contract::Rotary;

use super::{ExportError, source::optional};

/// The type of a layer whose queries attend to all keys before them.
pub const FULL: &str = "full_attention";

/// The type of a layer with a sliding window.
pub const SLIDING: &str = "sliding_attention";

/// The base of the rotary frequencies if the configuration has none.
const THETA_DEFAULT: f64 = 10_000.0;

/// The keys of the rotary position embedding in a family's configuration.
#[derive(Debug, Clone, Copy)]
pub struct RotaryKeys {
    /// The base of the frequencies.
    pub theta: &'static str,
    /// The share of a head's components that the rotary embedding covers.
    pub partial: &'static str,
    /// Whether the family supports a share below 1.
    pub supports_partial: bool,
}

/// Computes the rotary frequencies for heads of `head_dim` components, with their scaling, as `transformers`
/// does.
///
/// # Errors
/// Returns an [`ExportError`] that names the key whose value is malformed or not supported.
pub fn read_rotary(
    config: &Map<String, Value>,
    keys: RotaryKeys,
    head_dim: usize,
    file: &Path,
) -> Result<Rotary, ExportError> {
    // Newer versions of `transformers` write everything to `rope_parameters`, older ones the scaling to
    // `rope_scaling`.
    let newer: Option<Map<_, _>> = optional(config, "rope_parameters", file)?;
    let scaling: Option<Map<_, _>> = optional(config, "rope_scaling", file)?;
    let (theta, partial) = match &newer {
        Some(newer) => {
            (optional(newer, "rope_theta", file)?, optional(newer, "partial_rotary_factor", file)?)
        }
        None => (None, None),
    };
    let theta = theta.or(optional(config, keys.theta, file)?).unwrap_or(THETA_DEFAULT);
    let partial: f64 = partial.or(optional(config, keys.partial, file)?).unwrap_or(1.0);
    let dim = (head_dim as f64 * partial) as usize;
    if dim == 0 || dim > head_dim || !dim.is_multiple_of(2) || dim < head_dim && !keys.supports_partial {
        let supported = if keys.supports_partial {
            format!("an even part of {head_dim} components")
        } else {
            "1".to_owned()
        };
        return Err(ExportError::Unsupported {
            file: file.to_owned(),
            key: keys.partial,
            found: partial.to_string(),
            supported,
        });
    }
    let unscaled = (0..dim / 2).map(|pair| theta.powf(-2.0 * pair as f64 / dim as f64));
    let scaled = match newer.or(scaling) {
        None => unscaled.collect(),
        Some(scaling) => scale_frequencies(unscaled, &scaling, file)?,
    };
    let frequencies: Vec<f32> = scaled.into_iter().map(|frequency| frequency as f32).collect();
    match frequencies.iter().find(|frequency| !(frequency.is_finite() && **frequency > 0.0)) {
        Some(invalid) => Err(ExportError::Unsupported {
            file: file.to_owned(),
            key: keys.theta,
            found: format!("{theta}, with rope_scaling a frequency of {invalid}"),
            supported: "a base and factors above 0".to_owned(),
        }),
        None => Ok(Rotary { dim, frequencies }),
    }
}

/// The rotary embeddings of the layers of one model.
pub struct LayerRotary {
    /// That of layers with full attention or, without `local`, of all layers.
    pub global: Rotary,
    /// The embedding of layers with a sliding window; `None` if they use `global`.
    pub local: Option<Rotary>,
}

/// Computes the rotary frequencies of Gemma 3, which has one base for layers with full attention and another
/// one for layers with a sliding window. Only the former may be scaled. `windows` has an entry for each layer.
///
/// # Errors
/// Returns an [`ExportError`] that names the key whose value is malformed or not supported.
pub fn read_layer_rotary(
    config: &Map<String, Value>,
    windows: &[Option<usize>],
    head_dim: usize,
    file: &Path,
) -> Result<LayerRotary, ExportError> {
    let read = |kind| read_rotary_of_kind(config, kind, head_dim, file);
    let (global, local) = (read(&GLOBAL)?, read(&LOCAL)?);
    let has_local = windows.iter().any(Option::is_some);
    // A model without layers of one kind does not use the frequencies of this kind.
    Ok(if windows.iter().any(Option::is_none) {
        LayerRotary { local: Some(local).filter(|local| has_local && *local != global), global }
    } else {
        LayerRotary { global: local, local: None }
    })
}

/// A kind of layers, and where a configuration has its rotary embedding.
#[derive(Debug)]
pub struct LayerKind {
    /// The name of the kind in `layer_types` and in `rope_parameters`.
    pub name: &'static str,
    /// The key of the base of the frequencies in configurations without `rope_parameters`.
    pub theta: &'static str,
    /// The base of the frequencies in configurations that do not have it.
    pub theta_default: f64,
    /// Whether `rope_scaling`, which configurations without `rope_parameters` have, is that of this kind.
    pub has_scaling: bool,
}

const GLOBAL: LayerKind =
    LayerKind { name: FULL, theta: "rope_theta", theta_default: 1_000_000.0, has_scaling: true };

const LOCAL: LayerKind =
    LayerKind { name: SLIDING, theta: "rope_local_base_freq", theta_default: 10_000.0, has_scaling: false };

/// Computes the rotary frequencies of one kind of layers, in heads of `head_dim` components.
///
/// # Errors
/// Returns an [`ExportError`] that names the key whose value is malformed or not supported.
pub fn read_rotary_of_kind(
    config: &Map<String, Value>,
    kind: &LayerKind,
    head_dim: usize,
    file: &Path,
) -> Result<Rotary, ExportError> {
    // Newer versions of `transformers` write an object for each kind of layers to `rope_parameters`.
    let newer: Map<String, Value> = optional(config, "rope_parameters", file)?.unwrap_or_default();
    if let Some(other) = newer.keys().find(|key| ![FULL, SLIDING].contains(&key.as_str())) {
        return Err(ExportError::Unsupported {
            file: file.to_owned(),
            key: "rope_parameters",
            found: format!("an object with the key {other}"),
            supported: format!("an object with the keys {FULL} and {SLIDING}"),
        });
    }
    let mut parameters: Map<String, Value> = optional(&newer, kind.name, file)?.unwrap_or_default();
    if kind.has_scaling {
        let scaling: Option<Map<String, Value>> = optional(config, "rope_scaling", file)?;
        parameters.extend(scaling.unwrap_or_default());
    }
    if !parameters.contains_key("rope_theta") {
        let theta: f64 = optional(config, kind.theta, file)?.unwrap_or(kind.theta_default);
        parameters.insert("rope_theta".to_owned(), theta.into());
    }
    let mut config = config.clone();
    config.insert("rope_parameters".to_owned(), parameters.into());
    let keys = RotaryKeys { theta: kind.theta, partial: "partial_rotary_factor", supports_partial: false };
    read_rotary(&config, keys, head_dim, file)
}

fn scale_frequencies(
    unscaled: impl Iterator<Item = f64>,
    scaling: &Map<String, Value>,
    file: &Path,
) -> Result<Vec<f64>, ExportError> {
    let number = |key: &'static str| -> Result<f64, ExportError> {
        let found: Option<f64> = optional(scaling, key, file)?;
        found.ok_or_else(|| ExportError::Unsupported {
            file: file.to_owned(),
            key,
            found: "missing".to_owned(),
            supported: "a number, for this type of rope_scaling".to_owned(),
        })
    };
    let newer: Option<String> = optional(scaling, "rope_type", file)?;
    let kind = newer.or(optional(scaling, "type", file)?);
    match kind.as_deref().unwrap_or("default") {
        "default" => Ok(unscaled.collect()),
        "linear" => {
            let factor = number("factor")?;
            Ok(unscaled.map(|frequency| frequency / factor).collect())
        }
        "llama3" => {
            let (factor, low, high) =
                (number("factor")?, number("low_freq_factor")?, number("high_freq_factor")?);
            let context = number("original_max_position_embeddings")?;
            let scale = |frequency: f64| {
                let rotations = context * frequency / TAU;
                // Low frequencies are divided by the factor, high ones are kept, and those in between are
                // interpolated.
                let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            };
            Ok(unscaled.map(scale).collect())
        }
        // A type of this export: GGUF files have one factor for each frequency.
        "divided" => {
            let divisors: Vec<f64> = optional(scaling, "divisors", file)?.unwrap_or_default();
            let unscaled: Vec<f64> = unscaled.collect();
            if divisors.len() != unscaled.len() {
                return Err(ExportError::Unsupported {
                    file: file.to_owned(),
                    key: "divisors",
                    found: format!("{} factors", divisors.len()),
                    supported: format!("{}, one for each frequency of rope_scaling", unscaled.len()),
                });
            }
            Ok(unscaled.iter().zip(divisors).map(|(frequency, divisor)| frequency / divisor).collect())
        }
        other => Err(ExportError::Unsupported {
            file: file.to_owned(),
            key: "rope_scaling",
            found: other.to_owned(),
            supported: "default, linear, llama3".to_owned(),
        }),
    }
}
