//! The scan of a question over blocks: computes raw logits, and the peak of each segment, in one pass over
//! keys that are read in place. Knows neither where blocks come from nor what peaks are for.
//!
//! For quantized keys, the question is quantized to eight bits with one scale per token. The products are
//! summed as integers, so every kernel gives the same bits; the logit is the sum times both scales. It
//! differs from exact arithmetic on the decoded keys by at most `scale_q / 2 · Σ|k|`, the rounding of the
//! question. This is below 0.01 for the unit vectors of the tests, even with an outlier among the values. For
//! the codecs without quantization, the question is not quantized.

mod kernel;
#[cfg(target_arch = "x86_64")]
mod x86;

use ndarray::{Array2, Array3, Axis, s};
use rayon::prelude::*;

pub use self::kernel::Kernel;
use self::kernel::{GROUP, QUERIES};
use super::block::Block;
use super::codec::{Codec, LANES};
use crate::domain::TokenSpan;

/// The least number of keys for a task of its own, which another thread can take.
const KEYS_PER_TASK: usize = 2048;

/// A question, prepared for a scan over blocks of any codec.
#[derive(Debug, Clone)]
pub struct ScanQueries {
    /// The query vectors, `[head, question_token, head_dim]`. A logit is the dot product of a query vector
    /// and a key.
    exact: Array3<f32>,
    heads: Vec<QuantizedHead>,
    /// `[head]`: the plane of a block that has the keys for this head.
    planes: Vec<usize>,
}

/// One head of a question, quantized to eight bits.
#[derive(Debug, Clone)]
struct QuantizedHead {
    /// `[batch of tokens, group of four values, token]`: four values of one token per `i32`. A batch has as
    /// many tokens as a kernel processes at once.
    packed: Vec<Vec<[i32; QUERIES]>>,
    /// `[token]`: the scale of the quantized values.
    scales: Vec<f32>,
    /// `[token]`: the sum of the quantized values. The offset of a key's values adds the offset times this
    /// sum to the product.
    sums: Vec<i32>,
}

/// A question and the tokens of a block that it is scanned over.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    pub question: &'a ScanQueries,
    pub block: &'a Block,
    /// The tokens of the block to scan, counted from the block's first token.
    pub tokens: TokenSpan,
}

/// A question, the tokens of a block that it is scanned over, and the segments whose peaks are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The question, block and tokens. The questions of all parts of a scan have the same numbers of heads
    /// and tokens.
    pub look: Look<'a>,
    /// The segments, counted from the block's first token. They may be empty, overlap or nest. Tokens of a
    /// segment that are not scanned do not count.
    pub segments: &'a [TokenSpan],
}

impl ScanQueries {
    /// Returns the question with these query vectors, `[head, question_token, head_dim]`. `planes` `[head]`
    /// says for each head which plane of a block has its keys.
    ///
    /// # Panics
    /// When `planes` does not have one plane per head.
    pub fn new(exact: Array3<f32>, planes: &[usize]) -> Self {
        assert_eq!(exact.len_of(Axis(0)), planes.len(), "one plane for each head");
        let heads = exact.outer_iter().map(|head| QuantizedHead::new(&head.to_owned())).collect();
        Self { exact, heads, planes: planes.to_vec() }
    }

    /// Returns the numbers of heads and tokens.
    fn shape(&self) -> (usize, usize) {
        let (heads, tokens, _) = self.exact.dim();
        (heads, tokens)
    }
}

