//! The middleware: `POST /v1/chat/completions`, `/v1/responses` and `/v1/messages`, in front of the servers of language models. Other paths of
//! their APIs are passed on as they are.
//!
//! A request that cannot be compressed is passed on unchanged, and an answer that cannot be cited is returned unchanged; the header
//! `x-thresher-reason` says why. Neither compressing nor citing can fail a request. The middleware refuses a request itself only if the request is
//! malformed or too large, names no upstream's model, or exceeds a limit.

mod connect;
mod forward;
mod headers;
pub mod models;
pub mod passthrough;
pub mod report;
mod shadow;
mod tally;
mod upstream;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use futures_util::TryFutureExt as _;
use thresher_core::domain::{Chunk, TokenizerName};
use thresher_core::pipeline::PipelineError;
use thresher_core::pipeline::cancel::Cancel;

use self::report::CompressionReport;
use self::shadow::Shadowed;
use self::tally::LeftOut;
pub use self::upstream::{Middleware, UpstreamError};
use super::compress::named_chunks;
use super::originals::StoredTurns;
use super::traces::model_call::{Call, ModelCall};
use super::traces::{self, Retrieval};
use super::{Scope, body, media_type, observe};
use crate::api::{self, BodyLimits, MiddlewareBody, MiddlewareOptions};
use crate::error::{ApiError, ErrorCode};
use crate::executor::run_blocking;
use crate::middleware::cite::{Additions, SeenTexts};
use crate::middleware::copied::{self, Copied};
use crate::middleware::dialect::Dialect;
use crate::middleware::find::{self, TooMany, Turn};
use crate::middleware::json::Located;
use crate::middleware::prompt::Prompt;
use crate::middleware::rewrite::{
    self, CompressOptions, Compressor, Extent, ReadTurns, Rewritten, SentTurn, TurnPlan,
};
use crate::middleware::settings::{Credential, When};
use crate::middleware::shadow::shadow_key;
use crate::middleware::shared_key;
use crate::middleware::untouched;
use crate::originals::TenantOriginals;
use crate::savings::counts::Treatment;

/// Headers of requests that only the daemon reads.
const COMPRESS: &str = "x-thresher-compress";
const CITE: &str = "x-thresher-cite";
const SHADOW: &str = "x-thresher-shadow";

/// `POST /v1/chat/completions`: OpenAI's Chat Completions.
pub async fn chat(service: Scope, uri: Uri, headers: HeaderMap, body: Body) -> Response {
    handle(service, Dialect::Chat, uri, headers, body).await
}

/// `POST /v1/responses`: OpenAI's Responses.
pub async fn responses(service: Scope, uri: Uri, headers: HeaderMap, body: Body) -> Response {
    handle(service, Dialect::Responses, uri, headers, body).await
}

/// `POST /v1/messages`: Anthropic's Messages.
pub async fn messages(service: Scope, uri: Uri, headers: HeaderMap, body: Body) -> Response {
    handle(service, Dialect::Messages, uri, headers, body).await
}

async fn handle(service: Scope, dialect: Dialect, uri: Uri, headers: HeaderMap, body: Body) -> Response {
    let response = pass_on(service, dialect, without_slash(uri), headers, body).await;
    response.unwrap_or_else(|error| error.dialect_response(dialect))
}

/// The URI without the slash that may follow its path: servers of models know their paths without one.
fn without_slash(uri: Uri) -> Uri {
    let Some(path) = uri.path().strip_suffix('/') else { return uri };
    let shorter = match uri.query() {
        Some(query) => format!("{path}?{query}").parse(),
        None => path.parse(),
    };
    shorter.unwrap_or(uri)
}

