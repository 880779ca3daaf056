//! Measures scoring: the peak pass alone, the peak pass with ranked rivals, and the exact mean RC (`mean/self`) beside its upper bound
//! (`bound/self`).
//!
//! Workload: 16 query tokens, one head, 20, 100 and 1000 chunks of 200 tokens; logits from a fixed seed.
//! Compared, in the same run, with:
//! - `plain`: straightforward loops: a scalar maximum with its index, and RC by its definition;
//! - `read`: summing the same logits with all threads, which no pass over them can beat;
//! - the machine's read bandwidth: summing a buffer several times the size of the cache.
//!
//! `warm` passes over the same logits repeatedly, as they are after the model wrote them. `cold` cycles through
//! copies that together do not fit the cache.
//!
//!     cargo bench --bench rc
//!
//! The run takes less than a minute. The medians and ratios to record are printed after criterion's own lines.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use ndarray::Array3;
use rayon::prelude::*;
use thresher_core::domain::TokenSpan;
use thresher_core::rc::{
    RANK_POWER, mean_over_heads, mean_over_queries, mean_rc, mean_rc_bound, peaks, ranked_rivals,
};

const QUERIES: usize = 16;
const CHUNK_TOKENS: usize = 200;
const CHUNKS: [usize; 3] = [20, 100, 1000];
/// Bytes of the cold copies: several times the last-level cache of the machines that this bench runs on.
const COLD_BYTES: usize = 192 << 20;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .without_plots()
        .configure_from_args();
    let buffer = vec![1.0_f32; COLD_BYTES / 4];
    let mut group = criterion.benchmark_group("machine");
    let seconds = median(&mut group, "read", || sum(&buffer));
    group.finish();
    let machine = COLD_BYTES as f64 / seconds;
    drop(buffer);
    let tables: Vec<_> = CHUNKS.iter().map(|&chunks| bench_chunks(&mut criterion, chunks, machine)).collect();
    println!(
        "\nthreads {}, machine's read bandwidth {:.1} GB/s",
        rayon::current_num_threads(),
        machine / 1e9
    );
    tables.iter().for_each(|table| println!("{table}"));
}

/// Benches one number of chunks and returns the medians and ratios as text. `machine` is the read bandwidth in
/// bytes per second.
fn bench_chunks(criterion: &mut Criterion, chunks: usize, machine: f64) -> String {
    let segments: Vec<_> =
        (0..chunks).map(|p| TokenSpan::new(p * CHUNK_TOKENS, (p + 1) * CHUNK_TOKENS)).collect();
    let cross = logits(chunks * CHUNK_TOKENS);
    let self_logits = logits(QUERIES);
    let bytes = (cross.len() * 4) as f64;
    let mut copies = Copies { all: vec![cross.clone(); COLD_BYTES.div_ceil(cross.len() * 4)], at: 0 };

    let mut group = criterion.benchmark_group(format!("{chunks}x{CHUNK_TOKENS}"));
    let peaks_warm = median(&mut group, "peaks/warm", || peaks(cross.view(), &segments));
    let peaks_cold = median(&mut group, "peaks/cold", || peaks(copies.next().view(), &segments));
    let peaks_plain = median(&mut group, "peaks/plain", || plain_peaks(&cross, &segments));
    let score_warm = median(&mut group, "score/warm", || {
        let rc = ranked_rivals(peaks(cross.view(), &segments).value.view());
        mean_over_queries(mean_over_heads(rc).view())
    });
    let mean = median(&mut group, "mean/self", || mean_rc(cross.view(), self_logits.view(), &segments));
    let bound =
        median(&mut group, "bound/self", || mean_rc_bound(cross.view(), self_logits.view(), &segments));
    let score_plain = median(&mut group, "score/plain", || plain_rivals(&plain_peaks(&cross, &segments)));
    let read_warm = median(&mut group, "read/warm", || sum(cross.as_slice().expect("standard layout")));
    let read_cold =
        median(&mut group, "read/cold", || sum(copies.next().as_slice().expect("standard layout")));
    group.finish();

    let line = |name: &str, seconds: f64, peer: &str, peer_seconds: f64| {
        let (us, rate) = (seconds * 1e6, bytes / seconds / 1e9);
        let (ratio, share) = (peer_seconds / seconds, 100.0 * bytes / seconds / machine);
        format!(
            "{name:12} {us:9.1} us {rate:7.1} GB/s of X {ratio:6.2} x {peer:12} {share:5.0} % of the machine's read bandwidth\n"
        )
    };
    format!("\n{QUERIES} queries x {chunks} chunks x {CHUNK_TOKENS} tokens, X = {:.2} MB\n", bytes / 1e6)
        + &line("peaks/warm", peaks_warm, "read/warm", read_warm)
        + &line("peaks/cold", peaks_cold, "read/cold", read_cold)
        + &line("peaks/warm", peaks_warm, "plain", peaks_plain)
        + &line("score/warm", score_warm, "plain", score_plain)
        + &line("score/warm", score_warm, "peaks/warm", peaks_warm)
        + &line("bound/self", bound, "mean/self", mean)
}

