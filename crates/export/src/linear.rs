//! A linear layer, `x [.., in] · weight [in, out] + bias [out]`: how it is stored and what the graph does.
//! Knows nothing of architectures.
//!
//! With f16 weights, `x` is rounded to f16 for the product and the result is an `f32` again: GPUs multiply halves many times faster,
//! and what is added up over the layers stays exact.
//!
//! With int8 weights, a weight is a signed byte times its column's scale; each row of `x`, a token, becomes unsigned bytes
//! by its own largest component. The product of integers is exact, so the result depends neither on what shares the
//! batch nor on threads. On x86 without VNNI, ONNX Runtime's quick kernels saturate: there a runtime must ask for the
//! precise ones (`session.x64quantprecision`), with which int8 is hardly faster than `f32`.

use thresher_core::model::contract::Weights;
use thresher_core::model::onnx::DataType;

use super::{
    ExportError,
    graph::{GraphBuilder, Stored, Value},
    weights::Tensor,
    write::WeightFile,
};

/// Largest magnitude of a quantised weight or component.
const STEPS: f32 = 127.0;

/// The byte that stands for zero in a quantised row.
const ZERO: u8 = 128;

/// A row no larger than this counts as zero: it is divided by.
const ROW_MIN: f32 = 1e-12;

/// A linear layer in the weights file.
#[derive(Debug)]
pub struct Linear {
    /// `[in, out]`, `f32`, `f16` or `i8`.
    weight: Stored,
    /// `[out]`: what a step of each column of an `i8` weight is worth.
    step: Option<Stored>,
    /// `[out]`
    bias: Option<Stored>,
}

impl Linear {
    /// Stores the layer `name`: `weight [in, out]`, `bias [out]`, if it has one.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn store(
        out: &mut WeightFile,
        name: &str,
        (weight, bias): (&Tensor, Option<&Tensor>),
        weights: Weights,
    ) -> Result<Self, ExportError> {
        let weight_name = format!("{name}.weight");
        let (weight, step) = match weights {
            Weights::F32 => (out.push(&weight_name, &weight.dims, &weight.values)?, None),
            Weights::F16 => (out.push_f16(&weight_name, &weight.dims, &weight.values)?, None),
            Weights::Int8 => {
                let (values, steps) = quantised(weight);
                let stored = out.push_i8(&weight_name, &weight.dims, &values)?;
                (stored, Some(out.push(&format!("{name}.step"), &weight.dims[1..], &steps)?))
            }
        };
        let store = |bias: &Tensor| out.push(&format!("{name}.bias"), &bias.dims, &bias.values);
        let bias = bias.map(store).transpose()?;
        Ok(Self { weight, step, bias })
    }

    /// `x [.., in]` → `[.., out]`.
    pub fn apply(&self, g: &mut GraphBuilder, x: &Value) -> Value {
        let weight = g.weight(&self.weight);
        let product = match &self.step {
            None if self.weight.data_type == DataType::Float16 => {
                let halves = g.cast_f16(x);
                let product = g.matmul(&halves, &weight);
                g.cast_f32(&product)
            }
            None => g.matmul(x, &weight),
            Some(step) => {
                let step = g.weight(step);
                quantised_product(g, x, (&weight, &step))
            }
        };
        match &self.bias {
            None => product,
            Some(bias) => {
                let bias = g.weight(bias);
                g.add(&product, &bias)
            }
        }
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