async fn pass_on(
    service: Scope,
    dialect: Dialect,
    uri: Uri,
    mut headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let middleware = Arc::clone(&service.middleware);
    if let Err(error) = check_headers(&middleware, &headers) {
        body::discard(body, &service).await;
        return Err(error);
    }
    let slot = middleware.request_slot(service.sharer())?;
    let mut request = ModelRequest::read(&service, dialect, &headers, body).await?;
    let upstream = middleware.upstream(&request.model).ok_or_else(|| request.no_upstream())?;
    if upstream.settings.credential() == Credential::KeyFile {
        headers::check_query(uri.query())?;
        headers::check_content_type(&headers)?;
        headers::set_content_type(&mut headers, Some(media_type::JSON));
        let (settings, path) = (upstream.settings.clone(), uri.path().to_owned());
        let check = move |_: &Cancel| {
            request.is_stateless = passthrough::check_shared_key(request.located(), &settings, &path)?;
            Ok(request)
        };
        request = middleware.workers.run(service.settings.time_limits.max, check).await?;
    }
    let always = upstream.settings.compress == When::Always;
    let by_default = always || service.caller().compresses_by_default() || request.asks;
    let compresses = request.compress.unwrap_or(by_default);
    request.treatment = request.treated(compresses, upstream.settings.shadow);
    let changes = compresses && request.treatment != Some(Treatment::Shadow);
    let wanted = Additions {
        citations: request.cite.unwrap_or(changes && middleware.settings.cite) && !request.upstream_cites,
        verdicts: request.options.verdicts,
    };
    let input_tokens_max = Some(upstream.settings.input_tokens_max).filter(|max| *max > 0);
    let request = Arc::new(request);
    let rewriting = rewrite(&service, &request, wanted, input_tokens_max);
    let (body, outcome) = if changes {
        Retrieval::new("compress").run(service.model_name(), rewriting.inspect_ok(record)).await?
    } else {
        rewriting.await?
    };
    let RewriteOutcome { report, sources, records, late, left_out } = outcome;
    read_late(&service, late);
    let mut tally = request.tally(&service, upstream, left_out);
    // The turns are stored while the upstream works, so that storing takes no time of the request.
    let storing = store_turns(service.originals(), records);
    let is_shadow = request.treatment == Some(Treatment::Shadow);
    let outcome = if is_shadow { "shadow" } else { report.outcome };
    observe::middleware(outcome, report.tokens);
    // From here on only the sources of citations are needed, and the body until it has been sent. In shadow mode it is compressed now.
    let cited_bytes = if sources.is_some() || is_shadow { request.body.len() } else { 0 };
    let shadowing = is_shadow.then(|| shadow::shadow(&service, Arc::clone(&request)));
    let mut call = ModelCall::begin(&Call {
        dialect,
        method: Method::POST.as_str(),
        path: uri.path(),
        model: &request.model,
        listed: upstream.settings.name_of(&request.model),
        upstream: upstream.base(),
        body: &body,
    });
    drop(request);
    let body = service.body_memory().transfer(body, cited_bytes);
    let reads_answer = sources.is_some() || tally.is_some() || call.is_recording();
    let sending = upstream.send(dialect, Method::POST, &uri, &headers, body, reads_answer);
    let shadowing = futures_util::future::OptionFuture::from(shadowing);
    let (answer, (), shadowed) = tokio::join!(call.send(sending), storing, shadowing);
    let report = match (shadowed, &mut tally) {
        (Some(Shadowed { report, left_out, would_keep }), Some(tally)) => {
            (tally.left_out, tally.would_keep) = (left_out, would_keep);
            report
        }
        _ => report,
    };
    let answer = answer?;
    let silence_max = upstream.silence_max();
    let forwarder =
        forward::Forwarder { service, dialect, wanted, sources, tally, silence_max, call, reader: None };
    let mut response = forwarder.forward(answer, slot).await;
    report.add_headers(response.headers_mut());
    Ok(response)
}

/// Records a compression in the current span.
fn record((_, outcome): &(Vec<u8>, RewriteOutcome)) {
    let report = &outcome.report;
    if let Some((before, after)) = report.tokens {
        traces::tokens(before, after);
    }
    traces::related(report.related, report.answerable);
}

