//! ONNX Runtime: loads what a contract names and runs it.
//! The only position that names `ort`; the rest of the program sees [`ModelRuntime`].
//!
//! `late` and `decoder` are the two families. Both read windows on `workers` and lend sessions to questions from a `pool`; both take turns
//! by `lanes`, so that callers that share the model have the same share of it; `weights`
//! are shared by all sessions, `device` says where they run. A decoder's graph is run in `stages`, some layers at a time.

mod bare;
mod decoder;
mod device;
mod frame;
mod lanes;
mod late;
mod numerics;
mod pool;
mod stages;
mod weights;
mod workers;
mod forward;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::value::{Outlet, ValueType};

pub use self::bare::BatchedGraph;
pub use self::decoder::DecoderRuntime;
use self::device::Device;
pub use self::late::LateRuntime;
use self::weights::WeightedSession;
use super::contract::{Contract, Family, IoTensor, Side};
use super::device::DeviceChoice;
use super::{ModelError, ModelRuntime};

/// Threads that one question runs on at most. It is short: one alone would leave the others idle while somebody waits, and more
/// than these wait for each other.
const QUERY_THREADS_MAX: usize = 4;

/// Threads of all sessions that questions run on, together, for each core: while some wait for each other, others work.
const QUERY_THREADS_PER_CORE: usize = 2;

/// Where things are and how many cores to use.
#[derive(Debug, Clone)]
pub struct OrtSettings {
    /// Shared library of ONNX Runtime.
    pub runtime_lib: PathBuf,
    /// Folder of the contract.
    pub model_dir: PathBuf,
    /// Worker threads; on the processor each owns a session that windows are read with.
    pub workers: usize,
    /// Where to run.
    pub device: DeviceChoice,
    /// Bytes of a GPU's memory that sessions may take; 0: all.
    pub device_memory_bytes_max: u64,
    /// Whether a decoder is read by all its heads, whichever its contract has chosen: to choose among them.
    pub all_heads: bool,
    /// Whether all layers of a decoder are read and kept, also those behind the last chosen head: to hand them over.
    pub all_layers: bool,
    /// Whether a decoder has its forward pass up to what comes next: to measure what leaving keys out costs.
    pub forward: bool,
}

/// A model of either family, loaded.
pub enum Loaded {
    /// Late interaction.
    Late(Arc<LateRuntime>),
    /// A decoder.
    Decoder(Arc<DecoderRuntime>),
}

impl Loaded {
    /// Loads the library, the contract and its graphs.
    ///
    /// # Errors
    /// [`ModelError`] names what is missing or does not fit, and what to do.
    pub fn load(settings: &OrtSettings) -> Result<Self, ModelError> {
        match Contract::load(&settings.model_dir)?.family {
            Family::Late(_) => Ok(Self::Late(Arc::new(LateRuntime::load(settings)?))),
            Family::Decoder(_) => Ok(Self::Decoder(Arc::new(DecoderRuntime::load(settings)?))),
        }
    }

    /// The decoder, unless this is an encoder.
    pub fn decoder(&self) -> Option<&DecoderRuntime> {
        match self {
            Self::Late(_) => None,
            Self::Decoder(decoder) => Some(decoder),
        }
    }

    /// What the rest of the program may ask of it.
    pub fn runtime(&self) -> Arc<dyn ModelRuntime> {
        match self {
            Self::Late(late) => Arc::clone(late) as Arc<dyn ModelRuntime>,
            Self::Decoder(decoder) => Arc::clone(decoder) as Arc<dyn ModelRuntime>,
        }
    }
}

/// Loads the library and opens the environment. ONNX Runtime allows one of each per process: the first call's holds,
/// and a later call with another library is refused.
///
/// # Errors
/// [`ModelError::Runtime`] when it does not load.
pub fn environment(lib: &Path) -> Result<Environment, ModelError> {
    static OPENED: Mutex<Option<(PathBuf, Environment)>> = Mutex::new(None);
    let error = |reason: String| ModelError::Runtime { path: lib.display().to_string(), reason };
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    match opened.as_ref() {
        Some((path, environment)) if path == lib => return Ok(environment.clone()),
        Some((path, _)) => return Err(error(format!("this process has already loaded {}", path.display()))),
        None => {}
    }
    let builder = ort::init_from(lib).map_err(|e| error(e.to_string()))?;
    let environment =
        builder.with_name("thresher").with_telemetry(false).build().map_err(|e| error(e.to_string()))?;
    *opened = Some((lib.to_owned(), environment.clone()));
    Ok(environment)
}

/// Loads the library at `lib` and says which build it is.
///
/// # Errors
/// [`ModelError::Runtime`] when it does not load.
pub fn runtime_version(lib: &Path) -> Result<String, ModelError> {
    let _environment = environment(lib)?;
    Ok(ort::info().to_owned())
}

/// What every session is told, with so many threads inside it.
fn builder(environment: &Environment, device: &Device, threads: usize) -> Result<SessionBuilder, ort::Error> {
    let builder = Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(threads)?
        // Threads that wait for a question would take the cores from those that read.
        .with_intra_op_spinning(false)?;
    device.configure(builder)
}

/// How many sessions questions run on, and on how many threads each, beside so many workers.
fn query_sessions(workers: usize) -> (usize, usize) {
    let threads = workers.min(QUERY_THREADS_MAX);
    ((QUERY_THREADS_PER_CORE * workers).div_ceil(threads), threads)
}

fn io_of(session: &WeightedSession) -> Vec<IoTensor> {
    let tensor = |side: Side, outlet: &Outlet| match outlet.dtype() {
        ValueType::Tensor { ty, shape, .. } => IoTensor::new(side, outlet.name(), ty.to_string(), shape),
        other => IoTensor::new(side, outlet.name(), format!("{other:?}"), &[]),
    };
    let inputs = session.inputs().iter().map(|outlet| tensor(Side::Input, outlet));
    inputs.chain(session.outputs().iter().map(|outlet| tensor(Side::Output, outlet))).collect()
}

fn ort_error(e: impl std::fmt::Display) -> ort::Error {
    ort::Error::new(e.to_string())
}

fn graph_error(graph: &str, e: impl std::fmt::Display) -> ModelError {
    ModelError::Graph { graph: graph.to_owned(), reason: e.to_string() }
}
