//! The pipeline: answers requests to compress, rank and attribute with one model. The HTTP API, the command
//! line, `eval`, the laboratory and programs that embed Thresher all call it. Knows nothing of transports.
//!
//! ```text
//! CompressRequest ─▶ tokenize ─▶ blocks ─▶ question ─▶ scan ─▶ score ─▶ decide ─▶ Compressed
//! ```
//!
//! | stage | does |
//! |---|---|
//! | [`tokenize`] | turns the question and new chunks into the model's tokens |
//! | [`blocks`] | takes the keys of each chunk from the cache; the model reads chunks that are not cached |
//! | [`question`] | has the model encode the question; a decoder's question attends to the blocks |
//! | [`lexical`] | scores words in scripts that the model does not know by their character n-grams |
//! | [`scan`] | computes the raw logits of the question over all keys, and the peak of each segment |
//! | [`score`] | computes a score per chunk and unit: from RC, or as `rc.estimator` says |
//! | [`decide`] | decides which units are kept, writes the context and counts its tokens |
//!
//! [`Pipeline::compress`] runs the stages in this order. `score` calls `scan` for some heads at a time, which
//! limits memory. `decide` calls [`assemble`] and [`count`], because selection depends on the number of tokens of a context, and a context
//! must be written before its tokens can be counted.

pub mod answerable;
pub mod assemble;
pub mod attribute;
pub mod blocks;
pub mod cancel;
pub mod clock;
pub mod calibration;
pub mod count;
pub mod decide;
pub mod explain;
pub mod evict;
pub mod in_time;
pub mod kv_export;
pub mod lexical;
pub mod load;
pub mod neighbours;
pub mod notable;
pub mod outcome;
pub mod place;
pub mod question;
pub mod reading;
pub mod recompute;
pub mod related;
pub mod repeats;
pub mod scan;
pub mod score;
pub mod seams;
pub mod source_conflicts;
pub mod tokenize;
pub mod units;
pub mod validate;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ndarray::{ArrayView2, Axis};
use thiserror::Error;

use self::answerable::Answerable;
use self::attribute::TermIds;
use self::blocks::{Blocks, Reader};
use self::calibration::{Calibration, is_other_language};
use self::cancel::Cancel;
use self::clock::Clock;
use self::count::{TextCosts, TokenCounter};
use self::decide::coverage::{CoverageLimits, Shortfall};
use self::decide::{DecideContext, Decision};
use self::in_time::InTime;
use self::lexical::{LexicalInput, LexicalRc};
use self::load::Overload;
use self::neighbours::Neighbours;
pub use self::outcome::{
    ChunkOutcome, Compressed, Ranked, RankedSentence, Relevance, Usage, Warning, passthrough,
};
use self::place::Places;
use self::question::{EncodeContext, EncodedHeads, QuestionViews};
pub use self::reading::Reading;
use self::related::measure_related;
use self::repeats::Repeats;
use self::score::{Measured, Scorer, Scores, Scoring};
use self::seams::Seams;
use self::tokenize::QuestionText;
use self::units::{Layouts, Unit};
use self::validate::{InvalidRequest, RequestLimits};
use crate::domain::{Budget, Chunk, CompressRequest, Granularity, KeptSpan, Kind, Tenant, TokenizerName};
use crate::kv::block::Block;
pub use crate::kv::codec::Codec;
pub use crate::kv::store::BlockOrigins;
use crate::kv::store::KvStore;
use crate::model::contract::{Around, QuestionTokens};
use crate::model::cross::CrossEncoder;
use crate::model::tokenizer::{ModelTokenizer, Tokens};
use crate::model::{ModelError, ModelInfo, ModelRuntime, NoPast};
use crate::rc;
use crate::text::definitions::{self, Sentence};
use crate::text::outline::Layout;
use crate::text::{self, Mentions};

/// The most tokens of a conversation that are read before its last question. More hardly change the vectors
/// of the question (`docs/evaluation.md`) but take time.
const HISTORY_TOKENS_MAX: usize = 128;

/// A request whose chunks have been read and scored: it can be compressed to several budgets.
pub struct Prepared {
    /// The request, with its question as it was read.
    request: CompressRequest,
    reading: Reading,
    scored: Scored,
    warning: Option<Warning>,
    clock: Clock,
}

struct Scored {
    scores: Scores,
    answerable: Option<Answerable>,
}

/// Answers requests with one model, its tokenizer and a cache of blocks. All methods take `&self`, so one
/// pipeline serves many threads at the same time.
///
/// [`Engine`](crate::Engine) builds a pipeline from a model folder. Requests run on the calling thread and on
/// the workers of the model; asynchronous programs should call them from a blocking thread.
pub struct Pipeline {
    model: Arc<dyn ModelRuntime>,
    tokenizer: Arc<ModelTokenizer>,
    reader: Reader,
    text_costs: TextCosts,
    layouts: Layouts,
    term_ids: TermIds,
    settings: Settings,
    /// Exports keys and values in place of this pipeline's model.
    exporter: Option<Arc<Pipeline>>,
    /// Gives a second opinion on the support of each part of an answer.
    verdict_model: Option<Arc<dyn CrossEncoder>>,
}