/// Checks what can be checked before the body is read. A web page can send a body to another origin without a preflight request unless the
/// body is JSON; a page must not use up the keys of upstreams.
fn check_headers(middleware: &Middleware, headers: &HeaderMap) -> Result<(), ApiError> {
    if middleware.is_off() {
        return Err(ApiError::middleware_off());
    }
    middleware.check_hops(headers)?;
    media_type::check_json(headers)?;
    [COMPRESS, CITE, SHADOW].into_iter().try_for_each(|name| boolean(headers, name).map(drop))
}

fn has_media_type(headers: &HeaderMap, media_type: &str) -> bool {
    media_type::media_type(headers).is_some_and(|found| found == media_type)
}

/// Reads texts in the background, for the next request.
fn read_late(service: &Scope, late: Vec<Arc<Chunk>>) {
    if late.is_empty() {
        return;
    }
    let (scope, executor) = (service.clone(), service.executor().clone());
    let deadline = Instant::now() + service.settings.time_limits.default;
    tokio::spawn(async move {
        // What is not read in time, or fails, is tried again by the next request.
        let _ = executor.run(deadline, move |cancel| Ok(scope.ready()?.warm(&late, cancel)?)).await;
    });
}

async fn store_turns(originals: TenantOriginals, records: Vec<([u8; 32], SentTurn)>) {
    if !records.is_empty() {
        let stored = run_blocking(move || {
            StoredTurns(originals).put(&records);
            Ok(())
        });
        // After a panic, which is logged, the turns are not stored.
        let _ = stored.await;
    }
}

/// Stores the originals of texts that get a mark. Where this fails, the texts get none: a mark must lead to a text.
async fn store_marked(originals: TenantOriginals, rewritten: &mut Rewritten) {
    let texts = rewritten.newly_marked();
    if !texts.is_empty() {
        let stored = run_blocking(move || Ok(StoredTurns(originals).put_originals(&texts)));
        if !stored.await.unwrap_or(false) {
            rewritten.remove_new_marks();
        }
    }
}

struct ModelRequest {
    dialect: Dialect,
    body: String,
    /// The model that chooses the upstream; empty if the body names none.
    model: String,
    model_is_not_text: bool,
    compress: Option<bool>,
    cite: Option<bool>,
    shadow: Option<bool>,
    /// Whether the field `thresher` asks for compression: with chunks, a budget or a question.
    asks: bool,
    /// What is done to the request; none: it was not to be compressed.
    treatment: Option<Treatment>,
    options: MiddlewareOptions,
    /// The turns, and the texts outside their passages, in bytes.
    turns: Vec<Turn>,
    other_text_bytes: usize,
    prompt: Prompt,
    added: Vec<Arc<Chunk>>,
    /// Whether the request turns on citations of the upstream, which are then left to it.
    upstream_cites: bool,
    /// The limit that the conversation exceeds, because of which it is never compressed.
    too_many: Option<TooMany>,
    /// Whether the provider may store nothing of the request, since all tenants share the key that it is sent with.
    is_stateless: bool,
}

/// How often a turn is compressed further, if the request is over the cap.
const STRONGER_COUNT_MAX: usize = 3;

struct RewriteOutcome {
    report: CompressionReport,
    /// The texts that the answer may cite; none if no citations are added.
    sources: Option<Arc<SeenTexts>>,
    /// What was sent of turns, to be stored.
    records: Vec<([u8; 32], SentTurn)>,
    /// Texts that there was no time to read, and that a later request may compress.
    late: Vec<Arc<Chunk>>,
    left_out: LeftOut,
}