impl QuantizedHead {
    fn new(head: &Array2<f32>) -> Self {
        let (tokens, dim) = head.dim();
        // The number of groups is even, because four-bit tiles have two groups in four bytes.
        let groups = dim.div_ceil(2 * GROUP) * 2;
        let mut packed = vec![vec![[0; QUERIES]; groups]; tokens.div_ceil(QUERIES)];
        let (mut scales, mut sums) = (Vec::with_capacity(tokens), Vec::with_capacity(tokens));
        for (token, row) in head.outer_iter().enumerate() {
            let scale = row.iter().fold(0.0_f32, |most, v| most.max(v.abs())) / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let mut values = vec![0_i8; groups * GROUP];
            // The clamp is needed because the inverse of a tiny scale is infinite. The kernels rely on values
            // of at least -127.
            let quantized = |v: &f32| (v * inverse).round().clamp(-127.0, 127.0) as i8;
            values.iter_mut().zip(row).for_each(|(out, v)| *out = quantized(v));
            for (group, four) in values.chunks_exact(GROUP).enumerate() {
                let four = <[i8; GROUP]>::try_from(four).expect("a group").map(|v| v as u8);
                packed[token / QUERIES][group][token % QUERIES] = i32::from_le_bytes(four);
            }
            scales.push(scale);
            sums.push(values.iter().map(|&v| i32::from(v)).sum());
        }
        Self { packed, scales, sums }
    }
}

/// Returns the peak (largest logit) of every segment, `[head, question_token, segment]`, with the segments in
/// the order of the parts. The peak of a segment without tokens is `f32::MIN`. `should_continue` is called
/// after each row of logits; if it returns false, the scan stops and returns `None`.
///
/// # Panics
/// When a block does not have the planes, dimensions or tokens of its question, or questions differ in heads
/// or tokens.
pub fn peaks(parts: &[Part], should_continue: &(dyn Fn() -> bool + Sync)) -> Option<Array3<f32>> {
    let shape = shape_of(parts.iter().map(|part| part.look));
    let of_task = |parts: &&[Part]| {
        let segments = parts.iter().map(|part| part.segments.len()).sum();
        let mut out = Array3::zeros((shape.0, shape.1, segments));
        let mut scratch = Scratch::default();
        let mut first = 0;
        for Part { look, segments } in *parts {
            let mut goes_on = should_continue();
            if !goes_on {
                return None;
            }
            let TokenSpan { start, end } = look.tokens;
            let scanned = |at: usize| at.clamp(start, end) - start;
            rows(Kernel::best(), *look, &mut scratch, |head, query, row| {
                let out =
                    &mut out.slice_mut(s![head, query, first..]).into_slice().expect("rows are contiguous")
                        [..segments.len()];
                out.iter_mut().zip(*segments).for_each(|(out, segment)| {
                    *out = kernel::peak(&row[scanned(segment.start)..scanned(segment.end)]);
                });
                goes_on = should_continue();
                goes_on
            });
            if !goes_on {
                return None;
            }
            first += segments.len();
        }
        Some(out)
    };
    let tasks = tasks(parts);
    let found: Vec<_> = tasks.par_iter().map(of_task).collect::<Option<_>>()?;
    Some(concatenated(&found, shape.0, shape.1))
}

/// Calls `take(head, query, row)` for every row of logits, one per head and question token, until it returns false.
///
/// # Panics
/// When question and block differ in dimensions, the block does not have a plane of the question or a token to
/// scan, or this processor does not support the kernel.
fn rows(kernel: Kernel, look: Look, scratch: &mut Scratch, take: impl FnMut(usize, usize, &[f32]) -> bool) {
    let (planes, tokens, dim) = look.block.shape();
    assert_eq!(dim, look.question.exact.dim().2, "dimensions of block and question");
    assert!(look.question.planes.iter().all(|&plane| plane < planes), "the block has {planes} planes");
    assert!(look.tokens.end <= tokens, "tokens to {} of {tokens}", look.tokens.end);
    scratch.rows.resize(QUERIES * LANES * kernel::tiles_of(look.tokens).len(), 0.0);
    let (codec, offset) = (look.block.codec(), look.block.codec().offset());
    match (codec, kernel) {
        (Codec::F32 | Codec::F16, _) => exact_rows(look, take),
        (Codec::Int8, Kernel::Portable) => {
            kernel::quantized_rows(look, scratch, offset, take, kernel::int8_tile);
        }
        #[cfg(target_arch = "x86_64")]
        (_, simd) => x86::rows(simd, look, scratch, take),
    }
}

