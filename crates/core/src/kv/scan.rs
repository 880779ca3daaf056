//! A question over blocks: raw logits, and the peak of each segment, in one pass over keys that are read where they lie.
//! Knows neither where blocks come from nor what peaks are for.
//!
//! Quantized keys meet a question quantized to eight bits, one scale a token. Their products are summed in integers, so
//! every kernel gives the same bits; the logit is that sum times both scales. Against exact arithmetic on the decoded keys
//! it is off by at most `scale_q / 2 · Σ|k|`, the question's rounding: below 0.01 for the unit vectors of
//! the tests, a value that stands out included. Exact codecs meet the exact question.

mod kernel;
#[cfg(target_arch = "x86_64")]
mod x86;

use ndarray::{Array2, Array3, Axis, s};
use rayon::prelude::*;

pub use self::kernel::Kernel;
use self::kernel::{GROUP, QUERIES};
use super::block::Block;
use crate::domain::TokenSpan;

/// Keys that are worth a thread of their own.
const KEYS_PER_TASK: usize = 2048;

/// A question, ready to be scanned over blocks of any codec.
#[derive(Debug, Clone)]
pub struct ScanQueries {
    /// `[head, question_token, head_dim]`; a logit is its product with a key.
    exact: Array3<f32>,
    heads: Vec<QuantizedHead>,
    /// `[head]`: which of a block's planes holds the keys that it meets.
    planes: Vec<usize>,
}

/// One head of a question in eight bits.
#[derive(Debug, Clone)]
struct QuantizedHead {
    /// `[batch of tokens, four values]` of as many tokens as a kernel takes at once.
    packed: Vec<Vec<[i32; QUERIES]>>,
    /// `[token]`: scale.
    scales: Vec<f32>,
    /// `[token]`: sum of the quantized values: what a key's offset adds to the product, once for each unit of it.
    sums: Vec<i32>,
}

/// A question and the tokens of a block that it meets.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    /// The question.
    pub question: &'a ScanQueries,
    /// The keys.
    pub block: &'a Block,
    /// Of the block.
    pub tokens: TokenSpan,
}

/// What a question meets, and the segments of it that are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Questions of all parts are alike in heads and tokens.
    pub look: Look<'a>,
    /// Segments, counted from the block's first token; they may be empty, overlap or nest. What lies beyond the tokens that the
    /// question meets is left out.
    pub segments: &'a [TokenSpan],
}

impl ScanQueries {
    /// From `[head, question_token, head_dim]`, and for each head the plane of a block that holds its keys.
    ///
    /// # Panics
    /// When there is not one plane for each head.
    pub fn new(exact: Array3<f32>, planes: &[usize]) -> Self {
        assert_eq!(exact.len_of(Axis(0)), planes.len(), "one plane for each head");
        let heads = exact.outer_iter().map(|head| QuantizedHead::new(&head.to_owned())).collect();
        Self { exact, heads, planes: planes.to_vec() }
    }

    /// Heads and tokens.
    fn shape(&self) -> (usize, usize) {
        let (heads, tokens, _) = self.exact.dim();
        (heads, tokens)
    }
}