/// The body for the upstream. If compressing fails, the newest turn is sent whole.
///
/// # Errors
/// `too_long`, if the request has more than `input_tokens_max` tokens; why compressing failed, if the request is too long for this reason and
/// another attempt may help; otherwise only if parsing or rewriting takes too long.
async fn rewrite(
    service: &Scope,
    request: &Arc<ModelRequest>,
    wanted: Additions,
    input_tokens_max: Option<usize>,
) -> Result<(Vec<u8>, RewriteOutcome), ApiError> {
    let time = Duration::from_millis(service.middleware.settings.deadline_ms);
    let compressing = async {
        service.ready()?;
        let (scope, request) = (service.clone(), Arc::clone(request));
        let deadline = Instant::now() + time;
        let work = move |cancel: &Cancel| request.compress(&scope, input_tokens_max, cancel);
        service.executor().run(deadline, work).await
    };
    let (mut failure, mut is_late) = (None, false);
    let (mut rewritten, reason) = match (request.too_many, request.treatment) {
        (Some(too_many), _) => (None, Some(too_many.reason())),
        (None, None | Some(Treatment::Shadow)) => (None, None),
        (None, Some(Treatment::Compress)) => match compressing.await {
            Ok(rewritten) if rewritten.is_newest_shorter => (Some(rewritten), None),
            Ok(rewritten) if rewritten.is_short => (Some(rewritten), Some("prompt_tokens_min")),
            Ok(rewritten) => {
                let reason = match rewritten.unshortened {
                    Some(unshortened) => unshortened.reason(),
                    None if rewritten.newest_tokens.is_some() => "nothing_shortened",
                    None => "nothing_to_compress",
                };
                (Some(rewritten), Some(reason))
            }
            Err(error) => {
                let reason = error.code.as_str();
                is_late = matches!(error.code, ErrorCode::DeadlineExceeded | ErrorCode::Overloaded);
                failure = Some(error).filter(|error| !error.code.is_callers_fault());
                (None, Some(reason))
            }
        },
    };
    if let Some(rewritten) = &mut rewritten {
        store_marked(service.originals(), rewritten).await;
    }
    let (scope, request) = (service.clone(), Arc::clone(request));
    let finish = move |cancel: &Cancel| {
        let (rewritten, reason) = match rewritten {
            Some(rewritten) => (rewritten, reason),
            None => match request.without_compression(&scope, is_late, cancel) {
                Ok(rewritten) => (rewritten, reason),
                // Looking up what was sent of earlier turns took too long: all turns are sent whole.
                Err(error) => (request.uncompressed(), reason.or(Some(error.code.as_str()))),
            },
        };
        let outcome = if rewritten.is_shorter() { "compressed" } else { "uncompressed" };
        let mut edits = rewritten.edits();
        let body = request.located();
        edits.remove_field(body, "thresher");
        if request.is_stateless {
            shared_key::store_nothing(body, request.dialect == Dialect::Responses, &mut edits);
        }
        if !request.upstream_cites {
            request.dialect.remove_citations(body, &mut edits);
        }
        let body = edits.apply(&request.body);
        if let Some(max) = input_tokens_max {
            match (request.check_input(&scope, &rewritten, max, cancel), failure) {
                // Compressed, the request may be short enough.
                (Err(error), Some(failure)) if error.code == ErrorCode::TooLong => return Err(failure),
                (checked, _) => checked?,
            }
        }
        let body = body.into_bytes();
        let left_out = request.left_out(&rewritten, false);
        let Rewritten { tokens, related, answerable, sources, cited_records, records, late, .. } = rewritten;
        // Where the next request may compress them, they are read while the model answers.
        let late = if request.may_be_cached() { Vec::new() } else { late };
        let count_max = scope.pipeline().map_or(0, |pipeline| pipeline.settings().limits.chunk_count_max);
        let sources = if wanted.citations || wanted.verdicts {
            SeenTexts::new(sources, cited_records, count_max)
        } else {
            None
        };
        let report = CompressionReport { outcome, reason, tokens, related, answerable };
        // What is computed in shadow mode is stored apart.
        let records = if request.treatment == Some(Treatment::Shadow) { Vec::new() } else { records };
        Ok((body, RewriteOutcome { report, sources: sources.map(Arc::new), records, late, left_out }))
    };
    // Earlier turns that are sent otherwise than before cost more than waiting: the provider's cache misses, and the model sees another text.
    service.middleware.workers.run(service.settings.time_limits.max, finish).await
}

