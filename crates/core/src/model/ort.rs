//! Loads a model's graphs into ONNX Runtime and runs them. Only this module uses `ort`; the rest of the
//! program uses [`ModelRuntime`].
//!
//! `late` and `decoder` are the two families of models that score chunks. Both read windows on the threads of `workers`, and
//! take sessions for questions from a pool of `scheduling`, which also divides the model's time fairly
//! between callers. `cross` runs cross-encoders on pairs of texts. `stages` and `forward` run a decoder's graph in parts. `weights` are shared by all
//! sessions, and `device` is the device that they run on.

mod scheduling;
mod workers;
mod device;
mod weights;
mod late;
mod decoder;
mod cross;
mod stages;
mod forward;
mod version;

use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ndarray::Array2;
use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::value::{Outlet, ValueType};
use sha2::{Digest, Sha256};

pub use self::cross::CrossRuntime;
pub use self::decoder::DecoderRuntime;
use self::device::Device;
pub use self::forward::{ForwardPast, ForwardSequence};
pub use self::late::{LateRuntime, passage_session};
pub use self::stages::StageSize;
use self::weights::WeightedSession;
pub use self::workers::Batching;
use super::contract::{Contract, Family, IoTensor, Question, QuestionPadding, Side, Tokenizer};
use super::device::DeviceChoice;
use super::{ModelError, ModelRuntime};

/// The largest number of threads of a session that encodes questions. A question is short: one thread would
/// leave other cores idle while a client waits, and more threads than this would mostly wait for each other.
const QUESTION_THREADS_MAX: usize = 4;

/// The number of threads per core of all sessions that encode questions: while some threads wait for each
/// other, others compute.
const QUESTION_THREADS_PER_CORE: usize = 2;

#[derive(Debug, Clone)]
pub struct OrtSettings {
    pub runtime_lib: PathBuf,
    /// The folder of the exported model, which contains `contract.toml`.
    pub model_dir: PathBuf,
    /// The number of worker threads. On the CPU each has its own session and reads one batch of windows at a
    /// time.
    pub workers: usize,
    pub device: DeviceChoice,
    /// The largest number of bytes of GPU memory that the sessions may allocate; 0 means no limit.
    pub device_memory_bytes_max: u64,
    /// Whether scores are computed from all heads of a decoder instead of the heads that its contract lists.
    /// A calibration, which chooses these heads, needs all of them.
    pub all_heads: bool,
    /// Whether all layers of a decoder are run and cached, including those after the last chosen head. An
    /// export of keys and values needs all of them.
    pub all_layers: bool,
    /// Whether the decoder's probe is used. Without it, the layers that only the probe needs are not run.
    pub probe: bool,
    /// Whether [`DecoderRuntime::forward`] is available, which measures the effect of evicting keys. On the
    /// CPU, each of `workers` has a session for it.
    pub forward: bool,
    /// Whether a decoder's windows have three quarters of its context instead of the size in its contract, so
    /// that a whole prompt is read at once. The rest is left for the question.
    pub long_windows: bool,
    /// Which windows are read together; `None` chooses by the device. Tests on a CPU choose what a GPU does.
    pub batching: Option<Batching>,
    /// The size of a decoder's stages; `None` chooses by the device and its memory. Tests on a CPU choose what a GPU does.
    pub stages: Option<StageSize>,
    /// The number of tokens of which the rows of a batch of an encoder have a multiple; `None` chooses by the device. Tests
    /// on a CPU choose what a GPU does.
    pub row_multiple: Option<NonZeroUsize>,
}

impl OrtSettings {
    /// Returns the settings of a model on the default device, with a worker for each core.
    pub fn new(runtime_lib: PathBuf, model_dir: PathBuf) -> Self {
        Self {
            runtime_lib,
            model_dir,
            workers: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            device: DeviceChoice::default(),
            device_memory_bytes_max: 0,
            all_heads: false,
            all_layers: false,
            probe: false,
            forward: false,
            long_windows: false,
            batching: None,
            stages: None,
            row_multiple: None,
        }
    }

