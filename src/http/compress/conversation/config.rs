//! The options of a conversation that is compressed: the field `config`, in the format of Headroom, which gateways send.

use serde_json::Value;
use thresher_core::domain::{Budget, Granularity};
use thresher_core::pipeline::validate;
use thresher_core::plain::Shortened;

use crate::error::{ApiError, ErrorCode};
use crate::middleware::dialect::{Conversation, PartKind, Role};
use crate::middleware::find::{Passage, Turn};
use crate::middleware::json::Located;
use crate::middleware::session::SESSION_ID_CHARS_MAX;

#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Whether shortened texts name the hash under which the original is stored.
    pub names_hashes: bool,
    pub session_id: Option<String>,
    /// How many messages at the beginning come back as they were sent.
    pub frozen_message_count: usize,
    /// How many messages at the end come back as they were sent.
    recent_message_count: usize,
    /// Whether contexts in messages of the user may be compressed.
    compresses_user: bool,
    /// Whether contexts in messages of the system may be compressed.
    compresses_system: bool,
    /// How much is kept, if the request says so.
    pub budget: Option<Budget>,
}

impl Config {
    /// Reads the options of a body with `message_count` messages. Options of Headroom that have no meaning here are ignored.
    ///
    /// # Errors
    /// `wrong_type`, `invalid_value`, `out_of_range`.
    pub fn read(body: Located, message_count: usize) -> Result<Self, ApiError> {
        let config = body.get("config").filter(|config| config.json() != "null");
        if config.is_some_and(|config| !config.json().starts_with('{')) {
            return Err(wrong_type("config", config.unwrap_or_default(), "an object"));
        }
        if body.get("budget").is_some_and(|budget| budget.json() != "null") {
            return Err(ApiError::conversation_budget());
        }
        let options = Options(config.unwrap_or_default());
        let mode = options.text("mode")?;
        let frozen_message_count = match options.count("frozen_message_count")? {
            Some(count) if count > message_count => {
                let (param, _) = options.get("frozen_message_count").unwrap_or_default();
                return Err(ApiError::frozen_too_many(count, message_count, param));
            }
            count => count.unwrap_or(0),
        };
        Ok(Self {
            // LiteLLM's guardrail sends no options and retrieves originals. Gateways that send options forward the texts to a model, which
            // could not follow a hash.
            names_hashes: mode.map_or(config.is_none(), |mode| mode == "ccr"),
            session_id: options.session_id()?,
            frozen_message_count,
            recent_message_count: options.count("protect_recent")?.unwrap_or(0),
            compresses_user: options.boolean("compress_user_messages")?.unwrap_or(true),
            compresses_system: options.boolean("compress_system_messages")?.unwrap_or(true),
            budget: options.budget()?,
        })
    }

    /// The index of the first message at the end that comes back as it was sent.
    pub fn protected_from(&self, message_count: usize) -> usize {
        message_count.saturating_sub(self.recent_message_count).max(self.frozen_message_count)
    }

    /// Leaves only the passages and results of `turns` that may be compressed. `has_returned` says which messages were returned before.
    pub fn choose(
        &self,
        conversation: &Conversation,
        has_returned: impl Fn(usize) -> bool,
        turns: &mut [Turn],
    ) {
        let messages = &conversation.messages;
        let chosen = self.frozen_message_count..self.protected_from(messages.len());
        let starts: Vec<usize> = messages.iter().map(|message| message.at.range().start).collect();
        let index_of = |start: usize| starts.partition_point(|first| *first <= start).saturating_sub(1);
        let is_new = |index: usize| chosen.contains(&index) && !has_returned(index);
        let may_change = |passage: &Passage| {
            let index = index_of(passage.string.start);
            let is_allowed = match (&passage.kind, messages[index].role) {
                (PartKind::Message, Role::User) => self.compresses_user,
                (PartKind::Message, Role::System) => self.compresses_system,
                _ => true,
            };
            is_allowed && is_new(index)
        };
        for turn in turns {
            turn.passages.retain(may_change);
            turn.results.retain(|result| is_new(index_of(result.string.start)));
        }
    }
}

/// The options as they were sent.
struct Options<'a>(Located<'a>);

impl<'a> Options<'a> {
    /// The path and the value of an option; `None` if it is missing or null.
    fn get(&self, name: &str) -> Option<(String, Located<'a>)> {
        let value = self.0.get(name).filter(|value| value.json() != "null")?;
        Some((format!("config.{name}"), value))
    }

    fn session_id(&self) -> Result<Option<String>, ApiError> {
        let Some(id) = self.text("session_id")? else { return Ok(None) };
        if id.trim().is_empty() || id.chars().count() > SESSION_ID_CHARS_MAX {
            return Err(ApiError::session_id_invalid(SESSION_ID_CHARS_MAX, "config.session_id"));
        }
        Ok(Some(id))
    }

    fn text(&self, name: &str) -> Result<Option<String>, ApiError> {
        let Some((param, value)) = self.get(name) else { return Ok(None) };
        value.text().map(Some).ok_or_else(|| wrong_type(&param, value, "a string"))
    }