/// Returns the raw logits over the scanned tokens of all `looks` one after another,
/// `[head, question_token, key]`. [`peaks`] returns the maxima of these numbers.
///
/// # Panics
/// When a block does not have the planes, dimensions or tokens of its question, or questions differ in heads
/// or tokens.
pub fn logits(looks: &[Look]) -> Array3<f32> {
    logits_by(Kernel::best(), looks)
}

/// Returns the logits like [`logits`], computed with the given kernel. All kernels give the same bits for
/// quantized codecs, which a test checks.
pub fn logits_by(kernel: Kernel, looks: &[Look]) -> Array3<f32> {
    let shape = shape_of(looks.iter().copied());
    let of_look = |look: &Look| {
        let mut out = Array3::zeros((shape.0, shape.1, look.tokens.len()));
        rows(kernel, *look, &mut Scratch::default(), |head, query, row| {
            let mut out = out.slice_mut(s![head, query, ..]);
            out.iter_mut().zip(row).for_each(|(out, &logit)| *out = logit);
            true
        });
        out
    };
    let found: Vec<_> = looks.par_iter().map(of_look).collect();
    concatenated(&found, shape.0, shape.1)
}

/// Returns the numbers of heads and tokens, which are the same for all questions.
fn shape_of<'a>(mut looks: impl Iterator<Item = Look<'a>>) -> (usize, usize) {
    let Some(first) = looks.next() else { return (0, 0) };
    let shape = first.question.shape();
    assert!(
        looks.all(|look| look.question.shape() == shape),
        "the questions of a scan have the same heads and tokens"
    );
    shape
}

/// A buffer for rows of logits, reused from block to block.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// `[query of a batch, key]`, with keys filled up to whole tiles.
    rows: Vec<f32>,
}

/// Divides the parts into runs with enough keys for a task of their own.
fn tasks<'p, 'b>(parts: &'p [Part<'b>]) -> Vec<&'p [Part<'b>]> {
    let mut tasks = Vec::new();
    let (mut start, mut keys) = (0, 0);
    for (i, part) in parts.iter().enumerate() {
        keys += part.look.tokens.len();
        if keys >= KEYS_PER_TASK || i + 1 == parts.len() {
            tasks.push(&parts[start..=i]);
            (start, keys) = (i + 1, 0);
        }
    }
    tasks
}

/// Concatenates arrays `[head, query, n]` along the last axis.
fn concatenated(found: &[Array3<f32>], heads: usize, queries: usize) -> Array3<f32> {
    let columns = found.iter().map(|part| part.len_of(Axis(2))).sum();
    let mut out = Array3::zeros((heads, queries, columns));
    let mut start = 0;
    for part in found {
        let end = start + part.len_of(Axis(2));
        out.slice_mut(s![.., .., start..end]).assign(part);
        start = end;
    }
    out
}

