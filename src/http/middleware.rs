//! `POST /v1/chat/completions`, `/v1/responses` and `/v1/messages`, in front of the servers that answer them.
//!
//! What cannot be compressed, or cited, goes on as it is, and a header says why: a request is lost by nothing that is done to it here.

mod connect;
mod headers;
mod passing;
mod upstream;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use axum::response::Response;
use thresher_core::domain::Granularity;
use thresher_core::pipeline::cancel::Cancel;

pub use self::upstream::{Middleware, UpstreamError};

use super::originals::Remembering;
use super::{Scope, body, observe};
use crate::api::{self, BodyLimits, MiddlewareBody, MiddlewareOptions};
use crate::error::ApiError;
use crate::executor::run_blocking;
use crate::middleware::cite::Sources;
use crate::middleware::dialect::Dialect;
use crate::middleware::find::{self, TooMany};
use crate::middleware::json::Located;
use crate::middleware::rewrite::{
    self, AddedContext, CompressOptions, Compressor, NewestTurn, Rewritten, SentTurn,
};
use crate::middleware::settings::{MiddlewareSettings, When};
use crate::originals::TenantOriginals;

const COMPRESS: &str = "x-thresher-compress";
const CITE: &str = "x-thresher-cite";

/// OpenAI's Chat Completions.
pub async fn chat(service: Scope, uri: Uri, headers: HeaderMap, body: Body) -> Response {
    let asked = (Dialect::Chat, uri);
    pass(service, asked, headers, body).await.unwrap_or_else(|error| error.dialect_response(Dialect::Chat))
}

/// OpenAI's Responses.
pub async fn responses(service: Scope, uri: Uri, headers: HeaderMap, body: Body) -> Response {
    let asked = (Dialect::Responses, uri);
    pass(service, asked, headers, body)
        .await
        .unwrap_or_else(|error| error.dialect_response(Dialect::Responses))
}

/// Anthropic's Messages.
pub async fn messages(service: Scope, uri: Uri, headers: HeaderMap, body: Body) -> Response {
    let asked = (Dialect::Messages, uri);
    pass(service, asked, headers, body)
        .await
        .unwrap_or_else(|error| error.dialect_response(Dialect::Messages))
}

async fn pass(
    service: Scope,
    (dialect, uri): (Dialect, Uri),
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let middleware = Arc::clone(&service.middleware);
    if let Err(refused) = may_ask(&middleware, &headers) {
        body::discard(body, &service).await;
        return Err(refused);
    }
    let place = middleware.place(service.claim())?;
    let asked = Arc::new(Asked::read(&service, dialect, &headers, body).await?);
    let upstream = middleware.upstream(&asked.model).ok_or_else(|| asked.no_upstream())?;
    let always = upstream.settings.compress.unwrap_or(middleware.settings.compress) == When::Always;
    let unasked = service.caller().compresses_by_default();
    let compresses = asked.compress.unwrap_or(always || unasked || asked.brings());
    let cites = asked.cite.unwrap_or(compresses && middleware.settings.cite);
    let (body, done) = rewritten(&service, &asked, (compresses, cites)).await?;
    let Done { said, sources, news } = done;
    observe::middleware(said.outcome, said.tokens);
    // What is sent is remembered by the time it is answered, and nobody waits for that alone.
    let remembering = remember(service.originals(), news);
    // From here on only what the answer may cite is held, and the request until it has been sent.
    let cited_bytes = if sources.is_some() { asked.body.len() } else { 0 };
    drop(asked);
    let body = service.body_memory().hand_over(body, cited_bytes);
    let asking = upstream.ask((dialect, &uri), &headers, body, sources.is_some());
    let (answer, ()) = tokio::join!(asking, remembering);
    let citing = passing::Citing { service, dialect, sources, silence: upstream.silence_max() };
    let mut response = citing.pass(answer?, place).await;
    said.say(response.headers_mut());
    Ok(response)
}

/// Whether a request may go on at all, before any of its body is read. A page in a browser cannot send JSON to another origin without
/// asking first, and is not answered then: it is not to spend the keys of upstreams.
fn may_ask(middleware: &Middleware, headers: &HeaderMap) -> Result<(), ApiError> {
    match () {
        () if middleware.is_off() => Err(ApiError::middleware_off()),
        () => body::is_json(headers).and(choice(headers, COMPRESS)).and(choice(headers, CITE)).map(drop),
    }
}

/// Whether a body is of this media type.
fn is_of(headers: &HeaderMap, kind: &str) -> bool {
    body::media_type(headers).is_some_and(|found| found == kind)
}

async fn remember(originals: TenantOriginals, news: Vec<([u8; 32], SentTurn)>) {
    if !news.is_empty() {
        let kept = run_blocking(move || {
            Remembering(originals).put(&news);
            Ok(())
        });
        // A panic has been said by its hook.
        let _ = kept.await;
    }
}

