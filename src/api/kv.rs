//! Keys and values in requests and answers: which are handed over, and where they are fetched.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thresher_core::pipeline::evict::{Eviction, HeadBudget};

use super::request::choice;
use crate::error::{ApiError, ErrorCode};

/// What else than a context an answer is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Include {
    /// A handle by which the kept chunks' keys and values are fetched.
    Kv,
}

/// Which keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvPolicy {
    /// All of each kept chunk.
    #[default]
    Chunks,
    /// In each layer and head those that the question's RC reaches.
    Heads,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Kv")]
/// Which keys and values of the kept chunks are handed over.
pub(super) struct KvBody {
    /// Whole chunks, or each head's best keys.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<KvPolicy>")]
    policy: KvPolicy,
    /// Of `heads`: in each head the fewest keys that carry this share of its RC, those that are kept anyway included.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1))]
    mass: Option<f64>,
    /// Of `heads`: this share of each layer's keys, shared out among its heads by RC; without either, a quarter.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1))]
    ratio: Option<f64>,
    /// Of `heads`: tokens at the front that every head keeps, special tokens included; without it 4 and the special ones, and of few that
    /// are kept at most a sixteenth.
    #[serde(default)]
    sinks: Option<usize>,
    /// Of `heads`: tokens at the end that every head keeps; without it 4, or a sixteenth.
    #[serde(default)]
    recent: Option<usize>,
}

/// What of keys and values a request wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KvWanted {
    /// All of each kept chunk.
    Chunks,
    /// Those that the question's RC reaches.
    Heads(Eviction),
}

impl KvWanted {
    /// Share of the keys that heads keep when nobody says.
    const RATIO_DEFAULT: f64 = 0.25;

    /// As it was asked for.
    pub fn policy(&self) -> KvPolicy {
        match self {
            Self::Chunks => KvPolicy::Chunks,
            Self::Heads(_) => KvPolicy::Heads,
        }
    }
}

impl KvBody {
    pub(super) fn into_domain(self) -> Result<KvWanted, ApiError> {
        let Self { policy, mass, ratio, sinks, recent } = self;
        let keep = match (policy, mass, ratio) {
            (KvPolicy::Chunks, None, None) if sinks.is_none() && recent.is_none() => {
                return Ok(KvWanted::Chunks);
            }
            (KvPolicy::Chunks, ..) => {
                let message = "kv takes mass, ratio, sinks and recent with \"policy\": \"heads\" only";
                return Err(ApiError::with_param(ErrorCode::KvAmbiguous, message, "kv"));
            }
            (KvPolicy::Heads, Some(_), Some(_)) => {
                let message = "kv takes \"mass\": M or \"ratio\": R, not both";
                return Err(ApiError::with_param(ErrorCode::KvAmbiguous, message, "kv"));
            }
            (KvPolicy::Heads, Some(mass), None) => HeadBudget::Mass(mass),
            (KvPolicy::Heads, None, ratio) => HeadBudget::Ratio(ratio.unwrap_or(KvWanted::RATIO_DEFAULT)),
        };
        Ok(KvWanted::Heads(Eviction { keep, sinks, recent }))
    }
}

/// Where the keys and values of an answer are fetched.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "KvHandle")]
pub struct KvAnswer {
    /// `GET /v1/kv/{handle}` gives them, for so long.
    pub handle: String,
    /// Seconds after which they are forgotten; earlier where others need the room.
    pub expires_s: u64,
    /// What was asked for.
    pub policy: KvPolicy,
    /// Tokens, those in front of the chunks included: the place of what comes next.
    pub tokens: usize,
    /// Tokens of the model's context that are left for the question and what is said.
    pub room_tokens: usize,
    /// Share of the keys that is kept.
    pub share: f64,
    /// Of the file.
    pub bytes: usize,
    /// Which model they are of: only one with the same weights can take them over.
    pub fingerprint: String,
}
