//! The entry point for programs that embed Thresher: opens a model folder and answers requests with it.

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
use crate::model::ort::{Loaded, OrtSettings};
use crate::model::tokenizer::ModelTokenizer;
use crate::pipeline::attribute::Attributed;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::scan::ScanBy;
use crate::pipeline::{Compressed, Pipeline, PipelineError, Ranked, Settings};

/// A loaded model with its cache and settings. All methods take `&self`; share one engine between threads.
///
/// Requests run on the calling thread and on the model's workers. In an async program call them from `spawn_blocking`.
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
    model: Loaded,
    tokenizer: Arc<ModelTokenizer>,
}

/// Why an engine could not be built.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The model folder has no contract, a contract that cannot be read, or files other than those the contract names.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// ONNX Runtime, a graph or the tokenizer did not load, or the device cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The cache directory cannot be used.
    #[error(transparent)]
    Cache(#[from] LocalError),
}

/// Builds an [`Engine`]. Every setting has a default; only the model folder and ONNX Runtime are required.
#[derive(Clone)]
#[must_use]
pub struct EngineBuilder {
    load: OrtSettings,
    settings: Settings,
    cache: Cache,
}

#[derive(Clone)]
enum Cache {
    Local(LocalSettings),
    Store(Arc<KvStore>),
}

/// Memory for cached chunk keys unless the builder says otherwise: 256 MiB, which holds about 650,000 tokens of the default model.
const CACHE_MEMORY_BYTES_DEFAULT: u64 = 256 << 20;

/// Blocks that may wait for the disk, in bytes.
const CACHE_WRITE_QUEUE_BYTES: u64 = 64 << 20;

impl EngineBuilder {
    /// Starts with the folder that `thresher export` wrote (it holds `contract.toml`) and the shared library of ONNX Runtime. A
    /// process can load one such library only.
    pub fn new(model_dir: impl AsRef<Path>, runtime_lib: impl AsRef<Path>) -> Self {
        let load = OrtSettings {
            runtime_lib: runtime_lib.as_ref().to_owned(),
            model_dir: model_dir.as_ref().to_owned(),
            workers: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            device: DeviceChoice::default(),
            device_memory_bytes_max: 0,
            all_heads: false,
            all_layers: false,
            forward: false,
        };
        let cache = Cache::Local(LocalSettings {
            memory_bytes_max: CACHE_MEMORY_BYTES_DEFAULT,
            disk_bytes_max: 0,
            write_queue_bytes_max: CACHE_WRITE_QUEUE_BYTES,
            dir: None,
        });
        Self { load, settings: Settings::default(), cache }
    }

    /// Number of windows that are read in parallel. Default: one per core.
    pub fn workers(mut self, workers: usize) -> Self {
        self.load.workers = workers;
        self
    }

