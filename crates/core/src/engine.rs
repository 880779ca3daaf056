//! The entry point for programs that embed Thresher: loads a model and runs requests with it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use crate::domain::{AttributeRequest, Chunk, CompressRequest, Granularity};
use crate::kv::local::{LocalError, LocalSettings, LocalTiers};
use crate::kv::store::KvStore;
use crate::kv::tiers::AllTiers;
use crate::model::ModelError;
use crate::model::contract::{Contract, ContractError};
use crate::model::device::DeviceChoice;
use crate::model::ort::{CrossRuntime, LoadedModel, OrtSettings};
use crate::model::tokenizer::ModelTokenizer;
use crate::pipeline::attribute::Attributed;
use crate::pipeline::calibration::{Calibration, CalibrationError};
use crate::pipeline::cancel::Cancel;
use crate::pipeline::score::Scoring;
use crate::pipeline::validate::InvalidRequest;
use crate::pipeline::{Compressed, Pipeline, PipelineError, Ranked, Settings, kv_export};

/// A loaded model with its cache and settings. All methods take `&self`, so threads can share one engine.
///
/// A request blocks the calling thread and uses the model's worker threads. In an async program, call the
/// methods from `spawn_blocking`.
///
/// ```no_run
/// use thresher_core::Engine;
/// use thresher_core::domain::{Chunk, CompressRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::builder("/models/minilm-l6", "/usr/lib/libonnxruntime.so").build()?;
/// let chunks = vec![Chunk::new("moon", "The Moon pulls the water. It has no wind.")];
/// let compressed = engine.compress(&CompressRequest::new("What makes the tide?", chunks))?;
/// println!("{}", compressed.context);
/// # Ok(())
/// # }
/// ```
pub struct Engine {
    pipeline: Arc<Pipeline>,
    model: LoadedModel,
    tokenizer: Arc<ModelTokenizer>,
}

/// Why [`EngineBuilder::build`] failed. The message names the file, library or directory.
#[derive(Debug, Error)]
pub enum EngineError {
    #[error(transparent)]
    Contract(#[from] ContractError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Cache(#[from] LocalError),
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    #[error(
        "verdict.model: {cause}. It names the folder of a classifier of two texts: an ONNX graph with its tokenizer.json, or what `thresher \
         export` wrote"
    )]
    VerdictModel {
        #[source]
        cause: ModelError,
    },
    #[error("{} cannot be the model for KV export: {reason}", .dir.display())]
    KvModel {
        dir: PathBuf,
        /// Why its keys and values cannot be exported.
        reason: Box<InvalidRequest>,
    },
}

/// Builds an [`Engine`]. The model folder and the library of ONNX Runtime are required; every other setting
/// has a default.
#[derive(Clone)]
#[must_use]
pub struct EngineBuilder {
    load: OrtSettings,
    settings: Settings,
    cache: LocalSettings,
    /// Used in place of a store over `cache`.
    store: Option<Arc<KvStore>>,
    kv_model_dir: Option<PathBuf>,
    is_calibrated: bool,
    verdict_model_dir: Option<PathBuf>,
}

/// The default size of the cache of chunk keys in memory: 256 MiB, which is enough for about 650,000 tokens
/// of the default model.
const CACHE_MEMORY_BYTES_DEFAULT: u64 = 256 << 20;

/// The largest number of bytes of blocks that wait to be written to disk.
const CACHE_WRITE_QUEUE_BYTES: u64 = 64 << 20;

fn default_cache() -> LocalSettings {
    LocalSettings {
        memory_bytes_max: CACHE_MEMORY_BYTES_DEFAULT,
        disk_bytes_max: 0,
        write_queue_bytes_max: CACHE_WRITE_QUEUE_BYTES,
        dir: None,
    }
}

impl EngineBuilder {
    /// Starts with `model_dir`, the folder that `thresher export` has written (it contains `contract.toml`),
    /// and `runtime_lib`, the shared library of ONNX Runtime. A process can load only one library of ONNX
    /// Runtime.
    pub fn new(model_dir: impl AsRef<Path>, runtime_lib: impl AsRef<Path>) -> Self {
        let load = OrtSettings::new(runtime_lib.as_ref().to_owned(), model_dir.as_ref().to_owned());
        Self {
            load,
            settings: Settings::default(),
            cache: default_cache(),
            store: None,
            kv_model_dir: None,
            is_calibrated: true,
            verdict_model_dir: None,
        }
    }

