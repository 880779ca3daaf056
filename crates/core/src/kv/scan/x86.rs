//! The dot products of the scan in the vector instructions of x86-64. All unsafe code of the scan is here:
//! loads and stores of arrays of known length, and calls of functions for instruction sets, which `Kernel`
//! makes only if the processor supports them.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::kernel::{Kernel, QUERIES, Sums, quantized_rows};
use super::{Look, Scratch};
use crate::kv::codec::LANES;

/// The bytes of one vector of a tile: four bytes of each key.
const STEP: usize = 4 * LANES;

/// Computes the rows of logits with the instructions of `kernel`.
///
/// # Panics
/// When this processor does not support them.
pub(super) fn rows(
    kernel: Kernel,
    look: Look,
    scratch: &mut Scratch,
    take: impl FnMut(usize, usize, &[f32]) -> bool,
) {
    assert!(kernel.is_available(), "this processor does not support {kernel:?}");
    // SAFETY: the assertion above has checked that the processor has the features that each function is
    // compiled for.
    unsafe {
        if kernel == Kernel::Avx512Vnni {
            int8_avx512(look, scratch, take);
        } else {
            int8_avx2(look, scratch, take);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn int8_avx512(look: Look, s: &mut Scratch, take: impl FnMut(usize, usize, &[f32]) -> bool) {
    quantized_rows(look, s, look.block.codec().offset(), take, |keys, packed| {
        let mut sums = [_mm512_setzero_si512(); QUERIES];
        for (keys, queries) in keys.as_chunks::<STEP>().0.iter().zip(packed) {
            let keys = load_512(keys);
            for (sum, &query) in sums.iter_mut().zip(queries) {
                *sum = _mm512_dpbusd_epi32(*sum, keys, _mm512_set1_epi32(query));
            }
        }
        sums.map(|sums| store_512(sums))
    });
}

/// The instruction that multiplies unsigned with signed bytes saturates at 16 bits. The offset is therefore
/// removed from the keys, and their sign is moved to the question, so that the largest sum is 127 · 127 · 2,
/// which fits 16 bits.
#[target_feature(enable = "avx2")]
fn int8_avx2(look: Look, s: &mut Scratch, take: impl FnMut(usize, usize, &[f32]) -> bool) {
    let (offset, ones) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(1));
    quantized_rows(look, s, 0, take, |keys, packed| {
        let mut sums = [[_mm256_setzero_si256(); 2]; QUERIES];
        for (keys, queries) in keys.as_chunks::<STEP>().0.iter().zip(packed) {
            for half in 0..2 {
                let keys = _mm256_xor_si256(load_256(keys, half), offset);
                let magnitude = _mm256_abs_epi8(keys);
                for (sum, &query) in sums.iter_mut().zip(queries) {
                    let signed = _mm256_sign_epi8(_mm256_set1_epi32(query), keys);
                    let pairs = _mm256_maddubs_epi16(magnitude, signed);
                    sum[half] = _mm256_add_epi32(sum[half], _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        sums.map(|sums| store_256(sums))
    });
}

#[target_feature(enable = "avx512f")]
fn load_512(bytes: &[u8; STEP]) -> __m512i {
    // SAFETY: 64 bytes are read from an array of 64 bytes; the instruction requires no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn store_512(sums: __m512i) -> [i32; LANES] {
    let mut out = [0; LANES];
    // SAFETY: 64 bytes are written to an array of sixteen numbers of four bytes.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), sums) };
    out
}

/// Loads one half of a vector's bytes.
#[target_feature(enable = "avx2")]
fn load_256(bytes: &[u8; STEP], half: usize) -> __m256i {
    let half: &[u8; STEP / 2] = &bytes.as_chunks().0[half];
    // SAFETY: 32 bytes are read from an array of 32 bytes; the instruction requires no alignment.
    unsafe { _mm256_loadu_si256(half.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn store_256(sums: [__m256i; 2]) -> [i32; LANES] {
    let mut out = [0; LANES];
    for (out, sums) in out.as_chunks_mut::<8>().0.iter_mut().zip(sums) {
        // SAFETY: 32 bytes are written to an array of eight numbers of four bytes.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), sums) };
    }
    out
}

const _: () = assert!(STEP == 64);
const _: () = assert!(size_of::<Sums>() == 4 * LANES * QUERIES);