/// A request as it came.
struct Asked {
    dialect: Dialect,
    body: String,
    model: String,
    model_is_not_text: bool,
    compress: Option<bool>,
    cite: Option<bool>,
    options: Option<MiddlewareOptions>,
    cites_itself: bool,
    /// Why it goes on whole, whatever it asks for.
    too_many: Option<TooMany>,
}

/// What was done to a request.
struct Done {
    said: Said,
    /// What its answer may cite; none where nothing is cited.
    sources: Option<Arc<Sources>>,
    /// What is to be remembered.
    news: Vec<([u8; 32], SentTurn)>,
}

/// What is said of it.
struct Said {
    /// In a word.
    outcome: &'static str,
    /// Why it was not compressed, where it should have been.
    reason: Option<&'static str>,
    /// Of all that was compressed, before and after.
    tokens: Option<(usize, usize)>,
}

/// The request as it goes on, compressed or, where that fails, as it came.
async fn rewritten(
    service: &Scope,
    asked: &Arc<Asked>,
    (compresses, cites): (bool, bool),
) -> Result<(Vec<u8>, Done), ApiError> {
    let time = Duration::from_millis(service.middleware.settings.deadline_ms);
    let attempt = async {
        service.ready()?;
        let (working, asked) = (service.clone(), Arc::clone(asked));
        let deadline = Instant::now() + time;
        service.executor().run(deadline, move |cancel| asked.rewrite(&working, (true, cancel))).await
    };
    let (rewritten, outcome, reason) = match (asked.too_many, compresses) {
        (Some(too_many), _) => (None, "whole", Some(too_many.code().as_str())),
        (None, false) => (None, "whole", None),
        (None, true) => match attempt.await {
            Ok(rewritten) if rewritten.tokens.is_some() => (Some(rewritten), "compressed", None),
            Ok(rewritten) => (Some(rewritten), "whole", Some("nothing_to_compress")),
            Err(error) => (None, "whole", Some(error.code.as_str())),
        },
    };
    let (working, asked) = (service.clone(), Arc::clone(asked));
    let finish = move |cancel: &Cancel| {
        let (rewritten, reason) = match rewritten {
            Some(rewritten) => (rewritten, reason),
            None => match asked.rewrite(&working, (false, cancel)) {
                Ok(rewritten) => (rewritten, reason),
                // Looking up what was sent of older turns took too long: all of it goes whole.
                Err(error) => (asked.whole(&working)?, reason.or(Some(error.code.as_str()))),
            },
        };
        let mut edits = rewritten.edits();
        let body = Located::parse(&asked.body).map_err(|_| ApiError::internal())?;
        edits.remove_field(body, "thresher");
        if !asked.cites_itself {
            asked.dialect.remove_citations(body, &mut edits);
        }
        let body = edits.apply(&asked.body).into_bytes();
        let Rewritten { tokens, sources, records: news, .. } = rewritten;
        let sources = if cites && !asked.cites_itself { Sources::new(sources) } else { None };
        let said = Said { outcome, reason, tokens };
        Ok((body, Done { said, sources: sources.map(Arc::new), news }))
    };
    service.middleware.slots.run(time, finish).await
}