    /// Sets the number of threads that read windows in parallel. The default is the number of cores.
    pub fn workers(mut self, workers: usize) -> Self {
        self.load.workers = workers;
        self
    }

    /// Sets the device that the model runs on. The default is the CPU. A GPU needs the feature `cuda`.
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.load.device = device;
        self
    }

    /// Limits the GPU memory that the model allocates, in bytes. The default is 0, which means no limit.
    pub fn device_memory_bytes_max(mut self, bytes: u64) -> Self {
        self.load.device_memory_bytes_max = bytes;
        self
    }

    /// Runs and caches all layers of a decoder, which an export of keys and values needs. By default, only
    /// the layers up to the last chosen head are run.
    pub fn all_layers(mut self, all: bool) -> Self {
        self.load.all_layers = all;
        self
    }

    /// Computes scores from all heads of a decoder instead of the heads that a calibration chose. A
    /// calibration itself needs this. The default is false.
    pub fn all_heads(mut self, all: bool) -> Self {
        self.load.all_heads = all;
        self
    }

    /// Loads what [`DecoderRuntime::forward`](crate::model::ort::DecoderRuntime::forward) needs, which
    /// measures the effect of evicting keys. It needs all layers, too. The default is false.
    pub fn forward_pass(mut self, forward: bool) -> Self {
        self.load.forward = forward;
        self.load.all_layers |= forward;
        self
    }

    /// Makes a decoder read texts in windows of three quarters of its context, as in one prompt. By default,
    /// windows have the size that the model's contract names. It measures what shorter windows change.
    pub fn long_windows(mut self, long: bool) -> Self {
        self.load.long_windows = long;
        self
    }

    /// Sets the settings of requests, such as limits, scoring and the precision of cached keys.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the size of the cache of chunk keys in memory, in bytes; 0 disables it. The default is 256 MiB.
    pub fn cache_memory_bytes_max(mut self, bytes: u64) -> Self {
        self.store = None;
        self.cache.memory_bytes_max = bytes;
        self
    }

    /// Caches chunk keys in the directory `dir`, too, up to `bytes_max` bytes on disk. No other process may
    /// use the directory at the same time. By default, there is no cache on disk.
    pub fn cache_dir(mut self, dir: impl AsRef<Path>, bytes_max: u64) -> Self {
        self.store = None;
        self.cache.dir = Some(PathBuf::from(dir.as_ref()));
        self.cache.disk_bytes_max = bytes_max;
        self
    }

    /// Uses the block store `store`, for example one over the caller's own tiers. It replaces the cache
    /// settings made before it, and a cache setting made after it replaces the store.
    pub fn store(mut self, store: Arc<KvStore>) -> Self {
        self.cache = default_cache();
        self.store = Some(store);
        self
    }

    /// Sets the folder of a decoder that exports keys and values, with all its layers. By default, the model
    /// that scores chunks exports them, too, if it is a decoder.
    pub fn kv_model_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.kv_model_dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Uses no calibration of the model, which is about to be made. The default is to use the one in its folder.
    pub fn uncalibrated(mut self) -> Self {
        self.is_calibrated = false;
        self
    }

    /// Sets the folder of a cross-encoder that gives a second opinion on the support of each part of an answer. By
    /// default, there is none.
    pub fn verdict_model_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.verdict_model_dir = Some(dir.as_ref().to_owned());
        self
    }

    pub fn load_settings(&self) -> &OrtSettings {
        &self.load
    }

    /// Compares the model's files with its contract, loads the model and opens the cache. Does the same with
    /// the model for exports, if there is one.
    ///
    /// # Errors
    /// Returns an [`EngineError`] if a model, ONNX Runtime, the device or the cache directory cannot be used.
    pub fn build(mut self) -> Result<Engine, EngineError> {
        let for_kv_model = self.clone();
        self.load.probe = self.settings.scoring == Scoring::Probe;
        let dir = &self.load.model_dir;
        let contract = Contract::load(dir)?;
        contract.verify_files(dir)?;
        let model = LoadedModel::load(&self.load)?;
        let loaded = if self.is_calibrated { Calibration::load(dir, &contract) } else { Ok(None) };
        self.settings.calibration = match loaded {
            // The model may have been exported anew since, or the program replaced.
            Err(error @ (CalibrationError::OtherModel { .. } | CalibrationError::OtherVersion { .. })) => {
                tracing::warn!(%error, "the calibration is not used");
                Calibration::of_contract(&contract)
            }
            loaded => loaded?,
        };
        let tokenizer = Arc::new(ModelTokenizer::from_file(&dir.join(&contract.tokenizer.file))?);
        let store = match self.store {
            Some(store) => store,
            None => Arc::new(KvStore::new(Arc::new(AllTiers::new(LocalTiers::open(&self.cache)?, None)))),
        };
        let mut pipeline =
            Pipeline::new(model.runtime(), Arc::clone(&tokenizer), Arc::clone(&store), self.settings);
        if let Some(dir) = self.verdict_model_dir {
            let model =
                CrossRuntime::load(&dir, &self.load).map_err(|cause| EngineError::VerdictModel { cause })?;
            pipeline = pipeline.with_verdict_model(Arc::new(model));
        }
        if let Some(dir) = self.kv_model_dir {
            pipeline = pipeline.with_exporter(for_kv_model.build_kv_model(dir, store)?);
        }
        Ok(Engine { pipeline: Arc::new(pipeline), model, tokenizer })
    }

    /// Loads the decoder in `dir` with the same settings, as far as they do not concern scores.
    fn build_kv_model(self, dir: PathBuf, store: Arc<KvStore>) -> Result<Arc<Pipeline>, EngineError> {
        let load = OrtSettings {
            model_dir: dir.clone(),
            all_layers: true,
            all_heads: false,
            forward: false,
            long_windows: false,
            ..self.load
        };
        let settings = Settings { scoring: Scoring::default(), ..self.settings };
        let builder = Self {
            load,
            settings,
            cache: self.cache,
            store: Some(store),
            kv_model_dir: None,
            is_calibrated: true,
            verdict_model_dir: None,
        };
        let pipeline = builder.build()?.into_pipeline();
        match kv_export::check_model(pipeline.model()) {
            Ok(_) => Ok(pipeline),
            Err(reason) => Err(EngineError::KvModel { dir, reason: Box::new(reason) }),
        }
    }
}