impl ModelRequest {
    async fn read(
        service: &Scope,
        dialect: Dialect,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Self, ApiError> {
        let choices = [boolean(headers, COMPRESS)?, boolean(headers, CITE)?, boolean(headers, SHADOW)?];
        let bytes_max = service.middleware.limits.body_bytes_max;
        let body = body::whole(service, headers, body, bytes_max).await?;
        let limits = service.limits();
        let time = service.settings.time_limits.max;
        // The clone keeps the memory of the body until it has been parsed.
        let scope = service.clone();
        let parse = move |_: &Cancel| Self::parse(dialect, choices, &scope, &limits, body);
        let (request, question) = service.middleware.workers.run(time, parse).await?;
        request.with_registered_chunks(service, question).await
    }

    /// Looks up the registered chunks that the field `thresher` names.
    async fn with_registered_chunks(
        mut self,
        service: &Scope,
        question: Option<String>,
    ) -> Result<Self, ApiError> {
        let Some(ids) = self.options.chunk_ids.take() else { return Ok(self) };
        let question = self.options.query.clone().or(question).ok_or_else(ApiError::question_missing)?;
        let scope = service.clone();
        let found = run_blocking(move || {
            let bytes_max = scope.settings.limits.requests.registered_bytes_max;
            named_chunks(&scope, &ids, bytes_max, &question, &[], &Cancel::default())
        });
        let (chunks, _) = found.await.map_err(|error| match error.param {
            Some(_) => error.inside("thresher"),
            None => error,
        })?;
        self.added = chunks;
        Ok(self)
    }

    fn parse(
        dialect: Dialect,
        [compress, cite, shadow]: [Option<bool>; 3],
        scope: &Scope,
        limits: &BodyLimits,
        body: Vec<u8>,
    ) -> Result<(Self, Option<String>), ApiError> {
        let middleware = &scope.middleware;
        let body = String::from_utf8(body).map_err(|_| ApiError::body_not_utf8())?;
        let located = Located::parse(&body).map_err(|error| ApiError::invalid_json(&error))?;
        let model = located.text_of("model");
        let model_is_not_text =
            model.is_none() && located.get("model").is_some_and(|model| model.json() != "null");
        let parse_options = |json: Located| {
            // Counted before they are parsed, since each chunk takes many times its bytes.
            let max = middleware.limits.bounds.piece_count_max;
            let chunks = json.get("chunks").map(Located::items).unwrap_or_default();
            if chunks.take(max.saturating_add(1)).count() > max {
                return Err(ApiError::middleware_chunks_too_many(max));
            }
            api::parse_field::<MiddlewareBody>("thresher", json.json().as_bytes(), limits)?
                .into_domain()
                .map_err(|error| error.inside("thresher"))
        };
        let mut options = located.get("thresher").map(parse_options).transpose()?.unwrap_or_default();
        let asks = options.asks();
        let conversation = dialect.conversation(located);
        let upstream_cites = conversation.cites_itself;
        let found = find::turns(&conversation, &middleware.policy(upstream_cites), scope.text_kinds());
        let question = found.turns.iter().rev().find(|turn| turn.asked_at.is_some());
        let question = question.map(|turn| turn.query.clone());
        let adds_chunks = !options.chunks.is_empty() || options.chunk_ids.is_some();
        if adds_chunks && question.is_none() {
            return Err(ApiError::question_missing());
        }
        let added = std::mem::take(&mut options.chunks);
        let request = Self {
            dialect,
            model: model.unwrap_or_default(),
            model_is_not_text,
            // The body takes precedence over the headers.
            compress: options.compress.or(compress),
            cite: options.cite.or(cite),
            shadow: options.shadow.or(shadow),
            asks,
            treatment: None,
            options,
            other_text_bytes: find::other_text_bytes(&conversation, &found.turns),
            prompt: Prompt::new(&conversation, located),
            turns: found.turns,
            added,
            upstream_cites,
            too_many: found.too_many,
            is_stateless: false,
            body,
        };
        Ok((request, question))
    }

    /// Why no upstream has the model of the request.
    fn no_upstream(&self) -> ApiError {
        match &*self.model {
            "" if self.model_is_not_text => ApiError::model_not_text(),
            "" => ApiError::model_missing(),
            model => ApiError::model_unknown(model),
        }
    }

    fn located(&self) -> Located<'_> {
        Located::parsed(&self.body)
    }