    /// Returns which windows are read together on `device`. `on_gpu` is the choice of a family of models for a
    /// GPU.
    fn batching_on(&self, device: &Device, on_gpu: Batching) -> Batching {
        let of_device = if device.is_cpu() { Batching::CPU } else { on_gpu };
        self.batching.unwrap_or(of_device)
    }
}

pub enum LoadedModel {
    Late(Arc<LateRuntime>),
    Decoder(Arc<DecoderRuntime>),
}

impl LoadedModel {
    /// Loads ONNX Runtime, the contract and the model's graphs.
    ///
    /// # Errors
    /// Fails if a file is missing or does not match the contract, or if the library or the device cannot be
    /// used.
    pub fn load(settings: &OrtSettings) -> Result<Self, ModelError> {
        let contract = Contract::load(&settings.model_dir)?;
        match contract.family {
            Family::Late(_) if settings.probe => {
                Err(ModelError::NoProbe { model: contract.name, encoder: true })
            }
            Family::Late(_) => Ok(Self::Late(Arc::new(LateRuntime::load(settings)?))),
            Family::Decoder(_) => Ok(Self::Decoder(Arc::new(DecoderRuntime::load(settings)?))),
            Family::Cross(_) => Err(ModelError::NoScores { model: contract.name }),
        }
    }

    /// Returns the decoder, or `None` if the model is an encoder.
    pub fn decoder(&self) -> Option<&DecoderRuntime> {
        match self {
            Self::Late(_) => None,
            Self::Decoder(decoder) => Some(decoder),
        }
    }

    pub fn runtime(&self) -> Arc<dyn ModelRuntime> {
        match self {
            Self::Late(late) => Arc::clone(late) as Arc<dyn ModelRuntime>,
            Self::Decoder(decoder) => Arc::clone(decoder) as Arc<dyn ModelRuntime>,
        }
    }
}

/// Loads the shared library of ONNX Runtime and returns the environment. ONNX Runtime allows one library and
/// one environment per process: later calls return the environment of the first.
///
/// # Errors
/// Returns [`ModelError::Runtime`] if the library cannot be loaded, or if the process has loaded another
/// library.
pub fn environment(lib: &Path) -> Result<Environment, ModelError> {
    static OPENED: Mutex<Option<(PathBuf, Environment)>> = Mutex::new(None);
    let error = |reason: String| ModelError::Runtime { path: lib.display().to_string(), reason };
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    match opened.as_ref() {
        Some((path, environment)) if path == lib => return Ok(environment.clone()),
        Some((path, _)) => return Err(error(format!("this process has already loaded {}", path.display()))),
        None => {}
    }
    check_is_whole(lib).map_err(error)?;
    let builder = ort::init_from(lib).map_err(|e| error(e.to_string()))?;
    let environment =
        builder.with_name("thresher").with_telemetry(false).build().map_err(|e| error(e.to_string()))?;
    *opened = Some((lib.to_owned(), environment.clone()));
    Ok(environment)
}

/// Checks that a shared library is not cut off. The system maps a library without this check, and the process
/// dies of SIGBUS when it first touches a page that is missing.
///
/// In a 64-bit ELF file, the table of section headers is last. Its place is a little-endian `u64` at byte 40
/// of the file header, the size and the number of its entries are `u16` at bytes 58 and 60 (ELF-64 Object File
/// Format 1.5, section 3). Other formats are not checked, nor what cannot be read here: the loader may find the
/// library by its name alone, and says best why it does not.
fn check_is_whole(lib: &Path) -> Result<(), String> {
    const HEADER_BYTES: usize = 64;
    const ELF_64_LITTLE_ENDIAN: &[u8] = b"\x7fELF\x02\x01";
    let mut header = Vec::with_capacity(HEADER_BYTES);
    let mut read = || -> io::Result<u64> {
        let file = File::open(lib)?;
        let found = file.metadata()?.len();
        file.take(HEADER_BYTES as u64).read_to_end(&mut header)?;
        Ok(found)
    };
    let Ok(found) = read() else { return Ok(()) };
    if !header.starts_with(ELF_64_LITTLE_ENDIAN) {
        return Ok(());
    }
    let expected = if header.len() == HEADER_BYTES {
        let table = u64::from_le_bytes(header[40..48].try_into().expect("8 bytes"));
        let entry = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
        table.saturating_add(entry(58) * entry(60))
    } else {
        HEADER_BYTES as u64
    };
    if found < expected {
        Err(format!(
            "the file is cut off: it has {found} bytes and should have at least {expected}; `thresher init` \
         fetches it again"
        ))
    } else {
        Ok(())
    }
}