impl QuantizedHead {
    fn new(head: &Array2<f32>) -> Self {
        let (tokens, dim) = head.dim();
        // To whole groups of two: four-bit tiles hold two groups in four bytes.
        let groups = dim.div_ceil(2 * GROUP) * 2;
        let mut packed = vec![vec![[0; QUERIES]; groups]; tokens.div_ceil(QUERIES)];
        let (mut scales, mut sums) = (Vec::with_capacity(tokens), Vec::with_capacity(tokens));
        for (token, row) in head.outer_iter().enumerate() {
            let scale = row.iter().fold(0.0_f32, |most, v| most.max(v.abs())) / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let mut values = vec![0_i8; groups * GROUP];
            // To -127, which the kernels rely on: the inverse of a tiny scale is infinite.
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

/// The peak of every segment, `[head, question_token, segment]`, segments in the order of the parts; `f32::MIN` for one without
/// tokens. `go_on` is asked now and then; none when it said no.
///
/// # Panics
/// When a block and its question do not fit each other, or questions differ in heads or tokens.
pub fn peaks(parts: &[Part], go_on: &(dyn Fn() -> bool + Sync)) -> Option<Array3<f32>> {
    let shape = shape_of(parts.iter().map(|part| part.look));
    let of_task = |parts: &&[Part]| {
        let segments = parts.iter().map(|part| part.segments.len()).sum();
        let mut out = Array3::zeros((shape.0, shape.1, segments));
        let mut scratch = Scratch::default();
        let mut first = 0;
        for Part { look, segments } in *parts {
            if !go_on() {
                return None;
            }
            let TokenSpan { start, end } = look.tokens;
            let met = |at: usize| at.clamp(start, end) - start;
            Kernel::best().rows(*look, &mut scratch, |head, query, row| {
                let out =
                    &mut out.slice_mut(s![head, query, first..]).into_slice().expect("rows are contiguous")
                        [..segments.len()];
                out.iter_mut().zip(*segments).for_each(|(out, segment)| {
                    *out = kernel::peak(&row[met(segment.start)..met(segment.end)]);
                });
            });
            first += segments.len();
        }
        Some(out)
    };
    let tasks = tasks(parts);
    let found: Vec<_> = tasks.par_iter().map(of_task).collect::<Option<_>>()?;
    Some(side_by_side(&found, shape))
}

/// Raw logits `[head, question_token, key]` over all tokens that are looked at, one behind the other: the numbers that
/// [`peaks`] takes the maxima of.
///
/// # Panics
/// As [`peaks`].
pub fn logits(looks: &[Look]) -> Array3<f32> {
    logits_by(Kernel::best(), looks)
}

/// As [`logits`], on a kernel of one's choice: all give the same bits, and a test holds them to it.
pub fn logits_by(kernel: Kernel, looks: &[Look]) -> Array3<f32> {
    let shape = shape_of(looks.iter().copied());
    let of_look = |look: &Look| {
        let mut out = Array3::zeros((shape.0, shape.1, look.tokens.len()));
        kernel.rows(*look, &mut Scratch::default(), |head, query, row| {
            let mut out = out.slice_mut(s![head, query, ..]);
            out.iter_mut().zip(row).for_each(|(out, &logit)| *out = logit);
        });
        out
    };
    let found: Vec<_> = looks.par_iter().map(of_look).collect();
    side_by_side(&found, shape)
}

/// Heads and tokens of all questions.
fn shape_of<'a>(mut looks: impl Iterator<Item = Look<'a>>) -> (usize, usize) {
    let Some(first) = looks.next() else { return (0, 0) };
    let shape = first.question.shape();
    assert!(looks.all(|look| look.question.shape() == shape), "questions of one request are alike");
    shape
}

/// Rows of one block, kept between blocks.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// `[query of a batch, key, filled up to whole tiles]`.
    rows: Vec<f32>,
}

/// Neighbouring parts in runs that are worth a thread.
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

/// `[h, q, n]` arrays, one behind the other on the last axis.
fn side_by_side(found: &[Array3<f32>], (heads, queries): (usize, usize)) -> Array3<f32> {
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

/// The exact codecs: keys as numbers, multiplied in single precision.
fn exact_rows(Look { question, block, tokens }: Look, mut take: impl FnMut(usize, usize, &[f32])) {
    let mut keys = Array2::zeros((tokens.len(), question.exact.len_of(Axis(2))));
    for (head, (question, &plane)) in question.exact.outer_iter().zip(&question.planes).enumerate() {
        block.read_plane(plane, tokens, keys.as_slice_mut().expect("a new array is contiguous"));
        let logits = question.dot(&keys.t());
        for (query, row) in logits.outer_iter().enumerate() {
            match row.as_slice() {
                Some(row) => take(head, query, row),
                None => take(head, query, &row.to_vec()),
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

    /// Unit vectors `[head, token, dim]` by a fixed generator.
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
        Block::encode(Parts { keys: keys.view(), title_tokens: 0, offsets: &offsets, sentences: &[] }, codec)
    }

    fn question(exact: Array3<f32>) -> ScanQueries {
        let planes: Vec<usize> = (0..exact.len_of(Axis(0))).collect();
        ScanQueries::new(exact, &planes)
    }

    fn whole<'a>(question: &'a ScanQueries, block: &'a Block) -> Look<'a> {
        Look { question, block, tokens: TokenSpan::new(0, block.tokens()) }
    }

    /// The definition: every product by itself, over decoded keys.
    fn by_definition(question: &ScanQueries, block: &Block) -> Array3<f32> {
        let keys = block.keys();
        let (heads, tokens, _) = keys.dim();
        Array3::from_shape_fn((heads, question.shape().1, tokens), |(h, q, n)| {
            let (q, k) = (question.exact.slice(s![h, q, ..]), keys.slice(s![h, n, ..]));
            q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() as f32
        })
    }

    #[test]
    fn logits_are_the_products_within_the_questions_rounding() {
        for codec in Codec::ALL {
            for (heads, queries, dim) in [(1, 16, 384), (2, 5, 40), (1, 1, 12), (3, 33, 64)] {
                let mut question_vectors = vectors((heads, queries, dim), 3);
                // Every second one with a value that stands out, which makes the steps coarse for the others.
                for mut query in question_vectors.lanes_mut(Axis(2)).into_iter().step_by(2) {
                    query[0] = 0.7;
                    let norm = query.dot(&query).sqrt();
                    query /= norm;
                }
                let asked = question(question_vectors);
                let bound = if codec.is_quantized() { 0.01 } else { 1e-6 };
                for tokens in LENGTHS {
                    let block = block(codec, (heads, tokens, dim));
                    let found = logits(&[whole(&asked, &block)]);
                    let worst =
                        (&found - &by_definition(&asked, &block)).iter().fold(0.0_f32, |m, e| m.max(e.abs()));
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
        let asked = question(units);
        for codec in [Codec::Int8, Codec::Int4] {
            let keys = vectors((1, 33, 64), 5).mapv(|v| v.signum() * 1e30);
            let offsets = vec![(0..1).into(); 33];
            let parts = Parts { keys: keys.view(), title_tokens: 0, offsets: &offsets, sentences: &[] };
            let block = Block::encode(parts, codec);
            let portable = logits_by(Kernel::Portable, &[whole(&asked, &block)]);
            assert!(portable.iter().any(|logit| *logit != 0.0));
            for kernel in Kernel::available() {
                assert_eq!(logits_by(kernel, &[whole(&asked, &block)]), portable, "{kernel:?} {codec}");
            }
        }
    }

    #[test]
    fn all_kernels_give_the_same_bits() {
        for codec in [Codec::Int8, Codec::Int4] {
            for (heads, queries, dim) in [(1, 16, 384), (2, 5, 40), (1, 9, 12), (1, 3, 768)] {
                let asked = question(vectors((heads, queries, dim), 11));
                for tokens in LENGTHS {
                    let block = block(codec, (heads, tokens, dim));
                    let portable = logits_by(Kernel::Portable, &[whole(&asked, &block)]);
                    for kernel in Kernel::available() {
                        assert_eq!(
                            logits_by(kernel, &[whole(&asked, &block)]),
                            portable,
                            "{kernel:?} {codec} {tokens}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn peaks_are_the_maxima_of_the_logits() {
        let asked = question(vectors((2, 9, 64), 5));
        for codec in Codec::ALL {
            let blocks = LENGTHS.map(|tokens| block(codec, (2, tokens, 64)));
            let segments = LENGTHS.map(|n| {
                let cut = |a: usize, b: usize| TokenSpan::new(a.min(n), b.min(n));
                vec![cut(0, n), cut(3, 20), cut(20, 21), cut(5, 5), cut(15, 400)]
            });
            let both = blocks.iter().zip(&segments);
            let parts: Vec<_> =
                both.map(|(block, segments)| Part { look: whole(&asked, block), segments }).collect();
            let found = peaks(&parts, &|| true).expect("nobody stops it");
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
                // In single precision, sums of matrices of other sizes may differ in the last bit.
                let bound = if codec.is_quantized() { 0.0 } else { 1e-6 };
                let worst = (&found - &expect).iter().fold(0.0_f32, |m, e| m.max(e.abs()));
                assert!(
                    found.dim() == expect.dim() && worst <= bound,
                    "{codec} {start}..{end}: off by {worst}"
                );
                let segments = [TokenSpan::new(0, 205), TokenSpan::new(10, 20), TokenSpan::new(start, end)];
                let peaks = peaks(&[Part { look, segments: &segments }], &|| true).expect("nobody stops it");
                for (column, segment) in segments.iter().enumerate() {
                    let met = segment.start.clamp(start, end) - start..segment.end.clamp(start, end) - start;
                    let expect = found.slice(s![1, 3, met]).iter().copied().fold(f32::MIN, f32::max);
                    assert_eq!(peaks[[1, 3, column]], expect, "{codec} {start}..{end} {segment:?}");
                }
            }
        }
    }
}