    /// Device that the model runs on. Default: the CPU.
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.load.device = device;
        self
    }

    /// Bytes of GPU memory that the model may take. Default: 0, no limit.
    pub fn device_memory_bytes_max(mut self, bytes: u64) -> Self {
        self.load.device_memory_bytes_max = bytes;
        self
    }

    /// Reads and caches every layer of a decoder, as an export of keys and values needs. Default: up to the last layer that
    /// calibration chose a head from.
    pub fn all_layers(mut self, all: bool) -> Self {
        self.load.all_layers = all;
        self
    }

    /// Scores by every head of a decoder in place of those that calibration chose. Calibration itself uses this.
    pub fn all_heads(mut self, all: bool) -> Self {
        self.load.all_heads = all;
        self
    }

    /// Loads a decoder's forward pass up to the next token's logits ([`crate::model::ort::DecoderRuntime::forward`]), which measures
    /// what evicting keys costs. CPU only.
    pub fn forward_pass(mut self, forward: bool) -> Self {
        self.load.forward = forward;
        self
    }

    /// Limits, scoring, precision of cached keys and the other settings of requests.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Bytes of memory for cached chunk keys; 0 keeps none. Default: 256 MiB.
    pub fn cache_memory_bytes_max(mut self, bytes: u64) -> Self {
        self.local_cache().memory_bytes_max = bytes;
        self
    }

    /// Also caches chunk keys in `dir`, up to `bytes_max` on disk. No other process may use the directory at the same time.
    pub fn cache_dir(mut self, dir: impl AsRef<Path>, bytes_max: u64) -> Self {
        let cache = self.local_cache();
        cache.dir = Some(PathBuf::from(dir.as_ref()));
        cache.disk_bytes_max = bytes_max;
        self
    }

    /// Uses a store that the caller has built, for instance over tiers of its own. Replaces the other cache settings.
    pub fn store(mut self, store: Arc<KvStore>) -> Self {
        self.cache = Cache::Store(store);
        self
    }

    fn local_cache(&mut self) -> &mut LocalSettings {
        if let Cache::Store(_) = self.cache {
            self.cache = Self::new("", "").cache;
        }
        match &mut self.cache {
            Cache::Local(local) => local,
            Cache::Store(_) => unreachable!("it was replaced above"),
        }
    }

    /// How the model is loaded.
    pub fn load_settings(&self) -> &OrtSettings {
        &self.load
    }

    /// Checks the model's files against its contract, loads the model and opens the cache.
    ///
    /// # Errors
    /// [`EngineError`] names the file, library or directory that cannot be used.
    pub fn build(self) -> Result<Engine, EngineError> {
        let dir = &self.load.model_dir;
        let contract = Contract::load(dir)?;
        contract.verify_files(dir)?;
        let model = Loaded::load(&self.load)?;
        let runtime = model.runtime();
        if runtime.info().decoder.is_some() && self.settings.scan == ScanBy::Onnx {
            return Err(ModelError::NoQueryGraph { model: runtime.info().name.clone() }.into());
        }
        let tokenizer = Arc::new(ModelTokenizer::from_file(&dir.join(&contract.tokenizer.file))?);
        let store = match self.cache {
            Cache::Store(store) => store,
            Cache::Local(local) => {
                Arc::new(KvStore::new(Arc::new(AllTiers::new(LocalTiers::open(&local)?, None))))
            }
        };
        let pipeline = Arc::new(Pipeline::new(runtime, Arc::clone(&tokenizer), store, self.settings));
        Ok(Engine { pipeline, model, tokenizer })
    }
}

impl Engine {
    /// Starts a builder; see [`EngineBuilder::new`].
    pub fn builder(model_dir: impl AsRef<Path>, runtime_lib: impl AsRef<Path>) -> EngineBuilder {
        EngineBuilder::new(model_dir, runtime_lib)
    }

    /// Keeps the part of the request's chunks that its question needs.
    ///
    /// # Errors
    /// [`PipelineError::Invalid`] names the field to change; [`PipelineError::Model`] says what failed.
    pub fn compress(&self, request: &CompressRequest) -> Result<Compressed, PipelineError> {
        self.pipeline.compress(request, &Cancel::default())
    }

    /// Finds the chunks that each part of an answer came from.
    ///
    /// # Errors
    /// As [`Engine::compress`].
    pub fn attribute(&self, request: &AttributeRequest) -> Result<Attributed, PipelineError> {
        self.pipeline.attribute(request, &Cancel::default())
    }

    /// Scores chunks by how much of the question each one contextualizes, without selecting any.
    ///
    /// # Errors
    /// As [`Engine::compress`].
    pub fn rank(&self, query: &str, chunks: &[Arc<Chunk>]) -> Result<Ranked, PipelineError> {
        self.pipeline.rank(query, chunks, Granularity::Chunk, &Cancel::default())
    }

    /// The pipeline itself: requests with a deadline or cancellation, tenants, exports of keys and values.
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    /// The pipeline alone.
    pub fn into_pipeline(self) -> Arc<Pipeline> {
        self.pipeline
    }

    /// The loaded model.
    pub fn model(&self) -> &Loaded {
        &self.model
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<ModelTokenizer> {
        &self.tokenizer
    }
}