/// Loads the shared library of ONNX Runtime and returns its version, such as 1.31.1.
///
/// # Errors
/// As [`environment`].
pub fn runtime_version(lib: &Path) -> Result<String, ModelError> {
    let _environment = environment(lib)?;
    version::read_version(lib)
        .map_err(|e| ModelError::Runtime { path: lib.display().to_string(), reason: e.to_string() })
}

/// Returns a session builder with the settings that all sessions have, and `threads` threads per session.
fn session_builder(
    environment: &Environment,
    device: &Device,
    threads: usize,
) -> Result<SessionBuilder, ort::Error> {
    let builder = Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(threads)?
        // Spinning threads of an idle question session would take cores from the workers that read windows.
        .with_intra_op_spinning(false)?;
    // Without VNNI, the sums of the fast 8-bit kernels of x86 saturate.
    let builder = if cpu_kernels() == X86 { builder.with_precise_qmm()? } else { builder };
    device.configure(builder)
}

/// Returns the number of sessions that encode questions and the number of threads of each, for this many
/// workers.
fn question_sessions(workers: usize) -> (usize, usize) {
    let threads = workers.min(QUESTION_THREADS_MAX);
    ((QUESTION_THREADS_PER_CORE * workers).div_ceil(threads), threads)
}

/// The token at the right of the shorter windows of a batch. Every vocabulary has it. Which token it is does
/// not matter: encoders mask it, and the tokens of a decoder do not attend to later ones.
const BATCH_PADDING: u32 = 0;

/// The tokens before and after each window that are not part of its text: special tokens and a prefix.
#[derive(Debug, Clone)]
struct SpecialTokens {
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// The padding after a question, which the model attends to; `None` for passages, and for questions that
    /// have none.
    question_padding: Option<QuestionPadding>,
    rows: RowLengths,
}

/// The lengths that the rows of a batch of passages are padded to.
#[derive(Debug, Clone, Copy)]
struct RowLengths {
    multiple_of: NonZeroUsize,
    /// The largest length that the model has positions for, special tokens included.
    tokens_max: usize,
}

impl RowLengths {
    /// Rows as long as the longest window.
    const OF_LONGEST: Self = Self { multiple_of: NonZeroUsize::MIN, tokens_max: usize::MAX };

    /// Returns the length of the rows of a batch whose longest window has `longest` tokens.
    fn padded(self, longest: usize) -> usize {
        longest.next_multiple_of(self.multiple_of.get()).min(self.tokens_max.max(longest))
    }
}

impl SpecialTokens {
    /// Returns the tokens around a window of a passage.
    fn read(contract: &Contract) -> Self {
        let Tokenizer { prefix, suffix, .. } = &contract.tokenizer;
        let (prefix, suffix) = (prefix.clone(), suffix.clone());
        Self { prefix, suffix, question_padding: None, rows: RowLengths::OF_LONGEST }
    }

    /// Returns the tokens around a question, with the padding that changes the vectors of the question.
    fn of_question(contract: &Contract) -> Self {
        let Some(Question { prefix, suffix, padding, .. }) = &contract.tokenizer.question else {
            return Self::read(contract);
        };
        let question_padding = padding.clone().filter(|padding| padding.attended);
        let (prefix, suffix) = (prefix.clone(), suffix.clone());
        Self { prefix, suffix, question_padding, rows: RowLengths::OF_LONGEST }
    }

    /// The number of special tokens of a window.
    fn count(&self) -> usize {
        self.prefix.len() + self.suffix.len()
    }

    /// Returns where the tokens of a window's text are in its row of [`Self::input_ids`].
    fn own_tokens(&self, window: &[u32]) -> Range<usize> {
        self.prefix.len()..self.prefix.len() + window.len()
    }