    /// Compresses the newest turn. If the request then has more than `input_tokens_max` tokens, the turn is compressed to what is left for it.
    fn compress(
        &self,
        service: &Scope,
        input_tokens_max: Option<usize>,
        cancel: &Cancel,
    ) -> Result<Rewritten, ApiError> {
        if self.too_many.is_some() {
            return Ok(self.uncompressed());
        }
        let options = self.compress_options(service);
        let mut compressor = Compressor {
            options: &options,
            tokens_max: None,
            other_text_bytes: self.other_text_bytes,
            skips_late: true,
            pipeline: service.ready()?,
        };
        let extent = Extent::NewestTurn { again: !self.may_be_cached() };
        let mut plans = self.plan(service, extent, &options.id(), cancel)?;
        self.count_uses(service, &plans, cancel)?;
        let mut read = ReadTurns::new(input_tokens_max.is_some());
        let mut rewrite = |plans: &[TurnPlan], compressor| {
            rewrite::rewrite(self.as_conversation(), plans, Some(compressor), &mut read, cancel)
        };
        let mut rewritten = rewrite(&plans, compressor)?;
        let Some(max) = input_tokens_max else { return Ok(rewritten) };
        // Marks of what was left out take tokens, too, so one more compression may not be enough.
        for _ in 0..STRONGER_COUNT_MAX {
            let tokens = self.input_tokens(service, &rewritten, max, cancel)?;
            // What was sent before of the newest turn is too long now.
            if let Some(newest @ TurnPlan::AsBefore(_)) = plans.last_mut().filter(|_| tokens > max) {
                *newest = TurnPlan::Compress { is_recorded: true };
                rewritten = rewrite(&plans, compressor)?;
                continue;
            }
            let newest = rewritten.newest_tokens.map_or(0, |(_, after)| after);
            let left = newest.saturating_sub(tokens.saturating_sub(max));
            if tokens <= max || left == 0 {
                break;
            }
            compressor.tokens_max = Some(left);
            rewritten = match rewrite(&plans, compressor).map_err(ApiError::from) {
                // Not even one unit fits: the request is refused.
                Err(error) if error.code.is_callers_fault() => break,
                stronger => stronger?,
            };
        }
        Ok(rewritten)
    }

    /// Counts what the model copied from results of tools, and whether it had been sent, or in shadow mode would have been.
    fn count_uses(&self, service: &Scope, plans: &[TurnPlan], cancel: &Cancel) -> Result<(), PipelineError> {
        // Without any, the conversation is not read again.
        if !copied::has_results(&self.turns) {
            return Ok(());
        }
        let conversation = self.dialect.conversation(self.located());
        let uses = Copied::find(&conversation, &self.turns, cancel)?.uses(&self.turns, plans, cancel)?;
        let counted = service.savings().used(&uses, service.middleware.settings.loss_max);
        observe::uses(service.tenant().name(), &counted);
        Ok(())
    }

    /// Whether the provider may have cached what it was sent before. Of the three APIs, only Messages has to be asked for that.
    fn may_be_cached(&self) -> bool {
        self.dialect != Dialect::Messages || self.body.contains("\"cache_control\"")
    }

    /// Sends the newest turn whole, or as it was sent before, and all others as they were sent before. `is_late` says whether that is for
    /// lack of time.
    fn without_compression(
        &self,
        service: &Scope,
        is_late: bool,
        cancel: &Cancel,
    ) -> Result<Rewritten, ApiError> {
        if self.too_many.is_some() {
            return Ok(self.uncompressed());
        }
        let extent = if self.compress == Some(false) { Extent::NewestWhole } else { Extent::AsBefore };
        let mut plans = self.plan(service, extent, "", cancel)?;
        if let Some((newest, turn)) = plans.last_mut().zip(self.turns.last())
            && let TurnPlan::Whole { is_recorded, .. } = *newest
        {
            let is_late = is_late && !turn.passages.is_empty();
            *newest = match self.treatment {
                Some(Treatment::Compress) => TurnPlan::Encode { is_recorded, is_late },
                _ => TurnPlan::Whole { is_recorded, is_late },
            };
        }
        Ok(rewrite::rewrite(self.as_conversation(), &plans, None, &mut ReadTurns::new(false), cancel)?)
    }

