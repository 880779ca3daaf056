//! Measures the scan of cached keys: a 16-token question over blocks of 100 chunks of 200 tokens, with every codec and
//! kernel, and the lower bounds of that time.
//!
//! Run with `cargo bench --bench scan`. Benchmarks named `one thread` use one thread; `peaks` uses all cores, as
//! requests do. The peer computes the same logits as a matrix product in single precision (ndarray over
//! matrixmultiply) over keys that are decoded beforehand. The floor reads every byte of the blocks once, which bounds
//! the time by memory bandwidth.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ndarray::{Array2, Array3, Axis, s};
use rayon::prelude::*;
use thresher_core::domain::TokenSpan;
use thresher_core::kv::block::{Block, Parts};
use thresher_core::kv::codec::Codec;
use thresher_core::kv::scan::{self, Kernel, Look, Part, ScanQueries};

const CHUNKS: usize = 100;
const LARGE: usize = 1_000;
const TOKENS: usize = 200;
const DIM: usize = 384;
const QUERIES: usize = 16;
const SENTENCE_TOKENS: usize = 25;

/// Returns random unit vectors, `[1, token, DIM]`; equal seeds give equal vectors.
fn vectors(tokens: usize, seed: u64) -> Array3<f32> {
    let mut state = seed;
    let mut out = Array3::from_shape_simple_fn((1, tokens, DIM), || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    });
    for mut key in out.lanes_mut(Axis(2)) {
        let norm = key.dot(&key).sqrt();
        key /= norm;
    }
    out
}

fn blocks(codec: Codec) -> Vec<Block> {
    let offsets: Vec<_> = (0..TOKENS).map(|t| (5 * t..5 * t + 4).into()).collect();
    let block = |i| {
        let keys = vectors(TOKENS, i);
        Block::encode(
            Parts { keys: keys.view(), title_tokens: 0, offsets: &offsets, sentences: &[], lang: None },
            codec,
        )
    };
    (0..CHUNKS as u64).map(block).collect()
}

fn scans(c: &mut Criterion) {
    let question = ScanQueries::new(vectors(QUERIES, 77), &[0]);
    let segments: Vec<TokenSpan> = std::iter::once(TokenSpan::new(0, TOKENS))
        .chain(
            (0..TOKENS / SENTENCE_TOKENS)
                .map(|i| TokenSpan::new(i, i + 1))
                .map(|s| TokenSpan::new(s.start * SENTENCE_TOKENS, s.end * SENTENCE_TOKENS)),
        )
        .collect();
    let mut group = c.benchmark_group("scan 100x200 keys, 16 question tokens");
    group.sample_size(30);
    for codec in Codec::ALL {
        let blocks = blocks(codec);
        let bytes: usize = blocks.iter().map(|block| block.bytes().len()).sum();
        println!("{codec}: {:.1} bytes per token", bytes as f64 / (CHUNKS * TOKENS) as f64);
        group.throughput(Throughput::Bytes(bytes as u64));
        let kernels = if codec.is_quantized() { Kernel::available() } else { vec![Kernel::best()] };
        for kernel in kernels {
            let name = if codec.is_quantized() { format!("{codec} {kernel:?}") } else { codec.to_string() };
            group.bench_function(format!("logits, one thread: {name}"), |b| {
                let all: Vec<Look> = blocks.iter().map(|block| whole(&question, block)).collect();
                let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
                b.iter(|| one.install(|| scan::logits_by(kernel, black_box(&all))));
            });
        }
        let part = |block| Part { look: whole(&question, block), segments: &segments };
        let parts: Vec<Part> = blocks.iter().map(part).collect();
        group.bench_function(format!("peaks of chunks and sentences, all cores: {codec}"), |b| {
            b.iter(|| scan::peaks(black_box(&parts), &|| true));
        });
        group.bench_function(format!("floor: every byte read once, one thread: {codec}"), |b| {
            b.iter(|| blocks.iter().map(|block| checksum(block.bytes())).fold(0, u64::wrapping_add));
        });
    }
    let keys: Vec<_> = (0..CHUNKS as u64).map(|i| vectors(TOKENS, i)).collect();
    let queries: Array2<f32> = vectors(QUERIES, 77).slice(s![0, .., ..]).to_owned();
    group.bench_function("peer: single-precision matrix product, one thread", |b| {
        b.iter(|| keys.iter().map(|keys| product(&queries, keys)).sum::<f32>());
    });
    group.finish();

    // These blocks do not fit the caches, as in a large request.
    let blocks: Vec<Block> = (0..LARGE / CHUNKS).flat_map(|_| blocks(Codec::Int8)).collect();
    let part = |block| Part { look: whole(&question, block), segments: &segments };
    let parts: Vec<Part> = blocks.iter().map(part).collect();
    let mut group = c.benchmark_group("scan 1000x200 keys, 16 question tokens");
    group.sample_size(20);
    group.throughput(Throughput::Bytes(blocks.iter().map(|block| block.bytes().len() as u64).sum()));
    group.bench_function("peaks of chunks and sentences, all cores: int8", |b| {
        b.iter(|| scan::peaks(black_box(&parts), &|| true));
    });
    group.bench_function("floor: every byte read once, all cores", |b| {
        b.iter(|| blocks.par_iter().map(|block| checksum(block.bytes())).reduce(|| 0, u64::wrapping_add));
    });
    group.finish();
}

fn whole<'a>(question: &'a ScanQueries, block: &'a Block) -> Look<'a> {
    Look { question, block, tokens: TokenSpan::new(0, block.tokens()) }
}

fn product(question: &Array2<f32>, keys: &Array3<f32>) -> f32 {
    let logits: Array2<f32> = question.dot(&keys.slice(s![0, .., ..]).t());
    logits[[0, 0]]
}

/// Reads all bytes at the speed of memory.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)))
}

criterion_group!(benches, scans);
criterion_main!(benches);