    fn count(&self, name: &str) -> Result<Option<usize>, ApiError> {
        let Some((param, value)) = self.get(name) else { return Ok(None) };
        let count = value.read::<usize>();
        count.map(Some).ok_or_else(|| wrong_type(&param, value, "a whole number of at least 0"))
    }

    fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some((param, value)) = self.get(name) else { return Ok(None) };
        value.read::<bool>().map(Some).ok_or_else(|| wrong_type(&param, value, "true or false"))
    }

    fn budget(&self) -> Result<Option<Budget>, ApiError> {
        let Some((param, value)) = self.get("target_ratio") else { return Ok(None) };
        let budget = value.read::<f64>().map(Budget::ratio);
        let budget = budget.ok_or_else(|| wrong_type(&param, value, "a number"))?;
        validate::check_budget(budget, Granularity::Sentence).map_err(|error| {
            let error = ApiError::from(error);
            let message = error.message.replacen("budget.ratio", &param, 1);
            ApiError { message, ..error.at(param) }
        })?;
        Ok(Some(budget))
    }
}

fn wrong_type(param: &str, found: Located, expected: &str) -> ApiError {
    let found = found.read::<Value>().unwrap_or_default().to_string();
    let message = format!("{param} is {}; it must be {expected}", Shortened(&found));
    ApiError::with_param(ErrorCode::WrongType, message, param)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &str) -> Result<Config, ApiError> {
        Config::read(Located::parse(body).expect("JSON"), 3)
    }

    fn read(body: &str) -> Result<Config, (&'static str, String)> {
        parsed(body).map_err(|error| (error.code.as_str(), error.param.unwrap_or_default()))
    }

    #[test]
    fn options_are_read_and_wrong_ones_are_refused_with_their_place() {
        let of = |config: &str| read(&format!(r#"{{"config": {config}}}"#));
        let fails = |config: &str, code: &str, param: &str| {
            let (found_code, found_param) = of(config).expect_err(config);
            assert_eq!((found_code, &*found_param), (code, param), "{config}");
        };
        let frozen = of(r#"{"session_id": "s", "frozen_message_count": 3, "unknown": 1}"#).expect("options");
        assert_eq!((frozen.session_id.as_deref(), frozen.frozen_message_count), (Some("s"), 3));
        assert_eq!(of(r#"{"target_ratio": 0.5}"#).expect("options").budget, Some(Budget::ratio(0.5)));
        let nothing = of(r#"{"session_id": null, "target_ratio": null}"#).expect("options");
        assert_eq!((nothing.session_id, nothing.budget), (None, None));
        fails("3", "wrong_type", "config");
        fails(r#"{"mode": 3}"#, "wrong_type", "config.mode");
        fails(r#"{"session_id": 3}"#, "wrong_type", "config.session_id");
        fails(r#"{"session_id": " "}"#, "invalid_value", "config.session_id");
        fails(&format!(r#"{{"session_id": "{}"}}"#, "é".repeat(257)), "invalid_value", "config.session_id");
        fails(r#"{"frozen_message_count": -1}"#, "wrong_type", "config.frozen_message_count");
        fails(r#"{"frozen_message_count": true}"#, "wrong_type", "config.frozen_message_count");
        fails(r#"{"frozen_message_count": 1.5}"#, "wrong_type", "config.frozen_message_count");
        fails(r#"{"frozen_message_count": 4}"#, "out_of_range", "config.frozen_message_count");
        fails(r#"{"protect_recent": "all"}"#, "wrong_type", "config.protect_recent");
        fails(r#"{"compress_user_messages": "no"}"#, "wrong_type", "config.compress_user_messages");
        fails(r#"{"target_ratio": 1.5}"#, "out_of_range", "config.target_ratio");
        fails(r#"{"target_ratio": "half"}"#, "wrong_type", "config.target_ratio");
    }

    #[test]
    fn errors_name_the_option_and_what_was_sent() {
        let check = |body: &str, expect: &str| {
            let error = parsed(body).expect_err(body);
            assert!(error.message.contains(expect), "{body}: {}", error.message);
        };
        check(r#"{"config": [1]}"#, "config is [1]; it must be an object");
        check(r#"{"config": {"target_ratio": 0}}"#, "config.target_ratio is 0");
        check(r#"{"budget": {"ratio": 0.5}}"#, "config.target_ratio");
    }

    #[test]
    fn hashes_are_named_for_callers_that_may_retrieve_originals() {
        let check = |body: &str, expect: bool| {
            assert_eq!(read(body).expect("options").names_hashes, expect, "{body}")
        };
        check("{}", true);
        check(r#"{"config": null}"#, true);
        check(r#"{"config": {}}"#, false);
        check(r#"{"config": {"session_id": "s"}}"#, false);
        check(r#"{"config": {"mode": "ccr"}}"#, true);
        check(r#"{"config": {"mode": "lossy_inline"}}"#, false);
    }
}
