//! A linear layer, `x [.., in] · weight [in, out] + bias [out]`: how it is stored and what the graph does.
//! Knows nothing of architectures.
//!
//! With int8 weights, a weight is a signed byte times its column's scale; each row of `x`, a token, becomes unsigned bytes
//! by its own largest component. The product of integers is exact, so the result depends neither on what shares the
//! batch nor on threads. On x86 without VNNI, ONNX Runtime's quick kernels saturate: there a runtime must ask for the
//! precise ones (`session.x64quantprecision`), with which int8 is hardly faster than `f32`.

use super::{
    ExportError,
    graph::{GraphBuilder, Stored, Value},
    weights::Tensor,
    write::WeightFile,
};
use crate::model::contract::Weights;

/// Largest magnitude of a quantised weight or component.
const STEPS: f32 = 127.0;

/// The byte that stands for zero in a quantised row.
const ZERO: u8 = 128;

/// A row no larger than this counts as zero: it is divided by.
const ROW_MIN: f32 = 1e-12;

/// A linear layer in the weights file.
#[derive(Debug)]
pub struct Linear {
    /// `[in, out]`, `f32` or `i8`.
    weight: Stored,
    /// `[out]`: what a step of each column of an `i8` weight is worth.
    step: Option<Stored>,
    /// `[out]`
    bias: Stored,
}

impl Linear {
    /// Stores the layer `name`: `weight [in, out]`, `bias [out]`.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn store(
        out: &mut WeightFile,
        name: &str,
        (weight, bias): (&Tensor, &Tensor),
        weights: Weights,
    ) -> Result<Self, ExportError> {
        let weight_name = format!("{name}.weight");
        let (weight, step) = match weights {
            Weights::F32 => (out.push(&weight_name, &weight.dims, &weight.values)?, None),
            Weights::Int8 => {
                let (values, steps) = quantised(weight);
                let stored = out.push_i8(&weight_name, &weight.dims, &values)?;
                (stored, Some(out.push(&format!("{name}.step"), &bias.dims, &steps)?))
            }
        };
        let bias = out.push(&format!("{name}.bias"), &bias.dims, &bias.values)?;
        Ok(Self { weight, step, bias })
    }

    /// `x [.., in]` → `[.., out]`.
    pub fn apply(&self, g: &mut GraphBuilder, x: &Value) -> Value {
        let weight = g.weight(&self.weight);
        let product = match &self.step {
            None => g.matmul(x, &weight),
            Some(step) => {
                let step = g.weight(step);
                quantised_product(g, x, (&weight, &step))
            }
        };
        let bias = g.weight(&self.bias);
        g.add(&product, &bias)
    }
}

fn quantised_product(g: &mut GraphBuilder, x: &Value, (weight, step): (&Value, &Value)) -> Value {
    let magnitude = g.abs(x);
    let largest = g.max_of_row(&magnitude);
    let least = g.const_f32(ROW_MIN);
    let largest = g.max(&largest, &least);
    let per_step = g.const_f32(1.0 / STEPS);
    let row_step = g.mul(&largest, &per_step);
    let steps = g.div(x, &row_step);
    let bytes = g.round_to_u8(&steps, ZERO);
    let integers = g.matmul_integer(&bytes, weight, ZERO);
    let product = g.cast_f32(&integers);
    let product = g.mul(&product, &row_step);
    g.mul(&product, step)
}

/// `weight [in, out]` as steps of its columns, and what a step of each column is worth.
fn quantised(weight: &Tensor) -> (Vec<i8>, Vec<f32>) {
    let columns = weight.dims[1];
    let mut steps = vec![0f32; columns];
    for row in weight.values.chunks(columns) {
        steps.iter_mut().zip(row).for_each(|(step, value)| *step = step.max(value.abs() / STEPS));
    }
    // A column of zeros has zeros whatever it is divided by.
    steps.iter_mut().for_each(|step| *step = step.max(f32::MIN_POSITIVE));
    let by_column = weight.values.iter().zip(steps.iter().cycle());
    let values = by_column.map(|(value, step)| (value / step).round().clamp(-STEPS, STEPS) as i8).collect();
    (values, steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_use_all_their_steps() {
        let weight = Tensor { dims: vec![2, 3], values: vec![127.0, -0.5, 0.0, -63.4, 0.25, 0.0] };
        let (values, steps) = quantised(&weight);
        assert_eq!(values, [127, -127, 0, -63, 64, 0]);
        assert_eq!(steps, [1.0, 0.5 / 127.0, f32::MIN_POSITIVE]);
    }
}