impl Asked {
    async fn read(
        service: &Scope,
        dialect: Dialect,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Self, ApiError> {
        let choices = (choice(headers, COMPRESS)?, choice(headers, CITE)?);
        let bytes = service.middleware.settings.body_bytes_max;
        let max = body::Max { bytes, setting: "middleware.body_bytes_max" };
        let body = body::whole(service, headers, body, max).await?;
        let limits = service.limits.bodies;
        let (middleware, time) = (Arc::clone(&service.middleware), service.limits.deadline_max);
        // The clone keeps the room that the body takes until it has been read.
        let holding = service.clone();
        let read = move |_: &Cancel| {
            let asked = Self::new(dialect, choices, (&middleware.settings, &limits), body);
            drop(holding);
            asked
        };
        service.middleware.slots.run(time, read).await
    }

    fn new(
        dialect: Dialect,
        (compress, cite): (Option<bool>, Option<bool>),
        (settings, limits): (&MiddlewareSettings, &BodyLimits),
        body: Vec<u8>,
    ) -> Result<Self, ApiError> {
        let body = String::from_utf8(body).map_err(|_| ApiError::body_not_utf8())?;
        let located = Located::parse(&body).map_err(|error| ApiError::invalid_json(&error))?;
        // Who names none is answered by a server that has any.
        let model = located.text_of("model");
        let model_is_not_text =
            model.is_none() && located.get("model").is_some_and(|model| model.json() != "null");
        let model = model.unwrap_or_default();
        let options = |json: Located| {
            // Each takes many times its bytes when it is read.
            let max = settings.piece_count_max;
            let chunks = json.get("chunks").map(Located::items).unwrap_or_default();
            if chunks.take(max.saturating_add(1)).count() > max {
                return Err(ApiError::middleware_chunks_too_many(max));
            }
            api::parse_field::<MiddlewareBody>("thresher", json.json().as_bytes(), limits)?
                .into_domain()
                .map_err(|error| error.inside("thresher"))
        };
        let options = located.get("thresher").map(options).transpose()?;
        let said = |choose: fn(&MiddlewareOptions) -> Option<bool>| options.as_ref().and_then(choose);
        let (compress, cite) = (said(|o| o.compress).or(compress), said(|o| o.cite).or(cite));
        let conversation = dialect.conversation(located);
        let cites_itself = conversation.cites_itself;
        let found = find::turns(&conversation, &settings.policy(cites_itself));
        let (too_many, asks) = (found.too_many, found.turns.iter().any(|turn| turn.asked_at.is_some()));
        let asked =
            Self { dialect, model, model_is_not_text, compress, cite, options, cites_itself, too_many, body };
        if asked.brings() && !asks { Err(ApiError::question_missing()) } else { Ok(asked) }
    }

    /// Why no upstream has its model.
    fn no_upstream(&self) -> ApiError {
        match &*self.model {
            "" if self.model_is_not_text => ApiError::model_not_text(),
            "" => ApiError::model_missing(),
            model => ApiError::model_unknown(model),
        }
    }

    /// Whether it says something to us, and has chunks with it.
    fn brings(&self) -> bool {
        self.options.as_ref().is_some_and(|options| !options.chunks.is_empty())
    }

    /// Rewrites it until it is told to stop: the newest turn is compressed, or goes as it went before.
    fn rewrite(&self, service: &Scope, (compresses, cancel): (bool, &Cancel)) -> Result<Rewritten, ApiError> {
        let settings = &service.middleware.settings;
        let body = Located::parse(&self.body).map_err(|_| ApiError::internal())?;
        let conversation = self.dialect.conversation(body);
        let turns = find::turns(&conversation, &settings.policy(self.cites_itself)).turns;
        let (options, brought) = (self.options.as_ref(), self.brought(settings));
        if self.too_many.is_some() {
            return Ok(rewrite::uncompressed((self.dialect, body), &turns, &brought));
        }
        let way = CompressOptions {
            budget: options.and_then(|options| options.budget).unwrap_or_else(|| settings.budget()),
            granularity: options.map_or(Granularity::default(), |options| options.granularity),
            prompt_tokens_min: settings.prompt_tokens_min,
            // Only the end of a question is read, and it is remembered with every turn that is compressed for it.
            query: options.and_then(|options| options.query.as_deref()).map(find::tail),
        };
        let ledger = Remembering(service.originals());
        let how = match compresses {
            true => {
                let other_text_bytes = find::other_text_bytes(&conversation, &turns);
                NewestTurn::Compress(Compressor {
                    options: &way,
                    other_text_bytes,
                    pipeline: service.ready()?,
                })
            }
            false if self.compress == Some(false) => NewestTurn::Whole,
            false => NewestTurn::AsSentBefore,
        };
        Ok(rewrite::newest_turn((self.dialect, body), &turns, &brought, &ledger, (how, cancel))?)
    }

    /// Leaves it as it came, but for the chunks that it brings.
    fn whole(&self, service: &Scope) -> Result<Rewritten, ApiError> {
        let settings = &service.middleware.settings;
        let body = Located::parse(&self.body).map_err(|_| ApiError::internal())?;
        let conversation = self.dialect.conversation(body);
        let turns = find::turns(&conversation, &settings.policy(self.cites_itself)).turns;
        Ok(rewrite::uncompressed((self.dialect, body), &turns, &self.brought(settings)))
    }

    fn brought(&self, settings: &MiddlewareSettings) -> AddedContext {
        AddedContext {
            chunks: self.options.as_ref().map(|options| options.chunks.clone()).unwrap_or_default(),
            delimiters: settings.delimiters(),
        }
    }
}

impl Said {
    /// Says it in the headers of the answer.
    fn say(&self, headers: &mut HeaderMap) {
        let mut say = |name: &'static str, value: String| {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        say(upstream::OURS, self.outcome.to_owned());
        if let Some(reason) = self.reason {
            say("x-thresher-reason", reason.to_owned());
        }
        if let Some((before, after)) = self.tokens {
            say("x-thresher-tokens-before", before.to_string());
            say("x-thresher-tokens-after", after.to_string());
        }
    }
}

fn choice(headers: &HeaderMap, name: &'static str) -> Result<Option<bool>, ApiError> {
    match headers.get(name).map(HeaderValue::as_bytes) {
        None => Ok(None),
        Some(b"true") => Ok(Some(true)),
        Some(b"false") => Ok(Some(false)),
        Some(_) => Err(ApiError::header_not_boolean(name)),
    }
}