    /// Returns the ids of windows with the special tokens around each, `[window, token]`. Padding follows after the
    /// special tokens.
    fn input_ids(&self, windows: &[&[u32]]) -> Array2<i64> {
        let longest = self.row_length(windows);
        let (tokens, padding) = match &self.question_padding {
            Some(padding) => (longest.max(padding.tokens_min), padding.token),
            None => (longest, BATCH_PADDING),
        };
        let ids = windows.iter().flat_map(|window| {
            let padding = std::iter::repeat_n(&padding, tokens - self.count() - window.len());
            self.prefix.iter().chain(*window).chain(&self.suffix).chain(padding)
        });
        Array2::from_shape_vec((windows.len(), tokens), ids.map(|&id| i64::from(id)).collect())
            .expect("all rows are padded to the same length")
    }

    fn row_length(&self, windows: &[&[u32]]) -> usize {
        self.rows.padded(self.count() + windows.iter().map(|window| window.len()).max().unwrap_or(0))
    }

    /// Returns 1 for each token of the rows of [`Self::input_ids`] that is part of a passage's window, and 0
    /// for padding, `[window, token]`.
    fn attention_mask(&self, windows: &[&[u32]]) -> Array2<i64> {
        let tokens = |window: &[u32]| self.count() + window.len();
        Array2::from_shape_fn((windows.len(), self.row_length(windows)), |(window, token)| {
            i64::from(token < tokens(windows[window]))
        })
    }
}

fn io_of_session(session: &WeightedSession) -> Vec<IoTensor> {
    let tensor = |side: Side, outlet: &Outlet| match outlet.dtype() {
        ValueType::Tensor { ty, shape, .. } => IoTensor::new(side, outlet.name(), ty.to_string(), shape),
        other => IoTensor::new(side, outlet.name(), format!("{other:?}"), &[]),
    };
    let inputs = session.inputs().iter().map(|outlet| tensor(Side::Input, outlet));
    inputs.chain(session.outputs().iter().map(|outlet| tensor(Side::Output, outlet))).collect()
}

/// Returns the fingerprint of the keys that this machine computes with a model (see
/// [`super::ModelInfo::fingerprint`]).
///
/// With `F32` weights it depends on the contract only: builds of ONNX Runtime, CPUs and GPUs compute single
/// precision alike except for rounding. The rounding is smaller than the error of the cache's codecs: it moves a
/// key of length 1 by less than 1e-3 (see [`ModelRuntime`]), and the int8 codec, whose error is up to 1/254
/// (0.4 %) of the largest component, moves a key of 384 components by about 7e-3. All machines of a fleet
/// therefore share such keys. With `Int8` weights it also depends on the build and on
/// the kind of kernels, which round intermediate results differently. With `F16` weights it does, too, because x86
/// multiplies them in 32 bits and a GPU in 16 bits.
fn fingerprint(contract: &Contract, device: &Device) -> String {
    let is_exact = contract.weights.dtype.is_exact();
    fingerprint_with(&contract.fingerprint(), is_exact, ort::info(), device.arithmetic())
}

fn fingerprint_with(contract: &[u8; 32], is_exact: bool, build: &str, arithmetic: &str) -> String {
    if is_exact {
        return hex::encode(&contract[..16]);
    }
    let hash =
        Sha256::new().chain_update(contract).chain_update(arithmetic).chain_update([0]).chain_update(build);
    hex::encode(&hash.finalize()[..16])
}

/// Returns whether this processor is an x86 with VNNI, on which ONNX Runtime reads chunks faster with int8 weights than
/// with f32 weights.
pub fn multiplies_bytes_fast() -> bool {
    cpu_kernels() == X86_VNNI
}

/// The kind of 8-bit kernels of x86 processors with VNNI, and of others.
const X86_VNNI: &str = "x86-vnni";
/// The name says that the precise kernels are used: earlier versions used others under the name `x86`.
const X86: &str = "x86-precise";

/// Returns the kind of 8-bit kernels that ONNX Runtime uses on this CPU: `x86-vnni`, `x86-precise`, or the name of
/// another architecture.
pub fn cpu_kernels() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        let vnni = is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
        if vnni { X86_VNNI } else { X86 }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH
}

