//! The life of a request, stage by stage: tokenize → blocks → question → scan → score → fit, which selects and assembles.
//! HTTP, the command line, `eval` and `bench` all come through here. Only `fit` is made of stages itself: a context has
//! to be written to be counted, and counted to be selected.

pub mod assemble;
pub mod attribute;
pub mod auto;
pub mod blocks;
pub mod cancel;
pub mod clock;
pub mod count;
pub mod explain;
pub mod fit;
pub mod evict;
pub mod kv_export;
pub mod load;
pub mod question;
pub mod scan;
pub mod score;
pub mod select;
pub mod tokenize;
pub mod units;
pub mod validate;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{Array3, s};
use thiserror::Error;

use self::auto::Auto;
use self::blocks::{Blocks, Reader};
use self::cancel::Cancel;
use self::clock::{Clock, Timings};
use self::count::{Counter, FrameCosts};
use self::explain::Explanation;
use self::fit::FitContext;
use self::load::Late;
pub use self::question::Placement;
use self::question::{EncodeContext, QuestionViews};
use self::scan::ScanBy;
use self::score::{Scores, Scoring};
use self::units::Unit;
use self::validate::{InvalidRequest, RequestLimits};
use crate::domain::{ByteRange, Chunk, CompressRequest, Granularity, KeptSpan, Tenant, TokenizerName};
pub use crate::kv::codec::Codec;
use crate::kv::store::KvStore;
pub use crate::kv::store::Sources;
use crate::model::contract::QuestionTokens;
use crate::model::tokenizer::{ModelTokenizer, Tokens};
use crate::model::{ModelError, ModelInfo, ModelRuntime, RawLogits};
use crate::rc;

/// Everything that answers requests, shared by all of them.
pub struct Pipeline {
    model: Arc<dyn ModelRuntime>,
    tokenizer: Arc<ModelTokenizer>,
    reader: Reader,
    frames: FrameCosts,
    settings: Settings,
}

/// How requests are answered.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// Bounds of one request.
    pub limits: RequestLimits,
    /// How much is worth keeping when no budget is named.
    pub auto: Auto,
    /// How blocks are stored.
    pub codec: Codec,
    /// Blocks of pipelines with another one are never found.
    pub salt: String,
    /// What computes logits.
    pub scan: ScanBy,
    /// How a decoder's blocks stand in front of a question.
    pub placement: Placement,
    /// How chunks and units are scored.
    pub scoring: Scoring,
}

/// A compressed context with the way back to its sources. All ranges are in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Compressed {
    /// The text to send to the language model. [`ChunkOutcome::spans`] says where each part of it came from.
    pub context: String,
    /// One per chunk of the request: in its order, or best first when asked so.
    pub chunks: Vec<ChunkOutcome>,
    /// Tokens before and after; none in a degraded answer, since counting may be what there was no time for.
    pub usage: Option<Usage>,
    /// Whether anything sent has to do with the question; none in a degraded answer, and where the model's logits do not say.
    pub relevance: Option<Relevance>,
    /// Whether the caller's own chunks came back whole, in place of an answer.
    pub degraded: bool,
    /// Where the chunks' blocks came from; none in a degraded answer.
    pub sources: Option<Sources>,
    /// Time per stage.
    pub timings: Timings,
    /// Per-token RC, when asked for.
    pub explanation: Option<Explanation>,
}

/// What became of one chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkOutcome {
    /// Index in the request.
    pub index: usize,
    /// Whether anything of it is in the context.
    pub kept: bool,
    /// Whether it holds nothing that could be kept.
    pub empty: bool,
    /// RC of the whole chunk; none when it was not scored.
    pub score: Option<f32>,
    /// Spans of its text that the context holds, ascending.
    pub spans: Vec<KeptSpan>,
}

/// Tokens of the context, before and after, counted with the caller's tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Of the context if everything were kept.
    pub tokens_in: usize,
    /// Of the context as returned.
    pub tokens_out: usize,
}