/// The settings of a pipeline, which are the same for all its requests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    pub limits: RequestLimits,
    /// The format in which keys are cached; int8 by default.
    pub codec: Codec,
    /// What the model's logits mean; `None` if nothing was fitted for it.
    pub calibration: Option<Arc<Calibration>>,
    /// How chunks and units are scored; `peak/ranked+coverage` by default.
    pub scoring: Scoring,
}

#[derive(Debug, Error)]
pub enum PipelineError {
    /// The caller must change the request; the message says what.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The deadline passed. Chunks that the model has read stay in the cache.
    #[error(
        "the deadline passed before the answer was ready. Repeat the request, with a longer deadline_ms if a \
         chunk or the answer is long: chunks that have been read are cached"
    )]
    DeadlineExceeded,
    #[error(transparent)]
    Overloaded(#[from] Overload),
    #[error(
        "the chunks of other requests take the memory that those of this one need (memory_bytes_max); repeat the request later"
    )]
    MemoryTaken,
    #[error("the request was cancelled, because its caller no longer waits for the result")]
    Cancelled,
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl Pipeline {
    /// Returns a pipeline for the default tenant that scores with `model`, tokenizes with `tokenizer` (which
    /// must belong to the model) and caches blocks in `store`.
    pub fn new(
        model: Arc<dyn ModelRuntime>,
        tokenizer: Arc<ModelTokenizer>,
        store: Arc<KvStore>,
        settings: Settings,
    ) -> Self {
        let reader =
            Reader::new(Arc::clone(&model), Arc::clone(&tokenizer), store, settings.codec, settings.limits);
        Self {
            model,
            tokenizer,
            reader,
            text_costs: TextCosts::default(),
            layouts: Layouts::default(),
            term_ids: TermIds::default(),
            settings,
            exporter: None,
            verdict_model: None,
        }
    }

    /// Returns the same pipeline with `exporter`, another pipeline that exports keys and values: an encoder
    /// selects chunks, and the decoder of `exporter` computes their keys and values.
    #[must_use]
    pub fn with_exporter(self, exporter: Arc<Self>) -> Self {
        Self { exporter: Some(exporter), ..self }
    }

    /// Returns the same pipeline with a cross-encoder that gives a second opinion on the support of each part of an
    /// answer.
    #[must_use]
    pub fn with_verdict_model(self, model: Arc<dyn CrossEncoder>) -> Self {
        Self { verdict_model: Some(model), ..self }
    }

    /// Returns the cross-encoder of [`Self::with_verdict_model`]; `None` if there is none.
    pub fn verdict_model(&self) -> Option<&dyn CrossEncoder> {
        self.verdict_model.as_deref()
    }

    /// Returns the pipeline of [`Self::with_exporter`]; `None` if there is none.
    pub fn exporter(&self) -> Option<&Self> {
        self.exporter.as_deref()
    }

    /// Returns the pipeline that exports keys and values: that of [`Self::with_exporter`], or this one.
    pub fn exporting(&self) -> &Self {
        self.exporter().unwrap_or(self)
    }

    /// Returns a pipeline for another tenant, with the same model and settings. The tenant gets its own share
    /// of the model's time. Nothing that was derived from texts is shared between tenants: neither blocks,
    /// nor reads in progress, nor the cached costs of frames, which may contain titles.
    pub fn of_tenant(&self, tenant: &Tenant) -> Self {
        let model = self.model.with_own_flow().unwrap_or_else(|| Arc::clone(&self.model));
        Self {
            reader: self.reader.of_tenant(tenant, Arc::clone(&model)),
            model,
            tokenizer: Arc::clone(&self.tokenizer),
            text_costs: TextCosts::default(),
            layouts: Layouts::default(),
            term_ids: TermIds::default(),
            settings: self.settings.clone(),
            exporter: self.exporter.as_ref().map(|exporter| Arc::new(exporter.of_tenant(tenant))),
            verdict_model: self.verdict_model.as_ref().map(|model| model.with_own_flow()),
        }
    }

    /// Returns the name, fingerprint and dimensions of the model.
    pub fn model(&self) -> &ModelInfo {
        self.model.info()
    }

    /// Returns the model itself, for callers that run it directly.
    pub fn runtime(&self) -> &dyn ModelRuntime {
        &*self.model
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the places of the passages of a chunk: their pages, lines and headings.
    pub fn places<'a>(&self, chunk: &'a Chunk) -> Places<'a> {
        Places::new(chunk, self.layouts.of_chunk(chunk))
    }

    /// Returns the name of the scoring method, such as `peak/ranked+coverage`.
    pub fn estimator(&self) -> String {
        self.settings.scoring.to_string()
    }

    /// Returns the estimated time that the model, and the model for KV export, need for the chunks of this
    /// tenant that they are reading. It is zero until the speed has been measured.
    pub fn reading_left(&self) -> Duration {
        let of_exporter = self.exporter.as_ref().map(|exporter| exporter.reading_left());
        self.reader.time_left() + of_exporter.unwrap_or_default()
    }

    /// Returns the bytes of memory that the blocks of all requests hold, those of [`Self::exporter`] included.
    pub fn memory_held(&self) -> usize {
        self.reader.memory_held() + self.exporter.as_ref().map_or(0, |exporter| exporter.memory_held())
    }

    /// Returns the bytes of memory of what was found in texts before: their layouts, terms and tokens.
    pub fn text_cache_bytes(&self) -> u64 {
        self.layouts.bytes() + self.term_ids.bytes() + self.text_costs.bytes()
    }

    /// Returns the estimated time that the model needs to read `bytes` bytes of text, beside nothing else. It is zero until the speed has
    /// been measured.
    pub fn time_to_read(&self, bytes: usize) -> Duration {
        self.reader.time_to_read(bytes)
    }

    /// Returns the bytes of those of `chunks` that are not cached.
    pub fn bytes_to_read(&self, chunks: &[Arc<Chunk>], cancel: &Cancel) -> usize {
        // One batch at a time, so that their blocks are not in memory together.
        let bytes_of_batch = |batch: &[Arc<Chunk>]| -> usize {
            let (found, _) = self.reader.cached_blocks(batch, None, cancel);
            let unread = batch.iter().zip(&found).filter(|(_, found)| found.is_none());
            unread.map(|(chunk, _)| chunk.text.len()).sum()
        };
        chunks.chunks(blocks::chunks_per_batch(self.model().windows_at_once)).map(bytes_of_batch).sum()
    }

    /// Compresses the chunks of a request to the parts that answer its question.
    ///
    /// The context of the result holds the units (by default sentences) with the best scores that fit into
    /// the request's budget. They are copied byte for byte from the caller's chunks, and `chunks` says from
    /// where. The model reads only chunks that are not in the cache; new chunks are cached for later
    /// requests.
    ///
    /// The call blocks until the result is ready. It returns early with an error soon after `cancel` stops
    /// it.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use thresher_core::domain::{Budget, Chunk, CompressRequest};
    /// use thresher_core::kv::store::KvStore;
    /// use thresher_core::model::scripted::ScriptedModel;
    /// use thresher_core::pipeline::cancel::Cancel;
    /// use thresher_core::pipeline::{Pipeline, Settings};
    ///
    /// // A model for tests, in which equal words match. `Engine` opens a real one.
    /// let model = Arc::new(ScriptedModel::new(64));
    /// let tokenizer = Arc::new(ScriptedModel::tokenizer(&["tide", "moon", "harbour"]));
    /// let store = Arc::new(KvStore::without_tiers());
    /// let pipeline = Pipeline::new(model, tokenizer, store, Settings::default());
    ///
    /// let chunks = vec![
    ///     Chunk::new("moon", "The moon pulls. It has no wind."),
    ///     Chunk::new("port", "The harbour is old."),
    /// ];
    /// let mut request = CompressRequest::new("moon", chunks);
    /// request.budget = Budget::tokens(10);
    ///
    /// let compressed = pipeline.compress(&request, &Cancel::default())?;
    /// assert_eq!(compressed.context, "[1] The moon pulls.");
    /// assert!(compressed.usage.expect("not degraded").tokens_out <= 10);
    /// let span = &compressed.chunks[0].spans[0];
    /// assert_eq!((span.source.start, span.source.end), (0, 15));
    /// # Ok::<(), thresher_core::pipeline::PipelineError>(())
    /// ```
    ///
    /// # Errors
    /// - [`PipelineError::Invalid`] if the request exceeds a limit, contradicts itself, or names a budget
    ///   into which no unit fits. The message says which field to change.
    /// - [`PipelineError::Overloaded`] if the model could not read the new chunks before the deadline,
    ///   because it reads chunks of other requests, too. It says when to retry.
    /// - [`PipelineError::DeadlineExceeded`] or [`PipelineError::Cancelled`] if `cancel` stopped the request.
    /// - [`PipelineError::Model`] if the model or its tokenizer failed.
    pub fn compress(&self, request: &CompressRequest, cancel: &Cancel) -> Result<Compressed, PipelineError> {
        validate::check(request, &self.settings.limits)?;
        let mut clock = Clock::start();
        let (request, shortened) = clock.stage("spelling", || self.with_question_to_read(request))?;
        let request = &*request;
        let compressed = match cancel.deadline() {
            Some(deadline) if request.best_effort => {
                let in_time = self.read_in_time(request, deadline, cancel, &mut clock)?;
                let read = &in_time.request;
                let reading = self.read_with(read, cancel, &mut clock, |_| Ok(in_time.blocks.clone()))?;
                let scored = self.score(read, &reading, cancel, &mut clock)?;
                self.compress_scored(read, &reading, &scored, cancel, clock)
                    .map(|compressed| in_time.result(compressed))
            }
            _ => {
                let reading = self.read(request, cancel, &mut clock)?;
                let scored = self.score(request, &reading, cancel, &mut clock)?;
                self.compress_scored(request, &reading, &scored, cancel, clock)
            }
        };
        compressed.map(|mut compressed| {
            compressed.warnings.extend(shortened);
            compressed
        })
    }

    /// Reads and scores the chunks of a request, to compress them to several budgets with [`Self::compress_prepared`]. All chunks are read,
    /// whatever `best_effort` says.
    ///
    /// # Errors
    /// Fails as [`Self::compress`] does.
    pub fn prepare(&self, request: &CompressRequest, cancel: &Cancel) -> Result<Prepared, PipelineError> {
        validate::check(request, &self.settings.limits)?;
        let mut clock = Clock::start();
        let (request, warning) = clock.stage("spelling", || self.with_question_to_read(request))?;
        let request = request.into_owned();
        let reading = self.read(&request, cancel, &mut clock)?;
        let scored = self.score(&request, &reading, cancel, &mut clock)?;
        Ok(Prepared { request, reading, scored, warning, clock })
    }

    /// Does the rest of [`Self::compress`], with this budget instead of that of the request.
    ///
    /// # Errors
    /// Fails as [`Self::compress`] does.
    pub fn compress_prepared(
        &self,
        prepared: &Prepared,
        budget: Budget,
        cancel: &Cancel,
    ) -> Result<Compressed, PipelineError> {
        let Prepared { request, reading, scored, warning, clock } = prepared;
        validate::check_budget(budget, request.granularity)?;
        let request = CompressRequest { budget, ..request.clone() };
        let mut compressed = self.compress_scored(&request, reading, scored, cancel, clock.clone())?;
        compressed.warnings.extend(*warning);
        Ok(compressed)
    }

    /// Returns a request with a question that the limits allow, and a warning if that of the caller is longer: the model reads the
    /// sentences of it that ask something, and its last ones. Misspelt words are read as the chunks spell them.
    fn with_question_to_read<'a>(
        &self,
        request: &'a CompressRequest,
    ) -> Result<(Cow<'a, CompressRequest>, Option<Warning>), PipelineError> {
        let max = self.settings.limits.query_tokens_max;
        let shortened = tokenize::shortened(&request.query, &self.tokenizer, max)?;
        let warning = shortened.as_ref().map(|&(_, tokens)| Warning::QuestionShortened { tokens, max });
        let query = shortened.map_or(Cow::Borrowed(&*request.query), |(query, _)| Cow::Owned(query));
        // An explanation names places in the question as it was sent.
        let spelt =
            if request.explain { None } else { self.with_spelling_of_chunks(&query, &request.chunks) };
        let query = spelt.map_or(query, Cow::Owned);
        Ok(match query {
            Cow::Borrowed(_) => (Cow::Borrowed(request), warning),
            Cow::Owned(query) => (Cow::Owned(CompressRequest { query, ..request.clone() }), warning),
        })
    }

    /// Returns a question whose misspelt words are spelt as in the chunks; `None` if there are none. A word that the tokenizer divides is
    /// one that it does not know.
    fn with_spelling_of_chunks(&self, query: &str, chunks: &[Arc<Chunk>]) -> Option<String> {
        let is_known = |word: &str| self.tokenizer.encode(word).is_ok_and(|tokens| tokens.ids.len() == 1);
        let titles = chunks.iter().filter_map(|chunk| chunk.title.as_deref());
        let texts: Vec<&str> = chunks.iter().map(|chunk| &*chunk.text).chain(titles).collect();
        text::with_spelling_of(query, &texts, is_known)
    }

    /// Finds or reads the blocks of a request's chunks, as long as there is time.
    fn read_in_time<'a>(
        &self,
        request: &'a CompressRequest,
        deadline: Instant,
        cancel: &Cancel,
        clock: &mut Clock,
    ) -> Result<InTime<'a>, PipelineError> {
        let order = clock.stage("order", || in_time::reading_order(request, cancel))?;
        let until = in_time::read_until(deadline, self.reader.time_to_end());
        clock.stage("blocks", || InTime::read(request, order, &self.reader, until, cancel))
    }

    /// Returns the rule that scores readings.
    ///
    /// # Errors
    /// Fails if the settings name the probe, and the model has none.
    pub fn scorer(&self) -> Result<Arc<dyn Scorer>, ModelError> {
        self.settings.scoring.scorer(self.model())
    }

    fn score(
        &self,
        request: &CompressRequest,
        reading: &Reading,
        cancel: &Cancel,
        clock: &mut Clock,
    ) -> Result<Scored, PipelineError> {
        let scores = self.scorer()?.score(reading, cancel, clock)?;
        let answerable = clock.stage("answerable", || self.answerable(reading, request, &scores, cancel))?;
        Ok(Scored { scores, answerable })
    }

    fn compress_scored(
        &self,
        request: &CompressRequest,
        reading: &Reading,
        scored: &Scored,
        cancel: &Cancel,
        mut clock: Clock,
    ) -> Result<Compressed, PipelineError> {
        let Scored { scores, answerable } = scored;
        let relevance = self.relevance(request, reading, scored);
        let decide = || self.decide(request, reading, scores, relevance, cancel);
        let decision = clock.stage("decide", decide)?;
        // The RC of tokens does not explain the score of a probe.
        let explain = || clock.stage("explain", || explain::explanation(reading, cancel));
        let explanation = (request.explain && !scores.are_probabilities).then(explain).transpose()?;
        let warnings = self.warnings(request, reading, scores, &decision);
        let relevances = self.chunk_relevances(&request.query, reading, scores);
        Ok(Compressed {
            warnings,
            chunks: chunk_outcomes(
                reading,
                scores,
                decision.spans,
                decision.repeats,
                &decision.order,
                relevances.as_deref(),
            ),
            context: decision.context,
            conflicts: decision.conflicts,
            marker_tag: decision.marker_tag,
            usage: Some(decision.usage),
            relevance,
            answerable: *answerable,
            turns_read: (!request.history.is_empty()).then_some(reading.turns),
            lang: text::lang_of(&request.query),
            degraded: false,
            sources: Some(reading.blocks.sources),
            timings: clock.finish(),
            explanation,
        })
    }

    /// Returns whether the chunks answer the question; `None` where it was not measured.
    ///
    /// # Errors
    /// Fails as [`Self::compress`] does.
    pub fn answerable(
        &self,
        reading: &Reading,
        request: &CompressRequest,
        scores: &Scores,
        cancel: &Cancel,
    ) -> Result<Option<Answerable>, PipelineError> {
        let calibration = self.calibration_for(reading);
        let Some(curve) = calibration.and_then(|calibration| calibration.answerable.as_ref()) else {
            return Ok(None);
        };
        let missed_max = request.missed_max.unwrap_or(answerable::MISSED_MAX);
        answerable::measure_answerable(reading, request, scores, (curve, missed_max), cancel)
    }

    /// Returns how probable it is of each chunk, `[chunk]`, that it contains something that the question asks, independent of the other
    /// chunks. `None` where it was not measured: for decoders and words that the model does not know, without a calibration for the language of
    /// the question, and where question and chunks are not in the languages that the calibration requires.
    pub fn chunk_relevances(&self, query: &str, reading: &Reading, scores: &Scores) -> Option<Vec<f32>> {
        let curve = self.calibration_for(reading)?.relevance.as_ref()?;
        let is_measured = scores.measured != Measured::Lexical
            && scores.chunk_relevances.len() == reading.blocks.blocks.len();
        let is_measured = is_measured && !is_other_language(text::lang_of(query), &curve.languages);
        is_measured.then(|| scores.chunk_relevances.iter().map(|&value| curve.probability(value)).collect())
    }

    /// Returns what a promised coverage is worth where it leaves something out and several chunks score alike.
    fn shortfall(
        &self,
        request: &CompressRequest,
        reading: &Reading,
        scores: &Scores,
        decision: &Decision,
    ) -> Option<Shortfall> {
        let promised = request.budget.coverage?;
        let is_said = |unit: &Unit| {
            let mut spans = decision.spans[unit.chunk].iter().chain(&decision.repeats[unit.chunk]);
            spans.any(|span| span.source.encloses(unit.bytes))
        };
        let is_in_doubt = scores.are_alike(reading) && !reading.units.iter().all(is_said);
        self.own_coverage_limits()?.shortfall(promised).filter(|_| is_in_doubt)
    }

    fn warnings(
        &self,
        request: &CompressRequest,
        reading: &Reading,
        scores: &Scores,
        decision: &Decision,
    ) -> Vec<Warning> {
        let is_unknown = |c: char| c.is_alphabetic() && !self.tokenizer.knows(text::script_of(c));
        let script = reading.lexical.is_none() && request.query.chars().any(is_unknown);
        let unfit = |(chunk, layout): (usize, &Arc<Layout>)| {
            let Chunk { kind: named, text, .. } = &*request.chunks[chunk];
            let (named, mut lines) = (*named, text.lines().filter(|line| !line.trim().is_empty()));
            // A chat can come with one turn in each chunk.
            let lines_min = if named == Kind::Chat { 2 } else { 1 };
            let is_unfit = named != Kind::Auto && named != layout.kind && lines.nth(lines_min - 1).is_some();
            is_unfit.then_some(Warning::KindUnfit { chunk, named })
        };
        let layouts: &[Arc<Layout>] = match request.granularity {
            Granularity::Sentence => reading.outlines.layouts(),
            Granularity::Chunk | Granularity::Word => &[],
        };
        let rows = decision.rows_left_out.iter().map(|&chunk| Warning::RowsLeftOut { chunk });
        let headers = decision.groups_cut.iter().map(|&chunk| Warning::GroupCut { chunk });
        let unfit = layouts.iter().enumerate().filter_map(unfit);
        let coverage = self.shortfall(request, reading, scores, decision).map(Warning::CoverageNotPromised);
        let script = script.then_some(Warning::ScriptUnknown);
        let words = decision.unit_cut.map(|chunk| Warning::UnitCut { chunk });
        let capped = decision.coverage_cut.map(|promised| Warning::CoverageCut { promised });
        rows.chain(headers).chain(words).chain(unfit).chain(capped).chain(coverage).chain(script).collect()
    }

    /// Encodes the question of a request, and finds or reads the blocks of its chunks. It checks what depends
    /// on tokens; the caller must check the rest first with [`validate::check`].
    ///
    /// # Errors
    /// Fails as [`Self::compress`] does.
    pub fn read(
        &self,
        request: &CompressRequest,
        cancel: &Cancel,
        clock: &mut Clock,
    ) -> Result<Reading, PipelineError> {
        self.read_with(request, cancel, clock, |clock| {
            clock.stage("blocks", || self.reader.blocks(&request.chunks, cancel))
        })
    }

    /// As [`Self::read`], with the blocks that `blocks` returns.
    fn read_with(
        &self,
        request: &CompressRequest,
        cancel: &Cancel,
        clock: &mut Clock,
        blocks: impl FnOnce(&mut Clock) -> Result<Blocks, PipelineError>,
    ) -> Result<Reading, PipelineError> {
        let (limits, model) = (&self.settings.limits, &*self.model);
        let scorer = self.scorer()?;
        let wants = scorer.wants();
        let QuestionText { tokens, query } =
            clock.stage("tokenize", || self.tokenize(&request.query, wants.around))?;
        let turns_before = if wants.history { &request.history } else { &[][..] };
        let history = || tokenize::history(turns_before, self.room_before(&tokens), &self.tokenizer);
        let history = clock.stage("history", history)?;
        let ids = [&*history.ids, &*tokens.ids].concat();
        cancel.spend(ids.len());
        let blocks = blocks(clock)?;
        cancel.check()?;
        let split = || units::split_units(request.granularity, &request.chunks, &blocks, &self.layouts);
        let (units, mut outlines) = clock.stage("units", split);
        cancel.check()?;
        let repeats = match request.granularity {
            Granularity::Word => Repeats::default(),
            Granularity::Sentence => clock.stage("repeats", || {
                let mut repeats = Repeats::find(&request.chunks, &units);
                let mut seams = Seams::find(&request.chunks, &units, &outlines);
                let mut needs = std::mem::take(&mut seams.needs);
                repeats.add_seams(seams);
                let sentences = units.iter().enumerate().map(|(at, unit)| {
                    let is_read =
                        outlines.layouts()[unit.chunk].kind.is_running_text() && repeats.stays(at) == at;
                    let text = unit.bytes.slice(&request.chunks[unit.chunk].text);
                    Sentence { text: if is_read { text } else { "" }, chunk: unit.chunk }
                });
                needs.extend(definitions::uses(&sentences.collect::<Vec<_>>()));
                let needs =
                    needs.into_iter().map(|(unit, other)| (repeats.stays(unit), repeats.stays(other)));
                outlines.require_across(needs.filter(|(unit, other)| unit != other));
                repeats
            }),
            Granularity::Chunk => clock.stage("repeats", || Repeats::find(&request.chunks, &units)),
        };
        cancel.check()?;
        let needs_all_logits = request.explain || wants.all_logits;
        let columns = if needs_all_logits { blocks.tokens() } else { units.len() + request.chunks.len() };
        limits.check_logits(tokens.ids.len(), columns)?;
        let heads = wants.heads;
        let question = clock.stage("question", || self.encode(&ids, &blocks, heads, cancel))?;
        let question = question.without_first(history.ids.len());
        cancel.check()?;
        let decoder = model.info().decoder.as_ref();
        let lexical = || {
            let input = LexicalInput {
                query: &request.query,
                tokens: &tokens,
                tokenizer: &self.tokenizer,
                chunks: &request.chunks,
                granularity: request.granularity,
                units: &units,
                outlines: &outlines,
            };
            Ok::<_, PipelineError>(LexicalRc::compute(input, limits, cancel)?.map(Arc::new))
        };
        let lexical = if decoder.is_none() { clock.stage("lexical", lexical)? } else { None };
        let mentions = || {
            let titled = request.chunks.iter().map(|chunk| (chunk.title.as_deref(), &*chunk.text));
            Mentions::find(titled)
        };
        let mentions =
            if decoder.is_none() { clock.stage("mentions", mentions) } else { Mentions::default() };
        cancel.check()?;
        let is_calibrated = self.settings.calibration.as_ref().is_some_and(|calibration| {
            calibration.holds_for(&request.query, blocks.blocks.iter().map(Block::lang))
        });
        let neighbours = || Neighbours::find(&request.chunks);
        let neighbours =
            if decoder.is_none() { clock.stage("neighbours", neighbours) } else { Neighbours::default() };
        Ok(Reading {
            tokens,
            query,
            turns: history.turns,
            question,
            blocks: Arc::new(blocks),
            granularity: request.granularity,
            units: units.into(),
            outlines: Arc::new(outlines),
            repeats: Arc::new(repeats),
            mentions: Arc::new(mentions),
            neighbours: Arc::new(neighbours),
            logits_have_fixed_scale: decoder.is_none(),
            is_calibrated,
            question_tokens: decoder.map_or(QuestionTokens::All, |decoder| decoder.question_tokens),
            lexical,
        })
    }

    /// Returns a decoder's reading with its question in a template and encoded in all heads, as a probe reads it.
    /// `around` is the text before and after the question. The training of a probe calls this.
    ///
    /// # Errors
    /// Fails as [`Self::compress`] does.
    pub fn read_for_probe(
        &self,
        reading: &Reading,
        query: &str,
        around: Around,
        cancel: &Cancel,
    ) -> Result<Reading, PipelineError> {
        let QuestionText { tokens, query } = self.tokenize(query, around)?;
        self.settings.limits.check_logits(tokens.ids.len(), reading.blocks.tokens())?;
        let question = self.encode(&tokens.ids, &reading.blocks, EncodedHeads::All, cancel)?;
        Ok(Reading { tokens, query, question, ..reading.clone() })
    }

    /// Tokenizes a question with the text before and after it.
    fn tokenize(&self, query: &str, around: Around) -> Result<QuestionText, PipelineError> {
        let limits = &self.settings.limits;
        let question = tokenize::question(query, around.before, around.after, &self.tokenizer, limits)?;
        limits.check_question(question.tokens.ids.len(), question::tokens_max(self.model.info()))?;
        Ok(question)
    }

    /// Returns how many tokens of a conversation can be read before a question.
    fn room_before(&self, question: &Tokens) -> usize {
        let info = self.model.info();
        let together_max = question::tokens_max(info).unwrap_or(info.window_tokens_max);
        together_max.min(info.window_tokens_max).saturating_sub(question.ids.len()).min(HISTORY_TOKENS_MAX)
    }

    fn encode(
        &self,
        ids: &[u32],
        blocks: &Blocks,
        heads: EncodedHeads,
        cancel: &Cancel,
    ) -> Result<QuestionViews, PipelineError> {
        let (model, limits) = (&*self.model, &self.settings.limits);
        let context = EncodeContext { model, limits, cancel, is_concurrent: false, heads };
        question::encode(ids, blocks, context)
    }

    /// Scores each chunk for `query`, as [`Self::compress`] does. If `granularity` is sentences, it also
    /// returns the RC of each sentence.
    ///
    /// # Errors
    /// Fails as [`Self::compress`] does.
    pub fn rank(
        &self,
        query: &str,
        chunks: &[Arc<Chunk>],
        granularity: Granularity,
        cancel: &Cancel,
    ) -> Result<Ranked, PipelineError> {
        let request = CompressRequest {
            granularity,
            chunks: chunks.to_vec(),
            registered: true,
            ..CompressRequest::new(query, Vec::new())
        };
        validate::check(&request, &self.settings.limits)?;
        let (request, _) = self.with_question_to_read(&request)?;
        let reading = self.read(&request, cancel, &mut Clock::start())?;
        // Each document has its own rank, whatever the others say.
        let reading = Reading { repeats: Arc::default(), ..reading };
        let scores = self.scorer()?.score(&reading, cancel, &mut Clock::start())?;
        let answerable = self.answerable(&reading, &request, &scores, cancel)?;
        let sentences = match granularity {
            Granularity::Sentence => {
                let unit_rc = rc::mean_over_queries(scores.unit_rc.view());
                let sentence =
                    |(unit, rc): (&Unit, f32)| RankedSentence { chunk: unit.chunk, bytes: unit.bytes, rc };
                reading.units.iter().zip(unit_rc).map(sentence).collect()
            }
            Granularity::Chunk | Granularity::Word => Vec::new(),
        };
        let tokens = reading.tokens.ids.len() + reading.blocks.tokens();
        let scored = Scored { scores, answerable };
        let relevance = self.relevance(&request, &reading, &scored);
        let Scored { scores, answerable } = scored;
        let chunk_relevances = self.chunk_relevances(&request.query, &reading, &scores);
        let Scores { chunks, are_probabilities, .. } = scores;
        Ok(Ranked { chunks, relevance, chunk_relevances, answerable, are_probabilities, sentences, tokens })
    }

    /// Has the model read those of `chunks` that are not cached, so that later requests find their blocks.
    /// Returns how many chunks the model read. The decoder of [`Self::exporter`] reads nothing: its blocks are
    /// many times as large, and most chunks are never exported.
    ///
    /// # Errors
    /// Fails as [`Self::compress`] does.
    pub fn warm(&self, chunks: &[Arc<Chunk>], cancel: &Cancel) -> Result<usize, PipelineError> {
        Ok(self.reader.blocks(chunks, cancel)?.sources.read)
    }

    /// Has the model read those of `chunks` that are not cached, and returns the mean of the vectors of each chunk's tokens, of length 1; it is
    /// empty for decoders, whose keys have no direction that texts share.
    ///
    /// # Errors
    /// Fails as [`Self::compress`] does.
    pub fn mean_vectors(
        &self,
        chunks: &[Arc<Chunk>],
        cancel: &Cancel,
    ) -> Result<Vec<Vec<f32>>, PipelineError> {
        let blocks = self.reader.blocks(chunks, cancel)?.blocks;
        if self.model().decoder.is_some() {
            return Ok(vec![Vec::new(); chunks.len()]);
        }
        Ok(blocks.iter().map(|block| unit_mean(block.keys().index_axis(Axis(0), 0))).collect())
    }

    /// Returns the mean of the vectors of a question's tokens, of length 1; empty for decoders. Of a long question, only
    /// what fits into one window counts.
    ///
    /// # Errors
    /// Returns [`PipelineError::Model`] if the question cannot be tokenized or encoded.
    pub fn mean_vector_of(&self, question: &str) -> Result<Vec<f32>, PipelineError> {
        let mut tokens = self.tokenizer.encode(question)?.ids;
        tokens.truncate(self.model().window_tokens_max);
        if self.model().decoder.is_some() || tokens.is_empty() {
            return Ok(Vec::new());
        }
        let encoded = self.model.encode_question(&tokens, &NoPast)?;
        Ok(unit_mean(encoded.vectors.index_axis(Axis(0), 0)))
    }

    /// Removes from all tiers what was derived from `chunks`, because they were deleted.
    pub fn forget(&self, chunks: &[Arc<Chunk>]) {
        self.reader.forget(chunks);
        self.exporter.iter().for_each(|exporter| exporter.reader.forget(chunks));
    }

    /// Removes from this machine what was derived from texts of this tenant. Returns how many blocks there were.
    pub fn forget_all(&self) -> usize {
        self.reader.forget_all()
    }

    /// Returns the number of tokens that a tokenizer finds in `text`.
    ///
    /// # Errors
    /// Returns [`PipelineError::Model`] if the model's tokenizer cannot encode the text.
    pub fn count(&self, text: &str, tokenizer: TokenizerName) -> Result<usize, PipelineError> {
        self.text_costs.count(
            &TokenCounter::new(tokenizer, &self.tokenizer),
            tokenizer,
            text,
            &Cancel::default(),
        )
    }

    /// Returns the ids of the model's tokens in `text`. No special token is added, and text that looks like
    /// one is not read as one.
    ///
    /// # Errors
    /// Returns [`PipelineError::Model`] if the model's tokenizer cannot encode the text.
    pub fn tokens_of(&self, text: &str) -> Result<Vec<u32>, PipelineError> {
        Ok(self.tokenizer.encode(text)?.ids)
    }

    /// Returns the ids of the model's tokens in a prompt: what the model reads after the chunks. Special tokens
    /// in it, such as those of a chat template, are read as such; none is added.
    ///
    /// # Errors
    /// Returns [`PipelineError::Model`] if the model's tokenizer cannot encode the text.
    pub fn tokens_of_prompt(&self, prompt: &str) -> Result<Vec<u32>, PipelineError> {
        Ok(self.tokenizer.encode_prompt(prompt)?.ids)
    }

    /// Decides which units a context holds, and writes it. `relevance` matters only to requests that want related text alone.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::BudgetImpossible`] if the budget is too small for any context that the
    /// request allows, and otherwise fails as [`Self::compress`] does.
    pub fn decide(
        &self,
        request: &CompressRequest,
        reading: &Reading,
        scores: &Scores,
        relevance: Option<Relevance>,
        cancel: &Cancel,
    ) -> Result<Decision, PipelineError> {
        let counter = TokenCounter::new(request.tokenizer, &self.tokenizer);
        let own = self.own_coverage_limits();
        // Two results of a tool are two measurements.
        let conflicts = if request.granularity == Granularity::Sentence && !request.keeps_notable {
            let layout_of = |chunk: usize| Arc::clone(&reading.outlines.layouts()[chunk]);
            source_conflicts::find(&request.chunks, &reading.units, &layout_of, cancel)?
        } else {
            Vec::new()
        };
        let context = DecideContext {
            counter: &counter,
            text_costs: &self.text_costs,
            limits: own.unwrap_or_else(|| Calibration::usual_coverage()),
            is_calibrated: own.is_some(),
            relevance,
            conflicts: &conflicts,
            cancel,
        };
        decide::decide(request, reading, scores, &context)
    }

    /// Returns whether any chunk is related to the question; `None` if the model does not tell.
    fn relevance(&self, request: &CompressRequest, reading: &Reading, scored: &Scored) -> Option<Relevance> {
        let Scored { scores, answerable } = scored;
        measure_related(&request.chunks, scores, answerable.as_ref(), self.calibration_for(reading))
    }

    /// Returns the calibration of the model if its thresholds hold for a request.
    fn calibration_for(&self, reading: &Reading) -> Option<&Calibration> {
        self.settings.calibration.as_deref().filter(|_| reading.is_calibrated)
    }

    /// Returns the limits of budgets that promise a coverage; `None` if there are none for this model and its way of scoring.
    fn own_coverage_limits(&self) -> Option<&CoverageLimits> {
        let limits = self.settings.calibration.as_ref()?.coverage.as_ref()?;
        (limits.estimator == self.estimator()).then_some(limits)
    }
}

