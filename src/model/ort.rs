//! The late-interaction family in ONNX Runtime: loads a contract's graphs, checks them against it, runs them.
//! The only place that names `ort`; the rest of the program sees [`ModelRuntime`].

mod bare;
mod numerics;
mod weights;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use ndarray::{Array2, Array3, ArrayView3, Ix3, Ix4, s};
use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::value::{Outlet, TensorRef, ValueType};
use rayon::prelude::*;

pub use self::bare::BatchedGraph;
use self::weights::{SharedWeights, WeightedSession};
use self::workers::Workers;
use super::contract::{Contract, Family, Graph, IoTensor, Side, check_io};
use super::{Done, Logits, ModelError, ModelInfo, ModelRuntime, Wanted};

/// Threads that one question runs on at most. It is short: one alone would leave the others idle while somebody waits, and more
/// than these wait for each other.
const QUERY_THREADS_MAX: usize = 4;

/// Threads of all sessions of the query graph together, for each core: while some wait for each other, others work.
const QUERY_THREADS_PER_CORE: usize = 2;

/// Where things are and how many cores to use.
#[derive(Debug, Clone)]
pub struct OrtSettings {
    /// Shared library of ONNX Runtime.
    pub runtime_lib: PathBuf,
    /// Folder of the contract.
    pub model_dir: PathBuf,
    /// Worker threads; each owns a session of the passage graph.
    pub workers: usize,
}

/// Sessions of one contract's graphs.
///
/// Windows run on one thread each, side by side, alone or with others of their length: their keys then depend on their own
/// tokens only, not on the padding that other batches bring or on how many cores there are; on the CPU it is also the
/// faster way (`docs/decisions.md` has the figures). A question runs on the thread that asks, helped by idle cores.
pub struct OrtRuntime {
    info: ModelInfo,
    frame: Frame,
    workers: Workers<Array3<f32>>,
    query: Pool,
}

/// Special tokens around a window.
#[derive(Debug, Clone)]
struct Frame {
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

/// The query graph's sessions; who asks takes one that is free, or waits for its turn.
struct Pool {
    file: String,
    idle: Mutex<Vec<WeightedSession>>,
    returned: Condvar,
}

impl OrtRuntime {
    /// Loads the library, the contract and its graphs.
    ///
    /// # Errors
    /// [`ModelError`] names what is missing or does not fit, and what to do.
    pub fn load(settings: &OrtSettings) -> Result<Self, ModelError> {
        let environment = environment(&settings.runtime_lib)?;
        let contract = Contract::load(&settings.model_dir)?;
        let Family::Late(late) = &contract.family else { unreachable!("todo") };
        let cores = settings.workers.max(1);
        let weights = SharedWeights::open(&contract, &settings.model_dir)?;
        let load = |graph, count, threads| {
            let file = contract.graph_file(graph);
            let path = settings.model_dir.join(file);
            let load = |_| weights.session(builder(&environment, threads)?, &path);
            let sessions = (0..count).into_par_iter().map(load).collect::<Result<Vec<_>, _>>();
            let sessions = sessions.map_err(|e| graph_error(file, e))?;
            check_io(&contract, graph, &io_of(&sessions[0]))?;
            Ok::<_, ModelError>(sessions)
        };
        let passage = load(Graph::Passage, cores, 1)?;
        let threads = cores.min(QUERY_THREADS_MAX);
        let query = load(Graph::Query, (QUERY_THREADS_PER_CORE * cores).div_ceil(threads), threads)?;
        weights.drop_pages();
        let frame = Frame::of(&contract);
        let file: Arc<str> = contract.graph_file(Graph::Passage).into();
        let run = |mut session: WeightedSession| {
            let (frame, file) = (frame.clone(), Arc::clone(&file));
            move |windows: &[Box<[u32]>]| {
                run_passage(&mut session, &frame, windows).map_err(|e| graph_error(&file, e))
            }
        };
        let workers = Workers::start(passage.into_iter().map(run).collect::<Vec<_>>());
        Ok(Self {
            info: ModelInfo {
                name: contract.name.clone(),
                fingerprint: numerics::fingerprint(&contract),
                window_tokens_max: contract.window.tokens_max - frame.prefix.len() - frame.suffix.len(),
                heads: late.heads,
                head_dim: late.head_dim,
            },
            workers: workers.map_err(|e| graph_error("worker threads", e))?,
            frame,
            query: Pool {
                file: contract.graph_file(Graph::Query).to_owned(),
                idle: Mutex::new(query),
                returned: Condvar::new(),
            },
        })
    }

