//! Exports of keys and values in requests and answers of `POST /v1/compress`: which are exported, and where they are fetched.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thresher_core::pipeline::evict::{Eviction, HeadBudget};

use super::wire::{Word, choice};
use crate::error::{ApiError, ErrorCode};
use crate::kv_export::KvDtype;

/// What an answer has beside the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Include {
    /// A handle by which the keys and values of the kept chunks are fetched.
    Kv,
}

/// Which keys and values of the kept chunks are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvPolicy {
    /// Those of all tokens.
    #[default]
    Chunks,
    /// In each layer and head those with the highest RC for the question.
    Heads,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Kv")]
/// Options of an export of keys and values.
pub(super) struct KvBody {
    /// Whether each head's keys are exported in full.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<KvPolicy>")]
    policy: KvPolicy,
    /// For `heads`: each head keeps the fewest keys that have this share of its RC, including `sinks` and `recent`.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1))]
    mass: Option<f64>,
    /// For `heads`: this share of the keys is kept, distributed over heads and layers by RC. Default: 0.25, if `mass` is not given.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1))]
    ratio: Option<f64>,
    /// For `heads`: the number of first tokens, including special tokens, that every head keeps. Default: 4 and the special tokens, but at
    /// most a sixteenth of the kept keys.
    #[serde(default)]
    sinks: Option<usize>,
    /// For `heads`: the number of last tokens that every head keeps. Default: 4, but at most a sixteenth of the kept keys.
    #[serde(default)]
    recent: Option<usize>,
    /// The share of the tokens behind the first window that the model encodes again, attending to the chunks before them, 0 to 1. Those with the highest RC for
    /// the question come first. The first window is `before` or the beginning of the first chunk. Default: 0.15.
    #[serde(default)]
    #[schemars(extend("minimum" = 0, "maximum" = 1))]
    recompute: Option<f64>,
    /// The number format of keys and values in the file. Default: f32 if the cache has f32 (`blocks.codec`), otherwise f16.
    #[serde(default)]
    #[schemars(with = "Option<KvDtype>")]
    dtype: Option<Word<KvDtype>>,
    /// For `chunks`: the text in front of the chunks, such as the beginning of a chat template with the system prompt. Special tokens in
    /// it are read as such. Default: none.
    #[serde(default)]
    before: Option<String>,
    /// The text that the model will read after the chunks, with the question and what its chat template puts around it. Special tokens in
    /// it are read as such. RC is computed for this text. Default: `query`.
    #[serde(default)]
    prompt: Option<String>,
}

/// Which keys and values of the kept chunks a request asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct KvWanted {
    /// Exports only the keys with the highest RC for the question, in each layer and head. `None` exports those of all tokens.
    pub eviction: Option<Eviction>,
    /// The share of the tokens that are encoded again.
    pub recompute: f64,
    /// The number format of the file; `None` stands for that of the cache.
    pub dtype: Option<KvDtype>,
    /// The text in front of the chunks; `None`: the chunks are first.
    pub before: Option<String>,
    /// The text that the model will read after the chunks; `None` stands for the question alone.
    pub prompt: Option<String>,
}

impl Default for KvWanted {
    fn default() -> Self {
        Self { eviction: None, recompute: Self::RECOMPUTE_DEFAULT, dtype: None, before: None, prompt: None }
    }
}

impl KvWanted {
    /// The share of the keys that heads keep by default.
    const RATIO_DEFAULT: f64 = 0.25;
    /// The share of the tokens that are encoded again by default.
    const RECOMPUTE_DEFAULT: f64 = 0.15;

    /// The policy as the request names it.
    pub fn policy(&self) -> KvPolicy {
        if self.eviction.is_some() { KvPolicy::Heads } else { KvPolicy::Chunks }
    }
}

impl KvBody {
    pub(super) fn into_domain(self) -> Result<KvWanted, ApiError> {
        let Self { policy, mass, ratio, sinks, recent, recompute, dtype, before, prompt } = self;
        let recompute = recompute.unwrap_or(KvWanted::RECOMPUTE_DEFAULT);
        let dtype = dtype.map(|Word(dtype)| dtype);
        let keep = match (policy, mass, ratio) {
            (KvPolicy::Chunks, None, None) if sinks.is_none() && recent.is_none() => {
                return Ok(KvWanted { eviction: None, recompute, dtype, before, prompt });
            }
            (KvPolicy::Chunks, ..) => {
                let message = "kv takes mass, ratio, sinks and recent with \"policy\": \"heads\" only";
                return Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "kv"));
            }
            (KvPolicy::Heads, ..) if before.is_some() => {
                let message = "kv takes before with \"policy\": \"chunks\" only";
                return Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "kv"));
            }
            (KvPolicy::Heads, Some(_), Some(_)) => {
                let message = "kv takes \"mass\": M or \"ratio\": R, not both";
                return Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "kv"));
            }
            (KvPolicy::Heads, Some(mass), None) => HeadBudget::Mass(mass),
            (KvPolicy::Heads, None, ratio) => HeadBudget::Ratio(ratio.unwrap_or(KvWanted::RATIO_DEFAULT)),
        };
        Ok(KvWanted { eviction: Some(Eviction { keep, sinks, recent }), recompute, dtype, before, prompt })
    }
}

/// Where the keys and values of an answer can be fetched.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "KvHandle")]
pub struct KvAnswer {
    /// The handle that `GET /v1/kv/{handle}` takes.
    pub handle: String,
    /// Seconds until the export is deleted; it may be deleted earlier if newer ones need its memory.
    pub expires_s: u64,
    /// Which keys and values were asked for.
    pub policy: KvPolicy,
    /// The number of tokens, including those before the chunks: the position of the next token.
    pub tokens: usize,
    /// Tokens of the model's context that are left for the question and the answer.
    pub room_tokens: usize,
    /// The share of the keys that is exported.
    pub share: f64,
    /// The number of tokens that were encoded again, attending to the chunks before them.
    pub recomputed: usize,
    /// Whether the export has all keys and values that the model would compute in a prompt, up to the rounding of the cache: it has one
    /// window, or all tokens behind the first window were encoded again.
    pub exact: bool,
    /// The number format of keys and values in the file.
    pub dtype: KvDtype,
    /// The id of each token, special tokens included. A prompt for a program that loads the export begins with these ids.
    pub token_ids: Vec<u32>,
    /// The text of the exported chunks. It is there if the tokenizer gives `before` and this text together exactly `token_ids`, so that
    /// a server that takes only text, such as a chat API, can load the export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The size of the file.
    pub bytes: usize,
    /// The fingerprint of the model. Only a model with the same weights can use them.
    pub fingerprint: String,
}
