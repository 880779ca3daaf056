//! What stands in front of which server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::find::Policy;
use crate::domain::Budget;

/// Settings of the middleware.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MiddlewareSettings {
    /// Who answers; the first one that has a model is asked for it. None: there is no middleware.
    pub upstreams: Vec<UpstreamSettings>,
    /// Which requests are compressed.
    pub compress: When,
    /// Whether the answers to compressed requests are cited.
    pub cite: bool,
    /// Tools whose results are compressed; `*` for all.
    pub tools: Vec<String>,
    /// What stands in front of a context inside a message; empty: contexts are not looked for.
    pub context_start: String,
    /// What stands behind it.
    pub context_end: String,
    /// The share of tokens that is kept; 0: as much as the evidence says.
    pub ratio: f64,
    /// Prompts are not brought below so many tokens, and shorter ones go whole, unless a request names a budget.
    pub prompt_tokens_min: usize,
    /// For compressing, and again for citing; what is late goes on as it is.
    pub deadline_ms: u64,
    /// Bytes of a request, and of an answer that is held until it is whole.
    pub body_bytes_max: usize,
    /// Requests on their way at the same time.
    pub request_count_max: usize,
    /// For a connection to a server.
    pub connect_ms_max: u64,
    /// For a server to begin its answer, or to go on with it.
    pub silence_ms_max: u64,
}

/// A server that answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamSettings {
    /// Where it is; its path, if any, stands in front of the request's.
    pub url: String,
    /// Models that it has; `*` at the end stands for any end. None: all.
    #[serde(default)]
    pub models: Vec<String>,
    /// Which of its requests are compressed, where it is not as elsewhere.
    #[serde(default)]
    pub compress: Option<When>,
    /// A file with the key that it is asked with instead of the caller's.
    #[serde(default)]
    pub key_file: PathBuf,
    /// PEM of the authorities that it is known by, instead of the public ones.
    #[serde(default)]
    pub ca_file: PathBuf,
}

/// Which requests are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Those that ask for it.
    #[default]
    Asked,
    /// All that do not forbid it.
    Always,
}

impl Default for MiddlewareSettings {
    fn default() -> Self {
        Self {
            upstreams: Vec::new(),
            compress: When::Asked,
            cite: true,
            tools: Vec::new(),
            context_start: "<context>".to_owned(),
            context_end: "</context>".to_owned(),
            ratio: 0.0,
            prompt_tokens_min: 1_024,
            deadline_ms: 2_000,
            body_bytes_max: 33_554_432,
            request_count_max: 1_024,
            connect_ms_max: 5_000,
            silence_ms_max: 600_000,
        }
    }
}

impl MiddlewareSettings {
    /// What cannot be.
    pub fn nonsense(&self) -> Option<String> {
        let said = |broken: bool, message: &str| broken.then(|| message.to_owned());
        let of_urls = self.upstreams.iter().find_map(|upstream| {
            let known = ["http://", "https://"].iter().any(|scheme| upstream.url.starts_with(scheme));
            let message = format!(
                "middleware.upstreams: {:?} is no http:// or https:// address with a path at most; a key stands in key_file",
                upstream.url
            );
            (!known || upstream.url.contains(['@', '?', '#'])).then_some(message)
        });
        of_urls
            .or(said(!(0.0..=1.0).contains(&self.ratio), "middleware.ratio is not from 0 to 1"))
            .or(said(
                self.context_start.is_empty() != self.context_end.is_empty(),
                "middleware.context_start and middleware.context_end: name both, or neither",
            ))
            .or(said(
                !self.context_start.is_empty() && self.context_start == self.context_end,
                "middleware.context_start and middleware.context_end are the same",
            ))
            .or(said(self.deadline_ms == 0, "middleware.deadline_ms is 0: nothing would be compressed"))
            .or(said(
                self.request_count_max == 0,
                "middleware.request_count_max is 0: nothing could be asked",
            ))
            .or(said(self.connect_ms_max == 0, "middleware.connect_ms_max is 0: nobody could be reached"))
            .or(said(self.silence_ms_max == 0, "middleware.silence_ms_max is 0: nobody could answer"))
    }

    /// What may be compressed.
    pub fn policy(&self, keeps_documents: bool) -> Policy {
        let delimiters = (!self.context_start.is_empty()).then(|| self.delimiters());
        Policy { tools: self.tools.clone(), delimiters, keeps_documents }
    }

    /// How much is kept where a request does not say.
    pub fn budget(&self) -> Budget {
        if self.ratio > 0.0 { Budget::Ratio(self.ratio) } else { Budget::Auto }
    }

    /// What stands around a context.
    pub fn delimiters(&self) -> (String, String) {
        (self.context_start.clone(), self.context_end.clone())
    }
}

impl UpstreamSettings {
    /// Whether it has a model of that name.
    pub fn has(&self, model: &str) -> bool {
        let is = |name: &String| match name.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model == name,
        };
        self.models.is_empty() || self.models.iter().any(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_their_server() {
        let upstream = |models: &[&str]| UpstreamSettings {
            url: "http://x".to_owned(),
            models: models.iter().map(|&model| model.to_owned()).collect(),
            compress: None,
            key_file: PathBuf::new(),
            ca_file: PathBuf::new(),
        };
        let check =
            |models: &[&str], model: &str, expect: bool| assert_eq!(upstream(models).has(model), expect);
        check(&[], "any", true);
        check(&["gpt-*", "o3"], "gpt-5", true);
        check(&["gpt-*", "o3"], "o3", true);
        check(&["gpt-*", "o3"], "o3-mini", false);
    }
}