/// Whether anything sent has to do with the question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Relevance {
    /// Mean over the question's tokens of their best raw logit.
    pub max_sim: f32,
    /// Whether that is enough for this model (`auto.max_sim_min`).
    pub related: bool,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum PipelineError {
    /// The request has to change.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The deadline has passed.
    #[error(
        "the deadline passed before the answer was ready. Repeat the request, with a longer deadline_ms where a chunk or an answer is \
         long: chunks that have been read are cached"
    )]
    DeadlineExceeded,
    /// The model has too much to read for others.
    #[error(
        "reading {bytes} bytes of new text takes about {:.1} s beside other requests, too long for the deadline. Repeat the request in \
         {:.0} s, name a longer deadline_ms, or send fewer new chunks",
        late.expected.as_secs_f64(),
        late.retry_after.as_secs_f64().ceil().max(1.0)
    )]
    WouldBeLate {
        /// Text of chunks that have not been read.
        bytes: usize,
        /// How long reading it would take, and when to ask again.
        late: Late,
    },
    /// The caller has gone.
    #[error("the caller no longer waits")]
    Cancelled,
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Chunks as they answer a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranked {
    /// RC of each chunk, in the request's order.
    pub chunks: Vec<f32>,
    /// In the order of the chunks; none where only these were asked about.
    pub sentences: Vec<RankedSentence>,
    /// Tokens of the model, of question and chunks.
    pub tokens: usize,
}

/// A sentence of a chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankedSentence {
    /// Index of the chunk in the request.
    pub chunk: usize,
    /// Of its text.
    pub bytes: ByteRange,
    /// Its own RC, among all sentences.
    pub rc: f32,
}

/// Everything read for a request, before any of it is judged: `eval` scores the same reading in many ways.
#[derive(Clone)]
pub struct Reading {
    /// The question's tokens.
    pub tokens: Tokens,
    /// The question as the model sees it.
    pub question: QuestionViews,
    /// The chunks' keys, and where their tokens and sentences stand. Sentences of one answer share these and the units.
    pub blocks: Arc<Blocks>,
    /// What is kept or dropped as a whole.
    pub granularity: Granularity,
    /// What can be kept.
    pub units: Arc<[Unit]>,
    /// `[head, question_token, key]` by the query graph, where settings ask for it.
    pub graph_logits: Option<Array3<f32>>,
    /// Whether a raw logit says by itself how near two tokens are.
    pub reaches: bool,
    /// Tokens of the question whose RC ranks; of a sentence of an answer all.
    pub question_tokens: QuestionTokens,
}

impl Reading {
    /// The same reading with its blocks in another codec, as far as theirs has kept them.
    pub fn recoded(&self, codec: Codec) -> Self {
        let blocks = self.blocks.blocks.iter().map(|block| block.recoded(codec)).collect();
        let blocks = Arc::new(Blocks { blocks, ..(*self.blocks).clone() });
        Self { blocks, graph_logits: None, ..self.clone() }
    }

    /// The reading as it is ranked by: with those tokens of the question alone that count.
    pub fn that_counts(&self) -> Cow<'_, Self> {
        match self.question_tokens {
            QuestionTokens::Last if self.tokens.ids.len() > 1 => Cow::Owned(self.of_last_token()),
            QuestionTokens::All | QuestionTokens::Last => Cow::Borrowed(self),
        }
    }

    fn of_last_token(&self) -> Self {
        let last = self.tokens.ids.len() - 1..;
        let tokens = Tokens {
            ids: self.tokens.ids[last.clone()].to_vec(),
            offsets: self.tokens.offsets[last].to_vec(),
        };
        let graph_logits = self.graph_logits.as_ref().map(|logits| logits.slice(s![.., -1.., ..]).to_owned());
        Self {
            tokens,
            question: self.question.of_last_token(),
            graph_logits,
            question_tokens: QuestionTokens::All,
            ..self.clone()
        }
    }

    /// Raw logits of some heads, over the chunks' keys and the question's own. The default scoring does without them.
    pub fn logits(&self, heads: Range<usize>) -> RawLogits {
        RawLogits { cross: scan::logits(self, heads.clone()), self_logits: self.question.self_logits(heads) }
    }
}

impl Pipeline {
    /// Wires model, tokenizer and store.
    pub fn new(
        model: Arc<dyn ModelRuntime>,
        tokenizer: Arc<ModelTokenizer>,
        store: Arc<KvStore>,
        settings: Settings,
    ) -> Self {
        let (codec, salt) = (settings.codec, settings.salt.as_bytes());
        let reader = Reader::new(Arc::clone(&model), Arc::clone(&tokenizer), store, codec, salt);
        Self { model, tokenizer, reader, frames: FrameCosts::new(), settings }
    }

    /// The same model for another tenant, which has a share of the model's time of its own, and shares nothing with others that is
    /// made of their texts: neither blocks, nor the reading of one, nor what frames with titles cost.
    pub fn of_tenant(&self, tenant: &Tenant) -> Self {
        let model = self.model.with_own_share().unwrap_or_else(|| Arc::clone(&self.model));
        Self {
            reader: self.reader.of_tenant(tenant, Arc::clone(&model)),
            model,
            tokenizer: Arc::clone(&self.tokenizer),
            frames: FrameCosts::new(),
            settings: self.settings.clone(),
        }
    }