    fn compress_options(&self, service: &Scope) -> CompressOptions {
        let middleware = &service.middleware;
        let settings = &middleware.settings;
        let (options, asked) = (&self.options, self.options.budget);
        CompressOptions {
            mode: settings.mode,
            budget: asked.unwrap_or_else(|| settings.budget()),
            granularity: options.granularity,
            // A request that names its budget gets it, however short the prompt becomes.
            prompt_tokens_min: if asked.is_some() { 0 } else { settings.prompt_tokens_min },
            // Only the end of a question is read, and it is stored with every turn that is compressed for it.
            query: options.query.as_deref().map(find::tail),
            result_tokens_min: middleware.limits.result_tokens_min,
            marks: untouched::can_retrieve(self.located()),
            related_only: options.related_only,
            off: service.savings().off(),
        }
    }

    /// Decides how each turn is sent. `options` is the id of the options of this request.
    fn plan(
        &self,
        service: &Scope,
        extent: Extent,
        options: &str,
        cancel: &Cancel,
    ) -> Result<Vec<TurnPlan>, PipelineError> {
        let stored = StoredTurns(service.originals());
        let is_shadow = self.treatment == Some(Treatment::Shadow);
        // In shadow mode, a conversation is sent whole, and what would have been sent of its turns is stored apart.
        let before = |key: &[u8; 32]| match (is_shadow, extent) {
            (false, _) => stored.get(key),
            (true, Extent::NewestTurn { .. }) => stored.get(&shadow_key(key)),
            (true, _) => None,
        };
        rewrite::plan(&self.turns, extent, options, &before, cancel)
    }

    /// The tokens of the prompt for the upstream. A request of at most `max` bytes is not counted, since a token has at least one byte, nor is any
    /// before the model has been loaded.
    fn input_tokens(
        &self,
        service: &Scope,
        rewritten: &Rewritten,
        max: usize,
        cancel: &Cancel,
    ) -> Result<usize, ApiError> {
        let bytes = self.body.len() + rewritten.added_text.len();
        let Some(pipeline) = service.pipeline().filter(|_| bytes > max) else { return Ok(0) };
        self.prompt.tokens(&self.body, rewritten, |text| {
            cancel.check().map_err(ApiError::from)?;
            Ok(pipeline.count(text, TokenizerName::O200kBase)?)
        })
    }

    fn check_input(
        &self,
        service: &Scope,
        rewritten: &Rewritten,
        max: usize,
        cancel: &Cancel,
    ) -> Result<(), ApiError> {
        let tokens = self.input_tokens(service, rewritten, max, cancel)?;
        let field = if self.dialect == Dialect::Responses { "input" } else { "messages" };
        if tokens <= max {
            return Ok(());
        }
        Err(ApiError::input_over_cap(tokens, max, rewritten.is_shorter(), field))
    }

    /// Leaves the conversation uncompressed; only the chunks of the request are added.
    fn uncompressed(&self) -> Rewritten {
        rewrite::uncompressed(self.as_conversation())
    }

    fn as_conversation(&self) -> rewrite::Conversation<'_> {
        rewrite::Conversation {
            dialect: self.dialect,
            body: self.located(),
            turns: &self.turns,
            added: &self.added,
            is_cited: true,
        }
    }
}

/// The words for true and false in headers of requests, in any case.
const YES: [&str; 4] = ["true", "1", "yes", "on"];
const NO: [&str; 4] = ["false", "0", "no", "off"];

fn boolean(headers: &HeaderMap, name: &'static str) -> Result<Option<bool>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let is_in =
        |words: &[&str]| words.iter().any(|word| value.as_bytes().eq_ignore_ascii_case(word.as_bytes()));
    match (is_in(&YES), is_in(&NO)) {
        (true, _) => Ok(Some(true)),
        (_, true) => Ok(Some(false)),
        _ => Err(ApiError::header_not_boolean(name)),
    }
}
