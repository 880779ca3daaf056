//! Names what keys depend on: the model's files and, for weights in eight bits, the kernels that multiply them.

use sha2::{Digest, Sha256};

use crate::model::contract::{Contract, Weights, hex};

/// The name of all keys that this machine's runtime makes of a contract.
///
/// Builds and processors compute single precision alike but for rounding, far below what a codec takes away, so such keys
/// are one and the same for a fleet. With weights in eight bits, ONNX Runtime's kernels differ in more: on x86 without VNNI
/// they saturate.
///
/// Halves are multiplied in 32 bits by x86 and in 16 by a GPU, so keys of such weights have a name for each.
pub fn fingerprint(contract: &Contract, is_cpu: bool) -> String {
    let kernels = if is_cpu { kernels() } else { "cuda" };
    name(&contract.fingerprint(), contract.weights.dtype, ort::info(), kernels)
}

fn name(contract: &[u8; 32], weights: Weights, build: &str, kernels: &str) -> String {
    match weights {
        Weights::F32 => hex(&contract[..16]),
        Weights::F16 | Weights::Int8 => {
            let held = Sha256::new()
                .chain_update(contract)
                .chain_update(kernels)
                .chain_update([0])
                .chain_update(build);
            hex(&held.finalize()[..16])
        }
    }
}

/// The kind of eight-bit kernels that this processor gets.
fn kernels() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        let vnni = is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
        if vnni { "x86-vnni" } else { "x86" }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_in_fewer_bits_have_a_name_for_each_kind_of_kernel() {
        let (contract, other) = ([7; 32], [8; 32]);
        let f32 = |contract, build, kernels| name(contract, Weights::F32, build, kernels);
        let int8 = |contract, build, kernels| name(contract, Weights::Int8, build, kernels);
        assert_eq!(f32(&contract, "1", "x86"), "07".repeat(16));
        assert_eq!(f32(&contract, "1", "x86"), f32(&contract, "2", "x86-vnni"));
        let f16 = |kernels| name(&contract, Weights::F16, "1", kernels);
        assert_ne!(f16("x86"), f16("cuda"));
        let first = int8(&contract, "1", "x86");
        assert_eq!(first, int8(&contract, "1", "x86"));
        for another in
            [int8(&contract, "2", "x86"), int8(&contract, "1", "x86-vnni"), int8(&other, "1", "x86")]
        {
            assert_ne!(first, another);
        }
    }
}