fn ort_error(e: impl std::fmt::Display) -> ort::Error {
    ort::Error::new(e.to_string())
}

fn graph_error(graph: &str, e: impl std::fmt::Display) -> ModelError {
    ModelError::Graph { graph: graph.to_owned(), reason: without_places(&e.to_string()) }
}

/// Returns a message of ONNX Runtime; one about a GPU without the places in its source, and with what to do if memory is short.
fn without_places(message: &str) -> String {
    if let Some(at) = message.find("Available memory of ") {
        return format!("{}; raise `model.device_memory_bytes_max`", &message[at..]);
    }
    let Some(at) = message.find("CUDA failure ") else { return message.to_owned() };
    let failure = message[at..].split(" ; ").next().unwrap_or_default();
    let holder =
        if failure.contains("out of memory") { "; other programs hold the memory of the GPU" } else { "" };
    format!("{failure}{holder}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::contract::Weights;

    #[test]
    fn messages_about_a_gpu_say_what_to_do() {
        let check = |message: &str, expect: &str| assert_eq!(without_places(message), expect);
        check(
            "/source/cuda_call.cc:154 Status CudaCall(int) [with T = cudaError] CUDA failure 2: out of memory ; GPU=0 ; hostname=vm ; expr=f();",
            "CUDA failure 2: out of memory; other programs hold the memory of the GPU",
        );
        check(
            "Failed to parse \"device_id\": CUDA failure 100: no CUDA-capable device is detected ; GPU=-1 ; line=70",
            "CUDA failure 100: no CUDA-capable device is detected",
        );
        check(
            "Exception: /source/bfc_arena.cc:360 void* Allocate(size_t) Available memory of 10 is smaller than requested bytes of 20",
            "Available memory of 10 is smaller than requested bytes of 20; raise `model.device_memory_bytes_max`",
        );
        check("another message", "another message");
    }

    #[test]
    fn a_library_that_is_cut_off_is_not_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let lib = folder.path().join("lib.so");
        // The table of section headers begins at byte 1000 and has 3 entries of 64 bytes.
        let mut whole = vec![0; 1192];
        whole[..6].copy_from_slice(b"\x7fELF\x02\x01");
        whole[40..48].copy_from_slice(&1000_u64.to_le_bytes());
        (whole[58], whole[60]) = (64, 3);
        let check = |name: &str, bytes: &[u8], expect: Option<&str>| {
            std::fs::write(&lib, bytes).expect("written");
            let found = check_is_whole(&lib).err();
            let as_expected = match (&found, expect) {
                (Some(found), Some(expect)) => found.contains(expect),
                (found, expect) => found.is_none() && expect.is_none(),
            };
            assert!(as_expected, "{name}: {found:?}");
        };
        check("a whole file", &whole, None);
        check("the last byte is missing", &whole[..1191], Some("1191 bytes and should have at least 1192"));
        check("a part of the header", &whole[..32], Some("32 bytes and should have at least 64"));
        check("another format", b"\xcf\xfa\xed\xfe", None);
    }

    #[test]
    fn fingerprints_of_reduced_precision_depend_on_the_build_and_the_arithmetic() {
        let (contract, other) = ([7; 32], [8; 32]);
        let exact = |build, arithmetic| fingerprint_with(&contract, true, build, arithmetic);
        assert_eq!(exact("1", "x86-precise"), "07".repeat(16));
        assert_eq!(exact("1", "x86-precise"), exact("2", "x86-vnni"));
        let reduced = |contract, build, arithmetic| fingerprint_with(contract, false, build, arithmetic);
        let first = reduced(&contract, "1", "x86-vnni");
        assert_eq!(first, reduced(&contract, "1", "x86-vnni"));
        for another in [
            reduced(&contract, "2", "x86-vnni"),
            reduced(&contract, "1", "cuda"),
            reduced(&other, "1", "x86-vnni"),
            exact("1", "x86-vnni"),
        ] {
            assert_ne!(first, another);
        }
        assert!(Weights::F32.is_exact() && !Weights::F16.is_exact() && !Weights::Int8.is_exact());
    }
}
