//! Shadow mode: computes what compression would have kept, while the upstream answers the whole request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::tally::LeftOut;
use super::{CompressionReport, ModelRequest};
use crate::error::ApiError;
use crate::executor::run_blocking;
use crate::http::Scope;
use crate::http::originals::StoredTurns;
use crate::middleware::rewrite::{Rewritten, SentTurn};
use crate::middleware::shadow::{WouldKeep, shadow_key};

/// What compression would have made of a request.
pub struct Shadowed {
    pub report: CompressionReport,
    pub left_out: LeftOut,
    pub would_keep: Option<WouldKeep>,
}

/// Computes what compression would have made of a request, and stores it for the next requests of the conversation. The report says why, if
/// that fails.
pub async fn shadow(service: &Scope, request: Arc<ModelRequest>) -> Shadowed {
    if let Some(too_many) = request.too_many {
        return Shadowed::failed(too_many.reason());
    }
    match compressed(service, request).await {
        Ok((rewritten, left_out, would_keep)) => {
            let reason = match &rewritten {
                rewritten if rewritten.is_shorter() => None,
                rewritten if rewritten.is_short => Some("prompt_tokens_min"),
                rewritten if rewritten.tokens.is_some() => Some("nothing_shortened"),
                _ => Some("nothing_to_compress"),
            };
            let Rewritten { tokens, related, answerable, .. } = rewritten;
            let report = CompressionReport { outcome: "shadow", reason, tokens, related, answerable };
            Shadowed { report, left_out, would_keep }
        }
        Err(error) => Shadowed::failed(error.code.as_str()),
    }
}

impl Shadowed {
    fn failed(reason: &'static str) -> Self {
        let reason = Some(reason);
        let report =
            CompressionReport { outcome: "shadow", reason, tokens: None, related: None, answerable: None };
        Self { report, left_out: LeftOut::default(), would_keep: None }
    }
}

async fn compressed(
    service: &Scope,
    request: Arc<ModelRequest>,
) -> Result<(Rewritten, LeftOut, Option<WouldKeep>), ApiError> {
    service.ready()?;
    let scope = service.clone();
    let deadline = Instant::now() + Duration::from_millis(service.middleware.settings.deadline_ms);
    let computed = service.executor().run(deadline, move |cancel| {
        let rewritten = request.compress(&scope, None, cancel)?;
        let left_out = request.left_out(&rewritten, true);
        let would_keep = WouldKeep::new(&rewritten, &request.added);
        Ok((rewritten, left_out, would_keep))
    });
    let (mut rewritten, left_out, would_keep) = computed.await?;
    let records: Vec<([u8; 32], SentTurn)> = std::mem::take(&mut rewritten.records)
        .into_iter()
        .map(|(key, sent)| (shadow_key(&key), sent))
        .collect();
    if !records.is_empty() {
        let turns = StoredTurns(service.originals());
        let _ = run_blocking(move || {
            turns.put(&records);
            Ok(())
        })
        .await;
    }
    Ok((rewritten, left_out, would_keep))
}