    /// The model that scores.
    pub fn model(&self) -> &ModelInfo {
        self.model.info()
    }

    /// The same, to be run.
    pub fn runtime(&self) -> &dyn ModelRuntime {
        &*self.model
    }

    /// How long the model will take for the chunks of this tenant that are being read.
    pub fn reading_left(&self) -> Duration {
        self.reader.time_left()
    }

    /// How it answers requests.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The name of the rule that it scores by.
    pub fn estimator(&self) -> String {
        self.settings.scoring.to_string()
    }

    /// Answers a request.
    ///
    /// # Errors
    /// [`PipelineError::Invalid`] names what to change; a deadline or a failure of the model are said as such.
    pub fn compress(&self, request: &CompressRequest, cancel: &Cancel) -> Result<Compressed, PipelineError> {
        validate::check(request, &self.settings.limits)?;
        let mut clock = Clock::start();
        let reading = self.read(request, cancel, &mut clock)?;
        let scores = match self.settings.scoring {
            Scoring::RankedCoverage => {
                let contrast = clock.stage("scan", || score::contrast(&reading, cancel))?;
                clock.stage("score", || score::ranked_coverage(&reading, contrast))
            }
            plain => clock.stage("scan", || score::all(&reading, plain, cancel))?,
        };
        let fitted = clock.stage("select", || self.fit(request, &reading, &scores, cancel))?;
        let explain = || clock.stage("explain", || explain::tokens(&reading, cancel));
        let explanation = request.explain.then(explain).transpose()?;
        Ok(Compressed {
            chunks: outcomes(&reading, &scores, fitted.spans, &fitted.order),
            context: fitted.context,
            usage: Some(fitted.usage),
            relevance: scores
                .max_sim
                .map(|max_sim| Relevance { max_sim, related: self.settings.auto.is_related(&scores) }),
            degraded: false,
            sources: Some(reading.blocks.sources),
            timings: clock.finish(),
            explanation,
        })
    }

    /// Question and blocks of a request.
    ///
    /// # Errors
    /// As [`Self::compress`].
    pub fn read(
        &self,
        request: &CompressRequest,
        cancel: &Cancel,
        clock: &mut Clock,
    ) -> Result<Reading, PipelineError> {
        let (limits, model) = (&self.settings.limits, &*self.model);
        let tokens =
            clock.stage("tokenize", || tokenize::question(&request.query, &self.tokenizer, limits))?;
        limits.check_question(tokens.ids.len(), question::tokens_max(model.info()))?;
        cancel.spend(tokens.ids.len());
        let blocks = clock.stage("blocks", || self.reader.blocks(&request.chunks, limits, cancel))?;
        cancel.check()?;
        let units = units::of(request.granularity, &request.chunks, &blocks);
        let all_logits = request.explain || self.settings.scan == ScanBy::Onnx;
        let held = if all_logits { blocks.tokens() } else { units.len() + request.chunks.len() };
        limits.check_logits(tokens.ids.len(), held)?;
        let placement = self.settings.placement;
        let question = clock.stage("question", || {
            let context = EncodeContext { model, placement, limits, cancel, side_by_side: false };
            question::encode(&tokens.ids, &blocks, context)
        })?;
        cancel.check()?;
        let graph_logits = match self.settings.scan {
            ScanBy::Fused => None,
            ScanBy::Onnx => Some(clock.stage("graph", || scan::by_graph(&tokens.ids, &blocks, model))?),
        };
        let decoder = model.info().decoder.as_ref();
        Ok(Reading {
            tokens,
            question,
            blocks: Arc::new(blocks),
            granularity: request.granularity,
            units: units.into(),
            graph_logits,
            reaches: decoder.is_none(),
            question_tokens: decoder.map_or(QuestionTokens::All, |decoder| decoder.question_tokens),
        })
    }

    /// RC of each chunk for `query`, as [`Self::compress`] scores chunks; with sentences as `granularity`, also theirs.
    ///
    /// # Errors
    /// As [`Self::compress`].
    pub fn rank(
        &self,
        query: &str,
        chunks: &[Arc<Chunk>],
        granularity: Granularity,
        cancel: &Cancel,
    ) -> Result<Ranked, PipelineError> {
        let (reading, scores) = self.scored(query, chunks, granularity, cancel)?;
        let sentence = |(unit, rc): (&Unit, f32)| RankedSentence { chunk: unit.chunk, bytes: unit.bytes, rc };
        let sentences = match granularity {
            Granularity::Sentence => {
                let own = rc::mean_over_queries(scores.unit_rc.view());
                reading.units.iter().zip(own).map(sentence).collect()
            }
            Granularity::Chunk | Granularity::Token => Vec::new(),
        };
        let tokens = reading.tokens.ids.len() + reading.blocks.tokens();
        Ok(Ranked { chunks: scores.chunks, sentences, tokens })
    }