    /// How many windows run side by side.
    pub fn workers(&self) -> usize {
        self.workers.count()
    }
}

impl ModelRuntime for OrtRuntime {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn read(&self, windows: &[&[u32]], wanted: Wanted, done: Done) -> Result<(), ModelError> {
        self.workers.each(windows, wanted, |i, keys| done(i, keys.view()))
    }

    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<Logits, ModelError> {
        let input = self.frame.around(&[question]);
        let keys = keys.as_standard_layout();
        let first = self.frame.prefix.len();
        let rows = first..first + question.len();
        self.query.run(|session| {
            let outputs = session.run(ort::inputs![
                "input_ids" => TensorRef::from_array_view(input.view())?,
                "key" => TensorRef::from_array_view(keys.view())?,
            ])?;
            let take = |name: &str| -> Result<Array3<f32>, ort::Error> {
                let logits = outputs[name].try_extract_array::<f32>()?;
                let logits = logits.into_dimensionality::<Ix3>().map_err(ort_error)?;
                // The statistic is defined for finite logits; a model that gives others is broken.
                if logits.iter().any(|logit| !logit.is_finite()) {
                    return Err(ort_error(format_args!("{name} holds a value that is not finite")));
                }
                Ok(logits.slice(s![.., rows.clone(), ..]).to_owned())
            };
            let (cross, own) = (take("cross_logits")?, take("self_logits")?);
            Ok(Logits { cross, own: own.slice(s![.., .., rows.clone()]).to_owned() })
        })
    }
}

/// Keys `[head, t, head_dim]` of windows of one length, `[window, t]`, special tokens dropped.
fn run_passage(
    session: &mut WeightedSession,
    frame: &Frame,
    windows: &[Box<[u32]>],
) -> Result<Vec<Array3<f32>>, ort::Error> {
    let windows: Vec<&[u32]> = windows.iter().map(|window| &**window).collect();
    let input = frame.around(&windows);
    let mask = Array2::<i64>::ones(input.dim());
    let outputs = session.run(ort::inputs![
        "input_ids" => TensorRef::from_array_view(input.view())?,
        "attention_mask" => TensorRef::from_array_view(mask.view())?,
    ])?;
    let keys = outputs["key"].try_extract_array::<f32>()?;
    let keys = keys.into_dimensionality::<Ix4>().map_err(ort_error)?;
    // A key that is not finite has no scale to be stored with.
    if keys.iter().any(|value| !value.is_finite()) {
        return Err(ort_error("key holds a value that is not finite"));
    }
    let first = frame.prefix.len();
    let tokens = input.ncols() - frame.suffix.len();
    Ok(keys.outer_iter().map(|window| window.slice(s![.., first..tokens, ..]).to_owned()).collect())
}

impl Frame {
    fn of(contract: &Contract) -> Self {
        Self { prefix: contract.tokenizer.prefix.clone(), suffix: contract.tokenizer.suffix.clone() }
    }

    /// Ids of windows of one length with the special tokens around each, `[window, t]`.
    fn around(&self, windows: &[&[u32]]) -> Array2<i64> {
        let framed = windows.iter().flat_map(|ids| self.prefix.iter().chain(*ids).chain(&self.suffix));
        let tokens = self.prefix.len() + windows[0].len() + self.suffix.len();
        Array2::from_shape_vec((windows.len(), tokens), framed.map(|&id| i64::from(id)).collect())
            .expect("a run's windows have one length")
    }
}

impl Pool {
    /// Runs `work` on the next free session.
    fn run<T>(
        &self,
        work: impl FnOnce(&mut WeightedSession) -> Result<T, ort::Error>,
    ) -> Result<T, ModelError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut idle =
            self.returned.wait_while(idle, |idle| idle.is_empty()).unwrap_or_else(PoisonError::into_inner);
        let session = idle.pop().expect("waited until there is one");
        drop(idle);
        let mut lent = Lent { pool: self, session: Some(session) };
        work(lent.session.as_mut().expect("it is lent")).map_err(|e| graph_error(&self.file, e))
    }
}

/// A session that goes back, also when its user panics.
struct Lent<'a> {
    pool: &'a Pool,
    session: Option<WeightedSession>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(self.session.take());
        self.pool.returned.notify_one();
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
fn builder(environment: &Environment, threads: usize) -> Result<SessionBuilder, ort::Error> {
    let builder = Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(threads)?
        // Threads that wait for a question would take the cores from those that read.
        .with_intra_op_spinning(false)?;
    Ok(builder)
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