/// Computes the rows of logits for codecs without quantization, in single precision, and calls
/// `take(head, query, row)` for each until it returns false.
fn exact_rows(Look { question, block, tokens }: Look, mut take: impl FnMut(usize, usize, &[f32]) -> bool) {
    let mut keys = Array2::zeros((tokens.len(), question.exact.len_of(Axis(2))));
    for (head, (question, &plane)) in question.exact.outer_iter().zip(&question.planes).enumerate() {
        block.read_plane(plane, tokens, keys.as_slice_mut().expect("a new array is contiguous"));
        let logits = question.dot(&keys.t());
        for (query, row) in logits.outer_iter().enumerate() {
            let goes_on = match row.as_slice() {
                Some(row) => take(head, query, row),
                None => take(head, query, &row.to_vec()),
            };
            if !goes_on {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::block::Parts;
    use crate::kv::codec::Codec;

    const LENGTHS: [usize; 7] = [0, 1, 15, 16, 17, 100, 205];

    /// Returns pseudo-random unit vectors `[head, token, dim]`.
    fn vectors(shape: (usize, usize, usize), seed: u64) -> Array3<f32> {
        let mut state = seed;
        let mut out = Array3::from_shape_simple_fn(shape, || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        });
        for mut key in out.lanes_mut(Axis(2)) {
            let norm = key.dot(&key).sqrt();
            key /= norm;
        }
        out
    }

    fn block(codec: Codec, shape: (usize, usize, usize)) -> Block {
        let keys = vectors(shape, 7 + shape.1 as u64);
        let offsets: Vec<_> = (0..shape.1).map(|t| (t..t + 1).into()).collect();
        Block::encode(
            Parts { keys: keys.view(), title_tokens: 0, offsets: &offsets, sentences: &[], lang: None },
            codec,
        )
    }

    fn question(exact: Array3<f32>) -> ScanQueries {
        let planes: Vec<usize> = (0..exact.len_of(Axis(0))).collect();
        ScanQueries::new(exact, &planes)
    }

    fn whole<'a>(question: &'a ScanQueries, block: &'a Block) -> Look<'a> {
        Look { question, block, tokens: TokenSpan::new(0, block.tokens()) }
    }

    /// Returns the logits by the definition: each dot product separately, over decoded keys.
    fn by_definition(question: &ScanQueries, block: &Block) -> Array3<f32> {
        let keys = block.keys();
        let (heads, tokens, _) = keys.dim();
        Array3::from_shape_fn((heads, question.shape().1, tokens), |(h, q, n)| {
            let (q, k) = (question.exact.slice(s![h, q, ..]), keys.slice(s![h, n, ..]));
            q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() as f32
        })
    }

    #[test]
    fn logits_equal_the_dot_products_within_the_rounding_of_the_question() {
        for codec in Codec::ALL {
            for (heads, queries, dim) in [(1, 16, 384), (2, 5, 40), (1, 1, 12), (3, 33, 64)] {
                let mut question_vectors = vectors((heads, queries, dim), 3);
                // Every second vector has an outlier, which makes the quantization of its other values
                // coarse.
                for mut query in question_vectors.lanes_mut(Axis(2)).into_iter().step_by(2) {
                    query[0] = 0.7;
                    let norm = query.dot(&query).sqrt();
                    query /= norm;
                }
                let question = question(question_vectors);
                let bound = if codec.is_quantized() { 0.01 } else { 1e-6 };
                for tokens in LENGTHS {
                    let block = block(codec, (heads, tokens, dim));
                    let found = logits(&[whole(&question, &block)]);
                    let worst = (&found - &by_definition(&question, &block))
                        .iter()
                        .fold(0.0_f32, |m, e| m.max(e.abs()));
                    assert!(
                        worst <= bound,
                        "{codec} {heads}x{queries}x{dim}, {tokens} tokens: off by {worst}"
                    );
                }
            }
        }
    }

    #[test]
    fn all_kernels_give_the_same_bits_for_subnormal_questions() {
        let units = vectors((1, 9, 64), 11).mapv(|v| f32::from_bits((v.abs() * 600.0) as u32).copysign(v));
        let question = question(units);
        let keys = vectors((1, 33, 64), 5).mapv(|v| v.signum() * 1e30);
        let offsets = vec![(0..1).into(); 33];
        let parts =
            Parts { keys: keys.view(), title_tokens: 0, offsets: &offsets, sentences: &[], lang: None };
        let block = Block::encode(parts, Codec::Int8);
        let portable = logits_by(Kernel::Portable, &[whole(&question, &block)]);
        assert!(portable.iter().any(|logit| *logit != 0.0));
        for kernel in Kernel::available() {
            assert_eq!(logits_by(kernel, &[whole(&question, &block)]), portable, "{kernel:?}");
        }
    }

    #[test]
    fn all_kernels_give_the_same_bits() {
        for (heads, queries, dim) in [(1, 16, 384), (2, 5, 40), (1, 9, 12), (1, 3, 768)] {
            let question = question(vectors((heads, queries, dim), 11));
            for tokens in LENGTHS {
                let block = block(Codec::Int8, (heads, tokens, dim));
                let portable = logits_by(Kernel::Portable, &[whole(&question, &block)]);
                for kernel in Kernel::available() {
                    assert_eq!(
                        logits_by(kernel, &[whole(&question, &block)]),
                        portable,
                        "{kernel:?} {tokens}"
                    );
                }
            }
        }
    }

    #[test]
    fn peaks_equal_the_maxima_of_the_logits() {
        let question = question(vectors((2, 9, 64), 5));
        for codec in Codec::ALL {
            let blocks = LENGTHS.map(|tokens| block(codec, (2, tokens, 64)));
            let segments = LENGTHS.map(|n| {
                let cut = |a: usize, b: usize| TokenSpan::new(a.min(n), b.min(n));
                vec![cut(0, n), cut(3, 20), cut(20, 21), cut(5, 5), cut(15, 400)]
            });
            let both = blocks.iter().zip(&segments);
            let parts: Vec<_> =
                both.map(|(block, segments)| Part { look: whole(&question, block), segments }).collect();
            let found = peaks(&parts, &|| true).expect("it is not stopped");
            let mut column = 0;
            for part in &parts {
                let logits = logits(&[part.look]);
                for segment in part.segments {
                    for ((h, q), &found) in found.index_axis(Axis(2), column).indexed_iter() {
                        let row = logits.slice(s![h, q, segment.range()]);
                        assert_eq!(found, row.iter().copied().fold(f32::MIN, f32::max));
                    }
                    column += 1;
                }
            }
            assert_eq!(peaks(&parts, &|| false), None);
        }
    }

    #[test]
    fn a_part_of_a_block_and_other_planes_give_the_same_bits_as_the_whole() {
        for codec in Codec::ALL {
            let block = block(codec, (3, 205, 40));
            let vectors = vectors((3, 5, 40), 5);
            let all = question(vectors.clone());
            let whole = logits(&[whole(&all, &block)]);
            let order = [2, 0];
            let two = ScanQueries::new(vectors.select(Axis(0), &order), &order);
            for (start, end) in
                [(0, 205), (0, 16), (16, 48), (5, 9), (17, 201), (204, 205), (50, 50), (205, 205)]
            {
                let look = Look { question: &two, block: &block, tokens: TokenSpan::new(start, end) };
                let found = logits(&[look]);
                let expect = whole.select(Axis(0), &order).slice(s![.., .., start..end]).to_owned();
                // In single precision, sums over matrices of different sizes may differ in the last bit.
                let bound = if codec.is_quantized() { 0.0 } else { 1e-6 };
                let worst = (&found - &expect).iter().fold(0.0_f32, |m, e| m.max(e.abs()));
                assert!(
                    found.dim() == expect.dim() && worst <= bound,
                    "{codec} {start}..{end}: off by {worst}"
                );
                let segments = [TokenSpan::new(0, 205), TokenSpan::new(10, 20), TokenSpan::new(start, end)];
                let peaks =
                    peaks(&[Part { look, segments: &segments }], &|| true).expect("it is not stopped");
                for (column, segment) in segments.iter().enumerate() {
                    let scanned =
                        segment.start.clamp(start, end) - start..segment.end.clamp(start, end) - start;
                    let expect = found.slice(s![1, 3, scanned]).iter().copied().fold(f32::MIN, f32::max);
                    assert_eq!(peaks[[1, 3, column]], expect, "{codec} {start}..{end} {segment:?}");
                }
            }
        }
    }
}