impl Engine {
    /// Returns a builder; see [`EngineBuilder::new`].
    pub fn builder(model_dir: impl AsRef<Path>, runtime_lib: impl AsRef<Path>) -> EngineBuilder {
        EngineBuilder::new(model_dir, runtime_lib)
    }

    /// Returns the part of the request's chunks that its question needs, word for word, with citations.
    ///
    /// # Errors
    /// Returns [`PipelineError::Invalid`] with the field to change if the request is invalid, and
    /// [`PipelineError::Model`] if the model fails.
    pub fn compress(&self, request: &CompressRequest) -> Result<Compressed, PipelineError> {
        self.compress_with(request, &Cancel::default())
    }

    /// Compresses as [`Engine::compress`] does, until `cancel` is cancelled or its deadline passes.
    ///
    /// # Errors
    /// As [`Engine::compress`]; [`PipelineError::DeadlineExceeded`] and [`PipelineError::Cancelled`].
    pub fn compress_with(
        &self,
        request: &CompressRequest,
        cancel: &Cancel,
    ) -> Result<Compressed, PipelineError> {
        self.pipeline.compress(request, cancel)
    }

    /// Returns for each part of an answer the chunks that it came from.
    ///
    /// # Errors
    /// As [`Engine::compress`].
    pub fn attribute(&self, request: &AttributeRequest) -> Result<Attributed, PipelineError> {
        self.pipeline.attribute(request, &Cancel::default())
    }

    /// Scores chunks by their relevance to `query`, without selecting any.
    ///
    /// # Errors
    /// As [`Engine::compress`].
    pub fn rank(&self, query: &str, chunks: Vec<Chunk>) -> Result<Ranked, PipelineError> {
        let chunks: Vec<_> = chunks.into_iter().map(Arc::new).collect();
        self.pipeline.rank(query, &chunks, Granularity::Chunk, &Cancel::default())
    }

    /// Returns the pipeline, for requests with a deadline or cancellation, tenants, and exports of keys and
    /// values.
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    pub fn into_pipeline(self) -> Arc<Pipeline> {
        self.pipeline
    }

    pub fn model(&self) -> &LoadedModel {
        &self.model
    }

    pub fn tokenizer(&self) -> &Arc<ModelTokenizer> {
        &self.tokenizer
    }
}
