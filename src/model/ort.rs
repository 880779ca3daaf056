//! The late-interaction family in ONNX Runtime: loads a contract's graphs, checks them against it, runs them.
//! The only place that names `ort`; the rest of the program sees [`ModelRuntime`].

mod bare;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ndarray::{Array2, Array3, ArrayView3, Axis, Ix3, s};
use ort::environment::Environment;
use ort::session::builder::GraphOptimizationLevel;
use ort::session::{Session, SessionOutputs};
use ort::value::{Outlet, TensorRef, ValueType};
use rayon::prelude::*;

pub use self::bare::BatchedGraph;
use self::workers::Workers;
use super::contract::{Contract, Graph, IoTensor, Side, check_io, hex};
use super::{Logits, ModelError, ModelInfo, ModelRuntime};

/// Sessions of the query graph at most. Each holds its own weights (45 MB for MiniLM), and a question is short: it need
/// not have one per core.
const QUERY_SESSIONS_MAX: usize = 4;

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
/// A window runs alone, on one thread: its keys then depend on its own tokens only, not on what shared its batch, on
/// the padding that a batch brings or on how many cores there are. Windows run side by side instead, which on the
/// CPU is also the faster way (`docs/decisions.md` has the figures).
pub struct OrtRuntime {
    info: ModelInfo,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    workers: Workers,
    passage: Sessions,
    query: Sessions,
}

/// One graph's sessions; a worker uses the one at its own index, modulo their number.
struct Sessions {
    file: String,
    sessions: Vec<Mutex<Session>>,
}

impl OrtRuntime {
    /// Loads the library, the contract and its graphs.
    ///
    /// # Errors
    /// [`ModelError`] names what is missing or does not fit, and what to do.
    pub fn load(settings: &OrtSettings) -> Result<Self, ModelError> {
        let environment = environment(&settings.runtime_lib)?;
        let contract = Contract::load(&settings.model_dir)?;
        let workers = Workers::new(settings.workers).map_err(|e| graph_error("worker threads", e))?;
        let load = |graph, count| Sessions::load(&environment, settings, &contract, graph, count);
        let passage = load(Graph::Passage, workers.count())?;
        let query = load(Graph::Query, workers.count().min(QUERY_SESSIONS_MAX))?;
        let (prefix, suffix) = (contract.tokenizer.prefix.clone(), contract.tokenizer.suffix.clone());
        Ok(Self {
            info: ModelInfo {
                name: contract.name.clone(),
                fingerprint: hex(&contract.fingerprint()[..16]),
                window_tokens_max: contract.window.tokens_max - prefix.len() - suffix.len(),
                heads: contract.readout.heads,
                head_dim: contract.readout.head_dim,
            },
            workers,
            prefix,
            suffix,
            passage,
            query,
        })
    }

    /// Runs the passage graph on one window, `[1, t]`, and gives `take` what it returns.
    fn on_window<T>(
        &self,
        ids: &[u32],
        take: impl FnOnce(&SessionOutputs) -> Result<T, ort::Error>,
    ) -> Result<T, ModelError> {
        let input = framed(&self.prefix, ids, &self.suffix);
        let mask = Array2::<i64>::ones(input.dim());
        self.passage.run(|session| {
            let outputs = session.run(ort::inputs![
                "input_ids" => TensorRef::from_array_view(input.view())?,
                "attention_mask" => TensorRef::from_array_view(mask.view())?,
            ])?;
            take(&outputs)
        })
    }

    /// `[head, t, head_dim]` of one window, special tokens dropped.
    fn read_one(&self, ids: &[u32]) -> Result<Array3<f32>, ModelError> {
        self.on_window(ids, |outputs| {
            let key = outputs["key"].try_extract_array::<f32>()?;
            let key = key.index_axis(Axis(0), 0).into_dimensionality::<Ix3>().map_err(ort_error)?;
            let first = self.prefix.len();
            Ok(key.slice(s![.., first..first + ids.len(), ..]).to_owned())
        })
    }

    /// `work` on every window, side by side on the workers; results in the order given.
    fn side_by_side<T: Send + Sync>(
        &self,
        windows: &[&[u32]],
        work: impl Fn(&[u32]) -> Result<T, ModelError> + Sync,
    ) -> Result<Vec<T>, ModelError> {
        // Longest first: the last window to finish is then a short one, and no core waits long for it.
        let mut order: Vec<usize> = (0..windows.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(windows[i].len()));
        self.workers.each(&order, |i| work(windows[i]))
    }
}

impl ModelRuntime for OrtRuntime {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn read(
        &self,
        windows: &[&[u32]],
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Array3<f32>>, ModelError> {
        self.side_by_side(windows, |ids| if go_on() { self.read_one(ids) } else { Err(ModelError::Stopped) })
    }

    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<Logits, ModelError> {
        let input = framed(&self.prefix, question, &self.suffix);
        let keys = keys.as_standard_layout();
        let rows = self.prefix.len()..self.prefix.len() + question.len();
        self.workers.run(|| {
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
        })
    }
}

impl Sessions {
    fn load(
        environment: &Environment,
        settings: &OrtSettings,
        contract: &Contract,
        graph: Graph,
        count: usize,
    ) -> Result<Self, ModelError> {
        let file = contract.graph_file(graph);
        let path = settings.model_dir.join(file);
        let load = |_| session(environment, &path, 1).map_err(|e| graph_error(file, e));
        let sessions = (0..count).into_par_iter().map(load).collect::<Result<Vec<_>, _>>()?;
        check_io(contract, graph, &io_of(&sessions[0]))?;
        Ok(Self { file: file.to_owned(), sessions: sessions.into_iter().map(Mutex::new).collect() })
    }

    /// Runs `work` on the session of the worker that asks.
    fn run<T>(&self, work: impl FnOnce(&mut Session) -> Result<T, ort::Error>) -> Result<T, ModelError> {
        let worker = rayon::current_thread_index().unwrap_or(0) % self.sessions.len();
        let mut session = self.sessions[worker].lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut session).map_err(|e| graph_error(&self.file, e))
    }
}

/// Loads the library and opens the environment. ONNX Runtime allows one of each per process: the first call's holds,
/// and a later call with another library is refused.
fn environment(lib: &Path) -> Result<Environment, ModelError> {
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

/// Ids with the special tokens around them, `[1, t]`.
fn framed(prefix: &[u32], ids: &[u32], suffix: &[u32]) -> Array2<i64> {
    let all = prefix.iter().chain(ids).chain(suffix).map(|&id| i64::from(id)).collect();
    Array2::from_shape_vec((1, prefix.len() + ids.len() + suffix.len()), all)
        .expect("the shape counts exactly what was collected")
}

fn session(environment: &Environment, path: &Path, threads: usize) -> Result<Session, ort::Error> {
    let mut builder = Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(threads)?;
    builder.commit_from_file(path)
}

fn io_of(session: &Session) -> Vec<IoTensor> {
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
