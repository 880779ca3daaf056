//! Measures what the daemon does beside the model when it reads new chunks: splitting texts into tokens and sentences,
//! encoding blocks, scoring, selecting. On a GPU, which reads the chunks in milliseconds, this is most of a request.
//!
//! Requests of 100 and 1,000 new chunks of 200 tokens, with a question of 16, go through the whole pipeline. Its model
//! is not a real one: it takes keys of the default model's shape from a table. The floor copies the bytes of the keys of
//! the same chunks once. `one thread` shows all work, `all threads` what a request waits for.
//!
//!     make model && cargo bench -p thresher-lab

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[path = "../../../src/allocator.rs"]
mod allocator;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ndarray::{Array3, ArrayView3, s};
use rayon::prelude::*;
use thresher_core::domain::CompressRequest;
use thresher_core::kv::store::KvStore;
use thresher_core::model::device::DeviceInUse;
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::model::{
    EncodedQuestion, ModelError, ModelInfo, ModelRuntime, Past, RawLogits, SelfAttention, WindowFilter,
    WindowSink,
};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, Settings};
use thresher_lab::report::quantile;
use thresher_lab::workload::{self, Workload};

const CHUNKS: [usize; 2] = [100, 1_000];
const TOKENS: usize = 200;
const DIM: usize = 384;
const WINDOW_TOKENS_MAX: usize = 254;
const ROUNDS: u64 = 15;

/// A model that takes no time: its keys are in a table.
struct Table {
    info: ModelInfo,
    /// `[1, token, DIM]`
    keys: Array3<f32>,
}

impl Table {
    fn new() -> Self {
        let info = ModelInfo {
            name: "table".to_owned(),
            fingerprint: "table".to_owned(),
            window_tokens_max: WINDOW_TOKENS_MAX,
            planes: 1,
            head_dim: DIM,
            readout: vec![0],
            decoder: None,
            // As many as a GPU reads at the same time.
            windows_at_once: 128,
            device: DeviceInUse::cpu(),
        };
        let mut rng = fastrand::Rng::with_seed(7);
        let keys = Array3::from_shape_simple_fn((1, 4 * WINDOW_TOKENS_MAX, DIM), || {
            (rng.f32() - 0.5) / (DIM as f32).sqrt()
        });
        Self { info, keys }
    }

    fn keys(&self, tokens: &[u32]) -> ArrayView3<'_, f32> {
        let first = tokens.first().map_or(0, |&id| id as usize % (3 * WINDOW_TOKENS_MAX));
        self.keys.slice(s![.., first..first + tokens.len(), ..])
    }
}

impl ModelRuntime for Table {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn read(
        &self,
        windows: &[&[u32]],
        is_needed: WindowFilter,
        on_read: WindowSink,
    ) -> Result<(), ModelError> {
        let read = |(i, window): (usize, &&[u32])| {
            if is_needed(i) {
                on_read(i, self.keys(window));
            }
        };
        windows.par_iter().enumerate().for_each(read);
        Ok(())
    }

    fn encode_question(&self, question: &[u32], _: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        let vectors = self.keys(question).to_owned();
        Ok(EncodedQuestion { self_attention: SelfAttention::Keys(vectors.clone()), vectors })
    }

    fn logits(&self, _: &[u32], _: ArrayView3<f32>) -> Result<RawLogits, ModelError> {
        unreachable!("requests are scored with cached blocks")
    }
}

fn main() -> anyhow::Result<()> {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/minilm-l6/tokenizer.json");
    let tokenizer = Arc::new(ModelTokenizer::from_file(&file)?);
    let model: Arc<dyn ModelRuntime> = Arc::new(Table::new());
    for (name, threads) in [("one thread", 1), ("all threads", rayon::current_num_threads())] {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        for chunks in CHUNKS {
            let workload = Workload { chunks, tokens: TOKENS, query_tokens: 16, mixed: false };
            println!("{chunks} new chunks of {TOKENS} tokens, {name}, medians of {ROUNDS} rounds");
            let mut rounds = Vec::new();
            for round in 0..ROUNDS {
                let request = workload.request(round, &tokenizer)?;
                let store = Arc::new(KvStore::without_tiers());
                let pipeline =
                    Pipeline::new(Arc::clone(&model), Arc::clone(&tokenizer), store, Settings::default());
                rounds.push(threads.install(|| measure(&pipeline, &request, &tokenizer))?);
            }
            report(&rounds);
        }
    }
    Ok(())
}

/// The milliseconds of a round, with the name of each.
type Round = Vec<(String, f64)>;

fn measure(
    pipeline: &Pipeline,
    request: &CompressRequest,
    tokenizer: &ModelTokenizer,
) -> anyhow::Result<Round> {
    let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
    let began = Instant::now();
    let compressed = pipeline.compress(request, &Cancel::default())?;
    let mut round = vec![("whole request".to_owned(), milliseconds(began.elapsed()))];
    let stages = compressed.timings.stages.iter();
    round.extend(stages.map(|&(stage, duration)| (format!("  {stage}"), milliseconds(duration))));
    let ids = workload::ids(request, tokenizer)?;
    let bytes: usize = ids.iter().map(|ids| ids.len() * DIM * size_of::<f32>()).sum();
    let keys = vec![1_u8; bytes];
    let began = Instant::now();
    std::hint::black_box(keys.clone());
    round.push(("floor: the keys are copied once".to_owned(), milliseconds(began.elapsed())));
    Ok(round)
}

fn report(rounds: &[Round]) {
    for (at, (name, _)) in rounds[0].iter().enumerate() {
        let mut of_rounds: Vec<f64> = rounds.iter().map(|round| round[at].1).collect();
        of_rounds.sort_by(f64::total_cmp);
        println!("  {name:40} {:8.2} ms", quantile(&of_rounds, 0.5));
    }
}