    /// Chunks and their units as they answer `query`.
    fn scored(
        &self,
        query: &str,
        chunks: &[Arc<Chunk>],
        granularity: Granularity,
        cancel: &Cancel,
    ) -> Result<(Reading, Scores), PipelineError> {
        let request = CompressRequest {
            granularity,
            chunks: chunks.to_vec(),
            registered: true,
            ..CompressRequest::new(query, Vec::new())
        };
        validate::check(&request, &self.settings.limits)?;
        let reading = self.read(&request, cancel, &mut Clock::start())?;
        let scores = score::all(&reading, self.settings.scoring, cancel)?;
        Ok((reading, scores))
    }

    /// Reads chunks so that later requests find their blocks; how many were not there yet.
    ///
    /// # Errors
    /// As [`Self::compress`].
    pub fn warm(&self, chunks: &[Arc<Chunk>], cancel: &Cancel) -> Result<usize, PipelineError> {
        Ok(self.reader.blocks(chunks, &self.settings.limits, cancel)?.sources.read)
    }

    /// Tokens of a text.
    ///
    /// # Errors
    /// When the model's tokenizer refuses it.
    pub fn count(&self, text: &str, tokenizer: TokenizerName) -> Result<usize, PipelineError> {
        Counter::new(tokenizer, &self.tokenizer).count(text)
    }

    /// Tokens of a text as the model reads it.
    ///
    /// # Errors
    /// When the model's tokenizer refuses it.
    pub fn tokens_of(&self, text: &str) -> Result<Vec<u32>, PipelineError> {
        Ok(self.tokenizer.encode(text)?.ids)
    }

    /// The text of tokens.
    ///
    /// # Errors
    /// When the model's tokenizer does not know them.
    pub fn text_of(&self, ids: &[u32]) -> Result<String, PipelineError> {
        Ok(self.tokenizer.decode(ids)?)
    }

    /// The best context that the request's budget allows, by `scores`.
    ///
    /// # Errors
    /// [`InvalidRequest::BudgetImpossible`].
    pub fn fit(
        &self,
        request: &CompressRequest,
        reading: &Reading,
        scores: &Scores,
        cancel: &Cancel,
    ) -> Result<fit::Fitted, PipelineError> {
        let counter = Counter::new(request.tokenizer, &self.tokenizer);
        let means = FitContext { counter: &counter, frames: &self.frames, auto: self.settings.auto, cancel };
        fit::budget(request, reading, scores, &means)
    }
}

/// The caller's own chunks, whole and in its order: the answer when there is no better one.
pub fn passthrough(request: &CompressRequest, total: Duration) -> Compressed {
    let whole = |(index, chunk): (usize, &Arc<Chunk>)| {
        // A chunk of blanks comes back, too: passing through changes nothing.
        let kept = !chunk.text.is_empty();
        let all = kept.then(|| KeptSpan::unscored(index, ByteRange::new(0, chunk.text.len())));
        let empty = chunk.text.trim().is_empty();
        ChunkOutcome { index, kept, empty, score: None, spans: Vec::from_iter(all) }
    };
    let mut chunks: Vec<_> = request.chunks.iter().enumerate().map(whole).collect();
    let kept = chunks.iter_mut().map(|outcome| &mut outcome.spans[..]).filter(|spans| !spans.is_empty());
    Compressed {
        context: assemble::context(&request.chunks, kept, request.format),
        chunks,
        usage: None,
        relevance: None,
        degraded: true,
        sources: None,
        timings: Timings { total, ..Timings::default() },
        explanation: None,
    }
}

/// One outcome per chunk, in the order of the answer.
fn outcomes(
    reading: &Reading,
    scores: &Scores,
    spans: Vec<Vec<KeptSpan>>,
    order: &[usize],
) -> Vec<ChunkOutcome> {
    let mut spans = spans;
    let outcome = |&index: &usize| {
        let spans = std::mem::take(&mut spans[index]);
        let empty = reading.blocks.blocks[index].sentences().len() == 0;
        let score = (!empty).then(|| scores.chunks[index]);
        ChunkOutcome { index, kept: !spans.is_empty(), empty, score, spans }
    };
    order.iter().map(outcome).collect()
}
