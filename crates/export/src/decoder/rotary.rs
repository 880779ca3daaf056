//! The frequencies of rotary positions, with their scalings, as `transformers` computes them.
//! Knows nothing of where they are used.

use std::f64::consts::TAU;
use std::path::Path;

use serde_json::{Map, Value};
use thresher_core::model::contract::Rotary;

use crate::{ExportError, source::optional};

/// Base of the frequencies where a configuration names none.
const THETA: f64 = 10_000.0;

/// How a family's configuration names the base and the part of a head that turns.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    pub theta: &'static str,
    pub part: &'static str,
    /// Whether the family's code turns a part of a head, too.
    pub turns_parts: bool,
}

/// The frequencies of heads of `head_dim` components.
///
/// # Errors
/// A scaling that is not supported, or one that lacks a number.
pub fn read(
    config: &Map<String, Value>,
    keys: Keys,
    head_dim: usize,
    file: &Path,
) -> Result<Rotary, ExportError> {
    // Newer versions of `transformers` write everything into `rope_parameters`, older ones the scaling into `rope_scaling`.
    let newer: Option<Map<_, _>> = optional(config, "rope_parameters", file)?;
    let scaling: Option<Map<_, _>> = optional(config, "rope_scaling", file)?;
    let (theta, part) = match &newer {
        Some(newer) => {
            (optional(newer, "rope_theta", file)?, optional(newer, "partial_rotary_factor", file)?)
        }
        None => (None, None),
    };
    let theta = theta.or(optional(config, keys.theta, file)?).unwrap_or(THETA);
    let part: f64 = part.or(optional(config, keys.part, file)?).unwrap_or(1.0);
    let dim = (head_dim as f64 * part) as usize;
    if dim == 0 || dim > head_dim || !dim.is_multiple_of(2) || dim < head_dim && !keys.turns_parts {
        let supported =
            if keys.turns_parts { format!("an even part of {head_dim} components") } else { "1".to_owned() };
        return Err(ExportError::Unsupported {
            file: file.to_owned(),
            key: keys.part,
            found: part.to_string(),
            supported,
        });
    }
    let plain = (0..dim / 2).map(|pair| theta.powf(-2.0 * pair as f64 / dim as f64));
    let scaled = match newer.or(scaling) {
        None => plain.collect(),
        Some(scaling) => scaled(plain, &scaling, file)?,
    };
    let frequencies: Vec<f32> = scaled.into_iter().map(|frequency| frequency as f32).collect();
    match frequencies.iter().find(|frequency| !(frequency.is_finite() && **frequency > 0.0)) {
        Some(odd) => Err(ExportError::Unsupported {
            file: file.to_owned(),
            key: keys.theta,
            found: format!("{theta}, with rope_scaling a frequency of {odd}"),
            supported: "a base and factors above 0".to_owned(),
        }),
        None => Ok(Rotary { dim, frequencies }),
    }
}

fn scaled(
    plain: impl Iterator<Item = f64>,
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
        "default" => Ok(plain.collect()),
        "linear" => {
            let factor = number("factor")?;
            Ok(plain.map(|frequency| frequency / factor).collect())
        }
        "llama3" => {
            let (factor, low, high) =
                (number("factor")?, number("low_freq_factor")?, number("high_freq_factor")?);
            let context = number("original_max_position_embeddings")?;
            let scale = |frequency: f64| {
                let turns = context * frequency / TAU;
                // Slow turns are stretched, fast ones stay, those between are mixed.
                let stays = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (stays + (1.0 - stays) / factor)
            };
            Ok(plain.map(scale).collect())
        }
        other => Err(ExportError::Unsupported {
            file: file.to_owned(),
            key: "rope_scaling",
            found: other.to_owned(),
            supported: "default, linear, llama3".to_owned(),
        }),
    }
}