/// Returns the mean of some vectors, `[vector, value]`, divided by its length.
fn unit_mean(vectors: ArrayView2<f32>) -> Vec<f32> {
    let Some(mean) = vectors.mean_axis(Axis(0)) else { return Vec::new() };
    let length = mean.dot(&mean).sqrt().max(f32::MIN_POSITIVE);
    (mean / length).to_vec()
}

/// Returns one outcome per chunk, in the order of the result. `spans` `[chunk]` are the kept spans of each
/// chunk in the order of the request, and `repeats` those that the context holds in another chunk; `order` lists the indices of all chunks.
fn chunk_outcomes(
    reading: &Reading,
    scores: &Scores,
    mut spans: Vec<Vec<KeptSpan>>,
    mut repeats: Vec<Vec<KeptSpan>>,
    order: &[usize],
    relevances: Option<&[f32]>,
) -> Vec<ChunkOutcome> {
    let outcome = |&index: &usize| {
        let (spans, repeats) = (std::mem::take(&mut spans[index]), std::mem::take(&mut repeats[index]));
        let block = &reading.blocks.blocks[index];
        let empty = block.sentences().len() == 0;
        let score = (!empty).then(|| scores.chunks[index]);
        let kind = (reading.granularity == Granularity::Sentence && !empty)
            .then(|| reading.outlines.layouts()[index].kind);
        let (kept, lang) = (!spans.is_empty(), block.lang());
        let relevance = relevances.filter(|_| !empty).map(|relevances| relevances[index]);
        ChunkOutcome { index, kept, empty, unread: false, kind, lang, score, relevance, spans, repeats }
    };
    order.iter().map(outcome).collect()
}
