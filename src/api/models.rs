//! `GET /v1/models`: who answers.

use schemars::JsonSchema;
use serde::Serialize;
use thresher_core::pipeline::Pipeline;

/// Answer of `GET /v1/models`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Models")]
pub struct ModelsAnswer {
    object: &'static str,
    /// The one that is loaded.
    data: [ModelAnswer; 1],
}

/// A model.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Model")]
struct ModelAnswer {
    /// Its name.
    id: String,
    object: &'static str,
    /// What tells it from any other, its weights included.
    fingerprint: String,
    /// Tokens that it reads at a time.
    window_tokens_max: usize,
    /// Heads that RC is taken over.
    heads: usize,
    /// Components of a key.
    head_dim: usize,
    /// The statistic.
    estimator: String,
    /// Where it runs.
    device: String,
}

impl ModelsAnswer {
    /// Of the model in this pipeline.
    pub fn new(pipeline: &Pipeline) -> Self {
        let model = pipeline.model();
        let answer = ModelAnswer {
            id: model.name.clone(),
            object: "model",
            fingerprint: model.fingerprint.clone(),
            window_tokens_max: model.window_tokens_max,
            heads: model.readout.len(),
            head_dim: model.head_dim,
            estimator: pipeline.estimator(),
            device: model.device.name.clone(),
        };
        Self { object: "list", data: [answer] }
    }
}