/// Lets criterion time `f` and returns the median time in seconds per call.
fn median<R>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, mut f: impl FnMut() -> R) -> f64 {
    let mut seconds = Vec::new();
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|calls| {
            let start = Instant::now();
            (0..calls).for_each(|_| drop(black_box(f())));
            let elapsed = start.elapsed();
            seconds.push(elapsed.as_secs_f64() / calls as f64);
            elapsed
        });
    });
    seconds.sort_unstable_by(f64::total_cmp);
    // Nothing was timed if the command line filtered this benchmark out.
    seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Copies of the logits that are used in turn.
struct Copies {
    all: Vec<Array3<f32>>,
    at: usize,
}

impl Copies {
    fn next(&mut self) -> &Array3<f32> {
        self.at = (self.at + 1) % self.all.len();
        &self.all[self.at]
    }
}

/// Returns random logits `[1, query, key]` from −8 to 8, always the same.
fn logits(keys: usize) -> Array3<f32> {
    let mut state = 7_u32;
    Array3::from_shape_simple_fn((1, QUERIES, keys), || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 20) as f32 - 8.0
    })
}

fn sum(values: &[f32]) -> f32 {
    values.par_chunks(values.len().div_ceil(QUERIES)).map(sum_of_part).sum()
}

fn sum_of_part(values: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 32];
    for block in values.as_chunks::<32>().0 {
        lanes.iter_mut().zip(block).for_each(|(lane, x)| *lane += x);
    }
    lanes.iter().sum()
}

/// Returns the peak and its key, `[query][segment]`.
fn plain_peaks(cross: &Array3<f32>, segments: &[TokenSpan]) -> Vec<Vec<(f32, usize)>> {
    let peak = |row: &[f32], segment: &TokenSpan| {
        let mut best = (f32::MIN, segment.start);
        for i in segment.range() {
            if row[i] > best.0 {
                best = (row[i], i);
            }
        }
        best
    };
    let rows = cross.rows().into_iter();
    rows.map(|row| {
        segments.iter().map(|segment| peak(row.to_slice().expect("standard layout"), segment)).collect()
    })
    .collect()
}

/// Returns the scores, `[segment]`, by the definition of ranked rivals.
fn plain_rivals(peaks: &[Vec<(f32, usize)>]) -> Vec<f32> {
    let mut scores = vec![0.0; peaks[0].len()];
    for row in peaks {
        for (segment, score) in scores.iter_mut().enumerate() {
            let others = row.iter().enumerate().filter(|(other, _)| *other != segment);
            let mut rivals: Vec<f32> = others.map(|(_, peak)| peak.0).collect();
            rivals.sort_by(|a, b| b.total_cmp(a));
            let weights = (1..=rivals.len()).map(|rank| (rank as f64).powf(-RANK_POWER) as f32);
            let excess = |(weight, rival): (f32, &f32)| weight * (row[segment].0 - rival).max(0.0);
            let total: f32 = weights.clone().sum();
            *score += weights.zip(&rivals).map(excess).sum::<f32>() / total.max(f32::MIN_POSITIVE);
        }
    }
    scores.iter().map(|score| score / peaks.len() as f32).collect()
}
