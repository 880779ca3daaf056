//! `/headroom/v1/usage`: how much was compressed for a tenant or in a session, and what providers said that they read and wrote.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};

use super::compress::conversation::config::check_session_id;
use super::originals::StoredSessions;
use super::{Scope, body, query};
use crate::api::{self, ProviderUsage, SessionUsageAnswer, TokensAnswer, UsageAnswer, UsageBody, UsageTaken};
use crate::error::ApiError;
use crate::executor::run_blocking;
use crate::middleware::session::{ReturnedEntries, SessionKeys};
use crate::tenants::usage::UsageCounts;

/// What was compressed in a session, and when it was last used.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct SessionUsage {
    counts: UsageCounts,
    /// The number of messages in the session's newest answer.
    message_count: usize,
    /// The number of those messages that come back unchanged in later answers.
    #[serde(default)]
    unchanged_count: usize,
    used_at_s: u64,
}

/// The messages of an answer.
#[derive(Debug, Clone, Copy)]
pub struct ReturnedMessages {
    pub all: usize,
    /// How many of them come back unchanged in later answers.
    pub unchanged: usize,
}

impl SessionUsage {
    /// Reads what [`Self::written`] wrote; `None` if the session was last used `expire_s` seconds ago or earlier.
    pub fn read(bytes: &[u8], expire_s: Option<u64>) -> Option<Self> {
        let usage: Self = serde_json::from_slice(bytes).ok()?;
        let is_over = expire_s.is_some_and(|expire_s| now_s().saturating_sub(usage.used_at_s) >= expire_s);
        (!is_over).then_some(usage)
    }

    /// The usage after one more request, which returned `messages` if it was about a conversation.
    pub fn after(before: Option<Self>, more: UsageCounts, messages: Option<ReturnedMessages>) -> Self {
        let before = before.unwrap_or_default();
        Self {
            counts: before.counts.plus(more),
            message_count: messages.map_or(before.message_count, |messages| messages.all),
            unchanged_count: messages.map_or(before.unchanged_count, |messages| messages.unchanged),
            used_at_s: now_s(),
        }
    }

    /// The usage as it is stored.
    pub fn written(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("it is JSON")
    }
}

/// `GET /headroom/v1/usage`: the counts of the tenant since the daemon started, and with `?session_id=` those of a session.
pub async fn show(service: Scope, RawQuery(query): RawQuery) -> Result<Json<UsageAnswer>, ApiError> {
    let [session_id] = query::parameters(query.as_deref(), ["session_id"])?;
    let session = match session_id {
        None => None,
        Some(id) => {
            let usage = session_usage(&service, &id, "session_id").await?;
            Some(SessionUsageAnswer {
                id,
                message_count: usage.message_count,
                tokens: tokens(usage.counts),
                provider: provider(usage.counts),
            })
        }
    };
    let counts = service.usage().counts();
    Ok(Json(UsageAnswer { tokens: tokens(counts), provider: provider(counts), session }))
}

/// `POST /headroom/v1/usage`: takes what a provider said about a request of a session.
pub async fn take(service: Scope, headers: HeaderMap, body: Body) -> Result<Json<UsageTaken>, ApiError> {
    let limits = service.limits();
    let parse = move |body: &[u8]| api::parse::<UsageBody>(body, &limits)?.into_domain();
    let (session_id, usage) = body::parsed(&service, &headers, body, parse).await?;
    let before = session_usage(&service, &session_id, "session_id").await?;
    let ProviderUsage { input_tokens, output_tokens, cache_read_input_tokens, cache_creation_input_tokens } =
        usage;
    let more = UsageCounts {
        input_tokens,
        output_tokens,
        cache_read_input_tokens,
        cache_creation_input_tokens,
        ..UsageCounts::default()
    };
    let (store, keys) = (StoredSessions(service.originals()), SessionKeys::derive(&session_id));
    run_blocking(move || {
        store.store(Vec::new(), Some((keys, ReturnedEntries::default())), |before| {
            SessionUsage::after(before, more, None)
        })
    })
    .await?;
    service.usage().add(more);
    let frozen_message_count = before.unchanged_count;
    Ok(Json(UsageTaken { session_id, frozen_message_count, applied: true }))
}

async fn session_usage(service: &Scope, id: &str, param: &str) -> Result<SessionUsage, ApiError> {
    check_session_id(id, param)?;
    let (store, keys) = (StoredSessions(service.originals()), SessionKeys::derive(id));
    let found = run_blocking(move || Ok(store.usage(&keys))).await?;
    found.ok_or_else(|| ApiError::session_unknown(id, service.originals().session_expire_s()))
}

fn tokens(counts: UsageCounts) -> TokensAnswer {
    TokensAnswer {
        requests: counts.requests,
        tokens_before: counts.tokens_before,
        tokens_after: counts.tokens_after,
        tokens_saved: counts.tokens_before.saturating_sub(counts.tokens_after),
    }
}

fn provider(counts: UsageCounts) -> ProviderUsage {
    ProviderUsage {
        input_tokens: counts.input_tokens,
        output_tokens: counts.output_tokens,
        cache_read_input_tokens: counts.cache_read_input_tokens,
        cache_creation_input_tokens: counts.cache_creation_input_tokens,
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_expires_after_its_last_use() {
        let check = |ago_s: u64, expire_s: Option<u64>, is_known: bool| {
            let usage = SessionUsage { used_at_s: now_s() - ago_s, ..SessionUsage::default() };
            let read = SessionUsage::read(&usage.written(), expire_s);
            assert_eq!(read.is_some(), is_known, "{ago_s} {expire_s:?}");
        };
        check(0, Some(60), true);
        check(100, Some(60), false);
        check(100, Some(3_600), true);
        check(1_000_000, None, true);
        let messages = ReturnedMessages { all: 4, unchanged: 3 };
        let old = SessionUsage { used_at_s: 1, ..SessionUsage::default() };
        let used = SessionUsage::after(Some(old), UsageCounts::of_request(9, 3), Some(messages));
        let used = SessionUsage::read(&used.written(), Some(60)).expect("it was just used");
        assert_eq!((used.message_count, used.counts), (4, UsageCounts::of_request(9, 3)));
        let reported = SessionUsage::after(Some(used), UsageCounts::default(), None);
        assert_eq!((reported.message_count, reported.unchanged_count), (4, 3));
        assert!(SessionUsage::read(b"not JSON", None).is_none());
    }
}
